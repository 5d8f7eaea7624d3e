package outbox

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// Status is where a row stands in its life.
type Status string

// The statuses of a row. Completed and failed rows have ended: no worker moves
// them any more.
const (
	StatusPending        Status = "pending"         // waits to be sent
	StatusDispatching    Status = "dispatching"     // a worker holds it
	StatusCompleted      Status = "completed"       // was delivered
	StatusFailed         Status = "failed"          // was given up; only Requeue sends it again
	StatusOutcomeUnknown Status = "outcome_unknown" // may have been delivered; is not sent again by itself
)

// Claim is the right to settle one row, as a claiming call has given it. Every
// settle names the claim that it speaks for and changes nothing when another
// has been given since. The zero Claim settles nothing.
type Claim struct {
	ID    OutboxID
	Token int64 // random, drawn for each claiming call; 0 = never claimed
}

// Entry is a claimed row.
type Entry struct {
	Claim          Claim
	ID             OutboxID
	CommandID      CommandID
	Columns        Columns
	Destination    Destination
	PayloadType    string
	PayloadVersion int
	IdempotencyKey string            // the same at every attempt
	Headers        map[string]string // nil when there are none
	Payload        Payload           // nil when DecodeErr is set
	Raw            []byte            // the payload as it was enqueued, byte for byte
	DecodeErr      error             // wraps ErrUndecodable; such a row is best failed with it
	Attempt        int               // counts from 1, this one included
	EnqueuedAt     time.Time         // by the clock of the host that enqueued
	ExpiresAt      time.Time         // zero = it does not expire
	LastAttemptAt  time.Time         // when the attempt before was claimed or last extended; zero = there was none, or the row has ended
	RemoteRef      string            // what an earlier attempt learnt from the remote
	OrderKey       string            // encoded; empty = not ordered
	LimitKey       string            // encoded; empty = the limits of the destination hold
}

// Record is a row as it stands, whatever its status.
type Record struct {
	Entry
	Status        Status
	NextAttemptAt time.Time // zero = due, or ended; of an unknown outcome: the next question
	Worker        string    // that holds the row; empty = nobody
	ClaimedAt     time.Time // zero = nobody holds the row
	UnknownSince  time.Time // zero = the outcome is not unknown
	LastFailure   string
	CompletedAt   time.Time // when the row completed or failed; zero = it is alive
	Holding       bool      // a failed row that holds its key: see Skip and Requeue
}

// summary is what may be shown of a row: never its payload or its headers.
type summary struct {
	ID          OutboxID    `json:"id"`
	Destination Destination `json:"destination"`
	PayloadType string      `json:"payload_type"`
	Version     int         `json:"payload_version"`
	Attempt     int         `json:"attempt"`
	Status      Status      `json:"status,omitempty"`
}

func (e Entry) summary() summary {
	return summary{ID: e.ID, Destination: e.Destination, PayloadType: e.PayloadType, Version: e.PayloadVersion, Attempt: e.Attempt}
}

func (r Record) summary() summary {
	s := r.Entry.summary()
	s.Status = r.Status
	return s
}

func (s summary) String() string {
	text := fmt.Sprintf("%s %s/%s@%d attempt %d", s.ID, s.Destination, s.PayloadType, s.Version, s.Attempt)
	if s.Status != "" {
		text += " " + string(s.Status)
	}
	return text
}

func (s summary) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("id", s.ID.String()), slog.String("destination", string(s.Destination)),
		slog.String("payload_type", s.PayloadType), slog.Int("payload_version", s.Version), slog.Int("attempt", s.Attempt),
	}
	if s.Status != "" {
		attrs = append(attrs, slog.String("status", string(s.Status)))
	}
	return slog.GroupValue(attrs...)
}

// String names the row and never shows its payload.
func (e Entry) String() string { return e.summary().String() }

// GoString is String.
func (e Entry) GoString() string { return e.String() }

// Format writes String by any verb: fmt asks String for those of text only.
func (e Entry) Format(f fmt.State, _ rune) { io.WriteString(f, e.String()) }

// LogValue names the row for log/slog and never shows its payload.
func (e Entry) LogValue() slog.Value { return e.summary().LogValue() }

// MarshalJSON names the row, since loggers marshal what stands within slices.
// The payload is in Raw.
func (e Entry) MarshalJSON() ([]byte, error) { return json.Marshal(e.summary()) }

// String names the row and its status and never shows its payload.
func (r Record) String() string { return r.summary().String() }

// GoString is String.
func (r Record) GoString() string { return r.String() }

// Format writes String by any verb: fmt asks String for those of text only.
func (r Record) Format(f fmt.State, _ rune) { io.WriteString(f, r.String()) }

// LogValue names the row for log/slog and never shows its payload.
func (r Record) LogValue() slog.Value { return r.summary().LogValue() }

// MarshalJSON names the row, since loggers marshal what stands within slices.
// The payload is in Raw.
func (r Record) MarshalJSON() ([]byte, error) { return json.Marshal(r.summary()) }

// decodeHeaders fills Headers from their JSON, or says why it cannot.
func (e *Entry) decodeHeaders(text string) {
	if text != "" && json.Unmarshal([]byte(text), &e.Headers) != nil {
		e.Headers = nil
		e.DecodeErr = fmt.Errorf("%w: the headers are no object of texts", ErrUndecodable)
	}
}

// decodePayload fills Payload from Raw, or says why it cannot.
func (e *Entry) decodePayload() {
	if e.DecodeErr != nil {
		return
	}
	read := readerOf(codecKey{e.PayloadType, int32(e.PayloadVersion)})
	if read == nil {
		e.DecodeErr = fmt.Errorf("%w: %s version %d is not known to this program", ErrUndecodable, e.PayloadType, e.PayloadVersion)
		return
	}
	payload, err := read(e.Raw)
	if err != nil {
		e.DecodeErr = fmt.Errorf("%w: %s version %d: %w", ErrUndecodable, e.PayloadType, e.PayloadVersion, err)
		return
	}
	e.Payload = payload
}
