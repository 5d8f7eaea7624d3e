package outbox

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// storeCase is a behaviour of dispatchers, over one of the stores.
type storeCase struct {
	*testing.T
	store *Store
	db    beginner
}

func (c *storeCase) enqueue(messages ...Message) []OutboxID {
	c.Helper()
	return enqueueIn(c, c.store, c.db, messages...)
}

// TestDispatcherOverEachStore has dispatchers do the same over Postgres and over
// memory.
func TestDispatcherOverEachStore(t *testing.T) {
	stores := []struct {
		name string
		open func(t *testing.T) (*Store, beginner)
	}{
		{"Postgres", func(t *testing.T) (*Store, beginner) {
			pool := testPool(t)
			return New(pool, Options{}), pool
		}},
		{"memory", func(*testing.T) (*Store, beginner) {
			store, db := NewMemory(Options{})
			return store, db
		}},
	}
	for _, test := range []struct {
		behaviour string
		run       func(c *storeCase)
	}{
		{"every destination gets each message once", func(c *storeCase) {
			r := newRemote()
			var messages []Message
			for _, p := range policies {
				for range 10 {
					messages = append(messages, testMessage(p.destination))
				}
			}
			ids := c.enqueue(messages...)
			stop := run(c, r.dispatcher(c, c.store, r.handlers(), DispatcherOptions{}))
			r.waitSettled(c, ids...)
			must(c, stop())
			for _, id := range ids {
				if n := r.callsOf(id); n != 1 {
					c.Errorf("%s was sent %d times", id, n)
				}
			}
		}},
		{"a commit wakes it", func(c *storeCase) {
			r := newRemote()
			clock := newFakeClock() // which stands still
			d := r.dispatcher(c, c.store, r.handlers(), DispatcherOptions{Poll: deaf})
			d.clock = clock
			stop := run(c, d)
			clock.waitFor(c, lookAgain) // after the wake that listening begins with
			r.waitSettled(c, c.enqueue(testMessage(DestinationMailer))...)
			must(c, stop())
		}},
		{"what is unknown is asked about and keeps the reason", func(c *storeCase) {
			r := newRemote()
			r.deliver = func(context.Context, Delivery) Outcome { return Unknown(errors.New("cut off")).WithRef("ref") }
			r.answer = func(context.Context, Delivery) Answer { return Arrived("") }
			d := r.dispatcher(c, c.store, r.handlers(), DispatcherOptions{})
			withPolicy(d, func(p *policy) { p.firstQuestion = 0 })
			id := c.enqueue(testMessage(DestinationPayments))[0]
			for _, want := range []Status{StatusOutcomeUnknown, StatusCompleted} {
				if n, err := d.RunOnce(c.Context()); n != 1 || err != nil {
					c.Fatalf("RunOnce: %d, %v", n, err)
				}
				record := wantRow(c, c.store, id, want)
				if record.LastFailure != "cut off" || record.RemoteRef != "ref" {
					c.Errorf("the last failure is %q, the reference %q", record.LastFailure, record.RemoteRef)
				}
			}
		}},
		{"a key keeps its order", func(c *storeCase) {
			r := newRemote()
			var messages []Message
			for i := range 6 * runRows {
				messages = append(messages, ToStock(StockChange{Shelf: "shelf", Change: int64(i + 1)}))
			}
			ids := c.enqueue(messages...)
			stop := run(c, r.dispatcher(c, c.store, r.handlers(), DispatcherOptions{Poll: deaf}))
			r.waitSettled(c, ids...)
			must(c, stop())
			var sent []OutboxID
			for _, d := range r.calls {
				sent = append(sent, d.ID)
			}
			if !slices.Equal(sent, ids) {
				c.Errorf("sent %v, want %v", sent, ids)
			}
		}},
	} {
		for _, store := range stores {
			t.Run(test.behaviour+", over "+store.name, func(t *testing.T) {
				c := &storeCase{T: t}
				c.store, c.db = store.open(t)
				test.run(c)
				wantSound(t, c.store)
			})
		}
	}
}

// TestWhatWakesAWorkerOverMemory looks at what is told of, and what is not since
// it makes nothing due.
func TestWhatWakesAWorkerOverMemory(t *testing.T) {
	store, db := NewMemory(Options{})
	ctx := t.Context()
	tx := openTx(t, db)
	var id OutboxID
	var claim Claim
	for _, step := range []struct {
		what  string
		do    func() error
		wakes bool
	}{
		{"a message in a transaction", func() error {
			placed, err := store.With(tx).Enqueue(ctx, testCommand, testMessage(DestinationMailer))
			id = placed[0].ID
			return err
		}, false},
		{"its commit", func() error { return tx.Commit(ctx) }, true},
		{"a message that is rolled back", func() error {
			tx := openTx(t, db)
			_, err := store.With(tx).Enqueue(ctx, testCommand, testMessage(DestinationMailer))
			return errors.Join(err, tx.Rollback(ctx))
		}, false},
		{"a message for later", func() error {
			enqueueIn(t, store, db, testMessage(DestinationMailer).At(time.Now().Add(time.Hour)))
			return nil
		}, false},
		{"a claim", func() error {
			entries := claimAll(t, store, 10)
			claim = entries[0].Claim
			return nil
		}, false},
		{"a failure", func() error { return store.MarkFailed(ctx, claim, "no") }, false},
		{"what is sent again by hand", func() error { return store.Requeue(ctx, id, "mended") }, true},
		{"another clock", func() error { db.SetClock(time.Now); return nil }, true},
	} {
		before := db.queued
		must(t, step.do())
		if woke := db.queued != before; woke != step.wakes {
			t.Errorf("%s: woken %t, want %t", step.what, woke, step.wakes)
		}
	}
}

// TestAClockSetAheadWakesAWorker has a message for later come due by the clock of the
// database in memory.
func TestAClockSetAheadWakesAWorker(t *testing.T) {
	store, db := NewMemory(Options{})
	r := newRemote()
	clock := newFakeClock() // the dispatcher's, which stands still
	d := r.dispatcher(t, store, r.handlers(), DispatcherOptions{Poll: deaf})
	d.clock = clock
	due := time.Now().Add(time.Hour)
	id := enqueueIn(t, store, db, testMessage(DestinationMailer).At(due))[0]
	stop := run(t, d)
	clock.waitFor(t, lookAgain) // after the wake that listening begins with
	db.SetClock(func() time.Time { return due })
	r.waitSettled(t, id)
	must(t, stop())
	wantRow(t, store, id, StatusCompleted)
}
