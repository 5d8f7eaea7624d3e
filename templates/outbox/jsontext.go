package outbox

import (
	"bytes"
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// maxReadDepth bounds how deeply a text that is read may be nested. It is that
// of encoding/json.
const maxReadDepth = 10_000

// jsonNode is one value of a JSON text.
type jsonNode struct {
	start, end int32 // of its text; Postgres stores none that is longer
	next       int32 // index of the node behind it and all that it holds
}

// A jsonText is a JSON text (RFC 8259), checked and taken apart in one pass.
// Its nodes stand in the order of the text: behind an object its names and
// values in turn, behind a list its items.
type jsonText struct {
	data  []byte
	pos   int
	nodes []jsonNode
	err   *pathError // the first of decoding
}

// parseText takes data apart and reports whether it is well-formed.
func parseText(data []byte, maxDepth int) (*jsonText, bool) {
	t := &jsonText{data: data, nodes: make([]jsonNode, 0, 8+len(data)/12)}
	t.space()
	if len(data) > math.MaxInt32 || !t.value(maxDepth) {
		return t, false
	}
	t.space()
	return t, t.pos == len(data)
}

// wellFormed tells whether data is JSON that may stand within a payload.
func wellFormed(data []byte) bool {
	_, ok := parseText(data, maxDepth)
	return ok
}

func (t *jsonText) space() {
	for t.pos < len(t.data) {
		switch t.data[t.pos] {
		case ' ', '\t', '\n', '\r':
			t.pos++
		default:
			return
		}
	}
}

// peek is the next byte, or 0, which begins no token, at the end.
func (t *jsonText) peek() byte {
	if t.pos < len(t.data) {
		return t.data[t.pos]
	}
	return 0
}

// accept skips c if it is the next byte.
func (t *jsonText) accept(c byte) bool {
	if t.peek() != c {
		return false
	}
	t.pos++
	return true
}

// value takes one value apart that nests at most depth deep.
func (t *jsonText) value(depth int) bool {
	at := len(t.nodes)
	t.nodes = append(t.nodes, jsonNode{start: int32(t.pos)})
	var ok bool
	switch t.peek() {
	case '{':
		ok = depth > 0 && t.items('}', func() bool {
			return t.peek() == '"' && t.value(depth) && t.colon() && t.value(depth-1)
		})
	case '[':
		ok = depth > 0 && t.items(']', func() bool { return t.value(depth - 1) })
	case '"':
		ok = t.string()
	case 't':
		ok = t.word("true")
	case 'f':
		ok = t.word("false")
	case 'n':
		ok = t.word("null")
	default:
		ok = t.number()
	}
	t.nodes[at].end, t.nodes[at].next = int32(t.pos), int32(len(t.nodes))
	return ok
}

// items takes apart what stands between two brackets, separated by commas.
func (t *jsonText) items(bracket byte, item func() bool) bool {
	t.pos++
	t.space()
	if t.accept(bracket) {
		return true
	}
	for item() {
		t.space()
		if t.accept(bracket) {
			return true
		}
		if !t.accept(',') {
			return false
		}
		t.space()
	}
	return false
}

func (t *jsonText) colon() bool {
	t.space()
	ok := t.accept(':')
	t.space()
	return ok
}

func (t *jsonText) word(word string) bool {
	if len(t.data)-t.pos < len(word) || string(t.data[t.pos:t.pos+len(word)]) != word {
		return false
	}
	t.pos += len(word)
	return true
}

func (t *jsonText) number() bool {
	t.accept('-')
	if !t.accept('0') && !t.digits() {
		return false
	}
	if t.accept('.') && !t.digits() {
		return false
	}
	if t.accept('e') || t.accept('E') {
		if !t.accept('+') {
			t.accept('-')
		}
		return t.digits()
	}
	return true
}

func (t *jsonText) digits() bool {
	start := t.pos
	for c := t.peek(); '0' <= c && c <= '9'; c = t.peek() {
		t.pos++
	}
	return t.pos > start
}

// string skips a string. Whether its escapes make valid text is not asked here,
// since a text that is only passed on may hold any.
func (t *jsonText) string() bool {
	start := t.pos
	t.pos++
	for t.pos < len(t.data) {
		switch c := t.data[t.pos]; {
		case c == '"':
			t.pos++
			return utf8.Valid(t.data[start:t.pos])
		case c < ' ':
			return false
		case c == '\\':
			if !t.escape() {
				return false
			}
		default:
			t.pos++
		}
	}
	return false
}

func (t *jsonText) escape() bool {
	t.pos++
	switch t.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		t.pos++
		return true
	case 'u':
		t.pos++
		if _, ok := hexRune(t.data[t.pos:]); ok {
			t.pos += 4
			return true
		}
	}
	return false
}

// hexRune reads the four hexadecimal digits that s begins with.
func hexRune(s []byte) (rune, bool) {
	if len(s) < 4 {
		return 0, false
	}
	var r rune
	for i := range 4 {
		switch c := s[i]; {
		case '0' <= c && c <= '9':
			r = r<<4 + rune(c-'0')
		case 'a' <= c && c <= 'f':
			r = r<<4 + rune(c-'a') + 10
		case 'A' <= c && c <= 'F':
			r = r<<4 + rune(c-'A') + 10
		default:
			return 0, false
		}
	}
	return r, true
}

// unescape returns the text that s stands for, the inside of a well-formed
// string. Half of a surrogate pair is no text.
func unescape(s []byte) ([]byte, bool) {
	at := bytes.IndexByte(s, '\\')
	if at < 0 {
		return s, true
	}
	text := make([]byte, 0, len(s))
	for ; at >= 0; at = bytes.IndexByte(s, '\\') {
		text = append(text, s[:at]...)
		escape := s[at+1]
		s = s[at+2:]
		switch escape {
		case 'b':
			text = append(text, '\b')
		case 'f':
			text = append(text, '\f')
		case 'n':
			text = append(text, '\n')
		case 'r':
			text = append(text, '\r')
		case 't':
			text = append(text, '\t')
		case 'u':
			r, _ := hexRune(s)
			s = s[4:]
			if utf16.IsSurrogate(r) {
				if !bytes.HasPrefix(s, []byte(`\u`)) {
					return nil, false
				}
				low, _ := hexRune(s[2:])
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					return nil, false
				}
				s = s[6:]
			}
			text = utf8.AppendRune(text, r)
		default:
			text = append(text, escape)
		}
	}
	return append(text, s...), true
}
