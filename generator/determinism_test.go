package generator_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxgen/outboxgen/generator/contract"
	"github.com/outboxgen/outboxgen/generator/emit"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/schema"
)

// TestSameBytesEverywhere makes everything of the richest themes twenty times, under
// what the output of generators is known to depend on. That the disk gets the
// same bytes wherever it is, TestGolden shows.
func TestSameBytesEverywhere(t *testing.T) {
	environments := []struct {
		behaviour string
		enter     func(t *testing.T)
	}{
		{"one processor", func(t *testing.T) { useProcessors(t, 1) }},
		{"eight processors", func(t *testing.T) { useProcessors(t, 8) }},
		{"another time zone", func(t *testing.T) {
			local := time.Local
			time.Local = time.FixedZone("far", 13*60*60)
			t.Cleanup(func() { time.Local = local })
		}},
		{"another working directory", func(t *testing.T) { t.Chdir(t.TempDir()) }},
	}
	for _, theme := range []string{"destinations", "names", "types"} {
		t.Run(theme, func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join(goldenDir, theme, "outbox.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			first := everything(t, "outbox.yaml", source)
			for _, environment := range environments {
				t.Run(environment.behaviour, func(t *testing.T) {
					environment.enter(t)
					for run := range 5 {
						file := fmt.Sprintf("/place %d/outbox.yaml", run)
						if diff := cmp.Diff(first, everything(t, file, source)); diff != "" {
							t.Fatalf("other bytes (-first +now):\n%s", diff)
						}
					}
				})
			}
		})
	}
}

func useProcessors(t *testing.T, n int) {
	t.Helper()
	before := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// everything is all that is made of a specification before the disk is looked at.
func everything(t *testing.T, file string, source []byte) map[string]string {
	t.Helper()
	spec, faults := schema.Decode(file, source)
	if faults.HasErrors() {
		t.Fatalf("the specification has faults:\n%s", faults)
	}
	m, faults := model.Build(spec)
	if faults.HasErrors() {
		t.Fatalf("the specification has faults:\n%s", faults)
	}
	files, err := emit.Files(m)
	if err != nil {
		t.Fatal(err)
	}
	up, err := emit.TablesUp(m)
	if err != nil {
		t.Fatal(err)
	}
	down, err := emit.TablesDown(m)
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]string{"up.sql": up, "down.sql": down, contract.FileName: string(contract.Describe(m).Bytes())}
	for _, f := range files {
		made[f.Path] = string(f.Content)
	}
	return made
}
