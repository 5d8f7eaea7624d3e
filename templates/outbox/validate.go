package outbox

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// checks collects violations.
type checks struct {
	violations []Violation
	depth      int
	tooDeep    bool // which ends the search: a value that contains itself has no end
}

// A rule reports what is wrong with a value through fail.
type rule[T any] func(T, *checks)

// validate reports what check finds in a payload.
func validate(payload string, check func(*checks)) error {
	var c checks
	check(&c)
	if len(c.violations) == 0 {
		return nil
	}
	return &ValidationError{Payload: payload, Violations: c.violations}
}

// fail reports the rule that the value at hand breaks.
func (c *checks) fail(rule string) { c.violations = append(c.violations, Violation{Rule: rule}) }

// within puts the violations from the one at first on under one more step.
func (c *checks) within(step string, first int) {
	for i := first; i < len(c.violations); i++ {
		c.violations[i].Path = joinPath(step, c.violations[i].Path)
	}
}

// apply applies rules to a value one step down and returns where the violations
// begin that it adds.
func apply[T any](c *checks, v T, rules []rule[T]) int {
	first := len(c.violations)
	if c.depth == maxDepth-1 && !c.tooDeep { // the payload itself is a level, too
		c.tooDeep = true
		c.fail(ruleDepth)
	}
	if c.tooDeep {
		return first
	}
	c.depth++
	for _, rule := range rules {
		rule(v, c)
	}
	c.depth--
	return first
}

// check applies rules to a field.
func check[T any](c *checks, name string, v T, rules ...rule[T]) {
	c.within(name, apply(c, v, rules))
}

// ifSet applies rules to what an optional field points to.
func ifSet[T any](rules ...rule[T]) rule[*T] {
	return func(v *T, c *checks) {
		if v == nil {
			return
		}
		for _, rule := range rules {
			rule(*v, c)
		}
	}
}

// each applies rules to the items of a list.
func each[T any](rules ...rule[T]) rule[[]T] {
	return func(list []T, c *checks) {
		for i, v := range list {
			if first := apply(c, v, rules); first < len(c.violations) {
				c.within(indexStep(i), first)
			}
		}
	}
}

// entries applies rules to the values of a map. Its keys have to be text.
func entries[T any](rules ...rule[T]) rule[map[string]T] {
	return func(m map[string]T, c *checks) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			first := apply(c, m[key], rules)
			validText(key, c)
			if first < len(c.violations) {
				c.within(keyStep(key), first)
			}
		}
	}
}

// secret keeps the keys of maps within a secret out of violations: what is wrong
// is said of the secret as a whole.
func secret[T any](rules ...rule[T]) rule[T] {
	return func(v T, c *checks) {
		first := len(c.violations)
		for _, rule := range rules {
			rule(v, c)
		}
		for i := first; i < len(c.violations); i++ {
			c.violations[i].Path = ""
		}
	}
}

func validText(s string, c *checks) {
	if !utf8.ValidString(s) {
		c.fail(ruleText)
	}
}

// declared reports a value of an enum that is none of its constants.
func declared[T interface{ Valid() bool }](v T, c *checks) {
	if !v.Valid() {
		c.fail("must be one of the declared values")
	}
}

func finite(v float64, c *checks) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		c.fail(ruleFinite)
	}
}

func validTime(v time.Time, c *checks) {
	if !storable(v.UTC()) {
		c.fail(ruleTime)
	}
}

func validJSON(v json.RawMessage, c *checks) {
	if v != nil && !wellFormed(v) {
		c.fail(ruleJSON)
	}
}

func atLeast[T cmp.Ordered](limit T) rule[T] {
	return func(v T, c *checks) {
		if v < limit {
			c.fail(fmt.Sprintf("must be at least %v", limit))
		}
	}
}

func atMost[T cmp.Ordered](limit T) rule[T] {
	return func(v T, c *checks) {
		if v > limit {
			c.fail(fmt.Sprintf("must be at most %v", limit))
		}
	}
}

func nonZero[T comparable](v T, c *checks) {
	var zero T
	if v == zero {
		c.fail(ruleNonZero)
	}
}

func nonZeroTime(v time.Time, c *checks) {
	if v.IsZero() {
		c.fail(ruleNonZero)
	}
}

// minLength counts code points.
func minLength(n int) rule[string] {
	return func(s string, c *checks) { atLeastOf(utf8.RuneCountInString(s), n, "character", c) }
}

// maxLength counts code points.
func maxLength(n int) rule[string] {
	return func(s string, c *checks) { atMostOf(utf8.RuneCountInString(s), n, "character", c) }
}

func minBytes(n int) rule[[]byte] {
	return func(b []byte, c *checks) { atLeastOf(len(b), n, "byte", c) }
}

func maxBytes(n int) rule[[]byte] {
	return func(b []byte, c *checks) { atMostOf(len(b), n, "byte", c) }
}

func minItems[T any](n int) rule[[]T] {
	return func(list []T, c *checks) { atLeastOf(len(list), n, "item", c) }
}

func maxItems[T any](n int) rule[[]T] {
	return func(list []T, c *checks) { atMostOf(len(list), n, "item", c) }
}

func minEntries[T any](n int) rule[map[string]T] {
	return func(m map[string]T, c *checks) { atLeastOf(len(m), n, "item", c) }
}

func maxEntries[T any](n int) rule[map[string]T] {
	return func(m map[string]T, c *checks) { atMostOf(len(m), n, "item", c) }
}

func atLeastOf(count, limit int, noun string, c *checks) {
	if count < limit {
		c.fail("must have at least " + quantity(limit, noun))
	}
}

func atMostOf(count, limit int, noun string, c *checks) {
	if count > limit {
		c.fail("must have at most " + quantity(limit, noun))
	}
}

func quantity(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

func matches(pattern *regexp.Regexp) rule[string] {
	return func(s string, c *checks) {
		if !pattern.MatchString(s) {
			c.fail("must match " + pattern.String())
		}
	}
}
