// Package schema is the language of outbox.yaml: it reads a specification into
// a [Spec] whose every element knows its place in the file, and reports every
// fault that it finds at once.
//
// A Spec is what the author wrote, checked by itself: types resolve, limits are
// in range, routes name payloads that exist. Which Go names follow from it, and
// whether these clash, is decided by the generator's model.
package schema

import "time"

// Version is the version of the language that this package reads.
const Version = 1

// Pos is a place in a specification. Lines and columns count from 1; a column
// counts characters, not bytes.
type Pos struct {
	File   string
	Line   int
	Column int
}

// IsValid tells whether p was set: elements that the author left out, and that
// a default stands for, have no place.
func (p Pos) IsValid() bool { return p.Line > 0 }

// Text is a scalar of the specification with its place. Its zero value means
// that the author did not write it.
type Text struct {
	Value string
	Pos   Pos
}

// IsSet tells whether the author wrote the text.
func (t Text) IsSet() bool { return t.Pos.IsValid() }

// Int is a whole number of the specification with its place.
type Int struct {
	Value int
	Pos   Pos
}

// IsSet tells whether the author wrote the number.
func (i Int) IsSet() bool { return i.Pos.IsValid() }

// Flag is a boolean of the specification with its place.
type Flag struct {
	Value bool
	Pos   Pos
}

// IsSet tells whether the author wrote the flag.
func (f Flag) IsSet() bool { return f.Pos.IsValid() }

// Float is a decimal fraction of the specification with its place.
type Float struct {
	Value float64
	Pos   Pos
}

// IsSet tells whether the author wrote the number.
func (f Float) IsSet() bool { return f.Pos.IsValid() }

// Duration is a length of time with its place. Defaults are already filled in;
// IsSet tells them from what the author wrote.
type Duration struct {
	Value time.Duration
	Pos   Pos
}

// IsSet tells whether the author wrote the duration.
func (d Duration) IsSet() bool { return d.Pos.IsValid() }

// Spec is one specification: what one generated package is made from.
type Spec struct {
	File         string // as given to Decode
	Package      Text
	Out          Text // slash-separated, relative to the specification
	Doc          Text
	Store        Store
	Migrations   Migrations
	Initialisms  Initialisms
	Emit         Emit
	Types        []*Type        // in the order of the file
	Payloads     []*Payload     // in the order of the file
	Destinations []*Destination // in the order of the file
}

// Store describes the tables.
type Store struct {
	Table   Text // default "outbox"
	Schema  Text // "" when not given
	Command CommandColumn
	Columns []*Column // in the order of the file
}

// CommandColumn is the column that a row is traced back by.
type CommandColumn struct {
	Name Text       // default "command_id"
	Type ColumnType // uuid (default), text or bigint
	Pos  Pos
}

// ColumnType is the Postgres type of a column.
type ColumnType string

// The types that a column may have. The command is one of the first three.
const (
	ColumnUUID        ColumnType = "uuid"
	ColumnText        ColumnType = "text"
	ColumnBigint      ColumnType = "bigint"
	ColumnInteger     ColumnType = "integer"
	ColumnBoolean     ColumnType = "boolean"
	ColumnTimestamptz ColumnType = "timestamptz"
	ColumnDate        ColumnType = "date"
)

// Column is a further column of every row. One that is not optional is an
// argument of NewCommand.
type Column struct {
	Name     Text
	GoName   Text
	Doc      Text
	Type     ColumnType
	Optional bool
	Index    bool
	Default  Text // for the rows from before the column; checked against Type
}

// MigrationFormat names the tool that applies the migrations.
type MigrationFormat string

// The formats that migrations are written in.
const (
	FormatGolangMigrate MigrationFormat = "golang-migrate"
	FormatPlain         MigrationFormat = "plain"
)

// Migrations says where migrations go and for which tool.
type Migrations struct {
	Dir    Text            // slash-separated, relative to the specification; default <out>/migrations
	Format MigrationFormat // default golang-migrate
	Pos    Pos
}

// Initialisms are the words that the author adds to, or takes from, the table
// of words that Go names write in capitals.
type Initialisms struct {
	Add    []Text
	Remove []Text
}

// Emit says which files the package has that not every package needs.
type Emit struct {
	OTel Flag // the one that feeds OpenTelemetry
}

// Type is a named type: an object or an enum.
type Type struct {
	Name       Text
	GoName     Text
	Doc        Text
	Deprecated Text
	Fields     []*Field     // of an object
	Values     []*EnumValue // of an enum
	Enum       bool
}

// EnumValue is one value of an enum.
type EnumValue struct {
	Value  Text
	GoName Text // the part behind the type's name
	Doc    Text
}

// Payload is a type of message.
type Payload struct {
	Name       Text
	GoName     Text
	Doc        Text
	Deprecated Text
	Fields     []*Field
}

// Field is a field of a payload or of an object.
type Field struct {
	Name       Text // the key, as written
	JSON       Text // the wire name; the key when not set
	GoName     Text
	Doc        Text
	Deprecated Text
	Type       *TypeExpr
	Optional   bool
	Sensitive  bool
}

// WireName is the name of the field in the stored JSON.
func (f *Field) WireName() string {
	if f.JSON.IsSet() {
		return f.JSON.Value
	}
	return f.Name.Value
}

// TypeKind tells the forms of a type expression apart.
type TypeKind int

// The forms of a type expression.
const (
	Scalar TypeKind = iota + 1 // TypeExpr.Scalar
	Named                      // TypeExpr.Named
	List                       // TypeExpr.Elem
	Map                        // TypeExpr.Elem, keyed by strings
)

// ScalarType is a type of the language that is not made of others.
type ScalarType string

// The scalar types.
const (
	String       ScalarType = "string"
	Bool         ScalarType = "bool"
	Int32        ScalarType = "int32"
	Int64        ScalarType = "int64"
	Uint64       ScalarType = "uint64"
	Float64      ScalarType = "float64"
	UUID         ScalarType = "uuid"
	Time         ScalarType = "time"
	Date         ScalarType = "date"
	DurationType ScalarType = "duration"
	Decimal      ScalarType = "decimal"
	Bigint       ScalarType = "bigint"
	Bytes        ScalarType = "bytes"
	JSON         ScalarType = "json"
)

// TypeExpr is the type of a field, or of the elements of a list or map.
type TypeExpr struct {
	Pos    Pos
	Kind   TypeKind
	Scalar ScalarType
	Named  *Type // resolved
	Elem   *TypeExpr
	Quoted bool // a number written as a JSON string
	Checks Checks
}

// Checks are the rules that a value must meet to be enqueued. Only those that
// fit the type are ever set.
type Checks struct {
	Min, Max             Text // numbers, in canonical decimal form
	MinLength, MaxLength Int  // code points of a string, bytes of bytes
	Pattern              Text // RE2, compiles
	MinItems, MaxItems   Int  // items of a list, entries of a map
	NonZero              Flag
}

// Destination is an external system that rows are dispatched to.
type Destination struct {
	Name           Text
	GoName         Text
	Doc            Text
	Accepts        []Accept // in the order of the file
	Idempotent     Flag
	Timeout        Duration // default 30s
	Lease          Duration // default 2 × timeout + 30s
	Retry          Retry
	Reconcile      Reconcile
	Limits         Limits
	OrderBy        Selector
	IdempotencyKey Selector
	Retention      Retention
	Expires        Duration // 0 = never
	Retired        bool
}

// Accept is a payload that a destination takes.
type Accept struct {
	Name    Text
	Payload *Payload // resolved
}

// Retry is the schedule on which a row is tried again.
type Retry struct {
	MaxAttempts int           // default 10; 0 = unlimited
	Initial     time.Duration // default 1s
	Max         time.Duration // default 15m
	Factor      float64       // default 2
	Jitter      float64       // 0 to 1; default 0.2
	Delays      []time.Duration
	Pos         Pos
}

// Reconcile is the schedule of the questions to the remote about rows whose
// outcome is unknown. It is in force where the destination is not idempotent.
type Reconcile struct {
	None   bool          // only a person decides
	First  time.Duration // default 1m
	Every  time.Duration // default 10m
	GiveUp time.Duration // 0 = never
	Pos    Pos
}

// Limits bound what one process does at once.
type Limits struct {
	Concurrency Int // default 8
	Rate        Rate
	Per         Selector // concurrency and rate are then for each value of it
	Total       Int      // bounds all values together; 0 = not bounded
	Pos         Pos
}

// Rate is a number of calls in a time; Count 0 means no limit.
type Rate struct {
	Count int
	Per   time.Duration
	Pos   Pos
}

// Selector names the fields that a key is read from. After Decode it is
// resolved for every accepted payload.
type Selector struct {
	Pos   Pos
	Paths []PayloadPaths // in the order of Accepts; empty when the author wrote none
}

// IsSet tells whether the author wrote the selector.
func (s Selector) IsSet() bool { return s.Pos.IsValid() }

// PayloadPaths are the fields that make the key of one payload.
type PayloadPaths struct {
	Payload *Payload
	Paths   []Path
}

// Path leads from a payload through required fields to one value.
type Path struct {
	Pos    Pos
	Fields []*Field
}

// Retention is the age at which settled rows are removed.
type Retention struct {
	Completed Keep // default 7d
	Failed    Keep // default 30d; never 0
}

// Keep is the time for which a settled row is kept.
type Keep struct {
	Forever bool
	For     time.Duration // 0 = removed as it settles
	Pos     Pos
}
