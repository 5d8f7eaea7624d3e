package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// everyLimit is a limit for each destination.
func everyLimit(n int) map[Destination]int {
	limits := make(map[Destination]int)
	for _, p := range policies {
		limits[p.destination] = n
	}
	return limits
}

// TestManyClaimers has 16 workers divide 10,000 rows, half of them ready and
// half just come due, under plans that Postgres would pick only when it is
// wrong about the tables.
func TestManyClaimers(t *testing.T) {
	for _, limit := range []int{1, 50} {
		t.Run(fmt.Sprintf("limit %d", limit), func(t *testing.T) {
			const rows, claimers = 10_000, 16
			config := testPool(t).Config()
			config.MaxConns = claimers
			config.ConnConfig.RuntimeParams["enable_hashjoin"] = "off"
			config.ConnConfig.RuntimeParams["enable_mergejoin"] = "off"
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			// Postgres knows nothing of the rows that come now.
			for _, table := range []string{"outbox_message", "outbox_queue", "outbox_outcome"} {
				execSQL(t, pool, "ALTER TABLE "+table+" SET (autovacuum_enabled = off)")
				execSQL(t, pool, "ANALYZE "+table)
			}
			for range rows / 1000 {
				var messages []Message
				for i := range 1000 {
					m := testMessage(policies[i%len(policies)].destination).ExpiresAt(laterDay)
					if i%8 >= 4 {
						m = m.At(someDay)
					}
					messages = append(messages, m)
				}
				enqueueAll(t, pool, messages...)
			}
			s := New(pool, Options{})
			claimedBy := make(map[OutboxID]int)
			var lock sync.Mutex
			var all sync.WaitGroup
			for worker := range claimers {
				all.Add(1)
				go func() {
					defer all.Done()
					for {
						entries, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: fmt.Sprint("w", worker), Limits: everyLimit(limit), At: someDay})
						if err != nil {
							t.Error(err)
							return
						}
						if !slices.IsSortedFunc(entries, func(a, b Entry) int { return compareIDs(a.ID, b.ID) }) {
							t.Error("a claim is not sorted")
						}
						count := make(map[Destination]int)
						settlements := make([]Settlement, len(entries))
						lock.Lock()
						for i, e := range entries {
							if count[e.Destination]++; count[e.Destination] > limit {
								t.Errorf("a claim has more than %d rows of %s", limit, e.Destination)
							}
							if other, twice := claimedBy[e.ID]; twice || e.Attempt != 1 {
								t.Errorf("worker %d claimed %s after worker %d, attempt %d", worker, e.ID, other, e.Attempt)
							}
							claimedBy[e.ID] = worker
							settlements[i] = e.Claim.Failed("")
						}
						done := len(claimedBy) == rows
						lock.Unlock()
						answers, err := s.Settle(t.Context(), settlements...)
						if err := errors.Join(append(answers, err)...); err != nil {
							t.Error(err)
						}
						if done || t.Failed() {
							return
						}
					}
				}()
			}
			all.Wait()
			if failed := queryOne[int](t, pool, "SELECT count(*) FROM outbox_outcome WHERE failed AND attempt_count = 1"); failed != rows {
				t.Errorf("%d rows have ended, want %d", failed, rows)
			}
			wantSound(t, s)
		})
	}
}

// TestClaimDueIsNeverOverItsLimit has every plan that Postgres could pick for
// the update that claims.
func TestClaimDueIsNeverOverItsLimit(t *testing.T) {
	pool := testPool(t)
	// Postgres takes the queue for all but empty: then it may look for the rows
	// to claim again and again, once for each row of the queue.
	fillQueue(t, pool, 5000)
	execSQL(t, pool, "DELETE FROM outbox_queue WHERE seq > 2")
	execSQL(t, pool, "VACUUM (ANALYZE, TRUNCATE off) outbox_queue")
	for _, off := range []string{
		"", "enable_hashjoin enable_mergejoin", "enable_hashjoin enable_mergejoin enable_hashagg enable_sort enable_material enable_memoize",
		"enable_nestloop", "enable_indexscan enable_bitmapscan", "enable_seqscan",
	} {
		for _, plans := range []string{"force_custom_plan", "force_generic_plan"} {
			t.Run(fmt.Sprintf("%s, %s off", plans, off), func(t *testing.T) {
				removeRows(t, pool)
				ids := fillQueue(t, pool, 300)
				pool := poolWith(t, pool, func(c *pgx.ConnConfig) {
					c.RuntimeParams["plan_cache_mode"] = plans
					for _, name := range strings.Fields(off) {
						c.RuntimeParams[name] = "off"
					}
				})
				s := New(pool, Options{})
				for n := 0; n < len(ids); n += 100 {
					wantIDs(t, entryIDs(claimAll(t, s, 100)), ids[n:n+100]...)
				}
			})
		}
	}
}

// TestSettlesAgainstASweep lets the leases of rows run out while their workers
// settle them: each row ends once, and a delivery that was made is accepted
// unless the row has failed before it.
func TestSettlesAgainstASweep(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	const rows = 400
	var messages []Message
	for i := range rows {
		messages = append(messages, testMessage([]Destination{DestinationMailer, DestinationPayments}[i%2]))
	}
	enqueueAll(t, pool, messages...)
	entries, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: everyLimit(rows), At: longAgo})
	if err != nil || len(entries) != rows {
		t.Fatalf("claimed %d rows, %v", len(entries), err)
	}
	execSQL(t, pool, "UPDATE outbox_queue SET attempt_count = $1 WHERE destination = 'mailer' AND get_byte(uuid_send(outbox_id), 7) % 2 = 0", mailerPolicy.maxAttempts)
	answers := make([]error, rows)
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for i := w; i < rows; i += 8 {
				answers[i] = s.MarkCompleted(t.Context(), entries[i].Claim, "")
			}
		}()
	}
	settled := make(chan struct{})
	go func() { workers.Wait(); close(settled) }()
	for sweeping := true; sweeping; {
		if _, err := s.ReleaseExpiredClaims(t.Context(), time.Time{}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-settled:
			sweeping = false
		default:
		}
	}
	for i, e := range entries {
		r := getRecord(t, s, e.ID)
		switch {
		case answers[i] == nil && r.Status == StatusCompleted:
		case errors.Is(answers[i], ErrConflict) && r.Status == StatusFailed && strings.HasPrefix(r.LastFailure, "abandoned by w"):
		default:
			t.Errorf("row %d was answered %v and is %s: %s", i, answers[i], r.Status, r.LastFailure)
		}
	}
	wantSound(t, s)
}

// interleaving is two calls on one row: the first has changed the row and not
// committed when the second comes.
type interleaving struct {
	name    string
	prepare func(c *interleaved)
	first   func(c *interleaved, s *Store) error
	second  func(c *interleaved, s *Store) error
	passes  bool // the second does not wait
	commit  func(c *interleaved, err error)
	abort   func(c *interleaved, err error) // nil = as if the first had not been
}

type interleaved struct {
	*testing.T
	store *Store
	entry Entry
}

func (c *interleaved) want(err, want error, status Status) {
	c.Helper()
	if !errors.Is(err, want) || want == nil && err != nil {
		c.Errorf("the second call was answered %v, want %v", err, want)
	}
	record, err := c.store.Get(c.Context(), c.entry.ID)
	if err != nil && !errors.Is(err, ErrNotFound) {
		c.Fatal(err)
	}
	if record.Status != status {
		c.Errorf("the row is %q, want %q", record.Status, status)
	}
	wantSound(c.T, c.store)
}

func claimedLongAgo(c *interleaved) {
	ids := enqueueAll(c.T, c.store.backend.(*postgres).db.(*pgxpool.Pool), testMessage(DestinationMailer))
	entries, err := c.store.ClaimDue(c.Context(), ClaimRequest{WorkerID: "w", Limits: everyLimit(1), At: longAgo})
	if err != nil || len(entries) != 1 || entries[0].ID != ids[0] {
		c.Fatalf("claimed %v, %v", entries, err)
	}
	c.entry = entries[0]
}

func releasedBefore(c *interleaved) {
	claimedLongAgo(c)
	if err := c.store.GiveBack(c.Context(), c.entry.Claim); err != nil {
		c.Fatal(err)
	}
}

func failedBefore(c *interleaved) {
	claimedLongAgo(c)
	if err := c.store.MarkFailed(c.Context(), c.entry.Claim, "refused"); err != nil {
		c.Fatal(err)
	}
}

func complete(c *interleaved, s *Store) error { return s.MarkCompleted(c.Context(), c.entry.Claim, "") }
func fail(c *interleaved, s *Store) error     { return s.MarkFailed(c.Context(), c.entry.Claim, "second") }
func retry(c *interleaved, s *Store) error {
	return s.MarkRetry(c.Context(), c.entry.Claim, "busy", time.Time{})
}
func giveBack(c *interleaved, s *Store) error { return s.GiveBack(c.Context(), c.entry.Claim) }
func cancel(c *interleaved, s *Store) error   { return s.Cancel(c.Context(), c.entry.ID, "") }
func requeue(c *interleaved, s *Store) error  { return s.Requeue(c.Context(), c.entry.ID, "") }
func park(c *interleaved, s *Store) error {
	return s.MarkOutcomeUnknown(c.Context(), c.entry.Claim, "", time.Time{})
}

// release and the others that follow must change the row, or find none to change.
func release(c *interleaved, s *Store) error {
	ids, err := s.ReleaseExpiredClaims(c.Context(), time.Time{})
	return orNone(len(ids), err)
}

func extend(c *interleaved, s *Store) error {
	held, err := s.ExtendClaims(c.Context(), time.Time{}, c.entry.Claim)
	return orNone(len(held), err)
}

func reclaim(c *interleaved, s *Store) error {
	entries, err := s.ClaimDue(c.Context(), ClaimRequest{WorkerID: "other", Limits: everyLimit(1)})
	return orNone(len(entries), err)
}

func releaseAndReclaim(c *interleaved, s *Store) error {
	return errors.Join(release(c, s), reclaim(c, s))
}

func purge(c *interleaved, s *Store) error {
	n, err := s.Purge(c.Context(), laterDay, 10)
	return orNone(n, err)
}

var errNone = errors.New("it changed no row")

func orNone(n int, err error) error {
	if err == nil && n == 0 {
		return errNone
	}
	return err
}

func wants(want error, status Status) func(*interleaved, error) {
	return func(c *interleaved, err error) { c.Helper(); c.want(err, want, status) }
}

var interleavings = []interleaving{
	{name: "a completion after a sweep", prepare: claimedLongAgo, first: release, second: complete, commit: wants(nil, StatusCompleted)},
	{name: "a completion after another claim", prepare: claimedLongAgo, first: releaseAndReclaim, second: complete,
		commit: wants(ErrConflict, StatusDispatching), abort: wants(nil, StatusCompleted)},
	{name: "a completion after a completion", prepare: claimedLongAgo, first: complete, second: complete, commit: wants(nil, StatusCompleted)},
	{name: "a completion after a failure", prepare: claimedLongAgo, first: fail, second: complete,
		commit: wants(ErrConflict, StatusFailed), abort: wants(nil, StatusCompleted)},
	{name: "a completion after an unknown outcome", prepare: claimedLongAgo, first: park, second: complete, commit: wants(nil, StatusCompleted)},
	{name: "a failure after a failure", prepare: claimedLongAgo, first: func(c *interleaved, s *Store) error {
		return s.MarkFailed(c.Context(), c.entry.Claim, "first")
	}, second: fail, commit: func(c *interleaved, err error) {
		c.want(err, nil, StatusFailed)
		if r := getRecord(c, c.store, c.entry.ID); r.LastFailure != "second" {
			c.Errorf("the reason is %q, want the latest", r.LastFailure)
		}
	}},
	{name: "a retry after a completion", prepare: claimedLongAgo, first: complete, second: retry,
		commit: wants(ErrConflict, StatusCompleted), abort: wants(nil, StatusPending)},
	{name: "a return after a return", prepare: claimedLongAgo, first: giveBack, second: giveBack, commit: wants(nil, StatusPending)},
	{name: "a return after a completion", prepare: claimedLongAgo, first: complete, second: giveBack,
		commit: wants(ErrConflict, StatusCompleted), abort: wants(nil, StatusPending)},
	{name: "an extension after a completion", prepare: claimedLongAgo, first: complete, second: extend,
		commit: wants(errNone, StatusCompleted), abort: wants(nil, StatusDispatching)},
	{name: "an extension after a sweep", prepare: claimedLongAgo, first: release, second: extend,
		commit: wants(errNone, StatusPending), abort: wants(nil, StatusDispatching)},
	{name: "a sweep after an extension", prepare: claimedLongAgo, first: extend, second: release, passes: true, commit: wants(errNone, StatusDispatching)},
	{name: "a sweep after a completion", prepare: claimedLongAgo, first: complete, second: release, passes: true, commit: wants(errNone, StatusCompleted)},
	{name: "a claim after a cancellation", prepare: releasedBefore, first: cancel, second: reclaim, passes: true, commit: wants(errNone, StatusFailed)},
	{name: "a claim after a claim", prepare: releasedBefore, first: reclaim, second: reclaim, passes: true, commit: wants(errNone, StatusDispatching)},
	{name: "a cancellation after a claim", prepare: releasedBefore, first: reclaim, second: cancel,
		commit: wants(ErrConflict, StatusDispatching), abort: wants(nil, StatusFailed)},
	{name: "a cancellation after a cancellation", prepare: releasedBefore, first: cancel, second: cancel,
		commit: wants(ErrConflict, StatusFailed), abort: wants(nil, StatusFailed)},
	{name: "a requeue after a requeue", prepare: failedBefore, first: requeue, second: requeue,
		commit: wants(ErrConflict, StatusPending), abort: wants(nil, StatusPending)},
	{name: "a requeue after a purge", prepare: failedBefore, first: purge, second: requeue,
		commit: wants(ErrNotFound, ""), abort: wants(nil, StatusPending)},
	{name: "a purge after a requeue", prepare: failedBefore, first: requeue, second: purge, passes: true, commit: wants(errNone, StatusPending)},
	{name: "a failure after a requeue", prepare: failedBefore, first: requeue, second: fail,
		commit: wants(ErrConflict, StatusPending), abort: wants(nil, StatusFailed)},
}

// TestInterleavings has two calls meet on one row in every order that matters,
// by two connections that take their steps in turn.
func TestInterleavings(t *testing.T) {
	pool := testPool(t)
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, commit := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, the first commits %t", level, commit), func(t *testing.T) {
				for _, test := range interleavings {
					t.Run(test.name, func(t *testing.T) { interleave(t, pool, test, level, commit) })
				}
			})
		}
	}
}

func interleave(t *testing.T, pool *pgxpool.Pool, test interleaving, level pgx.TxIsoLevel, commit bool) {
	removeRows(t, pool)
	c := &interleaved{T: t, store: New(pool, Options{})}
	test.prepare(c)
	first := openTx(t, pool)
	if err := test.first(c, c.store.With(first).Store); err != nil {
		t.Fatal(err)
	}
	second, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Rollback(context.WithoutCancel(t.Context()))
	pid := second.Conn().PgConn().PID()
	execSQL(t, second, "SELECT 1 FROM outbox_queue LIMIT 1") // a strict transaction sees no more from here
	if test.passes {
		execSQL(t, second, "SET LOCAL lock_timeout = '1s'") // ends a call that waits all the same
	}
	result := make(chan error, 1)
	go func() { result <- test.second(c, c.store.With(second).Store) }()
	var answer error
	if test.passes {
		answer = <-result
		commitTx(t, second)
	} else {
		waitUntilBlocked(t, pool, pid, result)
	}
	if commit {
		commitTx(t, first)
	} else if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if test.passes {
		if commit {
			test.commit(c, answer)
		} else if !errors.Is(answer, errNone) {
			t.Errorf("the second call was answered %v", answer)
		}
		wantSound(t, c.store)
		return
	}
	answer = <-result
	var failure *pgconn.PgError
	if commit && level != pgx.ReadCommitted {
		// The row has changed since the transaction's snapshot.
		if !errors.As(answer, &failure) || failure.Code != "40001" {
			t.Errorf("the second call was answered %v, want a serialization failure", answer)
		}
		wantSound(t, c.store)
		return
	}
	if !errors.As(answer, &failure) {
		commitTx(t, second)
	}
	switch {
	case commit || test.abort == nil:
		test.commit(c, answer)
	default:
		test.abort(c, answer)
	}
}

func commitTx(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}
