package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldest is the first major version that the generated code supports.
const oldest = 15

// usualDirs are patterns of the directories where packages put the programs of
// the server, most of which are not on PATH.
var usualDirs = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                   // RHEL and Fedora, from the project's repository
	"/usr/libexec/postgresql*",                           // Alpine
	"/usr/lib/postgresql*/bin",                           // SUSE
	"/usr/lib64/postgresql*/bin",                         // Gentoo
	"/opt/homebrew/opt/postgresql*/bin",                  // Homebrew on Apple silicon
	"/usr/local/opt/postgresql*/bin",                     // Homebrew on Intel
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",     // Homebrew on Linux
	"/opt/local/lib/postgresql*/bin",                     // MacPorts
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
	"/Library/PostgreSQL/*/bin",                          // the installer of EDB
	"/usr/local/pgsql/bin",                               // built from source
	"/usr/local/bin",                                     // the BSDs
	"/usr/bin",                                           // Arch, Fedora
}

// finder finds the programs of a Postgres server. Its fields are what it reads
// of the world, so that a test can hide parts of it.
type finder struct {
	binDir     string // named by the user, then nothing else counts
	binDirFrom string // who named it, for the error
	path       string // list of directories, as in PATH
	usual      []string
	repository string // URL to download from, "" for the default
	cache      string // directory of downloads, "" for the user's cache directory
}

// find gives a directory that holds postgres and initdb.
func (f finder) find(ctx context.Context) (string, error) {
	if f.binDir != "" {
		dir, err := filepath.Abs(f.binDir)
		if err != nil {
			return "", err
		}
		if err := usable(ctx, dir); err != nil {
			return "", fmt.Errorf("%s must name a directory with the programs postgres and initdb of Postgres %d or later: %w", f.binDirFrom, oldest, err)
		}
		return dir, nil
	}
	var passed []string
	for _, dir := range f.candidates() {
		err := usable(ctx, dir)
		if err == nil {
			return dir, nil
		}
		// Most directories have nothing of Postgres, which is no news.
		if !errors.Is(err, os.ErrNotExist) {
			passed = append(passed, err.Error())
		}
	}
	dir, err := f.download(ctx)
	if err == nil {
		return dir, nil
	}
	if ctx.Err() != nil {
		// An interrupted search says nothing about what is there.
		return "", ctx.Err()
	}
	return "", f.notFound(passed, err)
}

func (f finder) notFound(passed []string, download error) error {
	var b strings.Builder
	fmt.Fprintf(&b, "looked for the programs postgres and initdb of Postgres %d or later\n", oldest)
	fmt.Fprintf(&b, "  on PATH (%s)\n  in %s\n", f.path, strings.Join(f.usual, ", "))
	for _, p := range passed {
		fmt.Fprintf(&b, "  passed over: %s\n", p)
	}
	fmt.Fprintf(&b, "  download: %v\n", download)
	fmt.Fprintf(&b, "To mend it, install Postgres (the server, not only its client), or name its directory in %s, a server in %s, or a repository to download from in %s",
		EnvBinDir, EnvDatabaseURL, EnvRepository)
	return fmt.Errorf("%w: %s", ErrNoPostgres, b.String())
}

// candidates lists PATH in its order, then the usual directories, those with
// the higher version first.
func (f finder) candidates() []string {
	var dirs []string
	for _, dir := range filepath.SplitList(f.path) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	var usual []string
	for _, pattern := range f.usual {
		// The only error is that of a malformed pattern.
		matches, _ := filepath.Glob(pattern)
		usual = append(usual, matches...)
	}
	slices.SortStableFunc(usual, func(a, b string) int { return versionIn(b) - versionIn(a) })
	return append(dirs, usual...)
}

var (
	number        = regexp.MustCompile(`\d+`)
	versionOutput = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)
)

// versionIn gives the last number in a path, 0 without one.
func versionIn(dir string) int {
	all := number.FindAllString(dir, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1])
	return n
}

// usable says what is wrong with dir; os.ErrNotExist when postgres is not in it.
func usable(ctx context.Context, dir string) error {
	for _, program := range []string{"postgres", "initdb"} {
		// LookPath also wants the file to be executable.
		if _, err := exec.LookPath(filepath.Join(dir, program)); err != nil {
			return err
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return fmt.Errorf("%s does not run: %w", filepath.Join(dir, "postgres"), err)
	}
	m := versionOutput.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("%s has an unknown version: %s", filepath.Join(dir, "postgres"), strings.TrimSpace(string(out)))
	}
	if major, _ := strconv.Atoi(string(m[1])); major < oldest {
		return fmt.Errorf("%s is of Postgres %d, which is too old", filepath.Join(dir, "postgres"), major)
	}
	return nil
}
