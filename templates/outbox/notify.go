package outbox

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// notifyEvery is how often a process that enqueues all the time tells of it.
// Commits that notify wait for one another, so each enqueue must not.
const notifyEvery = 10 * time.Millisecond

// notifier limits the notifications of a process. Where messages are rare each is
// told of, also when some come close together.
type notifier struct {
	mu     sync.Mutex
	bucket bucket
}

func newNotifier() *notifier {
	return &notifier{bucket: bucket{rate: float64(time.Second / notifyEvery)}}
}

// due tells whether new messages are to be told of now. If not, others have been
// within notifyEvery.
func (n *notifier) due(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bucket.available(now) == 0 {
		return false
	}
	n.bucket.take(1)
	return true
}

// notifies tells whether rows that are enqueued now are to be told of.
func (p *postgres) notifies(rows []newRow) bool {
	for _, row := range rows {
		if row.due.IsZero() {
			return p.notifier.due(time.Now())
		}
	}
	return false
}

func (p *postgres) single() bool {
	switch p.db.(type) {
	case pgx.Tx, *pgx.Conn, *pgxpool.Conn:
		return true
	}
	return false
}

// wakeable is a backend that tells of new messages.
type wakeable interface {
	// listen calls wake after messages may have been enqueued, until ctx ends or
	// what it listens on is lost. It returns nil where nothing can be listened on.
	listen(ctx context.Context, l listening) error
}

// listening says how to listen.
type listening struct {
	connect func(context.Context) (*pgx.Conn, error) // nil = one of the pool's
	probe   time.Duration                            // without a sign of the connection before it is tried, and then until it is given up
	wake    func()
}

// probeEvery is the probe of a dispatcher's listening.
const probeEvery = 15 * time.Second

// listen listens on a connection of its own.
func (p *postgres) listen(ctx context.Context, l listening) error {
	connect := l.connect
	if connect == nil {
		pool, ok := p.db.(*pgxpool.Pool)
		if !ok {
			return nil
		}
		connect = func(ctx context.Context) (*pgx.Conn, error) {
			conn, err := pool.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			return conn.Hijack(), nil
		}
	}
	within, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	conn, err := connect(within)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		conn.Close(ctx)
	}()
	if _, err := conn.Exec(within, sqlListen); err != nil {
		return err
	}
	for {
		// What was enqueued before, or while nothing came, has told nobody.
		l.wake()
		if err := waitForNotification(ctx, conn, l.probe); err != nil {
			return err
		}
	}
}

// waitForNotification waits for one. While none comes the connection is tried: one
// that is half open would wait for ever.
func waitForNotification(ctx context.Context, conn *pgx.Conn, probe time.Duration) error {
	for {
		within, cancel := context.WithTimeout(ctx, probe)
		_, err := conn.WaitForNotification(within)
		timeout := within.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !timeout {
			return err
		}
		within, cancel = context.WithTimeout(ctx, probe)
		err = conn.Ping(within)
		cancel()
		if err != nil {
			return err
		}
	}
}

// listen is woken by new messages until ctx ends. What it listens on is made anew
// when it is lost.
func (d *Dispatcher) listen(ctx context.Context) {
	source, ok := d.store.backend.(wakeable)
	if !ok || d.options.NoListen {
		return
	}
	pause := backoff{}
	for {
		err := source.listen(ctx, listening{connect: d.options.Listen, probe: d.probe, wake: func() {
			pause = backoff{}
			notify(d.woken)
		}})
		if err == nil || ctx.Err() != nil {
			return
		}
		d.failed("listen", err)
		d.pause(ctx, pause.next())
		if ctx.Err() != nil {
			return
		}
	}
}
