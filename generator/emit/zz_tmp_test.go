package emit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/outboxgen/outboxgen/generator/emit"
)

func TestTmpGen(t *testing.T) {
	for _, f := range []string{"string: string", "x: bool", "d: decimal", "b: bigint", "j: {type: json, optional: true}", "d: date", "d: duration", "q: {type: int64, quoted: true}", "m: {map: bytes}", "f: {type: float64, min: 1, sensitive: true}", "o: optional time", ""} {
		spec := "version: 1\npackage: shop\nout: shop\npayloads: {p: {fields: {" + f + "}}}\ndestinations: {d: {accepts: [p], idempotent: true}}\n"
		if f == "string: string" {
			spec = "version: 1\npackage: shop\nout: shop\npayloads: {p: {fields: {a: string}}}\ndestinations: {d: {accepts: [p], idempotent: true}}\n"
		}
		files, err := emit.Files(parseModel(t, spec))
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(os.Getenv("OUT"), "p"+string('a'+rune(len(f))))
		os.MkdirAll(dir, 0o755)
		t.Log(dir, f)
		for _, file := range files {
			os.WriteFile(filepath.Join(dir, file.Path), file.Content, 0o644)
		}
	}
}

func BenchmarkTmp(b *testing.B) {
	m := readModel(b, "../../templates/outbox/testdata/everything.yaml")
	for range b.N {
		emit.Files(m)
	}
}
func BenchmarkTmpPayloads(b *testing.B) {
	m := readModel(b, "../../templates/outbox/testdata/everything.yaml")
	for range b.N {
		emit.Payloads(m)
	}
}
