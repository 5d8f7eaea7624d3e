package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// roomOf is the consumer of a dispatcher for one destination, and the time.
func roomOf(t *testing.T, handlers Handlers, change func(*policy)) (*consumer, time.Time) {
	t.Helper()
	store, _ := NewMemory(Options{})
	d := newRemote().dispatcher(t, store, handlers, DispatcherOptions{})
	clock := newFakeClock()
	d.clock = clock
	d.calls, d.cancelCalls = context.WithCancel(t.Context())
	t.Cleanup(d.cancelCalls)
	withPolicy(d, change)
	return d.consumers[0], clock.now()
}

// TestStuckHandlersLeaveNoRoom has every call to a destination abandoned.
func TestStuckHandlersLeaveNoRoom(t *testing.T) {
	for _, r := range newRemote().handlers().routes {
		c, now := roomOf(t, Handlers{routes: []route{r}}, func(*policy) {})
		c.pace = time.Millisecond // some would be claimed ahead
		if c.room(now) == 0 {
			t.Errorf("%s: there is no room at first", c.policy.destination)
		}
		c.abandoned, c.active = c.total(), c.total()
		if n := c.room(now); n != 0 {
			t.Errorf("%s: there is room for %d, want none", c.policy.destination, n)
		}
	}
}

// TestALostCallCounts until it returns: another row could not begin.
func TestALostCallCounts(t *testing.T) {
	c, now := roomOf(t, SomeHandlers(HandlePayments(newRemote())), func(p *policy) { p.concurrency = 1 })
	task := &task{row: &claimedRow{}, c: c, limiter: c.limiterOf("")}
	c.held[task] = struct{}{}
	c.rows, task.limiter.rows = 1, 1
	c.start(task, now)
	c.lose(task)
	if n := c.room(now); n != 0 {
		t.Errorf("while it runs there is room for %d, want none", n)
	}
	c.finish(task, ruling{})
	if n := c.room(now); n != 1 {
		t.Errorf("when it has returned there is room for %d, want 1", n)
	}
}

// TestALimiterIsForgottenWhenItIsAsNew and not before: a new one has all its tokens.
func TestALimiterIsForgottenWhenItIsAsNew(t *testing.T) {
	now := time.Now()
	l := limiter{bucket: bucket{rate: 15}} // 1.5 tokens at first
	for _, step := range []struct {
		name   string
		change func()
		want   bool
	}{
		{"at first", func() {}, true},
		{"a token was taken", func() { l.bucket.take(1) }, false},
		{"a token is there", func() { now = now.Add(40 * time.Millisecond) }, false},
		{"all are there", func() { now = now.Add(30 * time.Millisecond) }, true},
		{"a row waits", func() { l.rows = 1 }, false},
		{"it has gone", func() { l.rows = 0 }, true},
	} {
		step.change()
		if got := l.fresh(now); got != step.want {
			t.Errorf("%s: as new %t, want %t", step.name, got, step.want)
		}
	}
}

// TestTheMarkOfAKeyThatWasFull lies behind rows of it that claims have passed over.
func TestTheMarkOfAKeyThatWasFull(t *testing.T) {
	c, now := roomOf(t, SomeHandlers(HandleMetrics(newRemote())), func(p *policy) { p.concurrency = 2 })
	mark := OutboxID{15: 1}
	l := c.limiterOf("full")
	l.rows = 1
	for _, step := range []struct {
		active int
		want   OutboxID
	}{{2, mark}, {1, OutboxID{}}} {
		l.active, c.hungry, c.mark = step.active, true, mark
		if _, got, _, leftOut := c.request(now); got != step.want || len(leftOut) != step.active-1 {
			t.Errorf("with %d calls of 2 rows are claimed behind %s without %q, want behind %s", step.active, got, leftOut, step.want)
		}
	}
}

// TestARateGoesOnBesideASlowCall has one call stand still and others wait for the
// rate.
func TestARateGoesOnBesideASlowCall(t *testing.T) {
	pool := testPool(t)
	r, g := newRemote(), newBarrier(t)
	ids := enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationMailer), testMessage(DestinationMailer))
	r.deliver = func(ctx context.Context, d Delivery) Outcome {
		if d.ID == ids[0] {
			return g.deliver(ctx, d)
		}
		return Completed()
	}
	clock := newFakeClock()
	d := r.dispatcher(t, New(pool, Options{}), SomeHandlers(HandleMailer(r)), DispatcherOptions{NoListen: true, Poll: deaf})
	d.clock = clock
	withPolicy(d, func(p *policy) { p.rate = 10 })
	stop := run(t, d)
	for n := range ids {
		r.waitCalls(t, n+1)
		clock.waitFor(t, time.Second/10)
		clock.advance(time.Second / 10)
	}
	g.letGo()
	r.waitSettled(t, ids...)
	must(t, stop())
}

// TestUnreachableAtOnce has many calls fail at the same moment: each of their rows
// waits as after one.
func TestUnreachableAtOnce(t *testing.T) {
	const calls = 32
	pool := testPool(t)
	r, g := newRemote(), newBarrier(t)
	r.deliver = func(ctx context.Context, d Delivery) Outcome {
		g.deliver(ctx, d)
		return Unreachable(errors.New("refused"))
	}
	d := r.dispatcher(t, New(pool, Options{}), SomeHandlers(HandleMailer(r)), DispatcherOptions{NoListen: true, Poll: deaf})
	withPolicy(d, func(p *policy) { p.concurrency = calls })
	var messages []Message
	for range calls {
		messages = append(messages, testMessage(DestinationMailer))
	}
	ids := enqueueAll(t, pool, messages...)
	stop := run(t, d)
	r.waitCalls(t, calls)
	g.letGo()
	r.waitSettled(t, ids...)
	must(t, stop())
	if longest := mailerPolicy.retryInitial; queryOne[bool](t, pool,
		"SELECT bool_or(next_attempt_at > clock_timestamp() + $1 * interval '1 microsecond') FROM outbox_queue", longest.Microseconds()) {
		t.Errorf("rows are due later than after %s", longest)
	}
}

// TestARunKeepsTheLimitsOfItsRows has runs of several order keys whose second rows
// share a limit key.
func TestARunKeepsTheLimitsOfItsRows(t *testing.T) {
	pool := testPool(t)
	r, g := newRemote(), newBarrier(t)
	r.deliver = func(ctx context.Context, d Delivery) Outcome {
		if d.LimitKey == joinKey("shared") {
			return g.deliver(ctx, d)
		}
		return Completed()
	}
	var messages []Message
	for shelf := range 2 {
		for n, key := range []string{fmt.Sprint("own ", shelf), "shared"} {
			m := ToStock(StockChange{Shelf: fmt.Sprint(shelf), Change: int64(n)})
			m.limitKey = joinKey(key)
			messages = append(messages, m)
		}
	}
	ids := enqueueAll(t, pool, messages...)
	d := r.dispatcher(t, New(pool, Options{}), SomeHandlers(HandleStock(r)), DispatcherOptions{NoListen: true})
	withPolicy(d, func(p *policy) { p.per, p.concurrency, p.total = true, 1, 16 })
	d.consumers[0].step = 16
	stop := run(t, d)
	shared := func() (n int) {
		for _, call := range r.calls {
			if call.LimitKey == joinKey("shared") {
				n++
			}
		}
		return n
	}
	r.wait(t, func() bool {
		return shared() > 0 && (shared() == 2 || slices.ContainsFunc(r.returned, func(id OutboxID) bool { return id == ids[1] || id == ids[3] }))
	})
	r.note(func() {
		if n := shared(); n != 1 {
			t.Errorf("%d calls of one limit key at the same time, want 1", n)
		}
	})
	g.letGo()
	r.waitSettled(t, ids...)
	must(t, stop())
}

// slowClaim is a backend whose claims are answered late.
type slowClaim struct {
	backend
	late func()
}

func (s slowClaim) claimDue(ctx context.Context, c claimCall) ([]*claimedRow, error) {
	rows, err := s.backend.claimDue(ctx, c)
	s.late()
	return rows, err
}

// TestAClaimThatIsAnsweredAfterItsLease begins nothing: its rows may be another's.
func TestAClaimThatIsAnsweredAfterItsLease(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	id := enqueueAll(t, pool, testMessage(DestinationPayments))[0]
	clock := newFakeClock()
	slow := New(pool, Options{})
	slow.backend = slowClaim{slow.backend, func() { clock.advance(paymentsPolicy.lease) }}
	r := newRemote()
	d := r.dispatcher(t, slow, SomeHandlers(HandlePayments(r)), DispatcherOptions{})
	d.clock = clock
	n, err := d.RunOnce(t.Context())
	if record := wantRow(t, s, id, StatusPending); n != 1 || err != nil || len(r.calls) != 0 || record.Attempt != 0 {
		t.Errorf("RunOnce: %d, %v; %d calls, attempt %d", n, err, len(r.calls), record.Attempt)
	}
}

// TestRunOnceAfterALostClaim returns, though the handler has not.
func TestRunOnceAfterALostClaim(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	clock := newFakeClock()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{})
	d.clock = clock
	withPolicy(d, func(p *policy) { p.timeout = time.Hour })
	id := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
	returned := make(chan error)
	go func() {
		_, err := d.RunOnce(context.WithoutCancel(t.Context()))
		returned <- err
	}()
	r.waitCalls(t, 1)
	must(t, s.Reschedule(t.Context(), getRecord(t, s, id).Claim, someDay))
	clock.waitFor(t, keepStep)
	clock.advance(mailerPolicy.lease / 3)
	must(t, <-returned)
	g.letGo()
}
