package outbox

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// fakeClock is a clock that the test moves.
type fakeClock struct {
	mu      sync.Mutex
	time    time.Time
	timers  []*fakeTimer
	changed chan struct{} // closed, and made anew, with each timer
}

type fakeTimer struct {
	at     time.Time
	length time.Duration
	fires  chan time.Time
}

func newFakeClock() *fakeClock { return &fakeClock{time: time.Now(), changed: make(chan struct{})} }

func (c *fakeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time
}

func (c *fakeClock) after(d time.Duration) (<-chan time.Time, func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	timer := &fakeTimer{at: c.time.Add(d), length: d, fires: make(chan time.Time, 1)}
	if d <= 0 {
		timer.fires <- c.time
		return timer.fires, func() bool { return false }
	}
	c.timers = append(c.timers, timer)
	close(c.changed)
	c.changed = make(chan struct{})
	return timer.fires, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		n := len(c.timers)
		c.timers = slices.DeleteFunc(c.timers, func(other *fakeTimer) bool { return other == timer })
		return len(c.timers) < n
	}
}

// advance moves the clock on.
func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.time = c.time.Add(d)
	c.timers = slices.DeleteFunc(c.timers, func(timer *fakeTimer) bool {
		due := !timer.at.After(c.time)
		if due {
			timer.fires <- c.time
		}
		return due
	})
}

// waitFor waits until somebody waits for a length of time.
func (c *fakeClock) waitFor(t testing.TB, d time.Duration) {
	t.Helper()
	for {
		c.mu.Lock()
		there := slices.ContainsFunc(c.timers, func(timer *fakeTimer) bool { return timer.length == d })
		changed := c.changed
		c.mu.Unlock()
		if there {
			return
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatal("the test ended first")
		}
	}
}
