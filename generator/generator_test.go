package generator

import (
	"context"
	"os"
	"path/filepath"
	"strings"
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

// TestOTelComesAndGoesWithItsFile and leaves everything else as it is.
func TestOTelComesAndGoesWithItsFile(t *testing.T) {
	file := specification(t, small)
	otel := filepath.Join(filepath.Dir(file), "gen", "box", "otel.gen.go")
	lock := filepath.Join(filepath.Dir(file), "outboxgen.lock")
	if _, faults := Generate(t.Context(), Options{Spec: file}); len(faults) > 0 {
		t.Fatal(faults)
	}
	for _, step := range []struct {
		name, text string
		kind       tree.ChangeKind
		missing    []string
	}{
		{"turned on", small + "emit: {otel: true}\n", tree.Create, []string{
			"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/trace",
		}},
		{"turned off", small + "emit: {otel: false}\n", tree.Remove, nil},
	} {
		if err := os.WriteFile(file, []byte(step.text), 0o644); err != nil {
			t.Fatal(err)
		}
		result, faults := Generate(t.Context(), Options{Spec: file})
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		want := &Result{
			Changes: []Change{{Kind: step.kind, Path: otel}, {Kind: tree.Update, Path: lock}},
			Missing: result.Missing,
		}
		if diff := cmp.Diff(want, result); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
		var missing []string
		for _, r := range result.Missing {
			if strings.HasPrefix(r.Module, "go.opentelemetry.io/") {
				missing = append(missing, r.Module)
			}
		}
		if diff := cmp.Diff(step.missing, missing); diff != "" {
			t.Errorf("%s: missing modules (-want +got):\n%s", step.name, diff)
		}
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
