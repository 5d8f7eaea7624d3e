// Command outboxgen generates a typed transactional outbox for Postgres, and
// its migrations, from a specification.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/schema"
)

// The exit codes, which scripts may rely on.
const (
	exitFine        = 0
	exitAttention   = 1 // the specification or its outputs need attention
	exitEnvironment = 2 // usage or environment
	exitBug         = 3 // a bug in outboxgen
)

const reports = "https://github.com/outboxgen/outboxgen/issues"

func main() { os.Exit(run(newRoot(), os.Args[1:], os.Stdout, os.Stderr)) }

// run runs a command: results go to stdout, errors to stderr, and the exit code
// is returned.
func run(root *cobra.Command, args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		if v := recover(); v != nil {
			code = exitBug
			fmt.Fprintf(stderr, "outboxgen: panic: %v\n\n%s\n", v, debug.Stack())
			fmt.Fprintf(stderr, "This is a bug in outboxgen %s. Please report it, with the lines above, at\n%s\n", version(), reports)
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitFine
	}
	if faults := (faultsError)(nil); errors.As(err, &faults) {
		fmt.Fprintln(stderr, faults)
		return exitCode(faults, stderr)
	}
	fmt.Fprintf(stderr, "outboxgen: %v\n", err)
	if finding := attention(""); errors.As(err, &finding) {
		return exitAttention
	}
	return exitEnvironment
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "outboxgen",
		Short: "Generates a typed transactional outbox for Postgres from a specification",
		Long: "outboxgen reads a specification, outbox.yaml, and writes a Go package that holds a\n" +
			"typed transactional outbox for Postgres, with the migrations of its tables.\n\n" +
			"Exit codes: 0 fine, 1 the specification or its outputs need attention, 2 usage or\n" +
			"environment, 3 a bug in outboxgen.",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(newGenerate(), newCheck(), newInit(), newVersion())
	return root
}

// faultsError carries diagnostics to run.
type faultsError schema.Diagnostics

func (f faultsError) Error() string { return schema.Diagnostics(f).String() }

// attention says that outputs need somebody's attention.
type attention string

func (a attention) Error() string { return string(a) }

// exitCode is the gravest that faults call for.
func exitCode(faults faultsError, stderr io.Writer) int {
	code := exitAttention
	for _, f := range faults {
		switch {
		case f.Code == generator.CodeBug:
			fmt.Fprintf(stderr, "This is a bug in outboxgen %s. Please report it, with the specification, at\n%s\n", version(), reports)
			return exitBug
		case strings.HasPrefix(string(f.Code), "OBX5"):
			code = exitEnvironment
		}
	}
	return code
}
