package schema
import ("testing";"strings";"time";"fmt")
func TestHostile(t *testing.T) {
	n := 1<<20 - 200
	rep := func(s string) string { return strings.Repeat(s, n/len(s)) }
	uniq := func(f string, k int) string { var b strings.Builder; for i := 0; b.Len() < n-100 && i < k; i++ { fmt.Fprintf(&b, f, i) }; return b.String() }
	for name, s := range map[string]string{
		"flow list": "doc: [" + rep("x,") + "]", "flow open": "a: [" + rep("x,"), "comments": rep("#\n"), "comments2": "a:\n"+rep("  # x\n"), "comments3": rep("a: 1\n# x\n"),
		"deep9999": strings.Repeat("[", 9999)+strings.Repeat("]", 9999), "deep9000bad": strings.Repeat("- ", 9000)+"@", "deep list": strings.Repeat("- ", 9999)+"x",
		"spaces": rep(" "), "newlines": rep("\n"), "quotes": rep("'a' "), "keys": uniq("k%d: 1\n", 1<<20), "unknowntypes": "payloads:\n p:\n  fields:\n"+uniq("   f%d: x\n",1<<20),
		"types": "types:\n"+uniq(" t%d: {fields: {a: t%[1]d}}\n",1<<20), "chain": "types:\n"+uniq(" t%d: {fields: {a: ",1), "qmarks": rep("? "), "colons": rep(": "), "anchors": rep("&a "), "tags": rep("!a "), "braces": rep("{}"), "bad end": complete(uniq("# %d\n", 1<<20))+"@", "long plain": "a: "+rep("x y "), "multi plain": "a:\n"+rep("  x\n")+"b: [",
		"badquote end": "a: \""+rep("x\n  "), "block": "doc: |\n"+rep("  x\n")+"@", "dq": "doc: \""+rep("\\n")+"\"", "flow bad end": "a: [" + rep("x,")+"@]", "ü": "doc: "+rep("ü")+": x", "docs": rep("---\n"), "dup": rep("a: 1\n"),
		"path": "payloads: {p: {fields: {a: uuid}}}\ndestinations: {d: {accepts: [p], idempotent: true, idempotency_key: ["+uniq("k%d, ",1<<20)+"]}}", "bignum": fields("a: {type: decimal, min: "+rep("9")+", max: 1}"), "pattern": fields("a: {type: string, pattern: '"+rep("(a")+"'}"), "enum": "types: {e: {enum: ["+uniq("v%d, ",1<<20)+"]}}",
		"chain2": "types:\n"+func() string { var b strings.Builder; for i := range 20000 { fmt.Fprintf(&b, " t%d: {fields: {a: t%d}}\n", i, i+1) }; return b.String() }(),
	} {
		t0 := time.Now()
		_, ds := Decode("f", []byte(s))
		if e := time.Since(t0); e > 300*time.Millisecond { first := ""; if len(ds) > 0 { first = ds[0].String() }; fmt.Println(name, len(s), e, len(ds), first) }
	}
}
