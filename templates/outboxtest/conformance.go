package outboxtest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/templates/outbox"
)

// DB is what the suite begins transactions on: a *pgxpool.Pool, a *pgx.Conn, or
// a *MemoryDB of the package.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Subject is what [Conformance] tests.
type Subject struct {
	// Open returns the store and its database, for each case anew. The tables
	// must have no rows: give them a schema of their own.
	Open func(t *testing.T) (*outbox.Store, DB)
	// Command returns the command that messages are enqueued for.
	Command func() outbox.Command
	// Message returns a message for the destination, due at once, whose content,
	// idempotency key and order key no other has.
	Message func(outbox.Destination) outbox.Message
	// Corrupt makes the stored payload of a row one that cannot be read. Nil
	// leaves the cases out that need it.
	Corrupt func(t *testing.T, id outbox.OutboxID)
}

// Conformance tests that a database keeps the promises of the outbox, for each
// destination: run it on the server that production runs on.
func Conformance(t *testing.T, subject Subject) {
	stats, err := subject.open(t).store.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range stats.Destinations {
		t.Run(string(d.Destination), func(t *testing.T) {
			for _, test := range conformanceCases {
				if test.corrupts && subject.Corrupt == nil {
					continue
				}
				t.Run(test.behaviour, func(t *testing.T) {
					c := subject.open(t)
					c.destination = d.Destination
					test.run(c)
					check, err := c.store.CheckRows(t.Context())
					c.must(err)
					if check != (outbox.RowCheck{}) {
						t.Errorf("rows are not sound: %+v", check)
					}
				})
			}
		})
	}
}

// conformance is one case that is being run.
type conformance struct {
	*testing.T
	subject     Subject
	store       *outbox.Store
	db          DB
	command     outbox.Command
	destination outbox.Destination
	claimed     time.Time // when the last row was, by the database's clock
}

// open opens a store and refuses one that has rows: the suite claims and changes
// whatever is due.
func (s Subject) open(t *testing.T) *conformance {
	t.Helper()
	store, db := s.Open(t)
	c := &conformance{T: t, subject: s, store: store, db: db, command: s.Command()}
	c.must(empty(t.Context(), store))
	return c
}

// empty is an error when there are rows.
func empty(ctx context.Context, store *outbox.Store) error {
	records, err := store.List(ctx, outbox.Filter{}, outbox.OutboxID{}, 1)
	if err == nil && len(records) > 0 {
		err = errors.New("the tables have rows: run the suite on tables of its own")
	}
	return err
}

func (c *conformance) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// refused fails the test when the error is another than the expected one, or
// when the row was changed.
func (c *conformance) refused(before outbox.Record, err, want error) {
	c.Helper()
	if !errors.Is(err, want) {
		c.Errorf("the error is %v, want %v", err, want)
	}
	after := c.get(before.ID)
	if after.Status != before.Status || after.Claim != before.Claim || after.Attempt != before.Attempt || after.LastFailure != before.LastFailure {
		c.Errorf("the row was changed: %v failed by %q, before %v by %q", after, after.LastFailure, before, before.LastFailure)
	}
}

func (c *conformance) enqueue(messages ...outbox.Message) (answers []outbox.Enqueued) {
	c.Helper()
	c.must(pgx.BeginFunc(c.Context(), c.db, func(tx pgx.Tx) (err error) {
		answers, err = c.store.With(tx).Enqueue(c.Context(), c.command, messages...)
		return err
	}))
	return answers
}

// enqueueOne enqueues a message and returns the id of its row.
func (c *conformance) enqueueOne() outbox.OutboxID {
	c.Helper()
	return c.enqueue(c.subject.Message(c.destination))[0].ID
}

func (c *conformance) claim(at time.Time) []outbox.Entry {
	c.Helper()
	entries, err := c.store.ClaimDue(c.Context(), outbox.ClaimRequest{
		WorkerID: "conformance", Limits: map[outbox.Destination]int{c.destination: 10}, At: at,
	})
	c.must(err)
	return entries
}

// claimOne claims the only row that is due.
func (c *conformance) claimOne() outbox.Entry {
	c.Helper()
	entries := c.claim(time.Time{})
	if len(entries) != 1 {
		c.Fatalf("ClaimDue returned %d rows, want 1", len(entries))
	}
	c.claimed = c.get(entries[0].ID).ClaimedAt
	return entries[0]
}

// later is a time that has not come, and at which no row has expired that lives
// longer than a minute.
func (c *conformance) later() time.Time { return c.claimed.Add(time.Minute) }

func (c *conformance) claimsNothing(at time.Time) {
	c.Helper()
	if entries := c.claim(at); len(entries) > 0 {
		c.Errorf("ClaimDue returned %v", entries)
	}
}

func (c *conformance) get(id outbox.OutboxID) outbox.Record {
	c.Helper()
	record, err := c.store.Get(c.Context(), id)
	c.must(err)
	return record
}

func (c *conformance) is(id outbox.OutboxID, want outbox.Status) {
	c.Helper()
	if r := c.get(id); r.Status != want {
		c.Errorf("the row is %s, want %s", r.Status, want)
	}
}

var conformanceCases = []struct {
	behaviour string
	corrupts  bool
	run       func(c *conformance)
}{
	{"a row is there once its transaction has committed", false, func(c *conformance) {
		tx, err := c.db.Begin(c.Context())
		c.must(err)
		defer tx.Rollback(context.WithoutCancel(c.Context()))
		answers, err := c.store.With(tx).Enqueue(c.Context(), c.command, c.subject.Message(c.destination))
		c.must(err)
		c.claimsNothing(time.Time{})
		c.must(tx.Commit(c.Context()))
		if e := c.claimOne(); e.ID != answers[0].ID || e.Attempt != 1 || e.Payload == nil {
			c.Errorf("claimed %v, want attempt 1 of %s", e, answers[0].ID)
		}
	}},
	{"a transaction that is rolled back leaves nothing", false, func(c *conformance) {
		tx, err := c.db.Begin(c.Context())
		c.must(err)
		answers, err := c.store.With(tx).Enqueue(c.Context(), c.command, c.subject.Message(c.destination))
		c.must(err)
		c.must(tx.Rollback(c.Context()))
		if _, err := c.store.Get(c.Context(), answers[0].ID); !errors.Is(err, outbox.ErrNotFound) {
			c.Errorf("the error is %v, want %v", err, outbox.ErrNotFound)
		}
	}},
	{"the same message again is a duplicate", false, func(c *conformance) {
		message := c.subject.Message(c.destination)
		first := c.enqueue(message)[0]
		second := c.enqueue(message)[0]
		if first.Duplicate || !second.Duplicate || second.ID != first.ID {
			c.Errorf("the answers are %+v and %+v", first, second)
		}
	}},
	{"a claimed row is not claimed again", false, func(c *conformance) {
		c.enqueueOne()
		c.claimOne()
		c.claimsNothing(time.Time{})
	}},
	{"a completed row stays completed", false, func(c *conformance) {
		id := c.enqueueOne()
		claim := c.claimOne().Claim
		c.must(c.store.MarkCompleted(c.Context(), claim, "ref"))
		switch r, err := c.store.Get(c.Context(), id); {
		case errors.Is(err, outbox.ErrNotFound): // completed rows are not kept
		case err != nil:
			c.Fatal(err)
		default:
			c.is(id, outbox.StatusCompleted)
			c.refused(r, c.store.MarkRetry(c.Context(), claim, "", time.Time{}), outbox.ErrConflict)
		}
		c.claimsNothing(c.later())
	}},
	{"a claim that was lost settles nothing", false, func(c *conformance) {
		id := c.enqueueOne()
		lost := c.claimOne().Claim
		c.must(c.store.MarkRetry(c.Context(), lost, "busy", time.Time{}))
		current := c.claimOne().Claim
		for _, claim := range []outbox.Claim{lost, {ID: id}} {
			for _, settlement := range []outbox.Settlement{
				claim.Completed(""), claim.Failed("x"), claim.Retry("x", time.Time{}), claim.Reschedule(time.Time{}), claim.Postpone("x", time.Time{}),
				claim.OutcomeUnknown("x", time.Time{}), claim.KeepUnknown(time.Time{}), claim.NeverArrived("x"), claim.GiveBack(),
			} {
				before := c.get(id)
				answers, err := c.store.Settle(c.Context(), settlement)
				c.must(err)
				c.refused(before, answers[0], outbox.ErrConflict)
			}
		}
		c.must(c.store.MarkCompleted(c.Context(), current, ""))
	}},
	{"a row that is to be retried waits for its time", false, func(c *conformance) {
		id := c.enqueueOne()
		claim := c.claimOne().Claim
		at := c.later()
		c.must(c.store.MarkRetry(c.Context(), claim, "busy", at))
		c.claimsNothing(time.Time{})
		if r := c.get(id); r.Status != outbox.StatusPending || r.LastFailure != "busy" || !r.NextAttemptAt.Equal(at) {
			c.Errorf("the row is %v, failed by %q and due at %v, want %v", r, r.LastFailure, r.NextAttemptAt, at)
		}
		if entries := c.claim(at); len(entries) != 1 || entries[0].Attempt != 2 {
			c.Errorf("ClaimDue returned %v, want attempt 2", entries)
		}
	}},
	{"a row whose outcome is unknown is not sent again by itself", false, func(c *conformance) {
		id := c.enqueueOne()
		claim := c.claimOne().Claim
		c.must(c.store.MarkOutcomeUnknown(c.Context(), claim, "ref", c.later()))
		c.claimsNothing(c.later())
		c.is(id, outbox.StatusOutcomeUnknown)
		c.must(c.store.MarkNeverArrived(c.Context(), claim, "lost"))
		c.is(id, outbox.StatusPending)
	}},
	{"what is given back was not attempted", false, func(c *conformance) {
		c.enqueueOne()
		c.must(c.store.GiveBack(c.Context(), c.claimOne().Claim))
		if e := c.claimOne(); e.Attempt != 1 {
			c.Errorf("it is attempt %d, want 1", e.Attempt)
		}
	}},
	{"a failed row is sent again by a person only", false, func(c *conformance) {
		id := c.enqueueOne()
		claim := c.claimOne().Claim
		c.must(c.store.MarkFailed(c.Context(), claim, "refused\x00"))
		c.claimsNothing(c.later())
		c.must(c.store.Requeue(c.Context(), id, "mended"))
		c.refused(c.get(id), c.store.MarkCompleted(c.Context(), claim, ""), outbox.ErrConflict)
		if e := c.claimOne(); e.ID != id || e.Attempt != 1 {
			c.Errorf("claimed %v, want attempt 1 of %s", e, id)
		}
	}},
	{"a payload that cannot be read spoils no other", true, func(c *conformance) {
		answers := c.enqueue(c.subject.Message(c.destination), c.subject.Message(c.destination))
		c.subject.Corrupt(c.T, answers[0].ID)
		entries := c.claim(time.Time{})
		i := slices.IndexFunc(entries, func(e outbox.Entry) bool { return e.ID == answers[0].ID })
		if len(entries) != 2 || i < 0 {
			c.Fatalf("ClaimDue returned %v, want both rows", entries)
		}
		bad, good := entries[i], entries[1-i]
		if !errors.Is(bad.DecodeErr, outbox.ErrUndecodable) || bad.Payload != nil {
			c.Errorf("the error of the row is %v, want %v", bad.DecodeErr, outbox.ErrUndecodable)
		}
		if good.DecodeErr != nil || good.Payload == nil {
			c.Errorf("the error of the other row is %v", good.DecodeErr)
		}
	}},
}
