package contract

import (
	"fmt"

	"github.com/outboxgen/outboxgen/schema"
)

// Compare reports why the specification cannot follow what the lock remembers:
// each difference between the tables that the migrations have made and those
// that spec asks for, and a change of the migrations' format. The faults are
// placed in the specification, and in the lock where the specification has no
// place for them.
func Compare(lock *Lock, file string, next *Lock, spec *schema.Spec) schema.Diagnostics {
	c := comparison{file: file}
	before, after := lock.Tables, next.Tables

	c.same(before.Schema == after.Schema, spec.Store.Schema.Pos, before.Line, "schema", before.Schema, after.Schema)
	c.same(before.Table == after.Table, spec.Store.Table.Pos, before.Line, "table", before.Table, after.Table)
	command := spec.Store.Command
	c.same(before.Command.Name == after.Command.Name, command.Name.Pos, before.Command.Line, "command column", before.Command.Name, after.Command.Name)
	c.same(before.Command.Type == after.Command.Type, command.Pos, before.Command.Line, "type of the command column", string(before.Command.Type), string(after.Command.Type))

	places := map[string]schema.Pos{}
	for _, column := range spec.Store.Columns {
		places[column.Name.Value] = column.Name.Pos
	}
	known := map[string]Column{}
	for _, old := range before.Columns {
		known[old.Name] = old
	}
	for _, column := range after.Columns {
		old, ok := known[column.Name]
		delete(known, column.Name)
		place, line := places[column.Name], old.Line
		if !ok {
			c.report(place, 0, fmt.Sprintf("the column %q is new", column.Name))
			continue
		}
		what := func(of string) string { return fmt.Sprintf("%s of column %q", of, column.Name) }
		c.same(old.Type == column.Type, place, line, what("type"), string(old.Type), string(column.Type))
		c.same(old.Optional == column.Optional, place, line, what("presence"), presence(old.Optional), presence(column.Optional))
		c.same(old.Index == column.Index, place, line, what("index"), yesNo(old.Index), yesNo(column.Index))
		c.same(old.HasDefault == column.HasDefault && old.Default == column.Default, place, line, what("default"), old.fallback(), column.fallback())
	}
	for _, old := range before.Columns {
		if _, gone := known[old.Name]; gone {
			c.report(schema.Pos{}, old.Line, fmt.Sprintf("the column %q is gone", old.Name))
		}
	}

	for _, m := range lock.Migrations {
		if m.Format != spec.Migrations.Format {
			c.faults = append(c.faults, schema.Diagnostic{
				Code: CodeFormat, Pos: c.place(spec.Migrations.Pos, m.Line),
				Message: fmt.Sprintf("the migrations are written for %s, and the specification asks for %s", m.Format, spec.Migrations.Format),
				Hint:    fmt.Sprintf("keep the format %s: outboxgen cannot move the migrations of a database to another tool", m.Format),
			})
			break
		}
	}
	return c.faults
}

type comparison struct {
	file   string // of the lock
	faults schema.Diagnostics
}

func (c *comparison) place(pos schema.Pos, line int) schema.Pos {
	if pos.IsValid() {
		return pos
	}
	return schema.Pos{File: c.file, Line: line, Column: 1}
}

func (c *comparison) same(equal bool, pos schema.Pos, line int, what, before, after string) {
	if !equal {
		c.report(pos, line, fmt.Sprintf("the %s was %s and is now %s", what, shown(before), shown(after)))
	}
}

func (c *comparison) report(pos schema.Pos, line int, difference string) {
	fault := schema.Diagnostic{
		Code: CodeTables, Pos: c.place(pos, line),
		Message: difference + ": the migrations have made other tables",
		Hint: "outboxgen does not yet write the migration from one to the other; undo the change, or, " +
			"where no database has these tables, delete the lock and the migrations and generate them again",
	}
	if line > 0 && pos.IsValid() {
		fault.Related = []schema.Related{{Pos: schema.Pos{File: c.file, Line: line, Column: 1}, Message: "what the migrations have made"}}
	}
	c.faults = append(c.faults, fault)
}

func shown(text string) string {
	if text == "" {
		return "not given"
	}
	return fmt.Sprintf("%q", text)
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func (c Column) fallback() string {
	if !c.HasDefault {
		return ""
	}
	return c.Default
}
