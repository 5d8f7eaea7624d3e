package emit_test

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/outboxgen/outboxgen/generator/emit"
)

func TestTestKitImportsItsPackage(t *testing.T) {
	const spec = `
version: 1
package: NAME
out: box
payloads: {a: {fields: {}}}
destinations: {mailer: {accepts: [a], idempotent: true}}
`
	const importPath = "example.com/internal/box"
	for _, test := range []struct{ behaviour, pkg, as string }{
		{"under the name that the files use", "shop", "outbox"},
		{"plainly where that is its own", "outbox", ""},
	} {
		t.Run(test.behaviour, func(t *testing.T) {
			files, err := emit.TestKit(parseModel(t, strings.Replace(spec, "NAME", test.pkg, 1)), importPath)
			if err != nil {
				t.Fatal(err)
			}
			documented, imported := 0, 0
			for _, file := range files {
				if !strings.HasPrefix(file.Path, test.pkg+"test/") || !strings.HasSuffix(file.Path, ".gen.go") {
					t.Errorf("the file is called %s", file.Path)
				}
				if !strings.HasPrefix(string(file.Content), emit.Header+"\n\n") {
					t.Errorf("%s does not begin with the marker", file.Path)
				}
				parsed, err := parser.ParseFile(token.NewFileSet(), file.Path, file.Content, parser.ParseComments)
				if err != nil {
					t.Fatal(err)
				}
				if parsed.Name.Name != test.pkg+"test" {
					t.Errorf("%s is of package %s", file.Path, parsed.Name)
				}
				if parsed.Doc != nil {
					documented++
					if !strings.HasPrefix(parsed.Doc.Text(), "Package "+test.pkg+"test ") {
						t.Errorf("%s documents the package: %q", file.Path, parsed.Doc.Text())
					}
				}
				for _, spec := range parsed.Imports {
					switch {
					case spec.Path.Value == `"`+importPath+`"`:
						imported++
						if (spec.Name == nil) != (test.as == "") || spec.Name != nil && spec.Name.Name != test.as {
							t.Errorf("%s imports the package as %v, want %q", file.Path, spec.Name, test.as)
						}
					case strings.Contains(spec.Path.Value, "outboxgen"):
						t.Errorf("%s imports %s", file.Path, spec.Path.Value)
					}
				}
			}
			if documented != 1 || imported != len(files) {
				t.Errorf("%d files document the package and %d of %d import the other", documented, imported, len(files))
			}
		})
	}
}
