package emit_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxgen/outboxgen/generator/emit"
)

// TestEveryTypeIsEmittedAsRecorded holds the payloads that the tests of the
// fixed files use to what is emitted for their specification. readerOf is left
// out, since that package has one of its own.
func TestEveryTypeIsEmittedAsRecorded(t *testing.T) {
	const dir = "../../templates/outbox"
	source, err := emit.Payloads(readModel(t, filepath.Join(dir, "testdata/everything.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	types, _, found := strings.Cut(string(source), "\n// readerOf ")
	if !found {
		t.Fatal("there is no readerOf")
	}
	name := filepath.Join(dir, "everything_test.go")
	if *update {
		if err := os.WriteFile(name, []byte(types), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	recorded, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(recorded), types); diff != "" {
		t.Errorf("run this test with -update (-recorded +emitted):\n%s", diff)
	}
}

func TestPayloadSource(t *testing.T) {
	tests := map[string]struct {
		types, fields string
		want          []string // lines, in this order
		not           string
	}{
		"what is not sensitive has no methods to print it": {
			fields: "{a: string}",
			want:   []string{"func (p P) encode(w *jsonWriter) {"},
			not:    "String()",
		},
		"what can break no rule is not checked": {
			fields: "{a: int32, b: {list: bool}, c: uuid}",
			want:   []string{"func (p P) Validate() error { return nil }"},
			not:    "check(",
		},
		"objects that can break no rule are not checked": {
			types:  "{flags: {fields: {a: bool}}}",
			fields: "{a: flags, b: string}",
			want:   []string{`	check(c, "b", p.B, validText)`},
			not:    `check(c, "a"`,
		},
		"a type that no payload holds is not checked": {
			types:  "{left: {fields: {a: right, b: {type: string, pattern: x}}}, right: {fields: {a: string}}}",
			fields: "{a: right}",
			want:   []string{`	check(c, "a", p.A, Right.check)`, "func (t *Left) decode(v jsonValue) {", "func (t Right) check(c *checks) {"},
			not:    "func (t Left) check",
		},
		"a type that holds itself is checked for its depth": {
			types:  "{node: {fields: {next: optional node}}}",
			fields: "{a: {list: node}}",
			want:   []string{`	check(c, "a", p.A, each(Node.check))`, `	check(c, "next", t.Next, ifSet(Node.check))`},
		},
		"types that hold each other are checked for their depth": {
			types:  "{egg: {fields: {hen: optional hen}}, hen: {fields: {egg: optional egg}}}",
			fields: "{a: egg}",
			want:   []string{`	check(c, "hen", t.Hen, ifSet(Hen.check))`, `	check(c, "egg", t.Egg, ifSet(Egg.check))`},
		},
		"a secret that holds a map, however deep, hides its keys": {
			types:  "{inner: {fields: {m: {map: bool}}}, outer: {fields: {i: {list: inner}}}}",
			fields: "{a: {type: outer, sensitive: true}}",
			want: []string{`	check(c, "a", p.A, secret(Outer.check))`,
				`	p.A = required(o, "a", decodeSecret(decodeObject[Outer]))`},
		},
		"names of patterns that run together": {
			types:  "{pa: {fields: {b: {type: string, pattern: x}}}}",
			fields: "{ab: {type: string, pattern: y}, a: pa}",
			want: []string{"var patternPAb = regexp.MustCompile(`y`)", `	check(c, "ab", p.Ab, validText, matches(patternPAb))`,
				"var patternPaB = regexp.MustCompile(`x`)", `	check(c, "b", t.B, validText, matches(patternPaB))`},
		},
		"names of patterns that are the same": {
			types:  "{p_a: {fields: {b: {type: string, pattern: x}}}}",
			fields: "{a_b: {type: string, pattern: y}, a: p_a}",
			want: []string{"var patternPAB = regexp.MustCompile(`y`)",
				"var patternPAB2 = regexp.MustCompile(`x`)", `	check(c, "b", t.B, validText, matches(patternPAB2))`},
		},
		"a pattern that no backquotes can hold": {
			fields: "{a: {type: string, pattern: \"`\\\"\\n\"}}",
			want:   []string{"var patternPA = regexp.MustCompile(\"`\\\"\\n\")"},
		},
		"wire names that are no identifiers": {
			fields: `{a: {type: string, json: "$type <b> %s"}}`,
			want:   []string{`	put(w, "$type <b> %s", p.A, encodeString)`, `	p.A = required(o, "$type <b> %s", decodeString)`},
		},
		"limits at the ends of their types": {
			fields: "{a: {type: int64, min: -9223372036854775808}, b: {type: uint64, max: 18446744073709551615}, c: {type: float64, min: -1e300}}",
			want: []string{"	check(c, \"a\", p.A, atLeast(int64(-9223372036854775808)))", "	check(c, \"b\", p.B, atMost(uint64(18446744073709551615)))",
				"	check(c, \"c\", p.C, finite, atLeast(-1e+300))"},
		},
		"a least count of zero is no rule": {
			fields: "{a: {type: bytes, min_length: 0}, b: {list: bool, min_items: 0}}",
			want:   []string{"func (p P) Validate() error { return nil }"},
		},
		"text that must not be empty and has a least length": {
			fields: "{a: {type: string, nonzero: true, min_length: 0}, b: {type: string, nonzero: true, min_length: 3}}",
			want:   []string{`	check(c, "a", p.A, validText, minLength(1))`, `	check(c, "b", p.B, validText, minLength(3))`},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			specification := "version: 1\npackage: shop\nout: shop\n"
			if test.types != "" {
				specification += "types: " + test.types + "\n"
			}
			specification += "payloads: {p: {fields: " + test.fields + "}}\ndestinations: {d: {accepts: [p], idempotent: true}}\n"
			source, err := emit.Payloads(parseModel(t, specification))
			if err != nil {
				t.Fatal(err)
			}
			rest := string(source)
			for _, line := range test.want {
				var found bool
				if _, rest, found = strings.Cut(rest, "\n"+line+"\n"); !found {
					t.Fatalf("there is no line %q (in its place) in\n%s", line, source)
				}
				rest = "\n" + rest
			}
			if test.not != "" && strings.Contains(string(source), test.not) {
				t.Errorf("there is %q in\n%s", test.not, source)
			}
		})
	}
}
