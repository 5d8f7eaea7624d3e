//go:build unix

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func startPrivate(t *testing.T, opts ...Option) *Server {
	t.Helper()
	s, err := Start(t.Context(), append(opts, Private())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func show(t *testing.T, conn *pgx.Conn, name string) string {
	t.Helper()
	var value string
	if err := conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

// openDir makes an empty directory that everybody can enter, unlike those of
// t.TempDir, and whose path is short enough for a socket.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// emptyTemp makes TMPDIR a directory of openDir, and gives it.
func emptyTemp(t *testing.T) string {
	t.Helper()
	dir := openDir(t)
	t.Setenv("TMPDIR", dir)
	return dir
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v left in %s (%v)", left, dir, err)
	}
}

// postmaster gives the process id that Postgres wrote down for itself.
func postmaster(t *testing.T, s *Server) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.cluster.data(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestStop_LeavesNothing(t *testing.T) {
	tmp := emptyTemp(t)
	s := startPrivate(t)
	pid := postmaster(t, s)
	conn := connect(t, s.URL())
	if left, _ := os.ReadDir(tmp); len(left) != 1 {
		t.Fatalf("%v in TMPDIR while the server runs, want its directory alone", left)
	}

	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, tmp)
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v, want it gone", pid, err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a connection outlived the server")
	}
	if err := s.Stop(); err != nil {
		t.Errorf("the second Stop: %v", err)
	}
	if err := s.Restart(t.Context()); !errors.Is(err, errStopped) {
		t.Errorf("Restart after Stop: %v, want %v", err, errStopped)
	}
	if _, err := s.CreateDatabase(t.Context()); err == nil {
		t.Error("CreateDatabase after Stop gave no error")
	}
}

func TestCrash_KeepsWhatWasCommitted(t *testing.T) {
	s := startPrivate(t)
	url, err := s.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "BEGIN; INSERT INTO kept VALUES (2)"); err != nil {
		t.Fatal(err)
	}
	before := postmaster(t, s)
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	if err := s.Crash(); err != nil {
		t.Errorf("Crash of a crashed server: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "COMMIT"); err == nil {
		t.Error("a transaction was committed after the crash")
	}
	if _, err := pgx.Connect(t.Context(), url); err == nil {
		t.Error("connected to a crashed server")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if postmaster(t, s) == before {
		t.Error("the same process runs as before the crash")
	}

	wantKept := func() {
		t.Helper()
		rows, err := connect(t, url).Query(t.Context(), "SELECT n FROM kept")
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil || !slices.Equal(got, []int{1}) {
			t.Errorf("kept: %v, %v, want 1 alone", got, err)
		}
	}
	wantKept()
	log, err := os.ReadFile(filepath.Join(s.cluster.dir, "server.log"))
	if err != nil || !strings.Contains(string(log), "automatic recovery in progress") {
		t.Errorf("Postgres did not recover from a crash (%v):\n%s", err, log)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatalf("Restart of a running server: %v", err)
	}
	wantKept()
}

func TestStart_IsNotRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root drops its privileges")
	}
	if runtime.GOOS != "linux" {
		t.Skip("looks up in /proc whose a process is")
	}
	for name, accounts := range map[string][]string{
		"initdb borrows an account":            accountNames,
		"initdb has no account on the machine": nil,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := newConfig()
			cfg.accounts = accounts
			s, err := start(t.Context(), cfg)
			if accounts == nil && errors.Is(err, syscall.EPERM) {
				t.Skip("root may not make a mount namespace here: ", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer stop(t, s)
			for _, path := range []string{fmt.Sprintf("/proc/%d", postmaster(t, s)), s.cluster.dir, s.cluster.data()} {
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				stat := info.Sys().(*syscall.Stat_t)
				if stat.Uid != unprivileged || stat.Gid != unprivileged {
					t.Errorf("%s belongs to %d:%d, want %d:%[4]d", path, stat.Uid, stat.Gid, unprivileged)
				}
			}
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", postmaster(t, s)))
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range []string{"Groups:\t \n", "CapEff:\t0000000000000000\n"} {
				if !strings.Contains(string(status), line) {
					t.Errorf("the status of Postgres lacks %q:\n%s", line, status)
				}
			}
			if account, err := user.LookupId(strconv.Itoa(unprivileged)); err == nil {
				t.Errorf("user id %d has an account here, %s: this proved too little", unprivileged, account.Username)
			}
			if info, err := os.Stat(s.cluster.dir); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the directory has the mode %v (%v), want 0700: trust asks nobody who connects", info.Mode(), err)
			}
		})
	}
}

func TestStart_ProgramsThatOnlyRootReaches(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root drops its privileges")
	}
	home := installation(t)
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	s := startPrivate(t, BinDir(filepath.Join(home, "bin")))
	connect(t, s.URL())
}

func TestStart_ListensOnTheSocketOnly(t *testing.T) {
	t.Setenv("PGPORT", "6543")
	t.Setenv("PGDATA", "/no/such/directory")
	t.Setenv("TZ", "Asia/Tokyo")
	t.Setenv("LC_ALL", "no_SUCH.locale")
	t.Chdir(t.TempDir())
	conn := connect(t, startPrivate(t).URL())
	for name, want := range map[string]string{
		"listen_addresses": "", "port": "5432", "server_encoding": "UTF8", "max_connections": "200",
		"fsync": "off", "synchronous_commit": "on", "jit": "on", "TimeZone": "UTC",
	} {
		if got := show(t, conn, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
}

func TestStart_Options(t *testing.T) {
	const tricky = `it's 100% \ "done"`
	conn := connect(t, startPrivate(t,
		Durable(), Setting("Max_Connections", "33"), Setting("cluster_name", "first"), Setting("cluster_name", tricky)).URL())
	for name, want := range map[string]string{
		"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on",
		"max_connections": "33", "cluster_name": tricky,
	} {
		if got := show(t, conn, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	// Parameters on a command line could not be changed any more.
	if _, err := conn.Exec(t.Context(), "ALTER SYSTEM SET work_mem = '7MB'"); err != nil {
		t.Error(err)
	}
}

func TestStart_FailureShowsTheLogAndLeavesNothing(t *testing.T) {
	tmp := emptyTemp(t)
	_, err := Start(t.Context(), Setting("no_such_parameter", "1"))
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_parameter"`) {
		t.Errorf("Start() = %v, want what Postgres wrote", err)
	}
	if errors.Is(err, ErrNoPostgres) {
		t.Error("a Postgres that does not start is ErrNoPostgres, by which every test would be skipped")
	}
	wantEmpty(t, tmp)
}

func TestStart_RefusalIsReportedAtOnce(t *testing.T) {
	tmp := emptyTemp(t)
	t.Setenv("PGOPTIONS", "-c no_such_parameter=1")
	_, err := Start(t.Context(), Private())
	if err == nil || !strings.Contains(err.Error(), "no_such_parameter") {
		t.Errorf("Start() = %v, want the refusal by Postgres", err)
	}
	wantEmpty(t, tmp)
}

func TestMakeDir(t *testing.T) {
	tmp := emptyTemp(t)
	long := filepath.Join(tmp, strings.Repeat("x", maxSocketPath))
	if err := os.Mkdir(long, 0o755); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(tmp, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	unsuitable := []string{filepath.Join(tmp, "missing"), long}
	if os.Geteuid() == 0 {
		unsuitable = append(unsuitable, closed)
	}

	dir, err := makeDir(append(unsuitable, tmp), serverIdentity())
	if err != nil || filepath.Dir(dir) != tmp {
		t.Errorf("makeDir() = %q, %v, want a directory in %s", dir, err, tmp)
	}
	_, err = makeDir(unsuitable, serverIdentity())
	for _, want := range append(unsuitable, "TMPDIR", "the limit is 103") {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	for _, base := range unsuitable[1:] {
		wantEmpty(t, base)
	}
}

func TestStart_External(t *testing.T) {
	private := startPrivate(t)
	for name, dsn := range map[string]string{
		"URL":            private.URL(),
		"keyword, value": "host=" + private.cluster.dir + " port=5432 user=postgres dbname=postgres",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(EnvDatabaseURL, dsn)
			s, err := Start(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.URL() != dsn {
				t.Errorf("URL() = %q, want %q", s.URL(), dsn)
			}
			url, err := s.CreateDatabase(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var found bool
			const exists = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)"
			database := connect(t, url).Config().Database
			admin := connect(t, private.URL())
			if err := admin.QueryRow(t.Context(), exists, database).Scan(&found); err != nil || !found {
				t.Errorf("%s is not on the external server (%v)", database, err)
			}
			// The connection above is still open, and must not prevent it.
			if err := s.DropDatabase(t.Context(), url); err != nil {
				t.Error(err)
			}
			if err := admin.QueryRow(t.Context(), exists, database).Scan(&found); err != nil || found {
				t.Errorf("%s was not dropped (%v)", database, err)
			}
			if err := s.DropDatabase(t.Context(), url); err != nil {
				t.Errorf("dropping what is gone: %v", err)
			}
			if err := s.DropDatabase(t.Context(), dsn); err == nil || !strings.Contains(err.Error(), databasePrefix) {
				t.Errorf("DropDatabase of somebody else's database = %v, want a refusal", err)
			}
			for what, err := range map[string]error{"Crash": s.Crash(), "Restart": s.Restart(t.Context())} {
				if !errors.Is(err, errExternal) {
					t.Errorf("%s = %v, want %v", what, err, errExternal)
				}
			}
			stop(t, s)
			if err := admin.Ping(t.Context()); err != nil {
				t.Errorf("Stop touched the external server: %v", err)
			}
		})
	}
	t.Run("an option asks for a private one", func(t *testing.T) {
		t.Setenv(EnvDatabaseURL, private.URL())
		if s := startPrivate(t); s.URL() == private.URL() {
			t.Error("Start(Private()) gave the external server")
		}
	})
	t.Run("unreachable", func(t *testing.T) {
		t.Setenv(EnvDatabaseURL, "postgres:///x?host="+t.TempDir())
		_, err := Start(t.Context())
		if err == nil || !strings.Contains(err.Error(), EnvDatabaseURL) || errors.Is(err, ErrNoPostgres) {
			t.Errorf("Start() = %v, want an error that names %s and skips no test", err, EnvDatabaseURL)
		}
	})
}

func TestWithDatabase(t *testing.T) {
	for in, want := range map[string]string{
		"postgres://u:p%40@h:1/old?sslmode=disable":    "postgres://u:p%40@h:1/new?sslmode=disable",
		"postgresql://h?dbname=old&application_name=a": "postgresql://h/new?application_name=a",
		"postgres:///?host=/tmp/x":                     "postgres:///new?host=%2Ftmp%2Fx",
		"host=h dbname=old":                            "host=h dbname=old dbname=new",
	} {
		got, err := withDatabase(in, "new")
		if err != nil || got != want {
			t.Errorf("withDatabase(%q) = %q, %v, want %q", in, got, err, want)
			continue
		}
		cfg, err := pgx.ParseConfig(got)
		if err != nil || cfg.Database != "new" {
			t.Errorf("%q leads to %v (%v), want the database new", got, cfg, err)
		}
	}
}

func TestPool_FreshAndDropped(t *testing.T) {
	var urls []string
	for range 2 {
		t.Run("", func(t *testing.T) {
			pool := Pool(t)
			urls = append(urls, pool.Config().ConnString())
			if _, err := pool.Exec(t.Context(), "CREATE TABLE mine ()"); err != nil {
				t.Errorf("the database is not empty: %v", err)
			}
		})
	}
	for _, url := range urls {
		_, err := pgx.Connect(t.Context(), url)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "3D000" {
			t.Errorf("connecting to the database of an ended test: %v, want that it does not exist", err)
		}
	}
}

func TestBouncer_EachTransactionHasAnotherServer(t *testing.T) {
	conn := connect(t, Bouncer(t, Database(t)))
	var before uint32
	for range 2 * bouncerPool {
		var pid uint32
		// The simple protocol, since no statement of another transaction is there.
		if err := conn.QueryRow(t.Context(), "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		if pid == before {
			t.Fatalf("two transactions in a row were served by process %d", pid)
		}
		before = pid
	}
}

func TestVerdict(t *testing.T) {
	missing := fmt.Errorf("%w: looked here and there", ErrNoPostgres)
	for _, tc := range []struct {
		err  error
		ci   string
		want outcome
	}{
		{nil, "", run},
		{nil, "true", run},
		{missing, "", skip},
		{missing, "false", skip},
		{missing, "true", fail},
		{missing, "1", fail},
		{fmt.Errorf("%w: install it", errNoBouncer), "", skip},
		{fmt.Errorf("%w: install it", errNoBouncer), "true", fail},
		{io.ErrUnexpectedEOF, "", fail},
		{io.ErrUnexpectedEOF, "true", fail},
	} {
		if got := verdict(tc.err, tc.ci); got != tc.want {
			t.Errorf("verdict(%v, %q) = %d, want %d", tc.err, tc.ci, got, tc.want)
		}
	}
}
