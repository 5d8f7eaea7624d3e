package schema

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sections stand behind a specification that leaves them out, so that a case
// shows only what it is about.
var sections = []struct{ key, text string }{
	{"version", "version: 1\n"},
	{"package", "package: box\n"},
	{"out", "out: internal/box\n"},
	{"payloads", "payloads: {ping: {fields: {id: uuid}}}\n"},
	{"destinations", "destinations: {peer: {accepts: [ping], idempotent: true}}\n"},
}

func complete(text string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	for _, s := range sections {
		if !strings.HasPrefix(text, s.key+":") && !strings.Contains(text, "\n"+s.key+":") {
			text += s.text
		}
	}
	return text
}

// decodeValid decodes a specification without faults.
func decodeValid(t *testing.T, text string) *Spec {
	t.Helper()
	spec, diags := Decode("outbox.yaml", []byte(text))
	if diags.HasErrors() {
		t.Fatalf("faults in a specification without any:\n%s", diags)
	}
	return spec
}

func decodeFile(t *testing.T, file string) *Spec {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return decodeValid(t, string(data))
}

// ignorePos leaves places out of a comparison, which have tests of their own.
var ignorePos = cmp.Comparer(func(a, b Pos) bool { return true })

func written(value string) Text { return Text{Value: value} }

func scalar(s ScalarType) *TypeExpr { return &TypeExpr{Kind: Scalar, Scalar: s} }

func TestDecodeEverything(t *testing.T) {
	got := decodeFile(t, "testdata/everything.yaml")

	currency := &Type{Name: written("currency"), Enum: true, Values: []*EnumValue{
		{Value: written("EUR")},
		{Value: written("NO")},
		{Value: written("A+"), GoName: written("APlus"), Doc: written("the best")},
		{Value: written("")},
	}}
	money := &Type{
		Name: written("money"), GoName: written("Amount"), Doc: written("An amount."), Deprecated: written("use price"),
		Fields: []*Field{
			{Name: written("amount"), Type: scalar(Decimal)},
			{Name: written("currency"), Type: &TypeExpr{Kind: Named, Named: currency}},
		},
	}
	tree := &Type{Name: written("tree")}
	tree.Fields = []*Field{
		{Name: written("left"), Optional: true, Type: &TypeExpr{Kind: Named, Named: tree}},
		{Name: written("children"), Type: &TypeExpr{Kind: List, Elem: &TypeExpr{Kind: Named, Named: tree}}},
		{Name: written("named"), Type: &TypeExpr{Kind: Map, Elem: &TypeExpr{Kind: Named, Named: tree}}},
	}
	nothing := &Type{Name: written("nothing"), Fields: []*Field{}}

	id := &Field{Name: written("id"), Type: scalar(UUID)}
	account := &Field{Name: written("account.no"), JSON: written("account no"), GoName: written("Account"), Doc: written("Whose."), Deprecated: written("use id"),
		Type: &TypeExpr{Kind: Scalar, Scalar: String, Checks: Checks{
			MinLength: Int{Value: 1}, MaxLength: Int{Value: 12}, Pattern: written("^[0-9]+$"), NonZero: Flag{Value: true},
		}}}
	amount := &Field{Name: written("amount"), Type: &TypeExpr{Kind: Named, Named: money}}
	order := &Payload{
		Name: written("order"), GoName: written("Order"), Doc: written("An order.\nWith */ and `//go:embed` and %s.\n"), Deprecated: written("use order_v2"),
		Fields: []*Field{
			id, account, amount,
			{Name: written("bool"), Type: scalar(Bool)},
			{Name: written("int32"), Type: &TypeExpr{Kind: Scalar, Scalar: Int32, Checks: Checks{Min: written("-2147483648"), Max: written("2147483647")}}},
			{Name: written("int64"), Type: &TypeExpr{Kind: Scalar, Scalar: Int64, Quoted: true, Checks: Checks{Min: written("-9223372036854775808")}}},
			{Name: written("uint64"), Type: &TypeExpr{Kind: Scalar, Scalar: Uint64, Checks: Checks{Max: written("18446744073709551615")}}},
			{Name: written("float64"), Type: &TypeExpr{Kind: Scalar, Scalar: Float64, Checks: Checks{Min: written("-0.5"), Max: written("1500")}}},
			{Name: written("time"), Type: scalar(Time)},
			{Name: written("date"), Type: scalar(Date)},
			{Name: written("duration"), Type: scalar(DurationType)},
			{Name: written("decimal"), Type: &TypeExpr{Kind: Scalar, Scalar: Decimal, Checks: Checks{Min: written("0.01"), Max: written("10000000000000000000000.5")}}},
			{Name: written("bigint"), Type: &TypeExpr{Kind: Scalar, Scalar: Bigint, Checks: Checks{Min: written("0")}}},
			{Name: written("bytes"), Type: &TypeExpr{Kind: Scalar, Scalar: Bytes, Checks: Checks{MaxLength: Int{Value: 1024}}}},
			{Name: written("json"), Type: scalar(JSON)},
			{Name: written("note"), Optional: true, Type: scalar(String)},
			{Name: written("secret"), Optional: true, Sensitive: true, Type: scalar(String)},
			{Name: written("grid"), Type: &TypeExpr{Kind: List, Checks: Checks{MinItems: Int{Value: 1}, MaxItems: Int{Value: 9}},
				Elem: &TypeExpr{Kind: Map, Checks: Checks{MaxItems: Int{Value: 3}},
					Elem: &TypeExpr{Kind: Scalar, Scalar: Int32, Checks: Checks{Min: written("1")}}}}},
			{Name: written("forest"), Type: &TypeExpr{Kind: List, Elem: &TypeExpr{Kind: Named, Named: tree}}},
			{Name: written("nothing"), Type: &TypeExpr{Kind: Named, Named: nothing}},
		},
	}
	key := &Field{Name: written("key"), Type: &TypeExpr{Kind: Named, Named: currency}}
	count := &Field{Name: written("count"), Type: scalar(Int64)}
	ping := &Payload{Name: written("ping"), Fields: []*Field{key, count}}

	path := func(fields ...*Field) Path { return Path{Fields: fields} }
	want := &Spec{
		File:    "outbox.yaml",
		Package: written("box"),
		Out:     written("internal/box"),
		Doc:     written("What\tleaves."),
		Store: Store{
			Table:   written("order_outbox"),
			Schema:  written("shop"),
			Command: CommandColumn{Name: written("cause"), Type: ColumnBigint},
			Columns: []*Column{
				{Name: written("tenant id"), GoName: written("Tenant"), Doc: written("Whose row."), Type: ColumnUUID, Index: true},
				{Name: written("region"), Type: ColumnText, Optional: true, Default: written("eu")},
				{Name: written("uuid"), Type: ColumnUUID, Default: written("8f14e45f-ceea-467f-a0e6-0d1c2b3a4f5e")},
				{Name: written("big"), Type: ColumnBigint, Default: written("-9223372036854775808")},
				{Name: written("small"), Type: ColumnInteger, Default: written("7")},
				{Name: written("yes"), Type: ColumnBoolean, Default: written("true")},
				{Name: written("at"), Type: ColumnTimestamptz, Default: written("2026-11-30T10:00:00.5Z")},
				{Name: written("day"), Type: ColumnDate, Default: written("2026-11-30")},
			},
		},
		Migrations:  Migrations{Dir: written("db/migrations"), Format: FormatPlain},
		Initialisms: Initialisms{Add: []Text{written("SKU"), written("GraphQL")}, Remove: []Text{written("ID")}},
		Emit:        Emit{OTel: Flag{Value: true}},
		Types:       []*Type{currency, money, tree, nothing},
		Payloads:    []*Payload{order, ping},
		Destinations: []*Destination{
			{
				Name: written("bank"), GoName: written("Bank"), Doc: written("Takes money."),
				Accepts:    []Accept{{Name: written("order"), Payload: order}, {Name: written("ping"), Payload: ping}},
				Idempotent: Flag{},
				Timeout:    Duration{Value: 10 * time.Second},
				Lease:      Duration{Value: 90 * time.Minute},
				Retry:      Retry{MaxAttempts: 0, Initial: 2 * time.Second, Max: 36 * time.Hour, Factor: 1.5, Jitter: 1},
				Reconcile:  Reconcile{First: 0, Every: 5 * time.Minute, GiveUp: 48 * time.Hour},
				Limits: Limits{
					Concurrency: Int{Value: 4},
					Rate:        Rate{Count: 50, Per: time.Second},
					Per: Selector{Paths: []PayloadPaths{
						{Payload: order, Paths: []Path{path(amount, money.Fields[1])}},
						{Payload: ping, Paths: []Path{path(key)}},
					}},
					Total: Int{Value: 100},
				},
				IdempotencyKey: Selector{Paths: []PayloadPaths{
					{Payload: order, Paths: []Path{path(id), path(account), path(amount, money.Fields[1])}},
					{Payload: ping, Paths: []Path{path(count)}},
				}},
				Retention: Retention{Completed: Keep{For: 0}, Failed: Keep{Forever: true}},
				Expires:   Duration{Value: 36 * time.Hour},
				Retired:   true,
			},
			{
				Name:    written("peer"),
				Accepts: []Accept{{Name: written("ping"), Payload: ping}}, Idempotent: Flag{Value: true},
				Timeout: Duration{Value: 30 * time.Second},
				Lease:   Duration{Value: 90 * time.Second},
				Retry: Retry{
					MaxAttempts: 4, Factor: 1,
					Delays: []time.Duration{0, 5 * time.Second, time.Hour},
				},
				Limits:         Limits{Concurrency: Int{Value: 8}},
				IdempotencyKey: Selector{Paths: []PayloadPaths{{Payload: ping, Paths: []Path{path(key), path(count)}}}},
				Retention:      Retention{Completed: Keep{For: 7 * 24 * time.Hour}, Failed: Keep{For: 30 * 24 * time.Hour}},
			},
			{
				Name:    written("person"),
				Accepts: []Accept{{Name: written("ping"), Payload: ping}},
				Timeout: Duration{Value: 30 * time.Second},
				Lease:   Duration{Value: 90 * time.Second},
				Retry: Retry{
					MaxAttempts: 3, Initial: time.Second, Max: 15 * time.Minute, Factor: 2, Jitter: 0.2,
				},
				Reconcile: Reconcile{None: true},
				Limits:    Limits{Concurrency: Int{Value: 8}},
				Retention: Retention{Completed: Keep{For: 7 * 24 * time.Hour}, Failed: Keep{For: 30 * 24 * time.Hour}},
			},
		},
	}
	if diff := cmp.Diff(want, got, ignorePos); diff != "" {
		t.Errorf("Decode (-want +got):\n%s", diff)
	}
}

// The least specification shows every default.
func TestDecodeDefaults(t *testing.T) {
	got := decodeValid(t, complete(""))
	if got.Store.Table.IsSet() || got.Store.Command.Name.IsSet() || got.Destinations[0].Timeout.IsSet() || got.Migrations.Dir.IsSet() {
		t.Error("a default has the place of something written")
	}
	id := &Field{Name: written("id"), Type: scalar(UUID)}
	ping := &Payload{Name: written("ping"), Fields: []*Field{id}}
	want := &Spec{
		File:       "outbox.yaml",
		Package:    written("box"),
		Out:        written("internal/box"),
		Store:      Store{Table: written("outbox"), Command: CommandColumn{Name: written("command_id"), Type: ColumnUUID}},
		Migrations: Migrations{Dir: written("internal/box/migrations"), Format: FormatGolangMigrate},
		Payloads:   []*Payload{ping},
		Destinations: []*Destination{{
			Name: written("peer"), Accepts: []Accept{{Name: written("ping"), Payload: ping}}, Idempotent: Flag{Value: true},
			Timeout: Duration{Value: 30 * time.Second}, Lease: Duration{Value: 90 * time.Second},
			Retry:     Retry{MaxAttempts: 10, Initial: time.Second, Max: 15 * time.Minute, Factor: 2, Jitter: 0.2},
			Limits:    Limits{Concurrency: Int{Value: 8}},
			Retention: Retention{Completed: Keep{For: 7 * 24 * time.Hour}, Failed: Keep{For: 30 * 24 * time.Hour}},
		}},
	}
	if diff := cmp.Diff(want, got, ignorePos); diff != "" {
		t.Errorf("Decode (-want +got):\n%s", diff)
	}
	unsafe := decodeValid(t, complete("destinations: {peer: {accepts: [ping], idempotent: false}}"))
	if diff := cmp.Diff(Reconcile{First: time.Minute, Every: 10 * time.Minute}, unsafe.Destinations[0].Reconcile); diff != "" {
		t.Errorf("reconcile of a destination that is not idempotent (-want +got):\n%s", diff)
	}
}

func TestPlaces(t *testing.T) {
	spec := decodeValid(t, complete("# größer\npayloads:\n  ping: {doc: \"größer\", fields: {id: {type: int32, min: 1, max: 5}}}"))
	field := spec.Payloads[0].Fields[0]
	for _, place := range []struct {
		what string
		got  Pos
		want string
	}{
		{"payload", spec.Payloads[0].Name.Pos, "outbox.yaml:3:3"},
		{"doc", spec.Payloads[0].Doc.Pos, "outbox.yaml:3:15"},
		{"field, behind characters of two bytes", field.Name.Pos, "outbox.yaml:3:34"},
		{"type", field.Type.Pos, "outbox.yaml:3:45"},
		{"min", field.Type.Checks.Min.Pos, "outbox.yaml:3:57"},
		{"max", field.Type.Checks.Max.Pos, "outbox.yaml:3:65"},
		{"accepts", spec.Destinations[0].Accepts[0].Name.Pos, "outbox.yaml:7:33"},
	} {
		if got := place.got.String(); got != place.want {
			t.Errorf("%s stands at %s, want %s", place.what, got, place.want)
		}
	}
}

// What a file looks like to an editor does not change what it says.
func TestDecodeForms(t *testing.T) {
	plain := complete("doc: \"größer\"\n")
	want := decodeValid(t, plain)
	for name, text := range map[string]string{
		"byte order mark": "\uFEFF" + plain,
		"CRLF":            strings.ReplaceAll(plain, "\n", "\r\n"),
		"document marks":  "---\n" + plain + "...\n",
		"harmless tags":   strings.Replace(plain, "doc: ", "doc: !!str ", 1),
		"comments":        "# before\n" + plain + "# behind",
		"no last newline": strings.TrimSuffix(plain, "\n"),
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(want, decodeValid(t, text), ignorePos); diff != "" {
				t.Errorf("(-plain +this):\n%s", diff)
			}
		})
	}
}

// Words that YAML 1.1 took for booleans, times and numbers of base 60 are texts.
func TestTextsOfYAML12(t *testing.T) {
	words := []string{"NO", "no", "on", "Off", "yes", "Y", "2026-11-30", "1:30:00", "1.2.3", "+", "-x", ".a"}
	spec := decodeValid(t, complete("types: {word: {enum: ["+strings.Join(words, ", ")+"]}}"))
	var got []string
	for _, v := range spec.Types[0].Values {
		got = append(got, v.Value.Value)
	}
	if diff := cmp.Diff(words, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

func TestDurations(t *testing.T) {
	for _, c := range []struct {
		text string
		want time.Duration
	}{
		{"250ms", 250 * time.Millisecond},
		{"1h30m", 90 * time.Minute},
		{"1.5h", 90 * time.Minute},
		{"2d", 48 * time.Hour},
		{"1d12h", 36 * time.Hour},
		{"36500d", 36500 * 24 * time.Hour},
	} {
		t.Run(c.text, func(t *testing.T) {
			spec := decodeValid(t, complete("destinations: {peer: {accepts: [ping], idempotent: true, expires: "+c.text+"}}"))
			if got := spec.Destinations[0].Expires.Value; got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestDirectoriesAreCleaned(t *testing.T) {
	for _, c := range []struct{ out, want, migrations string }{
		{"internal/box", "internal/box", "internal/box/migrations"},
		{"./internal//box/", "internal/box", "internal/box/migrations"},
		{"../box", "../box", "../box/migrations"},
		{".", ".", "migrations"},
	} {
		t.Run(c.out, func(t *testing.T) {
			spec := decodeValid(t, complete("out: "+c.out))
			if spec.Out.Value != c.want || spec.Migrations.Dir.Value != c.migrations {
				t.Errorf("out %q, migrations %q; want %q, %q", spec.Out.Value, spec.Migrations.Dir.Value, c.want, c.migrations)
			}
		})
	}
}

// Names that hold dots are found as they are, and paths still lead through
// objects.
func TestPathsAndDottedNames(t *testing.T) {
	spec := decodeValid(t, complete(`
types:
  part: {fields: {a.b: uuid, c: string}}
payloads:
  ping: {fields: {part: part, part.x: string, q.x: string, q: part, d.e.f: int64}}
destinations:
  peer: {accepts: [ping], idempotent: true, idempotency_key: [part.a.b, part.c, part.x, q.x, q.c, d.e.f]}
`))
	var got []string
	for _, path := range spec.Destinations[0].IdempotencyKey.Paths[0].Paths {
		var names []string
		for _, f := range path.Fields {
			names = append(names, f.Name.Value)
		}
		got = append(got, strings.Join(names, " > "))
	}
	want := []string{"part > a.b", "part > c", "part.x", "q.x", "q > c", "d.e.f"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}

// The documentation has an example that works, every key and every code.
func TestDocumentation(t *testing.T) {
	data, err := os.ReadFile("../docs/language.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	_, example, _ := strings.Cut(page, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	if spec := decodeValid(t, example); len(spec.Destinations) == 0 {
		t.Error("the example has no destination")
	}
	for _, keys := range [][]string{
		specKeys, storeKeys, commandKeys, columnKeys, migrationsKeys, initialismsKeys, emitKeys, typeKeys, enumValueKeys, payloadKeys,
		destinationKeys, retryKeys, reconcileKeys, limitsKeys, retentionKeys, fieldKeys,
	} {
		for _, key := range keys {
			if !strings.Contains(page, "`"+key+"`") && !strings.Contains(page, key+":") {
				t.Errorf("the documentation does not tell of the key %s", key)
			}
		}
	}
	for _, known := range titles {
		if row := "| " + string(known.code) + " | " + known.title + " |"; !strings.Contains(page, row) {
			t.Errorf("the documentation has no row %q", row)
		}
	}
}
