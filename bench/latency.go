package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

// messageGap is the mean time from one message to the next. The times are random:
// a dispatcher that looks at regular times would meet regular messages always at the
// same distance.
const messageGap = 20 * time.Millisecond

// measureLatency takes the time from a commit to the call of the handler, where
// messages come one by one and nothing else waits.
func measureLatency(ctx context.Context, database databaseMaker, s scale) ([]table, error) {
	db, err := database(ctx)
	if err != nil {
		return nil, err
	}
	if db, err = withConns(ctx, db, dispatcherConns); err != nil {
		return nil, err
	}
	defer db.Close()
	generated, peers, err := openDispatchers(ctx, db)
	if err != nil {
		return nil, err
	}
	// How soon River looks is a matter of how often it may, so it is here twice: as
	// its users have it, and as its benchmark sets it.
	entrants := []dispatcher{generated, peers.river.byDefault(64), peers.river.with(64), peers.watermill}
	quantiles := []struct {
		name string
		q    float64
	}{{"p50", 0.5}, {"p99", 0.99}}
	rows := make([]row, len(quantiles)*len(entrants))
	for range s.rounds {
		for i, d := range entrants {
			if err := d.reset(ctx); err != nil {
				return nil, err
			}
			times, err := latencies(ctx, db, d, s.trickle)
			if err != nil {
				return nil, err
			}
			for j, q := range quantiles {
				r := &rows[j*len(entrants)+i]
				r.name = d.name() + ", " + q.name
				r.values = append(r.values, quantile(times, q.q))
			}
		}
	}
	for j := range quantiles {
		ours := j * len(entrants)
		rows[ours].against, rows[ours].target = &rows[ours+1], atMost(0.1)
		rows[ours+2].against, rows[ours+3].against = &rows[ours+1], &rows[ours+1]
	}
	title := fmt.Sprintf("commit to handler, one message in %s", messageGap)
	return []table{{title: title, unit: "ms", rows: rows}}, nil
}

// leadIn is the number of messages, one after the other, after which a dispatcher
// has its connections and listens.
const leadIn = 3

// latencies enqueues n messages and gives the milliseconds from each commit, as it
// is sent, to the call of the handler.
func latencies(ctx context.Context, db *pgxpool.Pool, d dispatcher, n int) ([]float64, error) {
	type arrival struct {
		id uuid.UUID
		at time.Time
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	arrivals := make(chan arrival, leadIn+n)
	stopped := make(chan error, 1)
	go func() {
		defer stop() // nothing more arrives
		stopped <- d.run(ctx, func(o benchbox.OrderPlaced) { arrivals <- arrival{o.OrderID, time.Now()} })
	}()

	committed := make(map[uuid.UUID]time.Time)
	var times []float64
	receive := func() error {
		select {
		case a := <-arrivals:
			times = append(times, a.at.Sub(committed[a.id]).Seconds()*1000)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := func() error {
		for i := range leadIn + n {
			id, at, err := place(ctx, db, d)
			if err != nil {
				return err
			}
			committed[id] = at
			if i < leadIn {
				err = receive()
			} else {
				err = pause(ctx, time.Duration(rand.ExpFloat64()*float64(messageGap)))
			}
			if err != nil {
				return err
			}
		}
		for len(times) < leadIn+n {
			if err := receive(); err != nil {
				return err
			}
		}
		return nil
	}()
	stop()
	if err = errors.Join(err, <-stopped); err != nil {
		return nil, fmt.Errorf("%s: %w", d.name(), err)
	}
	return times[leadIn:], nil
}

// place enqueues an order, and gives the time at which the commit was sent.
func place(ctx context.Context, db *pgxpool.Pool, to contender) (id uuid.UUID, at time.Time, err error) {
	order, err := newOrder()
	if err != nil {
		return id, at, err
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		err := to.enqueue(ctx, tx, order)
		at = time.Now()
		return err
	})
	return order.OrderID, at, err
}

func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-time.After(length):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
