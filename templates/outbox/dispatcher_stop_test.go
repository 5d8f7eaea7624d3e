package outbox

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// barrier is a handler that waits until it is let go. It passes over its context.
type barrier struct {
	open chan struct{}
	once sync.Once
}

func newBarrier(t testing.TB) *barrier {
	g := &barrier{open: make(chan struct{})}
	t.Cleanup(g.letGo)
	return g
}

func (g *barrier) letGo() { g.once.Do(func() { close(g.open) }) }

func (g *barrier) deliver(context.Context, Delivery) Outcome {
	<-g.open
	return Completed()
}

// swift makes a dispatcher believe that its handlers take no time, so that it
// claims as far ahead as it ever does.
func swift(d *Dispatcher) {
	for _, c := range d.consumers {
		c.pace = 1
	}
}

// TestStop stops a dispatcher with calls under way and rows that wait.
func TestStop(t *testing.T) {
	const rows, running = 100, 8
	pool := testPool(t)
	s := New(pool, Options{})
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	var messages []Message
	for range rows {
		messages = append(messages, testMessage(DestinationMailer))
	}
	ids := enqueueAll(t, pool, messages...)
	d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{})
	swift(d)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	result := make(chan error, 1)
	go func() { result <- d.Run(ctx) }()
	r.waitCalls(t, running)
	wantRowsHeld(t, pool, rows)
	cancel()
	r.wait(t, func() bool { return len(r.returned) == rows-running })
	wantRowsHeld(t, pool, running)
	if len(result) > 0 {
		t.Fatalf("Run has returned %v with handlers under way", <-result)
	}
	g.letGo()
	if err := <-result; err != nil {
		t.Errorf("Run returned %v", err)
	}
	completed := 0
	for _, id := range ids {
		switch record := getRecord(t, s, id); {
		case r.callsOf(id) == 1:
			completed++
			wantRow(t, s, id, StatusCompleted)
		case record.Status != StatusPending || record.Attempt != 0:
			t.Errorf("%s was not begun, and is %s after %d attempts", id, record.Status, record.Attempt)
		}
	}
	if completed != running {
		t.Errorf("%d rows were completed, want %d", completed, running)
	}
	wantSound(t, s)
}

// TestHandlersOutliveRun has the context of a handler go on when that of Run has
// ended, and end by the limit.
func TestHandlersOutliveRun(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r := newRemote()
	stopping := make(chan struct{})
	alive := make(chan error, 1)
	r.deliver = func(ctx context.Context, _ Delivery) Outcome {
		<-stopping
		alive <- ctx.Err()
		<-ctx.Done()
		return Retry(errors.New("told to stop"))
	}
	d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{StopLimit: time.Millisecond})
	id := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	clock := newFakeClock()
	d.clock = clock
	result := make(chan error, 1)
	go func() { result <- d.Run(ctx) }()
	r.waitCalls(t, 1)
	cancel()
	clock.waitFor(t, d.options.StopLimit) // Run waits for the handler
	close(stopping)
	if err := <-alive; err != nil {
		t.Errorf("before the limit the context of the handler has ended: %v", err)
	}
	clock.advance(d.options.StopLimit)
	if err := <-result; err != nil {
		t.Errorf("Run returned %v", err)
	}
	if record := wantRow(t, s, id, StatusPending); record.LastFailure != "told to stop" {
		t.Errorf("the last failure is %q", record.LastFailure)
	}
}

// TestStopWithoutTheHandler stops while handlers do not return whatever happens.
func TestStopWithoutTheHandler(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	clock := newFakeClock()
	d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{})
	d.clock = clock
	ids := enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationPayments))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	result := make(chan error, 1)
	go func() { result <- d.Run(ctx) }()
	r.waitCalls(t, 2)
	cancel()
	clock.waitFor(t, d.options.StopLimit)
	clock.advance(d.options.StopLimit)
	clock.waitFor(t, stopGrace)
	clock.advance(stopGrace)
	if err := <-result; err != nil {
		t.Errorf("Run returned %v", err)
	}
	wantRow(t, s, ids[0], StatusPending)
	wantRow(t, s, ids[1], StatusOutcomeUnknown)
	g.letGo()
	r.wait(t, func() bool { return len(r.late) == 2 })
	wantRow(t, s, ids[0], StatusPending)
	wantRow(t, s, ids[1], StatusOutcomeUnknown)
}

// TestAbort ends everything at once: what is held stays held.
func TestAbort(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r := newRemote()
	r.deliver = func(ctx context.Context, _ Delivery) Outcome {
		<-ctx.Done()
		return Completed()
	}
	d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{})
	id := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
	result := make(chan error, 1)
	go func() { result <- d.Run(context.WithoutCancel(t.Context())) }()
	r.waitCalls(t, 1)
	d.Abort()
	var stopped *StopError
	if err := <-result; !errors.As(err, &stopped) || len(stopped.Unsettled) != 1 || stopped.Unsettled[0] != id {
		t.Errorf("Run returned %v, want a StopError of the row", err)
	}
	wantRow(t, s, id, StatusDispatching)
	wantErrorText(t, d.Run(t.Context()), "was aborted")
	d.Abort() // again does no harm
}

func TestRunTwiceAtOnce(t *testing.T) {
	pool := testPool(t)
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	d := r.dispatcher(t, New(pool, Options{}), r.handlers(), DispatcherOptions{})
	wantErrorText(t, d.Ready(t.Context()), "does not run")
	enqueueAll(t, pool, testMessage(DestinationMailer))
	stop := run(t, d)
	r.waitCalls(t, 1)
	if err := d.Ready(t.Context()); err != nil {
		t.Errorf("Ready: %v", err)
	}
	_, err := d.RunOnce(t.Context())
	wantErrorText(t, err, "runs already")
	execSQL(t, pool, "ALTER TABLE outbox_outcome RENAME TO elsewhere")
	wantErrorText(t, d.Ready(t.Context()), "outbox_outcome")
	execSQL(t, pool, "ALTER TABLE elsewhere RENAME TO outbox_outcome")
	g.letGo()
	must(t, stop())
	wantErrorText(t, d.Ready(t.Context()), "does not run")
}
