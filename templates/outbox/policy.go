package outbox

import "time"

// keepForever is the retention of rows that are never purged.
const keepForever time.Duration = -1

// neverAsked is the first question of destinations that nobody but a person can
// ask.
const neverAsked time.Duration = -1

// A claim looks at so many keys of an ordered destination, and takes so many
// rows of one key at the most. All programs that share the tables must have the
// same runRows or less: a claim knows a key that is held by the rows that it
// looks at, which are runLook more than it may take.
const (
	keysLook = 1000
	runRows  = 8
	runLook  = 24
)

// A dispatcher's claim looks at keys so often before it goes on with other work, and
// with the next claim behind them.
const (
	looksAtOnce = 10
	noBound     = 0
)

// The retention of rows whose destination the package no longer knows.
const (
	keepCompletedDefault = 7 * 24 * time.Hour
	keepFailedDefault    = 30 * 24 * time.Hour
)

// policy is what the specification says of a destination.
type policy struct {
	destination   Destination
	kinds         []string // destination/payload@version of every row that the package can read
	idempotent    bool
	ordered       bool            // the rows of one order key are delivered in their order
	timeout       time.Duration   // of one call of the handler
	lease         time.Duration   // age at which a claim counts as abandoned
	maxAttempts   int             // 0 = unlimited
	retryDelays   []time.Duration // after the first attempt, the second, and so on; nil = the four below make them
	retryInitial  time.Duration   // after the first attempt
	retryMax      time.Duration   // no delay is longer
	retryFactor   float64         // by which each delay is longer than the one before; at least 1
	retryJitter   float64         // the part of a delay that chance decides, from 0 to 1
	firstQuestion time.Duration   // from an unknown outcome to the first question, or neverAsked
	askEvery      time.Duration   // from one question to the next
	giveUp        time.Duration   // from an unknown outcome to the last question; 0 = nobody gives up
	concurrency   int             // calls at the same time
	rate          float64         // calls in a second; 0 = not bounded
	per           bool            // concurrency and rate hold for each limit key
	total         int             // calls at the same time for all limit keys together; 0 = not bounded
	keepCompleted time.Duration   // keepForever, or 0 where rows are removed as they complete
	keepFailed    time.Duration   // keepForever, or the age at which Purge removes rows
	expires       time.Duration   // age at which a row that was not delivered fails; 0 = never
}

// policyOf is the policy of a destination. One that the package does not know
// has none of its own: nothing is enqueued for it or claimed.
func policyOf(d Destination) policy {
	for _, p := range policies {
		if p.destination == d {
			return *p
		}
	}
	return policy{destination: d}
}

// allDestinations are those of the package.
func allDestinations() []Destination {
	names := make([]Destination, len(policies))
	for i, p := range policies {
		names[i] = p.destination
	}
	return names
}

// longestRun is the most rows of one ordered key that a claim takes. Only the
// first is sent at once: where a repetition could do harm, no other may be
// clouded by a crash before it was started.
func (p *policy) longestRun() int32 {
	if !p.idempotent {
		return 1
	}
	return runRows
}

// giveUpAfter is giveUp in microseconds, or nil where nobody gives up. Where
// only a person decides it is given up from the beginning.
func (p *policy) giveUpAfter() *int64 {
	if p.giveUp == 0 && (p.idempotent || p.firstQuestion != neverAsked) {
		return nil
	}
	return microseconds(p.giveUp)
}

// attemptsToFail is maxAttempts, or nil where they are unlimited.
func (p *policy) attemptsToFail() *int32 {
	if p.maxAttempts == 0 {
		return nil
	}
	n := int32(p.maxAttempts)
	return &n
}
