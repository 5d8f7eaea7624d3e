package outboxtest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/templates/outbox"
)

// operation is a call, and what it does to rows by their state.
type operation struct {
	name   string
	settle func(outbox.Claim) outbox.Settlement // of one that speaks for a claim; others have run
	run    func(c *conformance) ([]outbox.OutboxID, error)
	sweeps bool   // it returns the rows that it changed, and to leave one alone is no error
	rules  []rule // the first that fits; where none does, the row must stay as it is
}

type rule struct {
	in     condition
	where  func(c *conformance, r outbox.Record) bool // nil = always
	effect func(c *conformance, r *outbox.Record)
}

// settling is an operation that speaks for a claim.
func settling(name string, settle func(outbox.Claim) outbox.Settlement, rules ...rule) operation {
	return operation{name: name, settle: settle, rules: rules}
}

// operations are the tables of operations of the semantics.
var operations = []operation{
	settling("MarkCompleted", func(c outbox.Claim) outbox.Settlement { return c.Completed("") },
		rule{in: live, effect: completes("")}, rule{in: completed, effect: stays}),
	settling("MarkCompleted with a reference", func(c outbox.Claim) outbox.Settlement { return c.Completed("second") },
		rule{in: live, effect: completes("second")}, rule{in: completed, effect: stays}),
	settling("MarkFailed", func(c outbox.Claim) outbox.Settlement { return c.Failed("hopeless") },
		rule{in: live, effect: givesUp("hopeless")},
		rule{in: failed, effect: func(_ *conformance, r *outbox.Record) { r.LastFailure = "hopeless" }}),
	settling("MarkRetry at once", func(c outbox.Claim) outbox.Settlement { return c.Retry("again", time.Time{}) },
		rule{in: live, effect: waits("again", time.Time{})}),
	settling("MarkRetry at a time that has come", func(c outbox.Claim) outbox.Settlement { return c.Retry("", longAgo) },
		rule{in: live, effect: waits("", time.Time{})}),
	settling("MarkRetry later", func(c outbox.Claim) outbox.Settlement { return c.Retry("again", laterDay) },
		rule{in: live, effect: waits("again", laterDay)}),
	settling("Reschedule", func(c outbox.Claim) outbox.Settlement { return c.Reschedule(laterDay) },
		rule{in: live, effect: waits("", laterDay)}),
	settling("Postpone", func(c outbox.Claim) outbox.Settlement { return c.Postpone("down", laterDay) },
		rule{in: dispatching, effect: uncharged("down", laterDay)}),
	settling("GiveBack", outbox.Claim.GiveBack,
		rule{in: dispatching, effect: uncharged("", time.Time{})},
		rule{in: released | behindReleased, effect: stays},
		rule{in: held, effect: leaves}),
	settling("MarkOutcomeUnknown", func(c outbox.Claim) outbox.Settlement { return c.OutcomeUnknown("", laterDay) },
		rule{in: dispatching, effect: parks("", laterDay)}, rule{in: anyUnknown, effect: keeps("", laterDay)}),
	settling("MarkOutcomeUnknown with a reference", func(c outbox.Claim) outbox.Settlement { return c.OutcomeUnknown("second", time.Time{}) },
		rule{in: dispatching, effect: parks("second", theClock)}, rule{in: anyUnknown, effect: keeps("second", theClock)}),
	settling("KeepUnknown", func(c outbox.Claim) outbox.Settlement { return c.KeepUnknown(laterDay) },
		rule{in: anyUnknown, effect: keeps("", laterDay)}),
	settling("MarkNeverArrived", func(c outbox.Claim) outbox.Settlement { return c.NeverArrived("lost") },
		rule{in: released | behindReleased, effect: stays},
		rule{in: anyUnknown, where: exhausted, effect: givesUp("lost")},
		rule{in: anyUnknown, effect: waits("lost", time.Time{})}),
	{
		name: "ExtendClaims", sweeps: true,
		run:   extends(time.Time{}),
		rules: []rule{{in: dispatching | held, effect: func(_ *conformance, r *outbox.Record) { r.ClaimedAt = theClock }}},
	},
	{
		name: "ExtendClaims to a given time", sweeps: true,
		run:   extends(laterDay),
		rules: []rule{{in: dispatching | held, effect: func(_ *conformance, r *outbox.Record) { r.ClaimedAt = laterDay }}},
	},
	{
		name: "Cancel",
		run: func(c *conformance) ([]outbox.OutboxID, error) {
			return nil, c.store.Cancel(c.Context(), c.current.ID, "cancelled")
		},
		rules: []rule{{in: anyPending, effect: func(_ *conformance, r *outbox.Record) { fails(r, theClock, "cancelled") }}},
	},
	{
		name: "Requeue",
		run: func(c *conformance) ([]outbox.OutboxID, error) {
			return nil, c.store.Requeue(c.Context(), c.current.ID, "try again")
		},
		rules: []rule{{in: failed, effect: requeues}},
	},
	{
		name: "RequeueMatching", sweeps: true,
		run: func(c *conformance) ([]outbox.OutboxID, error) {
			filter := outbox.Filter{Destinations: []outbox.Destination{c.policy.destination}, LastFailure: c.row.LastFailure}
			return c.store.RequeueMatching(c.Context(), filter, 10, "try again")
		},
		rules: []rule{{in: failed, effect: requeues}},
	},
	{
		name: "Skip", sweeps: true,
		run: func(c *conformance) (skipped []outbox.OutboxID, err error) {
			err = c.store.Skip(c.Context(), c.policy.destination, c.row.OrderKey)
			if err == nil && c.row.Holding { // else a row ahead of it was skipped
				skipped = append(skipped, c.row.ID)
			}
			if errors.Is(err, outbox.ErrNotFound) {
				err = nil
			}
			return skipped, err
		},
		rules: []rule{{
			in: failed, where: func(_ *conformance, r outbox.Record) bool { return r.Holding },
			effect: func(_ *conformance, r *outbox.Record) { r.Holding = false },
		}},
	},
	claimDue("ClaimDue", time.Time{}),
	claimDue("ClaimDue before the expiry", someDay),
	claimDue("ClaimDue at the expiry", expiry),
	paused(claimDue("ClaimDue", time.Time{})),
	resumed(claimDue("ClaimDue", time.Time{})),
	claimUnknown("ClaimUnknown", (*conformance).noTime),
	paused(claimUnknown("ClaimUnknown", (*conformance).noTime)),
	claimUnknown("ClaimUnknown before it is given up", (*conformance).lastQuestion),
	claimUnknown("ClaimUnknown when it is given up", (*conformance).givenUp),
	{
		name: "ReleaseExpiredClaims at the end of the lease", sweeps: true,
		run: func(c *conformance) ([]outbox.OutboxID, error) {
			return c.store.ReleaseExpiredClaims(c.Context(), c.leaseEnd())
		},
	},
	{
		name: "ReleaseExpiredClaims past the lease", sweeps: true,
		run: func(c *conformance) ([]outbox.OutboxID, error) {
			return c.store.ReleaseExpiredClaims(c.Context(), c.leaseEnd().Add(time.Microsecond))
		},
		rules: []rule{
			{in: held, effect: leaves},
			{in: dispatching, where: func(c *conformance, _ outbox.Record) bool { return !c.policy.idempotent }, effect: func(c *conformance, r *outbox.Record) {
				leaves(c, r)
				r.Status, r.UnknownSince = outbox.StatusOutcomeUnknown, c.leaseEnd().Add(time.Microsecond)
				if !c.policy.byHand {
					r.NextAttemptAt = r.UnknownSince.Add(c.policy.firstQuestion)
				}
			}},
			{in: dispatching, where: exhausted, effect: func(c *conformance, r *outbox.Record) {
				givesUp(before("abandoned by "+worker, r.LastFailure))(c, r)
				r.CompletedAt = c.leaseEnd().Add(time.Microsecond)
			}},
			{in: dispatching, effect: waits("", time.Time{})},
		},
	},
	{
		name: "ExpireDue before the expiry", sweeps: true,
		run: func(c *conformance) ([]outbox.OutboxID, error) { return c.store.ExpireDue(c.Context(), someDay, 10) },
	},
	{
		name: "ExpireDue at the expiry", sweeps: true,
		run: func(c *conformance) ([]outbox.OutboxID, error) { return c.store.ExpireDue(c.Context(), expiry, 10) },
		rules: []rule{{
			in: anyPending, where: func(_ *conformance, r outbox.Record) bool { return r.ExpiresAt.Equal(expiry) },
			effect: func(_ *conformance, r *outbox.Record) { fails(r, expiry, before("expired", r.LastFailure)) },
		}},
	},
	{
		name: "Purge within the retention", sweeps: true,
		run: func(c *conformance) ([]outbox.OutboxID, error) { return c.purge(0) },
	},
	{
		// By a day, since rows that a host has enqueued whose clock is ahead of
		// the database's are kept for as much longer.
		name: "Purge past the retention", sweeps: true,
		run: func(c *conformance) ([]outbox.OutboxID, error) { return c.purge(24 * time.Hour) },
		rules: []rule{{
			in:     completed | failed,
			where:  func(c *conformance, r outbox.Record) bool { return c.keep(r) != keepForever && !r.Holding },
			effect: func(_ *conformance, r *outbox.Record) { *r = outbox.Record{} },
		}},
	},
	{
		name: "List, ListForCommand and Stats", sweeps: true,
		run: func(c *conformance) ([]outbox.OutboxID, error) {
			records, err := c.store.List(c.Context(), outbox.Filter{}, outbox.OutboxID{}, 10)
			c.must(err)
			of, err := c.store.ListForCommand(c.Context(), c.row.CommandID)
			c.must(err)
			c.expect("ListForCommand", len(of), len(records))
			for i, r := range records {
				c.same(r, of[i])
				c.same(c.get(r.ID), r)
			}
			c.counts(records)
			return nil, nil
		},
	},
}

func extends(at time.Time) func(*conformance) ([]outbox.OutboxID, error) {
	return func(c *conformance) (ids []outbox.OutboxID, err error) {
		extended, err := c.store.ExtendClaims(c.Context(), at, append(c.wrongClaims(), c.current)...)
		for _, claim := range extended {
			if claim != c.current {
				c.Errorf("ExtendClaims returned %v, which is not the row's claim", claim)
			}
			ids = append(ids, claim.ID)
		}
		return ids, err
	}
}

// claimDue is the claim of what is due at a time; zero means the present.
func claimDue(name string, at time.Time) operation {
	due, claimedAt := at, at
	if at.IsZero() {
		due, claimedAt = longAgo, theClock
	}
	return operation{
		name: name, sweeps: true,
		run: func(c *conformance) ([]outbox.OutboxID, error) {
			return c.claims(c.store.ClaimDue(c.Context(), c.request(10, at)))
		},
		rules: []rule{{
			in: waiting,
			where: func(_ *conformance, r outbox.Record) bool {
				return !r.NextAttemptAt.After(due) && (r.ExpiresAt.IsZero() || r.ExpiresAt.After(due))
			},
			effect: func(c *conformance, r *outbox.Record) {
				c.holds(r, claimedAt)
				r.Status, r.NextAttemptAt = outbox.StatusDispatching, time.Time{}
				r.Attempt++
			},
		}},
	}
}

// claimUnknown is the claim of rows whose question is due at a time; zero means
// the present.
func claimUnknown(name string, at func(c *conformance) time.Time) operation {
	return operation{
		name: name, sweeps: true,
		run: func(c *conformance) ([]outbox.OutboxID, error) {
			return c.claims(c.store.ClaimUnknown(c.Context(), c.request(10, at(c))))
		},
		rules: []rule{{
			in: unknown,
			where: func(c *conformance, r outbox.Record) bool {
				due := at(c)
				if due.IsZero() {
					due = c.start
				}
				return !r.NextAttemptAt.IsZero() && !r.NextAttemptAt.After(due) && c.asks(r, due)
			},
			effect: func(c *conformance, r *outbox.Record) {
				claimedAt := at(c)
				if claimedAt.IsZero() {
					claimedAt = theClock
				}
				c.holds(r, claimedAt)
			},
		}},
	}
}

// paused is a claim while the destination is paused.
func paused(o operation) operation {
	claim := o.run
	return operation{name: o.name + " while paused", sweeps: true, run: func(c *conformance) ([]outbox.OutboxID, error) {
		c.must(c.store.Pause(c.Context(), c.policy.destination))
		return claim(c)
	}}
}

// resumed is a claim after the destination was paused.
func resumed(o operation) operation {
	claim := o.run
	o.name += " when resumed"
	o.run = func(c *conformance) ([]outbox.OutboxID, error) {
		c.must(c.store.Pause(c.Context(), c.policy.destination))
		c.must(c.store.Resume(c.Context(), c.policy.destination))
		return claim(c)
	}
	return o
}

// claims notes what a claim has returned.
func (c *conformance) claims(entries []outbox.Entry, err error) (ids []outbox.OutboxID, _ error) {
	c.claimed = entries
	for _, e := range entries {
		ids = append(ids, e.ID)
	}
	return ids, err
}

// purge purges when the row has been kept for as long as its destination says,
// and for some time more.
func (c *conformance) purge(more time.Duration) (removed []outbox.OutboxID, err error) {
	at := laterDay
	if !c.row.CompletedAt.IsZero() {
		at = c.row.CompletedAt.Add(max(0, c.keep(c.row)) + more)
	}
	n, err := c.store.Purge(c.Context(), at, 10)
	for range n {
		removed = append(removed, c.row.ID)
	}
	return removed, err
}

func (c *conformance) keep(r outbox.Record) time.Duration {
	if r.Status == outbox.StatusFailed {
		return c.policy.keepFailed
	}
	return c.policy.keepCompleted
}

func (c *conformance) leaseEnd() time.Time {
	if c.row.ClaimedAt.IsZero() {
		return laterDay
	}
	return c.row.ClaimedAt.Add(c.policy.lease)
}

func (c *conformance) noTime() time.Time { return time.Time{} }

// lastQuestion is the last moment before givenUp.
func (c *conformance) lastQuestion() time.Time { return c.givenUp().Add(-time.Microsecond) }

// givenUp is when nobody is asked about the row any more, or some day where
// nobody gives up.
func (c *conformance) givenUp() time.Time {
	if c.policy.giveUp == 0 || c.row.UnknownSince.IsZero() {
		return someDay
	}
	return c.row.UnknownSince.Add(c.policy.giveUp)
}

// asks tells whether nobody has given up asking about the row.
func (c *conformance) asks(r outbox.Record, at time.Time) bool {
	return !c.policy.byHand && (c.policy.giveUp == 0 || r.UnknownSince.Add(c.policy.giveUp).After(at))
}

func exhausted(c *conformance, r outbox.Record) bool {
	return c.policy.maxAttempts > 0 && r.Attempt >= c.policy.maxAttempts
}

func stays(*conformance, *outbox.Record) {}

// leaves takes the row from whoever holds it. An attempt that ends so was made.
func leaves(_ *conformance, r *outbox.Record) {
	if r.Status == outbox.StatusDispatching {
		r.LastAttemptAt = r.ClaimedAt
	}
	r.Worker, r.ClaimedAt = "", time.Time{}
}

// ends is what completed and failed rows have in common.
func ends(r *outbox.Record, status outbox.Status, at time.Time) {
	r.Status, r.CompletedAt = status, at
	r.Worker, r.ClaimedAt, r.NextAttemptAt, r.UnknownSince, r.LastAttemptAt = "", time.Time{}, time.Time{}, time.Time{}, time.Time{}
}

func completes(ref string) func(*conformance, *outbox.Record) {
	return func(c *conformance, r *outbox.Record) {
		if c.policy.keepCompleted == 0 {
			*r = outbox.Record{}
			return
		}
		ends(r, outbox.StatusCompleted, theClock)
		if ref != "" {
			r.RemoteRef = ref
		}
	}
}

func fails(r *outbox.Record, at time.Time, reason string) {
	ends(r, outbox.StatusFailed, at)
	r.LastFailure = reason
}

// givesUp fails a row that was or may have been sent: it holds its key, if it
// has one.
func givesUp(reason string) func(*conformance, *outbox.Record) {
	return func(_ *conformance, r *outbox.Record) {
		fails(r, theClock, reason)
		r.Holding = r.OrderKey != ""
	}
}

// before is a reason with the failure that it takes the place of.
func before(reason, failure string) string {
	if failure == "" {
		return reason
	}
	return reason + "; before: " + failure
}

// waits makes the row pending after an attempt; an empty reason keeps the last.
func waits(reason string, at time.Time) func(*conformance, *outbox.Record) {
	return func(c *conformance, r *outbox.Record) {
		leaves(c, r)
		r.Status, r.NextAttemptAt, r.UnknownSince = outbox.StatusPending, at, time.Time{}
		if reason != "" {
			r.LastFailure = reason
		}
	}
}

// uncharged makes the row pending as if it had not been attempted.
func uncharged(reason string, at time.Time) func(*conformance, *outbox.Record) {
	return func(c *conformance, r *outbox.Record) {
		attempted := r.LastAttemptAt
		waits(reason, at)(c, r)
		r.LastAttemptAt = attempted
		r.Attempt--
	}
}

func parks(ref string, at time.Time) func(*conformance, *outbox.Record) {
	return func(c *conformance, r *outbox.Record) {
		leaves(c, r)
		r.Status, r.UnknownSince = outbox.StatusOutcomeUnknown, theClock
		r.NextAttemptAt = c.question(*r, at)
		if ref != "" {
			r.RemoteRef = ref
		}
	}
}

// question is when the remote is asked about the row, at the time given or never:
// a question that would come when asking has been given up is none.
func (c *conformance) question(r outbox.Record, at time.Time) time.Time {
	then := at
	if at.Equal(theClock) || at.Before(c.start) {
		then = c.start
	}
	if r.UnknownSince.Equal(theClock) {
		r.UnknownSince = c.start
	}
	if !c.asks(r, then) {
		return time.Time{}
	}
	return at
}

// keeps leaves the outcome unknown; a reference fills an empty place only.
func keeps(ref string, at time.Time) func(*conformance, *outbox.Record) {
	return func(c *conformance, r *outbox.Record) {
		leaves(c, r)
		r.NextAttemptAt = c.question(*r, at)
		if r.RemoteRef == "" {
			r.RemoteRef = ref
		}
	}
}

// holds gives the row to the worker, under the token that was drawn for it.
func (c *conformance) holds(r *outbox.Record, at time.Time) {
	r.Worker, r.ClaimedAt = worker, at
	for _, e := range c.claimed {
		if e.ID != r.ID {
			continue
		}
		if e.Claim.Token == 0 || e.Claim.Token == c.current.Token || e.Claim.Token == c.lost.Token {
			c.Errorf("the token of the claim is %d, after %d and %d", e.Claim.Token, c.lost.Token, c.current.Token)
		}
		r.Claim.Token = e.Claim.Token
	}
}

func requeues(c *conformance, r *outbox.Record) {
	r.Status, r.CompletedAt, r.Attempt, r.Claim.Token, r.Holding = outbox.StatusPending, time.Time{}, 0, 0, false
	r.LastFailure = before("requeued: try again", r.LastFailure)
	if !r.ExpiresAt.After(c.start) {
		r.ExpiresAt = time.Time{}
	}
}

// testTable walks the table: each operation on a row in each state, under the
// row's own claim and under others. It leaves nothing behind: every state is
// reached in a transaction and every operation is called within a savepoint,
// and both are rolled back.
func testTable(c *conformance) {
	for _, s := range states {
		if s.only != nil && !s.only(c.policy) {
			continue
		}
		c.Run(s.name, func(t *testing.T) {
			c := c.within(t)
			c.reach(s)
			c.row = c.find(c.current.ID)
			if c.row.Status == "" {
				s.is = missing // also as a completed row, where those are not kept
			} else if c.row.Claim != c.current {
				t.Fatalf("the claim of the row is %v, want %v", c.row.Claim, c.current)
			}
			for _, o := range operations {
				t.Run(o.name, func(t *testing.T) { c.within(t).try(o, s.is) })
			}
		})
	}
}

// try calls an operation on the row and compares with the rules what it answers
// and what becomes of the row.
func (c *conformance) try(o operation, is condition) {
	if o.settle != nil {
		claims := c.wrongClaims()
		settlements := make([]outbox.Settlement, len(claims))
		for i, claim := range claims {
			settlements[i] = o.settle(claim)
		}
		answers, err := c.store.Settle(c.Context(), settlements...)
		c.must(err)
		for i, answer := range answers {
			c.refused(answer, claims[i].ID)
		}
		c.same(c.row, c.find(c.current.ID))
	}

	var ids []outbox.OutboxID
	var err error
	c.start = c.now()
	if o.settle != nil {
		// Beside one that is refused, and that is not to spoil it.
		stray := outbox.Claim{ID: outbox.OutboxID(uuid.New()), Token: 1}
		answers, all := c.store.Settle(c.Context(), stray.Failed("of no row"), o.settle(c.current))
		c.must(all)
		c.refused(answers[0], stray.ID)
		err = answers[1]
	} else {
		ids, err = o.run(c)
	}
	c.end = c.now()

	want := c.row
	i := slices.IndexFunc(o.rules, func(r rule) bool {
		return r.in&is != 0 && (r.where == nil || r.where(c, c.row)) && (o.settle == nil || c.current.Token != 0)
	})
	if i >= 0 {
		o.rules[i].effect(c, &want)
	}
	if i >= 0 || o.sweeps {
		c.must(err)
	} else {
		c.refused(err, c.current.ID)
	}
	if named := slices.Contains(ids, c.current.ID); o.sweeps && named != (i >= 0) {
		c.Errorf("that the row is among those that were changed is %t, want %t", named, i >= 0)
	}
	row := c.find(c.current.ID)
	c.same(want, row)
	for _, e := range c.claimed {
		if e.ID == row.ID {
			claimed := row
			claimed.Entry = e
			c.same(row, claimed)
		}
	}
	c.sound()
}

// wrongClaims are claims of the row that are not its current one.
func (c *conformance) wrongClaims() []outbox.Claim {
	id := c.current.ID
	claims := []outbox.Claim{{}, {ID: id}, {ID: id, Token: 1 + c.current.Token ^ c.lost.Token}}
	if c.lost.Token != 0 {
		claims = append(claims, c.lost)
	}
	return claims
}

// refused fails the test unless the error says that there is no such row, or,
// where it is the case's, that it stands as it does.
func (c *conformance) refused(err error, id outbox.OutboxID) {
	c.Helper()
	want := outbox.ClaimError{ID: id, Err: outbox.ErrNotFound}
	if id == c.row.ID && c.row.Status != "" {
		want.Destination, want.Status, want.Err = c.policy.destination, c.row.Status, outbox.ErrConflict
	}
	var refusal *outbox.ClaimError
	if !errors.As(err, &refusal) {
		c.Errorf("the error is %v, want %v", err, want.Err)
		return
	}
	want.Operation = refusal.Operation
	if *refusal != want {
		c.Errorf("the error is %v, want %v", refusal, &want)
	}
}

// same compares two records of a row, or a row that is gone.
func (c *conformance) same(want, got outbox.Record) {
	c.Helper()
	if want.Status != got.Status {
		c.Errorf("the row is %q, want %q", got.Status, want.Status)
		return
	}
	for _, f := range []struct {
		name      string
		want, got time.Time
	}{
		{"EnqueuedAt", want.EnqueuedAt, got.EnqueuedAt},
		{"ExpiresAt", want.ExpiresAt, got.ExpiresAt},
		{"LastAttemptAt", want.LastAttemptAt, got.LastAttemptAt},
		{"NextAttemptAt", want.NextAttemptAt, got.NextAttemptAt},
		{"ClaimedAt", want.ClaimedAt, got.ClaimedAt},
		{"UnknownSince", want.UnknownSince, got.UnknownSince},
		{"CompletedAt", want.CompletedAt, got.CompletedAt},
	} {
		if f.want.Equal(theClock) {
			if f.got.Before(c.start) || f.got.After(c.end) {
				c.Errorf("%s is %v, want what the database's clock read between %v and %v", f.name, f.got, c.start, c.end)
			}
		} else if !f.got.Equal(f.want) {
			c.Errorf("%s is %v, want %v", f.name, f.got, f.want)
		}
	}
	for _, f := range []struct{ name, want, got string }{
		{"Claim", fmt.Sprint(want.Claim), fmt.Sprint(got.Claim)},
		{"Attempt", strconv.Itoa(want.Attempt), strconv.Itoa(got.Attempt)},
		{"Worker", want.Worker, got.Worker},
		{"LastFailure", want.LastFailure, got.LastFailure},
		{"RemoteRef", want.RemoteRef, got.RemoteRef},
		{"Holding", strconv.FormatBool(want.Holding), strconv.FormatBool(got.Holding)},
		{"Entry", want.Entry.String(), got.Entry.String()},
	} {
		if f.want != f.got {
			c.Errorf("%s is %s, want %s", f.name, f.got, f.want)
		}
	}
	// What may be secret is not shown.
	if string(want.Raw) != string(got.Raw) || want.CommandID != got.CommandID || want.IdempotencyKey != got.IdempotencyKey ||
		want.OrderKey != got.OrderKey || want.LimitKey != got.LimitKey {
		c.Error("what was enqueued has changed")
	}
}

// counts compares Stats with the rows that there are.
func (c *conformance) counts(records []outbox.Record) {
	c.Helper()
	want := outbox.DestinationStats{Destination: c.policy.destination}
	keys := make(map[string]bool)
	for _, r := range records {
		switch r.Status {
		case outbox.StatusPending:
			want.Pending++
			if r.NextAttemptAt.IsZero() {
				want.Due++
			}
			if want.OldestPending.IsZero() {
				want.OldestPending = r.EnqueuedAt.UTC()
			}
		case outbox.StatusDispatching:
			want.Dispatching++
		case outbox.StatusOutcomeUnknown:
			want.OutcomeUnknown++
			if want.OldestUnknown.IsZero() {
				want.OldestUnknown = r.EnqueuedAt.UTC()
			}
		case outbox.StatusFailed:
			want.Failed++
		}
		if r.Holding && !keys[r.OrderKey] {
			keys[r.OrderKey] = true
			want.HeldKeys++
		}
	}
	stats, err := c.store.Stats(c.Context())
	c.must(err)
	for _, got := range stats.Destinations {
		got.OldestPending, got.OldestUnknown = got.OldestPending.UTC(), got.OldestUnknown.UTC()
		if got.Destination == want.Destination && got != want {
			c.Errorf("Stats returned %+v, want %+v", got, want)
		}
	}
	if len(stats.Unclaimed) > 0 {
		c.Errorf("Stats says that nobody claims %+v", stats.Unclaimed)
	}
}
