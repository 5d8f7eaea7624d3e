package outbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

func inMode(mode pgx.QueryExecMode) func(*pgx.ConnConfig) {
	return func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode }
}

// dbSubject is Postgres with a Store over something else than a pool. The test
// itself looks through the pool.
type dbSubject struct {
	postgresSubject
	db DB
}

func (s *dbSubject) open(t testing.TB) *Store {
	removeRows(t, s.pool)
	return New(s.db, Options{})
}

func (s *dbSubject) begin(t testing.TB) pgx.Tx {
	tx, err := s.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// txSubject has a transaction for each case, which is rolled back.
type txSubject struct {
	dbSubject
	options pgx.TxOptions
}

func (s *txSubject) open(t testing.TB) *Store {
	tx, err := s.pool.BeginTx(t.Context(), s.options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.WithoutCancel(t.Context())) })
	s.db = tx
	return New(tx, Options{})
}

func (s *txSubject) now(t testing.TB) time.Time {
	return queryOne[time.Time](t, s.db, "SELECT clock_timestamp()")
}

func (s *txSubject) statuses(t testing.TB, id OutboxID) []Status {
	rows, err := s.db.Query(t.Context(), "SELECT status FROM outbox WHERE outbox_id = $1", id.String())
	if err != nil {
		t.Fatal(err)
	}
	statuses, err := pgx.CollectRows(rows, pgx.RowTo[Status])
	if err != nil {
		t.Fatal(err)
	}
	return statuses
}

// testSample walks the table of semantics for one state of each condition, of an
// ordered destination where no other has it: what is proved of all of them need
// not be proved anew of each way to the database.
func testSample(t *testing.T, subject conformanceSubject) {
	seen := make(map[condition]bool)
	for _, d := range []Destination{DestinationPayments, DestinationStock} {
		for _, state := range conformanceStates {
			if seen[state.is] || state.only != nil && !state.only(policyOf(d)) {
				continue
			}
			seen[state.is] = true
			t.Run(state.name, func(t *testing.T) {
				for _, operation := range conformanceOperations {
					which := ""
					if operation.fenced {
						which = theSame
					}
					if which == "" || state.has(which) {
						t.Run(operation.name, func(t *testing.T) { testCell(t, subject, d, state, operation, which) })
					}
				}
			})
		}
	}
}

// overPool and those below it are what a Store may stand on.
func overPool(_ testing.TB, pool *pgxpool.Pool) conformanceSubject {
	return postgresSubject{pool}
}

func overConn(t testing.TB, pool *pgxpool.Pool) conformanceSubject {
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return &dbSubject{postgresSubject{pool}, conn}
}

func overPooledConn(t testing.TB, pool *pgxpool.Pool) conformanceSubject {
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	return &dbSubject{postgresSubject{pool}, conn}
}

func overWrapped(_ testing.TB, pool *pgxpool.Pool) conformanceSubject {
	return &dbSubject{postgresSubject{pool}, struct{ DB }{pool}}
}

func overTx(level pgx.TxIsoLevel) func(testing.TB, *pgxpool.Pool) conformanceSubject {
	return func(_ testing.TB, pool *pgxpool.Pool) conformanceSubject {
		return &txSubject{dbSubject{postgresSubject{pool}, nil}, pgx.TxOptions{IsoLevel: level}}
	}
}

// TestConformanceOfEveryWayToPostgres has each mode of pgx and each thing that a
// Store stands on, and of their product what can differ: over a pool and a
// connection a store sends the same.
func TestConformanceOfEveryWayToPostgres(t *testing.T) {
	for _, way := range []struct {
		name string
		over func(testing.TB, *pgxpool.Pool) conformanceSubject
		mode pgx.QueryExecMode
	}{
		{"connection, cache statement", overConn, pgx.QueryExecModeCacheStatement},
		{"connection, cache describe", overConn, pgx.QueryExecModeCacheDescribe},
		{"connection, describe exec", overConn, pgx.QueryExecModeDescribeExec},
		{"pool, exec", overPool, pgx.QueryExecModeExec},
		{"pool, simple protocol", overPool, pgx.QueryExecModeSimpleProtocol},
		{"transaction, cache statement", overTx(pgx.ReadCommitted), pgx.QueryExecModeCacheStatement},
		{"transaction, cache describe", overTx(pgx.ReadCommitted), pgx.QueryExecModeCacheDescribe},
		{"transaction, describe exec", overTx(pgx.ReadCommitted), pgx.QueryExecModeDescribeExec},
		{"transaction, exec", overTx(pgx.ReadCommitted), pgx.QueryExecModeExec},
		{"transaction, simple protocol", overTx(pgx.ReadCommitted), pgx.QueryExecModeSimpleProtocol},
		{"connection of a pool, cache statement", overPooledConn, pgx.QueryExecModeCacheStatement},
		{"wrapped pool, cache statement", overWrapped, pgx.QueryExecModeCacheStatement},
		{"repeatable read transaction", overTx(pgx.RepeatableRead), pgx.QueryExecModeCacheStatement},
		{"serializable transaction", overTx(pgx.Serializable), pgx.QueryExecModeCacheStatement},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			testSample(t, way.over(t, poolWith(t, testPool(t), inMode(way.mode))))
		})
	}
}

// TestConformanceBehindPgBouncer has the modes that a PgBouncer of any version
// lets through: those that keep no statement on the server.
func TestConformanceBehindPgBouncer(t *testing.T) {
	for _, mode := range execModes[1:] {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			direct := testPool(t)
			pool := bouncedPool(t, direct, mode)
			testSample(t, &dbSubject{postgresSubject{direct}, pool})
		})
	}
}

// bouncedPool is a pool on the same database through a PgBouncer that pools by
// transaction.
func bouncedPool(t testing.TB, direct *pgxpool.Pool, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.Bouncer(t, direct.Config().ConnString()))
	if err != nil {
		t.Fatal(err)
	}
	inMode(mode)(config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestConformanceOfAnotherClock has a database whose clock is ten minutes from
// that of the host: every time is the database's.
func TestConformanceOfAnotherClock(t *testing.T) {
	for name, shift := range map[string]string{"ten minutes ahead": "10 min", "ten minutes behind": "-10 min"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testSample(t, overPool(t, shiftedPool(t, shift)))
		})
	}
}

// TestRacesAtEachLevel has a transaction of the caller's whose snapshot is older
// than what another worker did to the row. Read committed sees the other's work;
// the stricter levels end in a serialization failure, which is the caller's to
// retry.
func TestRacesAtEachLevel(t *testing.T) {
	pool := testPool(t)
	completed := func(ctx context.Context, s *Store, claim Claim) error { return s.MarkCompleted(ctx, claim, "") }
	failed := func(ctx context.Context, s *Store, claim Claim) error { return s.MarkFailed(ctx, claim, "refused") }
	claimed := func(ctx context.Context, s *Store, claim Claim) error {
		_, err := s.ClaimDue(ctx, ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationMailer: 1}})
		return err
	}
	for _, race := range []struct {
		name   string
		first  func(*Store, Claim) error                  // nil = the row is left as claimed
		winner func(context.Context, *Store, Claim) error // the other worker
		loser  func(context.Context, *Store, Claim) error // in the transaction
		want   error                                      // of the loser at read committed
	}{
		{"to settle in different ways", nil, failed, completed, ErrConflict},
		{"to settle in the same way", nil, completed, completed, nil},
		{"to claim", func(s *Store, c Claim) error { return s.GiveBack(context.Background(), c) }, claimed, claimed, nil},
		{"to requeue", func(s *Store, c Claim) error { return failed(context.Background(), s, c) },
			func(ctx context.Context, s *Store, c Claim) error { return s.Requeue(ctx, c.ID, "") },
			func(ctx context.Context, s *Store, c Claim) error { return s.Requeue(ctx, c.ID, "") }, ErrConflict},
	} {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			t.Run(race.name+", "+string(level), func(t *testing.T) {
				removeRows(t, pool)
				s := New(pool, Options{})
				claim := claimOne(t, pool, testMessage(DestinationMailer)).Claim
				if race.first != nil {
					if err := race.first(s, claim); err != nil {
						t.Fatal(err)
					}
				}
				tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback(context.WithoutCancel(t.Context()))
				queryOne[int](t, tx, "SELECT count(*) FROM outbox_queue") // which takes the snapshot
				if err := race.winner(t.Context(), s, claim); err != nil {
					t.Fatal(err)
				}
				err = race.loser(t.Context(), s.With(tx).Store, claim)
				var failure *pgconn.PgError
				switch {
				case level == pgx.ReadCommitted && !errors.Is(err, race.want):
					t.Errorf("the error is %v, want %v", err, race.want)
				case level != pgx.ReadCommitted && (!errors.As(err, &failure) || failure.Code != "40001"):
					t.Errorf("the error is %v, want a serialization failure", err)
				}
				wantSound(t, s)
			})
		}
	}
}

// TestOwnTransactionsAreReadCommitted has a database where transactions are
// serializable unless they say otherwise, and a settle that waits for another.
func TestOwnTransactionsAreReadCommitted(t *testing.T) {
	pool := testPool(t)
	config := pool.Config()
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	config.MaxConns = 1 // so that the test knows the backend
	strict, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(strict.Close)
	conn, _ := countedConn(t, strict)
	for _, way := range []struct {
		name string
		db   DB
	}{
		{"pool", strict}, {"connection", conn}, {"wrapped pool", struct{ DB }{strict}},
	} {
		t.Run(way.name, func(t *testing.T) {
			removeRows(t, pool)
			claim := claimOne(t, pool, testMessage(DestinationMailer)).Claim
			other, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer other.Rollback(context.WithoutCancel(t.Context()))
			if err := New(pool, Options{}).With(other).MarkFailed(t.Context(), claim, "refused"); err != nil {
				t.Fatal(err)
			}
			pid := queryOne[uint32](t, way.db, "SELECT pg_backend_pid()")
			settled := make(chan error, 1)
			go func() { settled <- New(way.db, Options{}).MarkCompleted(t.Context(), claim, "") }()
			waitUntilBlocked(t, pool, pid, settled)
			if err := other.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-settled; !errors.Is(err, ErrConflict) {
				t.Errorf("the error is %v, want ErrConflict", err)
			}
		})
	}
}

// TestDueByTheDatabasesClock has a message for a time that one clock has passed
// and the other has not.
func TestDueByTheDatabasesClock(t *testing.T) {
	for _, test := range []struct {
		name, shift string
		want        int
	}{
		{"the database is ten minutes ahead", "10 min", 1},
		{"the database is ten minutes behind", "-10 min", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := shiftedPool(t, test.shift)
			enqueueAll(t, pool, testMessage(DestinationMailer).At(time.Now().Add(5*time.Minute*time.Duration(2*test.want-1))))
			if entries := claimAll(t, New(pool, Options{}), 10); len(entries) != test.want {
				t.Errorf("claimed %d rows, want %d", len(entries), test.want)
			}
		})
	}
}

// shiftedPool is a pool on a database whose clock is not that of the host.
func shiftedPool(t testing.TB, shift string) *pgxpool.Pool {
	t.Helper()
	pool := testPool(t)
	execSQL(t, pool, `CREATE SCHEMA shifted`)
	execSQL(t, pool, `CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql
		RETURN pg_catalog.clock_timestamp() + interval '`+shift+`'`)
	return poolWith(t, pool, func(c *pgx.ConnConfig) {
		c.RuntimeParams["search_path"] = "shifted, pg_catalog, public"
	})
}
