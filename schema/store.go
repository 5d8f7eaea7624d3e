package schema

import (
	"fmt"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxIdentifier is the length, in bytes, at which Postgres cuts identifiers
// without a word.
const maxIdentifier = 63

// longestSuffix is the longest of the fixed suffixes that stand behind the name
// of the table in the names of tables, indexes, constraints and sequences. As
// these never reach maxIdentifier, none is ever cut and no two become equal.
const longestSuffix = "_message_command"

const maxTable = maxIdentifier - len(longestSuffix)

// ColumnIndex is the name of the index on a further column of the table. It is
// never the name of another relation of the tables, as none of those ends so.
func ColumnIndex(table, column string) string { return table + "_message_" + column + "_idx" }

// fixedColumns are the columns that the tables and the view have of their own,
// and systemColumns those that Postgres gives to every table.
var (
	fixedColumns = []string{
		"outbox_id", "destination", "kind", "payload_type", "payload_version", "idempotency_key", "payload",
		"headers", "order_key", "limit_key", "seq", "status", "created_at", "expires_at", "next_attempt_at",
		"attempt_count", "attempted_at", "claim_token", "claim_worker", "claim_taken_at", "unknown",
		"unknown_since", "last_failure", "remote_ref", "completed_at",
	}
	systemColumns = []string{"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
)

var (
	commandTypes = []string{string(ColumnUUID), string(ColumnText), string(ColumnBigint)}
	columnTypes  = append(slices.Clone(commandTypes),
		string(ColumnInteger), string(ColumnBoolean), string(ColumnTimestamptz), string(ColumnDate))
	migrationFormats = []string{string(FormatGolangMigrate), string(FormatPlain)}
)

// spec reads the whole specification. The parts that others refer to are read
// first, whatever their order in the file.
func (d *decoder) spec(root *node) *Spec {
	s := &Spec{File: d.file, Store: d.store(nil)}
	o, ok := d.object(root, root.pos, "the specification", specKeys)
	if !ok {
		return s
	}
	d.version(o.need("version", fmt.Sprintf("add `version: %d`: the version of the language", Version)))
	s.Package = d.packageName(o.need("package", "add the name of the Go package, such as `package: outbox`"))
	s.Out = d.dir(o.need("out", "add the directory of the package, such as `out: internal/outbox`"))
	s.Doc = d.text(o.get("doc"))
	s.Store = d.store(o.get("store"))
	s.Migrations = d.migrations(o.get("migrations"), s.Out)
	s.Initialisms = d.initialisms(o.get("initialisms"))
	s.Emit = d.emit(o.get("emit"))
	s.Types = d.readTypes(o.get("types"))
	s.Payloads = d.readPayloads(o.need("payloads", "add the messages that are sent"))
	s.Destinations = d.readDestinations(o.need("destinations", "add the systems that messages are sent to"))
	d.unrouted(s)
	return s
}

func (d *decoder) version(n *node) {
	if v := d.integer(n, 0); v.IsSet() && v.Value != Version {
		d.fault(CodeNotAllowed, v.Pos, "version %d of the language is not known to this outboxgen, which reads version %d", v.Value, Version)
	}
}

var packagePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (d *decoder) packageName(n *node) Text {
	t := d.text(n)
	if !t.IsSet() {
		return t
	}
	reason := ""
	switch {
	case !packagePattern.MatchString(t.Value) || t.Value == "_":
		reason = "it is no Go identifier of ASCII letters, digits and _"
	case token.IsKeyword(t.Value):
		reason = "it is a keyword of Go"
	case types.Universe.Lookup(t.Value) != nil:
		reason = "it would hide what Go itself calls by this name"
	case t.Value == "main" || t.Value == "documentation" || strings.HasSuffix(t.Value, "_test"):
		reason = "Go gives it a meaning of its own"
	default:
		return t
	}
	d.fault(CodePackage, t.Pos, "a package cannot be named %s: %s", quote(t.Value), reason)
	return t
}

func (d *decoder) migrations(n *node, out Text) Migrations {
	m := Migrations{Format: FormatGolangMigrate}
	if n != nil {
		m.Pos = n.pos
		if o, ok := d.object(n, n.pos, "migrations", migrationsKeys); ok {
			m.Dir = d.dir(o.get("dir"))
			if format := o.get("format"); format != nil {
				m.Format = MigrationFormat(d.oneOf(format, migrationFormats))
			}
		}
	}
	if !m.Dir.IsSet() && out.Value != "" {
		m.Dir.Value = path.Join(out.Value, "migrations")
	}
	return m
}

var initialism = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)

func (d *decoder) initialisms(n *node) Initialisms {
	if n == nil {
		return Initialisms{}
	}
	o, ok := d.object(n, n.pos, "initialisms", initialismsKeys)
	if !ok {
		return Initialisms{}
	}
	seen := map[string]Pos{}
	words := func(n *node) []Text {
		var all []Text
		for _, item := range d.list(n) {
			word := d.text(item)
			switch first, again := seen[strings.ToLower(word.Value)]; {
			case !word.IsSet():
			case !initialism.MatchString(word.Value):
				d.fault(CodeName, word.Pos, "%s cannot be an initialism", quote(word.Value)).
					hint("write it as in a Go name: ASCII letters and digits, a capital first")
			case again:
				d.fault(CodeDuplicate, word.Pos, "the initialism %s stands here a second time", quote(word.Value)).
					related(first, "it stands here first")
			default:
				seen[strings.ToLower(word.Value)] = word.Pos
				all = append(all, word)
			}
		}
		return all
	}
	return Initialisms{Add: words(o.get("add")), Remove: words(o.get("remove"))}
}

func (d *decoder) emit(n *node) Emit {
	if n == nil {
		return Emit{}
	}
	o, ok := d.object(n, n.pos, "emit", emitKeys)
	if !ok {
		return Emit{}
	}
	return Emit{OTel: d.flag(o.get("otel"))}
}

// list reads the items of a list; none when n is nil.
func (d *decoder) list(n *node) []*node {
	if n == nil {
		return nil
	}
	if n.kind != list {
		d.wrongKind(n, "a list")
		return nil
	}
	return n.items
}

func (d *decoder) store(n *node) Store {
	s := Store{
		Table:   Text{Value: "outbox"},
		Command: CommandColumn{Name: Text{Value: "command_id"}, Type: ColumnUUID},
	}
	if n == nil {
		return s
	}
	o, ok := d.object(n, n.pos, "store", storeKeys)
	if !ok {
		return s
	}
	if table := o.get("table"); table != nil {
		s.Table = d.identifier(table, maxTable,
			fmt.Sprintf("up to %d bytes stand behind it in the names of tables and indexes, and Postgres cuts names at %d", len(longestSuffix), maxIdentifier))
	}
	s.Schema = d.identifier(o.get("schema"), maxIdentifier, cutHint)
	if command := o.get("command"); command != nil {
		s.Command = d.command(command, s.Command)
	}
	s.Columns = d.columns(o.get("columns"), s)
	return s
}

const cutHint = "Postgres cuts longer names"

// identifier reads a name for the database. It is quoted wherever it is used,
// so that it can be any text that fits.
func (d *decoder) identifier(n *node, longest int, why string) Text {
	t := d.text(n)
	if t.IsSet() {
		d.checkIdentifier(t, n.label, longest, why)
	}
	return t
}

func (d *decoder) checkIdentifier(t Text, what string, longest int, why string) {
	switch {
	case t.Value == "":
		d.fault(CodeIdentifier, t.Pos, "%s is empty", what)
	case controlIn(t.Value, "") >= 0:
		d.fault(CodeIdentifier, t.Pos, "%s holds a control character", what)
	case len(t.Value) > longest:
		d.fault(CodeIdentifier, t.Pos, "%s has %d bytes; at most %d are possible", what, len(t.Value), longest).hint(why)
	}
}

func (d *decoder) command(n *node, c CommandColumn) CommandColumn {
	c.Pos = n.pos
	o, ok := d.object(n, n.pos, "command", commandKeys)
	if !ok {
		return c
	}
	if name := o.get("name"); name != nil {
		c.Name = d.identifier(name, maxIdentifier, cutHint)
		d.reservedColumn(c.Name)
	}
	if t := o.get("type"); t != nil {
		c.Type = ColumnType(d.oneOf(t, commandTypes))
	}
	return c
}

func (d *decoder) reservedColumn(name Text) {
	switch {
	case slices.Contains(fixedColumns, name.Value):
		d.fault(CodeReservedName, name.Pos, "the tables have a column %s of their own", quote(name.Value))
	case slices.Contains(systemColumns, name.Value):
		d.fault(CodeReservedName, name.Pos, "Postgres has a column %s in every table", quote(name.Value))
	}
}

func (d *decoder) columns(n *node, s Store) []*Column {
	if n == nil {
		return nil
	}
	if n.kind != mapping {
		d.wrongKind(n, "a mapping of names to columns")
		return nil
	}
	var columns []*Column
	for _, e := range n.entries {
		columns = append(columns, d.column(e, s))
	}
	return columns
}

func (d *decoder) column(e entry, s Store) *Column {
	what := "column " + quote(e.key)
	c := &Column{Name: e.name()}
	d.checkIdentifier(c.Name, what, maxIdentifier, cutHint)
	d.reservedColumn(c.Name)
	if c.Name.Value == s.Command.Name.Value {
		f := d.fault(CodeReservedName, c.Name.Pos, "the column of the command has the name %s too", quote(c.Name.Value))
		if s.Command.Name.IsSet() {
			f.related(s.Command.Name.Pos, "the command is named here")
		} else {
			f.hint("rename this column, or the command's by store.command.name")
		}
	}
	o, ok := d.object(e.value, e.pos, what, columnKeys)
	if !ok {
		return c
	}
	c.GoName = d.goName(o.get("go_name"))
	c.Doc = d.text(o.get("doc"))
	c.Optional = d.flag(o.get("optional")).Value
	c.Index = d.flag(o.get("index")).Value
	if c.Index {
		d.checkIndex(c, o.keyPos("index"), s.Table.Value)
	}
	if t := o.need("type", "allowed: "+strings.Join(columnTypes, ", ")); t != nil {
		c.Type = ColumnType(d.oneOf(t, columnTypes))
	}
	if def := o.get("default"); def != nil && c.Type != "" {
		c.Default = d.columnDefault(def, c.Type)
	}
	return c
}

// checkIndex holds the name of the index to the length of an identifier, unless
// the name of column or table is too long by itself, which is reported.
func (d *decoder) checkIndex(c *Column, pos Pos, table string) {
	index := ColumnIndex(table, c.Name.Value)
	if len(index) > maxIdentifier && len(c.Name.Value) <= maxIdentifier && len(table) <= maxTable {
		d.fault(CodeIdentifier, pos, "the index %s has %d bytes; at most %d are possible", quote(index), len(index), maxIdentifier).
			hint("shorten the name of the column or of the table")
	}
}

var uuidPattern = regexp.MustCompile(`^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$`)

// columnDefault reads the default of a column into its canonical form.
func (d *decoder) columnDefault(n *node, t ColumnType) Text {
	canonical, want := "", ""
	ok := false
	switch t {
	case ColumnText:
		return d.text(n)
	case ColumnUUID:
		want = "a UUID such as " + exampleUUID
		ok = n.kind == text && uuidPattern.MatchString(n.value)
		canonical = strings.ToLower(n.value)
	case ColumnBigint, ColumnInteger:
		bits := map[ColumnType]int{ColumnBigint: 64, ColumnInteger: 32}[t]
		want = fmt.Sprintf("a whole number of %d bits", bits)
		value, err := strconv.ParseInt(n.value, 10, bits)
		ok = n.kind == number && wholeNumber.MatchString(n.value) && err == nil
		canonical = strconv.FormatInt(value, 10)
	case ColumnBoolean:
		want = "true or false"
		ok = n.kind == boolean
		canonical = strings.ToLower(n.value)
	case ColumnTimestamptz:
		want = "a time of RFC 3339, to the microsecond, such as 2026-11-30T12:00:00Z"
		value, err := time.Parse(time.RFC3339Nano, n.value)
		ok = n.kind == text && err == nil && value.Equal(value.Truncate(time.Microsecond)) && inYears(value.UTC())
		canonical = value.UTC().Format(time.RFC3339Nano)
	case ColumnDate:
		want = "a date such as 2026-11-30"
		value, err := time.Parse(time.DateOnly, n.value)
		ok = n.kind == text && err == nil && inYears(value)
		canonical = value.Format(time.DateOnly)
	}
	if !ok {
		if n.kind != broken {
			d.fault(CodeDefault, n.pos, "the default of a column of type %s must be %s, found %s", t, want, n.describe())
		}
		return Text{}
	}
	return Text{Value: canonical, Pos: n.pos}
}

// inYears tells whether Go and Postgres write the year of t alike: there is no
// year 0 in Postgres.
func inYears(t time.Time) bool { return t.Year() >= 1 && t.Year() <= 9999 }

const exampleUUID = "8f14e45f-ceea-467f-a0e6-0d1c2b3a4f5e"
