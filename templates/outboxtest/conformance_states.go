package outboxtest

import (
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/templates/outbox"
)

// worker is who claims.
const worker = "conformance"

// Times that are past and future by any clock.
var (
	longAgo  = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	someDay  = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	expiry   = someDay.Add(time.Hour) // of most rows
	laterDay = time.Date(2101, 1, 1, 0, 0, 0, 0, time.UTC)
	// theClock stands, in a row that is expected, for the reading of the
	// database's clock that the operation took.
	theClock = time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)
)

// condition is what the rules tell rows apart by.
type condition uint

const (
	missing        condition = 1 << iota
	unclaimed                // pending, and no claim settles it: it has none, or lost it by Requeue
	released                 // pending under a claim that has ended
	dispatching              // held by a worker
	completed                // and kept
	failed                   // in any way
	unknown                  // the outcome is, and nobody holds the row
	held                     // the outcome is unknown, and a worker holds the row to ask
	behind                   // pending, never claimed, and behind a row that holds their key
	behindReleased           // the same under a claim that has ended

	waiting    = unclaimed | released
	anyPending = waiting | behind | behindReleased
	anyUnknown = unknown | held
	live       = released | behindReleased | dispatching | anyUnknown // and claimed before
)

// state is one that a row can be in, and the way there.
type state struct {
	name    string
	is      condition
	only    func(p policy) bool                 // nil = rows of every destination
	address func(outbox.Message) outbox.Message // nil = it expires in time
	steps   []func(c *conformance)              // from a pending row; none = that is the state
}

// sentAgain tells whether a row whose lease has run out is sent again.
func sentAgain(p policy) bool     { return p.idempotent && p.maxAttempts != 1 }
func notIdempotent(p policy) bool { return !p.idempotent }
func ordered(p policy) bool       { return p.ordered }
func inRuns(p policy) bool        { return p.ordered && p.idempotent }
func asked(p policy) bool         { return !p.byHand }

// exhaustible tells whether the suite uses up the attempts: three, where they are
// unlimited.
func exhaustible(p policy) bool { return p.maxAttempts <= 100 }
func abandonable(p policy) bool { return p.idempotent && p.maxAttempts > 0 && exhaustible(p) }

func asItComes(m outbox.Message) outbox.Message   { return m }
func forLater(m outbox.Message) outbox.Message    { return m.At(someDay).ExpiresAt(expiry) }
func alreadyPast(m outbox.Message) outbox.Message { return m.ExpiresAt(longAgo) }

type steps = []func(c *conformance)

// states are those in which the operations are tried.
var states = []state{
	{name: "missing", is: missing},
	{name: "never claimed", is: unclaimed},
	{name: "never claimed, without an expiry", is: unclaimed, only: func(p policy) bool { return p.expires == 0 }, address: asItComes},
	{name: "never claimed, for later", is: unclaimed, address: forLater},
	{name: "requeued", is: unclaimed, steps: steps{claim(longAgo), fail, requeue}},
	{name: "to be retried", is: released, steps: steps{lose, claim(longAgo), retry(time.Time{})}},
	{name: "to be retried later", is: released, steps: steps{lose, claim(longAgo), retry(someDay)}},
	{name: "postponed", is: released, steps: steps{lose, claim(longAgo), postpone}},
	{name: "given back", is: released, steps: steps{lose, claim(longAgo), giveBack}},
	{name: "pending after its lease", is: released, only: sentAgain, steps: steps{lose, claim(longAgo), outliveLease}},
	{name: "dispatching", is: dispatching, steps: steps{lose, claim(time.Time{})}},
	{name: "dispatching for the second time", is: dispatching, steps: steps{claim(longAgo), retry(time.Time{}), claim(time.Time{})}},
	{name: "dispatching for the last time", is: dispatching, only: exhaustible, steps: steps{lose, exhaust, claim(time.Time{})}},
	{name: "completed", is: completed, steps: steps{lose, claim(time.Time{}), complete("")}},
	{name: "completed with a reference after a failure", is: completed, steps: steps{claim(longAgo), retry(time.Time{}), claim(time.Time{}), complete("first")}},
	{name: "failed", is: failed, steps: steps{lose, claim(time.Time{}), fail}},
	{name: "abandoned", is: failed, only: abandonable, steps: steps{lose, exhaust, claim(longAgo), outliveLease}},
	{name: "cancelled", is: failed, steps: steps{cancel}},
	{name: "cancelled after a claim", is: failed, steps: steps{lose, claim(longAgo), giveBack, cancel}},
	{name: "expired", is: failed, address: alreadyPast, steps: steps{expire}},
	{name: "failed and skipped", is: failed, only: ordered, steps: steps{lose, claim(time.Time{}), fail, skip}},
	{name: "outcome unknown", is: unknown, steps: steps{lose, claim(longAgo), park("first", time.Time{})}},
	{name: "outcome unknown, to be asked later", is: unknown, steps: steps{lose, claim(longAgo), park("", someDay)}},
	{name: "outcome unknown after its lease", is: unknown, only: notIdempotent, steps: steps{lose, claim(longAgo), outliveLease}},
	{name: "outcome unknown at the last attempt", is: unknown, only: exhaustible, steps: steps{lose, exhaust, claim(longAgo), park("", time.Time{})}},
	{name: "held for a question", is: held, only: asked, steps: steps{claim(longAgo), park("", longAgo), hold}},
	{name: "behind a failed row of its key", is: behind, only: ordered, steps: steps{head(fail)}},
	{name: "behind a row of its key that waits", is: behind, only: ordered, steps: steps{head(retry(laterDay))}},
	{name: "behind a row of its key that is dispatched", is: behind, only: ordered, steps: steps{head()}},
	{name: "behind an unknown outcome of its key", is: behind, only: ordered, steps: steps{head(park("", laterDay))}},
	{name: "given back behind a failed row of its key", is: behindReleased, only: inRuns, steps: steps{claimBehind, giveBack}},
}

// claim claims the row, as of at. The claim that it had before is lost.
func claim(at time.Time) func(*conformance) {
	return func(c *conformance) { c.claimOne(at) }
}

// lose claims the row, and gives it back under a claim that will be lost.
func lose(c *conformance) {
	claim(longAgo)(c)
	giveBack(c)
}

func retry(at time.Time) func(*conformance) {
	return func(c *conformance) { c.must(c.store.MarkRetry(c.Context(), c.current, "busy", at)) }
}

func park(ref string, askAt time.Time) func(*conformance) {
	return func(c *conformance) { c.must(c.store.MarkOutcomeUnknown(c.Context(), c.current, ref, askAt)) }
}

func complete(ref string) func(*conformance) {
	return func(c *conformance) { c.must(c.store.MarkCompleted(c.Context(), c.current, ref)) }
}

func fail(c *conformance)     { c.must(c.store.MarkFailed(c.Context(), c.current, "refused")) }
func postpone(c *conformance) { c.must(c.store.Postpone(c.Context(), c.current, "down", time.Time{})) }
func giveBack(c *conformance) { c.must(c.store.GiveBack(c.Context(), c.current)) }
func cancel(c *conformance)   { c.must(c.store.Cancel(c.Context(), c.current.ID, "not wanted")) }

func requeue(c *conformance) {
	c.must(c.store.Requeue(c.Context(), c.current.ID, "mended"))
	c.lost, c.current.Token = c.current, 0
}

func skip(c *conformance) {
	c.must(c.store.Skip(c.Context(), c.policy.destination, c.get(c.current.ID).OrderKey))
}

func expire(c *conformance) {
	ids, err := c.store.ExpireDue(c.Context(), time.Time{}, 10)
	c.must(err)
	c.expect("ExpireDue", len(ids), 1)
}

// outliveLease sweeps the row, which was claimed long ago.
func outliveLease(c *conformance) {
	ids, err := c.store.ReleaseExpiredClaims(c.Context(), time.Time{})
	c.must(err)
	c.expect("ReleaseExpiredClaims", len(ids), 1)
}

// exhaust leaves one attempt.
func exhaust(c *conformance) {
	attempts := c.policy.maxAttempts
	if attempts == 0 {
		attempts = 3
	}
	for range attempts - 1 {
		claim(longAgo)(c)
		retry(time.Time{})(c)
	}
}

// hold holds the row for a question.
func hold(c *conformance) {
	entries, err := c.store.ClaimUnknown(c.Context(), c.request(10, time.Time{}))
	c.must(err)
	c.expect("ClaimUnknown", len(entries), 1)
	c.lost, c.current = c.current, entries[0].Claim
}

// head claims the row ahead, and takes further steps with that.
func head(further ...func(*conformance)) func(*conformance) {
	return func(c *conformance) {
		run := c.claim(1, longAgo)
		c.expect("ClaimDue", len(run), 1)
		ahead := *c
		ahead.current = run[0].Claim
		for _, step := range further {
			step(&ahead)
		}
	}
}

// claimBehind claims the row with the one ahead, which then fails.
func claimBehind(c *conformance) {
	run := c.claim(2, longAgo)
	c.expect("ClaimDue", len(run), 2)
	c.must(c.store.MarkFailed(c.Context(), run[0].Claim, "refused"))
	c.current = run[1].Claim
}

// reach brings a row into a state.
func (c *conformance) reach(s state) {
	if s.is == missing {
		c.current.ID = outbox.OutboxID(uuid.New())
		return
	}
	var messages []outbox.Message
	if s.is == behind || s.is == behindReleased {
		ahead, message := c.pair()
		messages = append(messages, ahead, message)
	} else {
		messages = append(messages, c.subject.Message(c.policy.destination))
	}
	for i, m := range messages {
		if s.address != nil {
			messages[i] = s.address(m)
		} else {
			messages[i] = m.ExpiresAt(expiry)
		}
	}
	answers := c.enqueue(messages...)
	c.current.ID = answers[len(answers)-1].ID
	for _, step := range s.steps {
		step(c)
	}
}
