// Package model is what is generated, fully resolved and named: no YAML, and no
// syntax of Go or SQL. Emitters decide nothing that the model could tell them.
package model

import (
	"strconv"
	"time"

	"github.com/outboxgen/outboxgen/schema"
)

// Model describes one generated package.
type Model struct {
	SpecFile   string // base name of the specification, for texts
	Package    string
	Doc        string
	Out        string // slash-separated, relative to the specification
	Store      Store
	Migrations Migrations
	OTel       bool // the package feeds OpenTelemetry

	Types        []*Type        // by wire name
	Payloads     []*Payload     // by wire name
	Destinations []*Destination // by wire name
}

// Store describes the tables.
type Store struct {
	Table   string
	Schema  string // "" = the search path decides
	Command Column
	Columns []*Column // in the order of the specification
}

// Column is the command's column or one of the user's.
type Column struct {
	Name       string // in the table
	GoName     string // exported
	GoArg      string // as an argument of a function: not a keyword, no clash within the function
	Doc        string
	Type       schema.ColumnType
	Optional   bool
	Index      bool
	Default    string // canonical text of the value
	HasDefault bool
}

// Migrations says where migrations go and for which tool.
type Migrations struct {
	Dir    string // slash-separated, relative to the specification
	Format schema.MigrationFormat
}

// Type is a named type: an object or an enum.
type Type struct {
	Name       string
	GoName     string
	Doc        string
	Deprecated string
	Enum       bool
	Values     []*EnumValue
	Fields     []*Field
	Sensitive  bool // some field, however deep, is sensitive
}

// EnumValue is one value of an enum.
type EnumValue struct {
	Value  string
	GoName string // whole: the type's name and the value's
	Doc    string
}

// Payload is a type of message.
type Payload struct {
	Name       string
	Version    int
	GoName     string
	Doc        string
	Deprecated string
	Fields     []*Field
	Sensitive  bool           // some field, however deep, is sensitive
	Routes     []*Destination // that accept it, by wire name
}

// Field is a field of a payload or of an object.
type Field struct {
	Name       string // wire name
	GoName     string
	Doc        string
	Deprecated string
	Ref        *Ref
	Optional   bool
	Sensitive  bool
}

// Ref is the type of a value. Exactly one of Scalar, Named and Elem is set.
type Ref struct {
	Kind   schema.TypeKind
	Scalar schema.ScalarType
	Named  *Type
	Elem   *Ref
	Quoted bool
	Checks Checks
}

// Checks are the rules of a value. Pointers are nil, and texts empty, where
// there is no rule.
type Checks struct {
	Min, Max             string // canonical decimal text
	MinLength, MaxLength *int
	Pattern              string
	MinItems, MaxItems   *int
	NonZero              bool
}

// Destination is an external system that rows are dispatched to.
type Destination struct {
	Name           string
	GoName         string
	GoArg          string // as an argument of AllHandlers: not a keyword, no clash within the function
	PolicyName     string // the variable that holds what the specification says of it
	Doc            string
	Accepts        []*Payload // by wire name
	Idempotent     bool
	Timeout        time.Duration
	Lease          time.Duration
	Retry          schema.Retry
	Reconcile      schema.Reconcile
	Limits         Limits
	OrderBy        []PayloadPaths // by payload; empty = not ordered
	IdempotencyKey []PayloadPaths // by payload; empty = not declared
	KeepCompleted  Keep
	KeepFailed     Keep
	Expires        time.Duration
	Retired        bool
}

// Limits bound what one process does at once.
type Limits struct {
	Concurrency int
	Rate        schema.Rate
	Per         []PayloadPaths // empty = one limit for the destination
	Total       int            // 0 = not bounded
}

// PayloadPaths are the fields that make the key of one payload.
type PayloadPaths struct {
	Payload *Payload
	Paths   []Path
}

// Path leads from a payload through required fields to one value.
type Path []*Field

// Keep is the time for which a settled row is kept.
type Keep struct {
	Forever bool
	For     time.Duration
}

// Asked tells whether the destination is asked about rows whose outcome is
// unknown. Where it is not, it is sent them again or a person decides.
func (d *Destination) Asked() bool { return !d.Idempotent && !d.Reconcile.None }

// Kind is the word that routes a row: destination, payload and version.
func (d *Destination) Kind(p *Payload) string {
	return d.Name + "/" + p.Name + "@" + strconv.Itoa(p.Version)
}
