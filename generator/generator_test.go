package generator

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxgen/outboxgen/generator/tree"
)

const small = `version: 1
package: box
out: gen/box
payloads: {paid: {fields: {}}}
destinations: {ledger: {accepts: [paid], idempotent: true}}
`

// specification writes a specification into a module of its own.
func specification(t *testing.T, text string) (file string) {
	t.Helper()
	dir := t.TempDir()
	file = filepath.Join(dir, "outbox.yaml")
	for name, content := range map[string]string{file: text, filepath.Join(dir, "go.mod"): "module example.com/m\n"} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func TestDryRunSaysWhatARunDoes(t *testing.T) {
	file := specification(t, small)
	announced, faults := Generate(context.Background(), Options{Spec: file, DryRun: true})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if entries, err := os.ReadDir(filepath.Dir(file)); err != nil || len(entries) != 2 {
		t.Fatalf("a dry run has left %v, %v", entries, err)
	}
	done, faults := Generate(context.Background(), Options{Spec: file})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if diff := cmp.Diff(announced, done); diff != "" {
		t.Errorf("results (-announced +done):\n%s", diff)
	}
	for _, c := range done.Changes {
		if _, err := os.Stat(c.Path); c.Kind != tree.Create || err != nil {
			t.Errorf("%v is not there: %v", c, err)
		}
	}
	again, faults := Generate(context.Background(), Options{Spec: file})
	if len(faults) > 0 || len(again.Changes) > 0 {
		t.Errorf("a second run does %v, %v", again.Changes, faults)
	}
}

func TestOneCauseIsReportedOnce(t *testing.T) {
	file := specification(t, small)
	dir := filepath.Dir(file)
	if err := os.WriteFile(filepath.Join(dir, "gen"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, faults := Generate(context.Background(), Options{Spec: file})
	if len(faults) != 1 || faults[0].Code != tree.CodeNotDir || faults[0].Pos.File != filepath.Join(dir, "gen") {
		t.Errorf("got %v, want one %s at gen, which is in the way of every file", faults, tree.CodeNotDir)
	}
}

func TestCancelledRunIsCompletedByTheNext(t *testing.T) {
	file := specification(t, small)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, faults := Generate(ctx, Options{Spec: file}); len(faults) != 1 || faults[0].Code != tree.CodeUnwritable {
		t.Fatalf("got %v, want %s", faults, tree.CodeUnwritable)
	}
	result, faults := Generate(context.Background(), Options{Spec: file})
	if len(faults) > 0 || len(result.Changes) == 0 {
		t.Errorf("the next run: %v, %v", result, faults)
	}
}
