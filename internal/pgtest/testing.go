package pgtest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// shared is the server of this test binary. Nobody stops it: the end of the
// process does.
var shared = sync.OnceValues(func() (*Server, error) {
	return Start(context.Background())
})

// Database gives the connection string of a fresh, empty database, dropped when
// the test and its subtests have ended. All tests of a test binary share one
// server.
//
// Where there is no Postgres the test is skipped, but fails when the
// environment variable CI is set; a Postgres that does not start always fails it.
func Database(t testing.TB) string {
	t.Helper()
	s, err := shared()
	judge(t, err)
	url, err := s.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The context of a test is over when its cleanups run.
		if err := s.DropDatabase(context.Background(), url); err != nil {
			t.Error(err)
		}
	})
	return url
}

// Cluster gives a private cluster, which the test may crash and restart. It is
// stopped, and its files removed, when the test and its subtests have ended.
//
// Where there is no Postgres the test is skipped, as with [Database].
func Cluster(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s, err := Start(t.Context(), append([]Option{Private()}, opts...)...)
	judge(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Pool gives a pool on a fresh database, with the defaults of pgxpool. It is
// closed, and the database dropped, when the test and its subtests have ended;
// by then every connection must be back, since closing waits for them.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// errNoBouncer says that this machine has no PgBouncer.
var errNoBouncer = errors.New("no PgBouncer to test with")

// Bouncer gives the connection string of the same database behind a PgBouncer of
// its own that pools by transaction: a client has another connection to the
// server for each. It ends with the test and its subtests.
//
// Where there is no PgBouncer the test is skipped, but fails when the
// environment variable CI is set.
func Bouncer(t testing.TB, databaseURL string) string {
	t.Helper()
	b, err := startBouncer(t.Context(), databaseURL)
	judge(t, err)
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	return b.url
}

// judge ends a test that has nothing to run on.
func judge(t testing.TB, err error) {
	t.Helper()
	switch verdict(err, os.Getenv("CI")) {
	case skip:
		t.Skip(err)
	case fail:
		t.Fatal(err)
	}
}

type outcome int

const (
	run outcome = iota
	skip
	fail
)

// verdict says what becomes of a test for which starting gave err, where the
// environment variable CI has the value ci.
func verdict(err error, ci string) outcome {
	switch {
	case err == nil:
		return run
	case (errors.Is(err, ErrNoPostgres) || errors.Is(err, errNoBouncer)) && (ci == "" || ci == "false" || ci == "0"):
		return skip
	default:
		return fail
	}
}
