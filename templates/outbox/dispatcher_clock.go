package outbox

import "time"

// clock is what a dispatcher goes by for its own schedule: when to look, to ask,
// to renew. The times in the tables are the database's.
type clock interface {
	now() time.Time
	// after returns a channel that gets the time once d has passed, and a
	// function that ends the waiting.
	after(d time.Duration) (passed <-chan time.Time, stop func() bool)
}

// hostClock is the clock of the host.
type hostClock struct{}

func (hostClock) now() time.Time { return time.Now() }

func (hostClock) after(d time.Duration) (<-chan time.Time, func() bool) {
	timer := time.NewTimer(d)
	return timer.C, timer.Stop
}
