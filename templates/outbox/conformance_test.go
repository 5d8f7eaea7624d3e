package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// conformanceSubject is what the conformance suite asks of a backend. Whatever
// stands behind a Store has to pass the same cases.
type conformanceSubject interface {
	open(t testing.TB) *Store // a store that has no rows
	begin(t testing.TB) pgx.Tx
	command() Command
	message(d Destination) Message // with content, and an order key, that no other message has
	now(t testing.TB) time.Time    // by the clock that the store goes by
	// statuses are those under which a row is seen without the Store's help.
	statuses(t testing.TB, id OutboxID) []Status
}

// Times that are past and future by any clock that the suite runs under.
var (
	longAgo  = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	someDay  = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	laterDay = time.Date(2101, 1, 1, 0, 0, 0, 0, time.UTC)
)

// bySettle is the destination whose rows are settled by Settle, each beside
// another that is refused, where there is a call for one as well.
const bySettle = DestinationBank

// theClock stands, in a record that is expected, for the reading of the store's
// clock that the operation took.
var theClock = time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)

// condition is what the rules of the semantics tell rows apart by.
type condition uint

const (
	isMissing      condition = 1 << iota
	isNeverClaimed           // pending, and no claim settles it: it has none, or lost it by Requeue
	isPending                // pending under a claim that was released
	isDispatching
	isCompleted
	isFailed
	isUnknown       // the outcome is, and nobody holds the row
	isHeld          // the outcome is unknown, and a worker holds the row to ask
	isBehind        // pending, never claimed, and behind a row that holds their key
	isBehindClaimed // the same under a claim that was released

	isDue      = isNeverClaimed | isPending
	isReleased = isPending | isBehindClaimed
	anyPending = isDue | isBehind | isBehindClaimed
	anyUnknown = isUnknown | isHeld
	live       = isReleased | isDispatching | anyUnknown // and claimed before
)

// cell is one case: a row in a state, and what was claimed of it.
type cell struct {
	t           *testing.T
	subject     conformanceSubject
	store       *Store
	destination Destination
	id          OutboxID
	current     Claim // the row's own; zero = never claimed
	lost        Claim // an older one of the same row
}

func (c *cell) policy() policy { return policyOf(c.destination) }

func (c *cell) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// claim claims the row, as of at, and must get it.
func (c *cell) claim(at time.Time) {
	c.t.Helper()
	entries, err := c.store.ClaimDue(c.t.Context(), c.request(at))
	c.must(err)
	if len(entries) != 1 {
		c.t.Fatalf("ClaimDue returned %d rows, want 1", len(entries))
	}
	c.current = entries[0].Claim
}

// claimHead claims the first n rows of the key.
func (c *cell) claimHead(n int) []Entry {
	c.t.Helper()
	entries, err := c.store.ClaimDue(c.t.Context(), ClaimRequest{WorkerID: "worker", Limits: map[Destination]int{c.destination: n}, At: longAgo})
	c.must(err)
	if len(entries) != n {
		c.t.Fatalf("ClaimDue returned %d rows, want %d", len(entries), n)
	}
	return entries
}

// hold holds the row for a question.
func (c *cell) hold() {
	c.t.Helper()
	entries, err := c.store.ClaimUnknown(c.t.Context(), c.request(time.Time{}))
	c.must(err)
	if len(entries) != 1 {
		c.t.Fatalf("ClaimUnknown returned %d rows, want 1", len(entries))
	}
	c.current = entries[0].Claim
}

func (c *cell) request(at time.Time) ClaimRequest {
	return ClaimRequest{WorkerID: "worker", Limits: map[Destination]int{c.destination: 10}, At: at}
}

// record is the row as it stands; the zero Record when it is missing.
func (c *cell) record() Record {
	c.t.Helper()
	record, err := c.store.Get(c.t.Context(), c.id)
	if errors.Is(err, ErrNotFound) {
		return Record{}
	}
	c.must(err)
	return record
}

// conformanceState is a state that a row can be in, and the way there.
type conformanceState struct {
	name      string
	is        condition
	address   func(Message) Message // nil = as it comes
	behind    bool                  // another row of the same key is ahead of it
	reach     func(c *cell)         // from a pending row; nil = that is the state
	unclaimed bool                  // it has ended before any claim
	exhausted bool                  // it takes all attempts; of its claims others have shown enough
	only      func(p policy) bool   // nil = every destination can have it
}

// has tells whether a row in the state has such a claim.
func (s conformanceState) has(claim string) bool {
	switch claim {
	case theSame:
		return s.is&^(isMissing|isNeverClaimed|isBehind) != 0 && !s.unclaimed
	case anOlder:
		return s.is != isMissing && s.reach != nil && !s.unclaimed && !s.exhausted && !s.behind
	case zero:
		return s.is == isMissing // which it names in every state
	}
	return !s.exhausted
}

func isIdempotent(p policy) bool { return p.idempotent }
func isOrdered(p policy) bool    { return p.destination == DestinationStock }

var conformanceStates = []conformanceState{
	{name: "missing", is: isMissing},
	{name: "pending, never claimed", is: isNeverClaimed},
	{name: "pending, never claimed, for later", is: isNeverClaimed, address: func(m Message) Message {
		if m.expires.IsZero() && policyOf(m.destination).expires > 0 {
			m = m.ExpiresAt(someDay.Add(time.Hour)) // else it would expire before
		}
		return m.At(someDay)
	}},
	{name: "pending after a retry", is: isPending, reach: func(c *cell) {
		c.claim(longAgo)
		c.must(c.store.MarkRetry(c.t.Context(), c.current, "busy", time.Time{}))
	}},
	{name: "pending after a retry, for later", is: isPending, reach: func(c *cell) {
		c.claim(longAgo)
		c.must(c.store.MarkRetry(c.t.Context(), c.current, "busy", someDay))
	}},
	{name: "pending, postponed", is: isPending, reach: func(c *cell) {
		c.claim(longAgo)
		c.must(c.store.Postpone(c.t.Context(), c.current, "unreachable", time.Time{}))
	}},
	{name: "pending, given back", is: isPending, reach: func(c *cell) {
		c.claim(longAgo)
		c.must(c.store.GiveBack(c.t.Context(), c.current))
	}},
	{name: "pending after its lease ran out", is: isPending, only: isIdempotent, reach: func(c *cell) {
		c.claim(longAgo)
		c.release()
	}},
	{name: "dispatching", is: isDispatching, reach: func(c *cell) { c.claim(time.Time{}) }},
	{name: "dispatching, the second attempt", is: isDispatching, reach: func(c *cell) {
		c.claim(longAgo)
		c.lost = c.current
		c.must(c.store.MarkRetry(c.t.Context(), c.current, "busy", time.Time{}))
		c.claim(time.Time{})
	}},
	{name: "dispatching, the last attempt", is: isDispatching, exhausted: true, reach: func(c *cell) { c.exhaust(time.Time{}) }},
	{name: "completed", is: isCompleted, reach: func(c *cell) {
		c.claim(time.Time{})
		c.must(c.store.MarkCompleted(c.t.Context(), c.current, ""))
	}},
	{name: "completed with a reference after a failure", is: isCompleted, reach: func(c *cell) {
		c.claim(longAgo)
		c.must(c.store.MarkRetry(c.t.Context(), c.current, "busy", time.Time{}))
		c.claim(time.Time{})
		c.must(c.store.MarkCompleted(c.t.Context(), c.current, "first"))
	}},
	{name: "failed by its claim", is: isFailed, reach: func(c *cell) {
		c.claim(time.Time{})
		c.must(c.store.MarkFailed(c.t.Context(), c.current, "refused"))
	}},
	{name: "failed, abandoned at the last attempt", is: isFailed, exhausted: true, only: func(p policy) bool { return p.idempotent && p.maxAttempts > 0 }, reach: func(c *cell) {
		c.exhaust(longAgo)
		c.release()
	}},
	{name: "failed, cancelled before any claim", is: isFailed, unclaimed: true, reach: func(c *cell) {
		c.must(c.store.Cancel(c.t.Context(), c.id, "not wanted"))
	}},
	{name: "failed, cancelled after a claim", is: isFailed, reach: func(c *cell) {
		c.claim(longAgo)
		c.must(c.store.GiveBack(c.t.Context(), c.current))
		c.must(c.store.Cancel(c.t.Context(), c.id, "not wanted"))
	}},
	{name: "failed, expired", is: isFailed, unclaimed: true, address: func(m Message) Message { return m.ExpiresAt(longAgo) }, reach: func(c *cell) {
		ids, err := c.store.ExpireDue(c.t.Context(), time.Time{}, 10)
		c.must(err)
		if len(ids) != 1 {
			c.t.Fatalf("ExpireDue returned %d rows, want 1", len(ids))
		}
	}},
	{name: "outcome unknown", is: isUnknown, reach: func(c *cell) {
		c.claim(longAgo)
		c.must(c.store.MarkOutcomeUnknown(c.t.Context(), c.current, "first", time.Time{}))
	}},
	{name: "outcome unknown, to be asked later", is: isUnknown, reach: func(c *cell) {
		c.claim(longAgo)
		c.must(c.store.MarkOutcomeUnknown(c.t.Context(), c.current, "", someDay))
	}},
	{name: "outcome unknown after its lease ran out", is: isUnknown, only: func(p policy) bool { return !p.idempotent }, reach: func(c *cell) {
		c.claim(longAgo)
		c.release()
	}},
	{name: "outcome unknown after the last attempt", is: isUnknown, exhausted: true, reach: func(c *cell) {
		c.exhaust(longAgo)
		c.must(c.store.MarkOutcomeUnknown(c.t.Context(), c.current, "", time.Time{}))
	}},
	{name: "failed and skipped", is: isFailed, only: isOrdered, reach: func(c *cell) {
		c.claim(time.Time{})
		c.must(c.store.MarkFailed(c.t.Context(), c.current, "refused"))
		c.must(c.store.Skip(c.t.Context(), c.destination, c.record().OrderKey))
	}},
	{name: "pending behind a failed row of its key", is: isBehind, only: isOrdered, behind: true, reach: func(c *cell) {
		c.must(c.store.MarkFailed(c.t.Context(), c.claimHead(1)[0].Claim, "refused"))
	}},
	{name: "pending behind a row of its key that waits", is: isBehind, only: isOrdered, behind: true, reach: func(c *cell) {
		c.must(c.store.MarkRetry(c.t.Context(), c.claimHead(1)[0].Claim, "busy", laterDay.AddDate(1, 0, 0)))
	}},
	{name: "pending, given back behind a failed row of its key", is: isBehindClaimed, only: isOrdered, behind: true, reach: func(c *cell) {
		entries := c.claimHead(2)
		c.current = entries[1].Claim
		c.must(c.store.MarkFailed(c.t.Context(), entries[0].Claim, "refused"))
		c.must(c.store.GiveBack(c.t.Context(), c.current))
	}},
	{name: "outcome unknown, held", is: isHeld, reach: func(c *cell) {
		c.claim(longAgo)
		c.must(c.store.MarkOutcomeUnknown(c.t.Context(), c.current, "", longAgo))
		c.lost = c.current
		c.hold()
	}},
	{name: "pending, requeued", is: isNeverClaimed, reach: func(c *cell) {
		c.claim(longAgo)
		c.must(c.store.MarkFailed(c.t.Context(), c.current, "refused"))
		c.must(c.store.Requeue(c.t.Context(), c.id, "mended"))
		c.lost, c.current = c.current, Claim{}
	}},
}

// release lets the lease of the row run out.
func (c *cell) release() {
	c.t.Helper()
	ids, err := c.store.ReleaseExpiredClaims(c.t.Context(), time.Time{})
	c.must(err)
	if len(ids) != 1 {
		c.t.Fatalf("ReleaseExpiredClaims returned %d rows, want 1", len(ids))
	}
}

// exhaust claims the row until no attempt is left, the last time as of at.
func (c *cell) exhaust(at time.Time) {
	c.t.Helper()
	attempts := c.policy().maxAttempts
	if attempts == 0 {
		attempts = 3
	}
	for range attempts - 1 {
		c.claim(longAgo)
		c.must(c.store.MarkRetry(c.t.Context(), c.current, "busy", time.Time{}))
	}
	c.claim(at)
}

// conformanceResult is what an operation answered.
type conformanceResult struct {
	err     error
	ids     []OutboxID // of an operation that lists what it did
	entries []Entry    // of a claiming one
}

// conformanceOperation is a row of the table of semantics, or several.
type conformanceOperation struct {
	name    string
	fenced  bool // it names the claim that it speaks for
	lists   bool // it lists what it did, and a row that it leaves alone is no error
	address func(Message) Message
	run     func(c *cell, claim Claim) conformanceResult
	many    func(claim Claim) Settlement // the same as one of many; nil = there is no such
	rules   []conformanceRule            // where none fits, the row must stay as it is
}

type conformanceRule struct {
	in     condition
	where  func(p policy, r Record) bool // nil = always
	effect func(c *cell, r *Record, done conformanceResult)
}

func settles(run func(ctx context.Context, s *Store, claim Claim) error) func(*cell, Claim) conformanceResult {
	return func(c *cell, claim Claim) conformanceResult {
		return conformanceResult{err: run(c.t.Context(), c.store, claim)}
	}
}

func claims(at time.Time, claim func(*Store, context.Context, ClaimRequest) ([]Entry, error)) func(*cell, Claim) conformanceResult {
	return func(c *cell, _ Claim) (done conformanceResult) {
		done.entries, done.err = claim(c.store, c.t.Context(), c.request(at))
		for _, e := range done.entries {
			done.ids = append(done.ids, e.ID)
		}
		return done
	}
}

// conformanceOperations is the table of semantics.
var conformanceOperations = []conformanceOperation{
	{
		name: "MarkCompleted", fenced: true,
		many: func(c Claim) Settlement { return c.Completed("") },
		run:  settles(func(ctx context.Context, s *Store, claim Claim) error { return s.MarkCompleted(ctx, claim, "") }),
		rules: []conformanceRule{
			{in: live, effect: completes("")},
			{in: isCompleted, effect: unchanged},
		},
	},
	{
		name: "MarkCompleted with a reference", fenced: true,
		many: func(c Claim) Settlement { return c.Completed("second") },
		run:  settles(func(ctx context.Context, s *Store, claim Claim) error { return s.MarkCompleted(ctx, claim, "second") }),
		rules: []conformanceRule{
			{in: live, effect: completes("second")},
			{in: isCompleted, effect: unchanged},
		},
	},
	{
		name: "MarkFailed", fenced: true,
		many: func(c Claim) Settlement { return c.Failed("hopeless") },
		run:  settles(func(ctx context.Context, s *Store, claim Claim) error { return s.MarkFailed(ctx, claim, "hopeless") }),
		rules: []conformanceRule{
			{in: live, effect: givesUp(theClock, "hopeless")},
			{in: isFailed, effect: func(_ *cell, r *Record, _ conformanceResult) { r.LastFailure = "hopeless" }},
		},
	},
	{
		name: "MarkRetry for later", fenced: true,
		many: func(c Claim) Settlement { return c.Retry("later", laterDay) },
		run: settles(func(ctx context.Context, s *Store, claim Claim) error {
			return s.MarkRetry(ctx, claim, "later", laterDay)
		}),
		rules: []conformanceRule{{in: live, effect: waits("later", laterDay)}},
	},
	{
		name: "MarkRetry at once", fenced: true,
		many: func(c Claim) Settlement { return c.Retry("again", time.Time{}) },
		run: settles(func(ctx context.Context, s *Store, claim Claim) error {
			return s.MarkRetry(ctx, claim, "again", time.Time{})
		}),
		rules: []conformanceRule{{in: live, effect: waits("again", time.Time{})}},
	},
	{
		name: "MarkRetry at a time that has come", fenced: true,
		many: func(c Claim) Settlement { return c.Retry("again", longAgo) },
		run: settles(func(ctx context.Context, s *Store, claim Claim) error {
			return s.MarkRetry(ctx, claim, "again", longAgo)
		}),
		rules: []conformanceRule{{in: live, effect: waits("again", time.Time{})}},
	},
	{
		name: "Reschedule", fenced: true,
		many:  func(c Claim) Settlement { return c.Reschedule(laterDay) },
		run:   settles(func(ctx context.Context, s *Store, claim Claim) error { return s.Reschedule(ctx, claim, laterDay) }),
		rules: []conformanceRule{{in: live, effect: waits("", laterDay)}},
	},
	{
		name: "Postpone", fenced: true,
		many: func(c Claim) Settlement { return c.Postpone("down", laterDay) },
		run: settles(func(ctx context.Context, s *Store, claim Claim) error {
			return s.Postpone(ctx, claim, "down", laterDay)
		}),
		rules: []conformanceRule{{in: isDispatching, effect: uncharged("down", laterDay)}},
	},
	{
		name: "GiveBack", fenced: true,
		many: Claim.GiveBack,
		run:  settles(func(ctx context.Context, s *Store, claim Claim) error { return s.GiveBack(ctx, claim) }),
		rules: []conformanceRule{
			{in: isDispatching, effect: uncharged("", time.Time{})},
			{in: isReleased, effect: unchanged},
			{in: isHeld, effect: letsGo},
		},
	},
	{
		name: "MarkNeverArrived", fenced: true,
		many: func(c Claim) Settlement { return c.NeverArrived("lost") },
		run:  settles(func(ctx context.Context, s *Store, claim Claim) error { return s.MarkNeverArrived(ctx, claim, "lost") }),
		rules: []conformanceRule{
			{in: isReleased, effect: unchanged},
			{in: anyUnknown, where: func(p policy, r Record) bool { return p.maxAttempts > 0 && r.Attempt >= p.maxAttempts }, effect: givesUp(theClock, "lost")},
			{in: anyUnknown, effect: waits("lost", time.Time{})},
		},
	},
	{
		name: "MarkOutcomeUnknown", fenced: true,
		many: func(c Claim) Settlement { return c.OutcomeUnknown("", laterDay) },
		run: settles(func(ctx context.Context, s *Store, claim Claim) error {
			return s.MarkOutcomeUnknown(ctx, claim, "", laterDay)
		}),
		rules: []conformanceRule{{in: isDispatching, effect: parks("", laterDay)}, {in: anyUnknown, effect: keeps("", laterDay)}},
	},
	{
		name: "MarkOutcomeUnknown with a reference", fenced: true,
		many: func(c Claim) Settlement { return c.OutcomeUnknown("second", time.Time{}) },
		run: settles(func(ctx context.Context, s *Store, claim Claim) error {
			return s.MarkOutcomeUnknown(ctx, claim, "second", time.Time{})
		}),
		rules: []conformanceRule{{in: isDispatching, effect: parks("second", theClock)}, {in: anyUnknown, effect: keeps("second", theClock)}},
	},
	{
		name: "KeepUnknown", fenced: true,
		many:  func(c Claim) Settlement { return c.KeepUnknown(laterDay) },
		run:   settles(func(ctx context.Context, s *Store, claim Claim) error { return s.KeepUnknown(ctx, claim, laterDay) }),
		rules: []conformanceRule{{in: anyUnknown, effect: keeps("", laterDay)}},
	},
	{
		name: "ExtendClaims", fenced: true, lists: true,
		run: extends(time.Time{}),
		rules: []conformanceRule{
			{in: isDispatching | isHeld, effect: func(_ *cell, r *Record, _ conformanceResult) { r.ClaimedAt = theClock }},
		},
	},
	{
		name: "ExtendClaims to a given time", fenced: true, lists: true,
		run: extends(laterDay),
		rules: []conformanceRule{
			{in: isDispatching | isHeld, effect: func(_ *cell, r *Record, _ conformanceResult) { r.ClaimedAt = laterDay }},
		},
	},
	{
		name: "Cancel",
		run: func(c *cell, _ Claim) conformanceResult {
			return conformanceResult{err: c.store.Cancel(c.t.Context(), c.id, "cancelled")}
		},
		rules: []conformanceRule{
			{in: anyPending, effect: func(_ *cell, r *Record, _ conformanceResult) { fails(r, theClock, "cancelled") }},
		},
	},
	{
		name: "Requeue",
		run: func(c *cell, _ Claim) conformanceResult {
			return conformanceResult{err: c.store.Requeue(c.t.Context(), c.id, "try again")}
		},
		rules: []conformanceRule{{in: isFailed, effect: func(_ *cell, r *Record, _ conformanceResult) {
			r.Status, r.CompletedAt, r.Attempt, r.Claim.Token, r.Holding = StatusPending, time.Time{}, 0, 0, false
			r.LastFailure = "requeued: try again; before: " + r.LastFailure
			if r.ExpiresAt.Equal(longAgo) {
				r.ExpiresAt = time.Time{}
			}
		}}},
	},
	{
		name: "Skip", lists: true,
		run: func(c *cell, _ Claim) (done conformanceResult) {
			before := c.record()
			done.err = c.store.Skip(c.t.Context(), c.destination, before.OrderKey)
			switch {
			case errors.Is(done.err, ErrNotFound):
				done.err = nil
			case done.err == nil && before.Holding: // else a row ahead of it was skipped
				done.ids = []OutboxID{c.id}
			}
			return done
		},
		rules: []conformanceRule{
			{in: isFailed, where: func(_ policy, r Record) bool { return r.Holding }, effect: func(_ *cell, r *Record, _ conformanceResult) { r.Holding = false }},
		},
	},
	{
		name: "ClaimDue", lists: true,
		run: claims(time.Time{}, (*Store).ClaimDue),
		rules: []conformanceRule{
			{in: isDue, where: func(_ policy, r Record) bool { return r.NextAttemptAt.IsZero() }, effect: dispatches(theClock)},
		},
	},
	{
		name: "ClaimDue of a later time", lists: true,
		run: claims(laterDay, (*Store).ClaimDue),
		rules: []conformanceRule{
			{in: isDue, where: func(_ policy, r Record) bool { return r.ExpiresAt.IsZero() }, effect: dispatches(laterDay)},
		},
	},
	{
		name: "ClaimDue past the expiry", lists: true,
		address: func(m Message) Message { return m.ExpiresAt(someDay.Add(time.Hour)) },
		run:     claims(laterDay, (*Store).ClaimDue),
	},
	{
		name: "ClaimUnknown", lists: true,
		run: claims(time.Time{}, (*Store).ClaimUnknown),
		rules: []conformanceRule{
			{in: isUnknown, where: func(_ policy, r Record) bool {
				return !r.NextAttemptAt.IsZero() && !r.NextAttemptAt.After(r.UnknownSince)
			}, effect: holds(theClock)},
		},
	},
	{
		name: "ClaimUnknown of a later time", lists: true,
		run:   claims(laterDay, (*Store).ClaimUnknown),
		rules: []conformanceRule{{in: isUnknown, where: func(p policy, _ Record) bool { return p.giveUp == 0 }, effect: holds(laterDay)}},
	},
	{
		name: "ReleaseExpiredClaims within the lease", lists: true,
		run: sweeps(func(ctx context.Context, s *Store) ([]OutboxID, error) { return s.ReleaseExpiredClaims(ctx, longAgo) }),
	},
	{
		name: "ReleaseExpiredClaims past the lease", lists: true,
		run: sweeps(func(ctx context.Context, s *Store) ([]OutboxID, error) { return s.ReleaseExpiredClaims(ctx, laterDay) }),
		rules: []conformanceRule{
			{in: isHeld, effect: letsGo},
			{in: isDispatching, where: func(p policy, _ Record) bool { return !p.idempotent }, effect: func(c *cell, r *Record, _ conformanceResult) {
				leaves(r)
				r.Status, r.UnknownSince = StatusOutcomeUnknown, laterDay
				r.NextAttemptAt = laterDay.Add(c.policy().firstQuestion)
			}},
			{in: isDispatching, where: func(p policy, r Record) bool {
				return p.idempotent && p.maxAttempts > 0 && r.Attempt >= p.maxAttempts
			}, effect: givesUp(laterDay, "abandoned by worker; before: busy")},
			{in: isDispatching, where: func(p policy, r Record) bool {
				return p.idempotent && (p.maxAttempts == 0 || r.Attempt < p.maxAttempts)
			}, effect: waits("", time.Time{})},
		},
	},
	{
		name: "ExpireDue before the expiry", lists: true,
		address: func(m Message) Message { return m.ExpiresAt(someDay.Add(time.Hour)) },
		run:     sweeps(func(ctx context.Context, s *Store) ([]OutboxID, error) { return s.ExpireDue(ctx, someDay, 10) }),
	},
	{
		name: "ExpireDue past the expiry", lists: true,
		address: func(m Message) Message { return m.ExpiresAt(someDay.Add(time.Hour)) },
		run:     sweeps(func(ctx context.Context, s *Store) ([]OutboxID, error) { return s.ExpireDue(ctx, laterDay, 10) }),
		rules: []conformanceRule{
			{in: anyPending, where: func(_ policy, r Record) bool { return !r.ExpiresAt.IsZero() }, effect: func(_ *cell, r *Record, _ conformanceResult) {
				reason := "expired"
				if r.LastFailure != "" {
					reason += "; before: " + r.LastFailure
				}
				fails(r, laterDay, reason)
			}},
		},
	},
	{
		name: "Purge within the retention",
		run: func(c *cell, _ Claim) conformanceResult {
			removed, err := c.store.Purge(c.t.Context(), time.Time{}, 10)
			if err == nil && removed != 0 {
				err = fmt.Errorf("removed %d rows", removed)
			}
			return conformanceResult{err: err}
		},
		lists: true,
	},
	{
		name: "Purge past the retention", lists: true,
		run: func(c *cell, _ Claim) (done conformanceResult) {
			removed, err := c.store.Purge(c.t.Context(), laterDay.AddDate(0, 2, 0), 10)
			for range removed {
				done.ids = append(done.ids, c.id)
			}
			done.err = err
			return done
		},
		rules: []conformanceRule{
			{in: isCompleted, where: func(p policy, _ Record) bool { return p.keepCompleted != keepForever }, effect: vanishes},
			{in: isFailed, where: func(p policy, r Record) bool { return p.keepFailed != keepForever && !r.Holding }, effect: vanishes},
		},
	},
	{
		name: "Get", // which every case calls before and after
		run: func(c *cell, _ Claim) conformanceResult {
			_, err := c.store.Get(c.t.Context(), c.id)
			return conformanceResult{err: err}
		},
		rules: []conformanceRule{{in: ^isMissing, effect: unchanged}},
	},
	{
		name: "ListForCommand", lists: true,
		run: func(c *cell, _ Claim) (done conformanceResult) {
			records, err := c.store.ListForCommand(c.t.Context(), c.subject.command().id)
			for _, r := range records {
				if r.ID != c.id {
					continue // a row ahead of it
				}
				done.ids = append(done.ids, r.ID)
				if diff := cmp.Diff(c.record(), r, sameRecord); diff != "" {
					c.t.Errorf("ListForCommand differs from Get (-get +list):\n%s", diff)
				}
			}
			done.err = err
			return done
		},
		rules: []conformanceRule{{in: ^isMissing, effect: unchanged}},
	},
}

func extends(at time.Time) func(*cell, Claim) conformanceResult {
	return func(c *cell, claim Claim) (done conformanceResult) {
		still, err := c.store.ExtendClaims(c.t.Context(), at, claim)
		for _, s := range still {
			if s != claim {
				c.t.Errorf("ExtendClaims returned %v, which it was not asked for", s)
			}
			done.ids = append(done.ids, s.ID)
		}
		done.err = err
		return done
	}
}

func sweeps(sweep func(context.Context, *Store) ([]OutboxID, error)) func(*cell, Claim) conformanceResult {
	return func(c *cell, _ Claim) (done conformanceResult) {
		done.ids, done.err = sweep(c.t.Context(), c.store)
		return done
	}
}

func unchanged(*cell, *Record, conformanceResult) {}

func vanishes(_ *cell, r *Record, _ conformanceResult) { *r = Record{} }

// leaves takes the row from whoever holds it. An attempt that ends so was made.
func leaves(r *Record) {
	if r.Status == StatusDispatching {
		r.LastAttemptAt = r.ClaimedAt
	}
	r.Worker, r.ClaimedAt = "", time.Time{}
}

// ends is what completed and failed rows have in common.
func ends(r *Record, status Status, at time.Time) {
	r.Status, r.CompletedAt = status, at
	r.Worker, r.ClaimedAt, r.NextAttemptAt, r.UnknownSince, r.LastAttemptAt = "", time.Time{}, time.Time{}, time.Time{}, time.Time{}
}

func completes(ref string) func(*cell, *Record, conformanceResult) {
	return func(c *cell, r *Record, done conformanceResult) {
		if c.policy().keepCompleted == 0 {
			vanishes(c, r, done)
			return
		}
		ends(r, StatusCompleted, theClock)
		if ref != "" {
			r.RemoteRef = ref
		}
	}
}

func fails(r *Record, at time.Time, reason string) {
	ends(r, StatusFailed, at)
	r.LastFailure = reason
}

// givesUp fails a row that was or may have been sent: it holds its key, if it has
// one.
func givesUp(at time.Time, reason string) func(*cell, *Record, conformanceResult) {
	return func(_ *cell, r *Record, _ conformanceResult) {
		fails(r, at, reason)
		r.Holding = r.OrderKey != ""
	}
}

// waits makes the row pending after an attempt; an empty reason keeps the last.
func waits(reason string, at time.Time) func(*cell, *Record, conformanceResult) {
	return func(_ *cell, r *Record, _ conformanceResult) {
		leaves(r)
		r.Status, r.NextAttemptAt, r.UnknownSince = StatusPending, at, time.Time{}
		if reason != "" {
			r.LastFailure = reason
		}
	}
}

// uncharged makes the row pending as if it had not been attempted.
func uncharged(reason string, at time.Time) func(*cell, *Record, conformanceResult) {
	return func(c *cell, r *Record, done conformanceResult) {
		attempted := r.LastAttemptAt
		waits(reason, at)(c, r, done)
		r.LastAttemptAt = attempted
		r.Attempt--
	}
}

func parks(ref string, at time.Time) func(*cell, *Record, conformanceResult) {
	return func(_ *cell, r *Record, _ conformanceResult) {
		leaves(r)
		r.Status, r.UnknownSince, r.NextAttemptAt = StatusOutcomeUnknown, theClock, question(r, at)
		if ref != "" {
			r.RemoteRef = ref
		}
	}
}

// question is the next one at a time, or none where asking has been given up by then.
func question(r *Record, at time.Time) time.Time {
	if at.Equal(laterDay) && policyOf(r.Destination).giveUp > 0 {
		return time.Time{}
	}
	return at
}

// keeps leaves the outcome unknown; a reference fills an empty place only.
func keeps(ref string, at time.Time) func(*cell, *Record, conformanceResult) {
	return func(c *cell, r *Record, done conformanceResult) {
		letsGo(c, r, done)
		r.NextAttemptAt = question(r, at)
		if r.RemoteRef == "" {
			r.RemoteRef = ref
		}
	}
}

func letsGo(_ *cell, r *Record, _ conformanceResult) { leaves(r) }

func dispatches(at time.Time) func(*cell, *Record, conformanceResult) {
	return func(c *cell, r *Record, done conformanceResult) {
		holds(at)(c, r, done)
		r.Status, r.NextAttemptAt = StatusDispatching, time.Time{}
		r.Attempt++
	}
}

func holds(at time.Time) func(*cell, *Record, conformanceResult) {
	return func(c *cell, r *Record, done conformanceResult) {
		r.Worker, r.ClaimedAt = "worker", at
		for _, e := range done.entries {
			if e.Claim.Token == 0 || e.Claim.Token == r.Claim.Token {
				c.t.Errorf("the token of the claim is %d after %d", e.Claim.Token, r.Claim.Token)
			}
			r.Claim = e.Claim
		}
	}
}

// sameRecord compares errors of records by their text.
var sameRecord = cmp.Comparer(func(a, b error) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Error() == b.Error())
})

// The claims that an operation may name.
const (
	theSame = "the same claim"
	anOlder = "an older claim"
	another = "another claim"
	noToken = "no token"
	zero    = "the zero claim"
)

// testConformance walks the table for a destination: every operation on a row in
// every state, under each of the claims.
func testConformance(t *testing.T, subject conformanceSubject, d Destination, claims ...string) {
	for _, state := range conformanceStates {
		if state.only != nil && !state.only(policyOf(d)) {
			continue
		}
		t.Run(state.name, func(t *testing.T) {
			for _, operation := range conformanceOperations {
				if !operation.fenced {
					t.Run(operation.name, func(t *testing.T) { testCell(t, subject, d, state, operation, "") })
					continue
				}
				for _, which := range claims {
					if state.has(which) {
						t.Run(operation.name+" by "+which, func(t *testing.T) { testCell(t, subject, d, state, operation, which) })
					}
				}
			}
		})
	}
}

func testCell(t *testing.T, subject conformanceSubject, d Destination, state conformanceState, operation conformanceOperation, which string) {
	c := &cell{t: t, subject: subject, store: subject.open(t), destination: d, id: OutboxID(uuid.Must(uuid.NewV7()))}
	if state.is != isMissing {
		message := subject.message(d)
		for _, address := range []func(Message) Message{operation.address, state.address} {
			if address != nil {
				message = address(message)
			}
		}
		messages := []Message{message}
		if state.behind {
			ahead := subject.message(d)
			ahead.orderKey = message.orderKey
			messages = []Message{ahead, message}
		}
		tx := subject.begin(t)
		placed, err := c.store.With(tx).Enqueue(t.Context(), subject.command(), messages...)
		c.must(err)
		c.must(tx.Commit(t.Context()))
		c.id = placed[len(placed)-1].ID
	}
	if state.reach != nil {
		if which == anOlder {
			// The row is as before, but one claim of it is lost.
			at := longAgo
			c.claim(at)
			c.must(c.store.GiveBack(t.Context(), c.current))
			c.lost, c.current = c.current, Claim{}
		}
		state.reach(c)
	}
	before := c.record()
	is := state.is
	if before.Status == "" {
		is = isMissing // completed, where completed rows are not kept
	}
	if before.Claim.Token != c.current.Token && is != isMissing {
		t.Fatalf("the token of the row is %d, that of its claim %d", before.Claim.Token, c.current.Token)
	}

	var claim Claim
	switch which {
	case theSame:
		claim = c.current
	case anOlder:
		claim = c.lost
	case another:
		claim = Claim{ID: c.id, Token: 1 + c.current.Token ^ c.lost.Token}
	case noToken:
		claim = Claim{ID: c.id}
	}
	target := c.id
	if operation.fenced {
		target = claim.ID
	}

	run := operation.run
	if d == bySettle && operation.many != nil {
		run = func(c *cell, claim Claim) (done conformanceResult) {
			answers, err := c.store.Settle(t.Context(), Claim{ID: OutboxID(uuid.New()), Token: 1}.Failed("missing"), operation.many(claim))
			c.must(err)
			wantRefusal(t, answers[0], ErrNotFound, ClaimError{ID: answers[0].(*ClaimError).ID})
			return conformanceResult{err: answers[1]}
		}
	}
	start := subject.now(t)
	done := run(c, claim)
	end := subject.now(t)
	after := c.record()

	// What the table says.
	want := before
	var accepted bool
	for _, rule := range operation.rules {
		fits := rule.in&is != 0 && (!operation.fenced || which == theSame)
		if fits && (rule.where == nil || rule.where(c.policy(), before)) {
			accepted = true
			rule.effect(c, &want, done)
			break
		}
	}
	switch {
	case accepted || operation.lists:
		c.must(done.err)
	case is == isMissing || target != c.id:
		wantRefusal(t, done.err, ErrNotFound, ClaimError{ID: target})
	default:
		wantRefusal(t, done.err, ErrConflict, ClaimError{ID: target, Destination: d, Status: before.Status})
	}
	if operation.lists {
		var ids []OutboxID
		if accepted {
			ids = []OutboxID{c.id}
		}
		if !slices.Equal(done.ids, ids) {
			t.Errorf("the operation named the rows %v, want %v", done.ids, ids)
		}
	}

	// The row as a whole.
	readClock(t, &want, after, start, end)
	if diff := cmp.Diff(want, after, sameRecord); diff != "" {
		t.Errorf("the row (-want +got):\n%s", diff)
	}
	for _, e := range done.entries {
		if diff := cmp.Diff(after.Entry, e, sameRecord); diff != "" {
			t.Errorf("the claimed entry differs from the row (-row +entry):\n%s", diff)
		}
	}
	var statuses []Status
	if want.Status != "" {
		statuses = []Status{want.Status}
	}
	if got := subject.statuses(t, c.id); !slices.Equal(got, statuses) {
		t.Errorf("the row is seen as %v, want %v", got, statuses)
	}
	check, err := c.store.CheckRows(t.Context())
	c.must(err)
	if check != (RowCheck{}) {
		t.Errorf("CheckRows: %+v", check)
	}
}

// readClock puts the reading of the clock that the row shows in the place of
// theClock, when it lies between two readings of the test's.
func readClock(t *testing.T, want *Record, got Record, start, end time.Time) {
	t.Helper()
	for _, field := range []struct {
		name string
		want *time.Time
		got  time.Time
	}{
		{"NextAttemptAt", &want.NextAttemptAt, got.NextAttemptAt},
		{"ClaimedAt", &want.ClaimedAt, got.ClaimedAt},
		{"UnknownSince", &want.UnknownSince, got.UnknownSince},
		{"CompletedAt", &want.CompletedAt, got.CompletedAt},
	} {
		if !field.want.Equal(theClock) {
			continue
		}
		if field.got.Before(start) || field.got.After(end) {
			t.Errorf("%s is %v, which is not between %v and %v", field.name, field.got, start, end)
		}
		*field.want = field.got
	}
}

// wantRefusal checks the error of an operation that has refused a row. Get has
// no claim to speak of.
func wantRefusal(t *testing.T, err, want error, details ClaimError) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("the error is %v, want %v", err, want)
	}
	var refusal *ClaimError
	if !errors.As(err, &refusal) {
		return
	}
	if refusal.ID != details.ID || refusal.Destination != details.Destination || refusal.Status != details.Status {
		t.Errorf("the error speaks of %s %q %q, want %s %q %q",
			refusal.ID, refusal.Destination, refusal.Status, details.ID, details.Destination, details.Status)
	}
}
