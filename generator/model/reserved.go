package model

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"sync"

	"github.com/outboxgen/outboxgen/templates"
)

// futureNames are the package-level names that the package emits beside its
// fixed files, or keeps for its own growth: a name taken later would break the
// callers of whoever had a payload of that name.
var futureNames = []string{
	"AllHandlers", "Answer", "Arrived", "Claim", "ClaimError", "ClaimRequest", "Columns", "ColumnsFilter",
	"Command", "CommandID", "Completed", "DB", "Date", "Delivery", "Destination", "DestinationStats",
	"Dispatcher", "DispatcherOptions", "Duration", "Enqueued", "Entry", "ErrConflict", "ErrKeyReused",
	"ErrNotFound", "ErrUndecodable", "Failed", "Filter", "Handlers", "KindStats", "Memory", "MemoryDB",
	"Message", "MessageError", "Migrate", "NeverArrived", "New", "NewCommand", "NewDispatcher", "NewMemory",
	"Observer", "Options", "Outcome", "OutboxID", "Payload", "Queued", "Record", "Refused", "Retry",
	"RetryAfter", "Route", "RowCheck", "Settled", "Settlement", "SomeHandlers", "Stats", "Status",
	"StatusCompleted", "StatusDispatching", "StatusFailed", "StatusOutcomeUnknown", "StatusPending",
	"StillUnknown", "StopError", "Store", "Tx", "Unknown", "Unreachable", "Upgrades", "ValidationError",
	"Verify", "Violation",
}

// methodNames are the exported methods that the structs of payloads and types
// have, or get when one of their fields becomes sensitive.
var methodNames = []string{"GoString", "LogValue", "MarshalJSON", "String", "UnmarshalJSON", "Validate"}

// vettedMethods are the methods that go vet (stdmethods) lets no type have in
// another form than that of the standard library.
var vettedMethods = []string{
	"GobDecode", "GobEncode", "MarshalJSON", "MarshalXML", "ReadByte", "ReadRune",
	"UnmarshalJSON", "UnmarshalXML", "UnreadByte", "UnreadRune", "WriteByte",
}

// destinationNames are what one destination declares: each is the text before
// and after its Go name.
var destinationNames = [][2]string{
	{"Destination", ""}, {"To", ""}, {"", "Payload"}, {"", "Handler"}, {"Handle", ""}, {"", "Route"},
}

// ReservedNames returns the exported package-level names that every emitted
// package keeps for itself, sorted. The names that follow from a destination
// or a payload, and those that begin with With, are not among them.
func ReservedNames() []string {
	var names []string
	for _, name := range packageNames() {
		if token.IsExported(name) {
			names = append(names, name)
		}
	}
	return names
}

// packageNames returns every package-level name of the fixed files, and the
// future names, sorted.
var packageNames = sync.OnceValue(func() []string {
	names := slices.Clone(futureNames)
	files := token.NewFileSet()
	for _, file := range templates.Runtime() {
		parsed, err := parser.ParseFile(files, file.Name, file.Source, parser.SkipObjectResolution)
		if err != nil {
			panic(err) // the file is part of a package that compiles
		}
		for _, declaration := range parsed.Decls {
			names = append(names, declaredNames(declaration)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
})

func declaredNames(declaration ast.Decl) []string {
	var names []string
	switch declaration := declaration.(type) {
	case *ast.FuncDecl:
		if declaration.Recv == nil {
			names = append(names, declaration.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range declaration.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, spec.Name.Name)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					names = append(names, name.Name)
				}
			}
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "_" })
}

// reservedPattern tells whether a name is kept for functions of the package
// that begin with With.
func reservedPattern(name string) bool {
	rest, ok := strings.CutPrefix(name, "With")
	return ok && token.IsExported(rest)
}
