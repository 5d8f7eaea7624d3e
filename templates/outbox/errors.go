package outbox

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// What a store answers. All of them come wrapped: test with errors.Is, and use
// errors.As with [MessageError] or [ClaimError] for the details.
var (
	// ErrNotFound says that there is no such row, or no longer.
	ErrNotFound = errors.New("no such row")
	// ErrConflict says that the row is not in a state that allows the operation,
	// or that the claim is not the row's current one. The row was not changed.
	ErrConflict = errors.New("conflict")
	// ErrKeyReused says that the idempotency key of a message is taken by
	// another message: of another type, or of the same with other content.
	ErrKeyReused = errors.New("the idempotency key is taken by another message")
	// ErrUndecodable says that a stored payload could not be read.
	ErrUndecodable = errors.New("the stored payload cannot be read")
)

// MessageError says which message of a call to Enqueue was refused, and why.
// Nothing of that call was inserted, and the transaction can be used further.
type MessageError struct {
	Index       int         // of the message in the call, from 0
	Destination Destination // that the message is addressed to
	ExistingID  OutboxID    // of the row that has the key, with ErrKeyReused; zero = an earlier message of the call had it
	Err         error
}

func (e *MessageError) Error() string {
	text := fmt.Sprintf("outbox: message %d for %s: %v", e.Index, e.Destination, e.Err)
	if e.ExistingID != (OutboxID{}) {
		text += " (" + e.ExistingID.String() + ")"
	}
	return text
}

// Unwrap returns the reason.
func (e *MessageError) Unwrap() error { return e.Err }

// ClaimError says which row an operation did not change, and why.
type ClaimError struct {
	Operation   string
	ID          OutboxID
	Destination Destination // empty with ErrNotFound
	Status      Status      // that the row was found in; empty with ErrNotFound
	Err         error       // ErrNotFound or ErrConflict
}

func (e *ClaimError) Error() string {
	if e.Status == "" {
		return fmt.Sprintf("outbox: %s %s: %v", e.Operation, e.ID, e.Err)
	}
	return fmt.Sprintf("outbox: %s %s %s: %v: the row is %s", e.Operation, e.Destination, e.ID, e.Err, e.Status)
}

// Unwrap returns ErrNotFound or ErrConflict.
func (e *ClaimError) Unwrap() error { return e.Err }

// ValidationError lists every rule that a payload breaks.
type ValidationError struct {
	Payload    string // the type of the payload, as in the table
	Violations []Violation
}

// Violation is a rule that one value breaks. Neither text holds the value.
type Violation struct {
	Path string // as in lines[2].quantity or labels["a b"]
	Rule string // as in "must be at least 1"
}

func (e *ValidationError) Error() string {
	var text strings.Builder
	text.WriteString(e.Payload)
	separator := ": "
	for _, v := range e.Violations {
		text.WriteString(separator + v.Path + " " + v.Rule)
		separator = "; "
	}
	return text.String()
}

// The lengths, in bytes, to which texts are cut before they are stored.
const (
	maxText   = 8 << 10 // of a failure or a remote reference
	maxWorker = 64      // of a worker's name: a longer one would push a claim off its page
)

// cleanText makes any text one that Postgres stores: NUL and bytes that are no
// UTF-8 are replaced, and what is too long is cut between characters.
func cleanText(s string, limit int) string {
	// Cut before as well, so that cleaning megabytes costs nothing; and after,
	// since a replacement is longer than what it replaces.
	s = strings.ToValidUTF8(cutText(s, limit), "\uFFFD")
	return cutText(strings.ReplaceAll(s, "\x00", "\uFFFD"), limit)
}

// cutText cuts s between characters, so that it is no longer than limit bytes.
func cutText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := limit
	for end > limit-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
