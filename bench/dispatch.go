package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

// A dispatcher is a contender that claims, calls a handler and settles by itself.
type dispatcher interface {
	contender
	// run delivers what is due to handle, until ctx ends. It returns nil when it
	// has stopped in good order.
	run(ctx context.Context, handle func(benchbox.OrderPlaced)) error
}

// openDispatchers makes the contenders in one database.
func openDispatchers(ctx context.Context, db *pgxpool.Pool) (*generated, peers, error) {
	if err := benchbox.Migrate(ctx, db); err != nil {
		return nil, peers{}, err
	}
	others, err := openPeers(ctx, db)
	return newGenerated(db), others, err
}

// peers are other libraries that deliver from Postgres.
type peers struct {
	river     *riverQueue
	watermill *watermillQueue
	gue       *gueQueue
}

func openPeers(ctx context.Context, db *pgxpool.Pool) (p peers, err error) {
	if p.river, err = newRiver(ctx, db); err != nil {
		return p, err
	}
	if p.watermill, err = newWatermill(ctx, db); err != nil {
		return p, err
	}
	p.gue, err = newGue(ctx, db)
	return p, err
}

// dispatcherConns is the number of connections that the dispatchers share: enough
// that none waits for one. gue asks for the most, one for each of its workers.
const dispatcherConns = 4*gueWorkers + 16

// warnings is the logger of all dispatchers, so that none spends more on it than
// another, and none writes into the tables.
func warnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// dispatch has the n messages that are due delivered by so many dispatchers of a
// contender, and gives the time until all were handled and settled. handle is
// called for every message, by several goroutines.
func dispatch(ctx context.Context, d dispatcher, n, dispatchers int, handle func(benchbox.OrderPlaced)) (time.Duration, error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	var handled atomic.Int64
	all := make(chan struct{})
	stopped := make(chan error, 1)
	start := time.Now()
	go func() {
		stopped <- together(dispatchers, func(int) error {
			err := d.run(running, func(o benchbox.OrderPlaced) {
				handle(o)
				if handled.Add(1) == int64(n) {
					close(all)
				}
			})
			if err != nil {
				stop() // the others would wait for what this one holds
			}
			return err
		})
	}()
	select {
	case <-all:
	case err := <-stopped:
		if done := handled.Load(); err != nil || done < int64(n) {
			return 0, errors.Join(fmt.Errorf("%s stopped after %d of %d messages", d.name(), done, n), err)
		}
		stopped <- nil
	}
	for left := n; left > 0; {
		var err error
		if left, err = d.left(ctx); err != nil {
			return 0, err
		}
	}
	took := time.Since(start)
	stop()
	if err := <-stopped; err != nil {
		return 0, fmt.Errorf("%s: %w", d.name(), err)
	}
	if total := handled.Load(); total != int64(n) {
		return 0, fmt.Errorf("%s: %d messages were handled %d times", d.name(), n, total)
	}
	return took, nil
}

// bareLoop calls the statements of the generated package one after the other: what
// a dispatcher could reach that had nothing else to do. It ends when nothing is due.
type bareLoop struct{ *generated }

func (l bareLoop) name() string { return "bare loop" }

func (l bareLoop) run(ctx context.Context, handle func(benchbox.OrderPlaced)) error {
	ctx = context.WithoutCancel(ctx) // not in the midst of a statement
	for {
		entries, err := l.claim(ctx, "bench", map[benchbox.Destination]int{benchbox.DestinationLedger: batchSize})
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, e := range entries {
			handle(e.Payload.(benchbox.OrderPlaced))
		}
		if err := l.complete(ctx, entries); err != nil {
			return err
		}
	}
}

// run is the generated package's own dispatcher, as a program has it that delivers
// to one destination.
func (g *generated) run(ctx context.Context, handle func(benchbox.OrderPlaced)) error {
	handlers := benchbox.SomeHandlers(benchbox.HandleLedger(ledger(handle)))
	d, err := benchbox.NewDispatcher(g.store, handlers, benchbox.DispatcherOptions{Logger: warnings()})
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// ledger completes what it has handled.
type ledger func(benchbox.OrderPlaced)

func (l ledger) OrderPlaced(_ context.Context, _ benchbox.Delivery, o benchbox.OrderPlaced) benchbox.Outcome {
	l(o)
	return benchbox.Completed()
}

// handlerTime is how long a handler takes that waits for a remote.
const handlerTime = 5 * time.Millisecond

// measureDispatch counts messages that dispatchers deliver, one of a contender and
// four, to a handler that does nothing, and to one that takes its time.
func measureDispatch(ctx context.Context, database databaseMaker, s scale) ([]table, error) {
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
	nothing := func(benchbox.OrderPlaced) {}
	slow := func(benchbox.OrderPlaced) { time.Sleep(handlerTime) }
	quick := []dispatcher{generated, bareLoop{generated}, peers.river.with(64), peers.river.with(2000), peers.watermill, peers.gue}
	races := []*race{
		{title: "one dispatcher, handler does nothing", dispatchers: 1, handle: nothing, entrants: quick, targets: []target{atLeast(0.85), atLeast(6), atLeast(4.5)}},
		{title: "four dispatchers, handler does nothing", dispatchers: 4, handle: nothing, entrants: quick, targets: []target{{}, atLeast(8)}},
		{
			title: fmt.Sprintf("one dispatcher, handler takes %s, 64 at the same time", handlerTime), dispatchers: 1, handle: slow,
			entrants: []dispatcher{generated, peers.river.with(64)},
		},
	}
	for k := range s.rounds + 1 {
		for _, r := range races {
			if err := r.round(ctx, db, s.messages, k > 0); err != nil {
				return nil, err
			}
		}
	}
	var tables []table
	for _, r := range races {
		tables = append(tables, table{title: r.title, unit: "messages/s", rows: r.rows()})
	}
	return tables, nil
}

// A race is what some contenders deliver under the same conditions.
type race struct {
	title       string
	dispatchers int
	handle      func(benchbox.OrderPlaced)
	entrants    []dispatcher
	targets     []target // of the first entrant's ratio to each
	speeds      [][]float64
}

// round has every entrant deliver n messages. The first round of all does not
// count: the statements were not prepared yet.
func (r *race) round(ctx context.Context, db *pgxpool.Pool, n int, counts bool) error {
	if r.speeds == nil {
		r.speeds = make([][]float64, len(r.entrants))
	}
	for i, d := range r.entrants {
		if err := refill(ctx, db, d, n); err != nil {
			return err
		}
		took, err := dispatch(ctx, d, n, r.dispatchers, r.handle)
		if err != nil {
			return err
		}
		if counts {
			r.speeds[i] = append(r.speeds[i], float64(n)/took.Seconds())
		}
	}
	return nil
}

// rows are the figures, with the first entrant's ratio to each of the others.
func (r *race) rows() []row {
	rows := make([]row, len(r.entrants))
	for i, d := range r.entrants {
		rows[i] = row{name: d.name(), values: r.speeds[i]}
	}
	return compared(rows, r.targets)
}
