package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/tree"
	"github.com/outboxgen/outboxgen/schema"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"outboxgen": main}) }

// The scripts are the command as a user meets it. They run without a network:
// modules come from the cache that built this test.
func TestScripts(t *testing.T) {
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	caches, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	build, modules, ok := strings.Cut(strings.TrimSpace(string(caches)), "\n")
	if !ok {
		t.Fatalf("go env says %q", caches)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join(repository, "testdata", "script"),
		Setup: func(env *testscript.Env) error {
			env.Setenv("REPOSITORY", repository)
			env.Setenv("GOCACHE", strings.TrimSpace(build))
			env.Setenv("GOMODCACHE", strings.TrimSpace(modules))
			env.Setenv("GOPROXY", "off")
			env.Setenv("GOSUMDB", "off")
			env.Setenv("GOFLAGS", "")
			env.Setenv("GOTOOLCHAIN", "local")
			env.Setenv("GOWORK", "off")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":  exits,
			"killed": killed,
			"sub":    sub,
		},
	})
}

// exits runs outboxgen and checks the code that it exits with:
//
//	exits 2 generate -f absent.yaml
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code argument...")
	}
	code := "0"
	if err := ts.Exec("outboxgen", args[1:]...); err != nil {
		code = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if code != args[0] {
		ts.Fatalf("exit code %s, want %s", code, args[0])
	}
}

// killed runs outboxgen and kills it as soon as a file is there. Where that
// comes too late, the run has ended by itself, which the next must bear as well.
//
//	killed box/a.gen.go generate
func killed(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: killed file argument...")
	}
	program, err := exec.LookPath("outboxgen")
	ts.Check(err)
	cmd := exec.Command(program, args[1:]...)
	cmd.Dir = ts.MkAbs(".")
	ts.Check(cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			ts.Check(err)
			ts.Logf("outboxgen ended before it was killed")
			return
		default:
		}
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			ts.Logf("kill: %v; outboxgen: %v", cmd.Process.Kill(), <-ended)
			return
		}
	}
}

// sub replaces a text, which must be there, in a file:
//
//	sub outbox.yaml 'table: a' 'table: b'
func sub(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: sub file old new")
	}
	content := ts.ReadFile(args[0])
	unquote := strings.NewReplacer(`\n`, "\n").Replace
	changed := strings.Replace(content, unquote(args[1]), unquote(args[2]), 1)
	if changed == content {
		ts.Fatalf("%s has no %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(changed), 0o644))
}

func TestExitCodes(t *testing.T) {
	fails := func(err error) func() error { return func() error { return err } }
	fault := func(codes ...schema.Code) func() error {
		var faults faultsError
		for _, code := range codes {
			faults = append(faults, schema.Diagnostic{Code: code, Message: "broken"})
		}
		return fails(faults)
	}
	tests := []struct {
		name string
		run  func() error
		want int
		says string
	}{
		{"nothing is wrong", fails(nil), exitFine, ""},
		{"the specification is wrong", fault("OBX1101"), exitAttention, "error OBX1101: broken"},
		{"the environment is wrong too", fault("OBX4001", tree.CodeUnwritable), exitEnvironment, "error OBX5002: broken"},
		{"outboxgen is wrong too", fault(tree.CodeUnwritable, generator.CodeBug), exitBug, "Please report it"},
		{"outputs need attention", fails(attention("look")), exitAttention, "outboxgen: look\n"},
		{"anything else", fails(os.ErrPermission), exitEnvironment, "outboxgen: permission denied\n"},
		{"a panic", func() error { panic("lost") }, exitBug, "outboxgen: panic: lost\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := &cobra.Command{
				SilenceErrors: true, SilenceUsage: true,
				RunE: func(*cobra.Command, []string) error { return test.run() },
			}
			var stdout, stderr bytes.Buffer
			if got := run(root, []string{}, &stdout, &stderr); got != test.want {
				t.Errorf("exit code %d, want %d", got, test.want)
			}
			if !strings.Contains(stderr.String(), test.says) || stdout.Len() > 0 {
				t.Errorf("stderr %q, stdout %q; want %q on stderr", stderr.String(), stdout.String(), test.says)
			}
			if test.want == exitBug && !strings.Contains(stderr.String(), reports) {
				t.Errorf("stderr does not say where to report: %q", stderr.String())
			}
		})
	}
}
