package main

import (
	_ "embed"
	"fmt"
	"path"

	"github.com/spf13/cobra"
	"golang.org/x/mod/modfile"

	"github.com/outboxgen/outboxgen/generator/tree"
	"github.com/outboxgen/outboxgen/schema"
)

// codeExists is the fault of a file that init would write over.
const codeExists schema.Code = "OBX4008"

// The files that init writes. That of Go has another suffix here, so that it is
// no package of outboxgen's.
var (
	//go:embed starter/outbox.yaml
	starterSpec []byte
	//go:embed starter/doc.go.txt
	starterDoc []byte
	//go:embed starter/gitattributes
	starterAttributes []byte
)

// starterOut is the directory of the package in starter/outbox.yaml.
const starterOut = "internal/outbox"

func newInit() *cobra.Command {
	return &cobra.Command{
		Use:   "init [dir]",
		Short: "Writes a specification to start from",
		Long: "init writes a specification into dir (default: the working directory), and, where that\n" +
			"puts the package, a doc.go by which go generate runs outboxgen and a .gitattributes by\n" +
			"which reviews fold generated files away. It writes over nothing.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			place, faults := tree.Open(dir)
			if len(faults) > 0 {
				return faultsError(faults)
			}
			plan, faults := planStarter(place)
			if len(faults) == 0 {
				faults = plan.Commit(cmd.Context())
			}
			if len(faults) > 0 {
				faults.Sort()
				return faultsError(faults)
			}
			for _, c := range plan.Changes {
				fmt.Fprintf(cmd.OutOrStdout(), "wrote %s\n", place.Shown(c.Path))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "\nNow change %s to what you send, and run\n\tgo get -tool %s/cmd/outboxgen@latest\n\tgo generate %s\n",
				place.Shown(spellings[0]), modulePath, path.Join(modfile.ModulePath(place.GoMod), place.FromRoot(starterOut)))
			return nil
		},
	}
}

// planStarter plans the files that init writes, and refuses those that exist.
func planStarter(place *tree.Place) (*tree.Plan, schema.Diagnostics) {
	wanted := tree.Wanted{
		Files: []tree.File{
			{Path: path.Join(starterOut, ".gitattributes"), Content: starterAttributes},
			{Path: path.Join(starterOut, "doc.go"), Content: starterDoc},
		},
		Last: tree.File{Path: spellings[0], Content: starterSpec},
	}
	names := []string{spellings[1], wanted.Last.Path}
	for _, f := range wanted.Files {
		names = append(names, f.Path)
	}
	var faults schema.Diagnostics
	for _, name := range names {
		content, refused := place.Read(name)
		faults = append(faults, refused...)
		if content != nil {
			faults = append(faults, schema.Diagnostic{
				Code: codeExists, Pos: schema.Pos{File: place.Shown(name)},
				Message: "the file exists, and init writes over nothing",
			})
		}
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return place.Plan(wanted)
}
