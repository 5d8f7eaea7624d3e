package contract

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/schema"
)

// described builds the model of a specification, and what the lock says of it.
func described(t *testing.T, text string) (*Lock, *schema.Spec) {
	t.Helper()
	spec, faults := schema.Decode("outbox.yaml", []byte(text))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	m, faults := model.Build(spec)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return Describe(m), spec
}

const orders = `version: 1
package: box
out: box
store:
  table: Order "Outbox"
  schema: shop
  command: {name: command, type: text}
  columns:
    tenant_id: {type: uuid, index: true}
    region: {type: text, optional: true, default: eu west}
types:
  unused: {enum: [a]}
  currency: {enum: [USD, {value: "", go_name: None}, {value: "A+ ü", go_name: Plus}, EUR]}
  money: {fields: {amount: decimal, currency: currency}}
  tree: {fields: {children: {list: tree}}}
payloads:
  paid:
    fields:
      total: money
      note: optional string
      cents: {type: int64, quoted: true}
      tags: {map: {list: string}}
      strange: {type: bool, json: "a b"}
      nested: tree
destinations:
  mailer: {accepts: [paid], idempotent: true}
  ledger: {accepts: [paid], idempotent: true}
`

func locked(t *testing.T) (*Lock, *schema.Spec) {
	t.Helper()
	lock, spec := described(t, orders)
	lock.Files = []string{"box/a b.gen.go", "box/store.gen.go"}
	lock.Migrations = append(lock.Migrations, Link(lock.Migrations, schema.FormatGolangMigrate, "000001_box.up.sql", []byte("up\n")))
	lock.Migrations = append(lock.Migrations, Link(lock.Migrations, schema.FormatGolangMigrate, "000001_box.down.sql", []byte("down\n")))
	return lock, spec
}

func TestText(t *testing.T) {
	lock, _ := locked(t)
	want := preamble + `format 1
layout 1
schema shop
table "Order \"Outbox\""
command command text
column region text optional default "eu west"
column tenant_id uuid required index
destination ledger
destination ledger accepts paid
destination mailer
destination mailer accepts paid
payload paid@1
payload paid@1 field "a b" bool required
payload paid@1 field cents quoted<int64> required
payload paid@1 field nested tree required
payload paid@1 field note string optional
payload paid@1 field tags map<list<string>> required
payload paid@1 field total money required
type currency enum
type currency value ""
type currency value "A+ \u00fc"
type currency value EUR
type currency value USD
type money object
type money field amount decimal required
type money field currency currency required
type tree object
type tree field children list<tree> required
file "box/a b.gen.go"
file box/store.gen.go
migration golang-migrate 000001_box.up.sql 6dcab36746762397d531bb3d0e00c31b7aea21ab3371c1149e3ca1ba20417b61 db9b6f2364eaf87890424781b81a299758883b5c0eef15409d728a6a9bf63895
migration golang-migrate 000001_box.down.sql f7332c41f0b3aecf3dbd6c196184a56b8c14ed465993f29b36de911aa2275455 553e061a172b15be9fcbb9cc3e974ecfec478d4f13a404f15a8a329bc34c925b
`
	if diff := cmp.Diff(want, string(lock.Bytes())); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

func TestRoundTrip(t *testing.T) {
	lock, _ := locked(t)
	for name, text := range map[string][]byte{
		"as written":                      lock.Bytes(),
		"with CRLF":                       bytes.ReplaceAll(lock.Bytes(), []byte("\n"), []byte("\r\n")),
		"without an end of the last line": bytes.TrimSuffix(lock.Bytes(), []byte("\n")),
	} {
		t.Run(name, func(t *testing.T) {
			read, faults := Parse(FileName, text)
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			lines := cmpopts.IgnoreFields
			if diff := cmp.Diff(lock, read, lines(Tables{}, "Line"), lines(Column{}, "Line"), lines(Migration{}, "Line")); diff != "" {
				t.Errorf("lock (-written +read):\n%s", diff)
			}
			if !bytes.Equal(lock.Bytes(), read.Bytes()) {
				t.Errorf("read and written again:\n%s", read.Bytes())
			}
		})
	}
}

func TestHashAndChain(t *testing.T) {
	if got := Hash([]byte("up\r\n")); got != Hash([]byte("up\n")) {
		t.Errorf("CRLF changes the hash to %s", got)
	}
	if Hash([]byte("up\n")) == Hash([]byte("down\n")) {
		t.Error("other content has the same hash")
	}
	link := func(before []Migration, name, content string) string {
		return Link(before, schema.FormatPlain, name, []byte(content)).Chain
	}
	one := []Migration{Link(nil, schema.FormatPlain, "1.sql", []byte("a"))}
	two := []Migration{Link(nil, schema.FormatPlain, "1.sql", []byte("b"))}
	chains := []string{
		link(nil, "2.sql", "c"), link(one, "2.sql", "c"), link(two, "2.sql", "c"),
		link(one, "3.sql", "c"), link(one, "2.sql", "d"),
	}
	slices.Sort(chains)
	if unique := slices.Compact(slices.Clone(chains)); len(unique) != len(chains) {
		t.Errorf("chains do not tell apart what came before, the name or the content: %q", chains)
	}
}

func TestParseRefuses(t *testing.T) {
	lock, _ := locked(t)
	text := string(lock.Bytes())
	line := func(start string) int { return strings.Count(text[:strings.Index(text, "\n"+start)+1], "\n") + 1 }
	replace := func(old, new string) string {
		t.Helper()
		if !strings.Contains(text, old) {
			t.Fatalf("the lock has no %q", old)
		}
		return strings.Replace(text, old, new, 1)
	}
	last := strings.Count(text, "\n")

	tests := []struct {
		name string
		text string
		code schema.Code
		line int
	}{
		{"an empty file", "", CodeDamaged, 1},
		{"another file", "hello\n", CodeDamaged, 1},
		{"a newer format", replace("format 1", "format 2"), CodeNewer, line("format")},
		{"a newer layout", replace("layout 1", "layout 12"), CodeNewer, line("layout")},
		{"a format that is no number", replace("format 1", "format one"), CodeDamaged, line("format")},
		{"a format with a leading zero", replace("format 1", "format 01"), CodeDamaged, line("format")},
		{"a number that is too large", replace("format 1", "format 99999999999999999999"), CodeDamaged, line("format")},
		{"conflict marks", replace("layout 1\n", "<<<<<<< HEAD\nlayout 1\n=======\nlayout 1\n>>>>>>> other\n"), CodeConflict, line("layout")},
		{"conflict marks with CRLF", strings.ReplaceAll(replace("layout 1\n", "<<<<<<< HEAD\nlayout 1\n=======\n>>>>>>> other\n"), "\n", "\r\n"), CodeConflict, line("layout")},
		{"an unknown word", replace("schema shop", "scheme shop"), CodeDamaged, line("schema")},
		{"two spaces", replace("schema shop", "schema  shop"), CodeDamaged, line("schema")},
		{"a space at the end", replace("schema shop", "schema shop "), CodeDamaged, line("schema")},
		{"a needless quote", replace("schema shop", `schema "shop"`), CodeDamaged, line("schema")},
		{"a quote that is not closed", replace(`"Order \"Outbox\""`, `"Order \"Outbox\"`), CodeDamaged, line("table")},
		{"a word too many", replace("schema shop", "schema shop x"), CodeDamaged, line("schema")},
		{"a word too few", replace("column tenant_id uuid required index", "column tenant_id uuid"), CodeDamaged, line("column tenant")},
		{"a column that is neither optional nor required", replace("uuid required index", "uuid maybe index"), CodeDamaged, line("column tenant")},
		{"a column with a default and no value", replace(`default "eu west"`, "default"), CodeDamaged, line("column region")},
		{"the same column twice", replace("column tenant_id", "column region"), CodeDamaged, line("column tenant")},
		{"two tables", replace("layout 1\n", "layout 1\ntable x\n"), CodeDamaged, line("table") + 1},
		{"a payload without a version", replace("payload paid@1\n", "payload paid\n"), CodeDamaged, line("payload")},
		{"a payload of version 0", replace("payload paid@1\n", "payload paid@0\n"), CodeDamaged, line("payload")},
		{"a field of an unknown payload", replace("payload paid@1 field cents", "payload lost@1 field cents"), CodeDamaged, line("payload paid@1 field cents")},
		{"a type with too many brackets", replace("map<list<string>>", "map<list<string>>>"), CodeDamaged, line("payload paid@1 field tags")},
		{"a value of an object", replace("type money field amount decimal required", "type money value amount"), CodeDamaged, line("type money field amount")},
		{"a type that is neither enum nor object", replace("type money object", "type money union"), CodeDamaged, line("type money object")},
		{"a destination's payload before the destination", replace("destination ledger\n", ""), CodeDamaged, line("destination ledger")},
		{"a migration in another directory", replace("000001_box.up.sql", "../box.up.sql"), CodeDamaged, line("migration")},
		{"a migration with another name", replace("000001_box.up.sql", "000002_box.up.sql"), CodeChain, line("migration")},
		{"a migration that is gone from the middle", strings.Join(slices.Delete(strings.SplitAfter(text, "\n"), last-2, last-1), ""), CodeChain, last - 1},
		{"no migration", text[:strings.Index(text, "migration")], CodeDamaged, last - 2},
		{"no command", replace("command command text\n", ""), CodeDamaged, last - 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			lock, faults := Parse("d/"+FileName, []byte(test.text))
			if lock != nil || len(faults) == 0 {
				t.Fatalf("accepted: %v", lock)
			}
			got := faults[0]
			if got.Code != test.code || got.Pos != (schema.Pos{File: "d/" + FileName, Line: test.line, Column: 1}) {
				t.Errorf("got %v, want %s at line %d", got, test.code, test.line)
			}
			if got.Hint == "" {
				t.Error("no mend is named")
			}
		})
	}
}

func TestCompare(t *testing.T) {
	const (
		tables  = "{table: t, columns: {a: {type: text}, b: {type: text, optional: true}, c: {type: text}}}"
		version = "version: 1\npackage: box\nout: box\nstore: "
		rest    = "\npayloads: {p: {fields: {}}}\ndestinations: {d: {accepts: [p], idempotent: true}}\n"
	)
	text := func(store string) string { return version + store + rest }

	tests := []struct {
		name   string
		before string // "" = tables
		after  string
		want   []string
	}{
		{name: "nothing changed", after: tables},
		{name: "columns in another order", after: "{table: t, columns: {c: {type: text}, a: {type: text}, b: {type: text, optional: true}}}"},
		{name: "other words for the same", after: "{table: t, command: {type: uuid, name: command_id}, columns: {a: {type: text, doc: x}, b: {type: text, optional: true}, c: {type: text, go_name: Cc}}}"},
		{
			name: "another table", after: "{table: u, columns: {a: {type: text}, b: {type: text, optional: true}, c: {type: text}}}",
			want: []string{`outbox.yaml:4:16 the table was "t" and is now "u"`},
		},
		{
			name: "a schema", after: "{table: t, schema: s, columns: {a: {type: text}, b: {type: text, optional: true}, c: {type: text}}}",
			want: []string{`outbox.yaml:4:27 the schema was not given and is now "s"`},
		},
		{
			name: "a schema less", before: "{schema: s}", after: "{}",
			want: []string{`outboxgen.lock:7:1 the schema was "s" and is now not given`},
		},
		{
			name: "another command", before: "{}", after: "{command: {name: cause, type: bigint}}",
			want: []string{
				`outbox.yaml:4:18 the type of the command column was "uuid" and is now "bigint"`,
				`outbox.yaml:4:25 the command column was "command_id" and is now "cause"`,
			},
		},
		{
			name: "a column more, one less", before: "{columns: {a: {type: text}}}", after: "{columns: {b: {type: text}}}",
			want: []string{
				`outbox.yaml:4:19 the column "b" is new`,
				`outboxgen.lock:8:1 the column "a" is gone`,
			},
		},
		{
			name:   "everything about a column",
			before: "{columns: {a: {type: text}}}", after: "{columns: {a: {type: integer, optional: true, index: true, default: 5}}}",
			want: []string{
				`outbox.yaml:4:19 the default of column "a" was not given and is now "5"`,
				`outbox.yaml:4:19 the index of column "a" was "no" and is now "yes"`,
				`outbox.yaml:4:19 the presence of column "a" was "required" and is now "optional"`,
				`outbox.yaml:4:19 the type of column "a" was "text" and is now "integer"`,
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.before == "" {
				test.before = tables
			}
			before, _ := described(t, text(test.before))
			before.Migrations = []Migration{Link(nil, schema.FormatGolangMigrate, "1_t.up.sql", nil)}
			lock, faults := Parse(FileName, before.Bytes())
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			after, spec := described(t, text(test.after))
			faults = Compare(lock, FileName, after, spec)
			faults.Sort()
			var got []string
			for _, f := range faults {
				if f.Code != CodeTables || f.Hint == "" {
					t.Errorf("not a fault of tables with a mend: %v", f)
				}
				difference, _, _ := strings.Cut(f.Message, ": ")
				got = append(got, fmt.Sprintf("%v %s", f.Pos, difference))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCompareRefusesAnotherFormat(t *testing.T) {
	lock, _ := locked(t)
	next, spec := described(t, orders+"migrations: {format: plain}\n")
	faults := Compare(lock, FileName, next, spec)
	if len(faults) != 1 || faults[0].Code != CodeFormat || faults[0].Pos.String() != "outbox.yaml:28:13" {
		t.Errorf("got %v, want %s at the format", faults, CodeFormat)
	}
}

func TestHasMarker(t *testing.T) {
	tests := map[string]bool{
		"":                          false,
		"// " + Marker:              true,
		"//" + Marker + "\r\nx":     true,
		"-- " + Marker + "\nSELECT": true,
		"# " + Marker:               true,
		"\n// Copyright\n\n// " + Marker + "\npackage x": true,
		"// " + Marker + " Really.":                      false,
		"package x\n// " + Marker:                        false,
		Marker:                                           false,
		"/* x */\n// " + Marker:                          false,
	}
	for content, want := range tests {
		if got := HasMarker([]byte(content)); got != want {
			t.Errorf("HasMarker(%q) = %t", content, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(preamble + "format 1\nlayout 1\ntable t\ncommand c uuid\ntype a enum\ntype a value \"\\u00fc\"\n"))
	f.Add([]byte("format 1\ncolumn \"\\x00\" text optional index default \"\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		lock, faults := Parse(FileName, data)
		for _, fault := range faults {
			if lines := bytes.Count(data, []byte("\n")) + 1; fault.Pos.Line < 1 || fault.Pos.Line > lines {
				t.Errorf("%v lies outside the %d lines", fault, lines)
			}
		}
		if len(faults) > 0 {
			return
		}
		again, faults := Parse(FileName, lock.Bytes())
		if len(faults) > 0 {
			t.Fatalf("what was read is refused when it is written: %v", faults)
		}
		if !bytes.Equal(lock.Bytes(), again.Bytes()) {
			t.Errorf("reading and writing changes the lock:\n%s\n%s", lock.Bytes(), again.Bytes())
		}
	})
}
