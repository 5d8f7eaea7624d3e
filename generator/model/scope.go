package model

import (
	"fmt"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outboxgen/outboxgen/schema"
)

// The faults of names.
const (
	// CodeNoIdentifier: a name of which no Go identifier can be made.
	CodeNoIdentifier schema.Code = "OBX2001"
	// CodeClash: two names that give one Go name.
	CodeClash schema.Code = "OBX2002"
	// CodeReserved: a name that gives a Go name of the package's own.
	CodeReserved schema.Code = "OBX2003"
	// CodeMethod: a field or a payload that gives the name of a method.
	CodeMethod schema.Code = "OBX2004"
	// CodeInitialism: an initialism to remove that is not in the table.
	CodeInitialism schema.Code = "OBX2005"
)

// claim is an element of the specification that wants Go names.
type claim struct {
	what   string     // the element, as a message names it
	pos    schema.Pos // of its go_name, or else of its name
	prefix string     // what stands before goName in Go: the type of an enum's value
	goName string     // "" where the name gives none
	spelt  string     // what a proposal starts from
	suffix string     // what a proposal adds
	names  func(goName string) []string
	owner  *claim // the enum's type, where the element is a value
	value  string // the value, where the element is one
	failed bool
}

// holder is who has a name of a scope.
type holder struct {
	what string
	pos  schema.Pos
}

// scope is a set of Go names of which each may be given once.
type scope struct {
	holders  map[string]holder
	versions map[string]holder // by Go name: the payloads, whose earlier versions are <name>V<n>
	reserved func(name string) (code schema.Code, reason string, reserved bool)
	taken    map[string]bool // what claims want and what was proposed
	report   func(schema.Diagnostic)
}

func newScope(report func(schema.Diagnostic), reserved func(string) (schema.Code, string, bool)) *scope {
	return &scope{
		holders:  map[string]holder{},
		versions: map[string]holder{},
		reserved: reserved,
		taken:    map[string]bool{},
		report:   report,
	}
}

// packageReserved are the names that the package keeps for itself, and the
// methods that its interfaces cannot have.
func packageReserved(name string) (schema.Code, string, bool) {
	if isMethod(name) {
		_, method, _ := strings.Cut(name, ".")
		return CodeMethod, "which go vet wants in the form of the standard library", slices.Contains(vettedMethods, method)
	}
	_, fixed := slices.BinarySearch(packageNames(), name)
	return CodeReserved, "which the package keeps for itself", fixed || reservedPattern(name)
}

// isMethod tells whether a name of the package is <interface>.<method>.
func isMethod(name string) bool { return strings.Contains(name, ".") }

// structReserved are the names of a struct's methods.
func structReserved(name string) (schema.Code, string, bool) {
	return CodeMethod, "which is a method of the struct", slices.Contains(methodNames, name)
}

func nothingReserved(string) (schema.Code, string, bool) { return "", "", false }

// declare gives the claims their names, in the order of the file, and reports
// each that cannot have its own. A claim that fails takes no name away from
// those behind it.
func (s *scope) declare(claims []*claim) {
	slices.SortStableFunc(claims, func(a, b *claim) int {
		if a.pos.Line != b.pos.Line {
			return a.pos.Line - b.pos.Line
		}
		return a.pos.Column - b.pos.Column
	})
	for _, c := range claims {
		if c.goName != "" {
			for _, name := range c.names(c.goName) {
				s.taken[name] = true
			}
		}
	}
	for _, c := range claims {
		switch {
		case c.owner != nil && c.owner.failed:
			// Another name for the type gives its values other names too.
		case c.goName == "":
			s.fail(c, CodeNoIdentifier, "gives no Go identifier", nil)
		default:
			s.give(c)
		}
	}
}

// give enters the names of one claim, or none of them.
func (s *scope) give(c *claim) {
	names := c.names(c.goName)
	for _, name := range names {
		gives := "gives the Go name " + name + ", "
		if isMethod(name) {
			gives = "gives the method " + name + ", "
		}
		if code, reason, ok := s.reserved(name); ok {
			s.fail(c, code, gives+reason, nil)
			return
		}
		if other, ok := s.holders[name]; ok {
			s.fail(c, CodeClash, gives+"which "+other.what+" gives too",
				[]schema.Related{{Pos: other.pos, Message: other.what + " is here"}})
			return
		}
		if other, ok := s.versions[versionOf(name)]; ok {
			s.fail(c, CodeReserved, gives+"which is kept for an earlier version of "+other.what,
				[]schema.Related{{Pos: other.pos, Message: other.what + " is here"}})
			return
		}
	}
	for _, name := range names {
		s.holders[name] = holder{what: c.what, pos: c.pos}
	}
}

func (s *scope) fail(c *claim, code schema.Code, reason string, related []schema.Related) {
	c.failed = true
	s.report(schema.Diagnostic{
		Code:    code,
		Pos:     c.pos,
		Message: c.what + " " + reason,
		Hint:    s.hint(c),
		Related: related,
	})
}

// hint proposes a go_name that is free.
func (s *scope) hint(c *claim) string {
	proposal := s.propose(c)
	if c.owner != nil {
		return fmt.Sprintf("write it as {value: %s, go_name: %s}", strconv.Quote(c.value), proposal)
	}
	return "set go_name, such as go_name: " + proposal
}

func (s *scope) propose(c *claim) string {
	for n := 1; ; n++ {
		number := ""
		if n > 1 {
			number = strconv.Itoa(n)
		}
		candidates := []string{c.spelt + c.suffix + number, c.suffix + c.spelt + number}
		if n == 1 {
			candidates = slices.Insert(candidates, 0, c.spelt)
		}
		for _, candidate := range candidates {
			if isGoName(c.prefix, candidate) && s.free(c.names(candidate)) {
				for _, name := range c.names(candidate) {
					s.taken[name] = true
				}
				return candidate
			}
		}
	}
}

func (s *scope) free(names []string) bool {
	for _, name := range names {
		_, _, reserved := s.reserved(name)
		_, held := s.holders[name]
		_, version := s.versions[versionOf(name)]
		if reserved || held || version || s.taken[name] {
			return false
		}
	}
	return true
}

// isGoName tells whether a name, behind a prefix that may be empty, is an
// exported Go identifier that shows where the prefix ends.
func isGoName(prefix, name string) bool {
	first, _ := utf8.DecodeRuneInString(name)
	return name != "" && !unicode.IsLower(first) && token.IsIdentifier(prefix+name) && token.IsExported(prefix+name)
}

// versionOf is the payload's part of a name of the form <payload>V<n>, or "".
func versionOf(name string) string {
	payload := strings.TrimRight(name, "0123456789")
	if payload == name {
		return ""
	}
	payload, ok := strings.CutSuffix(payload, "V")
	if !ok {
		return ""
	}
	return payload
}

func quote(text string) string { return strconv.Quote(text) }
