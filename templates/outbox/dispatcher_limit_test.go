package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestRetryDelays(t *testing.T) {
	growing := policy{retryInitial: time.Second, retryMax: 10 * time.Second, retryFactor: 3, retryJitter: 0.5}
	fixed := policy{retryDelays: []time.Duration{time.Second, time.Minute}}
	for _, test := range []struct {
		name    string
		policy  policy
		attempt int
		random  float64
		want    time.Duration
	}{
		{"the first", growing, 1, 0, time.Second},
		{"the second", growing, 2, 0, 3 * time.Second},
		{"one that would be too long", growing, 4, 0, 10 * time.Second},
		{"one that no number holds", growing, 100_000, 0, 10 * time.Second},
		{"chance takes its part at the most", growing, 2, 1, 1500 * time.Millisecond},
		{"chance after the longest", growing, 9, 0.5, 7500 * time.Millisecond},
		{"the first of a list", fixed, 1, 0.9, time.Second},
		{"the last of a list", fixed, 2, 0.9, time.Minute},
		{"behind the list", fixed, 3, 0.9, time.Minute},
	} {
		if got := test.policy.delay(test.attempt, test.random); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func TestBucket(t *testing.T) {
	now := time.Now()
	var unlimited bucket
	unlimited.take(1000)
	if n := unlimited.available(now); n != math.MaxInt || !unlimited.next(now).Equal(now) {
		t.Errorf("without a rate %d tokens, the next at %s", n, unlimited.next(now))
	}
	b := bucket{rate: 50}
	want := func(tokens int) {
		t.Helper()
		if n := b.available(now); n != tokens {
			t.Fatalf("%d tokens, want %d", n, tokens)
		}
	}
	want(5) // a tenth of a second
	b.take(5)
	want(0)
	if next := b.next(now); next.Sub(now).Round(time.Millisecond) != 20*time.Millisecond {
		t.Errorf("the next token comes after %s", next.Sub(now))
	}
	now = now.Add(40 * time.Millisecond)
	want(2)
	b.take(4)
	if b.solvent(now) {
		t.Error("a bucket that owes tokens is solvent")
	}
	b.take(-1)
	now = now.Add(20 * time.Millisecond)
	if !b.solvent(now) {
		t.Error("a bucket that owes nothing is not solvent")
	}
	now = now.Add(time.Hour)
	want(5)
	slow := bucket{rate: 1.0 / 3600}
	if n := slow.available(now); n != 1 {
		t.Errorf("a slow bucket begins with %d tokens, want 1", n)
	}
}

func TestCircuit(t *testing.T) {
	now := time.Now()
	var c circuit
	for range circuitThreshold - 1 {
		if c.fail(now) || c.open(now) {
			t.Fatal("it opened too soon")
		}
	}
	if c.succeed() {
		t.Error("it closed, though it was not open")
	}
	for i := range circuitThreshold {
		if opened := c.fail(now); opened != (i == circuitThreshold-1) {
			t.Errorf("failure %d: opened %t", i, opened)
		}
	}
	if c.fail(now) {
		t.Error("a call that was under way has opened it again")
	}
	for _, pause := range []time.Duration{5, 10, 20, 40, 60, 60} {
		if pause *= time.Second; c.pause != pause || !c.open(now) || !c.open(now.Add(pause*9/10-1)) || c.open(now.Add(pause)) {
			t.Errorf("it is open for %s, up to %s, want %s", c.pause, c.until.Sub(now), pause)
		}
		now = now.Add(pause)
		if !c.fail(now) {
			t.Error("a trial that failed has not opened it")
		}
	}
	if !c.succeed() || c.broken() {
		t.Error("a call that got through has not closed it")
	}
}

// TestACircuitWithoutRowsIsForgotten has an endpoint that was dead when its last row
// ended.
func TestACircuitWithoutRowsIsForgotten(t *testing.T) {
	r := newRemote()
	clock := newFakeClock()
	var changes []string
	d := r.dispatcher(t, New(testPool(t), Options{}), SomeHandlers(HandleMetrics(r)), DispatcherOptions{Observer: Observer{
		CircuitChanged: func(_ Destination, key string, open bool) { changes = append(changes, fmt.Sprint(key, open)) },
	}})
	c := d.consumers[0]
	l := c.limiterOf("dead")
	now := clock.now()
	for range circuitThreshold {
		c.feel(l, "dead", notReached, now)
	}
	for _, test := range []struct {
		after time.Duration
		want  int
	}{{circuitFirst, 1}, {circuitFirst + circuitForgotten, 0}} {
		c.hungry = true
		c.request(now.Add(test.after))
		if n := len(c.limiters); n != test.want {
			t.Errorf("after %s there are %d circuits, want %d", test.after, n, test.want)
		}
	}
	if want := []string{"deadtrue", "deadfalse"}; !slices.Equal(changes, want) {
		t.Errorf("observed %q, want %q", changes, want)
	}
}

// TestConcurrency counts the calls at the same time.
func TestConcurrency(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r := newRemote()
	var lock sync.Mutex
	now, most := map[Destination]int{}, map[Destination]int{}
	full := make(map[Destination]chan struct{})
	for _, p := range policies {
		full[p.destination] = make(chan struct{})
	}
	limit := map[Destination]int{DestinationMailer: 3, DestinationPayments: 2}
	r.deliver = func(_ context.Context, d Delivery) Outcome {
		lock.Lock()
		now[d.Destination]++
		most[d.Destination] = max(most[d.Destination], now[d.Destination])
		if now[d.Destination] == limit[d.Destination] {
			select {
			case <-full[d.Destination]:
			default:
				close(full[d.Destination])
			}
		}
		lock.Unlock()
		<-full[d.Destination]
		lock.Lock()
		now[d.Destination]--
		lock.Unlock()
		return Completed()
	}
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r), HandlePayments(r)), DispatcherOptions{})
	withPolicy(d, func(p *policy) { p.concurrency = limit[p.destination] })
	var messages []Message
	for range 50 {
		messages = append(messages, testMessage(DestinationMailer), testMessage(DestinationPayments))
	}
	ids := enqueueAll(t, pool, messages...)
	stop := run(t, d)
	r.waitSettled(t, ids...)
	must(t, stop())
	for destination, n := range limit {
		if most[destination] != n {
			t.Errorf("%s: up to %d calls at the same time, want %d", destination, most[destination], n)
		}
	}
}

// TestNoPrefetchWhereItCouldHarm claims for a destination that is not idempotent
// only what is begun at once.
func TestNoPrefetchWhereItCouldHarm(t *testing.T) {
	pool := testPool(t)
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	d := r.dispatcher(t, New(pool, Options{}), SomeHandlers(HandlePayments(r)), DispatcherOptions{})
	swift(d)
	var messages []Message
	for range 100 {
		messages = append(messages, testMessage(DestinationPayments))
	}
	ids := enqueueAll(t, pool, messages...)
	stop := run(t, d)
	r.waitCalls(t, paymentsPolicy.concurrency)
	wantRowsHeld(t, pool, paymentsPolicy.concurrency)
	g.letGo()
	r.waitSettled(t, ids...)
	must(t, stop())
}

// TestASlowDestinationHoldsUpNoOther has the handlers of one destination stand
// still, with many rows before those of the others.
func TestASlowDestinationHoldsUpNoOther(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r, g := newRemote(), newBarrier(t)
	r.deliver = func(ctx context.Context, d Delivery) Outcome {
		if d.Destination == DestinationMailer {
			return g.deliver(ctx, d)
		}
		return Completed()
	}
	var slow, others []Message
	for range 300 {
		slow = append(slow, testMessage(DestinationMailer))
		others = append(others, testMessage(DestinationLedger), testMessage(DestinationPayments))
	}
	enqueueAll(t, pool, slow...)
	ids := enqueueAll(t, pool, others...)
	stop := run(t, r.dispatcher(t, s, r.handlers(), DispatcherOptions{}))
	r.waitSettled(t, ids...)
	g.letGo()
	must(t, stop())
}

// TestADeadEndpoint has one value of the limit key that cannot be reached, with
// most of the rows and the oldest of them.
func TestADeadEndpoint(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r := newRemote()
	r.deliver = func(_ context.Context, d Delivery) Outcome {
		if bytes.Contains(d.Raw, []byte(`"dead"`)) {
			return Unreachable(errors.New("no route"))
		}
		return Completed()
	}
	var dead, alive []Message
	for i := range 400 {
		dead = append(dead, ToMetrics(UsageSample{Meter: "dead", Value: int64(i)}))
	}
	for i := range 50 {
		alive = append(alive, ToMetrics(UsageSample{Meter: fmt.Sprint("alive ", i%5), Value: int64(i)}))
	}
	enqueueAll(t, pool, dead...)
	ids := enqueueAll(t, pool, alive...)
	var circuits []string
	d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{})
	d.observer.CircuitChanged = func(_ Destination, key string, open bool) {
		r.note(func() { circuits = append(circuits, fmt.Sprint(key, " ", open)) })
	}
	stop := run(t, d)
	r.wait(t, func() bool { return len(circuits) > 0 })
	r.wait(t, func() bool { // those that are removed as they complete, too
		return !slices.ContainsFunc(ids, func(id OutboxID) bool { return len(r.settled[id]) == 0 })
	})
	must(t, stop())
	if len(circuits) != 1 || circuits[0] != joinKey("dead")+" true" {
		t.Errorf("the circuits were %v", circuits)
	}
	if n := queryOne[int](t, pool, "SELECT count(*) FROM outbox_queue WHERE attempt_count = 0 AND claim_taken_at IS NULL"); n != len(dead) {
		t.Errorf("%d rows of the dead endpoint wait uncharged, want %d", n, len(dead))
	}
	if n := queryOne[int](t, pool, "SELECT count(*) FROM outbox_queue WHERE last_failure = 'no route'"); n < circuitThreshold || n > metricsPolicy.concurrency+circuitThreshold {
		t.Errorf("%d rows were tried", n)
	}
}
