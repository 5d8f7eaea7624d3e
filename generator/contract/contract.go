// Package contract is the memory of what has been generated: which tables the
// migrations have made, in which shape rows have been stored, and which files
// are the generator's. It is kept in a small text beside the specification, the
// lock, one fact a line.
package contract

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/schema"
)

// FileName is the name of the lock. It lies beside the specification.
const FileName = "outboxgen.lock"

// Format is the version of the text of the lock.
const Format = 1

// Layout is the version of the tables' own part, the one that does not depend
// on a specification.
const Layout = 1

// The codes of faults of the lock, and of what does not go with it.
const (
	CodeDamaged  schema.Code = "OBX3001" // the lock cannot be read
	CodeNewer    schema.Code = "OBX3002" // the lock was written by a newer outboxgen
	CodeConflict schema.Code = "OBX3003" // the lock holds the marks of a merge conflict
	CodeChain    schema.Code = "OBX3004" // the lock's migrations do not follow each other
	CodeTables   schema.Code = "OBX3005" // other tables than the migrations have made
	CodeFormat   schema.Code = "OBX3006" // migrations in another format than before
	CodeNoLock   schema.Code = "OBX3007" // migrations without the lock that knows them
	CodeEdited   schema.Code = "OBX3008" // a migration was edited
	CodeLost     schema.Code = "OBX3009" // a migration is gone and cannot be made again
	CodeNumber   schema.Code = "OBX3010" // two migrations with one number
	CodeUnlisted schema.Code = "OBX3011" // a migration that the lock does not know
)

// Lock is what the lock says.
type Lock struct {
	Tables       Tables
	Types        []Type        // by name; those that a payload is made of
	Payloads     []Payload     // by name, then version
	Destinations []Destination // by name
	Files        []string      // slash-separated, relative to the specification; sorted
	Migrations   []Migration   // in the order in which they were made
}

// Tables are the facts that the tables are made from.
type Tables struct {
	Schema  string // "" = the search path decides
	Table   string
	Command Column
	Columns []Column // by name
	Line    int      // of the table in the lock; 0 when it was not read from one
}

// Column is the command's column or one of the user's.
type Column struct {
	Name       string
	Type       schema.ColumnType
	Optional   bool
	Index      bool
	Default    string
	HasDefault bool
	Line       int // in the lock; 0 when it was not read from one
}

// Type is the wire shape of a named type: of an object when it has fields or
// nothing, of an enum when Enum is set.
type Type struct {
	Name   string
	Enum   bool
	Values []string // sorted
	Fields []Field  // by name
}

// Payload is the wire shape of one version of a payload.
type Payload struct {
	Name    string // as stored
	Version int
	Fields  []Field // by name
}

// Field is a field of an object as it stands in the stored JSON.
type Field struct {
	Name     string // wire name
	Type     string // "uuid", "list<order_line>", "map<list<string>>", "quoted<int64>"
	Optional bool
}

// Destination is what a destination takes.
type Destination struct {
	Name    string   // as stored
	Accepts []string // stored names of payloads; sorted
}

// Migration is one file of a migration that was emitted. A file's chain covers
// its own name and content and all files before it, so that lists which were
// merged line by line give themselves away.
type Migration struct {
	Format schema.MigrationFormat
	Name   string // base name
	Hash   string // SHA-256 of the content with LF, in hexadecimal
	Chain  string // SHA-256 in hexadecimal
	Line   int    // in the lock; 0 when it was not read from one
}

// Describe returns what the lock has to say about m, but for files and
// migrations.
func Describe(m *model.Model) *Lock {
	lock := &Lock{Tables: Tables{
		Schema:  m.Store.Schema,
		Table:   m.Store.Table,
		Command: column(m.Store.Command),
	}}
	for _, c := range m.Store.Columns {
		lock.Tables.Columns = append(lock.Tables.Columns, column(*c))
	}
	slices.SortFunc(lock.Tables.Columns, func(a, b Column) int { return cmp.Compare(a.Name, b.Name) })

	used := map[*model.Type]bool{}
	for _, p := range m.Payloads {
		lock.Payloads = append(lock.Payloads, Payload{Name: p.Name, Version: p.Version, Fields: fields(p.Fields)})
		markUsed(used, p.Fields)
	}
	for _, t := range m.Types {
		if !used[t] {
			continue
		}
		shape := Type{Name: t.Name, Enum: t.Enum, Fields: fields(t.Fields)}
		for _, v := range t.Values {
			shape.Values = append(shape.Values, v.Value)
		}
		slices.Sort(shape.Values)
		lock.Types = append(lock.Types, shape)
	}
	for _, d := range m.Destinations {
		takes := Destination{Name: d.Name}
		for _, p := range d.Accepts {
			takes.Accepts = append(takes.Accepts, p.Name)
		}
		slices.Sort(takes.Accepts)
		lock.Destinations = append(lock.Destinations, takes)
	}
	return lock
}

func column(c model.Column) Column {
	return Column{Name: c.Name, Type: c.Type, Optional: c.Optional, Index: c.Index, Default: c.Default, HasDefault: c.HasDefault}
}

func fields(all []*model.Field) []Field {
	var shapes []Field
	for _, f := range all {
		shapes = append(shapes, Field{Name: f.Name, Type: wireType(f.Ref), Optional: f.Optional})
	}
	slices.SortFunc(shapes, func(a, b Field) int { return cmp.Compare(a.Name, b.Name) })
	return shapes
}

func wireType(r *model.Ref) string {
	switch r.Kind {
	case schema.Named:
		return r.Named.Name
	case schema.List:
		return "list<" + wireType(r.Elem) + ">"
	case schema.Map:
		return "map<" + wireType(r.Elem) + ">"
	}
	if r.Quoted {
		return "quoted<" + string(r.Scalar) + ">"
	}
	return string(r.Scalar)
}

// markUsed marks the types that fields are made of, however deep.
func markUsed(used map[*model.Type]bool, fields []*model.Field) {
	for _, f := range fields {
		ref := f.Ref
		for ref.Elem != nil {
			ref = ref.Elem
		}
		if ref.Named != nil && !used[ref.Named] {
			used[ref.Named] = true
			markUsed(used, ref.Named.Fields)
		}
	}
}

// kind is the payload's name and version in one word, as rows are routed by.
func (p Payload) kind() string { return p.Name + "@" + strconv.Itoa(p.Version) }
