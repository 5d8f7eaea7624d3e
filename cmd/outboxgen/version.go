package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Prints the version of outboxgen",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "outboxgen %s\n", version())
		},
	}
}

// modulePath is how go.mod files name outboxgen.
const modulePath = "github.com/outboxgen/outboxgen"

// version is the version of the module that the command was built from:
// "(devel)" when that was a working tree.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Path == modulePath && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
