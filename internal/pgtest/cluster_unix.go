//go:build unix

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// maxSocketPath is the longest path of a Unix socket that every system
	// takes, in bytes: macOS has 104 with the final zero, Linux 108.
	maxSocketPath = 103
	port          = "5432"
	socketName    = ".s.PGSQL." + port
	startTimeout  = time.Minute

	// cannotConnectNow is the SQLSTATE of a server that starts up or recovers.
	cannotConnectNow = "57P03"
)

// cluster is a private Postgres: a directory, the process that watches over
// it, and the server.
type cluster struct {
	dir     string // holds everything: socket, data, log, a copy of the programs if need be
	bin     string
	watcher *watcher
	server  *process // nil when it does not run
	stopped bool
}

func newCluster(ctx context.Context, bin string, cfg *config) (_ *cluster, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	id := serverIdentity()
	dir, err := makeDir([]string{os.TempDir(), "/tmp", "/var/tmp"}, id)
	if err != nil {
		return nil, err
	}
	w, err := watch(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c := &cluster{dir: dir, bin: bin, watcher: w}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()

	if err := c.makeReachable(id); err != nil {
		return nil, err
	}
	if err := c.initdb(ctx, cfg); err != nil {
		return nil, err
	}
	if id != nil {
		if err := chownAll(dir, id); err != nil {
			return nil, err
		}
	}
	return c, c.startServer(ctx)
}

// makeDir makes a directory in the first of bases where id can use it and the
// path of the socket is not too long.
func makeDir(bases []string, id *identity) (string, error) {
	var problems []error
	for _, base := range bases {
		dir, err := os.MkdirTemp(base, "pgtest-")
		if err != nil {
			problems = append(problems, err)
			continue
		}
		err = suitable(dir, id)
		if err == nil {
			return dir, nil
		}
		problems = append(problems, fmt.Errorf("%s: %w", base, err), os.Remove(dir))
	}
	return "", fmt.Errorf("no directory for the cluster (TMPDIR may name another): %w", errors.Join(problems...))
}

func suitable(dir string, id *identity) error {
	if n := len(filepath.Join(dir, socketName)); n > maxSocketPath {
		return fmt.Errorf("the path of a socket would have %d bytes, the limit is %d", n, maxSocketPath)
	}
	if id == nil {
		return nil
	}
	if err := os.Chown(dir, int(id.uid), int(id.gid)); err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", ":")
	cmd.Dir = dir
	id.apply(cmd)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("cannot be reached as user id %d, which root starts Postgres under: %w", id.uid, err)
	}
	return nil
}

// makeReachable copies the programs into the directory of the cluster when id
// cannot run them where they are, for instance below the home directory of root.
func (c *cluster) makeReachable(id *identity) error {
	if id == nil {
		return nil
	}
	cmd := exec.Command(filepath.Join(c.bin, "postgres"), "--version")
	cmd.Dir = c.dir
	id.apply(cmd)
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("run as user id %d: %w", id.uid, err)
	}
	// Postgres finds its other files relative to its programs.
	from, to := filepath.Dir(c.bin), filepath.Join(c.dir, "programs")
	for _, part := range []string{filepath.Base(c.bin), "lib", "share"} {
		if err := copyTree(filepath.Join(from, part), filepath.Join(to, part)); err != nil {
			return fmt.Errorf("user id %d, which root starts Postgres under, cannot reach %s, and it cannot be copied: %w", id.uid, c.bin, err)
		}
	}
	c.bin = filepath.Join(to, filepath.Base(c.bin))
	return nil
}

func (c *cluster) data() string { return filepath.Join(c.dir, "data") }

func (c *cluster) url() string {
	u := url.URL{
		Scheme: "postgres",
		User:   url.User("postgres"),
		Path:   "/postgres",
		// The port, since the client would otherwise take it from PGPORT.
		RawQuery: url.Values{"host": {c.dir}, "port": {port}, "sslmode": {"disable"}}.Encode(),
	}
	return u.String()
}

// initdb makes the data directory.
func (c *cluster) initdb(ctx context.Context, cfg *config) error {
	id, start := serverIdentity(), (*exec.Cmd).Start
	if id == nil {
		if _, err := user.LookupId(strconv.Itoa(os.Geteuid())); err != nil {
			return fmt.Errorf("initdb needs an account for user id %d (give it one, run as another user or as root, or name a server in %s): %w",
				os.Geteuid(), EnvDatabaseURL, err)
		}
	} else {
		if account := accountIdentity(cfg.accounts); account != nil {
			id = account
		} else {
			start = func(cmd *exec.Cmd) error { return startWithAccount(cmd, unprivileged, c.dir) }
		}
		if err := os.Chown(c.dir, int(id.uid), int(id.gid)); err != nil {
			return err
		}
	}
	p, err := c.watcher.start(id, start, filepath.Join(c.dir, "initdb.log"), filepath.Join(c.bin, "initdb"),
		"--pgdata", c.data(), "--username", "postgres", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions")
	if err != nil {
		return fmt.Errorf("run initdb: %w", err)
	}
	if err := p.wait(ctx); err != nil {
		return fmt.Errorf("initdb: %w%s", err, p.log())
	}
	settings := append([]setting{
		{"listen_addresses", ""},
		{"port", port},
		{"unix_socket_directories", c.dir},
		// Who may connect is who owns the files, since trust asks nobody.
		{"unix_socket_permissions", "0700"},
	}, cfg.settings...)
	return appendFile(filepath.Join(c.data(), "postgresql.conf"), conf(settings))
}

// startServer starts the server and returns when it accepts connections.
func (c *cluster) startServer(ctx context.Context) error {
	p, err := c.watcher.start(serverIdentity(), (*exec.Cmd).Start, filepath.Join(c.dir, "server.log"),
		filepath.Join(c.bin, "postgres"), "-D", c.data())
	if err != nil {
		return err
	}
	c.server = p
	return p.accepts(ctx, c.url())
}

// accepts returns when a server accepts connections.
func (p *process) accepts(ctx context.Context, url string) error {
	// Postgres tells nobody that it is ready; even its own pg_ctl polls.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		var refusal *pgconn.PgError
		if errors.As(err, &refusal) && refusal.Code != cannotConnectNow {
			// It runs, and refuses for good: a setting, or the PGOPTIONS of this process.
			return err
		}
		select {
		case <-p.done:
			return fmt.Errorf("the server ended while starting: %w%s", p.err, p.log())
		case <-ctx.Done():
			return fmt.Errorf("the server does not accept connections: %w (last attempt: %w)%s", ctx.Err(), err, p.log())
		case <-tick.C:
		}
	}
}

func (c *cluster) crash() error { return c.end(syscall.SIGQUIT) }

// end signals the server, if it runs, and waits for its end, which is that of
// all its processes: it waits for them itself.
func (c *cluster) end(signal syscall.Signal) error {
	if c.stopped {
		return errStopped
	}
	if c.server == nil {
		return nil
	}
	if err := c.server.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-c.server.done
	c.server = nil
	return nil
}

var errStopped = errors.New("the server was stopped, and its files removed")

func (c *cluster) restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.end(syscall.SIGINT); err != nil {
		return err
	}
	return c.startServer(ctx)
}

func (c *cluster) stop() error {
	if c.stopped {
		return nil
	}
	c.stopped = true
	// What cleans up after a killed owner does it here as well.
	err := c.watcher.finish()
	if c.server != nil {
		<-c.server.done
		c.server = nil
	}
	if err != nil {
		return fmt.Errorf("clean up %s: %w", c.dir, err)
	}
	return nil
}

// conf writes settings in the syntax of postgresql.conf.
func conf(settings []setting) string {
	quote := strings.NewReplacer(`'`, `''`, `\`, `\\`)
	var b strings.Builder
	for _, s := range settings {
		b.WriteString(s.name + " = '" + quote.Replace(s.value) + "'\n")
	}
	return b.String()
}

func appendFile(name, text string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func chownAll(dir string, id *identity) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(id.uid), int(id.gid))
	})
}

// copyTree copies from with all that it holds. Relative links stay links: they
// lead to other parts of the copy, and Postgres resolves them to find out where
// it is installed. Absolute ones become what they point to.
func copyTree(from, to string) error {
	if target, err := os.Readlink(from); err == nil && !filepath.IsAbs(target) {
		return os.Symlink(target, to)
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return os.WriteFile(to, data, info.Mode().Perm())
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := copyTree(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// logTail is how much of a log an error shows, in bytes.
const logTail = 4 << 10

func tail(name string) string {
	text, err := os.ReadFile(name)
	if err != nil || len(text) == 0 {
		return ""
	}
	return "\n" + strings.TrimSpace(string(text[max(0, len(text)-logTail):]))
}
