package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/tree"
)

func newGenerate() *cobra.Command {
	var spec string
	var dryRun, quiet bool
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Writes the package and its migrations, as far as they have changed",
		Long: "generate writes what the specification asks for and is not there yet, and removes\n" +
			"what it once asked for, with one line for each file. Files that it did not write are\n" +
			"left alone: when one is in the way, nothing at all is written.\n\n" +
			"A migration takes the number behind the highest in its directory, written as wide as\n" +
			"that one, and is never changed again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			result, err := generate(cmd, spec, dryRun)
			if err != nil {
				return err
			}
			if !quiet {
				reportChanges(cmd.OutOrStdout(), result.Changes)
			}
			for _, name := range result.Strays {
				fmt.Fprintf(cmd.ErrOrStderr(), "outboxgen: %s\n", stray(name))
			}
			if len(result.Missing) > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "outboxgen: the package needs modules that go.mod does not require yet; add them with\n\tgo get %s\n", getArguments(result.Missing))
			}
			return nil
		},
	}
	specFlag(cmd, &spec)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be written and removed, and do nothing")
	cmd.Flags().BoolVar(&quiet, "quiet", false, "do not name the files that were written and removed")
	return cmd
}

func newCheck() *cobra.Command {
	var spec string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Tells whether the generated files are those that the specification makes",
		Long: "check names every file that generate would write or remove, and every generated file\n" +
			"in the package's directory that no specification owns. It exits with 1 when there is one.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			result, err := generate(cmd, spec, true)
			if err != nil {
				return err
			}
			for _, c := range result.Changes {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", c.Path, findings[c.Kind])
			}
			for _, name := range result.Strays {
				fmt.Fprintln(cmd.OutOrStdout(), stray(name))
			}
			switch {
			case len(result.Changes) > 0:
				return attention("the generated files are not those that the specification makes: run outboxgen generate")
			case len(result.Strays) > 0:
				return attention("there are generated files that no specification makes: remove them")
			}
			return nil
		},
	}
	specFlag(cmd, &spec)
	return cmd
}

func specFlag(cmd *cobra.Command, spec *string) {
	cmd.Flags().StringVarP(spec, "file", "f", "", "the specification (default: outbox.yaml or outbox.yml in the working directory or above)")
}

func generate(cmd *cobra.Command, spec string, dryRun bool) (*generator.Result, error) {
	if spec == "" {
		var err error
		if spec, err = discover(); err != nil {
			return nil, err
		}
	}
	result, faults := generator.Generate(cmd.Context(), generator.Options{Spec: spec, DryRun: dryRun})
	if len(faults) > 0 {
		return nil, faultsError(faults)
	}
	return result, nil
}

func reportChanges(w io.Writer, changes []generator.Change) {
	for _, c := range changes {
		verb := "wrote"
		if c.Kind == tree.Remove {
			verb = "removed"
		}
		fmt.Fprintf(w, "%s %s\n", verb, c.Path)
	}
}

// findings say what check has found about a file that generate would change.
var findings = map[tree.ChangeKind]string{
	tree.Create: "missing",
	tree.Update: "stale, or edited by hand",
	tree.Remove: "orphan: the specification no longer makes it",
}

func stray(name string) string {
	return name + ": orphan: generated, but not by this specification; remove it by hand"
}

// getArguments are the arguments of go get for what is missing.
func getArguments(missing []generator.Requirement) string {
	var arguments []string
	for _, r := range missing {
		arguments = append(arguments, r.Package+"@"+r.Version)
	}
	return strings.Join(arguments, " ")
}
