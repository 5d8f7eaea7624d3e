//go:build unix

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

const (
	bouncerPort = "6432" // of the same length as port: see maxSocketPath
	bouncerPool = 4      // connections to the server
)

// bouncer is a PgBouncer before one database.
type bouncer struct {
	watcher *watcher
	process *process
	url     string
}

// startBouncer starts a PgBouncer before a database. It hands out its connections
// to the server in turn, so that a client that is alone never has the same one
// for two transactions that follow each other.
func startBouncer(ctx context.Context, databaseURL string) (_ *bouncer, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	program, err := findBouncer()
	if err != nil {
		return nil, err
	}
	server, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	// The socket of a private cluster is open to its owner alone.
	id := serverIdentity()
	dir, err := makeDir([]string{os.TempDir(), "/tmp", "/var/tmp"}, id)
	if err != nil {
		return nil, err
	}
	w, err := watch(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.finish())
		}
	}()
	config := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(config, []byte(bouncerConfig(server, dir)), 0o600); err != nil {
		return nil, err
	}
	if id != nil {
		if err := chownAll(dir, id); err != nil {
			return nil, err
		}
	}
	p, err := w.start(id, (*exec.Cmd).Start, filepath.Join(dir, "pgbouncer.log"), program, config)
	if err != nil {
		return nil, err
	}
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(server.User),
		Path:     "/" + server.Database,
		RawQuery: url.Values{"host": {dir}, "port": {bouncerPort}, "sslmode": {"disable"}}.Encode(),
	}
	if err := p.accepts(ctx, u.String()); err != nil {
		return nil, err
	}
	return &bouncer{watcher: w, process: p, url: u.String()}, fill(ctx, u.String(), bouncerPool)
}

// fill has the pool open n connections, which it does when as many are needed at
// a time.
func fill(ctx context.Context, url string, n int) error {
	if n == 0 {
		return nil
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, begin := conn.Exec(ctx, "BEGIN")
	err = fill(ctx, url, n-1)
	_, end := conn.Exec(ctx, "COMMIT")
	return errors.Join(begin, err, end)
}

// findBouncer finds the program on PATH, or where Debian has it, which is not on
// the PATH of everybody.
func findBouncer() (string, error) {
	var missing error
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		program, err := exec.LookPath(name)
		if err == nil {
			return program, nil
		}
		missing = errors.Join(missing, err)
	}
	return "", fmt.Errorf("%w: install the package pgbouncer: %w", errNoBouncer, missing)
}

func bouncerConfig(server *pgx.ConnConfig, dir string) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	var password string
	if server.Password != "" {
		password = " password=" + quote(server.Password) // an empty one is a syntax error
	}
	return fmt.Sprintf(`[databases]
%s = host=%s port=%d user=%s dbname=%s%s
[pgbouncer]
listen_port = %s
unix_socket_dir = %s
unix_socket_mode = 0700
auth_type = any
pool_mode = transaction
default_pool_size = %d
server_round_robin = 1
ignore_startup_parameters = extra_float_digits
`, server.Database, quote(server.Host), server.Port, quote(server.User), quote(server.Database), password, bouncerPort, dir, bouncerPool)
}

func (b *bouncer) stop() error {
	err := b.watcher.finish()
	<-b.process.done
	return err
}
