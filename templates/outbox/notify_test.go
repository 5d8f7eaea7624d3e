package outbox

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// deaf is how often a dispatcher polls that is to hear of messages otherwise.
const deaf = 24 * time.Hour

// waitListening waits until a connection listens, and returns its backend.
func waitListening(t testing.TB, pool *pgxpool.Pool, other int) (pid int) {
	t.Helper()
	for pid == 0 {
		pid = queryOne[int](t, pool, `SELECT coalesce(max(pid), 0) FROM pg_stat_activity
			WHERE query LIKE 'LISTEN%' AND state = 'idle' AND datname = current_database() AND pid <> $1`, other)
	}
	return pid
}

// silently enqueues as a process does that has just told of other messages.
func silently(t testing.TB, pool *pgxpool.Pool, m Message) OutboxID {
	t.Helper()
	s := New(pool, Options{})
	s.backend.(*postgres).notifier.due(time.Now())
	var placed []Enqueued
	must(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		placed, err = s.With(tx).Enqueue(t.Context(), testCommand, m)
		return err
	}))
	return placed[0].ID
}

func TestNotifications(t *testing.T) {
	for _, test := range []struct {
		name    string
		enqueue func(t *testing.T, pool *pgxpool.Pool) OutboxID
	}{
		{"Enqueue", func(t *testing.T, pool *pgxpool.Pool) OutboxID {
			return enqueueAll(t, pool, testMessage(DestinationMailer))[0]
		}},
		{"QueueEnqueue", func(t *testing.T, pool *pgxpool.Pool) OutboxID {
			batch := &pgx.Batch{}
			queued, err := New(pool, Options{}).QueueEnqueue(t.Context(), batch, testCommand, testMessage(DestinationMailer))
			must(t, err)
			must(t, pool.SendBatch(t.Context(), batch).Close())
			placed, err := queued.Enqueued()
			must(t, err)
			return placed[0].ID
		}},
		{"an ordered one", func(t *testing.T, pool *pgxpool.Pool) OutboxID {
			return enqueueAll(t, pool, testMessage(DestinationStock))[0]
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := testPool(t)
			r := newRemote()
			clock := newFakeClock() // which stands still
			d := r.dispatcher(t, New(pool, Options{}), r.handlers(), DispatcherOptions{Poll: deaf})
			d.clock = clock
			stop := run(t, d)
			clock.waitFor(t, lookAgain) // after the wake that listening begins with
			r.waitSettled(t, test.enqueue(t, pool))
			must(t, stop())
		})
	}
}

// TestNotificationsAreLimited has a process tell of many messages: of some that
// come together, of others once in a while, and never of none for longer.
func TestNotificationsAreLimited(t *testing.T) {
	n := newNotifier()
	start := time.Now()
	told, last := 0, time.Duration(0)
	for at := time.Duration(0); at < time.Second; at += time.Millisecond {
		switch due := n.due(start.Add(at)); {
		case due:
			told, last = told+1, at
		case at-last >= notifyEvery:
			t.Errorf("at %s nothing is told, the last was at %s", at, last)
		}
		if at == 5*time.Millisecond && told != 6 {
			t.Errorf("of 6 messages that came together %d were told of", told)
		}
	}
	if most := int(time.Second/notifyEvery) + 10; told > most {
		t.Errorf("told %d times, want at most %d", told, most)
	}
}

// TestNotificationsOfLaterMessages are not sent: there is nothing to do.
func TestNotificationsOfLaterMessages(t *testing.T) {
	p := newPostgres(nil, nil, newNotifier())
	if p.notifies([]newRow{{due: someDay}, {due: someDay}}) {
		t.Error("messages for later were told of")
	}
	if !p.notifies([]newRow{{due: someDay}, {}}) {
		t.Error("a message that is due was not told of")
	}
}

// TestLooksAgain has a message enqueued just after another, without a
// notification of its own.
func TestLooksAgain(t *testing.T) {
	pool := testPool(t)
	r := newRemote()
	clock := newFakeClock()
	d := r.dispatcher(t, New(pool, Options{}), r.handlers(), DispatcherOptions{Poll: deaf})
	d.clock = clock
	stop := run(t, d)
	clock.waitFor(t, lookAgain) // after the wake that listening begins with
	id := silently(t, pool, testMessage(DestinationMailer))
	clock.advance(lookAgain)
	r.waitSettled(t, id)
	must(t, stop())
}

// silentConn is a connection that can be cut without a sign: what is sent is
// lost, and nothing comes.
type silentConn struct {
	net.Conn
	cut *atomic.Bool
}

func (c *silentConn) Write(p []byte) (int, error) {
	if c.cut.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Read passes over what comes once the connection is cut.
func (c *silentConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.cut.Load() {
			return n, err
		}
	}
}

// TestTheListenerHealsItself loses the connection that listens, with and without
// a sign.
func TestTheListenerHealsItself(t *testing.T) {
	for _, sign := range []bool{true, false} {
		name := map[bool]string{true: "ended by the server", false: "cut silently"}[sign]
		t.Run(name, func(t *testing.T) {
			pool := testPool(t)
			r := newRemote()
			var cut atomic.Pointer[atomic.Bool] // of the connection that was made last
			listen := func(ctx context.Context) (*pgx.Conn, error) {
				config := pool.Config().ConnConfig.Copy()
				dial := config.DialFunc
				config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := dial(ctx, network, addr)
					silent := &silentConn{Conn: conn, cut: &atomic.Bool{}}
					cut.Store(silent.cut)
					return silent, err
				}
				return pgx.ConnectConfig(ctx, config)
			}
			d := r.dispatcher(t, New(pool, Options{}), r.handlers(), DispatcherOptions{Poll: deaf, Listen: listen})
			if !sign {
				d.probe = 200 * time.Millisecond
			}
			stop := run(t, d)
			first := waitListening(t, pool, 0)
			id := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
			r.waitSettled(t, id)
			if sign {
				execSQL(t, pool, "SELECT pg_terminate_backend($1)", first)
			} else {
				cut.Load().Store(true)
			}
			// This one is told of to nobody: what listens again looks at once.
			id = silently(t, pool, testMessage(DestinationMailer))
			r.waitSettled(t, id)
			waitListening(t, pool, first)
			id = enqueueAll(t, pool, testMessage(DestinationMailer))[0]
			r.waitSettled(t, id)
			must(t, stop())
		})
	}
}

// TestPolling finds messages without being told.
func TestPolling(t *testing.T) {
	pool := testPool(t)
	for _, test := range []struct {
		name    string
		db      DB
		options DispatcherOptions
	}{
		{"as an option", pool, DispatcherOptions{NoListen: true}},
		{"over a pool that is wrapped", wrapper{pool}, DispatcherOptions{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRemote()
			clock := newFakeClock()
			d := r.dispatcher(t, New(test.db, Options{}), r.handlers(), test.options)
			d.clock = clock
			stop := run(t, d)
			clock.waitFor(t, d.options.Poll)
			id := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
			if n := queryOne[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"); n != 0 {
				t.Errorf("%d connections listen", n)
			}
			clock.advance(d.options.Poll)
			r.waitSettled(t, id)
			must(t, stop())
		})
	}
}
