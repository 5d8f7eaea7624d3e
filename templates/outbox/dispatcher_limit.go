package outbox

import (
	"math"
	"math/rand/v2"
	"time"
)

// delay is the time to wait after an attempt that has failed, counted from 1.
// random is from 0 up to 1.
func (p *policy) delay(attempt int, random float64) time.Duration {
	if len(p.retryDelays) > 0 {
		return p.retryDelays[min(max(attempt, 1), len(p.retryDelays))-1]
	}
	grown := float64(p.retryInitial) * math.Pow(p.retryFactor, float64(attempt-1))
	return time.Duration(min(grown, float64(p.retryMax)) * (1 - p.retryJitter*random))
}

// spread takes up to a tenth off a duration by chance, so that workers that began
// at the same time do not go on at the same time.
func spread(d time.Duration) time.Duration {
	return d - time.Duration(rand.Float64()*float64(d)/10)
}

// limiter bounds the calls to a destination, or those for one limit key of it.
type limiter struct {
	rows      int // that wait or are under way
	active    int // calls that run
	abandoned int // of these, the ones that nobody waits for any more
	bucket    bucket
	circuit   circuit
	leftOut   bool // its rows were left out of the last claim
}

// bucket is a token bucket: it fills by the rate and holds what comes in a tenth of
// a second, at least one token.
type bucket struct {
	rate   float64 // tokens in a second; 0 = not bounded
	tokens float64
	filled time.Time // when tokens was right
}

func (b *bucket) burst() float64 { return max(1, b.rate/10) }

// available is the number of tokens that can be taken.
func (b *bucket) available(now time.Time) int {
	if b.rate == 0 {
		return math.MaxInt
	}
	if b.filled.IsZero() {
		b.tokens += b.burst() // from which some may have been taken
	} else if passed := now.Sub(b.filled); passed > 0 {
		b.tokens = min(b.burst(), b.tokens+passed.Seconds()*b.rate)
	}
	b.filled = now
	return int(b.tokens)
}

// take takes tokens, or with a negative number puts them back. A bucket may come
// to owe some.
func (b *bucket) take(n int) {
	if b.rate > 0 {
		b.tokens = min(b.burst(), b.tokens-float64(n))
	}
}

// full tells whether the bucket holds all that it can.
func (b *bucket) full(now time.Time) bool {
	return b.available(now) > 0 && (b.rate == 0 || b.tokens >= b.burst())
}

// solvent tells whether the bucket owes no token.
func (b *bucket) solvent(now time.Time) bool { return b.available(now) > 0 || b.tokens >= 0 }

// next is when the next token can be taken.
func (b *bucket) next(now time.Time) time.Time {
	if b.available(now) > 0 {
		return now
	}
	return now.Add(time.Duration(math.Ceil((1 - b.tokens) / b.rate * float64(time.Second))))
}

// A circuit opens after so many calls in a row that could not reach the
// destination. It stays open for the first of the times, then for twice as long,
// and so on up to the last; between them one call at a time tries whether the
// destination is back.
const (
	circuitThreshold = 5
	circuitFirst     = 5 * time.Second
	circuitLongest   = time.Minute
	// circuitForgotten is how long after it could have been tried a circuit is
	// forgotten: there are no rows to try it with.
	circuitForgotten = 10 * circuitLongest
)

// circuit is the circuit breaker of a destination or of one limit key.
type circuit struct {
	failures int // calls in a row that could not reach the destination
	pause    time.Duration
	until    time.Time // while open
}

func (c *circuit) broken() bool            { return c.failures >= circuitThreshold }
func (c *circuit) open(now time.Time) bool { return c.broken() && now.Before(c.until) }

// fail counts a call that could not reach the destination. It tells whether the
// circuit has opened by it.
func (c *circuit) fail(now time.Time) bool {
	c.failures++
	if !c.broken() || c.open(now) {
		return false
	}
	c.pause = min(max(circuitFirst, 2*c.pause), circuitLongest)
	c.until = now.Add(spread(c.pause))
	return true
}

// succeed counts a call that has reached the destination. It tells whether the
// circuit has closed by it.
func (c *circuit) succeed() bool {
	closed := c.broken()
	*c = circuit{}
	return closed
}

// free is how many more calls may run, where n may at the same time.
func (l *limiter) free(n int, now time.Time) int {
	switch {
	case l.circuit.open(now):
		return 0
	case l.circuit.broken():
		n = min(n, 1+l.abandoned)
	}
	return n - l.active
}

// room is how many more rows may be claimed, where n calls may run at the same time.
func (l *limiter) room(n int, now time.Time) int {
	return min(l.free(n, now), l.bucket.available(now))
}

// admits tells whether a row that was claimed, and has its token, may begin.
func (l *limiter) admits(n int, now time.Time) bool {
	return l.free(n, now) > 0 && l.bucket.solvent(now)
}

// opens is when a limiter without room may have some, if that is a matter of time.
func (l *limiter) opens(now time.Time) (time.Time, bool) {
	if l.circuit.open(now) {
		return l.circuit.until, true
	}
	if next := l.bucket.next(now); next.After(now) {
		return next, true
	}
	return time.Time{}, false
}

// forgotten tells whether an open circuit has had nothing to be tried with for so
// long that it says nothing of the destination any more.
func (l *limiter) forgotten(now time.Time) bool {
	return l.rows == 0 && l.active == 0 && l.circuit.broken() && now.Sub(l.circuit.until) > circuitForgotten
}

// fresh tells whether the limiter is as a new one would be.
func (l *limiter) fresh(now time.Time) bool {
	return l.rows == 0 && l.active == 0 && l.circuit.failures == 0 && l.bucket.full(now)
}
