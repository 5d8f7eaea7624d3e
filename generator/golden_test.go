package generator

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

// generated is every file that a specification without a lock gives, by its
// path relative to the specification.
func generated(t *testing.T, spec string) map[string]string {
	t.Helper()
	in, faults := load(spec)
	if faults.HasErrors() {
		t.Fatalf("the specification has faults:\n%s", faults)
	}
	wanted, faults := render(in)
	if faults.HasErrors() {
		t.Fatalf("unexpected faults:\n%s", faults)
	}
	files := map[string]string{wanted.Last.Path: string(wanted.Last.Content)}
	for _, file := range wanted.Files {
		files[file.Path] = string(file.Content)
	}
	return files
}

func TestGolden(t *testing.T) {
	for _, theme := range themes(t) {
		t.Run(theme, func(t *testing.T) {
			dir := filepath.Join(goldenDir, theme)
			got := generated(t, filepath.Join(dir, "outbox.yaml"))
			if *update {
				record(t, dir, got)
			}
			want := recorded(t, dir)
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
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || name == "outbox.yaml" {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		files[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// record replaces what is recorded of a theme.
func record(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name := range recorded(t, dir) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
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
