package outbox

import (
	"context"
	"crypto/md5"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// gate is the advisory lock at which the claims of gated connections wait, as
// long as somebody has it.
const gate = 4711

// gatedBeforeLocks is a connection of which one statement waits where it reads
// the clock: it has its snapshot then, and where a row that may expire is looked
// at, no row locked.
func gatedBeforeLocks(t *testing.T, pool *pgxpool.Pool, statement string) *pgx.Conn {
	t.Helper()
	execSQL(t, pool, "CREATE SCHEMA gated")
	execSQL(t, pool, fmt.Sprintf(`CREATE FUNCTION gated.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$
		BEGIN
			IF md5(current_query()) = '%x' THEN PERFORM pg_advisory_xact_lock_shared(%d); END IF;
			RETURN pg_catalog.clock_timestamp();
		END $$`, md5.Sum([]byte(statement)), gate))
	return connWith(t, pool, "search_path", "gated, pg_catalog, public")
}

// gatedBeforeWrites is a connection whose claims wait when they have locked
// their rows and are about to write.
func gatedBeforeWrites(t *testing.T, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	execSQL(t, pool, fmt.Sprintf(`CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF current_setting('application_name') = 'gated' THEN PERFORM pg_advisory_xact_lock_shared(%d); END IF;
			RETURN new;
		END $$`, gate))
	execSQL(t, pool, "CREATE TRIGGER gate BEFORE UPDATE ON outbox_queue FOR EACH ROW EXECUTE FUNCTION wait_at_gate()")
	return connWith(t, pool, "application_name", "gated")
}

func connWith(t *testing.T, pool *pgxpool.Pool, parameter, value string) *pgx.Conn {
	t.Helper()
	config := pool.Config().ConnConfig.Copy()
	config.RuntimeParams[parameter] = value
	conn, err := pgx.ConnectConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// gatedClaim starts a claim, does something while it waits at the gate, and
// returns what it claims then.
func gatedClaim(t *testing.T, pool *pgxpool.Pool, conn *pgx.Conn, meanwhile func()) []Entry {
	t.Helper()
	keeper, err := pool.Begin(t.Context())
	must(t, err)
	defer keeper.Rollback(context.WithoutCancel(t.Context()))
	execSQL(t, keeper, "SELECT pg_advisory_xact_lock($1)", gate)
	type result struct {
		entries []Entry
		err     error
	}
	done := make(chan result, 1)
	go func() {
		entries, err := New(conn, Options{}).ClaimDue(t.Context(), ClaimRequest{WorkerID: "gated", Limits: map[Destination]int{DestinationStock: 10}})
		done <- result{entries, err}
	}()
	waitUntilBlocked(t, pool, conn.PgConn().PID(), done)
	meanwhile()
	must(t, keeper.Rollback(t.Context()))
	r := <-done
	must(t, r.err)
	return r.entries
}

// TestClaimOfAnOldSnapshot changes a key after a claim has seen it and before it
// locks the head of it.
func TestClaimOfAnOldSnapshot(t *testing.T) {
	pool := testPool(t)
	other := New(pool, Options{})
	conn := gatedBeforeLocks(t, pool, sqlLockHeads)
	claimed := func(t *testing.T, limit int) []Entry {
		t.Helper()
		entries := claimStock(t, other, limit)
		if len(entries) == 0 {
			t.Fatal("the other worker got nothing")
		}
		return entries
	}
	for _, test := range []struct {
		name      string
		before    func(t *testing.T)
		meanwhile func(t *testing.T, late pgx.Tx, ids []OutboxID)
		want      string // that the claim gets
		next      string // that the next one gets
	}{
		{name: "nothing happened", meanwhile: func(*testing.T, pgx.Tx, []OutboxID) {}, want: "a1 a2 a3"},
		{name: "another worker holds the key", meanwhile: func(t *testing.T, _ pgx.Tx, _ []OutboxID) { claimed(t, 10) }},
		{name: "another worker holds the head alone", meanwhile: func(t *testing.T, _ pgx.Tx, _ []OutboxID) { claimed(t, 1) }},
		{name: "another worker had the key and gave it back", meanwhile: func(t *testing.T, _ pgx.Tx, _ []OutboxID) {
			entries := claimed(t, 10)
			must(t, other.GiveBack(t.Context(), entries[0].Claim, entries[1].Claim, entries[2].Claim))
		}, want: "a1 a2 a3"},
		{name: "another worker had the head alone and gave it back", meanwhile: func(t *testing.T, _ pgx.Tx, _ []OutboxID) {
			must(t, other.GiveBack(t.Context(), claimed(t, 1)[0].Claim))
		}, want: "a1 a2 a3"},
		{name: "another worker gave the head back and holds the rest", meanwhile: func(t *testing.T, _ pgx.Tx, _ []OutboxID) {
			must(t, other.GiveBack(t.Context(), claimed(t, 10)[0].Claim))
		}},
		{name: "another worker has the head to be retried and gave the rest back", meanwhile: func(t *testing.T, _ pgx.Tx, _ []OutboxID) {
			entries := claimed(t, 10)
			must(t, other.MarkRetry(t.Context(), entries[0].Claim, "busy", someDay))
			must(t, other.GiveBack(t.Context(), entries[1].Claim, entries[2].Claim))
		}},
		{name: "another worker delivered the head and holds the rest", meanwhile: func(t *testing.T, _ pgx.Tx, _ []OutboxID) {
			must(t, other.MarkCompleted(t.Context(), claimed(t, 10)[0].Claim, ""))
		}},
		{name: "another worker failed the head and gave the rest back", meanwhile: func(t *testing.T, _ pgx.Tx, _ []OutboxID) {
			entries := claimed(t, 10)
			must(t, other.MarkFailed(t.Context(), entries[0].Claim, "refused"))
			must(t, other.GiveBack(t.Context(), entries[1].Claim, entries[2].Claim))
		}},
		{name: "the head was failed and requeued while the rest is held", meanwhile: func(t *testing.T, _ pgx.Tx, _ []OutboxID) {
			head := claimed(t, 10)[0]
			must(t, other.MarkFailed(t.Context(), head.Claim, "refused"))
			must(t, other.Requeue(t.Context(), head.ID, "mended"))
		}},
		{name: "a row before the head was committed and another worker holds it", meanwhile: func(t *testing.T, late pgx.Tx, _ []OutboxID) {
			must(t, late.Commit(t.Context()))
			wantPlaces(t, claimStock(t, other, 1), "a0")
		}},
		{name: "a row before the head was committed and another worker holds all", meanwhile: func(t *testing.T, late pgx.Tx, _ []OutboxID) {
			must(t, late.Commit(t.Context()))
			wantPlaces(t, claimStock(t, other, 10), "a0 a1 a2 a3")
		}},
		{name: "the head was cancelled", meanwhile: func(t *testing.T, _ pgx.Tx, ids []OutboxID) {
			must(t, other.Cancel(t.Context(), ids[0], "not wanted"))
		}, next: "a2 a3"},
		{name: "the second row was cancelled", meanwhile: func(t *testing.T, _ pgx.Tx, ids []OutboxID) {
			must(t, other.Cancel(t.Context(), ids[1], "not wanted"))
		}, want: "a1 a3"},
		{name: "a lost worker has the head to be retried", before: func(t *testing.T) { claimStockAt(t, other, 1, longAgo) }, meanwhile: func(t *testing.T, _ pgx.Tx, ids []OutboxID) {
			must(t, other.MarkRetry(t.Context(), getRecord(t, other, ids[0]).Claim, "busy", someDay))
		}},
		{name: "a lost worker has delivered the head", before: func(t *testing.T) { claimStockAt(t, other, 1, longAgo) }, meanwhile: func(t *testing.T, _ pgx.Tx, ids []OutboxID) {
			must(t, other.MarkCompleted(t.Context(), getRecord(t, other, ids[0]).Claim, ""))
		}, next: "a2 a3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			removeRows(t, pool)
			late, err := pool.Begin(t.Context())
			must(t, err)
			defer late.Rollback(context.WithoutCancel(t.Context()))
			mustEnqueue(t, other.With(late), change("a", 0).ExpiresAt(laterDay))
			ids := enqueueAll(t, pool, lasting(changes("a", 3))...)
			if test.before != nil {
				test.before(t)
				_, err := other.ReleaseExpiredClaims(t.Context(), time.Time{})
				must(t, err)
			}
			entries := gatedClaim(t, pool, conn, func() { test.meanwhile(t, late, ids) })
			wantPlaces(t, entries, test.want)
			wantOneHolder(t, pool)
			wantPlaces(t, claimStock(t, other, 10), test.next)
			wantOneHolder(t, pool)
			wantSound(t, other)
		})
	}
}

// lasting makes messages that may expire, so that claims look at the clock.
func lasting(messages []Message) []Message {
	for i, m := range messages {
		messages[i] = m.ExpiresAt(laterDay)
	}
	return messages
}

// TestClaimThatHasLockedTheHead changes a key when a claim has locked its head,
// has seen the rows behind it and is about to lock these.
func TestClaimThatHasLockedTheHead(t *testing.T) {
	pool := testPool(t)
	other := New(impatientConn(t, pool.Config().ConnConfig), Options{})
	conn := gatedBeforeLocks(t, pool, sqlTakeRuns)
	for _, test := range []struct {
		name      string
		meanwhile func(t *testing.T, late pgx.Tx, ids []OutboxID)
		want      string // that the claim gets
		next      string // that the next one gets
	}{
		{name: "nothing happened", meanwhile: func(*testing.T, pgx.Tx, []OutboxID) {}, want: "a1 a2 a3"},
		{name: "another claim passes the key over", meanwhile: func(t *testing.T, _ pgx.Tx, _ []OutboxID) {
			wantPlaces(t, claimStock(t, other, 10), "")
		}, want: "a1 a2 a3"},
		{name: "another claim that sees an earlier row passes the key over", meanwhile: func(t *testing.T, late pgx.Tx, _ []OutboxID) {
			must(t, late.Commit(t.Context()))
			wantPlaces(t, claimStock(t, other, 1), "")
			wantPlaces(t, claimStock(t, other, 10), "")
		}, want: "a1 a2 a3"},
		{name: "the second row was cancelled", meanwhile: func(t *testing.T, _ pgx.Tx, ids []OutboxID) {
			must(t, other.Cancel(t.Context(), ids[1], "not wanted"))
		}, next: "a1 a3"},
		{name: "the last row has changed", meanwhile: func(t *testing.T, _ pgx.Tx, ids []OutboxID) {
			execSQL(t, pool, "UPDATE outbox_queue SET last_failure = 'changed' WHERE outbox_id = $1", ids[2].String())
		}, next: "a1 a2 a3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			removeRows(t, pool)
			late, err := pool.Begin(t.Context())
			must(t, err)
			defer late.Rollback(context.WithoutCancel(t.Context()))
			mustEnqueue(t, other.With(late), change("a", 0).ExpiresAt(laterDay))
			ids := enqueueAll(t, pool, lasting(changes("a", 3))...)
			wantPlaces(t, gatedClaim(t, pool, conn, func() { test.meanwhile(t, late, ids) }), test.want)
			wantOneHolder(t, pool)
			wantPlaces(t, claimStock(t, other, 10), test.next)
			wantOneHolder(t, pool)
			wantSound(t, other)
		})
	}
}

// TestWhileAClaimWrites has a claim that has locked its rows.
func TestWhileAClaimWrites(t *testing.T) {
	pool := testPool(t)
	conn := gatedBeforeWrites(t, pool)
	impatient := New(impatientConn(t, pool.Config().ConnConfig), Options{})
	t.Run("another claim passes the key over", func(t *testing.T) {
		removeRows(t, pool)
		enqueueAll(t, pool, append(changes("a", 3), changes("b", 12)...)...)
		wantPlaces(t, gatedClaim(t, pool, conn, func() { wantPlaces(t, claimStock(t, impatient, 10), "") }), "a1 a2 a3 b1 b2 b3 b4 b5 b6 b7")
	})
	t.Run("another claim takes the keys that it does not need", func(t *testing.T) {
		removeRows(t, pool)
		enqueueAll(t, pool, append(append(changes("a", 12), changes("b", 12)...), changes("c", 2)...)...)
		wantPlaces(t, gatedClaim(t, pool, conn, func() { wantPlaces(t, claimStock(t, impatient, 10), "c1 c2") }), "a1 a2 a3 a4 a5 a6 a7 a8 b1 b2")
	})
	t.Run("another claim that sees an earlier row passes the key over", func(t *testing.T) {
		removeRows(t, pool)
		late, err := pool.Begin(t.Context())
		must(t, err)
		defer late.Rollback(context.WithoutCancel(t.Context()))
		mustEnqueue(t, impatient.With(late), change("a", 0))
		enqueueAll(t, pool, changes("a", 3)...)
		wantPlaces(t, gatedClaim(t, pool, conn, func() {
			must(t, late.Commit(t.Context()))
			wantPlaces(t, claimStock(t, impatient, 1), "")
			wantPlaces(t, claimStock(t, impatient, 10), "")
		}), "a1 a2 a3")
		wantOneHolder(t, pool)
	})
	t.Run("a cancel waits and is refused", func(t *testing.T) {
		removeRows(t, pool)
		ids := enqueueAll(t, pool, changes("a", 3)...)
		canceller, err := pool.Acquire(t.Context())
		must(t, err)
		defer canceller.Release()
		cancelled := make(chan error, 1)
		wantPlaces(t, gatedClaim(t, pool, conn, func() {
			go func() { cancelled <- New(canceller, Options{}).Cancel(t.Context(), ids[1], "not wanted") }()
			waitUntilBlocked[error](t, pool, canceller.Conn().PgConn().PID(), nil)
		}), "a1 a2 a3")
		wantRefusal(t, <-cancelled, ErrConflict, ClaimError{ID: ids[1], Destination: DestinationStock, Status: StatusDispatching})
	})
}

// TestOrderedClaimWaitsForNobody has a row of a run that a transaction of
// somebody else's is about to change.
func TestOrderedClaimWaitsForNobody(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	impatient := New(impatientConn(t, pool.Config().ConnConfig), Options{})
	for i := range 3 {
		t.Run(fmt.Sprintf("row %d of the key", i+1), func(t *testing.T) {
			removeRows(t, pool)
			ids := enqueueAll(t, pool, append(changes("a", 3), change("b", 1))...)
			tx, err := pool.Begin(t.Context())
			must(t, err)
			defer tx.Rollback(context.WithoutCancel(t.Context()))
			must(t, s.With(tx).Cancel(t.Context(), ids[i], "not wanted"))
			wantPlaces(t, claimStock(t, impatient, 10), "b1")
			must(t, tx.Rollback(t.Context()))
			wantPlaces(t, claimStock(t, impatient, 10), "a1 a2 a3")
		})
	}
}

// shelfLog is what a test knows of the rows of the keys.
type shelfLog struct {
	mu    sync.Mutex
	ended map[string][]bool // of each key, the rows that no later one has to wait for
	moved map[OutboxID]bool // rows that were requeued at the end of their key
	holds map[string]int    // the worker that holds rows of the key, counted from 1
}

// taken notes that a worker got rows, and says what is wrong with that.
func (l *shelfLog) taken(worker int, entries []Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		if holder := l.holds[e.OrderKey]; holder != 0 && holder != worker {
			return fmt.Errorf("worker %d got rows of %q, which worker %d holds", worker, e.OrderKey, holder)
		}
		l.holds[e.OrderKey] = worker
	}
	return nil
}

// sends notes that a row is sent, and says what is wrong with that.
func (l *shelfLog) sends(e Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := int(e.Payload.(StockChange).Change)
	for i, ended := range l.ended[e.OrderKey][:n] {
		if !ended && !l.moved[e.ID] {
			return fmt.Errorf("row %d of %q is sent before row %d has ended", n, e.OrderKey, i)
		}
	}
	return nil
}

func (l *shelfLog) end(key string, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended[key][n] = true
}

func (l *shelfLog) letGo(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.holds, key)
}

// orderedWorker is one of several that do all that may happen to rows of keys.
type orderedWorker struct {
	number int
	store  *Store
	pool   *pgxpool.Pool
	random *rand.Rand
	log    *shelfLog
	person *sync.Mutex // of the one person who decides about failed rows
	calm   func() bool // everything is to come to its end
}

// run does a part of the work, and says whether rows are left.
func (w *orderedWorker) run(ctx context.Context) (left bool, err error) {
	request := ClaimRequest{WorkerID: fmt.Sprint(w.number), Limits: map[Destination]int{DestinationStock: 1 + w.random.IntN(25)}}
	entries, err := w.store.ClaimDue(ctx, request)
	if err != nil {
		return true, err
	}
	if err := w.log.taken(w.number, entries); err != nil {
		return true, err
	}
	if n, err := sharedKeys(ctx, w.pool); err != nil || n != 0 {
		return true, fmt.Errorf("%d keys are held under two claims, %v", n, err)
	}
	for len(entries) > 0 {
		run := entries[:1]
		for len(run) < len(entries) && entries[len(run)].OrderKey == run[0].OrderKey {
			run = entries[:len(run)+1]
		}
		entries = entries[len(run):]
		if err := w.deliver(ctx, run); err != nil {
			return true, err
		}
	}
	if err := w.ask(ctx, request); err != nil {
		return true, err
	}
	if err := w.decide(ctx); err != nil {
		return true, err
	}
	err = w.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox_queue) OR EXISTS (SELECT FROM outbox_hold)").Scan(&left)
	return left, err
}

// deliver sends the rows of a key one after the other, until one does not
// complete.
func (w *orderedWorker) deliver(ctx context.Context, run []Entry) error {
	key := run[0].OrderKey
	for i, e := range run {
		if err := w.log.sends(e); err != nil {
			return err
		}
		if len(run) == i+1 {
			w.log.letGo(key) // before the last settle, since the key is free with it
		}
		what := w.random.IntN(20)
		if w.calm() || what < 12 {
			w.log.end(key, e.Payload.(StockChange).Change)
			if err := w.store.MarkCompleted(ctx, e.Claim, ""); err != nil {
				return err
			}
			continue
		}
		var settlements []Settlement
		switch what {
		case 12, 13:
			settlements = append(settlements, e.Claim.Failed("refused"))
		case 14:
			settlements = append(settlements, e.Claim.Retry("busy", time.Time{}))
		case 15:
			settlements = append(settlements, e.Claim.Retry("busy", time.Now().Add(time.Millisecond)))
		case 16:
			settlements = append(settlements, e.Claim.Postpone("down", time.Time{}))
		case 17, 18:
			settlements = append(settlements, e.Claim.OutcomeUnknown("", time.Time{}))
		default:
			settlements = append(settlements, e.Claim.GiveBack())
		}
		for _, rest := range run[i+1:] {
			settlements = append(settlements, rest.Claim.GiveBack())
		}
		w.log.letGo(key)
		answers, err := w.store.Settle(ctx, settlements...)
		for _, answer := range answers {
			if answer != nil {
				return answer
			}
		}
		return err
	}
	return nil
}

// ask asks about rows whose outcome is unknown.
func (w *orderedWorker) ask(ctx context.Context, request ClaimRequest) error {
	entries, err := w.store.ClaimUnknown(ctx, request)
	for _, e := range entries {
		if err != nil {
			return err
		}
		switch w.random.IntN(4) {
		case 0:
			w.log.end(e.OrderKey, e.Payload.(StockChange).Change)
			err = w.store.MarkCompleted(ctx, e.Claim, "")
		case 1:
			err = w.store.MarkNeverArrived(ctx, e.Claim, "lost")
		case 2:
			err = w.store.MarkFailed(ctx, e.Claim, "refused")
		default:
			err = w.store.KeepUnknown(ctx, e.Claim, time.Time{})
		}
	}
	return err
}

// decide is the person: failed rows are requeued or skipped, some of the skipped
// are wanted again, and some rows that wait are cancelled.
func (w *orderedWorker) decide(ctx context.Context) error {
	w.person.Lock()
	defer w.person.Unlock()
	failed, err := w.store.List(ctx, Filter{Holding: true}, OutboxID{}, 10)
	if err != nil {
		return err
	}
	for _, r := range failed {
		if w.random.IntN(2) == 0 {
			if err := w.store.Requeue(ctx, r.ID, "mended"); err != nil {
				return err
			}
			continue
		}
		w.log.end(r.OrderKey, r.Payload.(StockChange).Change)
		if err := w.store.Skip(ctx, r.Destination, r.OrderKey); err != nil {
			return err
		}
		if w.random.IntN(2) == 0 {
			w.log.mu.Lock()
			w.log.moved[r.ID] = true
			w.log.mu.Unlock()
			if err := w.store.Requeue(ctx, r.ID, "mended late"); err != nil {
				return err
			}
		}
	}
	if _, err := w.store.ExpireDue(ctx, time.Time{}, w.random.IntN(3)); err != nil || w.random.IntN(3) > 0 {
		return err
	}
	// Of a row that a worker has meanwhile nothing is known here, so that one is
	// cancelled that no worker is to get.
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	var id, key string
	var n int64
	err = tx.QueryRow(ctx, `SELECT m.outbox_id::text, m.order_key, (m.payload->>'change')::bigint
		FROM outbox_queue q JOIN outbox_message m ON m.outbox_id = q.outbox_id
		WHERE q.claim_taken_at IS NULL AND NOT q.unknown ORDER BY random() LIMIT 1 FOR UPDATE OF q SKIP LOCKED`).Scan(&id, &key, &n)
	if err == pgx.ErrNoRows {
		return nil
	}
	if err != nil {
		return err
	}
	row, err := ParseOutboxID(id)
	if err != nil {
		return err
	}
	if err := w.store.With(tx).Cancel(ctx, row, "not wanted"); err != nil {
		return err
	}
	w.log.end(key, n)
	return tx.Commit(ctx)
}

// TestOrderUnderFourWorkers lets four workers do at random all that may happen
// to rows: no two may ever hold a key, no row may be sent before those ahead of
// it have ended, and none may be lost.
func TestOrderUnderFourWorkers(t *testing.T) {
	for _, test := range []struct{ keys, rows int }{{10, 60}, {1000, 3}} {
		t.Run(fmt.Sprintf("%d keys", test.keys), func(t *testing.T) {
			pool := testPool(t)
			log := &shelfLog{ended: make(map[string][]bool), moved: make(map[OutboxID]bool), holds: make(map[string]int)}
			random := rand.New(rand.NewPCG(1, uint64(test.keys)))
			var messages []Message
			for n := range test.rows {
				for k := range test.keys {
					m := change(fmt.Sprintf("k%d", k), n)
					expired := random.IntN(20) == 0
					if expired {
						m = m.ExpiresAt(longAgo)
					}
					log.ended[m.orderKey] = append(log.ended[m.orderKey], expired)
					messages = append(messages, m)
				}
			}
			ids := enqueueAll(t, pool, messages...)
			// After so many turns all is to come to its end, so that the test does.
			var turns atomic.Int64
			calm := func() bool { return turns.Load() > int64(test.keys*test.rows/4) }
			var person sync.Mutex
			failures := make(chan error, 4)
			for i := range 4 {
				w := &orderedWorker{
					number: i + 1, store: New(pool, Options{}), pool: pool, random: rand.New(rand.NewPCG(uint64(i), uint64(test.keys))),
					log: log, person: &person, calm: calm,
				}
				go func() {
					left, err := true, error(nil)
					for left && err == nil && t.Context().Err() == nil {
						turns.Add(1)
						left, err = w.run(t.Context())
					}
					failures <- err
				}()
			}
			for range 4 {
				if err := <-failures; err != nil {
					t.Error(err)
				}
			}
			if t.Failed() {
				return
			}
			wantSound(t, New(pool, Options{}))
			wantRows(t, pool, len(ids))
			for key, ended := range log.ended {
				for n, e := range ended {
					if !e {
						t.Errorf("row %d of %q has not ended", n, key)
					}
				}
			}
		})
	}
}
