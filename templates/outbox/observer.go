package outbox

import (
	"context"
	"time"
)

// Observer is told of what a dispatcher does. Any of its functions may be nil.
// They are called from several goroutines, some while a call waits for them, so
// they return soon.
type Observer struct {
	// Claimed tells how many rows of a destination were claimed at once.
	Claimed func(destination Destination, rows int)
	// Started tells that a handler is about to be called. What it returns is the
	// context of the call; it is made from ctx.
	Started func(ctx context.Context, about DeliveryInfo) context.Context
	// Delivered tells how a delivery has ended and how long it took. ctx is that
	// of the call and may be over. A panic or a call that did not return in time
	// is the zero Outcome.
	Delivered func(ctx context.Context, about DeliveryInfo, outcome Outcome, took time.Duration)
	// Answered tells what a question about an unknown outcome has given.
	Answered func(ctx context.Context, about DeliveryInfo, answer Answer, took time.Duration)
	// Settled tells that a settlement was written.
	Settled func(about DeliveryInfo, s Settlement)
	// Lost tells that the claim of a row was lost: its lease ran out, or somebody
	// else has settled it. What the handler did is not written.
	Lost func(about DeliveryInfo)
	// CircuitChanged tells that a destination, or a limit key of it, is left alone
	// since it cannot be reached, or is not any more. key is empty for all of it.
	CircuitChanged func(destination Destination, key string, open bool)
	// Failed tells that a statement of the dispatcher's own failed, which is tried
	// again: claim, recall, settle, extend, release, expire, purge or listen.
	Failed func(operation string, err error)
}

// DeliveryInfo says what a call of an [Observer] is about.
type DeliveryInfo struct {
	ID             OutboxID
	CommandID      CommandID
	Destination    Destination
	PayloadType    string
	PayloadVersion int
	Attempt        int               // counts from 1
	Headers        map[string]string // not to be changed
	EnqueuedAt     time.Time         // by the clock of the host that enqueued
	Question       bool              // it is asked about, not delivered
}

func infoOf(t *task) DeliveryInfo {
	e := t.row
	return DeliveryInfo{
		ID: e.ID, CommandID: e.CommandID, Destination: e.Destination, PayloadType: e.PayloadType, PayloadVersion: e.PayloadVersion,
		Attempt: e.Attempt, Headers: e.Headers, EnqueuedAt: e.EnqueuedAt, Question: t.question,
	}
}

func (o *Observer) claimed(destination Destination, rows int) {
	if o.Claimed != nil && rows > 0 {
		o.Claimed(destination, rows)
	}
}

func (o *Observer) lost(t *task) {
	if o.Lost != nil {
		o.Lost(infoOf(t))
	}
}

func (o *Observer) circuitChanged(destination Destination, key string, open bool) {
	if o.CircuitChanged != nil {
		o.CircuitChanged(destination, key, open)
	}
}

func (o *Observer) failed(operation string, err error) {
	if o.Failed != nil {
		o.Failed(operation, err)
	}
}
