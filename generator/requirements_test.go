package generator

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/modfile"

	"github.com/outboxgen/outboxgen/generator/tree"
)

// What generate tells users to require is what the emitted package is tested
// with here.
func TestRequirementsAreThoseOfThisModule(t *testing.T) {
	content, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	goMod, err := modfile.Parse("go.mod", content, nil)
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]string{}
	for _, r := range goMod.Require {
		tested[r.Mod.Path] = r.Mod.Version
	}
	for _, r := range requirements {
		if tested[r.Module] != r.Version {
			t.Errorf("%s %s is required, %q is tested", r.Module, r.Version, tested[r.Module])
		}
	}
}

func TestMissingRequirements(t *testing.T) {
	for _, test := range []struct {
		name, goMod, source string
		want                []string
	}{
		{"nothing but the standard library", "", `import "context"`, nil},
		{"a package of a module", "", `import "github.com/jackc/pgx/v5/pgconn"`, []string{"github.com/jackc/pgx/v5"}},
		{"a module that is required", "require github.com/google/uuid v1.0.0", `import "github.com/google/uuid"`, nil},
		{"a module within another", "", `import "go.opentelemetry.io/otel/metric/noop"`, []string{"go.opentelemetry.io/otel/metric"}},
		{"a package beside a module within", "", `import "go.opentelemetry.io/otel/codes"`, []string{"go.opentelemetry.io/otel"}},
		{"a path that begins alike", "", `import "github.com/google/uuidx"`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/m\n"+test.goMod+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			place, faults := tree.Open(dir)
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			missing, faults := missingRequirements(place, tree.Wanted{Files: []tree.File{{Path: "box/a.gen.go", Content: []byte("package box\n" + test.source)}}})
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			var got []string
			for _, r := range missing {
				got = append(got, r.Module)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("missing modules (-want +got):\n%s", diff)
			}
		})
	}
}
