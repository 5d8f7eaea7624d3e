package outboxtest

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/templates/outbox"
)

// Deliver enqueues a message in memory, has a dispatcher do one round when it is
// due, and returns its record as it then is. The test stops when none of the
// handlers is for the message.
//
// Where completed rows are not kept, the record is that of the row before, with
// the status completed.
func Deliver(t testing.TB, handlers outbox.Handlers, command outbox.Command, message outbox.Message) outbox.Record {
	t.Helper()
	d := begin(t, handlers, command, message)
	if d.round() == 0 {
		t.Fatalf("the %v was not claimed: no handler is for it, or it has expired", message)
	}
	return d.get()
}

// CrashPoint is where a worker dies.
type CrashPoint string

const (
	// BeforeSend is when the row was claimed and its handler not yet called.
	BeforeSend CrashPoint = "before send"
	// AfterSend is when the handler has returned and its outcome is not written.
	AfterSend CrashPoint = "after send"
	// AfterSettle is when the outcome is written.
	AfterSettle CrashPoint = "after settle"
)

// maxRounds is the number of rounds in which a message must come to its end.
const maxRounds = 1000

// DeliverWithCrash is Deliver by a worker that dies at a point of its first
// attempt. When its lease has run out others go on, and the clock with them, to
// each retry and each question about an unknown outcome, until the message is
// completed, has failed, or is left to a person. The test stops when it comes to no
// such end.
//
// Run it for every point: what the handlers have called by then shows whether
// they bear it.
func DeliverWithCrash(t testing.TB, handlers outbox.Handlers, command outbox.Command, message outbox.Message, point CrashPoint) outbox.Record {
	t.Helper()
	d := begin(t, handlers, command, message)
	d.crash(point)
	d.outliveLease()
	for range maxRounds {
		record := d.get()
		if record.Status == outbox.StatusCompleted || record.Status == outbox.StatusFailed {
			return record
		}
		if d.round() == 0 {
			return d.get()
		}
	}
	t.Fatalf("after %d rounds the message has come to no end: %v", maxRounds, d.get())
	return outbox.Record{}
}

// delivery is a message in a store of its own, whose clock stands still but for
// the moves that are made.
type delivery struct {
	testing.TB
	store    Memory
	handlers outbox.Handlers
	row      outbox.Record // as it was last seen
	now      time.Time
}

func begin(t testing.TB, handlers outbox.Handlers, command outbox.Command, message outbox.Message) *delivery {
	t.Helper()
	d := &delivery{TB: t, store: NewMemory(t, outbox.Options{}), handlers: handlers}
	d.move(time.Now())
	err := pgx.BeginFunc(t.Context(), d.store, func(tx pgx.Tx) error {
		answers, err := d.store.With(tx).Enqueue(t.Context(), command, message)
		if err == nil {
			d.row.ID = answers[0].ID
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	d.get()
	return d
}

// move sets the clock, which never goes back.
func (d *delivery) move(to time.Time) {
	if to.After(d.now) {
		d.now = to
		d.store.SetClock(func() time.Time { return to })
	}
}

// get reads the row. One that is gone has completed.
func (d *delivery) get() outbox.Record {
	d.Helper()
	row, err := d.store.Get(d.Context(), d.row.ID)
	switch {
	case err == nil:
		d.row = row
	case errors.Is(err, outbox.ErrNotFound):
		d.row.Status = outbox.StatusCompleted
	default:
		d.Fatal(err)
	}
	return d.row
}

func (d *delivery) dispatcher(options outbox.DispatcherOptions) *outbox.Dispatcher {
	d.Helper()
	dispatcher, err := outbox.NewDispatcher(d.store.Store, d.handlers, options)
	if err != nil {
		d.Fatal(err)
	}
	return dispatcher
}

// round has a worker do one round once the row is due, or its question, and
// returns how many rows it has claimed.
func (d *delivery) round() int {
	d.Helper()
	d.move(d.row.NextAttemptAt)
	n, err := d.dispatcher(outbox.DispatcherOptions{}).RunOnce(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	return n
}

// crash has a worker do one round and die at a point of it. Before anything is
// sent, or settled, it is held there until its dispatcher has stopped, which then
// cannot write what follows.
func (d *delivery) crash(point CrashPoint) {
	d.Helper()
	d.move(d.row.NextAttemptAt)
	var worker *outbox.Dispatcher
	reached, stopped := make(chan struct{}), make(chan struct{})
	die := func() {
		close(reached)
		worker.Abort()
	}
	options := outbox.DispatcherOptions{Logger: slog.New(slog.DiscardHandler)} // the dead tell nothing
	switch point {
	case BeforeSend:
		options.Observer.Started = func(context.Context, outbox.DeliveryInfo) context.Context {
			die()
			<-stopped
			runtime.Goexit() // so that the handler is not called
			return nil
		}
	case AfterSend:
		options.Observer.Delivered = func(context.Context, outbox.DeliveryInfo, outbox.Outcome, time.Duration) {
			die()
			<-stopped
		}
	case AfterSettle:
		options.Observer.Settled = func(outbox.DeliveryInfo, outbox.Settlement) { die() }
	}
	worker = d.dispatcher(options)
	_, err := worker.RunOnce(d.Context())
	close(stopped)
	select {
	case <-reached:
	default:
		d.Fatalf("the worker has not died %s: no handler is for the message, or it has expired", point)
	}
	var held *outbox.StopError
	if err != nil && !errors.As(err, &held) {
		d.Fatal(err)
	}
}

// outliveLease moves the clock on until the row is held by nobody.
func (d *delivery) outliveLease() {
	d.Helper()
	for d.get().Status == outbox.StatusDispatching {
		d.move(d.now.Add(time.Second))
		if _, err := d.store.ReleaseExpiredClaims(d.Context(), time.Time{}); err != nil {
			d.Fatal(err)
		}
	}
}
