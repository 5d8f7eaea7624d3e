package outbox

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Payloads are written by these functions and never by reflection: idempotency
// keys are made of the bytes, so one value has to give the same bytes in every
// build.

// A jsonWriter collects one JSON text. It keeps the first error; what is put
// after it is left out.
type jsonWriter struct {
	buf    []byte
	redact bool // write what people may see: no secret, and no failure on account of a single value
	depth  int
	err    *pathError
}

// An encoder writes one value.
type encoder[T any] func(T, *jsonWriter)

// marshal returns the JSON that encode writes.
func marshal(encode func(*jsonWriter)) ([]byte, error) {
	w := jsonWriter{buf: make([]byte, 0, 256)}
	encode(&w)
	if w.err != nil {
		return nil, w.err
	}
	return w.buf, nil
}

// redacted returns the JSON that encode writes with every secret replaced.
func redacted(encode func(*jsonWriter)) string {
	w := jsonWriter{redact: true}
	encode(&w)
	if w.err != nil {
		return "{" + w.err.Error() + "}"
	}
	return string(w.buf)
}

// fail is called instead of writing a value that JSON, or the reader of it,
// cannot hold.
func (w *jsonWriter) fail(rule string) {
	if w.redact {
		w.buf = append(w.buf, "null"...)
		return
	}
	w.err = &pathError{rule: rule}
}

// open begins an object or a list.
func (w *jsonWriter) open(bracket byte) {
	w.depth++
	if w.depth > maxDepth && w.err == nil {
		w.err = &pathError{rule: ruleDepth}
	}
	w.buf = append(w.buf, bracket)
}

// close ends what open began.
func (w *jsonWriter) close(bracket byte) {
	w.depth--
	w.buf = append(w.buf, bracket)
}

// comma separates what follows from what stands before it in its object or list.
func (w *jsonWriter) comma() {
	if last := w.buf[len(w.buf)-1]; last != '{' && last != '[' {
		w.buf = append(w.buf, ',')
	}
}

func (w *jsonWriter) name(name string) {
	w.comma()
	w.string(name)
	w.buf = append(w.buf, ':')
}

// string writes s with no more escapes than JSON asks for.
func (w *jsonWriter) string(s string) {
	const hex = "0123456789abcdef"
	w.buf = append(w.buf, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		w.buf = append(w.buf, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			w.buf = append(w.buf, '\\', c)
		case '\n':
			w.buf = append(w.buf, '\\', 'n')
		case '\r':
			w.buf = append(w.buf, '\\', 'r')
		case '\t':
			w.buf = append(w.buf, '\\', 't')
		default:
			w.buf = append(w.buf, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		}
	}
	w.buf = append(w.buf, s[start:]...)
	w.buf = append(w.buf, '"')
}

// put writes a field.
func put[T any](w *jsonWriter, name string, v T, encode encoder[T]) {
	if w.err != nil {
		return
	}
	w.name(name)
	encode(v, w)
	if w.err != nil {
		w.err.within(name)
	}
}

// putOptional writes a field that is left out when it is nil.
func putOptional[T any](w *jsonWriter, name string, v *T, encode encoder[T]) {
	if v != nil {
		put(w, name, *v, encode)
	}
}

// encodeSecret keeps a value from what people see.
func encodeSecret[T any](encode encoder[T]) encoder[T] {
	return func(v T, w *jsonWriter) {
		if w.redact {
			w.buf = append(w.buf, `"[redacted]"`...)
			return
		}
		encode(v, w)
		if w.err != nil {
			w.err.path = ""
		}
	}
}

// encodeQuoted writes a number as a string.
func encodeQuoted[T any](encode encoder[T]) encoder[T] {
	return func(v T, w *jsonWriter) {
		w.buf = append(w.buf, '"')
		encode(v, w)
		w.buf = append(w.buf, '"')
	}
}

// encodeList writes a nil list as an empty one.
func encodeList[T any](encode encoder[T]) encoder[[]T] {
	return func(list []T, w *jsonWriter) {
		w.open('[')
		for i, v := range list {
			if w.err != nil {
				return
			}
			w.comma()
			encode(v, w)
			if w.err != nil {
				w.err.within(indexStep(i))
			}
		}
		w.close(']')
	}
}

// encodeMap writes the entries in the order of their keys, and a nil map as an
// empty one.
func encodeMap[T any](encode encoder[T]) encoder[map[string]T] {
	return func(m map[string]T, w *jsonWriter) {
		w.open('{')
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if w.err != nil {
				return
			}
			w.comma()
			encodeString(key, w)
			w.buf = append(w.buf, ':')
			if w.err == nil {
				encode(m[key], w)
			}
			if w.err != nil {
				w.err.within(keyStep(key))
			}
		}
		w.close('}')
	}
}

func encodeString(s string, w *jsonWriter) {
	if !utf8.ValidString(s) {
		w.fail(ruleText)
		return
	}
	w.string(s)
}

func encodeEnum[T ~string](v T, w *jsonWriter) { encodeString(string(v), w) }

func encodeBool(v bool, w *jsonWriter) { w.buf = strconv.AppendBool(w.buf, v) }

func encodeInt32(v int32, w *jsonWriter) { w.buf = strconv.AppendInt(w.buf, int64(v), 10) }

func encodeInt64(v int64, w *jsonWriter) { w.buf = strconv.AppendInt(w.buf, v, 10) }

func encodeUint64(v uint64, w *jsonWriter) { w.buf = strconv.AppendUint(w.buf, v, 10) }

// encodeFloat64 writes the shortest number that reads back as v, in the form of
// ECMA-262, which other JSON writers use as well.
func encodeFloat64(v float64, w *jsonWriter) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		w.fail(ruleFinite)
		return
	}
	form := byte('f')
	if abs := math.Abs(v); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		form = 'e'
	}
	w.buf = strconv.AppendFloat(w.buf, v, form, -1, 64)
	if n := len(w.buf); form == 'e' && w.buf[n-4] == 'e' && w.buf[n-2] == '0' {
		w.buf = append(w.buf[:n-2], w.buf[n-1]) // e-09 becomes e-9
	}
}

func encodeUUID(v uuid.UUID, w *jsonWriter) { w.string(v.String()) }

// encodeTime writes RFC 3339 in UTC, with as many digits as the fraction has.
func encodeTime(v time.Time, w *jsonWriter) {
	v = v.UTC()
	if !storable(v) {
		w.fail(ruleTime)
		return
	}
	w.buf = append(w.buf, '"')
	w.buf = v.AppendFormat(w.buf, time.RFC3339Nano)
	w.buf = append(w.buf, '"')
}

func encodeBytes(v []byte, w *jsonWriter) {
	w.buf = append(w.buf, '"')
	w.buf = base64.StdEncoding.AppendEncode(w.buf, v)
	w.buf = append(w.buf, '"')
}

// encodeJSON writes v as it is, without the space between its tokens, and nil
// as null.
func encodeJSON(v json.RawMessage, w *jsonWriter) {
	if v == nil {
		w.buf = append(w.buf, "null"...)
		return
	}
	buf := bytes.NewBuffer(w.buf)
	if !wellFormed(v) || json.Compact(buf, v) != nil {
		w.fail(ruleJSON)
		return
	}
	w.buf = buf.Bytes()
}
