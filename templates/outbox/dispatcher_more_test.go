package outbox

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPartialWorker leaves all of the destinations alone that it does not handle.
func TestPartialWorker(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r := newRemote()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{})
	ids := enqueueAll(t, pool, testMessage(DestinationPayments), testMessage(DestinationPayments), testMessage(DestinationMailer), testMessage(DestinationMailer))
	if _, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "dead", Limits: map[Destination]int{DestinationPayments: 1, DestinationMailer: 1}, At: longAgo}); err != nil {
		t.Fatal(err)
	}
	execSQL(t, pool, "UPDATE outbox_queue SET expires_at = clock_timestamp() WHERE claim_taken_at IS NULL")
	if _, err := d.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantRow(t, s, ids[0], StatusDispatching)
	wantRow(t, s, ids[1], StatusPending)
	if record := wantRow(t, s, ids[2], StatusCompleted); record.Attempt != 2 {
		t.Errorf("the abandoned row took %d attempts", record.Attempt)
	}
	if record := wantRow(t, s, ids[3], StatusFailed); record.LastFailure != "expired" {
		t.Errorf("the row that has expired: %q", record.LastFailure)
	}
}

// TestAnUnreadableRow is failed alone, and no handler called.
func TestAnUnreadableRow(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r := newRemote()
	ids := enqueueAll(t, pool, testMessage(DestinationPayments), testMessage(DestinationPayments))
	execSQL(t, pool, `UPDATE outbox_message SET payload = '{"payment_id": "secret"}' WHERE outbox_id = $1`, ids[0].String())
	if n, err := r.dispatcher(t, s, r.handlers(), DispatcherOptions{}).RunOnce(t.Context()); n != 2 || err != nil {
		t.Fatalf("RunOnce: %d, %v", n, err)
	}
	record := wantRow(t, s, ids[0], StatusFailed)
	if !strings.Contains(record.LastFailure, "payment_id must be a UUID") || strings.Contains(record.LastFailure, "secret") {
		t.Errorf("it failed by %q", record.LastFailure)
	}
	wantRow(t, s, ids[1], StatusCompleted)
	if n := r.callsOf(ids[0]); n != 0 {
		t.Errorf("it was sent %d times", n)
	}
}

// TestRowsThatWaitForLong go to other workers.
func TestRowsThatWaitForLong(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	clock := newFakeClock()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{NoListen: true, Poll: deaf})
	d.clock = clock
	withPolicy(d, func(p *policy) { p.concurrency, p.timeout = 1, deaf })
	swift(d)
	enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationMailer), testMessage(DestinationMailer))
	stop := run(t, d)
	r.waitCalls(t, 1)
	wantRowsHeld(t, pool, 3)
	for range 2 { // the first time the claims are renewed
		clock.waitFor(t, keepStep)
		clock.advance(mailerPolicy.lease / 4)
	}
	r.wait(t, func() bool { return len(r.returned) == 2 })
	other := newRemote()
	if n, err := other.dispatcher(t, s, other.handlers(), DispatcherOptions{}).RunOnce(t.Context()); n != 2 || err != nil {
		t.Errorf("another worker: %d, %v", n, err)
	}
	g.letGo()
	must(t, stop())
}

// TestAnUnreachableDestination is left alone, then tried by one call, then used
// again.
func TestAnUnreachableDestination(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r := newRemote()
	down := true
	r.deliver = func(context.Context, Delivery) Outcome {
		r.mu.Lock()
		defer r.mu.Unlock()
		if down {
			return Unreachable(errors.New("no route"))
		}
		return Completed()
	}
	clock := newFakeClock()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{NoListen: true})
	d.clock = clock
	withPolicy(d, func(p *policy) { p.concurrency, p.retryInitial, p.retryMax = 1, 0, 0 })
	var changes []bool
	d.observer.CircuitChanged = func(destination Destination, key string, open bool) {
		if destination != DestinationMailer || key != "" {
			t.Errorf("the circuit of %s %q", destination, key)
		}
		r.note(func() { changes = append(changes, open) })
	}
	var messages []Message
	for range 20 {
		messages = append(messages, testMessage(DestinationMailer))
	}
	ids := enqueueAll(t, pool, messages...)
	stop := run(t, d)
	r.wait(t, func() bool { return len(changes) == 1 })
	if len(r.calls) != circuitThreshold {
		t.Errorf("it opened after %d calls", len(r.calls))
	}
	clock.waitFor(t, keepStep)
	for trial, pause := range []time.Duration{circuitFirst, 2 * circuitFirst} {
		clock.advance(pause)
		r.wait(t, func() bool { return len(changes) == 2+trial })
		if want := circuitThreshold + 1 + trial; len(r.calls) != want {
			t.Errorf("%d calls, want %d", len(r.calls), want)
		}
	}
	r.note(func() { down = false })
	clock.advance(4 * circuitFirst)
	r.wait(t, func() bool {
		return !slices.ContainsFunc(ids, func(id OutboxID) bool {
			settled := r.settled[id]
			return len(settled) == 0 || settled[len(settled)-1].op != opCompleted
		})
	})
	must(t, stop())
	if want := []bool{true, true, true, false}; !slices.Equal(changes, want) {
		t.Errorf("the circuit was open: %v, want %v", changes, want)
	}
	for _, id := range ids {
		if record := getRecord(t, s, id); record.Attempt != 1 {
			t.Errorf("%s was charged %d attempts", id, record.Attempt)
		}
	}
}

// TestRate has no more calls than the rate allows.
func TestRate(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r := newRemote()
	clock := newFakeClock()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{NoListen: true, Poll: deaf})
	d.clock = clock
	withPolicy(d, func(p *policy) { p.rate = 20 })
	for _, c := range d.consumers {
		clear(c.limiters)
	}
	var messages []Message
	for range 8 {
		messages = append(messages, testMessage(DestinationMailer))
	}
	ids := enqueueAll(t, pool, messages...)
	stop := run(t, d)
	for calls := 2; ; calls++ { // a tenth of a second's worth at first
		r.waitCalls(t, calls)
		r.wait(t, func() bool { return len(r.settled) == calls })
		if len(r.calls) != calls {
			t.Fatalf("%d calls, want %d", len(r.calls), calls)
		}
		if calls == len(ids) {
			break
		}
		clock.waitFor(t, 50*time.Millisecond)
		clock.advance(50 * time.Millisecond)
	}
	must(t, stop())
}

// TestPausedDestination is not claimed until it is resumed.
func TestPausedDestination(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r := newRemote()
	d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{})
	must(t, s.Pause(t.Context(), DestinationMailer))
	ids := enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationLedger))
	if n, err := d.RunOnce(t.Context()); n != 1 || err != nil {
		t.Errorf("RunOnce: %d, %v", n, err)
	}
	wantRow(t, s, ids[0], StatusPending)
	must(t, s.Resume(t.Context(), DestinationMailer))
	if n, err := d.RunOnce(t.Context()); n != 1 || err != nil {
		t.Errorf("RunOnce: %d, %v", n, err)
	}
	wantRow(t, s, ids[0], StatusCompleted)
}

// TestPurging removes rows that are older than their retention, unless it is
// switched off.
func TestPurging(t *testing.T) {
	for _, off := range []bool{true, false} {
		pool := testPool(t)
		s := New(pool, Options{})
		r := newRemote()
		d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{NoPurge: off})
		entry := claimOne(t, pool, testMessage(DestinationMailer))
		must(t, s.MarkCompleted(t.Context(), entry.Claim, ""))
		execSQL(t, pool, "UPDATE outbox_outcome SET completed_at = completed_at - interval '1 year', outbox_id = '01000000-0000-7000-8000-000000000000'")
		execSQL(t, pool, "UPDATE outbox_message SET outbox_id = '01000000-0000-7000-8000-000000000000'")
		if _, err := d.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := 0
		if off {
			want = 1
		}
		wantRows(t, pool, want)
	}
}

// TestObservation follows a message through the functions of an observer, and its
// trace from the one who enqueued to the handler.
func TestObservation(t *testing.T) {
	type key string
	pool := testPool(t)
	r := newRemote()
	var seen []string
	note := func(what string) { r.note(func() { seen = append(seen, what) }) }
	r.deliver = func(ctx context.Context, d Delivery) Outcome {
		note("handler with " + ctx.Value(key("trace")).(string) + " " + ctx.Value(key("span")).(string))
		return Completed()
	}
	d := r.dispatcher(t, New(pool, Options{}), r.handlers(), DispatcherOptions{
		Extract: func(ctx context.Context, headers map[string]string) context.Context {
			return context.WithValue(ctx, key("trace"), headers["trace"])
		},
		Observer: Observer{
			Claimed: func(destination Destination, rows int) { note("claimed") },
			Started: func(ctx context.Context, about DeliveryInfo) context.Context {
				note("started " + about.PayloadType + " " + about.Headers["trace"])
				return context.WithValue(ctx, key("span"), "span")
			},
			Delivered: func(ctx context.Context, about DeliveryInfo, outcome Outcome, took time.Duration) {
				if took <= 0 || about.Attempt != 1 || about.Question {
					t.Errorf("%+v took %s", about, took)
				}
				note("delivered " + outcome.String() + " " + ctx.Value(key("span")).(string))
			},
		},
	})
	id := enqueueAll(t, pool, testMessage(DestinationMailer).WithHeader("trace", "t1"))[0]
	if _, err := d.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"claimed", "started order_confirmation t1", "handler with t1 span", "delivered completed span"}
	if !slices.Equal(seen, want) {
		t.Errorf("seen was %q, want %q", seen, want)
	}
	if settled := r.settled[id]; len(settled) != 1 || settled[0].String() != "MarkCompleted "+id.String() {
		t.Errorf("settled was %v", settled)
	}
}
