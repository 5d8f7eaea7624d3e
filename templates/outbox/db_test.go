package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

// wrapper is a DB that shows nothing of what it stands on.
type wrapper struct{ DB }

// dbs are the forms of DB. Each is opened on the pool's database, in its mode.
var dbs = []struct {
	name     string
	callerTx bool // what it does is not committed
	open     func(t *testing.T, pool *pgxpool.Pool) DB
}{
	{"pool", false, func(_ *testing.T, pool *pgxpool.Pool) DB { return pool }},
	{"conn", false, func(t *testing.T, pool *pgxpool.Pool) DB { return openConn(t, pool) }},
	{"conn of a pool", false, func(t *testing.T, pool *pgxpool.Pool) DB { return acquire(t, pool) }},
	{"wrapper of a pool", false, func(_ *testing.T, pool *pgxpool.Pool) DB { return wrapper{pool} }},
	{"wrapper of a conn", false, func(t *testing.T, pool *pgxpool.Pool) DB { return wrapper{openConn(t, pool)} }},
	{"tx", true, func(t *testing.T, pool *pgxpool.Pool) DB { return openTx(t, openConn(t, pool)) }},
	{"tx of a pool", true, func(t *testing.T, pool *pgxpool.Pool) DB { return openTx(t, pool) }},
	{"savepoint", true, func(t *testing.T, pool *pgxpool.Pool) DB { return openTx(t, openTx(t, pool)) }},
	{"wrapper of a tx", true, func(t *testing.T, pool *pgxpool.Pool) DB { return struct{ pgx.Tx }{openTx(t, pool)} }},
}

func openConn(t *testing.T, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func acquire(t *testing.T, pool *pgxpool.Pool) *pgxpool.Conn {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	return conn
}

func openTx(t *testing.T, db interface {
	Begin(context.Context) (pgx.Tx, error)
}) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// poolWith is a pool on the same database with another configuration of its
// connections.
func poolWith(t *testing.T, pool *pgxpool.Pool, change func(*pgx.ConnConfig)) *pgxpool.Pool {
	t.Helper()
	config := pool.Config().Copy()
	change(config.ConnConfig)
	other, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	return other
}

// TestEveryOperationOverEveryDB runs every operation, in each mode of pgx, over
// everything that a store can stand on.
func TestEveryOperationOverEveryDB(t *testing.T) {
	pool := testPool(t)
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			pool := poolWith(t, pool, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
			for _, over := range dbs {
				t.Run(over.name, func(t *testing.T) {
					db := over.open(t, pool)
					everyOperation(t, db)
					if over.callerTx {
						wantRows(t, pool, 0) // seen from outside the transaction
					}
					removeRows(t, db)
				})
			}
		})
	}
}

// everyOperation runs every operation once and checks what became of the rows.
func everyOperation(t *testing.T, db DB) {
	ctx := t.Context()
	s := New(db, Options{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	payload := orderConfirmation()
	payload.Lines[0].Sku = `quote ' " \ {NULL},()` // what arrays of text must escape
	raw, err := payload.MarshalJSON()
	must(err)
	messages := []Message{
		ToMailer(payload).WithHeader("trace", `{"a": "b\c"}`).WithKey(`{"k",NULL}\`), testMessage(DestinationPayments), testMessage(DestinationMetrics),
		testMessage(DestinationLedger).ExpiresAt(someDay), testMessage(DestinationLedger), testMessage(DestinationLedger), testMessage(DestinationLedger),
	}
	var ids []OutboxID
	must(pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		box := s.With(tx)
		for _, call := range []struct {
			messages []Message
			again    bool
		}{{messages[:1], false}, {messages[1:], false}, {messages[:1], true}, {messages, true}} {
			placed, err := box.Enqueue(ctx, testCommand, call.messages...)
			if err != nil {
				return err
			}
			for i, p := range placed {
				if p.Duplicate != call.again {
					t.Errorf("message %d: duplicate %t, want %t", i, p.Duplicate, call.again)
				}
				if !call.again {
					ids = append(ids, p.ID)
				}
			}
		}
		_, err := box.Enqueue(ctx, testCommand, testMessage(DestinationLedger), ToMailer(orderConfirmation()).WithKey(`{"k",NULL}\`))
		if !errors.Is(err, ErrKeyReused) {
			t.Errorf("the error is %v, want ErrKeyReused", err)
		}
		return nil
	}))

	entries := claimAll(t, s, 10)
	wantIDs(t, entryIDs(entries), ids...)
	mail := entries[0]
	if string(mail.Raw) != string(raw) || mail.Headers["trace"] != `{"a": "b\c"}` || mail.IdempotencyKey != `{"k",NULL}\` || mail.Columns.TenantID != testCommand.columns.TenantID || *mail.Columns.Region != "eu" {
		t.Errorf("claimed %s, headers %v, key %q, columns %+v", mail.Raw, mail.Headers, mail.IdempotencyKey, mail.Columns)
	}
	held, err := s.ExtendClaims(ctx, time.Time{}, mail.Claim, entries[1].Claim)
	must(err)
	if len(held) != 2 {
		t.Errorf("extended %v", held)
	}
	must(s.MarkRetry(ctx, mail.Claim, `it's "busy"\`, someDay))
	must(s.Reschedule(ctx, mail.Claim, laterDay))
	if r := getRecord(t, s, mail.ID); r.Status != StatusPending || r.LastFailure != `it's "busy"\` || !r.NextAttemptAt.Equal(laterDay) || r.Attempt != 1 {
		t.Errorf("rescheduled: %v at %v after %q", r, r.NextAttemptAt, r.LastFailure)
	}
	must(s.Cancel(ctx, mail.ID, "not wanted"))
	must(s.Requeue(ctx, mail.ID, "wanted after all"))

	payment := entries[1]
	must(s.MarkOutcomeUnknown(ctx, payment.Claim, "ref-1", longAgo))
	unknown, err := s.ClaimUnknown(ctx, ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationPayments: 5}})
	must(err)
	wantIDs(t, entryIDs(unknown), payment.ID)
	must(s.KeepUnknown(ctx, unknown[0].Claim, someDay))
	must(s.MarkCompleted(ctx, unknown[0].Claim, "ref-2"))
	must(s.MarkCompleted(ctx, unknown[0].Claim, "ref-3"))
	if r := getRecord(t, s, payment.ID); r.Status != StatusCompleted || r.RemoteRef != "ref-2" {
		t.Errorf("completed: %v as %q", r, r.RemoteRef)
	}

	must(s.MarkCompleted(ctx, entries[2].Claim, ""))
	if err := s.MarkCompleted(ctx, entries[2].Claim, ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("completed again, where completed rows are not kept: %v", err)
	}
	must(s.Postpone(ctx, entries[3].Claim, "down", time.Time{}))
	expired, err := s.ExpireDue(ctx, laterDay, 10)
	must(err)
	wantIDs(t, expired, entries[3].ID)
	must(s.GiveBack(ctx, entries[4].Claim))
	must(s.MarkFailed(ctx, entries[5].Claim, "refused"))
	if err := s.MarkRetry(ctx, entries[5].Claim, "", time.Time{}); !errors.Is(err, ErrConflict) {
		t.Errorf("a failed row was retried: %v", err)
	}
	released, err := s.ReleaseExpiredClaims(ctx, laterDay)
	must(err)
	wantIDs(t, released, entries[6].ID)

	stats, err := s.Stats(ctx)
	must(err)
	want := []DestinationStats{
		{Destination: DestinationLedger, Pending: 2, Due: 2, OldestPending: ids[4].createdAt(), Failed: 2},
		{Destination: DestinationMailer, Pending: 1, Due: 1, OldestPending: ids[0].createdAt()},
		{Destination: DestinationMetrics}, {Destination: DestinationPayments},
	}
	if !slices.Equal(stats.Destinations, want) {
		t.Errorf("the stats are %+v, want %+v", stats.Destinations, want)
	}
	records, err := s.ListForCommand(ctx, testCommand.id)
	must(err)
	var statuses []string
	for _, r := range records {
		statuses = append(statuses, string(r.Status))
	}
	if got, want := strings.Join(statuses, " "), "pending completed failed pending failed pending"; got != want {
		t.Errorf("the rows are %s, want %s", got, want)
	}
	removed, err := s.Purge(ctx, laterDay.AddDate(1, 0, 0), 10)
	must(err)
	if removed != 1 {
		t.Errorf("purged %d rows, want 1", removed)
	}
	wantSound(t, s)
}

// wantIdle fails the test when the database cannot be used, or is left within
// a transaction.
func wantIdle(t *testing.T, db DB) {
	t.Helper()
	// Outside a transaction each statement has a time of its own.
	first := queryOne[time.Time](t, db, "SELECT now()")
	if queryOne[time.Time](t, db, "SELECT now()").Equal(first) {
		t.Error("the connection was left within a transaction")
	}
}

// TestFailingCalls has statements fail in the course of a call. What was not
// the caller's transaction must be over then.
func TestFailingCalls(t *testing.T) {
	pool := testPool(t)
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			pool := poolWith(t, pool, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
			for _, over := range dbs {
				if over.callerTx {
					continue
				}
				t.Run(over.name, func(t *testing.T) {
					removeRows(t, pool)
					entry := claimOne(t, pool, testMessage(DestinationMailer))
					db := over.open(t, pool)
					s := New(db, Options{})
					// What GiveBack would do breaks a constraint.
					execSQL(t, pool, "UPDATE outbox_queue SET attempt_count = 0")
					var failure *pgconn.PgError
					if err := s.GiveBack(t.Context(), entry.Claim); !errors.As(err, &failure) || failure.Code != "23514" {
						t.Errorf("the error is %v, want that of the constraint", err)
					}
					wantIdle(t, db)
					// A statement that cannot even be prepared.
					execSQL(t, pool, "ALTER TABLE outbox_queue RENAME TO elsewhere")
					if err := s.Cancel(t.Context(), entry.ID, ""); !errors.As(err, &failure) || failure.Code != "42P01" {
						t.Errorf("the error is %v, want that of the missing table", err)
					}
					execSQL(t, pool, "ALTER TABLE elsewhere RENAME TO outbox_queue")
					wantIdle(t, db)
					if err := s.MarkCompleted(t.Context(), entry.Claim, ""); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

// TestCancelledCalls gives a call up while it waits for a lock.
func TestCancelledCalls(t *testing.T) {
	pool := testPool(t)
	entry := claimOne(t, pool, testMessage(DestinationMailer))
	locker := openTx(t, pool)
	execSQL(t, locker, "SELECT 1 FROM outbox_queue FOR UPDATE")
	conn := openConn(t, pool)
	for name, db := range map[string]DB{"pool": pool, "conn": conn} {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- New(db, Options{}).MarkCompleted(ctx, entry.Claim, "") }()
		for queryOne[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE $1::integer = ANY (pg_blocking_pids(pid))", locker.Conn().PgConn().PID()) == 0 {
			if len(result) > 0 {
				t.Fatalf("the call did not wait: it was answered %v", <-result)
			}
		}
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if !conn.IsClosed() {
		t.Error("the connection whose state is not known is open")
	}
	if err := locker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := New(pool, Options{}).MarkCompleted(t.Context(), entry.Claim, ""); err != nil {
		t.Error(err)
	}
}

// cancelAtEnd is a tracer that gives a call up as soon as its batch has ended.
type cancelAtEnd struct{ cancel context.CancelFunc }

func (c *cancelAtEnd) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (c *cancelAtEnd) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *cancelAtEnd) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (c *cancelAtEnd) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *cancelAtEnd) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     { c.cancel() }

// TestCancelledRollback gives a call up between a statement that fails and the
// end of its transaction, which must not become the next call's.
func TestCancelledRollback(t *testing.T) {
	pool := testPool(t)
	entry := claimOne(t, pool, testMessage(DestinationMailer))
	execSQL(t, pool, "UPDATE outbox_queue SET attempt_count = 0") // so that GiveBack breaks a constraint
	ctx, cancel := context.WithCancel(t.Context())
	conn := openConn(t, poolWith(t, pool, func(c *pgx.ConnConfig) { c.Tracer = &cancelAtEnd{cancel} }))
	if err := New(conn, Options{}).GiveBack(ctx, entry.Claim); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if !conn.IsClosed() {
		t.Error("the connection was left within a transaction that has failed")
	}
}

// TestOwnTransactions looks, from a trigger, at the transactions that the store
// works in.
func TestOwnTransactions(t *testing.T) {
	pool := testPool(t)
	execSQL(t, pool, "CREATE TABLE seen (level text, jit text)")
	execSQL(t, pool, `CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO seen VALUES (current_setting('transaction_isolation'), current_setting('jit')); RETURN NEW; END $$`)
	execSQL(t, pool, "CREATE TRIGGER look BEFORE UPDATE ON outbox_queue FOR EACH ROW EXECUTE FUNCTION look()")
	strict := poolWith(t, pool, func(c *pgx.ConnConfig) {
		c.RuntimeParams["default_transaction_isolation"] = "serializable"
		c.RuntimeParams["jit"] = "on"
	})
	readOnly := poolWith(t, strict, func(c *pgx.ConnConfig) { c.RuntimeParams["default_transaction_read_only"] = "on" })
	begun := dbs[0]
	begun.name, begun.callerTx = "conn on which the caller has begun", true
	begun.open = func(t *testing.T, pool *pgxpool.Pool) DB {
		conn := openConn(t, pool)
		execSQL(t, conn, "BEGIN")
		return conn
	}
	for _, over := range append(dbs[:len(dbs):len(dbs)], begun) {
		t.Run(over.name, func(t *testing.T) {
			removeRows(t, pool)
			execSQL(t, pool, "DELETE FROM seen")
			enqueueAll(t, pool, testMessage(DestinationMailer))
			db, want := over.open(t, readOnly), "read committed, jit off"
			if over.callerTx {
				db, want = over.open(t, strict), "serializable, jit on"
			}
			claimAll(t, New(db, Options{}), 1)
			if got := queryOne[string](t, db, "SELECT level || ', jit ' || jit FROM seen"); got != want {
				t.Errorf("claimed in %s, want %s", got, want)
			}
			if jit := queryOne[string](t, db, "SHOW jit"); jit != "on" {
				t.Errorf("afterwards jit is %s", jit)
			}
		})
	}
}

func TestMigrate(t *testing.T) {
	t.Run("again changes nothing", func(t *testing.T) {
		pool := testPool(t)
		entry := claimOne(t, pool, testMessage(DestinationMailer))
		if err := Migrate(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		if r := getRecord(t, New(pool, Options{}), entry.ID); r.Status != StatusDispatching {
			t.Errorf("the row is %s", r.Status)
		}
	})
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run("ten at once, "+level, func(t *testing.T) {
			pool := poolWith(t, pgtest.Pool(t), func(c *pgx.ConnConfig) { c.RuntimeParams["default_transaction_isolation"] = level })
			results := make(chan error, 10)
			for range cap(results) {
				go func() { results <- Migrate(t.Context(), pool) }()
			}
			for range cap(results) {
				if err := <-results; err != nil {
					t.Error(err)
				}
			}
			if steps := queryOne[int](t, pool, "SELECT count(*) FROM outbox_migration"); steps != len(migrationSteps) {
				t.Errorf("%d steps were taken, want %d", steps, len(migrationSteps))
			}
		})
	}
	for _, mode := range execModes {
		t.Run("in the mode "+mode.String(), func(t *testing.T) {
			pool := poolWith(t, pgtest.Pool(t), func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
			if err := Migrate(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			wantSound(t, New(pool, Options{}))
		})
	}
	t.Run("over a transaction of the caller's", func(t *testing.T) {
		pool := pgtest.Pool(t)
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.Serializable})
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		if err := Migrate(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if queryOne[bool](t, pool, "SELECT to_regclass('outbox_message') IS NOT NULL") {
			t.Error("the tables outlived the transaction that made them")
		}
	})
	t.Run("refuses tables of another tool", func(t *testing.T) {
		pool := testPool(t)
		execSQL(t, pool, "DROP TABLE outbox_migration")
		if err := Migrate(t.Context(), pool); err == nil || !strings.Contains(err.Error(), "made by another tool") {
			t.Errorf("the error is %v", err)
		}
		wantIdle(t, pool)
	})
	t.Run("leaves tables of a newer version", func(t *testing.T) {
		pool := testPool(t)
		execSQL(t, pool, fmt.Sprintf("INSERT INTO outbox_migration (version) VALUES (%d)", len(migrationSteps)+1))
		if err := Migrate(t.Context(), pool); err != nil {
			t.Error(err)
		}
	})
	t.Run("a step that fails leaves nothing", func(t *testing.T) {
		pool := pgtest.Pool(t)
		execSQL(t, pool, "CREATE TABLE outbox_queue (mine integer)")
		if err := Migrate(t.Context(), pool); err == nil || !strings.Contains(err.Error(), "step 1") {
			t.Errorf("the error is %v", err)
		}
		if queryOne[bool](t, pool, "SELECT to_regclass('outbox_message') IS NOT NULL OR to_regclass('outbox_migration') IS NOT NULL") {
			t.Error("half of the tables were made")
		}
	})
}
