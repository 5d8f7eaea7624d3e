package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Diagnostic is one fault of a specification or of what was made from it.
type Diagnostic struct {
	Code    Code
	Pos     Pos
	Message string // one line
	Hint    string // how to mend it, one line; "" when the message says it
	Related []Related
}

// Related is a second place that a fault has to do with.
type Related struct {
	Pos     Pos
	Message string
}

// String is the text of p: file, line and column as far as they are known.
func (p Pos) String() string {
	if !p.IsValid() {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// String is the fault as people read it: the place and the message on the first
// line, then the hint and the other places, indented.
func (d Diagnostic) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: error %s: %s", d.Pos, d.Code, d.Message)
	if d.Hint != "" {
		fmt.Fprintf(&b, "\n    hint: %s", d.Hint)
	}
	for _, r := range d.Related {
		fmt.Fprintf(&b, "\n    %s: %s", r.Pos, r.Message)
	}
	return b.String()
}

// Diagnostics are all the faults that were found. Each of them is an error:
// there are no warnings.
type Diagnostics []Diagnostic

// HasErrors tells whether there is a fault.
func (ds Diagnostics) HasErrors() bool { return len(ds) > 0 }

// Sort orders ds by file, line, column, code and message.
func (ds Diagnostics) Sort() {
	slices.SortStableFunc(ds, func(a, b Diagnostic) int {
		return cmp.Or(
			cmp.Compare(a.Pos.File, b.Pos.File),
			cmp.Compare(a.Pos.Line, b.Pos.Line),
			cmp.Compare(a.Pos.Column, b.Pos.Column),
			cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Message, b.Message),
		)
	})
}

// String has every fault on a line of its own, with its indented lines.
func (ds Diagnostics) String() string {
	lines := make([]string, len(ds))
	for i, d := range ds {
		lines[i] = d.String()
	}
	return strings.Join(lines, "\n")
}
