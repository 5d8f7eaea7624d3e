package schema

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// faultCase is a specification with one fault. ▶ stands before the character
// that the fault is reported at, and ▷ before that of the second place; both
// are taken out. What is missing around the fault is filled in behind it.
type faultCase struct {
	name string
	text string
	want string // the diagnostic, without the places
}

// unmark takes the marks out of text and returns where they stood.
func unmark(text string) (plain string, places map[rune]Pos) {
	places = map[rune]Pos{}
	line, column := 1, 1
	for _, r := range text {
		switch r {
		case '▶', '▷':
			places[r] = Pos{File: "outbox.yaml", Line: line, Column: column}
		case '\n':
			line, column = line+1, 1
		default:
			column++
		}
	}
	return strings.NewReplacer("▶", "", "▷", "").Replace(text), places
}

func (c faultCase) run(t *testing.T, text string) {
	t.Helper()
	plain, places := unmark(text)
	_, diags := Decode("outbox.yaml", []byte(plain))
	if len(diags) != 1 {
		t.Fatalf("%d faults, want one:\n%s", len(diags), diags)
	}
	diag := diags[0]
	if diag.Pos != places['▶'] {
		t.Errorf("at %s, want %s", diag.Pos, places['▶'])
	}
	lines := []string{fmt.Sprintf("%s %s", diag.Code, diag.Message)}
	if diag.Hint != "" {
		lines = append(lines, "hint: "+diag.Hint)
	}
	for _, r := range diag.Related {
		lines = append(lines, "and: "+r.Message)
		if second, marked := places['▷']; marked && r.Pos != second {
			t.Errorf("second place at %s, want %s", r.Pos, second)
		}
	}
	if got := strings.Join(lines, "\n"); got != c.want {
		t.Errorf("got\n%s\nwant\n%s", got, c.want)
	}
}

// syntaxFaults are inputs that never become a specification: nothing is filled
// in.
var syntaxFaults = []faultCase{
	{"an empty file", "▶", "OBX1004 the specification is empty\nhint: `outboxgen init` writes one to start from"},
	{"a file with nothing but a comment", "▶# nothing\n", "OBX1004 the specification is empty\nhint: `outboxgen init` writes one to start from"},
	{"a file with nothing but null", "▶\n\n~\n", "OBX1004 the specification is empty\nhint: `outboxgen init` writes one to start from"},
	{"a text for a file", "\n▶hello\n", `OBX1104 the specification must be a mapping, found the text "hello"`},
	{"a byte that is not UTF-8", "doc: ä▶\xff\n", "OBX1002 the specification is not valid UTF-8: byte 0xFF\nhint: save the file as UTF-8"},
	{"a NUL", "doc: ä▶\x00\n", "OBX1003 the character U+0000 cannot stand in a specification\nhint: remove it; within a text, write it as an escape in double quotes"},
	{"an escape character", "doc: \"▶\x1b[31m\"\n", "OBX1003 the character U+001B cannot stand in a specification\nhint: remove it; within a text, write it as an escape in double quotes"},
	{"a line separator, at which only YAML 1.1 ends a line", "doc: a▶\u2028b\n", "OBX1003 the character U+2028 cannot stand in a specification\nhint: remove it; within a text, write it as an escape in double quotes"},
	{"a byte order mark within the file", "doc: a\n▶\uFEFFout: b\n", "OBX1003 the character U+FEFF cannot stand in a specification\nhint: remove it; within a text, write it as an escape in double quotes"},
	{"a carriage return alone", "doc: a▶\rout: b\n", "OBX1003 a carriage return without a line feed\nhint: end lines with LF or CRLF"},

	{"a tab before a key", "a:\n▶\tb: 1\n", "OBX1005 a tab indents this line\nhint: indent with spaces: YAML allows no tabs there"},
	{"a tab before the second key", "a:\n  b: 1\n▶\tc: 2\n", "OBX1005 a tab indents this line\nhint: indent with spaces: YAML allows no tabs there"},
	{"a tab within a block text", "a: |\n x\n▶\ty\n", "OBX1005 a tab indents this line\nhint: indent with spaces: YAML allows no tabs there"},
	{"an unquoted *", "ä: ▶*\n", "OBX1005 the character \"*\" has a meaning of its own in YAML and cannot stand here\nhint: a text that begins so stands in quotes"},
	{"an unquoted * in a list", "a: [b, ▶*]\n", "OBX1005 the character \"*\" has a meaning of its own in YAML and cannot stand here\nhint: a text that begins so stands in quotes"},
	{"an unquoted *.go", "a: ▶*.go\n", "OBX1005 the character \"*\" has a meaning of its own in YAML and cannot stand here\nhint: a text that begins so stands in quotes"},
	{"an alias without an anchor", "a: 1\nb: ▶*base\n", "OBX1008 an alias cannot stand in a specification\nhint: repeat the value; a text that begins with * stands in quotes"},
	{"an unquoted ?", "a: ▶?\n", "OBX1005 the character \"?\" has a meaning of its own in YAML and cannot stand here\nhint: a text that begins so stands in quotes"},
	{"an unquoted ? in a flow mapping", "a: {b: ▶?}\n", "OBX1005 the character \"?\" has a meaning of its own in YAML and cannot stand here\nhint: a text that begins so stands in quotes"},
	{"an unquoted @", "a: b\nc: ▶@d\n", "OBX1005 the character \"@\" has a meaning of its own in YAML and cannot stand here\nhint: a text that begins so stands in quotes"},
	{"an unquoted backquote", "a: ▶`d`\n", "OBX1005 the character \"`\" has a meaning of its own in YAML and cannot stand here\nhint: a text that begins so stands in quotes"},
	{"an unquoted %", "a: [▶%d]\n", "OBX1005 the character \"%\" has a meaning of its own in YAML and cannot stand here\nhint: a text that begins so stands in quotes"},
	{"a directive that does not exist", "▶%d\n---\na: b\n", "OBX1005 the character \"%\" has a meaning of its own in YAML and cannot stand here\nhint: a text that begins so stands in quotes"},
	{"an unquoted & alone", "a: ▶& b\n", "OBX1005 the character \"&\" has a meaning of its own in YAML and cannot stand here\nhint: a text that begins so stands in quotes"},
	{"a closing brace that closes nothing", "a: b\n▶}\n", "OBX1005 the character \"}\" has a meaning of its own in YAML and cannot stand here\nhint: a text that begins so stands in quotes"},
	{"a tag with a handle that does not exist", "a: ▶!x!y z\n", "OBX1010 a tag cannot stand in a specification\nhint: remove it; a text that begins with ! stands in quotes"},
	{"a text behind |", "a: |▶x\n", "OBX1005 nothing but a comment can stand here, behind | or >\nhint: the text begins on the next line; a text that begins with | or > stands in quotes"},
	{"a second colon", "a: b▶: c\n", "OBX1005 a colon cannot stand here\nhint: check the indentation of this line and the one above; a text with a colon and a space in it stands in quotes"},
	{"a line that is too deep", "a: 1\n b▶: 2\n", "OBX1005 a colon cannot stand here\nhint: check the indentation of this line and the one above; a text with a colon and a space in it stands in quotes"},
	{"a line between two depths", "x: 1\ny:\n  a:\n      b: 1\n    ▶c: 2\n", "OBX1005 a key of the mapping above is expected here\nhint: check the indentation"},
	{"an item in a mapping", "a: 1\n▶- b\n", "OBX1005 a key of the mapping above is expected here\nhint: check the indentation"},
	{"a key in a list", "- a\n▶bcd: c\n", "OBX1005 an item of a list is expected here\nhint: check the indentation; items begin with a dash and a space"},
	{"a list on the line of its key", "a: ▶- b\n", "OBX1005 an item of a list cannot stand here\nhint: put the list on lines of its own; a text that begins so stands in quotes"},
	{"a key without a colon", "a:\n  b: c\n  ▶key\n  e: f\n", "OBX1005 this key has no colon behind it\nhint: write `key: value`"},
	{"a quote within single quotes", "a: 'it'▶s'\n", "OBX1005 nothing can stand here, behind the value\nhint: a quote within single quotes is written twice; within double quotes it stands behind a backslash"},
	{"a word behind a quoted text", "a: \"x\" ▶y\nb: c\n", "OBX1005 nothing can stand here, behind the value\nhint: a quote within single quotes is written twice; within double quotes it stands behind a backslash"},
	{"a quoted text behind another", "a: \"x\" ▶\"y z\"\nb: c\n", "OBX1005 nothing can stand here, behind the value\nhint: a quote within single quotes is written twice; within double quotes it stands behind a backslash"},
	{"an unknown escape", "a: \"▶\\q\"\n", "OBX1005 an unknown escape in a text in double quotes\nhint: write a backslash as \\\\, or use single quotes"},
	{"a double quote that is never closed", "a: 'x'\nb: ▶\"x \\\" y\nc: d\n", "OBX1005 this quote is never closed\nhint: end the text with the same quote; within single quotes a quote is written twice"},
	{"a single quote that is never closed", "a: ▶'it''s\nb: c\n", "OBX1005 this quote is never closed\nhint: end the text with the same quote; within single quotes a quote is written twice"},
	{"a brace that is never closed", "a: ▷{b: 1\nc▶: d\n", "OBX1005 a comma or } is expected before this colon\nhint: close the {, or put a comma between its items; a text with signs in it stands in quotes\nand: it was opened here"},
	{"a bracket that is open at the end", "a: ▷[b,\n  c▶\n", "OBX1005 a comma or ] is expected before the end of the file\nhint: close the [, or put a comma between its items; a text with signs in it stands in quotes\nand: it was opened here"},
	{"a bracket closed as a brace", "- |\n  [ \" '\n- a # {\n- ▷[1, 'x', \"y\"▶}\n", "OBX1005 a comma or ] is expected before \"}\"\nhint: close the [, or put a comma between its items; a text with signs in it stands in quotes\nand: it was opened here"},
	{"no comma between items", "a: ▷[\"x\" ▶\"y\"]\n", "OBX1005 a comma or ] is expected before this text\nhint: close the [, or put a comma between its items; a text with signs in it stands in quotes\nand: it was opened here"},
	{"no comma between pairs", "a: ▷{b: c d▶: e}\n", "OBX1005 a comma or } is expected before this colon\nhint: close the {, or put a comma between its items; a text with signs in it stands in quotes\nand: it was opened here"},
	{"no comma before a list", "a: ▷{b: c, d: 'e' ▶[f]}\n", "OBX1005 a comma or } is expected before \"[\"\nhint: close the {, or put a comma between its items; a text with signs in it stands in quotes\nand: it was opened here"},
	{"a bracket that is open, behind texts with brackets that are none", "a: one\n  [two\n  - {three\nb: |\n  [\nc: 'x'\n# [\nd: [!!str \"y\", z]\ne: x[\nf: ▷[x▶\n", "OBX1005 a comma or ] is expected before the end of the file\nhint: close the [, or put a comma between its items; a text with signs in it stands in quotes\nand: it was opened here"},
	{"a comma before the first item", "a: ▷[▶, b]\n", "OBX1005 a value is expected before this comma\nand: it was opened here"},
	{"a syntax fault in a second document", "a: 1\n...\n▶b\n", "OBX1007 a second YAML document begins here\nhint: keep one document"},
	{"brackets nested deeper than a stack bears", "a: " + strings.Repeat("[", 64) + "▶" + strings.Repeat("[", 100_000), "OBX1006 nested more than 64 levels deep"},
	{"list items nested deeper than a stack bears", strings.Repeat("- ", 10_001) + "▶x", "OBX1006 nested more than 64 levels deep"},
}

func TestSyntaxFaults(t *testing.T) {
	for _, c := range syntaxFaults {
		t.Run(c.name, func(t *testing.T) { c.run(t, c.text) })
	}
}

// Editors count lines that end in CRLF as the others.
func TestSyntaxFaultsWithCRLF(t *testing.T) {
	for _, c := range syntaxFaults {
		if strings.Contains(c.text, "\r") || strings.Contains(c.text, "▶\n") {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.run(t, strings.ReplaceAll(c.text, "\n", "\r\n")) })
	}
}

// fields and peer are specifications with one payload and one destination.
func fields(text string) string { return "payloads: {ping: {fields: {" + text + "}}}" }
func peer(text string) string {
	return "destinations: {peer: {accepts: [ping], idempotent: true, " + text + "}}"
}
func unsafePeer(text string) string {
	return "destinations: {peer: {accepts: [ping], idempotent: false, " + text + "}}"
}
func columns(text string) string { return "store: {columns: {" + text + "}}" }

var (
	long64 = strings.Repeat("x", 64)
	long70 = strings.Repeat("ä", 35)
)

var faults = []faultCase{
	// YAML beyond what a specification is.
	{"an anchor", "doc: ▶&text a", "OBX1008 an anchor, \"&text\", cannot stand in a specification\nhint: remove it; a text that begins with & stands in quotes"},
	{"a merge key", "store: {▶<<: {table: a}}", "OBX1009 a merge key, <<, cannot stand in a specification\nhint: write out the keys that it would bring"},
	{"a tag that changes the kind", "doc: ▶!!int \"5\"", "OBX1010 the tag \"!!int\" cannot stand in a specification\nhint: remove it; a text that begins with ! stands in quotes"},
	{"a tag of the author's own", "store: ▶!mine {table: a}", "OBX1010 the tag \"!mine\" cannot stand in a specification\nhint: remove it; a text that begins with ! stands in quotes"},
	{"a tag of the author's own on a list", "initialisms: {add: ▶!mine [SKU]}", "OBX1010 the tag \"!mine\" cannot stand in a specification\nhint: remove it; a text that begins with ! stands in quotes"},
	{"a key given twice", "store: {▷table: a, schema: b, ▶\"table\": c}", "OBX1102 the key \"table\" stands here a second time\nand: it stands here first"},
	{"a payload given twice", "payloads:\n  ▷ping: {fields: {}}\n  ▶ping: {fields: {}}\n", "OBX1102 the key \"ping\" stands here a second time\nand: it stands here first"},
	{"a key that is a boolean", "types: {▶true: {fields: {}}}", "OBX1104 a key must be a name, found the boolean true\nhint: put it in quotes if it is meant as a text: \"true\""},
	{"a key that is a number", fields("▶1: string"), "OBX1104 a key must be a name, found the number 1\nhint: put it in quotes if it is meant as a text: \"1\""},
	{"a field without a value", fields("a: ▶"), "OBX1104 a has no value; a type name, `optional` and a type name, or a mapping is wanted"},
	{"a placeholder of a template for a text", "doc: ▶{{name}}", "OBX1104 a mapping cannot be a key\nhint: a text that begins with {{ stands in quotes"},
	{"a list for a key", "store: {▶[a]: b, table: c}", "OBX1104 a key must be a name\nhint: a text that begins with { or [ stands in quotes"},
	{"nesting beyond 64", fields("a: " + strings.Repeat("{list: ", 60) + "▶{list: uuid}" + strings.Repeat("}", 60)), "OBX1006 nested more than 64 levels deep"},

	// Keys.
	{"an unknown key", "▶colour: red", "OBX1101 the specification has no key \"colour\"\nhint: known keys: version, package, out, doc, store, migrations, initialisms, emit, types, payloads, destinations"},
	{"a key with a slip", "▶destinatons: {}", "OBX1101 the specification has no key \"destinatons\"\nhint: did you mean destinations?"},
	{"a key in the spelling of another language", fields("a: {type: string, ▶maxLength: 3}"), "OBX1101 field \"a\" has no key \"maxLength\"\nhint: did you mean max_length?"},
	{"a key of a later version: one_of", "types: {a: {fields: {}, ▶one_of: {}}}", "OBX1101 type \"a\" has no key \"one_of\"\nhint: known keys: fields, enum, doc, go_name, deprecated"},
	{"a key of a later version: version of a payload", "payloads: {ping: {fields: {}, ▶version: 2}}", "OBX1101 payload \"ping\" has no key \"version\"\nhint: known keys: fields, doc, go_name, deprecated"},
	{"a key of a later version: stored_as", peer("▶stored_as: x"), "OBX1101 destination \"peer\" has no key \"stored_as\"\nhint: known keys: accepts, idempotent, timeout, lease, retry, reconcile, limits, order_by, idempotency_key, retention, expires, retired, doc, go_name"},
	{"a key of a later version: go", fields("a: {type: string, ▶go: time.Time}"), "OBX1101 field \"a\" has no key \"go\"\nhint: known keys: type, list, map, quoted, min, max, min_length, max_length, pattern, min_items, max_items, nonzero, doc, json, go_name, optional, sensitive, deprecated"},

	// Kinds of values.
	{"a number for a text", "doc: ▶0123", "OBX1104 doc must be a text, found the number 0123\nhint: put it in quotes: \"0123\""},
	{"a boolean for a text", "doc: ▶true", "OBX1104 doc must be a text, found the boolean true\nhint: put it in quotes: \"true\""},
	{"a fraction for a text", "doc: ▶1.10", "OBX1104 doc must be a text, found the number 1.10\nhint: put it in quotes: \"1.10\""},
	{"a list for a text", "doc: ▶[a]", "OBX1104 doc must be a text, found a list\nhint: a text that begins with { or [ stands in quotes"},
	{"nothing for a text", "doc: ▶~", "OBX1104 doc has no value; a text is wanted"},
	{"nothing for a mapping", "store:▶\nout: a", "OBX1104 store has no value; a mapping is wanted"},
	{"a list for a mapping", "store: ▶[]", "OBX1104 store must be a mapping, found a list"},
	{"a text for a list", "initialisms: {add: ▶SKU}", "OBX1104 add must be a list, found the text \"SKU\""},
	{"yes for a boolean", fields("a: {type: string, optional: ▶yes}"), "OBX1104 optional must be true or false, found the text \"yes\""},
	{"a text for a number", peer("limits: {concurrency: ▶\"4\"}"), "OBX1104 concurrency must be a whole number, found the text \"4\""},
	{"a number with a leading zero", peer("limits: {concurrency: ▶0123}"), "OBX1104 concurrency must be a whole number, found the number 0123\nhint: write it in decimal digits, without leading zeros"},
	{"a number with an underscore", peer("limits: {concurrency: ▶1_000}"), "OBX1104 concurrency must be a whole number, found the number 1_000\nhint: write it in decimal digits, without leading zeros"},
	{"a fraction for a whole number", peer("limits: {concurrency: ▶1.5}"), "OBX1104 concurrency must be a whole number, found the number 1.5\nhint: write it in decimal digits, without leading zeros"},
	{"a text for a fraction", peer("retry: {factor: ▶two}"), "OBX1104 factor must be a number, found the text \"two\""},
	{"a control character in a text", "doc: ▶\"a\\0b\"", "OBX1213 doc holds the control character U+0000"},

	// The head of the specification.
	{"a version that does not exist", "version: ▶2", "OBX1203 version 2 of the language is not known to this outboxgen, which reads version 1"},
	{"a version in quotes", "version: ▶\"1\"", "OBX1104 version must be a whole number, found the text \"1\""},
	{"a package that is a keyword", "package: ▶select", "OBX1209 a package cannot be named \"select\": it is a keyword of Go"},
	{"a package with a dash", "package: ▶my-box", "OBX1209 a package cannot be named \"my-box\": it is no Go identifier of ASCII letters, digits and _"},
	{"a package named _", "package: ▶_", "OBX1209 a package cannot be named \"_\": it is no Go identifier of ASCII letters, digits and _"},
	{"an empty package", "package: ▶\"\"", "OBX1209 a package cannot be named \"\": it is no Go identifier of ASCII letters, digits and _"},
	{"a package named main", "package: ▶main", "OBX1209 a package cannot be named \"main\": Go gives it a meaning of its own"},
	{"a package for tests", "package: ▶box_test", "OBX1209 a package cannot be named \"box_test\": Go gives it a meaning of its own"},
	{"a package with the name of a type of Go", "package: ▶error", "OBX1209 a package cannot be named \"error\": it would hide what Go itself calls by this name"},
	{"an absolute out", "out: ▶/srv/box", "OBX1207 out is an absolute path\nhint: write it relative to the specification"},
	{"an out with a drive", "out: ▶c:/box", "OBX1207 out is an absolute path\nhint: write it relative to the specification"},
	{"an out with a backslash", "out: ▶internal\\box", "OBX1207 out holds a backslash\nhint: separate directories by / on every system"},
	{"an empty out", "out: ▶\"\"", "OBX1207 out is empty\nhint: the directory of the specification itself is \".\""},
	{"a line break in a directory", "migrations: {dir: ▶\"a\\nb\"}", "OBX1207 dir holds a control character"},
	{"a migration format of a later version", "migrations: {format: ▶goose}", "OBX1203 format cannot be \"goose\"\nhint: allowed: golang-migrate, plain"},
	{"a file that cannot be emitted", "emit: {▶otl: true}", "OBX1101 emit has no key \"otl\"\nhint: did you mean otel?"},
	{"a text for a flag", "emit: {otel: ▶on}", "OBX1104 otel must be true or false, found the text \"on\""},
	{"an initialism in lower case", "initialisms: {add: [▶sku]}", "OBX1201 \"sku\" cannot be an initialism\nhint: write it as in a Go name: ASCII letters and digits, a capital first"},
	{"an initialism both added and removed", "initialisms: {add: [▷SKU], remove: [▶Sku]}", "OBX1212 the initialism \"Sku\" stands here a second time\nand: it stands here first"},

	// Tables.
	{"a table of 70 bytes", "store: {table: ▶" + long70 + "}", "OBX1210 table has 70 bytes; at most 47 are possible\nhint: up to 16 bytes stand behind it in the names of tables and indexes, and Postgres cuts names at 63"},
	{"a table of 48 bytes", "store: {table: ▶" + long64[:48] + "}", "OBX1210 table has 48 bytes; at most 47 are possible\nhint: up to 16 bytes stand behind it in the names of tables and indexes, and Postgres cuts names at 63"},
	{"an empty table", "store: {table: ▶\"\"}", "OBX1210 table is empty"},
	{"a line break in a table", "store: {table: ▶\"a\\nb\"}", "OBX1210 table holds a control character"},
	{"a schema of 64 bytes", "store: {schema: ▶" + long64 + "}", "OBX1210 schema has 64 bytes; at most 63 are possible\nhint: Postgres cuts longer names"},
	{"a command with a type for columns only", "store: {command: {type: ▶date}}", "OBX1203 type cannot be \"date\"\nhint: allowed: uuid, text, bigint"},
	{"a command with the name of a fixed column", "store: {command: {name: ▶payload}}", "OBX1202 the tables have a column \"payload\" of their own"},
	{"a column with the name of a fixed column", columns("▶created_at: {type: date}"), "OBX1202 the tables have a column \"created_at\" of their own"},
	{"a column with the name of a column of Postgres", columns("▶ctid: {type: text}"), "OBX1202 Postgres has a column \"ctid\" in every table"},
	{"a column with the name of the command", "store: {command: {name: ▷cause}, columns: {▶cause: {type: text}}}", "OBX1202 the column of the command has the name \"cause\" too\nand: the command is named here"},
	{"a column with the default name of the command", columns("▶command_id: {type: text}"), "OBX1202 the column of the command has the name \"command_id\" too\nhint: rename this column, or the command's by store.command.name"},
	{"a column of 64 bytes", columns("▶" + long64 + ": {type: text, index: true}"), "OBX1210 column \"" + long64 + "\" has 64 bytes; at most 63 are possible\nhint: Postgres cuts longer names"},
	{"an empty column", columns("▶\"\": {type: text}"), "OBX1210 column \"\" is empty"},
	{"a column whose index has a name that is too long", columns(long64[:45] + ": {type: text, ▶index: true}"), "OBX1210 the index \"outbox_message_" + long64[:45] + "_idx\" has 64 bytes; at most 63 are possible\nhint: shorten the name of the column or of the table"},
	{"a column without a type", columns("▶a: {index: true}"), "OBX1103 column \"a\" has no type\nhint: allowed: uuid, text, bigint, integer, boolean, timestamptz, date"},
	{"a column of a type that does not exist", columns("a: {type: ▶timestamp}"), "OBX1203 type cannot be \"timestamp\"\nhint: did you mean timestamptz?"},
	{"a column that is only a type", columns("a: ▶uuid"), "OBX1104 a must be a mapping, found the text \"uuid\""},
	{"a default that is no UUID", columns("a: {type: uuid, default: ▶8f14e45f}"), "OBX1211 the default of a column of type uuid must be a UUID such as 8f14e45f-ceea-467f-a0e6-0d1c2b3a4f5e, found the text \"8f14e45f\""},
	{"a default that is no text", columns("a: {type: text, default: ▶5}"), "OBX1104 default must be a text, found the number 5\nhint: put it in quotes: \"5\""},
	{"a default beyond 64 bits", columns("a: {type: bigint, default: ▶9223372036854775808}"), "OBX1211 the default of a column of type bigint must be a whole number of 64 bits, found the number 9223372036854775808"},
	{"a default beyond 32 bits", columns("a: {type: integer, default: ▶2147483648}"), "OBX1211 the default of a column of type integer must be a whole number of 32 bits, found the number 2147483648"},
	{"a default that is no boolean", columns("a: {type: boolean, default: ▶on}"), "OBX1211 the default of a column of type boolean must be true or false, found the text \"on\""},
	{"a default that is no time", columns("a: {type: timestamptz, default: ▶2026-11-30}"), "OBX1211 the default of a column of type timestamptz must be a time of RFC 3339, to the microsecond, such as 2026-11-30T12:00:00Z, found the text \"2026-11-30\""},
	{"a default finer than the column", columns("a: {type: timestamptz, default: ▶\"2026-11-30T12:00:00.0000001Z\"}"), "OBX1211 the default of a column of type timestamptz must be a time of RFC 3339, to the microsecond, such as 2026-11-30T12:00:00Z, found the text \"2026-11-30T12:00:00.0000001Z\""},
	{"a default of a year that Postgres writes otherwise", columns("a: {type: timestamptz, default: ▶\"9999-12-31T23:00:00-02:00\"}"), "OBX1211 the default of a column of type timestamptz must be a time of RFC 3339, to the microsecond, such as 2026-11-30T12:00:00Z, found the text \"9999-12-31T23:00:00-02:00\""},
	{"a default that is no day", columns("a: {type: date, default: ▶2026-02-30}"), "OBX1211 the default of a column of type date must be a date such as 2026-11-30, found the text \"2026-02-30\""},

	// Names.
	{"a name that starts with a digit", "types: {▶1st: {fields: {}}}", "OBX1201 a type cannot be named \"1st\"\nhint: a name has ASCII letters, digits, _, . and -, and starts with a letter"},
	{"a name with a letter beyond ASCII", fields("▶größe: string"), "OBX1201 a field cannot be named \"größe\"\nhint: a name has ASCII letters, digits, _, . and -, and starts with a letter"},
	{"a name of 64 characters", fields("▶" + long64 + ": string"), "OBX1201 the name \"" + long64 + "\" has 64 characters; at most 63 are possible"},
	{"a type with the name of a scalar", "types: {▶decimal: {fields: {}}}", "OBX1202 a type cannot be named \"decimal\": the language uses the word"},
	{"a type named optional", "types: {▶optional: {fields: {}}}", "OBX1202 a type cannot be named \"optional\": the language uses the word"},
	{"a go_name that is not exported", fields("a: {type: string, go_name: ▶id}"), "OBX1208 \"id\" cannot be an exported Go name\nhint: it has ASCII letters, digits and _, and starts with a capital"},
	{"a go_name with code in it", "payloads: {ping: {fields: {}, go_name: ▶\"A struct{}; type B\"}}", "OBX1208 \"A struct{}; type B\" cannot be an exported Go name\nhint: it has ASCII letters, digits and _, and starts with a capital"},
	{"a go_name of a value with a sign in it", "types: {a: {enum: [{value: A+, go_name: ▶A+}]}}", "OBX1208 \"A+\" cannot be part of a Go name\nhint: it has ASCII letters, digits and _"},
	{"a deprecation without a text", fields("a: {type: string, deprecated: ▶true}"), "OBX1104 deprecated must be a text, found the boolean true\nhint: say what to use instead"},
	{"an empty deprecation", fields("a: {type: string, deprecated: ▶\" \"}"), "OBX1213 deprecated is empty\nhint: say what to use instead"},
	{"an empty wire name", fields("a: {type: string, json: ▶\"\"}"), "OBX1303 the wire name is empty"},
	{"a wire name with a quote", fields("a: {type: string, json: ▶'a\"b'}"), "OBX1303 \"a\\\"b\" cannot be a wire name\nhint: it has letters, digits, spaces and signs other than quotes, commas and backslashes, and is not \"-\""},
	{"a wire name that leaves the field out", fields("a: {type: string, json: ▶\"-\"}"), "OBX1303 \"-\" cannot be a wire name\nhint: it has letters, digits, spaces and signs other than quotes, commas and backslashes, and is not \"-\""},
	{"two fields with one wire name", fields("▷a: string, b: {type: string, json: ▶a}"), "OBX1303 payload \"ping\" has a second field with the wire name \"a\"\nhint: give one of them another wire name by json\nand: the first one"},

	// Types.
	{"an unknown type", fields("a: ▶colour"), "OBX1301 there is no type \"colour\"\nhint: name it under types, or use one of string, bool, int32, int64, uint64, float64, uuid, time, date, duration, decimal, bigint, bytes, json"},
	{"a type with a slip", fields("a: ▶strng"), "OBX1301 there is no type \"strng\"\nhint: did you mean string?"},
	{"a type that is not near enough to guess", fields("a: ▶unit"), "OBX1301 there is no type \"unit\"\nhint: name it under types, or use one of string, bool, int32, int64, uint64, float64, uuid, time, date, duration, decimal, bigint, bytes, json"},
	{"an unknown optional type", fields("a: ▶optional strng"), "OBX1301 there is no type \"strng\"\nhint: did you mean string?"},
	{"optional twice", fields("a: ▶optional optional string"), "OBX1307 optional stands on fields: as the whole field, or as an option beside type, list and map\nhint: write \"string\" here"},
	{"optional in a list", fields("a: {list: ▶optional string}"), "OBX1307 optional stands on fields: as the whole field, or as an option beside type, list and map\nhint: write \"string\" here"},
	{"an option inside a list", fields("a: {list: {type: string, ▶optional: true}}"), "OBX1307 optional stands on fields, not inside a list or map"},
	{"sensitive inside a map", fields("a: {map: {type: string, ▶sensitive: true}}"), "OBX1307 sensitive stands on fields, not inside a list or map"},
	{"a field without a type", fields("▶a: {doc: x}"), "OBX1103 field \"a\" has none of type, list and map"},
	{"an element without a type", fields("a: {list: ▶{min: 1}}"), "OBX1103 the element has none of type, list and map"},
	{"a field with two types", fields("a: {▷type: string, ▶list: string}"), "OBX1106 field \"a\" has type and list; it is one of type, list and map\nand: type stands here"},
	{"a list for a field", fields("a: ▶[string]"), "OBX1104 a must be a type name, `optional` and a type name, or a mapping, found a list"},
	{"a list of a list without a word for it", fields("a: {list: ▶[string]}"), "OBX1104 list must be a type name or a mapping, found a list"},
	{"a type that is neither", "types: {▶a: {doc: x}}", "OBX1103 type \"a\" has neither fields nor enum"},
	{"a type that is both", "types: {a: {▷fields: {}, ▶enum: [x]}}", "OBX1106 type \"a\" has fields and enum; a type is one of the two\nand: fields stands here"},
	{"an enum without values", "types: {a: {enum: ▶[]}}", "OBX1105 an enum needs a value at least"},
	{"an enum with a number", "types: {a: {enum: [▶1]}}", "OBX1104 an item of enum must be a text, found the number 1\nhint: put it in quotes: \"1\""},
	{"an enum with a value twice", "types: {a: {enum: [▷x, {value: ▶x}]}}", "OBX1212 the value \"x\" stands here a second time\nand: it stands here first"},
	{"a value of an enum without its text", "types: {a: {enum: [▶{go_name: X}]}}", "OBX1103 a value of an enum has no value\nhint: add the text that stands in the JSON"},
	{"a type that contains itself", "types: {a: {fields: {x: ▶a}}}", "OBX1302 type \"a\" contains itself: a → a\nhint: make a field of the cycle optional, or a list or map"},
	{"a type that contains itself, in another type", "types: {a: {fields: {x: ▶a}}, b: {fields: {x: a, y: a}}}", "OBX1302 type \"a\" contains itself: a → a\nhint: make a field of the cycle optional, or a list or map"},
	{"types that contain each other", "types: {a: {fields: {x: b}}, b: {fields: {y: {type: c}}}, c: {fields: {z: ▶b, l: {list: a}, o: optional a}}}", "OBX1302 type \"b\" contains itself: b → c → b\nhint: make a field of the cycle optional, or a list or map"},
	{"a payload without fields", "payloads: {▶ping: {doc: x}}", "OBX1103 payload \"ping\" has no fields\nhint: a payload without content has `fields: {}`"},
	{"fields without a value", "payloads: {ping: {fields: ▶~}}", "OBX1104 fields has no value; a mapping of names to fields is wanted"},
	{"a payload that no destination accepts", "payloads: {ping: {fields: {}}, ▶pong: {fields: {}}}", "OBX1308 no destination accepts the payload \"pong\": it can never be sent\nhint: add it to accepts of a destination, or remove it"},

	// Checks.
	{"min of a text", fields("a: {type: string, ▶min: 1}"), "OBX1304 min does not fit the type string\nhint: min fits int32, int64, uint64, float64, decimal, bigint; min_length and min_items bound other types"},
	{"max of a duration", fields("a: {type: duration, ▶max: 1}"), "OBX1304 max does not fit the type duration\nhint: max fits int32, int64, uint64, float64, decimal, bigint; max_length and max_items bound other types"},
	{"min_length of a number", fields("a: {type: int32, ▶min_length: 1}"), "OBX1304 min_length does not fit the type int32\nhint: min_length fits string and bytes"},
	{"pattern of bytes", fields("a: {type: bytes, ▶pattern: x}"), "OBX1304 pattern does not fit the type bytes\nhint: pattern fits string"},
	{"min_items of a text", fields("a: {type: string, ▶min_items: 1}"), "OBX1304 min_items does not fit the type string\nhint: min_items fits lists and maps"},
	{"nonzero of an enum", "types: {e: {enum: [x]}}\n" + fields("a: {type: e, ▶nonzero: true}"), "OBX1304 nonzero does not fit an enum\nhint: nonzero fits string, bool, int32, int64, uint64, float64, uuid, time, date, duration, decimal, bigint, bytes"},
	{"nonzero of a list", fields("a: {list: string, ▶nonzero: true}"), "OBX1304 nonzero does not fit a list\nhint: nonzero fits string, bool, int32, int64, uint64, float64, uuid, time, date, duration, decimal, bigint, bytes"},
	{"quoted of a decimal, which is a text anyway", fields("a: {type: decimal, ▶quoted: true}"), "OBX1304 quoted does not fit the type decimal\nhint: quoted fits int32, int64, uint64, float64"},
	{"a check of an object", "types: {o: {fields: {}}}\n" + fields("a: {type: o, ▶max: 1}"), "OBX1304 max does not fit the type \"o\"\nhint: max fits int32, int64, uint64, float64, decimal, bigint; max_length and max_items bound other types"},
	{"a bound beyond int32", fields("a: {type: int32, min: ▶-2147483649}"), "OBX1204 min must be a number of type int32, found the number -2147483649"},
	{"a bound below uint64", fields("a: {type: uint64, min: ▶-1}"), "OBX1204 min must be a number of type uint64, found the number -1"},
	{"a bound beyond uint64", fields("a: {type: uint64, max: ▶18446744073709551616}"), "OBX1204 max must be a number of type uint64, found the number 18446744073709551616"},
	{"a bound beyond float64", fields("a: {type: float64, max: ▶1e309}"), "OBX1204 max must be a number of type float64, found the text \"1e309\""},
	{"a bound that rounds to zero", fields("a: {type: float64, min: ▶1e-400}"), "OBX1204 min must be a number of type float64, found the number 1e-400"},
	{"an infinite bound", fields("a: {type: float64, max: ▶.inf}"), "OBX1204 max must be a number of type float64, found the number .inf"},
	{"a fraction for a bound of a whole number", fields("a: {type: bigint, max: ▶1.5}"), "OBX1204 max must be a number of type bigint, found the number 1.5"},
	{"an exponent for a decimal", fields("a: {type: decimal, max: ▶1e3}"), "OBX1204 max must be a number of type decimal, found the number 1e3"},
	{"a bound of a thousand digits and one", fields("a: {type: bigint, max: ▶" + strings.Repeat("9", 1001) + "}"), "OBX1204 max has 1001 digits; at most 1000 are possible"},
	{"a boolean for a bound", fields("a: {type: int32, max: ▶true}"), "OBX1104 max must be a number, found the boolean true"},
	{"min above max", fields("a: {type: decimal, min: ▶2.10, max: ▷2.09}"), "OBX1305 min 2.1 is above max 2.09: no value meets both\nand: max stands here"},
	{"min above max beyond 64 bits", fields("a: {type: bigint, min: ▶18446744073709551617, max: ▷18446744073709551616}"), "OBX1305 min 18446744073709551617 is above max 18446744073709551616: no value meets both\nand: max stands here"},
	{"min_length above max_length", fields("a: {type: string, max_length: ▷2, min_length: ▶3}"), "OBX1305 min_length 3 is above max_length 2: no value meets both\nand: max_length stands here"},
	{"min_items above max_items", fields("a: {list: string, min_items: ▶3, max_items: ▷2}"), "OBX1305 min_items 3 is above max_items 2: no value meets both\nand: max_items stands here"},
	{"a length below zero", fields("a: {type: string, min_length: ▶-1}"), "OBX1204 min_length must be from 0 to 2147483647, found -1"},
	{"a pattern that does not compile", fields("a: {type: string, pattern: ▶'a(b'}"), "OBX1306 the pattern does not compile: missing closing ): \"a(b\"\nhint: patterns are RE2, as Go's regexp package reads them"},
	{"a pattern that RE2 does not have", fields("a: {type: string, pattern: ▶'(?=a)'}"), "OBX1306 the pattern does not compile: invalid or unsupported Perl syntax: \"(?=\"\nhint: patterns are RE2, as Go's regexp package reads them"},
	{"a pattern without quotes", fields("a: {type: string, pattern: ▶[a-z]}"), "OBX1104 pattern must be a text, found a list\nhint: a text that begins with { or [ stands in quotes"},
	{"a check inside an unknown type", fields("a: {list: {type: string, pattern: ▶'['}}"), "OBX1306 the pattern does not compile: missing closing ]: \"[\"\nhint: patterns are RE2, as Go's regexp package reads them"},

	// Destinations.
	{"no destination", "destinations: ▶{}", "OBX1105 a specification needs a destination at least"},
	{"a list of destinations", "destinations: ▶[peer]", "OBX1104 destinations must be a mapping of names to destinations, found a list"},
	{"a destination without accepts", "destinations: {▶peer: {idempotent: true}}", "OBX1103 destination \"peer\" has no accepts\nhint: list the payloads that may be sent there"},
	{"a destination without idempotent", "destinations: {▶peer: {accepts: [ping]}}", "OBX1103 destination \"peer\" has no idempotent\nhint: true when the same message may reach it twice without harm; there is no default, since it decides what happens when a call ends without an answer"},
	{"a destination that accepts nothing", "destinations: {peer: {accepts: ▶[], idempotent: true}}", "OBX1105 a destination accepts a payload at least"},
	{"a payload that does not exist", "destinations: {peer: {accepts: [ping, ▶invoice], idempotent: true}}", "OBX1401 there is no payload \"invoice\"\nhint: name it under payloads"},
	{"a payload with a slip", "destinations: {peer: {accepts: [▶pinng], idempotent: true}}", "OBX1401 there is no payload \"pinng\"\nhint: did you mean ping?"},
	{"a payload with a slip, which no other destination accepts", "payloads: {ping: {fields: {}}, pong: {fields: {}}}\ndestinations: {peer: {accepts: [ping, ▶ponng], idempotent: true}}", "OBX1401 there is no payload \"ponng\"\nhint: did you mean pong?"},
	{"a payload accepted twice", "destinations: {peer: {accepts: [▷ping, ▶ping], idempotent: true}}", "OBX1212 the payload \"ping\" stands here a second time\nand: it stands here first"},
	{"a payload that is accepted with options", "destinations: {peer: {accepts: [▶{payload: ping}], idempotent: true}}", "OBX1104 an item of accepts must be the name of a payload, found a mapping"},
	{"a timeout without a unit", peer("timeout: ▶30"), "OBX1205 timeout must be a duration such as 30s, 5m, 1h30m or 2d, found the number 30\nhint: give it a unit: 30s"},
	{"a timeout of zero", peer("timeout: ▶0s"), "OBX1205 timeout cannot be zero"},
	{"a timeout of zero without a unit", peer("timeout: ▶0"), "OBX1205 timeout must be a duration such as 30s, 5m, 1h30m or 2d, found the number 0"},
	{"a negative timeout", peer("timeout: ▶-5s"), "OBX1205 timeout cannot be negative"},
	{"a timeout that goes back", peer("timeout: ▶1d-2h"), "OBX1205 timeout must be a duration such as 30s, 5m, 1h30m or 2d, found the text \"1d-2h\""},
	{"a timeout in words", peer("timeout: ▶5 minutes"), "OBX1205 timeout must be a duration such as 30s, 5m, 1h30m or 2d, found the text \"5 minutes\""},
	{"a timeout longer than a life", peer("timeout: ▶36501d"), "OBX1205 timeout cannot be longer than 36500d"},
	{"a timeout longer than 64 bits", peer("timeout: ▶99999999999999999999d23h"), "OBX1205 timeout cannot be longer than 36500d"},
	{"a timeout whose days exceed 64 bits", peer("timeout: ▶200000000d"), "OBX1205 timeout cannot be longer than 36500d"},
	{"a timeout whose parts together exceed 64 bits", peer("timeout: ▶36500d2562047h"), "OBX1205 timeout cannot be longer than 36500d"},
	{"a lease not above the timeout", peer("timeout: ▷1m, lease: ▶60s"), "OBX1402 the lease, 1m, must exceed the timeout, 1m\nhint: a claim must not count as abandoned while its call may still run\nand: the timeout stands here"},
	{"a lease not above the default timeout", peer("lease: ▶30s"), "OBX1402 the lease, 30s, must exceed the timeout, 30s\nhint: a claim must not count as abandoned while its call may still run"},
	{"a lease beside a timeout at fault", peer("timeout: ▶x, lease: 1s"), "OBX1205 timeout must be a duration such as 30s, 5m, 1h30m or 2d, found the text \"x\""},
	{"no attempt", peer("retry: {max_attempts: ▶0}"), "OBX1204 max_attempts must be from 1 to 2147483647, found 0"},
	{"more attempts than can be counted", peer("retry: {max_attempts: ▶2147483648}"), "OBX1204 max_attempts must be from 1 to 2147483647, found 2147483648"},
	{"attempts in another word", peer("retry: {max_attempts: ▶forever}"), "OBX1203 max_attempts must be a whole number or unlimited, found the text \"forever\""},
	{"initial above max", peer("retry: {initial: ▶2m, max: ▷1m}"), "OBX1403 initial, 2m, is above max, 1m\nand: max stands here"},
	{"initial above the default max", peer("retry: {initial: ▶20m}"), "OBX1403 initial, 20m, is above max, 15m\nhint: set max too, which is 15m when not set"},
	{"max below the default initial", peer("retry: {max: ▶500ms}"), "OBX1403 max, 500ms, is below initial, 1s\nhint: set initial too, which is 1s when not set"},
	{"a factor below one", peer("retry: {factor: ▶0.5}"), "OBX1204 factor must be 1 or more, found 0.5"},
	{"a jitter above one", peer("retry: {jitter: ▶1.5}"), "OBX1204 jitter must be from 0 to 1, found 1.5"},
	{"a jitter in percent", peer("retry: {jitter: ▶20%}"), "OBX1104 jitter must be a number, found the text \"20%\""},
	{"delays beside a factor", peer("retry: {▷delays: [5s], ▶factor: 2}"), "OBX1106 retry has factor beside delays\nhint: the list of delays says when and how often; keep it or the other keys\nand: delays stands here"},
	{"delays without any", peer("retry: {delays: ▶[]}"), "OBX1105 delays needs a duration at least\nhint: for a single attempt write `retry: {max_attempts: 1}`"},
	{"a negative delay", peer("retry: {delays: [1s, ▶-1s]}"), "OBX1205 an item of delays cannot be negative"},
	{"reconcile of an idempotent destination", "destinations: {peer: {accepts: [ping], idempotent: ▷true, ▶reconcile: none}}", "OBX1404 an idempotent destination has nothing to reconcile\nhint: remove reconcile: what ended without an answer is sent again\nand: idempotent is set here"},
	{"reconcile in another word", unsafePeer("reconcile: ▶never"), "OBX1203 reconcile must be a mapping or none, found the text \"never\""},
	{"give_up before the first question", unsafePeer("reconcile: {give_up: ▶1m}"), "OBX1404 give_up, 1m, must exceed first, 1m: else the remote is never asked\nhint: to leave unknown outcomes to a person write `reconcile: none`"},
	{"every of zero", unsafePeer("reconcile: {every: ▶0s}"), "OBX1205 every cannot be zero"},
	{"a concurrency of zero", peer("limits: {concurrency: ▶0}"), "OBX1204 concurrency must be from 1 to 2147483647, found 0"},
	{"a rate without a unit", peer("limits: {rate: ▶50}"), "OBX1104 rate must be a rate such as 50/s, 100/m or 5/h, found the number 50"},
	{"a rate by the day", peer("limits: {rate: ▶50/d}"), "OBX1206 rate must be a rate such as 50/s, 100/m or 5/h, found the text \"50/d\""},
	{"a rate of zero", peer("limits: {rate: ▶0/s}"), "OBX1206 rate must be a rate such as 50/s, 100/m or 5/h, found the text \"0/s\""},
	{"a rate that is too high", peer("limits: {rate: ▶2147483648/s}"), "OBX1206 rate is too high: at most 2147483647"},
	{"total without per", peer("limits: {▶total: 5}"), "OBX1405 total has a meaning only beside per\nhint: without per, concurrency bounds the whole destination"},
	{"failed rows removed at once", peer("retention: {failed: ▶0s}"), "OBX1205 failed cannot be zero"},
	{"failed rows removed at once, without a unit", peer("retention: {failed: ▶0}"), "OBX1205 failed must be a duration such as 30s, 5m, 1h30m or 2d, found the number 0"},
	{"a retention in another word", peer("retention: {completed: ▶forever}"), "OBX1205 completed must be a duration such as 30s, 5m, 1h30m or 2d, found the text \"forever\""},
	{"rows that expire at once", peer("expires: ▶0s"), "OBX1205 expires cannot be zero"},

	// Paths.
	{"a key without fields", peer("idempotency_key: ▶[]"), "OBX1105 idempotency_key needs a field at least"},
	{"a key that is a boolean", peer("idempotency_key: ▶true"), "OBX1104 idempotency_key must be a field, a list of fields, or a mapping of payloads to these, found the boolean true"},
	{"a field twice", peer("idempotency_key: [▷id, ▶id]"), "OBX1212 the field \"id\" stands here a second time\nand: it stands here first"},
	{"a field that does not exist", peer("idempotency_key: ▶order"), "OBX1406 payload \"ping\" has no field \"order\", which idempotency_key names"},
	{"a field with a slip", fields("account_id: string") + "\n" + peer("limits: {per: ▶acount_id}"), "OBX1406 payload \"ping\" has no field \"acount_id\", which per names\nhint: did you mean account_id?"},
	{"an empty path", peer("idempotency_key: ▶\"\""), "OBX1406 payload \"ping\" has no field \"\", which idempotency_key names"},
	{"an optional field", fields("▷a: optional string") + "\n" + peer("idempotency_key: ▶a"), "OBX1406 idempotency_key cannot use \"a\" of payload \"ping\", which is optional\nand: the field stands here"},
	{"a sensitive field", fields("▷a: {type: string, sensitive: true}") + "\n" + peer("idempotency_key: ▶a"), "OBX1406 idempotency_key cannot use \"a\" of payload \"ping\", which is sensitive: keys are stored and shown\nand: the field stands here"},
	{"a field of an optional object", "types: {o: {fields: {x: uuid}}}\n" + fields("▷a: optional o") + "\n" + peer("idempotency_key: ▶a.x"), "OBX1406 idempotency_key cannot use \"a\" of payload \"ping\", which is optional\nand: the field stands here"},
	{"a field of an object that has it not", "types: {o: {fields: {x: uuid}}}\n" + fields("a: o") + "\n" + peer("idempotency_key: ▶a.y.z"), "OBX1406 type \"o\" has no field \"y.z\", which idempotency_key names"},
	{"a path through a list", "types: {o: {fields: {x: uuid}}}\n" + fields("a: {list: o}") + "\n" + peer("idempotency_key: ▶a.x"), "OBX1406 \"a.x\" leads through \"a\" of payload \"ping\", which is a list\nhint: a path leads through required fields that are objects"},
	{"a path through a text", fields("a: string") + "\n" + peer("idempotency_key: ▶a.x"), "OBX1406 \"a.x\" leads through \"a\" of payload \"ping\", which is the type string\nhint: a path leads through required fields that are objects"},
	{"a path with two readings", "types: {o: {fields: {x: uuid}}}\n" + fields("a: o, a.x: uuid") + "\n" + peer("idempotency_key: ▶a.x"), "OBX1406 \"a.x\" can be read in two ways in payload \"ping\"\nand: through this field\nand: or through this one"},
	{"a key of an object", "types: {o: {fields: {x: uuid}}}\n" + fields("a: o") + "\n" + peer("idempotency_key: ▶a"), "OBX1407 idempotency_key cannot use \"a\" of payload \"ping\", which is the type \"o\"\nhint: a key is made of string, bool, int32, int64, uint64, uuid and enums"},
	{"a key of a time", fields("a: time") + "\n" + peer("limits: {per: ▶a}"), "OBX1407 per cannot use \"a\" of payload \"ping\", which is the type time\nhint: a key is made of string, bool, int32, int64, uint64, uuid and enums"},
	{"a key for one of two payloads", two("idempotency_key: ▶{ping: id}"), "OBX1408 idempotency_key names no field of the accepted payload \"pong\"\nand: it is accepted here"},
	{"a key for a payload that is not accepted", peer("idempotency_key: {ping: id, ▶pingg: id}"), "OBX1401 idempotency_key names the payload \"pingg\", which the destination does not accept\nhint: did you mean ping?"},
	{"a key that one of two payloads lacks", two("idempotency_key: ▶id"), "OBX1406 payload \"pong\" has no field \"id\", which idempotency_key names"},
	{"a shared key of different kinds", two("limits: {per: {ping: id, pong: ▶no}}"), "OBX1407 per is made of integer for the payload \"pong\", and of uuid for \"ping\"\nhint: rows of both payloads share a key only when it is made of the same kinds of values"},
}

// two is a destination that accepts two payloads, which share no field.
func two(text string) string {
	return "payloads: {ping: {fields: {id: uuid}}, pong: {fields: {no: int64}}}\n" +
		"destinations: {peer: {accepts: [ping, pong], idempotent: true, " + text + "}}"
}

func TestFaults(t *testing.T) {
	for _, c := range faults {
		t.Run(c.name, func(t *testing.T) { c.run(t, complete(c.text)) })
	}
}

func TestMissingKeysOfTheSpecification(t *testing.T) {
	_, diags := Decode("outbox.yaml", []byte("# nothing yet\ndoc: x\n"))
	want := strings.TrimSpace(`
outbox.yaml:2:1: error OBX1103: the specification has no destinations
    hint: add the systems that messages are sent to
outbox.yaml:2:1: error OBX1103: the specification has no out
    hint: add the directory of the package, such as ` + "`out: internal/outbox`" + `
outbox.yaml:2:1: error OBX1103: the specification has no package
    hint: add the name of the Go package, such as ` + "`package: outbox`" + `
outbox.yaml:2:1: error OBX1103: the specification has no payloads
    hint: add the messages that are sent
outbox.yaml:2:1: error OBX1103: the specification has no version
    hint: add ` + "`version: 1`" + `: the version of the language
`)
	if got := diags.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// One run reports all that is wrong, in the order of the file.
func TestEveryFaultAtOnce(t *testing.T) {
	data, err := os.ReadFile("testdata/faulty.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, diags := Decode("faulty.yaml", data)
	want, err := os.ReadFile("testdata/faulty.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := diags.String() + "\n"; got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Every code is the fault of a case, and has a title of its own.
func TestEveryCodeHasACase(t *testing.T) {
	covered := map[Code]bool{CodeTooLarge: true} // TestInputThatIsTooLarge
	for _, c := range slices.Concat(syntaxFaults, faults) {
		code, _, _ := strings.Cut(c.want, " ")
		covered[Code(code)] = true
	}
	seen := map[string]Code{}
	previous := Code("")
	for _, known := range titles {
		if !covered[known.code] {
			t.Errorf("no case shows %s, %s", known.code, known.title)
		}
		if known.code <= previous {
			t.Errorf("%s does not stand in order", known.code)
		}
		previous = known.code
		if first, again := seen[known.title]; again || known.code.Title() != known.title {
			t.Errorf("%s and %s: title %q", known.code, first, known.code.Title())
		}
		seen[known.title] = known.code
		delete(covered, known.code)
	}
	for code := range covered {
		t.Errorf("%s has no title", code)
	}
}

func TestInputThatIsTooLarge(t *testing.T) {
	doc := "doc: " + strings.Repeat("x", maxBytes-len(complete("doc:\n"))-1)
	if spec := decodeValid(t, complete(doc)); len(spec.Doc.Value) < maxBytes-200 {
		t.Errorf("the text has %d characters", len(spec.Doc.Value))
	}
	_, diags := Decode("outbox.yaml", []byte(strings.Repeat(" ", 2<<20)))
	if want := "outbox.yaml:1:1: error OBX1001: the specification has 2097152 bytes; at most 1048576 are read"; diags.String() != want {
		t.Errorf("got %s, want %s", diags, want)
	}
}

func TestTenThousandLines(t *testing.T) {
	var b strings.Builder
	b.WriteString("payloads:\n")
	for i := range 5_000 {
		fmt.Fprintf(&b, "  p%d:\n    fields: {id: uuid, of: strng}\n", i)
	}
	_, diags := Decode("outbox.yaml", []byte(complete(b.String())))
	// Every second line is at fault: there is no type strng. So is the
	// destination, since nothing is called ping.
	if len(diags) != 5_001 {
		t.Fatalf("%d faults, want 5001", len(diags))
	}
	guesses := 0
	for i, d := range diags[:5_000] {
		if d.Code != CodeUnknownType || d.Pos.Line != 3+2*i {
			t.Fatalf("fault %d is %s", i, d)
		}
		if d.Hint == "did you mean string?" {
			guesses++
		}
	}
	if guesses != maxSuggestions {
		t.Errorf("%d guesses at what was meant, want %d", guesses, maxSuggestions)
	}
}

func TestSort(t *testing.T) {
	at := func(file string, line, column int, code Code, message string) Diagnostic {
		return Diagnostic{Pos: Pos{file, line, column}, Code: code, Message: message}
	}
	want := Diagnostics{
		at("a", 2, 2, "OBX1002", "b"),
		at("b", 1, 2, "OBX1002", "b"),
		at("b", 2, 1, "OBX1002", "b"),
		at("b", 2, 2, "OBX1001", "b"),
		at("b", 2, 2, "OBX1002", "a"),
		at("b", 2, 2, "OBX1002", "b"),
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	got.Sort()
	if got.String() != want.String() {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range slices.Concat(syntaxFaults, faults) {
		if len(c.text) < 1000 {
			f.Add(c.text)
			f.Add(complete(c.text))
		}
	}
	for _, file := range []string{"testdata/everything.yaml", "testdata/faulty.yaml"} {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec, diags := Decode("f", []byte(text))
		if spec == nil && !diags.HasErrors() {
			t.Fatal("neither a specification nor a fault")
		}
		lines := strings.Split(strings.TrimPrefix(text, "\uFEFF"), "\n")
		inside := func(p Pos) bool {
			return p.File == "f" && p.Line >= 1 && p.Line <= len(lines) &&
				p.Column >= 1 && p.Column <= 1+utf8.RuneCountInString(lines[p.Line-1])
		}
		for _, d := range diags {
			if !inside(d.Pos) {
				t.Errorf("outside of the file: %s", d)
			}
			for _, r := range d.Related {
				if !inside(r.Pos) {
					t.Errorf("second place outside of the file: %s", d)
				}
			}
			if strings.Contains(d.Message+d.Hint, "\n") || d.Message == "" || d.Code.Title() == "" {
				t.Errorf("not a fault that people can read: %q", d)
			}
		}
		sorted := slices.Clone(diags)
		sorted.Sort()
		if sorted.String() != diags.String() {
			t.Errorf("not sorted:\n%s", diags)
		}
	})
}
