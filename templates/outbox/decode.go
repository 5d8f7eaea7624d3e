package outbox

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Payloads are read by these functions: what a field must be is checked where
// it is read, an error says where it stands and never what it is, and fields
// that are not known are passed over.

// A jsonValue is one value of a text.
type jsonValue struct {
	text       *jsonText
	raw        []byte // its bytes
	first, end int    // nodes of what it holds
}

// A decoder reads one value. It reports what is wrong through fail.
type decoder[T any] func(jsonValue) T

// decodable is a pointer to a T that reads itself.
type decodable[T any] interface {
	*T
	decode(jsonValue)
}

// decodeText reads a whole JSON text.
func decodeText[T any, D decodable[T]](data []byte) (T, error) {
	var v T
	text, ok := parseText(data, maxReadDepth)
	if !ok {
		return v, &pathError{rule: "must be well-formed JSON: byte " + strconv.Itoa(text.pos)}
	}
	D(&v).decode(text.at(0))
	if text.err != nil {
		var none T
		return none, text.err
	}
	return v, nil
}

// unmarshal is UnmarshalJSON: v is set as a whole, or not at all. As is the
// custom, null changes nothing.
func unmarshal[T any, D decodable[T]](data []byte, v D) error {
	if string(data) == "null" {
		return nil
	}
	read, err := decodeText[T, D](data)
	if err == nil {
		*v = read
	}
	return err
}

func (t *jsonText) at(node int) jsonValue {
	n := t.nodes[node]
	return jsonValue{text: t, raw: t.data[n.start:n.end], first: node + 1, end: int(n.next)}
}

// behind is the node behind a node and all that it holds.
func (t *jsonText) behind(node int) int { return int(t.nodes[node].next) }

// kind is the byte that the value begins with.
func (v jsonValue) kind() byte { return v.raw[0] }

// fail reports the rule that the value breaks. Only the first one counts.
func (v jsonValue) fail(rule string) {
	if v.text.err == nil {
		v.text.err = &pathError{rule: rule}
	}
}

// object is v, or an object without fields after v has been reported as none.
func (v jsonValue) object() jsonValue {
	if v.kind() != '{' {
		v.fail("must be an object")
		v.end = v.first
	}
	return v
}

// field finds a field of an object; of several with one name the last counts.
func (v jsonValue) field(name string) (jsonValue, bool) {
	found := -1
	for key := v.first; key < v.end; key = v.text.behind(key + 1) {
		if v.text.isName(key, name) {
			found = key + 1
		}
	}
	if found < 0 {
		return v, false
	}
	return v.text.at(found), true
}

func (t *jsonText) isName(node int, name string) bool {
	n := t.nodes[node]
	raw := t.data[n.start+1 : n.end-1]
	if len(raw) <= len(name) {
		return string(raw) == name // escapes only make it longer
	}
	text, ok := unescape(raw)
	return ok && string(text) == name
}

// required reads a field that has to be there; null is the same as none.
func required[T any](object jsonValue, name string, decode decoder[T]) T {
	v, ok := object.field(name)
	if !ok || v.kind() == 'n' {
		decode = missing[T]
	}
	return decodeField(v, name, decode)
}

// requiredOrNull reads a field that has to be there and may be null.
func requiredOrNull[T any](object jsonValue, name string, decode decoder[T]) T {
	v, ok := object.field(name)
	if !ok {
		decode = missing[T]
	}
	return decodeField(v, name, decode)
}

// optional reads a field that may be left out; null is the same as none.
func optional[T any](object jsonValue, name string, decode decoder[T]) T {
	v, ok := object.field(name)
	if !ok || v.kind() == 'n' {
		var none T
		return none
	}
	return decodeField(v, name, decode)
}

func missing[T any](v jsonValue) T {
	v.fail("must be present")
	var none T
	return none
}

func decodeField[T any](v jsonValue, name string, decode decoder[T]) T {
	var value T
	if v.text.err != nil {
		return value
	}
	value = decode(v)
	if v.text.err != nil {
		v.text.err.within(name)
	}
	return value
}

func decodePointer[T any](decode decoder[T]) decoder[*T] {
	return func(v jsonValue) *T {
		value := decode(v)
		return &value
	}
}

// decodeSecret keeps the keys of maps within a secret out of errors: what is
// wrong is said of the secret as a whole.
func decodeSecret[T any](decode decoder[T]) decoder[T] {
	return func(v jsonValue) T {
		value := decode(v)
		if v.text.err != nil {
			v.text.err.path = ""
		}
		return value
	}
}

// numeral is the text of a number that is written as such or as a string.
func (v jsonValue) numeral() ([]byte, bool) {
	if v.kind() != '"' {
		return v.raw, v.kind() == '-' || v.kind() <= '9'
	}
	inside := jsonText{data: v.raw[1 : len(v.raw)-1]}
	return inside.data, inside.number() && inside.pos == len(inside.data)
}

// decodeQuoted reads a number that is written as a string.
func decodeQuoted[T any](decode decoder[T]) decoder[T] {
	return func(v jsonValue) T {
		text, ok := v.numeral()
		if !ok || v.kind() != '"' {
			v.fail("must be a number written as a string")
			var none T
			return none
		}
		v.raw = text
		return decode(v)
	}
}

func decodeObject[T any, D decodable[T]](v jsonValue) T {
	var value T
	D(&value).decode(v)
	return value
}

func decodeList[T any](decode decoder[T]) decoder[[]T] {
	return func(v jsonValue) []T {
		if v.kind() != '[' {
			v.fail("must be a list")
			return nil
		}
		list := []T{}
		for node := v.first; node < v.end && v.text.err == nil; node = v.text.behind(node) {
			list = append(list, decode(v.text.at(node)))
			if v.text.err != nil {
				v.text.err.within(indexStep(len(list) - 1))
			}
		}
		return list
	}
}

func decodeMap[T any](decode decoder[T]) decoder[map[string]T] {
	return func(v jsonValue) map[string]T {
		if v.kind() != '{' {
			v.fail("must be an object")
			return nil
		}
		m := map[string]T{}
		for node := v.first; node < v.end && v.text.err == nil; node = v.text.behind(node + 1) {
			key := decodeString(v.text.at(node))
			m[key] = decode(v.text.at(node + 1))
			if v.text.err != nil {
				v.text.err.within(keyStep(key))
			}
		}
		return m
	}
}

// content is the text of a string.
func (v jsonValue) content() ([]byte, bool) {
	if v.kind() != '"' {
		return nil, false
	}
	return unescape(v.raw[1 : len(v.raw)-1])
}

func decodeString(v jsonValue) string {
	text, ok := v.content()
	if !ok {
		v.fail("must be a string of valid Unicode")
	}
	return string(text)
}

func decodeEnum[T ~string](v jsonValue) T { return T(decodeString(v)) }

func decodeBool(v jsonValue) bool {
	if v.kind() != 't' && v.kind() != 'f' {
		v.fail("must be true or false")
	}
	return v.kind() == 't'
}

func decodeInt32(v jsonValue) int32 {
	i, err := strconv.ParseInt(string(v.raw), 10, 32)
	if err != nil {
		v.fail("must be a whole number from -2147483648 to 2147483647")
	}
	return int32(i)
}

func decodeInt64(v jsonValue) int64 {
	i, err := strconv.ParseInt(string(v.raw), 10, 64)
	if err != nil {
		v.fail("must be a whole number from -9223372036854775808 to 9223372036854775807")
	}
	return i
}

func decodeUint64(v jsonValue) uint64 {
	i, err := strconv.ParseUint(string(v.raw), 10, 64)
	if err != nil {
		v.fail("must be a whole number from 0 to 18446744073709551615")
	}
	return i
}

func decodeFloat64(v jsonValue) float64 {
	f, err := strconv.ParseFloat(string(v.raw), 64)
	if err != nil {
		v.fail("must be a number within the range of a float64")
	}
	return f
}

func decodeUUID(v jsonValue) uuid.UUID {
	text, _ := v.content()
	id, err := uuid.ParseBytes(text)
	if err != nil {
		v.fail("must be a UUID")
	}
	return id
}

func decodeTime(v jsonValue) time.Time {
	text, _ := v.content()
	var t time.Time
	if err := t.UnmarshalText(text); err != nil || !storable(t.UTC()) {
		v.fail("must be a time in RFC 3339 within the years 1 to 9999")
	}
	return t.UTC()
}

func decodeBytes(v jsonValue) []byte {
	text, ok := v.content()
	data, err := base64.StdEncoding.AppendDecode([]byte{}, text)
	if !ok || err != nil {
		v.fail("must be a string in base64")
	}
	return data
}

// decodeJSON keeps the value as it is. Null is nil.
func decodeJSON(v jsonValue) json.RawMessage {
	if v.kind() == 'n' {
		return nil
	}
	return slices.Clone(v.raw)
}
