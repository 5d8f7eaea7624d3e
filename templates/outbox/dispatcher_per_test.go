package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// waits is how many wait for a time, and a channel that is closed when another comes
// to wait.
func (c *fakeClock) waits() (n int, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers), c.changed
}

// timedCall is a call that takes until a time.
type timedCall struct {
	end  time.Time
	over chan struct{}
}

// TestAllLimitsOfEachValue has an ordered destination whose values have a rate and a
// concurrency each and a total together, with one value that cannot be reached, which
// has the oldest rows and most of them. Each limit binds at some time: the total at
// the beginning, the concurrency where calls are slow, and else the rate.
func TestAllLimitsOfEachValue(t *testing.T) {
	const (
		total, concurrency = 5, 2
		rate               = 10 // in a second; one call is all that is saved up
		tick               = time.Second / rate / 5
		slow, quick        = 12 * tick, 3 * tick
		shelvesOfEach      = 3
		changes            = 4
		unreachedShelves   = 50
	)
	pool := testPool(t)
	s := New(pool, Options{})
	change := func(value string, shelf, n int) Message {
		m := ToStock(StockChange{Shelf: fmt.Sprint(value, "/", shelf), Change: int64(n)})
		m.limitKey = joinKey(value)
		return m
	}
	values := []string{"slow", "b", "c", "d", "e", "f"}
	var unreached, messages []Message
	for n := range changes {
		for shelf := range unreachedShelves {
			unreached = append(unreached, change("unreached", shelf, n))
		}
		for shelf := range shelvesOfEach {
			for _, value := range values {
				messages = append(messages, change(value, shelf, n))
			}
		}
	}
	enqueueAll(t, pool, unreached...)
	ids := enqueueAll(t, pool, messages...)

	r, clock := newRemote(), newFakeClock()
	var (
		calls    []timedCall            // under way
		active   = make(map[string]int) // calls of each value, and under "" of all
		most     = make(map[string]int) // of active
		began    = make(map[string][]time.Time)
		attempts int // to reach what cannot be reached
		circuits []string
	)
	remote := newShelves(func(p StockChange, _ Delivery) Outcome {
		value, _, _ := strings.Cut(p.Shelf, "/")
		if value == "unreached" {
			r.note(func() { attempts++ })
			return Unreachable(errors.New("no route"))
		}
		call := timedCall{clock.now().Add(quick), make(chan struct{})}
		if value == "slow" {
			call.end = clock.now().Add(slow)
		}
		r.note(func() {
			calls = append(calls, call)
			began[value] = append(began[value], clock.now())
			for _, counted := range []string{"", value} {
				active[counted]++
				most[counted] = max(most[counted], active[counted])
			}
		})
		<-call.over
		r.note(func() {
			active[""]--
			active[value]--
		})
		return Completed()
	})
	d := r.dispatcher(t, s, SomeHandlers(HandleStock(remote)), DispatcherOptions{NoListen: true, Poll: deaf})
	d.clock = clock
	withPolicy(d, func(p *policy) {
		p.per, p.total, p.concurrency, p.rate = true, total, concurrency, rate
		p.retryInitial, p.retryMax = time.Hour, time.Hour
	})
	d.observer.CircuitChanged = func(_ Destination, key string, open bool) {
		r.note(func() { circuits = append(circuits, fmt.Sprint(key, " ", open)) })
	}
	stop := run(t, d)
	c := d.consumers[0]
	for {
		_, slept := clock.waits()
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		c.mu.Lock()
		running, unsettled := c.active, c.unsettled
		c.mu.Unlock()
		r.mu.Lock()
		if !slices.ContainsFunc(ids, func(id OutboxID) bool { return len(r.settled[id]) == 0 }) {
			r.mu.Unlock()
			break
		}
		// Time goes on when the dispatcher has done all that it can at this one:
		// the parts that claim, keep, and sweep in three ways wait, and have since it was looked at.
		waits, since := clock.waits()
		if waits == 5 && since == slept && len(d.changed) == 0 && running == len(calls) && unsettled == 0 {
			clock.advance(tick)
			calls = slices.DeleteFunc(calls, func(call timedCall) bool {
				over := !call.end.After(clock.now())
				if over {
					close(call.over)
				}
				return over
			})
			r.mu.Unlock()
			continue
		}
		r.mu.Unlock()
		select {
		case <-changed:
		case <-slept:
		case <-t.Context().Done():
			t.Fatal("the test ended first")
		}
	}
	must(t, stop())

	if n := most[""]; n != total {
		t.Errorf("up to %d calls were under way, want %d", n, total)
	}
	if n := most["slow"]; n != concurrency {
		t.Errorf("up to %d slow calls were under way, want %d", n, concurrency)
	}
	for _, value := range values {
		times := began[value]
		for i, at := range times {
			// Time may go on by a tick between the beginning of a call and its note.
			if due := times[0].Add(time.Duration(i)*time.Second/rate - tick); at.Before(due) {
				t.Errorf("call %d of %s began %s too early", i+1, value, due.Sub(at))
				break
			}
		}
		for shelf := range shelvesOfEach {
			arrived := remote.arrived[fmt.Sprint(value, "/", shelf)]
			if len(arrived) != changes || !slices.IsSorted(arrived) {
				t.Errorf("%s/%d: %v", value, shelf, arrived)
			}
		}
	}
	if remote.overlap {
		t.Error("two changes of a shelf were under way at the same time")
	}
	// It has opened, and at the most again after a call that tried it.
	if len(circuits) == 0 || slices.ContainsFunc(circuits, func(c string) bool { return c != joinKey("unreached")+" true" }) {
		t.Errorf("the circuits were %v", circuits)
	}
	if trials := len(circuits) - 1; attempts < circuitThreshold+trials || attempts >= circuitThreshold+concurrency+trials {
		t.Errorf("what cannot be reached was called %d times, %d of them to try it", attempts, trials)
	}
	if n := queryOne[int](t, pool, "SELECT count(*) FROM outbox_queue WHERE attempt_count = 0 AND claim_taken_at IS NULL"); n != len(unreached) {
		t.Errorf("%d of its rows wait uncharged, want %d", n, len(unreached))
	}
	wantSound(t, s)
}

// callsByMeter counts the calls for each meter.
func callsByMeter(t testing.TB, calls []Delivery) map[string]int {
	t.Helper()
	count := make(map[string]int)
	for _, call := range calls {
		var p UsageSample
		must(t, json.Unmarshal(call.Raw, &p))
		count[p.Meter]++
	}
	return count
}

// TestRateOfEachValue has no more calls for a value than its rate allows, however
// many other values there are.
func TestRateOfEachValue(t *testing.T) {
	const (
		meters, samples = 3, 6
		rate            = 20 // in a second
		tick            = time.Second / rate
	)
	pool := testPool(t)
	r, clock := newRemote(), newFakeClock()
	d := r.dispatcher(t, New(pool, Options{}), SomeHandlers(HandleMetrics(r)), DispatcherOptions{NoListen: true, Poll: deaf})
	d.clock = clock
	withPolicy(d, func(p *policy) { p.rate = rate })
	var messages []Message
	for n := range samples {
		for meter := range meters {
			messages = append(messages, ToMetrics(UsageSample{Meter: fmt.Sprint("meter ", meter), Value: int64(n)}))
		}
	}
	enqueueAll(t, pool, messages...)
	stop := run(t, d)
	for calls := 2; ; calls++ { // a tenth of a second's worth at first
		r.wait(t, func() bool { return len(r.settled) == calls*meters })
		if calls < samples {
			clock.waitFor(t, tick) // there are no tokens
		}
		r.mu.Lock()
		for meter, n := range callsByMeter(t, r.calls) {
			if n != calls {
				t.Errorf("%d calls for %s, want %d", n, meter, calls)
			}
		}
		r.mu.Unlock()
		if t.Failed() {
			t.FailNow()
		}
		if calls == samples {
			break
		}
		clock.advance(tick)
	}
	must(t, stop())
}

// TestTheTotalOfAllValues begins as many calls as there may be in all and of each
// value, though the claims ask for a few rows at first and no call ends.
func TestTheTotalOfAllValues(t *testing.T) {
	const total, concurrency = 40, 2
	pool := testPool(t)
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	d := r.dispatcher(t, New(pool, Options{}), SomeHandlers(HandleMetrics(r)), DispatcherOptions{NoListen: true, Poll: deaf})
	withPolicy(d, func(p *policy) { p.total, p.concurrency = total, concurrency })
	var messages []Message
	for n := range 2 * total {
		messages = append(messages, ToMetrics(UsageSample{Meter: fmt.Sprint("meter ", n/(2*concurrency)), Value: int64(n)}))
	}
	ids := enqueueAll(t, pool, messages...)
	stop := run(t, d)
	r.waitCalls(t, total)
	r.mu.Lock()
	for meter, n := range callsByMeter(t, r.calls) {
		if n != concurrency {
			t.Errorf("%d calls for %s, want %d", n, meter, concurrency)
		}
	}
	r.mu.Unlock()
	g.letGo()
	r.waitSettled(t, ids...)
	must(t, stop())
}

// TestRowsWithoutALimitKeyAreOneValue has rows from before there was a limit for each
// value: they share one, and as it is full are left alone, so that those of other
// values have their turn.
func TestRowsWithoutALimitKeyAreOneValue(t *testing.T) {
	const concurrency = 2
	pool := testPool(t)
	s := New(pool, Options{})
	r, g := newRemote(), newBarrier(t)
	r.deliver = func(ctx context.Context, d Delivery) Outcome {
		if d.LimitKey == "" {
			return g.deliver(ctx, d)
		}
		return Completed()
	}
	d := r.dispatcher(t, s, SomeHandlers(HandleMetrics(r)), DispatcherOptions{NoListen: true, Poll: deaf})
	withPolicy(d, func(p *policy) { p.concurrency = concurrency })
	var messages []Message
	for range 100 {
		messages = append(messages, testMessage(DestinationMetrics))
	}
	ids := enqueueAll(t, pool, messages...)
	old := idArray(ids[:len(ids)-1])
	for _, table := range []string{"outbox_message", "outbox_queue"} {
		execSQL(t, pool, "UPDATE "+table+" SET limit_key = NULL WHERE outbox_id = ANY ($1)", old)
	}
	stop := run(t, d)
	r.waitSettled(t, ids[len(ids)-1])
	r.mu.Lock()
	if n := len(r.calls) - 1; n != concurrency || len(r.returned) != 0 {
		t.Errorf("%d rows without a limit key were sent, want %d; %d were claimed for nothing", n, concurrency, len(r.returned))
	}
	r.mu.Unlock()
	g.letGo()
	r.waitSettled(t, ids...)
	must(t, stop())
}

// TestQuestionsOfAFullValue has questions of one value, of which no more may be asked
// at the same time, before that of another.
func TestQuestionsOfAFullValue(t *testing.T) {
	for name, total := range map[string]int{
		"they fill the claim":                4,
		"more are claimed than may be asked": 12,
	} {
		t.Run(name, func(t *testing.T) {
			const concurrency = 2
			pool := testPool(t)
			s := New(pool, Options{})
			r, g := newRemote(), newBarrier(t)
			clock := newFakeClock()
			d := r.dispatcher(t, s, SomeHandlers(HandlePayments(r)), DispatcherOptions{NoListen: true})
			d.clock = clock
			withPolicy(d, func(p *policy) { p.per, p.concurrency, p.total = true, concurrency, total })
			r.answer = func(_ context.Context, d Delivery) Answer {
				if d.LimitKey == "full" {
					<-g.open
				}
				return Arrived("")
			}
			var messages []Message
			for range 10 {
				messages = append(messages, testMessage(DestinationPayments))
			}
			ids := parkAll(t, pool, messages...)
			other := ids[len(ids)-1]
			for _, table := range []string{"outbox_message", "outbox_queue"} {
				execSQL(t, pool, "UPDATE "+table+" SET limit_key = CASE outbox_id WHEN $1 THEN 'other' ELSE 'full' END", other.String())
			}
			stop := run(t, d)
			returned := total/2 - concurrency // of half of the room
			r.wait(t, func() bool { return len(r.asked) == concurrency && len(r.returned) == returned })
			clock.waitFor(t, d.options.Poll)
			clock.advance(d.options.Poll)
			r.waitSettled(t, other)
			r.mu.Lock()
			if len(r.asked) != concurrency+1 || len(r.returned) != returned {
				t.Errorf("%d questions were asked, want %d; %d were claimed for nothing, want %d", len(r.asked), concurrency+1, len(r.returned), returned)
			}
			r.mu.Unlock()
			g.letGo()
			must(t, stop())
		})
	}
}
