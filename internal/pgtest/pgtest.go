// Package pgtest gives tests, examples and benchmarks a real Postgres.
//
// [Start] takes the first of these that is there:
//
//  1. the server that OUTBOXGEN_TEST_DATABASE_URL points to;
//  2. the programs in the directory that OUTBOXGEN_TEST_POSTGRES_BIN names;
//  3. the programs found on PATH, then in the directories where Debian, RHEL,
//     Alpine, SUSE, Homebrew, MacPorts, Postgres.app and others put them;
//  4. programs downloaded once into the user's cache directory, from the
//     repository that OUTBOXGEN_TEST_POSTGRES_REPOSITORY names or, without it,
//     from the public one that github.com/fergusstrange/embedded-postgres uses.
//
// In all cases but the first it starts a private cluster that listens on a Unix
// socket only and leaves nothing behind, whatever happens to the process that
// started it: a small watching process outlives the owner and cleans up after
// it, so that a panic, a test timeout or SIGKILL leaks neither a process nor a
// directory, and no package needs a TestMain.
//
// Postgres refuses to run as root. Root therefore starts it under an
// unprivileged user id, one that needs no account.
package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
)

// The environment variables that steer [Start].
const (
	EnvDatabaseURL = "OUTBOXGEN_TEST_DATABASE_URL"
	EnvBinDir      = "OUTBOXGEN_TEST_POSTGRES_BIN"
	EnvRepository  = "OUTBOXGEN_TEST_POSTGRES_REPOSITORY"
)

// ErrNoPostgres is wrapped by the error of [Start] when this machine has no
// Postgres and none could be downloaded. A Postgres that is there but does not
// start is another error.
var ErrNoPostgres = errors.New("no Postgres to test with")

// databasePrefix starts the name of every database made here, and DropDatabase
// drops no other: an external server may hold somebody's data.
const databasePrefix = "outboxgen_test_"

// Server is a running Postgres: a private cluster, or the external server that
// OUTBOXGEN_TEST_DATABASE_URL names. Its methods may be called concurrently,
// except for Crash, Restart and Stop.
type Server struct {
	url     string
	cluster *cluster // nil for an external server
}

// Option shapes the cluster that [Start] starts. Any option asks for a private
// cluster, since an external server cannot be shaped.
type Option func(*config)

// Private asks for a private cluster even where OUTBOXGEN_TEST_DATABASE_URL
// names a server; Crash and Restart need one.
func Private() Option {
	return func(*config) {}
}

// Durable turns on fsync, full_page_writes and synchronous_commit, for
// measurements. Without it fsync and full_page_writes are off: committed data
// outlives a crash of Postgres, but not one of the machine.
func Durable() Option {
	return func(c *config) {
		for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
			c.set(name, "on")
		}
	}
}

// Setting sets a parameter in postgresql.conf; the last one given for a name
// counts.
func Setting(name, value string) Option {
	return func(c *config) { c.set(name, value) }
}

// BinDir names the directory with the programs postgres and initdb; nothing
// else is tried.
func BinDir(dir string) Option {
	return func(c *config) { c.finder.binDir, c.finder.binDirFrom = dir, "the option BinDir" }
}

// Start gives a Postgres that accepts connections. What it starts lives until
// [Server.Stop] or the end of this process; ctx bounds the start alone. A start
// that takes longer than a minute after the programs were found is an error.
// On Windows, which lacks the shell that watches over a cluster, only an external
// server can be used.
func Start(ctx context.Context, opts ...Option) (*Server, error) {
	if external := os.Getenv(EnvDatabaseURL); external != "" && len(opts) == 0 {
		return connectExternal(ctx, external)
	}
	c := newConfig()
	for _, opt := range opts {
		opt(c)
	}
	return start(ctx, c)
}

func start(ctx context.Context, c *config) (*Server, error) {
	bin, err := c.finder.find(ctx)
	if err != nil {
		return nil, err
	}
	cl, err := newCluster(ctx, bin, c)
	if err != nil {
		return nil, fmt.Errorf("start Postgres of %s: %w", bin, err)
	}
	return &Server{url: cl.url(), cluster: cl}, nil
}

func connectExternal(ctx context.Context, dsn string) (*Server, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("%s names a server that cannot be reached (unset it to use a private one): %w", EnvDatabaseURL, err)
	}
	defer conn.Close(ctx)
	return &Server{url: dsn}, nil
}

// URL is the connection string of the maintenance database: for a private
// cluster a URL whose parameter host is the directory of the socket, for an
// external server the connection string as it was given.
func (s *Server) URL() string { return s.url }

// CreateDatabase makes an empty database under a name that no other has and
// gives its connection string. On an external server the role needs CREATEDB.
func (s *Server) CreateDatabase(ctx context.Context) (string, error) {
	name := databasePrefix + strings.ToLower(rand.Text())
	// template0, since somebody may have put things into template1 of an external server.
	err := s.exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE template0")
	if err != nil {
		return "", fmt.Errorf("create a test database: %w", err)
	}
	return withDatabase(s.url, name)
}

// DropDatabase removes a database that CreateDatabase made, cutting what
// connections it still has. One that is gone already is no error; one that
// CreateDatabase did not make is an error, and is left alone.
func (s *Server) DropDatabase(ctx context.Context, databaseURL string) error {
	cfg, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return fmt.Errorf("drop a test database: %w", err)
	}
	if !strings.HasPrefix(cfg.Database, databasePrefix) {
		return fmt.Errorf("drop a test database: %q was not made by CreateDatabase, whose names start with %q", cfg.Database, databasePrefix)
	}
	err = s.exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{cfg.Database}.Sanitize()+" WITH (FORCE)")
	if err != nil {
		return fmt.Errorf("drop a test database: %w", err)
	}
	return nil
}

func (s *Server) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// withDatabase gives dsn, a URL or a keyword/value string, another database.
func withDatabase(dsn, name string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		// Of a keyword given twice the last counts.
		return dsn + " dbname=" + name, nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", fmt.Errorf("the connection string is no URL: %w", err)
	}
	u.Path, u.RawPath = "/"+name, ""
	q := u.Query()
	q.Del("dbname")
	q.Del("database")
	u.RawQuery = q.Encode()
	return u.String(), nil
}

var errExternal = fmt.Errorf("an external server (%s) is not ours to stop and start: use the option Private", EnvDatabaseURL)

// Stop ends a private cluster at once and removes every file of it; further
// calls do nothing. An external server is left as it is.
func (s *Server) Stop() error {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.stop()
}

// Crash ends Postgres without a checkpoint and cuts all connections, as
// a crash would; the files stay, and [Server.Restart] recovers from them.
// It returns when the last process of Postgres has ended.
func (s *Server) Crash() error {
	if s.cluster == nil {
		return errExternal
	}
	return s.cluster.crash()
}

// Restart starts Postgres again after Crash. One that still runs is shut down
// first, in order (fast mode). URLs stay valid; connections do not.
func (s *Server) Restart(ctx context.Context) error {
	if s.cluster == nil {
		return errExternal
	}
	return s.cluster.restart(ctx)
}
