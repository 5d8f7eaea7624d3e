// Package generator turns a specification into a Go package and its migrations.
package generator

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/mod/modfile"

	"github.com/outboxgen/outboxgen/generator/contract"
	"github.com/outboxgen/outboxgen/generator/emit"
	"github.com/outboxgen/outboxgen/generator/migration"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/tree"
	"github.com/outboxgen/outboxgen/schema"
)

// CodeBug is a fault of outboxgen itself.
const CodeBug schema.Code = "OBX9001"

// Options say what to generate.
type Options struct {
	Spec   string // the specification's file
	DryRun bool   // plan everything and write nothing
}

// Result is what a run has done, or with DryRun would do. Its paths are relative
// to the working directory, or absolute where Options.Spec is.
type Result struct {
	Changes []Change
	Strays  []string      // generated files in the package's directory that no specification owns
	Missing []Requirement // what the module has yet to require for the package to compile
}

// Change is a file that is written or removed.
type Change struct {
	Kind tree.ChangeKind
	Path string
}

// Generate brings the disk to what the specification asks for, or reports why
// it cannot; then nothing is written. The same specification makes the same
// bytes on any machine and at any time. A run that ends in the middle, killed
// or by ctx, is completed by the next.
func Generate(ctx context.Context, o Options) (*Result, schema.Diagnostics) {
	place, faults := tree.Open(filepath.Dir(o.Spec))
	if len(faults) > 0 {
		return nil, faults
	}
	in, faults := load(o.Spec)
	if len(faults) > 0 {
		return nil, faults
	}
	if in.lock, faults = readLock(place); len(faults) > 0 {
		return nil, faults
	}
	if in.lock != nil {
		faults = contract.Compare(in.lock, place.Shown(contract.FileName), contract.Describe(in.model), in.spec)
		if len(faults) > 0 {
			return nil, unique(faults)
		}
	}

	in.importPath = path.Join(modfile.ModulePath(place.GoMod), place.FromRoot(in.model.Out))
	in.migrationsDir = place.Shown(in.model.Migrations.Dir)
	in.migrations, faults = readMigrations(place, in)
	wanted, refused := render(in)
	if len(wanted.Files) == 0 {
		return nil, refused
	}
	// What is in the way of one file says nothing about the others: all of it is
	// reported together.
	faults = append(faults, refused...)
	plan, refused := place.Plan(wanted)
	faults = append(faults, refused...)
	missing, refused := missingRequirements(place, wanted)
	faults = append(faults, refused...)
	if len(faults) > 0 {
		return nil, unique(faults)
	}

	if !o.DryRun {
		if faults := plan.Commit(ctx); len(faults) > 0 {
			return nil, unique(faults)
		}
	}
	return newResult(place, plan, missing), nil
}

// inputs are all that the bytes follow from.
type inputs struct {
	spec          *schema.Spec
	model         *model.Model
	lock          *contract.Lock   // nil = there is none
	migrations    []migration.File // in their directory; content only of those that matter
	migrationsDir string           // for diagnostics
	importPath    string           // of the emitted package
}

// load reads a specification and resolves it.
func load(file string) (in inputs, faults schema.Diagnostics) {
	source, faults := tree.ReadFile(file)
	if len(faults) > 0 {
		return in, faults
	}
	if in.spec, faults = schema.Decode(file, source); len(faults) > 0 {
		return in, faults
	}
	in.model, faults = model.Build(in.spec)
	return in, faults
}

// readLock returns nil when there is no lock.
func readLock(place *tree.Place) (*contract.Lock, schema.Diagnostics) {
	text, faults := place.Read(contract.FileName)
	if len(faults) > 0 || text == nil {
		return nil, faults
	}
	return contract.Parse(place.Shown(contract.FileName), text)
}

func readMigrations(place *tree.Place, in inputs) ([]migration.File, schema.Diagnostics) {
	dir := in.model.Migrations.Dir
	names, faults := place.List(dir)
	reads := migration.Reads(contract.Describe(in.model).Tables, in.lock)
	var files []migration.File
	for _, name := range names {
		file := migration.File{Name: name}
		if reads(name) {
			content, unreadable := place.Read(path.Join(dir, name))
			faults = append(faults, unreadable...)
			file.Content = content
		}
		files = append(files, file)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return files, nil
}

// render makes every byte that belongs on the disk, and says where. It is a
// function of in alone. Faults are those of the migrations; without any files
// they are outboxgen's own.
func render(in inputs) (tree.Wanted, schema.Diagnostics) {
	m, next := in.model, contract.Describe(in.model)
	emitted, up, down, err := emitAll(m, in.importPath)
	if err != nil {
		return tree.Wanted{}, schema.Diagnostics{{
			Code: CodeBug, Pos: schema.Pos{File: in.spec.File},
			Message: fmt.Sprintf("outboxgen failed at a specification that it had accepted: %v", err),
		}}
	}

	wanted := tree.Wanted{Dir: m.Out}
	if in.lock != nil {
		wanted.Owned = in.lock.Files
	}
	for _, f := range emitted {
		name := path.Join(m.Out, f.Path)
		wanted.Files = append(wanted.Files, tree.File{Path: name, Content: f.Content})
		next.Files = append(next.Files, name)
	}
	slices.Sort(next.Files)

	migrations, faults := migration.Next(migration.Input{
		Dir: in.migrationsDir, Format: m.Migrations.Format, Tables: next.Tables,
		Up: up, Down: down, Lock: in.lock, Present: in.migrations,
	})
	for _, f := range migrations.Files {
		wanted.Files = append(wanted.Files, tree.File{Path: path.Join(m.Migrations.Dir, f.Name), Content: f.Content, New: true})
	}
	next.Migrations = migrations.Chain
	wanted.Last = tree.File{Path: contract.FileName, Content: next.Bytes()}
	return wanted, faults
}

// emitAll returns the package with its test kit, and the SQL that makes and drops
// its tables.
func emitAll(m *model.Model, importPath string) (files []emit.File, up, down string, err error) {
	if files, err = emit.Files(m); err != nil {
		return nil, "", "", err
	}
	kit, err := emit.TestKit(m, importPath)
	if err != nil {
		return nil, "", "", err
	}
	files = append(files, kit...)
	if up, err = emit.TablesUp(m); err != nil {
		return nil, "", "", err
	}
	down, err = emit.TablesDown(m)
	return files, up, down, err
}

func newResult(place *tree.Place, plan *tree.Plan, missing []Requirement) *Result {
	result := &Result{Missing: missing}
	for _, c := range plan.Changes {
		result.Changes = append(result.Changes, Change{Kind: c.Kind, Path: place.Shown(c.Path)})
	}
	for _, name := range plan.Strays {
		result.Strays = append(result.Strays, place.Shown(name))
	}
	return result
}

// unique sorts faults and drops repetitions: one link is in the way of every
// file behind it.
func unique(faults schema.Diagnostics) schema.Diagnostics {
	faults.Sort()
	return slices.CompactFunc(faults, func(a, b schema.Diagnostic) bool { return a.String() == b.String() })
}
