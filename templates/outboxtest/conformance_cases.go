package outboxtest

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/templates/outbox"
)

func callerKeyed(p policy) bool { return !p.keyed }

// conformanceCases are what transactions do to each other, and what the table has
// no place for.
var conformanceCases = []struct {
	behaviour string
	only      func(p policy) bool // nil = rows of every destination
	run       func(c *conformance)
}{
	{"a row is there once its transaction has committed", nil, func(c *conformance) {
		tx := c.begin()
		answers, err := c.store.With(tx).Enqueue(c.Context(), c.command, c.message().WithHeader("name", "value"))
		c.must(err)
		c.claimsNothing()
		c.must(tx.Commit(c.Context()))
		if e := c.claimOne(time.Time{}); e.ID != answers[0].ID || e.Attempt != 1 || e.Payload == nil || e.Headers["name"] != "value" {
			c.Errorf("claimed %v with the headers %v, want attempt 1 of %s", e, e.Headers, answers[0].ID)
		}
	}},
	{"a transaction that is rolled back leaves nothing", nil, func(c *conformance) {
		tx := c.begin()
		_, err := c.store.With(tx).Enqueue(c.Context(), c.command, c.message())
		c.must(err)
		c.must(tx.Rollback(c.Context()))
		c.must(empty(c.Context(), c.store))
	}},
	{"a batch is there once its transaction has committed", nil, func(c *conformance) {
		var batch pgx.Batch
		queued, err := c.store.QueueEnqueue(c.Context(), &batch, c.command, c.messages(2)...)
		c.must(err)
		tx := c.begin()
		c.must(tx.SendBatch(c.Context(), &batch).Close())
		c.claimsNothing()
		c.must(tx.Commit(c.Context()))
		answers, err := queued.Enqueued()
		c.must(err)
		if answers[0].Duplicate || answers[1].Duplicate {
			c.Errorf("the answers are %+v", answers)
		}
		c.claimedAre(c.claim(10, time.Time{}), answers[0].ID, answers[1].ID)
	}},
	{"a batch that is rolled back leaves nothing", nil, func(c *conformance) {
		var batch pgx.Batch
		_, err := c.store.QueueEnqueue(c.Context(), &batch, c.command, c.messages(2)...)
		c.must(err)
		tx := c.begin()
		c.must(tx.SendBatch(c.Context(), &batch).Close())
		c.must(tx.Rollback(c.Context()))
		c.must(empty(c.Context(), c.store))
	}},
	{"the same message again is a duplicate", nil, func(c *conformance) {
		message := c.message()
		first := c.enqueue(message)[0]
		second := c.enqueue(message, c.message())
		if first.Duplicate || second[0] != (outbox.Enqueued{ID: first.ID, Duplicate: true}) || second[1].Duplicate {
			c.Errorf("the answers are %+v and %+v", first, second)
		}
	}},
	{"a duplicate goes by how the transaction ends that has the key", nil, func(c *conformance) {
		for round := range 10 {
			commits := round%2 == 0
			message := c.message()
			one, other := c.begin(), c.begin()
			first, err := c.store.With(one).Enqueue(c.Context(), c.command, message)
			c.must(err)
			ended := make(chan error)
			go func() {
				if commits {
					ended <- one.Commit(c.Context())
				} else {
					ended <- one.Rollback(c.Context())
				}
			}()
			second, err := c.store.With(other).Enqueue(c.Context(), c.command, message)
			c.must(errors.Join(err, <-ended, other.Commit(c.Context())))
			if second[0].Duplicate != commits || (second[0].ID == first[0].ID) != commits {
				c.Errorf("the answers are %+v and %+v, and that the first was committed is %t", first, second, commits)
			}
		}
	}},
	{"equal messages of one call are told apart", callerKeyed, func(c *conformance) {
		message := c.message()
		answers := c.enqueue(message, message)
		if !strings.HasPrefix(c.get(answers[0].ID).IdempotencyKey, "sha256:") {
			c.Skip("Subject.Message gives its message a key")
		}
		if answers[0].Duplicate || answers[1].Duplicate || answers[0].ID == answers[1].ID {
			c.Errorf("the answers are %+v", answers)
		}
	}},
	{"a key that another message has is refused", callerKeyed, func(c *conformance) {
		first, other := c.takeKey()
		tx := c.begin()
		_, err := c.store.With(tx).Enqueue(c.Context(), c.command, c.message(), c.message().WithKey(takenKey))
		c.reused(err, first)
		answers, err := c.store.With(tx).Enqueue(c.Context(), c.command, c.message())
		c.must(err)
		c.must(tx.Commit(c.Context()))
		c.claimedAre(c.claim(10, time.Time{}), first, other, answers[0].ID)
	}},
	{"a key that another message has fails a batch", callerKeyed, func(c *conformance) {
		first, other := c.takeKey()
		var batch pgx.Batch
		_, err := c.store.QueueEnqueue(c.Context(), &batch, c.command, c.message(), c.message().WithKey(takenKey))
		c.must(err)
		tx := c.begin()
		c.reused(tx.SendBatch(c.Context(), &batch).Close(), first)
		c.must(tx.Rollback(c.Context()))
		c.claimedAre(c.claim(10, time.Time{}), first, other)
	}},
	{"a row expires at the age that its destination declares", func(p policy) bool { return p.expires > 0 }, func(c *conformance) {
		c = c.within(c.T)
		c.start = c.now()
		id := c.enqueue(c.subject.Message(c.policy.destination))[0].ID
		c.end = c.now()
		at := c.get(id).ExpiresAt
		if at.Before(c.start.Add(c.policy.expires)) || at.After(c.end.Add(c.policy.expires)) {
			c.Errorf("the row expires at %v, want %v after it was enqueued between %v and %v", at, c.policy.expires, c.start, c.end)
		}
	}},
	{"the oldest rows are claimed first, and no more than asked for", func(p policy) bool { return !p.ordered }, func(c *conformance) {
		answers := c.enqueue(c.messages(5)...)
		for n := range answers {
			c.claimedAre(c.claim(1, time.Time{}), answers[n].ID)
		}
	}},
	{"two that claim at once share the rows, and neither waits", nil, func(c *conformance) {
		c.enqueue(c.messages(4)...)
		one, other := c.within(c.T), c.within(c.T)
		first, rest := one.claim(2, time.Time{}), other.claim(10, time.Time{})
		c.expect("ClaimDue", len(first), 2)
		c.expect("ClaimDue", len(rest), 2)
		c.must(one.tx.Commit(c.Context()))
		c.must(other.tx.Rollback(c.Context()))
		c.claimedAre(c.claim(10, time.Time{}), rest[0].ID, rest[1].ID)
	}},
	{"no row is claimed twice by many that claim at once", nil, func(c *conformance) {
		const workers, rows = 4, 40
		c.enqueue(c.messages(rows)...)
		entries := make(chan outbox.Entry, workers*rows)
		c.atOnce(workers, func() error {
			for {
				claimed, err := c.store.ClaimDue(c.Context(), c.request(3, time.Time{}))
				if err != nil || len(claimed) == 0 {
					return err
				}
				for _, e := range claimed {
					entries <- e
				}
			}
		})
		for _, e := range c.claim(rows, time.Time{}) { // those that each had left to another
			entries <- e
		}
		close(entries)
		seen := make(map[outbox.OutboxID]bool)
		for e := range entries {
			if seen[e.ID] || e.Attempt != 1 {
				c.Errorf("claimed %v once more", e)
			}
			seen[e.ID] = true
		}
		c.expect("ClaimDue", len(seen), rows)
	}},
	{"a sweep does not undo a delivery that comes late", func(p policy) bool { return sentAgain(p) || notIdempotent(p) }, func(c *conformance) {
		const rows = 20
		c.enqueue(c.messages(rows)...)
		entries := c.claim(rows, longAgo)
		c.expect("ClaimDue", len(entries), rows)
		claims := make(chan outbox.Claim, rows)
		for _, e := range entries {
			claims <- e.Claim
		}
		close(claims)
		c.atOnce(2, func() error {
			for claim := range claims {
				if _, err := c.store.ReleaseExpiredClaims(c.Context(), time.Time{}); err != nil {
					return err
				}
				if err := c.store.MarkCompleted(c.Context(), claim, ""); err != nil {
					return err
				}
			}
			return nil
		})
		for _, e := range entries {
			if r := c.find(e.ID); r.Status != outbox.StatusCompleted && (r.Status != "" || c.policy.keepCompleted != 0) {
				c.Errorf("the row is %v, want it completed", r)
			}
		}
	}},
	{"what is said twice of a row is done in order", nil, func(c *conformance) {
		id := c.enqueue(c.message())[0].ID
		c.claimOne(time.Time{})
		answers, err := c.store.Settle(c.Context(), c.current.OutcomeUnknown("ref", laterDay), c.current.Retry("lost", laterDay), c.current.KeepUnknown(laterDay))
		c.must(err)
		c.must(errors.Join(answers[:2]...))
		c.is(answers[2], outbox.ErrConflict)
		if r := c.get(id); r.Status != outbox.StatusPending || r.RemoteRef != "ref" || r.LastFailure != "lost" {
			c.Errorf("the row is %v, after %q with the reference %q", r, r.LastFailure, r.RemoteRef)
		}
	}},
	{"each step is a transaction of its own", nil, func(c *conformance) {
		id := c.enqueue(c.message())[0].ID
		c.claimOne(time.Time{})
		c.must(c.store.Reschedule(c.Context(), c.current, time.Time{}))
		c.claimOne(time.Time{})
		c.must(c.store.Postpone(c.Context(), c.current, "down", time.Time{}))
		if e := c.claimOne(time.Time{}); e.Attempt != 2 {
			c.Errorf("claimed %v, want attempt 2", e)
		}
		c.must(c.store.MarkOutcomeUnknown(c.Context(), c.current, "", laterDay))
		c.must(c.store.KeepUnknown(c.Context(), c.current, laterDay))
		c.claimsNothing()
		c.must(c.store.MarkNeverArrived(c.Context(), c.current, "lost"))
		c.must(c.store.MarkFailed(c.Context(), c.current, "refused"))
		c.claimsNothing()
		c.must(c.store.Requeue(c.Context(), id, "mended"))
		if e := c.claimOne(time.Time{}); e.ID != id || e.Attempt != 1 {
			c.Errorf("claimed %v, want attempt 1 of %s", e, id)
		}
		c.is(c.store.MarkRetry(c.Context(), c.lost, "busy", time.Time{}), outbox.ErrConflict)
		c.must(c.store.MarkCompleted(c.Context(), c.current, "ref"))
		c.claimsNothing()
	}},
	{"any text of an error can be stored", nil, func(c *conformance) {
		id := c.enqueue(c.message())[0].ID
		c.claimOne(time.Time{})
		c.must(c.store.MarkFailed(c.Context(), c.current, "refused\x00\xff"))
		if r := c.get(id); r.Status != outbox.StatusFailed || r.LastFailure != "refused\uFFFD\uFFFD" {
			c.Errorf("the row is %v, after %q", r, r.LastFailure)
		}
	}},
	{"a payload that cannot be read spoils no other", nil, func(c *conformance) {
		if c.subject.Corrupt == nil {
			c.Skip("Subject.Corrupt is nil")
		}
		answers := c.enqueue(c.messages(2)...)
		c.subject.Corrupt(c.T, answers[0].ID)
		entries := c.claim(10, time.Time{})
		c.claimedAre(entries, answers[0].ID, answers[1].ID)
		bad, good := entries[0], entries[1]
		c.is(bad.DecodeErr, outbox.ErrUndecodable)
		if bad.Payload != nil || good.DecodeErr != nil || good.Payload == nil {
			c.Errorf("a payload of the first row: %t, of the second: %t, %v", bad.Payload != nil, good.Payload != nil, good.DecodeErr)
		}
	}},
	{"a key is claimed in its order, and by one worker", ordered, func(c *conformance) {
		first, second := c.enqueuePair()
		c.claimedAre(c.claim(1, time.Time{}), first)
		c.claimsNothing()
		c.must(c.store.MarkCompleted(c.Context(), c.get(first).Claim, ""))
		c.claimedAre(c.claim(10, time.Time{}), second)
	}},
	{"a run of a key is one row where a crash could cloud the others", ordered, func(c *conformance) {
		first, second := c.enqueuePair()
		if c.policy.idempotent {
			c.claimedAre(c.claim(10, time.Time{}), first, second)
		} else {
			c.claimedAre(c.claim(10, time.Time{}), first)
		}
		c.claimsNothing()
	}},
	{"two that claim a key at once get it one after the other", ordered, func(c *conformance) {
		first, second := c.enqueuePair()
		one, other := c.within(c.T), c.within(c.T)
		c.claimedAre(one.claim(1, time.Time{}), first)
		other.claimsNothing()
		c.must(one.store.MarkCompleted(c.Context(), one.get(first).Claim, ""))
		c.must(one.tx.Commit(c.Context()))
		c.claimedAre(other.claim(10, time.Time{}), second)
	}},
	{"a row that is committed late waits for the one of its key that is dispatched", ordered, func(c *conformance) {
		late, early := c.pair()
		tx := c.begin()
		answers, err := c.store.With(tx).Enqueue(c.Context(), c.command, late)
		c.must(err)
		first := c.enqueue(early)[0].ID
		c.claimedAre(c.claim(10, time.Time{}), first)
		c.must(tx.Commit(c.Context()))
		c.claimsNothing()
		c.must(c.store.MarkCompleted(c.Context(), c.get(first).Claim, ""))
		c.claimedAre(c.claim(10, time.Time{}), answers[0].ID)
	}},
	{"a failed row holds its key until it is skipped", ordered, func(c *conformance) {
		first, second := c.enqueuePair()
		c.must(c.store.MarkFailed(c.Context(), c.claim(1, time.Time{})[0].Claim, "refused"))
		c.claimsNothing()
		c.must(c.store.Skip(c.Context(), c.policy.destination, c.get(first).OrderKey))
		c.claimedAre(c.claim(10, time.Time{}), second)
	}},
	{"a failed row that is requeued takes its old place", ordered, func(c *conformance) {
		first, second := c.enqueuePair()
		c.must(c.store.MarkFailed(c.Context(), c.claim(1, time.Time{})[0].Claim, "refused"))
		c.must(c.store.Requeue(c.Context(), first, "mended"))
		c.claimedAre(c.claim(1, time.Time{}), first)
		c.must(c.store.MarkCompleted(c.Context(), c.get(first).Claim, ""))
		c.claimedAre(c.claim(10, time.Time{}), second)
	}},
	{"a failed row that is requeued after it was skipped goes to the end", ordered, func(c *conformance) {
		first, second := c.enqueuePair()
		c.must(c.store.MarkFailed(c.Context(), c.claim(1, time.Time{})[0].Claim, "refused"))
		c.must(c.store.Skip(c.Context(), c.policy.destination, c.get(first).OrderKey))
		c.must(c.store.Requeue(c.Context(), first, "mended"))
		c.claimedAre(c.claim(1, time.Time{}), second)
		c.must(c.store.MarkCompleted(c.Context(), c.get(second).Claim, ""))
		c.claimedAre(c.claim(10, time.Time{}), first)
	}},
	{"a row that is cancelled holds no key", ordered, func(c *conformance) {
		first, second := c.enqueuePair()
		c.must(c.store.Cancel(c.Context(), first, "not wanted"))
		c.claimedAre(c.claim(10, time.Time{}), second)
	}},
	{"a key that is held slows no other", ordered, func(c *conformance) {
		c.enqueuePair()
		c.must(c.store.MarkFailed(c.Context(), c.claim(1, time.Time{})[0].Claim, "refused"))
		other := c.enqueue(c.message())[0].ID
		c.claimedAre(c.claim(10, time.Time{}), other)
	}},
}

const takenKey = "taken"

// takeKey enqueues a message under takenKey, and one with other content.
func (c *conformance) takeKey() (first, other outbox.OutboxID) {
	c.Helper()
	answers := c.enqueue(c.message().WithKey(takenKey), c.message())
	first, other = answers[0].ID, answers[1].ID
	if string(c.get(first).Raw) == string(c.get(other).Raw) {
		c.Skip("the messages of Subject.Message have no content of their own")
	}
	return first, other
}

// reused fails the test unless the second message of a call was refused, since
// its key is that of another row.
func (c *conformance) reused(err error, id outbox.OutboxID) {
	c.Helper()
	var refusal *outbox.MessageError
	c.is(err, outbox.ErrKeyReused)
	if !errors.As(err, &refusal) || refusal.Index != 1 || refusal.ExistingID != id {
		c.Errorf("the error is %v, want one of message 1 and the row %s", err, id)
	}
}

func (c *conformance) claimedAre(entries []outbox.Entry, want ...outbox.OutboxID) {
	c.Helper()
	got := make([]outbox.OutboxID, len(entries))
	for i, e := range entries {
		got[i] = e.ID
	}
	if !slices.Equal(got, want) {
		c.Fatalf("claimed %v, want %v", got, want)
	}
}

// atOnce does the same n times at once, and waits for all of them.
func (c *conformance) atOnce(n int, do func() error) {
	c.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = do()
		}()
	}
	all.Wait()
	c.must(errors.Join(errs...))
}
