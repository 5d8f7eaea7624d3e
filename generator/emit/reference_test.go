package emit_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxgen/outboxgen/generator/emit"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/schema"
	"github.com/outboxgen/outboxgen/templates"
)

var update = flag.Bool("update", false, "record what is emitted instead of comparing it")

// readModel builds the model of a specification file.
func readModel(t testing.TB, file string) *model.Model {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return parseModel(t, string(source))
}

func parseModel(t testing.TB, source string) *model.Model {
	t.Helper()
	spec, faults := schema.Decode("outbox.yaml", []byte(source))
	if faults.HasErrors() {
		t.Fatalf("the specification has faults:\n%s", faults)
	}
	m, faults := model.Build(spec)
	if faults.HasErrors() {
		t.Fatalf("the specification has faults:\n%s", faults)
	}
	return m
}

// TestReferenceIsWhatIsEmitted holds the packages of the fixed files to what is
// emitted for the specification beside them: what they are compiled and tested
// with there is what every other package has in its place.
func TestReferenceIsWhatIsEmitted(t *testing.T) {
	const dir = "../../templates"
	m := readModel(t, filepath.Join(dir, "outbox/outbox.yaml"))
	files, err := emit.Files(m)
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		files[i].Path = "outbox/" + files[i].Path
	}
	kit, err := emit.TestKit(m, templates.TestKitImport)
	if err != nil {
		t.Fatal(err)
	}
	emitted := map[string]bool{}
	for _, file := range append(files, kit...) {
		if !file.Specific {
			continue
		}
		name := filepath.Join(dir, file.Path)
		emitted[name] = true
		if *update {
			if err := os.WriteFile(name, file.Content, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		have, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(string(have), string(file.Content)); diff != "" {
			t.Errorf("%s is not what is emitted; run this test with -update (-recorded +emitted):\n%s", file.Path, diff)
		}
	}
	recorded, err := filepath.Glob(filepath.Join(dir, "outbox*", "*.gen.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range recorded {
		if !emitted[name] {
			t.Errorf("%s is no longer emitted; remove it", name)
		}
	}
}
