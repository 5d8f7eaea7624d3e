package outbox

import (
	"strconv"
	"strings"
)

// The rules that follow from the types of the fields. A rule never holds a
// value, which may be a secret.
const (
	ruleText    = "must be valid UTF-8"
	ruleFinite  = "must be a finite number"
	ruleTime    = "must be a time within the years 1 to 9999"
	ruleJSON    = "must be well-formed JSON, nested at most 1,000 deep"
	ruleDepth   = "must be nested at most 1,000 deep"
	ruleNonZero = "must not be zero"
)

// maxDepth bounds how deeply a value may be nested when it is written, so that
// one which contains itself is refused.
const maxDepth = 1000

// pathError says which rule a value breaks that is written or read, and where
// it stands. The path is put together on the way out.
type pathError struct {
	path string
	rule string
}

func (e *pathError) Error() string { return strings.TrimPrefix(e.path+" "+e.rule, " ") }

// within puts the path under one more step.
func (e *pathError) within(step string) { e.path = joinPath(step, e.path) }

// joinPath puts a path under one more step, the name of a field or one that
// indexStep or keyStep made: lines, [2] and quantity give lines[2].quantity.
func joinPath(step, path string) string {
	if path == "" || path[0] == '[' {
		return step + path
	}
	return step + "." + path
}

func indexStep(i int) string { return "[" + strconv.Itoa(i) + "]" }

func keyStep(key string) string { return "[" + strconv.Quote(key) + "]" }
