// Package tree puts files on the disk: it plans what differs, refuses what it
// must not touch, and commits the rest so that a run which is killed at any
// point is made good by the next.
package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/contract"
	"github.com/outboxgen/outboxgen/schema"
)

// The codes of what stands in the way of a file.
const (
	CodeForeign   schema.Code = "OBX4001" // a file that is not the generator's
	CodeSymlink   schema.Code = "OBX4002" // a symbolic link on the way
	CodeNotFile   schema.Code = "OBX4003" // a directory, or something else that is no file
	CodeNotDir    schema.Code = "OBX4004" // a file where a directory is needed
	CodeOutside   schema.Code = "OBX4005" // a path that leaves the module
	CodeNested    schema.Code = "OBX4006" // a path in another module
	CodeMigration schema.Code = "OBX4007" // a migration that would be written over
)

// The codes of what the environment lacks.
const (
	CodeUnreadable schema.Code = "OBX5001" // a file or directory cannot be read
	CodeUnwritable schema.Code = "OBX5002" // a file or directory cannot be written
	CodeNoModule   schema.Code = "OBX5003" // there is no module
	CodeOvertaken  schema.Code = "OBX5004" // somebody else wrote the same files
)

// Place is the directory of a specification in its module. The paths that its
// methods take are clean, slash-separated and relative to it; they may lead out
// of it, and not out of the module.
type Place struct {
	GoMod []byte // the module's go.mod

	base string // what shown paths are relative to; "" = they are absolute
	dir  string // absolute
	root string // of the module; absolute
}

// Open finds the module that dir lies in.
func Open(dir string) (*Place, schema.Diagnostics) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fault(CodeUnreadable, dir, err.Error())
	}
	place := &Place{dir: abs}
	if !filepath.IsAbs(dir) {
		if place.base, err = os.Getwd(); err != nil {
			return nil, fault(CodeUnreadable, dir, err.Error())
		}
	}
	for root := abs; ; root = filepath.Dir(root) {
		goMod, err := os.ReadFile(filepath.Join(root, "go.mod"))
		if err == nil {
			place.GoMod, place.root = goMod, root
			return place, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fault(CodeUnreadable, filepath.Join(root, "go.mod"), reason(err))
		}
		if root == filepath.Dir(root) {
			return nil, schema.Diagnostics{{
				Code: CodeNoModule, Pos: schema.Pos{File: dir},
				Message: "the specification lies in no Go module: there is no go.mod in its directory or above",
				Hint:    "go mod init makes one",
			}}
		}
	}
}

func fault(code schema.Code, file, message string) schema.Diagnostics {
	return schema.Diagnostics{{Code: code, Pos: schema.Pos{File: file}, Message: message}}
}

// reason is err without the paths: its diagnostic names the one that matters.
func reason(err error) string {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Op + ": " + pathErr.Err.Error()
	}
	if linkErr := (*os.LinkError)(nil); errors.As(err, &linkErr) {
		return linkErr.Op + ": " + linkErr.Err.Error()
	}
	return err.Error()
}

// ReadFile returns the content of a file that the user has named; links are
// followed.
func ReadFile(name string) ([]byte, schema.Diagnostics) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, fault(CodeUnreadable, name, reason(err))
	}
	return content, nil
}

// Shown is a path for people: relative to the working directory, unless the
// path that Open was given was not.
func (p *Place) Shown(name string) string {
	if p.base == "" {
		return p.abs(name)
	}
	return filepath.FromSlash(relative(p.base, p.abs(name)))
}

// GoModFile is the module's go.mod, for people.
func (p *Place) GoModFile() string { return p.Shown(relative(p.dir, filepath.Join(p.root, "go.mod"))) }

// FromRoot is a path relative to the root of the module, with slashes.
func (p *Place) FromRoot(name string) string { return relative(p.root, p.abs(name)) }

func (p *Place) abs(name string) string { return filepath.Join(p.dir, filepath.FromSlash(name)) }

// Read returns the content of a file; nil when there is none.
func (p *Place) Read(name string) ([]byte, schema.Diagnostics) {
	_, exists, faults := p.look(name)
	if len(faults) > 0 || !exists {
		return nil, faults
	}
	content, err := os.ReadFile(p.abs(name))
	if err != nil {
		return nil, fault(CodeUnreadable, p.Shown(name), reason(err))
	}
	return content, nil
}

// List returns the names of the regular files in a directory, sorted; none when
// there is no directory.
func (p *Place) List(dir string) ([]string, schema.Diagnostics) {
	exists, faults := p.lookDir(dir)
	if len(faults) > 0 || !exists {
		return nil, faults
	}
	entries, err := os.ReadDir(p.abs(dir))
	if err != nil {
		return nil, fault(CodeUnreadable, p.Shown(dir), reason(err))
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// look tells whether a file exists, and refuses what no file may be written to.
func (p *Place) look(name string) (mode fs.FileMode, exists bool, faults schema.Diagnostics) {
	exists, faults = p.lookDir(path.Dir(name))
	if len(faults) > 0 || !exists {
		return 0, false, faults
	}
	info, err := os.Lstat(p.abs(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, false, nil
	case err != nil:
		return 0, false, fault(CodeUnreadable, p.Shown(name), reason(err))
	case info.Mode().Type() == fs.ModeSymlink:
		return 0, false, p.symlink(name)
	case info.IsDir():
		return 0, false, fault(CodeNotFile, p.Shown(name), "a directory is in the way of the file")
	case !info.Mode().IsRegular():
		return 0, false, fault(CodeNotFile, p.Shown(name), "what is there is not a regular file")
	}
	return info.Mode().Perm(), true, nil
}

// lookDir tells whether a directory exists, and refuses one that lies outside
// the module or behind a link.
func (p *Place) lookDir(dir string) (exists bool, faults schema.Diagnostics) {
	below := p.FromRoot(dir)
	if below == ".." || strings.HasPrefix(below, "../") {
		return false, schema.Diagnostics{{
			Code: CodeOutside, Pos: schema.Pos{File: p.Shown(dir)},
			Message: fmt.Sprintf("the directory lies outside the module, whose root is %s", p.root),
			Hint:    "name a directory inside the module",
		}}
	}
	if below == "." {
		return true, nil
	}
	at := p.root
	for _, part := range strings.Split(below, "/") {
		at = filepath.Join(at, part)
		name := relative(p.dir, at)
		info, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return false, nil
		case err != nil:
			return false, fault(CodeUnreadable, p.Shown(name), reason(err))
		case info.Mode().Type() == fs.ModeSymlink:
			return false, p.symlink(name)
		case !info.IsDir():
			return false, fault(CodeNotDir, p.Shown(name), "a file is in the way of the directory")
		}
		if _, err := os.Lstat(filepath.Join(at, "go.mod")); err == nil {
			return false, schema.Diagnostics{{
				Code: CodeNested, Pos: schema.Pos{File: p.Shown(name)},
				Message: "the directory is the root of another module than the specification's",
				Hint:    "move the specification into that module, or name a directory outside it",
			}}
		}
	}
	return true, nil
}

func relative(base, target string) string {
	rel, err := filepath.Rel(base, target)
	if err != nil { // both are absolute, and on one volume
		panic(err)
	}
	return filepath.ToSlash(rel)
}

func (p *Place) symlink(name string) schema.Diagnostics {
	return schema.Diagnostics{{
		Code: CodeSymlink, Pos: schema.Pos{File: p.Shown(name)},
		Message: "a symbolic link is in the way: what is written through it could land anywhere",
		Hint:    "replace the link by what it leads to, or name another directory",
	}}
}

// File is a file that is wanted on the disk.
type File struct {
	Path    string
	Content []byte
	New     bool // never written over what is there with other content
}

// Wanted is what the disk should hold.
type Wanted struct {
	Files []File
	Owned []string // what earlier runs wrote; what is not wanted any more is removed
	Last  File     // written when all the rest is done
	Dir   string   // the package's directory, in which other generated files are strays; "" = none
}

// ChangeKind tells what happens to a file.
type ChangeKind int

// The kinds of changes.
const (
	Create ChangeKind = iota + 1 // it is not there
	Update                       // it has other content
	Remove                       // it is not wanted any more
)

// Change is one difference between the disk and what is wanted.
type Change struct {
	Kind ChangeKind
	Path string

	content []byte
	mode    fs.FileMode
}

// Plan is what a commit does.
type Plan struct {
	Changes []Change // in the order in which they are made: by path, the last file last
	Strays  []string // marked files in Wanted.Dir that nobody owns; sorted

	place  *Place
	wanted Wanted
	temp   string       // the name that files have while they are written
	step   func(string) // called before each step of a commit, with what it is about to do
}

// Plan compares the disk with what is wanted. Everything that is in the way is
// reported, for each file that it is in the way of, and nothing is written.
func (p *Place) Plan(w Wanted) (*Plan, schema.Diagnostics) {
	plan := &Plan{
		place: p, wanted: w,
		temp: fmt.Sprintf("%s%d%s", tempPrefix, os.Getpid(), tempSuffix),
		step: func(string) {},
	}
	var faults schema.Diagnostics
	compare := func(f File) {
		change, refused := p.compare(f)
		faults = append(faults, refused...)
		if change.Kind != 0 {
			plan.Changes = append(plan.Changes, change)
		}
	}
	wanted := map[string]bool{w.Last.Path: true}
	for _, f := range w.Files {
		wanted[f.Path] = true
		compare(f)
	}
	for _, name := range w.Owned {
		if !wanted[name] && p.isOurs(name) {
			plan.Changes = append(plan.Changes, Change{Kind: Remove, Path: name})
		}
	}
	slices.SortFunc(plan.Changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	compare(w.Last)
	plan.Strays = p.strays(w, wanted)
	return plan, faults
}

func (w Wanted) all() []File { return append(w.Files[:len(w.Files):len(w.Files)], w.Last) }

// compare tells what has to happen for f to be on the disk.
func (p *Place) compare(f File) (Change, schema.Diagnostics) {
	mode, exists, faults := p.look(f.Path)
	if len(faults) > 0 {
		return Change{}, faults
	}
	if !exists {
		return Change{Kind: Create, Path: f.Path, content: f.Content, mode: 0o644}, nil
	}
	present, err := os.ReadFile(p.abs(f.Path))
	switch {
	case err != nil:
		return Change{}, fault(CodeUnreadable, p.Shown(f.Path), reason(err))
	case contract.Hash(present) == contract.Hash(f.Content):
		return Change{}, nil
	case !contract.HasMarker(present):
		return Change{}, schema.Diagnostics{{
			Code: CodeForeign, Pos: schema.Pos{File: p.Shown(f.Path)},
			Message: "the file was not written by outboxgen, and is not written over",
			Hint:    "move it out of the way; a file of outboxgen's begins with a comment that says: " + contract.Marker,
		}}
	case f.New:
		return Change{}, schema.Diagnostics{{
			Code: CodeMigration, Pos: schema.Pos{File: p.Shown(f.Path)},
			Message: "the file is there with other content, and a migration is never written over",
			Hint:    "restore the file from version control",
		}}
	}
	return Change{Kind: Update, Path: f.Path, content: f.Content, mode: mode}, nil
}

// isOurs tells whether name may be removed. What somebody has taken over, by
// taking the marker out of it or by putting a link in its place, stays.
func (p *Place) isOurs(name string) bool {
	_, exists, faults := p.look(name)
	if len(faults) > 0 || !exists {
		return false
	}
	content, err := os.ReadFile(p.abs(name))
	return err == nil && contract.HasMarker(content)
}

// strays are the Go files in w.Dir that carry the marker and that nobody owns.
func (p *Place) strays(w Wanted, wanted map[string]bool) []string {
	if w.Dir == "" {
		return nil
	}
	names, faults := p.List(w.Dir)
	if len(faults) > 0 {
		return nil // reported with the files that are wanted there
	}
	var strays []string
	for _, name := range names {
		name = path.Join(w.Dir, name)
		if strings.HasSuffix(name, ".gen.go") && !wanted[name] && !slices.Contains(w.Owned, name) && p.isOurs(name) {
			strays = append(strays, name)
		}
	}
	return strays
}
