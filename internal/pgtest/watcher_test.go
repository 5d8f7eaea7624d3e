//go:build unix

package pgtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ownerMode, in the environment of this test binary, makes it the owner of
// a server instead, one that ends in the given way.
const ownerMode = "OUTBOXGEN_PGTEST_OWNER"

// lifeline is a descriptor that the owner gets from the test and, since it does
// not know of it, passes on to all its processes. It is beyond those that the
// watcher and the server get assigned.
const lifeline = 9

func TestMain(m *testing.M) {
	if mode := os.Getenv(ownerMode); mode != "" {
		own(mode)
	}
	os.Exit(m.Run())
}

func own(mode string) {
	s, err := Start(context.Background(), Private())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	fmt.Fprintln(os.NewFile(lifeline, "lifeline"), s.URL())
	switch mode {
	case "panic":
		panic("as a test does")
	case "exit":
		os.Exit(0)
	default:
		select {}
	}
}

func TestNothingOutlivesTheOwner(t *testing.T) {
	for _, tc := range []struct {
		name, mode string
		kill       bool
		hangInitdb bool
	}{
		{name: "killed", mode: "wait", kill: true},
		{name: "killed while initdb runs", mode: "wait", kill: true, hangInitdb: true},
		{name: "panics", mode: "panic"},
		{name: "exits", mode: "exit"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var binDir string
			if tc.hangInitdb {
				binDir = hangingInitdb(t)
			}
			tmp := emptyTemp(t)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), ownerMode+"="+tc.mode)
			if tc.hangInitdb {
				cmd.Env = append(cmd.Env, EnvBinDir+"="+binDir)
			}
			var stderr strings.Builder
			cmd.Stderr = &stderr
			cmd.ExtraFiles = make([]*os.File, lifeline-3+1)
			cmd.ExtraFiles[lifeline-3] = w
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			w.Close()

			lines := bufio.NewReader(r)
			if line, err := lines.ReadString('\n'); err != nil {
				_ = cmd.Wait()
				t.Fatalf("the owner did not start: %q, %v\n%s", line, err, &stderr)
			}
			if left, err := os.ReadDir(tmp); !tc.hangInitdb && tc.kill && len(left) != 1 {
				t.Fatalf("%v in TMPDIR while the server runs (%v), want its directory", left, err)
			}
			if tc.kill {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			// The pipe ends when the last process that has it is gone: the
			// owner, the watcher, and all of Postgres.
			if _, err := io.Copy(io.Discard, lines); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			wantEmpty(t, tmp)
		})
	}
}

// hangingInitdb gives a directory of programs whose initdb says on the lifeline
// that it runs, and never ends.
func hangingInitdb(t *testing.T) string {
	t.Helper()
	bin, err := newConfig().finder.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := openDir(t)
	if err := os.Symlink(filepath.Join(bin, "postgres"), filepath.Join(dir, "postgres")); err != nil {
		t.Fatal(err)
	}
	script := strings.Join([]string{"#!/bin/sh", fmt.Sprintf("echo running >&%d", lifeline), "exec tail -f /dev/null", ""}, "\n")
	if err := os.WriteFile(filepath.Join(dir, "initdb"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
