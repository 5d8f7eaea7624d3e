package outbox

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// memorySubject is the store in memory as the conformance suite sees it.
type memorySubject struct{ db *MemoryDB }

func (s *memorySubject) open(testing.TB) *Store {
	store, db := NewMemory(Options{})
	s.db = db
	return store
}

func (s *memorySubject) begin(t testing.TB) pgx.Tx {
	tx, err := s.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

func (s *memorySubject) command() Command              { return testCommand }
func (s *memorySubject) message(d Destination) Message { return testMessage(d) }
func (s *memorySubject) now(testing.TB) time.Time      { return stamp(time.Now()) }

func (s *memorySubject) statuses(_ testing.TB, id OutboxID) []Status {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if r := s.db.rows[id]; r != nil && r.committed != nil {
		return []Status{r.committed.status()}
	}
	return nil
}

// TestConformanceOfMemory proves the table of semantics in memory.
func TestConformanceOfMemory(t *testing.T) {
	for d, claims := range conformanceClaims {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			testConformance(t, &memorySubject{}, d, claims...)
		})
	}
}

// memoryCase is a store in memory with two transactions.
type memoryCase struct {
	*testing.T
	store *Store
	db    *MemoryDB
	a, b  pgx.Tx
}

func newMemoryCase(t *testing.T) *memoryCase {
	s := &memorySubject{}
	c := &memoryCase{T: t, store: s.open(t)}
	c.db, c.a, c.b = s.db, s.begin(t), s.begin(t)
	return c
}

func (c *memoryCase) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *memoryCase) enqueue(tx pgx.Tx, messages ...Message) []Enqueued {
	c.Helper()
	return mustEnqueue(c, c.store.With(tx), messages...)
}

// committed is the number of rows that are committed.
func (c *memoryCase) committed() int {
	c.Helper()
	records, err := c.store.List(c.Context(), Filter{}, OutboxID{}, maxPage)
	c.must(err)
	return len(records)
}

// claimedRow is a committed row and its claim.
func (c *memoryCase) claimedRow() Claim {
	c.Helper()
	c.must(pgx.BeginFunc(c.Context(), c.db, func(tx pgx.Tx) error {
		c.enqueue(tx, testMessage(DestinationMailer))
		return nil
	}))
	entries := claimAll(c, c.store, 10)
	return entries[len(entries)-1].Claim
}

// waitingContext tells when a call begins to wait: then it asks to be told of the
// end of its context. It holds the database's lock until it does wait.
type waitingContext struct {
	context.Context
	waits chan struct{}
}

// Value hides what the context is made of, or context.AfterFunc would turn to that.
func (waitingContext) Value(any) any { return nil }

// AfterFunc is what context.AfterFunc asks a context for.
func (c waitingContext) AfterFunc(f func()) func() bool {
	select {
	case c.waits <- struct{}{}:
	default:
	}
	return context.AfterFunc(c.Context, f)
}

// waits runs a call that has to wait for another transaction, and returns what it
// will have answered.
func (c *memoryCase) waits(ctx context.Context, call func(ctx context.Context) error) <-chan error {
	c.Helper()
	waiting := waitingContext{ctx, make(chan struct{}, 1)}
	result := make(chan error, 1)
	go func() { result <- call(waiting) }()
	select {
	case <-waiting.waits:
	case err := <-result:
		c.Fatalf("the call did not wait: it was answered %v", err)
	}
	return result
}

func TestTransactionsOfMemory(t *testing.T) {
	message := func() Message { return testMessage(DestinationMailer) }
	for _, test := range []struct {
		behaviour string
		run       func(c *memoryCase)
	}{
		{"what is not committed is seen within only", func(c *memoryCase) {
			id := c.enqueue(c.a, message())[0].ID
			if _, err := c.store.With(c.a).Get(c.Context(), id); err != nil {
				c.Error(err)
			}
			for _, outside := range []*Store{c.store, c.store.With(c.b).Store} {
				if _, err := outside.Get(c.Context(), id); !errors.Is(err, ErrNotFound) {
					c.Errorf("the error is %v, want ErrNotFound", err)
				}
			}
			c.must(c.a.Commit(c.Context()))
			if n := c.committed(); n != 1 {
				c.Errorf("%d rows are committed", n)
			}
		}},
		{"a claim that is rolled back was none", func(c *memoryCase) {
			claim := c.claimedRow()
			c.must(c.store.GiveBack(c.Context(), claim))
			if entries := claimAll(c, c.store.With(c.a).Store, 1); len(entries) != 1 {
				c.Fatalf("claimed %v", entries)
			}
			if entries := claimAll(c, c.store, 1); len(entries) != 0 {
				c.Errorf("claimed %v, which another transaction is claiming", entries)
			}
			c.must(c.a.Rollback(c.Context()))
			if r := getRecord(c, c.store, claim.ID); r.Status != StatusPending || r.Claim != claim {
				c.Errorf("the row is %v under %v", r, r.Claim)
			}
		}},
		{"a pause that is rolled back was none", func(c *memoryCase) {
			c.must(c.store.GiveBack(c.Context(), c.claimedRow()))
			c.must(c.store.With(c.a).Pause(c.Context(), DestinationMailer))
			if entries := claimAll(c, c.store.With(c.a).Store, 1); len(entries) != 0 {
				c.Errorf("claimed %v of a paused destination", entries)
			}
			c.must(c.a.Rollback(c.Context()))
			if entries := claimAll(c, c.store, 1); len(entries) != 1 {
				c.Errorf("claimed %v, want a row", entries)
			}
		}},
		{"a duplicate waits for a commit", func(c *memoryCase) {
			m := message()
			first := c.enqueue(c.a, m)[0]
			var second []Enqueued
			result := c.waits(c.Context(), func(ctx context.Context) (err error) {
				second, err = c.store.With(c.b).Enqueue(ctx, testCommand, m)
				return err
			})
			c.must(c.a.Commit(c.Context()))
			c.must(<-result)
			if second[0] != (Enqueued{ID: first.ID, Duplicate: true}) {
				c.Errorf("the answer is %+v, want a duplicate of %s", second[0], first.ID)
			}
		}},
		{"a duplicate waits for a rollback", func(c *memoryCase) {
			m := message()
			c.enqueue(c.a, m)
			var second []Enqueued
			result := c.waits(c.Context(), func(ctx context.Context) (err error) {
				second, err = c.store.With(c.b).Enqueue(ctx, testCommand, m)
				return err
			})
			c.must(c.a.Rollback(c.Context()))
			c.must(<-result)
			if second[0].Duplicate {
				c.Error("the message is a duplicate of one that was rolled back")
			}
		}},
		{"a duplicate does not wait for a claim", func(c *memoryCase) {
			m := message()
			c.enqueue(c.a, m)
			c.must(c.a.Commit(c.Context()))
			claimAll(c, c.store.With(c.b).Store, 1)
			c.must(pgx.BeginFunc(c.Context(), c.db, func(tx pgx.Tx) error {
				if answer := c.enqueue(tx, m)[0]; !answer.Duplicate {
					c.Errorf("the answer is %+v", answer)
				}
				return nil
			}))
		}},
		{"a duplicate waits for a purge", func(c *memoryCase) {
			m := message()
			c.enqueue(c.a, m)
			c.must(c.a.Commit(c.Context()))
			c.must(c.store.MarkCompleted(c.Context(), claimAll(c, c.store, 1)[0].Claim, ""))
			if n, err := c.store.With(c.b).Purge(c.Context(), laterDay, 10); n != 1 || err != nil {
				c.Fatalf("purged %d rows: %v", n, err)
			}
			var again []Enqueued
			result := c.waits(c.Context(), func(ctx context.Context) error {
				return pgx.BeginFunc(ctx, c.db, func(tx pgx.Tx) (err error) {
					again, err = c.store.With(tx).Enqueue(ctx, testCommand, m)
					return err
				})
			})
			c.must(c.b.Rollback(c.Context()))
			c.must(<-result)
			if !again[0].Duplicate {
				c.Errorf("the answer is %+v, and the row was not purged in the end", again[0])
			}
		}},
		{"a settle waits for another and judges what that has left", func(c *memoryCase) {
			claim := c.claimedRow()
			c.must(c.store.With(c.a).MarkFailed(c.Context(), claim, "refused"))
			result := c.waits(c.Context(), func(ctx context.Context) error { return c.store.MarkCompleted(ctx, claim, "") })
			c.must(c.a.Commit(c.Context()))
			if err := <-result; !errors.Is(err, ErrConflict) {
				c.Errorf("the error is %v, want ErrConflict", err)
			}
		}},
		{"a settle by a claim that was lost does not wait", func(c *memoryCase) {
			claim := c.claimedRow()
			c.must(c.store.With(c.a).MarkCompleted(c.Context(), claim, ""))
			if err := c.store.MarkCompleted(c.Context(), Claim{ID: claim.ID, Token: claim.Token + 1}, ""); !errors.Is(err, ErrConflict) {
				c.Errorf("the error is %v, want ErrConflict", err)
			}
		}},
		{"a wait ends with its context", func(c *memoryCase) {
			claim := c.claimedRow()
			c.must(c.store.With(c.a).MarkCompleted(c.Context(), claim, ""))
			ctx, cancel := context.WithCancel(c.Context())
			result := c.waits(ctx, func(ctx context.Context) error { return c.store.MarkCompleted(ctx, claim, "") })
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				c.Errorf("the error is %v", err)
			}
		}},
		{"transactions that wait for each other deadlock, and one goes on", func(c *memoryCase) {
			one, two := c.claimedRow(), c.claimedRow()
			c.must(c.store.With(c.a).MarkCompleted(c.Context(), one, ""))
			c.must(c.store.With(c.b).MarkCompleted(c.Context(), two, ""))
			result := c.waits(c.Context(), func(ctx context.Context) error { return c.store.With(c.a).MarkCompleted(ctx, two, "") })
			if err := c.store.With(c.b).MarkCompleted(c.Context(), one, ""); !errors.Is(err, errDeadlock) {
				c.Errorf("the error is %v, want that of the deadlock", err)
			}
			if err := c.b.Commit(c.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
				c.Errorf("the victim's commit: %v", err)
			}
			c.must(<-result)
			c.must(c.a.Commit(c.Context()))
			for _, claim := range []Claim{one, two} {
				if r := getRecord(c, c.store, claim.ID); r.Status != StatusCompleted {
					c.Errorf("the row is %v", r)
				}
			}
		}},
		{"a key of which another transaction works on a row is left alone", func(c *memoryCase) {
			change := func(n int64) Message { return ToStock(StockChange{Shelf: "a", Change: n}) }
			ids := c.enqueue(c.a, change(1), change(2))
			c.must(c.a.Commit(c.Context()))
			c.must(c.store.With(c.b).Cancel(c.Context(), ids[1].ID, "not wanted"))
			if entries := claimAll(c, c.store, 10); len(entries) != 0 {
				c.Errorf("claimed %v", entries)
			}
			c.must(c.b.Rollback(c.Context()))
			wantIDs(c.T, entryIDs(claimAll(c, c.store, 10)), ids[0].ID, ids[1].ID)
		}},
		{"a savepoint that is rolled back takes what is since and lets it go", func(c *memoryCase) {
			claim := c.claimedRow()
			first := message()
			c.enqueue(c.a, first)
			inner := openTx(c.T, c.a)
			second := message()
			c.enqueue(inner, first, second)
			c.must(c.store.With(inner).MarkCompleted(c.Context(), claim, ""))
			c.must(c.store.With(inner).Pause(c.Context(), DestinationBank))
			c.must(inner.Rollback(c.Context()))
			c.must(c.store.MarkRetry(c.Context(), claim, "busy", someDay))
			c.enqueue(c.b, second)
			c.must(c.a.Commit(c.Context()))
			if n := c.committed(); n != 2 {
				c.Errorf("%d rows are committed, want 2", n)
			}
		}},
		{"after an error only a rollback is left, to a savepoint too", func(c *memoryCase) {
			inner := openTx(c.T, c.a)
			ctx, cancel := context.WithCancel(c.Context())
			m := message()
			c.enqueue(c.b, m)
			result := c.waits(ctx, func(ctx context.Context) error {
				_, err := c.store.With(inner).Enqueue(ctx, testCommand, m)
				return err
			})
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				c.Fatalf("the error is %v", err)
			}
			if _, err := c.store.With(inner).Enqueue(c.Context(), testCommand, message()); !errors.Is(err, errAborted) {
				c.Errorf("the error is %v, want that of an aborted transaction", err)
			}
			c.must(inner.Rollback(c.Context()))
			c.enqueue(c.a, message())
			c.must(c.a.Commit(c.Context()))
		}},
		{"what is purged and enqueued again in one transaction comes back with a rollback", func(c *memoryCase) {
			m := message()
			first := c.enqueue(c.a, m)[0]
			c.must(c.a.Commit(c.Context()))
			c.must(c.store.MarkCompleted(c.Context(), claimAll(c, c.store, 1)[0].Claim, ""))
			if n, err := c.store.With(c.b).Purge(c.Context(), laterDay, 10); n != 1 || err != nil {
				c.Fatalf("purged %d rows: %v", n, err)
			}
			if again := c.enqueue(c.b, m)[0]; again.Duplicate {
				c.Errorf("the answer is %+v", again)
			}
			c.must(c.b.Rollback(c.Context()))
			c.must(pgx.BeginFunc(c.Context(), c.db, func(tx pgx.Tx) error {
				if again := c.enqueue(tx, m)[0]; again.ID != first.ID {
					c.Errorf("the answer is %+v, want a duplicate of %s", again, first.ID)
				}
				return nil
			}))
		}},
		{"a transaction that has ended does nothing more", func(c *memoryCase) {
			c.must(c.a.Commit(c.Context()))
			if _, err := c.store.With(c.a).Enqueue(c.Context(), testCommand, message()); !errors.Is(err, pgx.ErrTxClosed) {
				c.Errorf("the error is %v, want ErrTxClosed", err)
			}
			if err := c.a.Rollback(c.Context()); !errors.Is(err, pgx.ErrTxClosed) {
				c.Errorf("the error is %v, want ErrTxClosed", err)
			}
		}},
		{"a transaction of another database is refused", func(c *memoryCase) {
			_, other := NewMemory(Options{})
			tx := openTx(c.T, other)
			for _, tx := range []pgx.Tx{tx, struct{ pgx.Tx }{c.a}} {
				if _, err := c.store.With(tx).Enqueue(c.Context(), testCommand, message()); !errors.Is(err, errOtherTx) {
					c.Errorf("the error is %v", err)
				}
			}
		}},
		{"SQL is refused", func(c *memoryCase) {
			if _, err := c.a.Exec(c.Context(), "SELECT 1"); !errors.Is(err, errNoSQL) {
				c.Errorf("the error is %v", err)
			}
			batch := &pgx.Batch{}
			batch.Queue("SELECT 1")
			if err := c.a.SendBatch(c.Context(), batch).Close(); !errors.Is(err, errNoSQL) {
				c.Errorf("the error is %v", err)
			}
		}},
		{"a batch is a transaction of its own", func(c *memoryCase) {
			m := ToMailer(orderConfirmation()).WithKey("k")
			batch := &pgx.Batch{}
			queued, err := c.store.QueueEnqueue(c.Context(), batch, testCommand, m, message())
			c.must(err)
			if _, err := queued.Enqueued(); !errors.Is(err, errNotSent) {
				c.Errorf("the error is %v before the batch is sent", err)
			}
			c.must(c.db.SendBatch(c.Context(), batch).Close())
			answers, err := queued.Enqueued()
			c.must(err)
			if len(answers) != 2 || c.committed() != 2 || c.db.OpenTransactions() != 2 {
				c.Errorf("the answers are %+v, %d rows are committed, %d transactions open", answers, c.committed(), c.db.OpenTransactions())
			}
			batch = &pgx.Batch{}
			_, err = c.store.QueueEnqueue(c.Context(), batch, testCommand, message(), ToMailer(orderConfirmation()).WithKey("k"))
			c.must(err)
			var reused *MessageError
			if err := c.db.SendBatch(c.Context(), batch).Close(); !errors.As(err, &reused) || reused.ExistingID != answers[0].ID || reused.Index != 1 {
				c.Errorf("the error is %v, want that of message 1 and %s", err, answers[0].ID)
			}
			if n := c.committed(); n != 2 {
				c.Errorf("%d rows are committed, want 2", n)
			}
		}},
	} {
		t.Run(test.behaviour, func(t *testing.T) { test.run(newMemoryCase(t)) })
	}
}

// TestMemoryDividesTheQueue has four workers drain one queue at once.
func TestMemoryDividesTheQueue(t *testing.T) {
	const rows, workers = 400, 4
	store, db := NewMemory(Options{})
	var messages []Message
	for range rows {
		messages = append(messages, testMessage(DestinationMailer))
	}
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		_, err := store.With(tx).Enqueue(t.Context(), testCommand, messages...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	sent := make(map[OutboxID]int)
	var all sync.WaitGroup
	for range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			for {
				entries, err := store.ClaimDue(t.Context(), ClaimRequest{WorkerID: "worker", Limits: map[Destination]int{DestinationMailer: 7}})
				if err != nil {
					t.Error(err)
				}
				if len(entries) == 0 {
					return
				}
				for _, e := range entries {
					mu.Lock()
					sent[e.ID]++
					mu.Unlock()
					if err := store.MarkCompleted(t.Context(), e.Claim, ""); err != nil {
						t.Error(err)
					}
				}
			}
		}()
	}
	all.Wait()
	for id, n := range sent {
		if n != 1 {
			t.Errorf("%s was claimed %d times", id, n)
		}
	}
	if len(sent) != rows {
		t.Errorf("%d rows were claimed, want %d", len(sent), rows)
	}
}
