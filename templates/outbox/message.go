package outbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Destination is an external system that messages are dispatched to, by the
// name that it has in the table.
type Destination string

// OutboxID is the id of one row: a UUIDv7, so ids sort in the order of creation.
type OutboxID uuid.UUID

// ParseOutboxID reads an id as String writes it.
func ParseOutboxID(s string) (OutboxID, error) {
	id, err := uuid.Parse(s)
	if err != nil {
		return OutboxID{}, fmt.Errorf("outbox: %q is no outbox id", s)
	}
	return OutboxID(id), nil
}

func (id OutboxID) String() string { return uuid.UUID(id).String() }

// MarshalText writes the id as String does.
func (id OutboxID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText reads what MarshalText writes.
func (id *OutboxID) UnmarshalText(text []byte) error { return (*uuid.UUID)(id).UnmarshalText(text) }

// createdAt is the instant that a UUIDv7 was drawn at, in whole milliseconds.
func (id OutboxID) createdAt() time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16))
}

// A Message is a payload that is addressed to a destination. The To functions
// make it. Its methods return a changed copy.
type Message struct {
	destination Destination
	payload     Payload
	declaredKey string // made of the payload's fields
	callerKey   string
	keyed       bool // callerKey was given
	orderKey    string
	limitKey    string
	due         time.Time
	expires     time.Time
	headers     map[string]string
}

// At delays the message: it is not sent before t.
func (m Message) At(t time.Time) Message {
	m.due = t
	return m
}

// ExpiresAt fails the message, unsent, when it has not been delivered by t. It
// takes the place of the age that the destination declares.
func (m Message) ExpiresAt(t time.Time) Message {
	m.expires = t
	return m
}

// WithKey gives the idempotency key: a second message for the same destination
// with the same key is a duplicate of the first and is not stored, and the
// remote can tell by it that it is asked again. Without a key one is made of the
// command, the payload and its content. A destination that declares its key
// takes no other: Enqueue refuses the message. The key has 1 to 1,024 bytes.
func (m Message) WithKey(key string) Message {
	m.callerKey, m.keyed = key, true
	return m
}

// WithHeader adds a header, which the handler gets beside the payload.
func (m Message) WithHeader(name, value string) Message {
	m.headers = maps.Clone(m.headers)
	if m.headers == nil {
		m.headers = make(map[string]string, 1)
	}
	m.headers[name] = value
	return m
}

// String says where the message goes and never what it holds.
func (m Message) String() string {
	if m.payload == nil {
		return "message for " + string(m.destination)
	}
	return fmt.Sprintf("message for %s: %s", m.destination, m.payload.payloadType())
}

// GoString is String.
func (m Message) GoString() string { return m.String() }

// Format writes String by any verb: fmt asks String for those of text only.
func (m Message) Format(f fmt.State, _ rune) { io.WriteString(f, m.String()) }

// LogValue is String for log/slog.
func (m Message) LogValue() slog.Value { return slog.StringValue(m.String()) }

// MarshalJSON is String, since loggers marshal what stands within slices.
func (m Message) MarshalJSON() ([]byte, error) { return json.Marshal(m.String()) }

// maxKey is the longest key in bytes: an index of Postgres takes about 2,700 in
// all.
const maxKey = 1024

// newRow is a message as it is stored.
type newRow struct {
	id          OutboxID
	destination Destination
	payloadType string
	version     int32
	payload     string
	key         string
	orderKey    string // empty = not ordered
	limitKey    string // empty = not limited
	headers     string // JSON; empty = none
	due         time.Time
	expires     time.Time
	lifetime    time.Duration // where expires is zero; 0 = it does not expire
}

// prepare checks a message and makes the row of it. The id is still missing.
func (m Message) prepare(command Command, equals map[string]int) (newRow, error) {
	if m.payload == nil {
		return newRow{}, errors.New("there is no payload: make the message with a To function and a payload that is not nil")
	}
	if err := m.payload.Validate(); err != nil {
		return newRow{}, err
	}
	for _, t := range []time.Time{m.due, m.expires} {
		if err := checkTime(t); err != nil {
			return newRow{}, err
		}
	}
	if !m.due.IsZero() && !m.expires.IsZero() && !m.expires.After(m.due) {
		return newRow{}, errors.New("the message would expire before it is due")
	}
	lifetime := policyOf(m.destination).expires
	if m.expires.IsZero() && lifetime > 0 && time.Until(m.due) >= lifetime {
		return newRow{}, fmt.Errorf("the message would expire before it is due: %s gives it %s, unless ExpiresAt gives it longer", m.destination, lifetime)
	}
	headers, err := encodeHeaders(m.headers)
	if err != nil {
		return newRow{}, err
	}
	payload, err := m.payload.MarshalJSON()
	if err != nil {
		return newRow{}, err
	}
	row := newRow{
		destination: m.destination, payloadType: m.payload.payloadType(), version: m.payload.payloadVersion(),
		payload: string(payload), orderKey: m.orderKey, limitKey: m.limitKey, headers: headers,
		due: m.due, expires: m.expires, lifetime: lifetime,
	}
	switch {
	case m.keyed && m.declaredKey != "":
		return newRow{}, fmt.Errorf("the idempotency key of %s is made of the payload's fields: leave WithKey out", m.destination)
	case m.keyed:
		row.key = m.callerKey
	case m.declaredKey != "":
		row.key = m.declaredKey
	default:
		row.key = derivedKey(command, row, equals)
	}
	if row.key == "" {
		return newRow{}, errors.New("the idempotency key is empty")
	}
	for _, key := range []struct{ name, value string }{
		{"idempotency key", row.key}, {"order key", row.orderKey}, {"limit key", row.limitKey},
	} {
		if len(key.value) > maxKey {
			return newRow{}, fmt.Errorf("the %s is longer than %d bytes", key.name, maxKey)
		}
		if !storableText(key.value) {
			return newRow{}, fmt.Errorf("the %s holds NUL or is not UTF-8", key.name)
		}
	}
	return row, nil
}

// checkTime refuses a time that Postgres or RFC 3339 cannot hold, before it is
// sent: afterwards a transaction of the caller's could not be used any more.
func checkTime(t time.Time) error {
	if !storable(t) {
		return errors.New("a time must lie within the years 1 to 9999")
	}
	return nil
}

// storable tells whether Postgres and RFC 3339 both can hold the time.
func storable(t time.Time) bool { return t.Year() >= 1 && t.Year() <= 9999 }

// storableText tells whether a column of type text can hold the text.
func storableText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func encodeHeaders(headers map[string]string) (string, error) {
	if len(headers) == 0 {
		return "", nil
	}
	for name, value := range headers {
		if name == "" || !utf8.ValidString(name) || !utf8.ValidString(value) {
			return "", errors.New("a header has no name or is not UTF-8")
		}
	}
	text, err := json.Marshal(headers)
	return string(text), err
}

// keyEscapes are what joinKey writes in place of its separator, of its escape
// character, and of what no text of Postgres holds.
var keyEscapes = strings.NewReplacer("%", "%25", ":", "%3A", "\x00", "%00")

// joinKey makes one key of several values. It loses nothing, so that different
// values never give the same key, and it is never empty.
func joinKey(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = keyEscapes.Replace(part)
	}
	key := strings.Join(escaped, ":")
	if key == "" {
		return "%" // which no value gives
	}
	return key
}

// derivedKey is the key of a message that has no other: the same command that
// sends the same content to the same destination again means the same message,
// unless one call sends it twice. The form is frozen, since a deploy may
// enqueue again what the deploy before has enqueued.
func derivedKey(command Command, row newRow, equals map[string]int) string {
	hash := sha256.New()
	for _, part := range []string{command.id.String(), string(row.destination), row.payloadType, row.payload} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		hash.Write(length[:])
		hash.Write([]byte(part))
	}
	key := "sha256:" + hex.EncodeToString(hash.Sum(nil))
	n := equals[key]
	equals[key]++
	if n > 0 {
		key += ":" + strconv.Itoa(n)
	}
	return key
}
