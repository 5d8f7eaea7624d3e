package schema

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// kind is what a node is, whatever is wanted in its place.
type kind int

const (
	broken kind = iota // reported already: whoever reads it says nothing more
	mapping
	list
	text
	number
	boolean
	null
)

// node is one value of the file.
type node struct {
	pos     Pos
	label   string // what messages call it: the key that it stands under
	kind    kind
	value   string  // of a scalar
	entries []entry // of a mapping, in the order of the file, each key once
	items   []*node // of a list
}

type entry struct {
	key   string
	pos   Pos // of the key
	value *node
}

func (e entry) name() Text { return Text{Value: e.key, Pos: e.pos} }

// describe says what n is, for messages.
func (n *node) describe() string {
	switch n.kind {
	case mapping:
		return "a mapping"
	case list:
		return "a list"
	case text:
		return "the text " + quote(n.value)
	case number:
		return "the number " + clip(n.value)
	case boolean:
		return "the boolean " + n.value
	default:
		return "nothing"
	}
}

// quote writes text from the file so that it stays on one line of a message.
func quote(s string) string { return strconv.Quote(clip(s)) }

func clip(s string) string {
	const longest = 80
	if runes := []rune(s); len(runes) > longest {
		return string(runes[:longest]) + "…"
	}
	return s
}

// decoder collects what is read and what is wrong with it.
type decoder struct {
	file        string
	diags       Diagnostics
	suggestions int // made so far

	types    map[string]*Type
	payloads map[string]*Payload

	// routesUnclear: an item of accepts is at fault, so that the payload that it
	// was meant to name cannot be told.
	routesUnclear bool
}

// fault adds a diagnostic; what it returns adds to that.
func (d *decoder) fault(code Code, pos Pos, format string, args ...any) faultRef {
	d.diags = append(d.diags, Diagnostic{Code: code, Pos: pos, Message: fmt.Sprintf(format, args...)})
	return faultRef{&d.diags[len(d.diags)-1]}
}

type faultRef struct{ diag *Diagnostic }

func (f faultRef) hint(text string) faultRef {
	f.diag.Hint = text
	return f
}

func (f faultRef) related(pos Pos, message string) faultRef {
	f.diag.Related = append(f.diag.Related, Related{Pos: pos, Message: message})
	return f
}

// wrongKind reports that n is not what is wanted.
func (d *decoder) wrongKind(n *node, want string) {
	if n.kind == broken {
		return
	}
	if n.kind == null {
		d.fault(CodeWrongKind, n.pos, "%s has no value; %s is wanted", n.label, want)
		return
	}
	d.fault(CodeWrongKind, n.pos, "%s must be %s, found %s", n.label, want, n.describe())
}

// object is a mapping with a fixed set of keys.
type object struct {
	d       *decoder
	what    string // for messages
	pos     Pos    // where a missing key is reported: the key of the owner
	entries map[string]entry
}

// object reads a mapping with the given keys and reports all others.
func (d *decoder) object(n *node, owner Pos, what string, keys []string) (object, bool) {
	if n.kind != mapping {
		d.wrongKind(n, "a mapping")
		return object{}, false
	}
	o := object{d: d, what: what, pos: owner, entries: make(map[string]entry, len(n.entries))}
	for _, e := range n.entries {
		if !slices.Contains(keys, e.key) {
			d.unknownKey(e, what, keys)
			continue
		}
		o.entries[e.key] = e
	}
	return o, true
}

// get is the value under key, nil when there is none.
func (o object) get(key string) *node { return o.entries[key].value }

// keyPos is the place of key.
func (o object) keyPos(key string) Pos { return o.entries[key].pos }

// need is get for a required key.
func (o object) need(key, hint string) *node {
	n := o.get(key)
	if n == nil {
		o.d.fault(CodeMissingKey, o.pos, "%s has no %s", o.what, key).hint(hint)
	}
	return n
}

// text reads a text. It may hold line breaks and tabs, and no other control
// character.
func (d *decoder) text(n *node) Text {
	if n == nil {
		return Text{}
	}
	switch n.kind {
	case text:
		if r := controlIn(n.value, "\n\t"); r >= 0 {
			d.fault(CodeText, n.pos, "%s holds the control character %U", n.label, r)
			return Text{}
		}
		return Text{Value: n.value, Pos: n.pos}
	case number, boolean:
		d.fault(CodeWrongKind, n.pos, "%s must be a text, found %s", n.label, n.describe()).
			hint(fmt.Sprintf("put it in quotes: \"%s\"", clip(n.value)))
	case mapping, list:
		d.fault(CodeWrongKind, n.pos, "%s must be a text, found %s", n.label, n.describe()).
			hint("a text that begins with { or [ stands in quotes")
	default:
		d.wrongKind(n, "a text")
	}
	return Text{}
}

// controlIn is the first control character of s that is not allowed, -1 when
// there is none.
func controlIn(s, allowed string) rune {
	for _, r := range s {
		if unicode.IsControl(r) && !strings.ContainsRune(allowed, r) {
			return r
		}
	}
	return -1
}

// flag reads a boolean.
func (d *decoder) flag(n *node) Flag {
	if n == nil {
		return Flag{}
	}
	if n.kind != boolean {
		d.wrongKind(n, "true or false")
		return Flag{}
	}
	return Flag{Value: strings.EqualFold(n.value, "true"), Pos: n.pos}
}

// wholeNumber is how whole numbers are written: what YAML 1.1 and 1.2 read
// differently (0123, 1_000, 0b11) is left out.
var wholeNumber = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*)$`)

// maxInt keeps whole numbers within an int of every platform and an integer of
// Postgres.
const maxInt = 1<<31 - 1

// integer reads a whole number from least to maxInt.
func (d *decoder) integer(n *node, least int) Int {
	if n == nil {
		return Int{}
	}
	if n.kind != number {
		d.wrongKind(n, "a whole number")
		return Int{}
	}
	if !wholeNumber.MatchString(n.value) {
		d.fault(CodeWrongKind, n.pos, "%s must be a whole number, found %s", n.label, n.describe()).
			hint("write it in decimal digits, without leading zeros")
		return Int{}
	}
	value, err := strconv.ParseInt(n.value, 10, 64)
	if err != nil || value < int64(least) || value > maxInt {
		d.fault(CodeRange, n.pos, "%s must be from %d to %d, found %s", n.label, least, maxInt, clip(n.value))
		return Int{}
	}
	return Int{Value: int(value), Pos: n.pos}
}

// fraction is how numbers with a fractional part are written.
var fraction = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?$`)

// float reads a number that ok accepts; want says which these are.
func (d *decoder) float(n *node, want string, ok func(float64) bool) Float {
	if n == nil {
		return Float{}
	}
	if n.kind != number || !fraction.MatchString(n.value) {
		d.wrongKind(n, "a number")
		return Float{}
	}
	value, err := strconv.ParseFloat(n.value, 64)
	if err != nil || !ok(value) {
		d.fault(CodeRange, n.pos, "%s must be %s, found %s", n.label, want, clip(n.value))
		return Float{}
	}
	return Float{Value: value, Pos: n.pos}
}

// oneOf reads a text that must be one of the allowed ones; "" when it is not.
func (d *decoder) oneOf(n *node, allowed []string) string {
	t := d.text(n)
	if !t.IsSet() {
		return ""
	}
	if !slices.Contains(allowed, t.Value) {
		f := d.fault(CodeNotAllowed, t.Pos, "%s cannot be %s", n.label, quote(t.Value))
		if near := d.nearest(t.Value, allowed); near != "" {
			f.hint(fmt.Sprintf("did you mean %s?", near))
		} else {
			f.hint("allowed: " + strings.Join(allowed, ", "))
		}
		return ""
	}
	return t.Value
}
