package generator

import (
	"os"
	"testing"

	"golang.org/x/mod/modfile"
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
