package outbox

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
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

// TestLateNewsAreWrittenByTheNextRun has a handler return when its dispatcher has
// stopped without it. What it says is written by the next run, which ends as any.
func TestLateNewsAreWrittenByTheNextRun(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	clock := newFakeClock()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{})
	d.clock = clock
	withPolicy(d, func(p *policy) { p.retryInitial = time.Hour })
	id := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	result := make(chan error, 1)
	go func() { result <- d.Run(ctx) }()
	r.waitCalls(t, 1)
	cancel()
	clock.waitFor(t, d.options.StopLimit)
	clock.advance(d.options.StopLimit)
	clock.waitFor(t, stopGrace)
	clock.advance(stopGrace)
	must(t, <-result)
	g.letGo()
	r.wait(t, func() bool { return len(r.late) == 1 })
	wantRow(t, s, id, StatusPending)
	if _, err := d.RunOnce(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("the next RunOnce: %v", err)
	}
	wantRow(t, s, id, StatusCompleted)
}

// slowBackend is a backend that has a claim, or a purge, wait until it is let go.
type slowBackend struct {
	backend
	slow   atomic.Bool
	begun  chan struct{}
	letGo  chan struct{}
	purges bool
}

func (b *slowBackend) claimDue(ctx context.Context, c claimCall) ([]*claimedRow, error) {
	rows, err := b.backend.claimDue(ctx, c)
	if !b.purges && b.slow.Load() {
		b.begun <- struct{}{}
		<-b.letGo
	}
	return rows, err
}

func (b *slowBackend) purge(ctx context.Context, start OutboxID, limit int, at time.Time) ([]OutboxID, error) {
	if b.purges {
		b.begun <- struct{}{}
		select {
		case <-b.letGo:
		case <-ctx.Done():
		}
	}
	return b.backend.purge(ctx, start, limit, at)
}

// TestStopDuringAClaim stops while a claim is under way. What waits is given back,
// and the limit of the handlers begins, without it; what it has claimed is given
// back when it returns.
func TestStopDuringAClaim(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	slow := &slowBackend{backend: s.backend, begun: make(chan struct{}), letGo: make(chan struct{})}
	s.backend = slow
	r := newRemote()
	stopped := make(chan struct{})
	r.deliver = func(ctx context.Context, _ Delivery) Outcome {
		<-ctx.Done()
		close(stopped)
		return Completed()
	}
	clock := newFakeClock()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{NoListen: true})
	d.clock = clock
	withPolicy(d, func(p *policy) { p.concurrency, p.timeout = 1, time.Hour })
	swift(d)
	ids := enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationMailer))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	result := make(chan error, 1)
	go func() { result <- d.Run(ctx) }()
	r.waitCalls(t, 1)
	wantRowsHeld(t, pool, 2)
	slow.slow.Store(true)
	ids = append(ids, enqueueAll(t, pool, testMessage(DestinationMailer))...)
	clock.advance(d.options.Poll)
	<-slow.begun
	cancel()
	r.wait(t, func() bool { return len(r.returned) == 1 })
	clock.waitFor(t, d.options.StopLimit)
	clock.advance(d.options.StopLimit)
	<-stopped
	r.waitSettled(t, r.calls[0].ID)
	close(slow.letGo)
	must(t, <-result)
	for _, id := range ids {
		if record := getRecord(t, s, id); r.callsOf(id) == 0 && (record.Status != StatusPending || record.Attempt != 0) {
			t.Errorf("%s was not begun, and is %s after %d attempts", id, record.Status, record.Attempt)
		}
	}
	if len(r.calls) != 1 || len(r.returned) != 2 {
		t.Errorf("%d rows were begun, and %d given back, want 1 and 2", len(r.calls), len(r.returned))
	}
	wantRowsHeld(t, pool, 0)
}

// TestAPurgeDelaysNoSweep has a purge take its time: claims of dead workers are taken
// back meanwhile.
func TestAPurgeDelaysNoSweep(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	id := claimOne(t, pool, testMessage(DestinationMailer)).ID
	slow := &slowBackend{backend: s.backend, begun: make(chan struct{}), letGo: make(chan struct{}), purges: true}
	s.backend = slow
	clock := newFakeClock()
	r := newRemote()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{NoListen: true})
	d.clock = clock
	stop := run(t, d)
	<-slow.begun
	ageClaims(t, pool)
	clock.advance(mailerPolicy.lease)
	r.waitSettled(t, id)
	close(slow.letGo)
	must(t, stop())
	wantRow(t, s, id, StatusCompleted)
}

// TestAStopUsesUpNoMessage stops while the last attempt of a row is under way. The
// handler is told to stop, or does not return at all: the row is not failed by it.
func TestAStopUsesUpNoMessage(t *testing.T) {
	for name, deliver := range map[string]func(g *barrier) func(context.Context, Delivery) Outcome{
		"it does not return": func(g *barrier) func(context.Context, Delivery) Outcome { return g.deliver },
		"it asks for another attempt": func(*barrier) func(context.Context, Delivery) Outcome {
			return func(ctx context.Context, _ Delivery) Outcome { <-ctx.Done(); return Retry(ctx.Err()) }
		},
		"it does not know": func(*barrier) func(context.Context, Delivery) Outcome {
			return func(ctx context.Context, _ Delivery) Outcome { <-ctx.Done(); return Unknown(ctx.Err()) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			pool := testPool(t)
			s := New(pool, Options{})
			r := newRemote()
			r.deliver = deliver(newBarrier(t))
			clock := newFakeClock()
			d := r.dispatcher(t, s, SomeHandlers(HandleStock(r)), DispatcherOptions{NoListen: true})
			d.clock = clock
			withPolicy(d, func(p *policy) { p.maxAttempts, p.idempotent = 1, true })
			id := enqueueAll(t, pool, testMessage(DestinationStock))[0]
			ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
			result := make(chan error, 1)
			go func() { result <- d.Run(ctx) }()
			r.waitCalls(t, 1)
			cancel()
			clock.waitFor(t, d.options.StopLimit)
			clock.advance(d.options.StopLimit)
			if name == "it does not return" {
				clock.waitFor(t, stopGrace)
				clock.advance(stopGrace)
			}
			must(t, <-result)
			wantRow(t, s, id, StatusPending)
		})
	}
}
