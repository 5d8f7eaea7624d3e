//go:build unix

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakePrograms makes a directory with programs that only tell their version.
func fakePrograms(t *testing.T, dir, version string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s'\n", version)
	for _, program := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// emptyRepository is a repository that has nothing.
func emptyRepository(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	return server.URL
}

func TestFind(t *testing.T) {
	tmp := t.TempDir()
	dir := func(name string) string { return filepath.Join(tmp, name) }
	old := fakePrograms(t, dir("old"), "14.9")
	onPath := fakePrograms(t, dir("path"), "15.1")
	named := fakePrograms(t, dir("named"), "16.1 (Debian 16.1-1)")
	fakePrograms(t, dir("usual/9/bin"), "9.6")
	fakePrograms(t, dir("usual/16/bin"), "16.0")
	newest := fakePrograms(t, dir("usual/17/bin"), "17beta1")
	usual := []string{dir("nothing/*/bin"), dir("usual/*/bin")}
	client := dir("client")
	if err := os.Mkdir(client, 0o755); err != nil {
		t.Fatal(err)
	}
	path := func(dirs ...string) string { return strings.Join(dirs, string(os.PathListSeparator)) }

	for _, tc := range []struct {
		name   string
		finder finder
		want   string
	}{
		{"a named directory comes before PATH", finder{binDir: named, path: onPath, usual: usual}, named},
		{"PATH comes before the usual directories", finder{path: path(client, onPath), usual: usual}, onPath},
		{"an old version on PATH is passed over", finder{path: path(old, onPath), usual: usual}, onPath},
		{"a relative directory on PATH is not looked at", finder{path: path(".", "", onPath), usual: usual}, onPath},
		{"of the usual directories the newest version wins", finder{path: client, usual: usual}, newest},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.finder.find(t.Context())
			if err != nil || got != tc.want {
				t.Errorf("find() = %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestFind_NamedDirectoryIsNotPassedOver(t *testing.T) {
	tmp := t.TempDir()
	onPath := fakePrograms(t, filepath.Join(tmp, "path"), "15.1")
	for name, binDir := range map[string]string{
		"which is empty":       t.TempDir(),
		"which is not there":   filepath.Join(tmp, "missing"),
		"with an old version":  fakePrograms(t, filepath.Join(tmp, "old"), "14.9"),
		"with another program": fakePrograms(t, filepath.Join(tmp, "other"), "of sorts"),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := finder{binDir: binDir, binDirFrom: EnvBinDir, path: onPath}.find(t.Context())
			if err == nil {
				t.Fatal("find() gave no error")
			}
			for _, want := range []string{EnvBinDir, binDir, "Postgres 15 or later"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
			if errors.Is(err, ErrNoPostgres) {
				t.Error("the error is ErrNoPostgres, by which a wrong setting would skip every test")
			}
		})
	}
}

func TestFind_NothingThere(t *testing.T) {
	tmp := t.TempDir()
	old := fakePrograms(t, filepath.Join(tmp, "old"), "14.9")
	repository := emptyRepository(t)
	cache := filepath.Join(tmp, "cache")

	_, err := finder{path: old, usual: []string{"/no/such/*/bin"}, repository: repository, cache: cache}.find(t.Context())
	if !errors.Is(err, ErrNoPostgres) {
		t.Fatalf("find() = %v, want ErrNoPostgres", err)
	}
	for _, want := range []string{
		"PATH (" + old + ")", "/no/such/*/bin", "of Postgres 14, which is too old", "download: no version found",
		"install Postgres", EnvBinDir, EnvDatabaseURL, EnvRepository,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 0 {
		t.Errorf("the failed download left %v in the cache (%v)", left, err)
	}
}

func TestFind_Interrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	onPath := fakePrograms(t, t.TempDir(), "15.1")
	_, err := finder{path: onPath, repository: emptyRepository(t), cache: t.TempDir()}.find(ctx)
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrNoPostgres) {
		t.Errorf("find() = %v, want context.Canceled alone", err)
	}
}

func TestUsualDirsAreWellFormed(t *testing.T) {
	for _, pattern := range usualDirs {
		if _, err := filepath.Glob(pattern); err != nil || !filepath.IsAbs(pattern) {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}
