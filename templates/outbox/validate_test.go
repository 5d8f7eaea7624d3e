package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"
)

func someRules() Rules {
	return Rules{
		Int32: 5, Int64: 1, Uint64: math.MaxUint64 - 1, Float64: 0.5, Decimal: decimal.RequireFromString("0.01"), Bigint: big.NewInt(-1),
		Length: "žš", Code: "AB", Ticks: "``", Filled: " ", Blob: []byte{1, 2}, ID: anID, At: anInstant, On: aDate, For: 1,
		Items: []string{"a", "é"}, Table: map[string]int32{"a": 1}, Maybe: ptr(int32(1)), MaybeItems: []int32{0}, MaybeBlob: []byte{0},
		MaybeBigint: big.NewInt(1),
	}
}

func TestRules(t *testing.T) {
	tests := map[string]struct {
		change func(*Rules)
		want   []Violation
	}{
		"all kept":                       {func(r *Rules) {}, nil},
		"all kept at the other end":      {func(r *Rules) { r.Int32, r.Float64, r.Bigint = -5, 2.5, bigint("36893488147419103232") }, nil},
		"optional fields are not set":    {func(r *Rules) { r.Maybe, r.MaybeItems, r.MaybeBlob, r.MaybeBigint = nil, nil, nil, nil }, nil},
		"below min":                      {func(r *Rules) { r.Int32 = -6 }, []Violation{{"int32", "must be at least -5"}}},
		"above max":                      {func(r *Rules) { r.Int32 = 6 }, []Violation{{"int32", "must be at most 5"}}},
		"zero and below min":             {func(r *Rules) { r.Int64 = 0 }, []Violation{{"int64", "must not be zero"}, {"int64", "must be at least 1"}}},
		"above max beyond float64":       {func(r *Rules) { r.Uint64++ }, []Violation{{"uint64", "must be at most 18446744073709551614"}}},
		"a float below min":              {func(r *Rules) { r.Float64 = math.Nextafter(0.5, 0) }, []Violation{{"float64", "must be at least 0.5"}}},
		"a float above max":              {func(r *Rules) { r.Float64 = math.Nextafter(2.5, 3) }, []Violation{{"float64", "must be at most 2.5"}}},
		"no number":                      {func(r *Rules) { r.Float64 = math.NaN() }, []Violation{{"float64", "must be a finite number"}}},
		"infinity":                       {func(r *Rules) { r.Float64 = math.Inf(1) }, []Violation{{"float64", "must be a finite number"}, {"float64", "must be at most 2.5"}}},
		"a decimal just below min":       {func(r *Rules) { r.Decimal = decimal.RequireFromString("0.00999999999999999999999") }, []Violation{{"decimal", "must be at least 0.01"}}},
		"a decimal just above max":       {func(r *Rules) { r.Decimal = decimal.RequireFromString("99.99000000000000000001") }, []Violation{{"decimal", "must be at most 99.99"}}},
		"a decimal at max in other form": {func(r *Rules) { r.Decimal = decimal.RequireFromString("9999000e-5") }, nil},
		"a decimal that is zero":         {func(r *Rules) { r.Decimal = decimal.Decimal{} }, []Violation{{"decimal", "must not be zero"}, {"decimal", "must be at least 0.01"}}},
		"a decimal of a gigabyte":        {func(r *Rules) { r.Decimal = decimal.New(1, math.MaxInt32) }, []Violation{{"decimal", ruleDecimal}}},
		"a bigint that is nil":           {func(r *Rules) { r.Bigint = nil }, []Violation{{"bigint", ruleBigint}}},
		"a bigint below min":             {func(r *Rules) { r.Bigint = big.NewInt(-2) }, []Violation{{"bigint", "must be at least -1"}}},
		"a bigint just above max":        {func(r *Rules) { r.Bigint = bigint("36893488147419103233") }, []Violation{{"bigint", "must be at most 36893488147419103232"}}},
		"a bigint that is zero":          {func(r *Rules) { r.Bigint = new(big.Int) }, []Violation{{"bigint", "must not be zero"}}},
		"too short in code points":       {func(r *Rules) { r.Length = "ž" }, []Violation{{"length", "must have at least 2 characters"}}},
		"too long in code points":        {func(r *Rules) { r.Length = "žšč1" }, []Violation{{"length", "must have at most 3 characters"}}},
		"a pattern that does not match":  {func(r *Rules) { r.Code = "ab" }, []Violation{{"code", "must match ^[A-Z]+$"}}},
		"a pattern with backquotes":      {func(r *Rules) { r.Ticks = "'" }, []Violation{{"ticks", "must match ^`*$"}}},
		"text that is empty":             {func(r *Rules) { r.Filled = "" }, []Violation{{"filled", "must have at least 1 character"}}},
		"text that is no UTF-8":          {func(r *Rules) { r.Filled = "\xff" }, []Violation{{"filled", "must be valid UTF-8"}}},
		"bytes that are nil":             {func(r *Rules) { r.Blob = nil }, []Violation{{"blob", "must have at least 1 byte"}}},
		"too many bytes":                 {func(r *Rules) { r.Blob = make([]byte, 3) }, []Violation{{"blob", "must have at most 2 bytes"}}},
		"zero of each kind": {func(r *Rules) { r.ID, r.At, r.On, r.For = uuid.Nil, time.Time{}, Date{}, 0 },
			[]Violation{{"id", "must not be zero"}, {"at", "must not be zero"}, {"on", ruleDate}, {"on", "must not be zero"}, {"for", "must not be zero"}}},
		"a time after the year 9999": {func(r *Rules) { r.At = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -7200)) }, []Violation{{"at", ruleTime}}},
		"no items":                   {func(r *Rules) { r.Items = nil }, []Violation{{"items", "must have at least 1 item"}}},
		"too many items, one of them too long": {func(r *Rules) { r.Items = []string{"a", "b", "cd"} },
			[]Violation{{"items", "must have at most 2 items"}, {"items[2]", "must have at most 1 character"}}},
		"no entries": {func(r *Rules) { r.Table = nil }, []Violation{{"table", "must have at least 1 item"}}},
		"entries in the order of their keys": {func(r *Rules) { r.Table = map[string]int32{"b": 0, "a \"": 0, "\xff": 1} },
			[]Violation{{"table", "must have at most 2 items"}, {`table["a \""]`, "must be at least 1"}, {`table["b"]`, "must be at least 1"}, {`table["\xff"]`, "must be valid UTF-8"}}},
		"optional fields that are set": {func(r *Rules) {
			r.Maybe, r.MaybeItems, r.MaybeBlob, r.MaybeBigint = ptr(int32(0)), []int32{}, []byte{}, new(big.Int)
		}, []Violation{{"maybe", "must be at least 1"}, {"maybe_items", "must have at least 1 item"}, {"maybe_blob", "must have at least 1 byte"}, {"maybe_bigint", "must be at least 1"}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			rules := someRules()
			test.change(&rules)
			checkViolations(t, rules, test.want)
		})
	}
}

func TestImpliedRules(t *testing.T) {
	cyclic := &Node{}
	cyclic.Next = cyclic
	cyclic.Children = []Node{{Next: cyclic}}
	tests := map[string]struct {
		payload Payload
		want    []Violation
	}{
		"what has no fields":         {Empty{}, nil},
		"optionals that are not set": {Optionals{}, nil},
		"an undeclared colour":       {Optionals{Colour: ptr(Colour("mauve"))}, []Violation{{"colour", "must be one of the declared values"}}},
		"an empty colour":            {Lists{Colours: []Colour{ColourRed, ""}}, []Violation{{"colours[1]", "must be one of the declared values"}}},
		"in objects in lists":        {Lists{Spans: []Span{{From: aDate}, {From: aDate, To: &Date{2026, 2, 29}}}}, []Violation{{"spans[1].to", ruleDate}}},
		"in lists in maps":           {Maps{Lists: map[string][]string{"a": {"", "\xff"}}}, []Violation{{`lists["a"][1]`, "must be valid UTF-8"}}},
		"in keys of maps in lists":   {Lists{Maps: []map[string]int64{{"\xff": 1}}}, []Violation{{`maps[0]["\xff"]`, "must be valid UTF-8"}}},
		"NUL in text":                {Optionals{Text: ptr("\x00")}, nil},
		"null as JSON":               {Optionals{Raw: json.RawMessage("null")}, nil},
		"JSON that is none":          {Optionals{Raw: json.RawMessage("{")}, []Violation{{"json", ruleJSON}}},
		"a value that holds itself":  {Trees{Root: *cyclic}, []Violation{{"root" + strings.Repeat(".next", maxDepth-1), ruleDepth}}},
		"secrets without what they hold": {Secrets{Text: "\xff", List: []string{"", "\xff"}, Map: map[string]string{"tiger": "\xff"}, Object: Span{From: aDate}},
			[]Violation{{"text", "must be valid UTF-8"}, {"list[1]", "must be valid UTF-8"}, {"map", "must be valid UTF-8"}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { checkViolations(t, test.payload, test.want) })
	}
}

func checkViolations(t *testing.T, payload Payload, want []Violation) {
	t.Helper()
	err := payload.Validate()
	var invalid *ValidationError
	if err == nil {
		invalid = &ValidationError{Payload: payload.payloadType()}
	} else if !errors.As(err, &invalid) {
		t.Fatalf("the error is a %T: %v", err, err)
	}
	if invalid.Payload != payload.payloadType() {
		t.Errorf("the error is about %s", invalid.Payload)
	}
	if diff := cmp.Diff(want, invalid.Violations); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
}

func TestValidationErrorNamesEveryViolation(t *testing.T) {
	err := &ValidationError{"order", []Violation{{"a", "must be at least 1"}, {"b[0]", "must be valid UTF-8"}}}
	if got, want := err.Error(), "order: a must be at least 1; b[0] must be valid UTF-8"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A secret must not come out of whatever a program usually prints a payload
// with; MarshalJSON alone writes it, since that is what is stored.
func TestSecretsAreNotPrinted(t *testing.T) {
	secrets := someSecrets()
	type holder struct {
		Secrets  Secrets
		List     []Vault
		Map      map[string]Vault
		Optional Optionals
	}
	values := map[string]any{
		"payload":    secrets,
		"pointer":    &secrets,
		"type":       secrets.Vault,
		"list":       []Secrets{secrets},
		"list of it": []any{secrets.Vaults, &secrets.Vault},
		"map":        secrets.VaultMap,
		"struct":     holder{Secrets: secrets, List: secrets.Vaults, Map: secrets.VaultMap},
	}
	for name, value := range values {
		t.Run(name, func(t *testing.T) {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
				checkSecret(t, verb, fmt.Sprintf(verb, value))
			}
			var log bytes.Buffer
			slog.New(slog.NewTextHandler(&log, nil)).Info("text", "value", value)
			checkSecret(t, "slog text", log.String())
		})
	}
	for _, value := range []any{secrets, &secrets, secrets.Vault} {
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("json", "value", value, slog.Group("group", "value", value))
		checkSecret(t, "slog JSON", log.String())
	}
}

func checkSecret(t *testing.T, how, text string) {
	t.Helper()
	if strings.Contains(text, "tiger") {
		t.Errorf("%s prints a secret: %s", how, text)
	}
	if !strings.Contains(text, "[redacted]") || !strings.Contains(text, "hint") && !strings.Contains(text, "public") {
		t.Errorf("%s prints too little: %s", how, text)
	}
}

func TestRedactedForm(t *testing.T) {
	const vault = `{"pin":"[redacted]","hint":"hint"}`
	want := `{"public":"public","text":"[redacted]","number":"[redacted]","maybe":"[redacted]","list":"[redacted]","map":"[redacted]",` +
		`"object":"[redacted]","vault":` + vault + `,"vaults":[` + vault + `],"vault_map":{"key":` + vault + `},"maybe_vault":` + vault + `}`
	if got := someSecrets().String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := someSecrets().GoString(); got != "outbox.Secrets"+want {
		t.Errorf("got %s", got)
	}
	broken := Secrets{Public: "\xff"}
	if got, want := broken.String(), `{"public":null,"text":"[redacted]"`; !strings.HasPrefix(got, want) {
		t.Errorf("a value that cannot be written is printed as %s, want %s…", got, want)
	}
}
