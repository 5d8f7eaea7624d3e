package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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

// testSample walks the table of semantics for one state of each condition: what
// is proved of all of them need not be proved anew of each way to the database.
func testSample(t *testing.T, subject conformanceSubject) {
	seen := make(map[condition]bool)
	for _, state := range conformanceStates {
		d := DestinationPayments
		if state.only != nil && !state.only(policyOf(d)) {
			d = DestinationStock
		}
		if seen[state.is] {
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

// overPool, overConn and overTx are what a Store may stand on.
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
			testSample(t, &dbSubject{postgresSubject{direct}, pool})
		})
	}
}

// TestConformanceOfAnotherClock has a database whose clock is ten minutes from
// that of the host: every time is the database's.
func TestConformanceOfAnotherClock(t *testing.T) {
	for name, shift := range map[string]string{"ten minutes ahead": "10 min", "ten minutes behind": "-10 min"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testPool(t)
			execSQL(t, pool, `CREATE SCHEMA shifted`)
			execSQL(t, pool, `CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql
				RETURN pg_catalog.clock_timestamp() + interval '`+shift+`'`)
			testSample(t, overPool(t, poolWith(t, pool, func(c *pgx.ConnConfig) {
				c.RuntimeParams["search_path"] = "shifted, pg_catalog, public"
			})))
		})
	}
}
