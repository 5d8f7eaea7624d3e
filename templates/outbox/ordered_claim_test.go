package outbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// change is the n-th message of a shelf.
func change(shelf string, n int) Message {
	return ToStock(StockChange{Shelf: shelf, Change: int64(n)})
}

// changes are the messages from 1 to n of a shelf.
func changes(shelf string, n int) (messages []Message) {
	for i := range n {
		messages = append(messages, change(shelf, i+1))
	}
	return messages
}

// claimStock claims rows of the ordered destination.
func claimStock(t testing.TB, s *Store, limit int) []Entry {
	t.Helper()
	return claimStockAt(t, s, limit, time.Time{})
}

func claimStockAt(t testing.TB, s *Store, limit int, at time.Time) []Entry {
	t.Helper()
	entries, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationStock: limit}, At: at})
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// places are the numbers of the messages in the order of the entries: "a1 a2 b1".
func places(entries []Entry) string {
	var texts []string
	for _, e := range entries {
		c := e.Payload.(StockChange)
		texts = append(texts, fmt.Sprintf("%s%d", c.Shelf, c.Change))
	}
	return strings.Join(texts, " ")
}

func wantPlaces(t testing.TB, entries []Entry, want string) {
	t.Helper()
	if got := places(entries); got != want {
		t.Errorf("claimed %q, want %q", got, want)
	}
}

// wantOneHolder fails the test when rows of one key are held under two claims.
func wantOneHolder(t testing.TB, db DB) {
	t.Helper()
	n, err := sharedKeys(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("%d keys are held under two claims", n)
	}
}

func sharedKeys(ctx context.Context, db DB) (n int, err error) {
	err = db.QueryRow(ctx, `SELECT count(*) FROM (
		SELECT FROM outbox_queue WHERE claim_taken_at IS NOT NULL AND order_key IS NOT NULL
		GROUP BY destination, order_key HAVING count(DISTINCT claim_token) > 1) s`).Scan(&n)
	return n, err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestOrderIsTheDatabasesOrder gives the rows ids as if their hosts' clocks were
// ten minutes apart, so that the ids say the contrary of the order.
func TestOrderIsTheDatabasesOrder(t *testing.T) {
	pool := testPool(t)
	n := runRows + runLook + 8 // more than a claim looks at
	for i, id := range enqueueAll(t, pool, append(changes("a", n), changes("b", 3)...)...) {
		earlier := id
		ms := binary.BigEndian.Uint64(id[:8])>>16 - uint64(i)*uint64((10*time.Minute).Milliseconds())
		binary.BigEndian.PutUint64(earlier[:8], ms<<16|binary.BigEndian.Uint64(id[:8])&0xffff)
		for _, table := range []string{"outbox_message", "outbox_queue"} {
			execSQL(t, pool, "UPDATE "+table+" SET outbox_id = $2 WHERE outbox_id = $1", id.String(), earlier.String())
		}
	}
	s := New(pool, Options{})
	// Keys are returned by the ids of their heads, which put the second first.
	wantPlaces(t, claimStock(t, s, 11), "b1 b2 b3 a1 a2 a3 a4 a5 a6 a7 a8")
}

// TestOrderedRuns takes a key in runs, each when the one before is settled.
func TestOrderedRuns(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	enqueueAll(t, pool, changes("a", runRows+2)...)
	enqueueAll(t, pool, changes("b", 1)...)
	first := claimStock(t, s, 100)
	wantPlaces(t, first, "a1 a2 a3 a4 a5 a6 a7 a8 b1")
	for i, e := range first[:runRows] {
		wantPlaces(t, claimStock(t, s, 100), "")
		if i%2 == 0 {
			must(t, s.MarkCompleted(t.Context(), e.Claim, ""))
		} else {
			must(t, s.MarkCompleted(t.Context(), e.Claim, "ref"))
		}
	}
	rest := claimStock(t, s, 1)
	wantPlaces(t, rest, "a9")
	wantPlaces(t, claimStock(t, s, 1), "")
	must(t, s.GiveBack(t.Context(), rest[0].Claim))
	wantPlaces(t, claimStock(t, s, 100), "a9 a10")
}

// TestClaimsGoRoundTheKeys has keys that would fill every claim by themselves.
func TestClaimsGoRoundTheKeys(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	enqueueAll(t, pool, append(append(changes("a", 3), changes("b", 3)...), changes("c", 2)...)...)
	for _, want := range []string{"a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", ""} {
		entries := claimStock(t, s, 1)
		wantPlaces(t, entries, want)
		for _, e := range entries {
			must(t, s.MarkCompleted(t.Context(), e.Claim, ""))
		}
	}
}

// TestOrderedHeads has a key a of three rows, something that becomes of its
// first, and a key b that must not be slowed by it.
func TestOrderedHeads(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	claimHead := func(t *testing.T) []Entry { return claimStockAt(t, New(pool, Options{}), 1, longAgo) }
	// claimed is what is done with a head that was claimed alone.
	claimed := func(settle func(ctx context.Context, c Claim) error) func(*testing.T, OutboxID) {
		return func(t *testing.T, _ OutboxID) {
			must(t, settle(t.Context(), claimHead(t)[0].Claim))
		}
	}
	unknown := func(then func(ctx context.Context, c Claim) error) func(*testing.T, OutboxID) {
		return claimed(func(ctx context.Context, c Claim) error {
			if err := s.MarkOutcomeUnknown(ctx, c, "", time.Time{}); err != nil {
				return err
			}
			return then(ctx, c)
		})
	}
	done := func(context.Context, Claim) error { return nil }
	for _, test := range []struct {
		name string
		head func(Message) Message // nil = as it comes
		then func(t *testing.T, head OutboxID)
		want string
	}{
		{name: "ready", want: "a1 a2 a3 b1"},
		{name: "scheduled for later", head: func(m Message) Message { return m.At(someDay) }, want: "b1"},
		{name: "dispatching", then: claimed(done), want: "b1"},
		{name: "completed", then: claimed(func(ctx context.Context, c Claim) error { return s.MarkCompleted(ctx, c, "") }), want: "a2 a3 b1"},
		{name: "given back", then: claimed(func(ctx context.Context, c Claim) error { return s.GiveBack(ctx, c) }), want: "a1 a2 a3 b1"},
		{name: "retried at once", then: claimed(func(ctx context.Context, c Claim) error { return s.MarkRetry(ctx, c, "busy", time.Time{}) }), want: "a1 a2 a3 b1"},
		{name: "retried later", then: claimed(func(ctx context.Context, c Claim) error { return s.MarkRetry(ctx, c, "busy", someDay) }), want: "b1"},
		{name: "rescheduled", then: claimed(func(ctx context.Context, c Claim) error { return s.Reschedule(ctx, c, someDay) }), want: "b1"},
		{name: "postponed", then: claimed(func(ctx context.Context, c Claim) error { return s.Postpone(ctx, c, "down", someDay) }), want: "b1"},
		{name: "released after its lease", then: claimed(func(ctx context.Context, _ Claim) error {
			_, err := s.ReleaseExpiredClaims(ctx, time.Time{})
			return err
		}), want: "a1 a2 a3 b1"},
		{name: "unknown", then: unknown(done), want: "b1"},
		{name: "unknown, held for a question", then: unknown(func(ctx context.Context, _ Claim) error {
			_, err := s.ClaimUnknown(ctx, ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationStock: 1}})
			return err
		}), want: "b1"},
		{name: "unknown, then known to have arrived", then: unknown(func(ctx context.Context, c Claim) error { return s.MarkCompleted(ctx, c, "") }), want: "a2 a3 b1"},
		{name: "unknown, then known never to have arrived", then: unknown(func(ctx context.Context, c Claim) error { return s.MarkNeverArrived(ctx, c, "lost") }), want: "a1 a2 a3 b1"},
		{name: "unknown, then refused", then: unknown(func(ctx context.Context, c Claim) error { return s.MarkFailed(ctx, c, "refused") }), want: "b1"},
		{name: "failed", then: claimed(func(ctx context.Context, c Claim) error { return s.MarkFailed(ctx, c, "refused") }), want: "b1"},
		{name: "abandoned at its last attempt", then: func(t *testing.T, _ OutboxID) {
			for range stockPolicy.maxAttempts {
				claimHead(t)
				if ids, err := s.ReleaseExpiredClaims(t.Context(), time.Time{}); err != nil || len(ids) != 1 {
					t.Fatalf("released %v, %v", ids, err)
				}
			}
		}, want: "b1"},
		{name: "cancelled", then: func(t *testing.T, head OutboxID) { must(t, s.Cancel(t.Context(), head, "not wanted")) }, want: "a2 a3 b1"},
		{name: "cancelled after an attempt", then: func(t *testing.T, head OutboxID) {
			must(t, s.MarkRetry(t.Context(), claimHead(t)[0].Claim, "busy", someDay))
			must(t, s.Cancel(t.Context(), head, "not wanted"))
		}, want: "a2 a3 b1"},
		{name: "expired, not yet swept", head: func(m Message) Message { return m.ExpiresAt(longAgo) }, want: "a2 a3 b1"},
		{name: "expired while it waited, not yet swept", head: func(m Message) Message { return m.ExpiresAt(longAgo.Add(time.Second)) },
			then: claimed(func(ctx context.Context, c Claim) error { return s.MarkRetry(ctx, c, "busy", someDay) }), want: "a2 a3 b1"},
		{name: "expired and swept", head: func(m Message) Message { return m.ExpiresAt(longAgo) }, then: func(t *testing.T, _ OutboxID) {
			if ids, err := s.ExpireDue(t.Context(), time.Time{}, 10); err != nil || len(ids) != 1 {
				t.Fatalf("expired %v, %v", ids, err)
			}
		}, want: "a2 a3 b1"},
		{name: "past its expiry while it is dispatched", head: func(m Message) Message { return m.ExpiresAt(longAgo.Add(time.Second)) }, then: claimed(done), want: "b1"},
		{name: "past its expiry while it is unknown", head: func(m Message) Message { return m.ExpiresAt(longAgo.Add(time.Second)) }, then: unknown(done), want: "b1"},
		{name: "of a kind that this program does not know", then: func(t *testing.T, head OutboxID) {
			execSQL(t, pool, "UPDATE outbox_queue SET kind = 'stock/stock_change@2' WHERE outbox_id = $1", head.String())
		}, want: "b1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			removeRows(t, pool)
			messages := append(changes("a", 3), change("b", 1))
			if test.head != nil {
				messages[0] = test.head(messages[0])
			}
			ids := enqueueAll(t, pool, messages...)
			if test.then != nil {
				test.then(t, ids[0])
			}
			wantPlaces(t, claimStock(t, New(pool, Options{}), 10), test.want)
			wantOneHolder(t, pool)
			wantSound(t, s)
		})
	}
}

// TestOrderedRunsEndBeforeARowThatIsNotReady takes what stands before it.
func TestOrderedRunsEndBeforeARowThatIsNotReady(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	for name, notReady := range map[string]func(t *testing.T, id OutboxID){
		"scheduled": func(t *testing.T, id OutboxID) {
			execSQL(t, pool, "UPDATE outbox_queue SET next_attempt_at = $2 WHERE outbox_id = $1", id.String(), someDay)
		},
		"unknown": func(t *testing.T, id OutboxID) {
			execSQL(t, pool, "UPDATE outbox_queue SET unknown = true, next_attempt_at = $2 WHERE outbox_id = $1", id.String(), someDay)
		},
		"of another kind": func(t *testing.T, id OutboxID) {
			execSQL(t, pool, "UPDATE outbox_queue SET kind = 'stock/stock_change@2' WHERE outbox_id = $1", id.String())
		},
	} {
		t.Run(name, func(t *testing.T) {
			removeRows(t, pool)
			ids := enqueueAll(t, pool, changes("a", 5)...)
			notReady(t, ids[2])
			entries := claimStock(t, s, 10)
			wantPlaces(t, entries, "a1 a2")
			for _, e := range entries {
				must(t, s.MarkCompleted(t.Context(), e.Claim, ""))
			}
			wantPlaces(t, claimStock(t, s, 10), "")
		})
	}
}

// TestHeldKeys walks the ways out of a hold.
func TestHeldKeys(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	// failed is a key whose first row has failed, after a2 and a3 were given back.
	failed := func(t *testing.T) (head OutboxID) {
		removeRows(t, pool)
		enqueueAll(t, pool, changes("a", 3)...)
		entries := claimStock(t, s, 10)
		must(t, s.MarkFailed(t.Context(), entries[0].Claim, "refused"))
		must(t, s.GiveBack(t.Context(), entries[1].Claim, entries[2].Claim))
		wantPlaces(t, claimStock(t, s, 10), "")
		return entries[0].ID
	}
	heldKeys := func(t *testing.T) (held int64) {
		stats, err := s.Stats(t.Context())
		must(t, err)
		for _, d := range stats.Destinations {
			held += d.HeldKeys
		}
		return held
	}
	wantHolding := func(t *testing.T, id OutboxID, want bool) {
		t.Helper()
		var keys int64
		if want {
			keys = 1
		}
		if record := getRecord(t, s, id); record.Holding != want || heldKeys(t) != keys {
			t.Errorf("the row holds its key: %v, and %d keys are held; want %v", record.Holding, heldKeys(t), want)
		}
	}
	t.Run("a requeued head takes its old place", func(t *testing.T) {
		head := failed(t)
		wantHolding(t, head, true)
		must(t, s.Requeue(t.Context(), head, "mended"))
		wantHolding(t, head, false)
		wantPlaces(t, claimStock(t, s, 10), "a1 a2 a3")
	})
	t.Run("a key that was skipped goes on", func(t *testing.T) {
		head := failed(t)
		must(t, s.Skip(t.Context(), DestinationStock, getRecord(t, s, head).OrderKey))
		wantHolding(t, head, false)
		if status := getRecord(t, s, head).Status; status != StatusFailed {
			t.Errorf("the row is %s, want failed", status)
		}
		wantPlaces(t, claimStock(t, s, 10), "a2 a3")
	})
	t.Run("a head that is requeued after a skip goes to the end", func(t *testing.T) {
		head := failed(t)
		must(t, s.Skip(t.Context(), DestinationStock, getRecord(t, s, head).OrderKey))
		must(t, s.Requeue(t.Context(), head, "mended"))
		enqueueAll(t, pool, change("a", 4))
		wantPlaces(t, claimStock(t, s, 10), "a2 a3 a1 a4")
	})
	t.Run("a cancelled row goes to the end", func(t *testing.T) {
		removeRows(t, pool)
		ids := enqueueAll(t, pool, changes("a", 3)...)
		must(t, s.Cancel(t.Context(), ids[1], "not wanted"))
		must(t, s.Requeue(t.Context(), ids[1], "wanted after all"))
		wantPlaces(t, claimStock(t, s, 10), "a1 a3 a2")
	})
	t.Run("a key is held as long as one of its failed rows is", func(t *testing.T) {
		removeRows(t, pool)
		enqueueAll(t, pool, changes("a", 4)...)
		entries := claimStock(t, s, 3)
		for _, e := range entries {
			must(t, s.MarkFailed(t.Context(), e.Claim, "refused"))
		}
		for _, e := range []Entry{entries[1], entries[0]} {
			must(t, s.Requeue(t.Context(), e.ID, "mended"))
			wantPlaces(t, claimStock(t, s, 10), "")
		}
		must(t, s.Requeue(t.Context(), entries[2].ID, "mended"))
		wantPlaces(t, claimStock(t, s, 10), "a1 a2 a3 a4")
	})
	t.Run("a skip frees the key from all of its failed rows", func(t *testing.T) {
		removeRows(t, pool)
		enqueueAll(t, pool, changes("a", 3)...)
		entries := claimStock(t, s, 2)
		for _, e := range entries {
			must(t, s.MarkFailed(t.Context(), e.Claim, "refused"))
		}
		must(t, s.Skip(t.Context(), DestinationStock, entries[0].OrderKey))
		wantPlaces(t, claimStock(t, s, 10), "a3")
	})
	t.Run("a head that holds its key is not purged", func(t *testing.T) {
		head := failed(t)
		for _, want := range []int{0, 1} {
			if removed, err := s.Purge(t.Context(), laterDay, 10); err != nil || removed != want {
				t.Errorf("Purge removed %d rows, %v, want %d", removed, err, want)
			}
			if want == 0 {
				must(t, s.Skip(t.Context(), DestinationStock, getRecord(t, s, head).OrderKey))
			}
		}
	})
	t.Run("a requeued head holds nobody up while the rest of its run is claimed", func(t *testing.T) {
		removeRows(t, pool)
		enqueueAll(t, pool, changes("a", 3)...)
		entries := claimStock(t, s, 10)
		must(t, s.MarkFailed(t.Context(), entries[0].Claim, "refused"))
		must(t, s.Requeue(t.Context(), entries[0].ID, "mended"))
		wantPlaces(t, claimStock(t, s, 10), "")
		must(t, s.GiveBack(t.Context(), entries[1].Claim))
		wantPlaces(t, claimStock(t, s, 10), "")
		must(t, s.GiveBack(t.Context(), entries[2].Claim))
		wantPlaces(t, claimStock(t, s, 10), "a1 a2 a3")
	})
	t.Run("nothing to skip", func(t *testing.T) {
		head := failed(t)
		key := getRecord(t, s, head).OrderKey
		for name, skip := range map[string]func() error{
			"another key":              func() error { return s.Skip(t.Context(), DestinationStock, key+"x") },
			"another destination":      func() error { return s.Skip(t.Context(), DestinationMailer, key) },
			"a key that cannot be one": func() error { return s.Skip(t.Context(), DestinationStock, "a\x00\xff") },
		} {
			if err := skip(); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: the error is %v, want ErrNotFound", name, err)
			}
		}
		wantHolding(t, head, true)
	})
}

// TestExpiredClaimsOfARun releases them a part at a time.
func TestExpiredClaimsOfARun(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	enqueueAll(t, pool, changes("a", 3)...)
	claimStockAt(t, s, 10, longAgo)
	for range 3 {
		wantPlaces(t, claimStock(t, s, 10), "")
		if ids, err := s.backend.releaseExpired(t.Context(), allDestinations(), 1, time.Time{}); err != nil || len(ids) != 1 {
			t.Fatalf("released %v, %v", ids, err)
		}
	}
	wantPlaces(t, claimStock(t, s, 10), "a1 a2 a3")
}

// TestLateCommitBeforeTheRunOfAnother has rows that got their places before
// those which are claimed, and come to be seen after that.
func TestLateCommitBeforeTheRunOfAnother(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	late, err := pool.Begin(t.Context())
	must(t, err)
	defer late.Rollback(context.WithoutCancel(t.Context()))
	mustEnqueue(t, s.With(late), changes("a", 3)...)
	enqueueAll(t, pool, change("a", 4), change("a", 5))
	entries := claimStock(t, s, 10)
	wantPlaces(t, entries, "a4 a5")
	must(t, late.Commit(t.Context()))
	wantPlaces(t, claimStock(t, s, 10), "")
	must(t, s.MarkCompleted(t.Context(), entries[0].Claim, ""))
	wantPlaces(t, claimStock(t, s, 10), "")
	must(t, s.MarkRetry(t.Context(), entries[1].Claim, "busy", time.Time{}))
	wantPlaces(t, claimStock(t, s, 10), "a1 a2 a3 a5")
}

// TestOrderKeysOfAnySort has a key for each text, and takes them byte by byte.
func TestOrderKeysOfAnySort(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	// In the order of their keys, which writes % for none and escapes %, : and NUL.
	shelves := []string{
		" ", "", "\x00", "%", ":", "%00", "%25", "%3A", "%%", "*", "A", "B", "a", "a\x00b", "a%", "a:b", "aa", "b",
		strings.Repeat("k", maxKey), strings.Repeat("k", maxKey-1) + "l", "zz\u0301", "z\u0301", "é", "漢", "😀", "\U0010ffff",
	}
	var messages []Message
	for _, shelf := range shelves {
		messages = append(messages, change(shelf, 1), change(shelf, 2))
	}
	enqueueAll(t, pool, messages...)
	var keys []string
	byKey := make(map[string]string)
	for range shelves {
		entries := claimStock(t, s, 1)
		if len(entries) != 1 {
			t.Fatalf("claimed %d rows, want one of each key", len(entries))
		}
		e, shelf := entries[0], entries[0].Payload.(StockChange).Shelf
		if e.Payload.(StockChange).Change != 1 {
			t.Errorf("the row 2 of %q was claimed while its row 1 is dispatched", shelf)
		}
		if other, found := byKey[e.OrderKey]; found {
			t.Errorf("%q and %q have the key %q", other, shelf, e.OrderKey)
		}
		byKey[e.OrderKey] = shelf
		keys = append(keys, e.OrderKey)
		must(t, s.MarkFailed(t.Context(), e.Claim, "refused"))
	}
	if !slices.IsSorted(keys) {
		t.Errorf("the keys were taken in the order %q, which is not that of their bytes", keys)
	}
	wantPlaces(t, claimStock(t, s, 100), "")
	for _, key := range keys {
		must(t, s.Skip(t.Context(), DestinationStock, key))
		entries := claimStock(t, s, 100)
		if len(entries) != 1 || entries[0].OrderKey != key {
			t.Errorf("after %q was skipped, claimed %v", key, entries)
		}
	}
	inTx(t, pool, Options{}, func(_ pgx.Tx, box *Tx) {
		for _, shelf := range []string{strings.Repeat("k", maxKey+1), strings.Repeat(":", maxKey/3+1), "a\xff"} {
			if _, err := box.Enqueue(t.Context(), testCommand, change(shelf, 1)); err == nil {
				t.Errorf("a key made of %.10q was accepted", shelf)
			}
		}
	})
}

// TestOrderByAddedAndRemoved has rows that were enqueued under the other form of
// their destination.
func TestOrderByAddedAndRemoved(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := enqueueAll(t, pool, change("a", 1), change("a", 2), testMessage(DestinationMailer), testMessage(DestinationMailer), change("a", 3), change("a", 4),
		testMessage(DestinationMailer))
	for _, table := range []string{"outbox_message", "outbox_queue"} {
		execSQL(t, pool, "UPDATE "+table+" SET order_key = NULL WHERE outbox_id = ANY ($1::uuid[])", idArray(ids[:2]))
		execSQL(t, pool, "UPDATE "+table+" SET order_key = 'k' WHERE outbox_id = ANY ($1::uuid[])", idArray(ids[2:4]))
	}
	execSQL(t, pool, "UPDATE outbox_queue SET next_attempt_at = $2 WHERE outbox_id = $1", ids[1].String(), longAgo)
	claim := func(limit int) []Entry {
		entries, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationStock: limit, DestinationMailer: limit}})
		must(t, err)
		return entries
	}
	// Rows that an order binds and those that none binds take turns.
	wantIDs(t, entryIDs(claim(1)), ids[0], ids[6])
	keys := claim(1)
	wantIDs(t, entryIDs(keys), ids[2], ids[4])
	wantIDs(t, entryIDs(claim(1)), ids[1])
	// The key of the mailer is held as those of any other.
	wantIDs(t, entryIDs(claim(10)))
	must(t, s.GiveBack(t.Context(), keys[0].Claim, keys[1].Claim))
	wantIDs(t, entryIDs(claim(10)), ids[2:6]...)
	removeRows(t, pool)
	wantSound(t, s)
}

// TestClaimLimitIsOfAllLanes has ready, due and ordered rows of one destination.
func TestClaimLimitIsOfAllLanes(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	var messages []Message
	for i := range 5 {
		messages = append(messages, change("u", i), change("l", i), change("a", i), change("b", i))
	}
	ids := enqueueAll(t, pool, messages...)
	execSQL(t, pool, "UPDATE outbox_queue SET order_key = NULL, next_attempt_at = CASE WHEN order_key = 'l' THEN $1::timestamptz END WHERE order_key IN ('u', 'l')", longAgo)
	claimed := make(map[OutboxID]bool)
	for len(claimed) < len(ids) {
		entries := claimStock(t, s, 3)
		if len(entries) == 0 || len(entries) > 3 {
			t.Fatalf("claimed %d rows with a limit of 3; %d of %d are left", len(entries), len(ids)-len(claimed), len(ids))
		}
		for _, e := range entries {
			claimed[e.ID] = true
			must(t, s.MarkCompleted(t.Context(), e.Claim, ""))
		}
	}
}

// manyRows makes ordered rows by SQL, n for each of the keys.
func manyRows(t *testing.T, pool *pgxpool.Pool, keys []string, n int) {
	t.Helper()
	must(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `INSERT INTO outbox_queue (outbox_id, destination, kind, order_key)
			SELECT gen_random_uuid(), 'stock', 'stock/stock_change@1', k
			FROM generate_series(1, $2::integer) AS n CROSS JOIN unnest($1::text[]) AS k`, keys, n); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `INSERT INTO outbox_message (outbox_id, command_id, tenant_id, created_at, payload_version,
				destination, payload_type, idempotency_key, order_key, payload)
			SELECT q.outbox_id, gen_random_uuid(), gen_random_uuid(), clock_timestamp(), 1, q.destination, 'stock_change',
				q.outbox_id::text, q.order_key, json_build_object('shelf', q.order_key, 'change', '0')
			FROM outbox_queue q WHERE q.outbox_id NOT IN (SELECT m.outbox_id FROM outbox_message m)`)
		return err
	}))
	execSQL(t, pool, "ANALYZE outbox_queue, outbox_message")
}

// TestMoreHeldKeysThanOneLook has free keys between far more that are held than a
// claim looks at in a statement.
func TestMoreHeldKeysThanOneLook(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	var keys []string
	for i := range 2*keysLook + 500 {
		keys = append(keys, fmt.Sprintf("k%05d", i))
	}
	manyRows(t, pool, keys, 1)
	execSQL(t, pool, "INSERT INTO outbox_hold SELECT destination, order_key, gen_random_uuid(), clock_timestamp() FROM outbox_queue")
	wantPlaces(t, claimStock(t, s, 10), "")
	for _, test := range []struct{ name, shelf string }{
		{"behind all of them", "z"}, {"before all of them", "a"}, {"in the midst", "k01200x"}, {"where the claims stand", "k02499"},
		{"before where they stand", "k02498x"}, {"behind all again", "zz"}, {"again before all", "aa"},
	} {
		t.Run(test.name, func(t *testing.T) {
			execSQL(t, pool, "DELETE FROM outbox_hold WHERE order_key = $1", test.shelf)
			if !slices.Contains(keys, test.shelf) {
				enqueueAll(t, pool, change(test.shelf, 1))
			}
			entries := claimStock(t, s, 10)
			if len(entries) != 1 || entries[0].OrderKey != test.shelf {
				t.Fatalf("claimed %v, want the row of the key %s", entries, test.shelf)
			}
			must(t, s.MarkCompleted(t.Context(), entries[0].Claim, ""))
		})
	}
}

// TestAClaimIsBoundInItsLooks has a free key behind more that wait than a claim looks
// at, which those that go on behind it come to.
func TestAClaimIsBoundInItsLooks(t *testing.T) {
	waiting := make([]Message, 2*keysLook+500)
	for i := range waiting {
		waiting[i] = change(fmt.Sprintf("k%05d", i), 1).At(someDay)
	}
	for name, open := range map[string]func() (*Store, beginner){
		"Postgres": func() (*Store, beginner) {
			pool := testPool(t)
			return New(pool, Options{}), pool
		},
		"memory": func() (*Store, beginner) {
			store, db := NewMemory(Options{})
			return store, db
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, db := open()
			enqueueIn(t, s, db, append(waiting, change("z", 1))...)
			call := claimCallFor(t, 10)
			w := call.walks[slices.Index(call.destinations, string(DestinationStock))]
			call.looks = 1
			for i, want := range []string{"", "", "z1", "", "", ""} {
				rows, err := s.backend.claimDue(t.Context(), call)
				must(t, err)
				wantPlaces(t, decoded(rows), want)
				if over := i == 2 || i == 5; w.over != over {
					t.Errorf("after %d looks the walk is over: %t, want %t", i+1, w.over, over)
				}
			}
		})
	}
}

// TestAWalkBeginsAnewWhenKeysMayBeDue has a dispatcher in the midst of the keys of a
// destination.
func TestAWalkBeginsAnewWhenKeysMayBeDue(t *testing.T) {
	store, _ := NewMemory(Options{})
	r := newRemote()
	for name, test := range map[string]struct {
		happens func(d *Dispatcher, c *consumer, now time.Time)
		anew    bool
	}{
		"nothing":                  {func(*Dispatcher, *consumer, time.Time) {}, false},
		"a poll or a notification": {func(d *Dispatcher, _ *consumer, _ time.Time) { d.hunger(false) }, true},
		"a row comes due":          {func(_ *Dispatcher, c *consumer, now time.Time) { c.look(now) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := r.dispatcher(t, store, SomeHandlers(HandleStock(r)), DispatcherOptions{})
			c, now := d.consumers[0], d.clock.now()
			under := walk{begun: true, first: "k", start: "m"}
			c.claimedDue(nil, 10, now, under)
			test.happens(d, c, now)
			want := under
			if test.anew {
				want = walk{}
			}
			if limit, _, w, _ := c.request(now); limit == 0 || w != want {
				t.Errorf("%d rows are asked for from %+v, want from %+v", limit, w, want)
			}
		})
	}
}

// TestADispatcherGoesOnBehindManyWaitingKeys without a poll or a notification.
func TestADispatcherGoesOnBehindManyWaitingKeys(t *testing.T) {
	pool := testPool(t)
	var keys []string
	for i := range looksAtOnce*keysLook + 500 {
		keys = append(keys, fmt.Sprintf("k%05d", i))
	}
	manyRows(t, pool, keys, 1)
	execSQL(t, pool, "UPDATE outbox_queue SET next_attempt_at = $1", someDay)
	id := enqueueAll(t, pool, change("z", 1))[0]
	s := New(pool, Options{})
	r := newRemote()
	stop := run(t, r.dispatcher(t, s, r.handlers(), DispatcherOptions{NoListen: true, Poll: deaf}))
	r.waitSettled(t, id)
	must(t, stop())
	last := enqueueAll(t, pool, change("zz", 1))[0]
	if n, err := r.dispatcher(t, s, r.handlers(), DispatcherOptions{}).RunOnce(t.Context()); n != 1 || err != nil {
		t.Errorf("RunOnce: %d, %v", n, err)
	}
	wantRow(t, s, last, StatusCompleted)
}

// claimCost is the number of pages that a claim of ordered rows touches. What it
// does is rolled back.
func claimCost(t *testing.T, pool *pgxpool.Pool, limit int) int64 {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	for _, setting := range onePlan {
		_, err := tx.Exec(t.Context(), setting)
		must(t, err)
	}
	pages := func(sql string, args ...any) int64 {
		var plan []struct {
			Plan struct {
				Hit  int64 `json:"Shared Hit Blocks"`
				Read int64 `json:"Shared Read Blocks"`
			}
		}
		must(t, tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "+sql, args...).Scan(&plan))
		return plan[0].Plan.Hit + plan[0].Plan.Read
	}
	args := []any{[]string{"stock"}, []int{limit}, []string{""}, stockPolicy.kinds, []int32{runRows}, keysLook, nil, nil}
	n := pages(sqlLockHeads, args...)
	rows, err := tx.Query(t.Context(), sqlLockHeads, args...)
	must(t, err)
	heads, err := pgx.CollectRows(rows, scanHead)
	must(t, err)
	heads = slices.DeleteFunc(heads, func(h head) bool { return h.id == nil })
	ids, destinations, keys := make([]string, len(heads)), make([]string, len(heads)), make([]string, len(heads))
	limits, runs := make([]int, len(heads)), make([]int, len(heads))
	for i, h := range heads {
		ids[i], destinations[i], keys[i], limits[i], runs[i] = h.id.String(), h.destination, h.key, limit, runRows
	}
	if len(heads) == 0 {
		t.Fatal("no head was locked")
	}
	return n + pages(sqlTakeRuns, ids, destinations, keys, stockPolicy.kinds, 1, "w", nil, nil, limits, runs, runLook)
}

// TestAHeldKeySlowsNobody compares what a claim touches beside a held key of few
// rows and beside the same with 200,000.
func TestAHeldKeySlowsNobody(t *testing.T) {
	pool := testPool(t)
	manyRows(t, pool, []string{"a", "b", "c"}, 1000)
	hold := "INSERT INTO outbox_hold SELECT 'stock', 'a', gen_random_uuid(), clock_timestamp()"
	execSQL(t, pool, hold)
	before := claimCost(t, pool, 10)
	manyRows(t, pool, []string{"a"}, 200_000)
	for _, test := range []struct{ name, make string }{
		{"by a failed row", hold},
		{"by a row that waits", "UPDATE outbox_queue SET next_attempt_at = '2100-01-01'"},
		{"by a row that is dispatched", "UPDATE outbox_queue SET claim_taken_at = '2000-01-01', claim_worker = 'w'"},
		{"by a row that is unknown", "UPDATE outbox_queue SET unknown = true"},
	} {
		t.Run(test.name, func(t *testing.T) {
			execSQL(t, pool, "DELETE FROM outbox_hold")
			execSQL(t, pool, "UPDATE outbox_queue SET next_attempt_at = NULL, claim_taken_at = NULL, claim_worker = NULL, unknown = false WHERE order_key = 'a' AND (next_attempt_at IS NOT NULL OR claim_taken_at IS NOT NULL OR unknown)")
			if strings.HasPrefix(test.make, "UPDATE") {
				test.make += " WHERE outbox_id = (SELECT outbox_id FROM outbox_queue WHERE order_key = 'a' ORDER BY seq LIMIT 1)"
			}
			execSQL(t, pool, test.make)
			// An index of more rows is deeper by a page for each descent.
			if after := claimCost(t, pool, 10); after > 2*before {
				t.Errorf("a claim touches %d pages beside 200,000 rows that wait, and %d without them", after, before)
			}
		})
	}
}

// TestOneRowOfAKeyWhereRepetitionCouldDoHarm has ordered rows of a destination that
// is not idempotent: a crash must not cloud a row that was not started.
func TestOneRowOfAKeyWhereRepetitionCouldDoHarm(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := enqueueAll(t, pool, testMessage(DestinationPayments), testMessage(DestinationPayments), testMessage(DestinationPayments))
	for i, key := range []string{"a", "a", "b"} {
		execSQL(t, pool, "UPDATE outbox_queue SET order_key = $2 WHERE outbox_id = $1", ids[i].String(), key)
	}
	entries := claimAll(t, s, 10)
	wantIDs(t, entryIDs(entries), ids[0], ids[2])
	must(t, s.MarkCompleted(t.Context(), entries[0].Claim, ""))
	wantIDs(t, entryIDs(claimAll(t, s, 10)), ids[1])
}
