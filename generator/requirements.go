package generator

import (
	"go/parser"
	"go/token"
	"path"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/outboxgen/outboxgen/generator/tree"
	"github.com/outboxgen/outboxgen/schema"
)

// Requirement is a module that an emitted package imports.
type Requirement struct {
	Module  string
	Package string // the package of it that go get has to name, so that what it needs in turn is there too
	Version string // the lowest that emitted packages are tested with
}

// requirements are the modules that emitted packages may import, by path.
var requirements = []Requirement{
	{Module: "github.com/google/uuid", Package: "github.com/google/uuid", Version: "v1.6.0"},
	{Module: "github.com/jackc/pgx/v5", Package: "github.com/jackc/pgx/v5/pgxpool", Version: "v5.7.6"},
	{Module: "github.com/shopspring/decimal", Package: "github.com/shopspring/decimal", Version: "v1.4.0"},
	{Module: "go.opentelemetry.io/otel", Package: "go.opentelemetry.io/otel", Version: "v1.41.0"},
	{Module: "go.opentelemetry.io/otel/metric", Package: "go.opentelemetry.io/otel/metric", Version: "v1.41.0"},
	{Module: "go.opentelemetry.io/otel/trace", Package: "go.opentelemetry.io/otel/trace", Version: "v1.41.0"},
}

// missingRequirements are the modules that wanted's Go files import and that
// the module at place does not require.
func missingRequirements(place *tree.Place, wanted tree.Wanted) ([]Requirement, schema.Diagnostics) {
	goMod, err := modfile.ParseLax("go.mod", place.GoMod, nil)
	if err != nil {
		return nil, schema.Diagnostics{{
			Code: tree.CodeUnreadable, Pos: schema.Pos{File: place.GoModFile()}, Message: err.Error(),
		}}
	}
	have := map[string]bool{}
	for _, r := range goMod.Require {
		have[r.Mod.Path] = true
	}
	imported := map[string]bool{} // by the module's path
	for _, f := range wanted.Files {
		if path.Ext(f.Path) != ".go" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Path, f.Content, parser.ImportsOnly)
		if err != nil {
			return nil, schema.Diagnostics{{Code: CodeBug, Pos: schema.Pos{File: place.Shown(f.Path)}, Message: err.Error()}}
		}
		for _, spec := range parsed.Imports {
			name := strings.Trim(spec.Path.Value, "`\"")
			module := ""
			for _, r := range requirements { // a module within another comes after it
				if name == r.Module || strings.HasPrefix(name, r.Module+"/") {
					module = r.Module
				}
			}
			imported[module] = true
		}
	}
	var missing []Requirement
	for _, r := range requirements {
		if imported[r.Module] && !have[r.Module] {
			missing = append(missing, r)
		}
	}
	return missing, nil
}
