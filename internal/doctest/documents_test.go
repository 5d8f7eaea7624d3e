package doctest

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/schema"
)

// root is the directory of this repository.
const root = "../.."

// documents are the paths of the documents, relative to root.
func documents(t *testing.T) []string {
	t.Helper()
	names := []string{"README.md", "CHANGELOG.md"}
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range docs {
		names = append(names, filepath.Join("docs", filepath.Base(name)))
	}
	return names
}

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(content), "\r\n", "\n")
}

func TestDocuments(t *testing.T) {
	for _, name := range documents(t) {
		t.Run(name, func(t *testing.T) {
			all, err := blocks(read(t, name))
			if err != nil {
				t.Fatal(err)
			}
			reader := &reader{document: t}
			for _, b := range all {
				if !reader.follow(t, b) {
					t.Fatalf("%s:%d: the block of %s does not hold", name, b.line, b.language)
				}
			}
		})
	}
}

// reader follows a document from its beginning to its end.
type reader struct {
	document *testing.T
	module   string // a directory that lasts as long as document; empty until a command needs it
	clone    string
	session  *pgx.Conn // nil until SQL needs it
}

// follow does what a block asks for, and reports whether it holds.
func (r *reader) follow(t *testing.T, b block) bool {
	return t.Run(b.language, func(t *testing.T) {
		switch b.language {
		case "sh", "console":
			r.run(t, b)
		case "go":
			if b.about == "" {
				t.Fatal("Go must be quoted from a file that is compiled: name it behind the language")
			}
			quote(t, b)
		case "yaml":
			if b.about != "" {
				quote(t, b)
				return
			}
			specifies(t, b.lines)
		case "sql":
			runSQL(t, r.inDatabase(t), b.text())
		case "", "text", "json":
		default:
			t.Fatalf("the language %q is none of sh, console, go, yaml, text, sql and json: nothing checks it", b.language)
		}
	})
}

func quote(t *testing.T, b block) {
	if err := quoted(b.lines, read(t, b.about)); err != nil {
		t.Errorf("%s: %v", b.about, err)
	}
}

// specifies reports what is wrong with a specification, or with a part of one:
// a part must be right in one of the places that a specification has for it.
func specifies(t *testing.T, lines []string) {
	whole := strings.Join(lines, "\n") + "\n"
	if slices.Contains(lines, "version: 1") {
		if faults := generate(t, whole); len(faults) > 0 {
			t.Error(faults)
		}
		return
	}
	for _, part := range alternatives(lines) {
		var all schema.Diagnostics
		right := false
		for _, place := range places {
			indented := strings.ReplaceAll("\n"+part, "\n", "\n"+place.indent)
			faults := generate(t, place.before+indented)
			right = right || len(faults) == 0
			all = append(all, faults...)
		}
		if !right {
			t.Errorf("this is right nowhere in a specification:\n%s\n%v", part, all)
		}
	}
}

// places are specifications around a part that is missing.
var places = []struct{ before, indent string }{
	{before: `version: 1
package: shop
out: internal/shop
payloads: {note: {fields: {}}}
destinations: {mailer: {accepts: [note], idempotent: true}}`},
	{before: `version: 1
package: shop
out: internal/shop
destinations: {mailer: {accepts: [note], idempotent: true}}
payloads:
  note:`, indent: "    "},
	{before: `version: 1
package: shop
out: internal/shop
types:
  money: {fields: {amount: decimal, currency: {type: string}}}
payloads:
  payment_capture: {fields: {payment_id: uuid, account_id: string, amount: money}}
  payment_refund: {fields: {refund_id: uuid, payment_id: uuid, account_id: string, amount: money}}
destinations:
  payments:
    accepts: [payment_capture, payment_refund]
    idempotent: true`, indent: "    "},
}

// generate returns the faults of a specification.
func generate(t *testing.T, specification string) schema.Diagnostics {
	dir := t.TempDir()
	file := filepath.Join(dir, "outbox.yaml")
	write(t, filepath.Join(dir, "go.mod"), "module example.com/shop\n")
	write(t, file, specification)
	_, faults := generator.Generate(t.Context(), generator.Options{Spec: file, DryRun: true})
	return faults
}

func (r *reader) run(t *testing.T, b block) {
	var dir string
	switch b.about {
	case "":
		dir = r.inModule(t)
	case "clone":
		dir = r.inClone(t)
	default:
		t.Fatalf("%q is no place to run commands in", b.about)
	}
	if b.language == "console" {
		all, err := steps(b.lines)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if got := shell(t, dir, s.command); !prints(s.output, got) {
				t.Errorf("%s prints\n%s\nand not, as shown,\n%s", s.command, got, strings.Join(s.output, "\n"))
			}
		}
		return
	}
	if script := b.text(); script == "make test\n" {
		isWhatCIRuns(t, dir, strings.TrimSpace(script))
	} else {
		shell(t, dir, script)
	}
}

// isWhatCIRuns looks at the command that this test is itself a part of.
func isWhatCIRuns(t *testing.T, dir, command string) {
	if !slices.Contains(strings.Split(read(t, ".ci/run"), "\n"), command) {
		t.Errorf(".ci/run does not run %s", command)
	}
	if plan := shell(t, dir, command+" --dry-run"); !strings.Contains(plan, "go test") {
		t.Errorf("%s runs no tests:\n%s", command, plan)
	}
}

// shell runs a script, of which every command must succeed, and returns what it
// prints.
func shell(t *testing.T, dir, script string) string {
	t.Helper()
	settings, err := environment()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), settings...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// environment is what scripts see that readers do not.
var environment = sync.OnceValues(func() ([]string, error) {
	out, err := exec.Command("go", "env", "-json", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return nil, err
	}
	var have struct{ GOMODCACHE, GOPROXY string }
	if err := json.Unmarshal(out, &have); err != nil {
		return nil, err
	}
	return []string{
		"GOWORK=off",
		// The make that runs this test is none of the reader's: under another,
		// make prints the directories that it enters.
		"MAKELEVEL=", "MAKEFLAGS=",
		// Modules come from the cache, and from elsewhere only when they are not
		// there. This one comes from the working tree and is looked for nowhere.
		"GOPROXY=file://" + filepath.ToSlash(have.GOMODCACHE) + "/cache/download," + have.GOPROXY,
		"GOPRIVATE=github.com/outboxgen",
		"GOVCS=github.com/outboxgen:off",
	}, nil
})

// inModule is a module such as go mod init makes, with another for its tools,
// but that both take outboxgen from the working tree.
func (r *reader) inModule(t *testing.T) string {
	if r.module != "" {
		return r.module
	}
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	r.module = r.document.TempDir()
	for dir, name := range map[string]string{".": "example.com/shop", "tools": "example.com/shop/tools"} {
		dir = filepath.Join(r.module, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "go.mod"), "module "+name+"\n\ngo 1.24.0\n\nreplace github.com/outboxgen/outboxgen => "+here+"\n")
		// What the checksum database would say of the modules in the cache.
		write(t, filepath.Join(dir, "go.sum"), read(t, "go.sum"))
	}
	return r.module
}

// inClone is a copy of the working tree.
func (r *reader) inClone(t *testing.T) string {
	if r.clone != "" {
		return r.clone
	}
	r.clone = r.document.TempDir()
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		copied := filepath.Join(r.clone, below)
		switch {
		case entry.IsDir() && entry.Name() == ".git":
			return fs.SkipDir
		case entry.IsDir():
			return os.MkdirAll(copied, 0o755)
		case !entry.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return os.WriteFile(copied, content, info.Mode().Perm())
	})
	if err != nil {
		t.Fatal(err)
	}
	return r.clone
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	for _, name := range documents(t) {
		document := read(t, name)
		for _, link := range links(document) {
			if strings.Contains(link, "://") {
				continue
			}
			file, anchor, _ := strings.Cut(link, "#")
			target := filepath.Join(filepath.Dir(name), file)
			if file == "" {
				target = name
			}
			if _, err := os.Stat(filepath.Join(root, target)); errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s links to %s, which is not there", name, link)
				continue
			}
			if anchor != "" && !anchors(read(t, target))[anchor] {
				t.Errorf("%s links to %s, which has no such heading", name, link)
			}
		}
	}
}

// TestProofsExist finds every test by which a document shows a promise kept.
func TestProofsExist(t *testing.T) {
	there := testFunctions(t)
	named := 0
	for _, name := range documents(t) {
		for _, test := range tests(read(t, name)) {
			named++
			if !there[test] {
				t.Errorf("%s names the test %s, which is not there", name, test)
			}
		}
	}
	if named == 0 {
		t.Error("no document names a test")
	}
}

// testFunctions are the names of the test functions of this repository.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "testdata") {
			return fs.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declaration := range file.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv == nil {
				names[f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
