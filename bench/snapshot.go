package main

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

// measureSnapshot drains while another connection holds a snapshot from before,
// so that nothing that is removed can be cleaned away: the speed of the first
// tenth and of the last, of the bare statements and of dispatchers.
func measureSnapshot(ctx context.Context, database databaseMaker, s scale) ([]table, error) {
	db, err := database(ctx)
	if err != nil {
		return nil, err
	}
	if db, err = withConns(ctx, db, dispatcherConns); err != nil {
		return nil, err
	}
	defer db.Close()
	outboxes, err := openOutboxes(ctx, db)
	if err != nil {
		return nil, err
	}
	generated, peers, err := openDispatchers(ctx, db)
	if err != nil {
		return nil, err
	}
	bare := table{title: "claim 100, complete 100, one worker, while a snapshot is open", unit: "messages/s"}
	dispatched := table{title: "one dispatcher, handler does nothing, while a snapshot is open", unit: "messages/s"}
	for _, o := range outboxes {
		bare.rows = append(bare.rows, row{name: o.name() + ", first tenth"}, row{name: o.name() + ", last tenth"})
	}
	dispatchers := []dispatcher{generated, peers.river.with(64)}
	for _, d := range dispatchers {
		dispatched.rows = append(dispatched.rows, row{name: d.name() + ", first tenth"}, row{name: d.name() + ", last tenth"})
	}
	for range s.rounds {
		for i, o := range outboxes {
			err := drainTenths(ctx, db, o, s.underSnapshot, bare.rows[2*i:], func(t *tenths) error {
				return drain(ctx, o, s.underSnapshot, 1, t.delivered)
			})
			if err != nil {
				return nil, err
			}
		}
		for i, d := range dispatchers {
			err := drainTenths(ctx, db, d, s.underSnapshot, dispatched.rows[2*i:], func(t *tenths) error {
				_, err := dispatch(ctx, d, s.underSnapshot, 1, func(benchbox.OrderPlaced) { t.delivered(1) })
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	for _, rows := range [][]row{bare.rows, dispatched.rows} {
		for i := 0; i < len(rows); i += 2 {
			rows[i+1].against = &rows[i]
		}
	}
	dispatched.rows[1].target = atLeast(0.85)
	return []table{bare, dispatched}, nil
}

// drainTenths has n messages of a contender drained under a snapshot, and adds the
// messages per second of the first and of the last tenth to two rows.
func drainTenths(ctx context.Context, db *pgxpool.Pool, c contender, n int, rows []row, drain func(*tenths) error) error {
	if err := refill(ctx, db, c, n); err != nil {
		return err
	}
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(holder pgx.Tx) error {
		if _, err := holder.Exec(ctx, "SELECT"); err != nil { // takes the snapshot
			return err
		}
		t := &tenths{n: n, times: []time.Time{time.Now()}}
		if err := drain(t); err != nil {
			return err
		}
		rows[0].values = append(rows[0].values, t.speed(1))
		rows[1].values = append(rows[1].values, t.speed(10))
		return nil
	})
}

// tenths are the times at which each tenth of n messages had been delivered, behind
// that of the start.
type tenths struct {
	n int

	mu    sync.Mutex
	total int
	times []time.Time
}

// delivered is told of messages as they are delivered.
func (t *tenths) delivered(batch int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.total += batch; len(t.times)*t.n <= 10*t.total; {
		t.times = append(t.times, time.Now())
	}
}

// speed is the number of messages per second of a tenth, from 1 to 10.
func (t *tenths) speed(tenth int) float64 {
	return float64(t.n) / 10 / t.times[tenth].Sub(t.times[tenth-1]).Seconds()
}
