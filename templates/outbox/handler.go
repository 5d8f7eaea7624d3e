package outbox

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// Outcome is how a delivery ended: what a handler returns. [Completed], [Retry],
// [RetryAfter], [Failed], [Unreachable] and [Unknown] make it. The zero Outcome
// is Unknown, as is a handler that panics or does not return in time.
type Outcome struct {
	kind  outcomeKind
	err   error
	after time.Duration // of outcomeRetryAfter
	ref   string
}

type outcomeKind int

const (
	outcomeUnknown outcomeKind = iota
	outcomeCompleted
	outcomeRetry
	outcomeRetryAfter
	outcomeFailed
	outcomeUnreachable
)

// Completed says that the message has arrived.
func Completed() Outcome { return Outcome{kind: outcomeCompleted} }

// Retry says that the message has not arrived, and that another attempt may
// succeed. It is made by the schedule of the destination; after the last attempt
// the row fails with err.
func Retry(err error) Outcome { return Outcome{kind: outcomeRetry, err: err} }

// RetryAfter is Retry with a delay in place of the schedule's, such as a remote
// asks for. It counts as an attempt as well.
func RetryAfter(d time.Duration, err error) Outcome {
	return Outcome{kind: outcomeRetryAfter, err: err, after: d}
}

// Failed says that the message has not arrived and never will, as when the
// remote refuses it: the row fails with err.
func Failed(err error) Outcome { return Outcome{kind: outcomeFailed, err: err} }

// Unreachable says that nothing was sent, since the destination could not be
// reached. The message is sent later, and the attempt is not counted.
func Unreachable(err error) Outcome { return Outcome{kind: outcomeUnreachable, err: err} }

// Unknown says that the message may or may not have arrived. Where the
// destination is idempotent it is sent again, as by [Retry]; where it is not, the
// row waits as outcome_unknown until somebody has found out.
func Unknown(err error) Outcome { return Outcome{err: err} }

// WithRef returns a copy of the outcome with the reference under which the remote
// knows the message. The row keeps it when it completes, or waits as
// outcome_unknown.
func (o Outcome) WithRef(ref string) Outcome {
	o.ref = ref
	return o
}

// String is the kind of the outcome and the text of its error.
func (o Outcome) String() string {
	var kind string
	switch o.kind {
	case outcomeUnknown:
		kind = "unknown"
	case outcomeCompleted:
		kind = "completed"
	case outcomeRetry:
		kind = "retry"
	case outcomeRetryAfter:
		kind = "retry after " + o.after.String()
	case outcomeFailed:
		kind = "failed"
	case outcomeUnreachable:
		kind = "unreachable"
	}
	return withReason(kind, o.err)
}

// Answer is what a remote has said about a message that may or may not have
// arrived: what the Reconcile methods of handlers return. [Arrived],
// [NeverArrived], [Refused] and [StillUnknown] make it. The zero Answer is
// StillUnknown.
type Answer struct {
	kind answerKind
	err  error
	ref  string
}

type answerKind int

const (
	answerUnknown answerKind = iota
	answerArrived
	answerNeverArrived
	answerRefused
)

// Arrived says that the message has arrived: the row completes. The reference is
// the one under which the remote knows the message; it may be empty.
func Arrived(ref string) Answer { return Answer{kind: answerArrived, ref: ref} }

// NeverArrived says that the message has not arrived, and that no attempt is
// still under way: it is sent again, or fails when its attempts are used up.
func NeverArrived() Answer { return Answer{kind: answerNeverArrived} }

// Refused says that the remote got the message and has not accepted it: the row
// fails with err.
func Refused(err error) Answer { return Answer{kind: answerRefused, err: err} }

// StillUnknown says that the remote could not tell, or could not be asked. It is
// asked again by the schedule of the destination.
func StillUnknown(err error) Answer { return Answer{err: err} }

// String is the kind of the answer and the text of its error.
func (a Answer) String() string {
	var kind string
	switch a.kind {
	case answerUnknown:
		kind = "still unknown"
	case answerArrived:
		kind = "arrived"
	case answerNeverArrived:
		kind = "never arrived"
	case answerRefused:
		kind = "refused"
	}
	return withReason(kind, a.err)
}

// withReason adds the text of an error, which may be nil, to a word. It leaves
// the text to fmt, which bears an Error method that panics.
func withReason(kind string, err error) string {
	if err == nil {
		return kind
	}
	return fmt.Sprintf("%s: %v", kind, err)
}

// Delivery is what a handler learns of a message beside its payload.
type Delivery struct {
	ID             OutboxID
	CommandID      CommandID
	Columns        Columns
	Destination    Destination
	PayloadType    string
	PayloadVersion int               // that the message was enqueued with
	IdempotencyKey string            // the same at every attempt
	Attempt        int               // counts from 1; of a question: the attempts so far
	Headers        map[string]string // nil when there are none
	Raw            []byte            // the payload as it was enqueued, byte for byte
	EnqueuedAt     time.Time         // by the clock of the host that enqueued
	ExpiresAt      time.Time         // zero = it does not expire
	LastAttemptAt  time.Time         // when the attempt before was claimed or last extended; zero = there was none
	RemoteRef      string            // what an earlier attempt learnt from the remote
	OrderKey       string            // encoded; empty = not ordered
	LimitKey       string            // encoded; empty = the limits of the destination hold
}

func (d Delivery) summary() summary {
	return summary{ID: d.ID, Destination: d.Destination, PayloadType: d.PayloadType, Version: d.PayloadVersion, Attempt: d.Attempt}
}

// String names the message and never shows its payload.
func (d Delivery) String() string { return d.summary().String() }

// GoString is String.
func (d Delivery) GoString() string { return d.String() }

// Format writes String by any verb: fmt asks String for those of text only.
func (d Delivery) Format(f fmt.State, _ rune) { io.WriteString(f, d.String()) }

// LogValue names the message for log/slog and never shows its payload.
func (d Delivery) LogValue() slog.Value { return d.summary().LogValue() }

// MarshalJSON names the message, since loggers marshal what stands within slices.
// The payload is in Raw.
func (d Delivery) MarshalJSON() ([]byte, error) { return json.Marshal(d.summary()) }
