package generator_test

import (
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxgen/outboxgen/generator"
)

var update = flag.Bool("update", false, "record what is generated instead of comparing it")

const goldenDir = "../testdata/golden"

func themes(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// generated is every file that a specification gives in a module of its own, by
// its path relative to the specification.
func generated(t *testing.T, spec string) map[string]string {
	t.Helper()
	source, err := os.ReadFile(spec)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// The module's path is that of the theme in this one, so that what is
	// recorded can be compiled where it lies.
	module := "github.com/outboxgen/outboxgen/testdata/golden/" + filepath.Base(filepath.Dir(spec))
	given := map[string]string{"go.mod": "module " + module + "\n\ngo 1.24\n", "outbox.yaml": string(source)}
	write(t, dir, given)
	if _, faults := generator.Generate(t.Context(), generator.Options{Spec: filepath.Join(dir, "outbox.yaml")}); faults.HasErrors() {
		t.Fatalf("unexpected faults:\n%s", faults)
	}
	files := read(t, dir)
	for name := range given {
		delete(files, name)
	}
	return files
}

func TestGolden(t *testing.T) {
	for _, theme := range themes(t) {
		t.Run(theme, func(t *testing.T) {
			dir := filepath.Join(goldenDir, theme)
			got := generated(t, filepath.Join(dir, "outbox.yaml"))
			want := recorded(t, dir)
			if *update {
				for name := range want {
					if err := os.Remove(filepath.Join(dir, name)); err != nil {
						t.Fatal(err)
					}
				}
				write(t, dir, got)
				return
			}
			for name, content := range got {
				if recorded, ok := want[name]; !ok {
					t.Errorf("%s is not recorded", name)
				} else if diff := cmp.Diff(recorded, content); diff != "" {
					t.Errorf("%s (-recorded +generated):\n%s", name, diff)
				}
			}
			for name := range want {
				if _, ok := got[name]; !ok {
					t.Errorf("%s is not generated", name)
				}
			}
		})
	}
}

// recorded is every file of a theme but its specification.
func recorded(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := read(t, dir)
	delete(files, "outbox.yaml")
	return files
}

// read is every file below a directory, by its slash-separated path.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, name)
		files[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGoldenPackagesAreSound compiles and vets what is recorded. The packages
// are named one by one, since ./... passes testdata by.
func TestGoldenPackagesAreSound(t *testing.T) {
	var packages []string
	for _, theme := range themes(t) {
		for name := range recorded(t, filepath.Join(goldenDir, theme)) {
			if filepath.Base(name) == "outbox.gen.go" {
				packages = append(packages, "./"+filepath.ToSlash(filepath.Join(goldenDir, theme, filepath.Dir(name))))
			}
		}
	}
	if len(packages) != len(themes(t)) {
		t.Errorf("%d themes have these packages: %s", len(themes(t)), packages)
	}
	slices.Sort(packages)
	command := exec.Command("go", append([]string{"vet"}, packages...)...)
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(command.Args, " "), err, output)
	}
}
