package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

// riverQueue is River.
type riverQueue struct {
	db       *pgxpool.Pool
	client   *river.Client[pgx.Tx] // that inserts
	workers  int
	cooldown time.Duration // between two fetches; 0 is River's own
	poll     time.Duration // 0 is River's own
}

// riverOrder is the job.
type riverOrder struct{ benchbox.OrderPlaced }

func (riverOrder) Kind() string { return "order_placed" }

func newRiver(ctx context.Context, db *pgxpool.Pool) (*riverQueue, error) {
	driver := riverpgxv5.New(db)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: warnings()})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	client, err := river.NewClient(driver, &river.Config{Logger: warnings()})
	return &riverQueue{db: db, client: client}, err
}

// with is River with so many workers, for throughput: it fetches as often as
// River's own benchmark does (its command "river bench"), which is fifty times as
// often as it does by default.
func (r *riverQueue) with(workers int) *riverQueue {
	return &riverQueue{db: r.db, client: r.client, workers: workers, cooldown: 2 * time.Millisecond, poll: 20 * time.Millisecond}
}

// byDefault is River as it is when nothing but the number of workers is set.
func (r *riverQueue) byDefault(workers int) *riverQueue {
	return &riverQueue{db: r.db, client: r.client, workers: workers}
}

func (r *riverQueue) name() string {
	switch {
	case r.workers == 0:
		return "River"
	case r.cooldown == 0:
		return fmt.Sprintf("River by default, %d workers", r.workers)
	}
	return fmt.Sprintf("River, %d workers", r.workers)
}

func (r *riverQueue) enqueue(ctx context.Context, tx pgx.Tx, o benchbox.OrderPlaced) error {
	_, err := r.client.InsertTx(ctx, tx, riverOrder{o}, nil)
	return err
}

func (r *riverQueue) fill(ctx context.Context, n int) error {
	return inChunks(n, func(orders []benchbox.OrderPlaced) error {
		jobs := make([]river.InsertManyParams, len(orders))
		for i, o := range orders {
			jobs[i].Args = riverOrder{o}
		}
		_, err := r.client.InsertManyFast(ctx, jobs)
		return err
	})
}

func (r *riverQueue) run(ctx context.Context, handle func(benchbox.OrderPlaced)) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{handle: handle})
	client, err := river.NewClient(riverpgxv5.New(r.db), &river.Config{
		FetchCooldown:     r.cooldown,
		FetchPollInterval: r.poll,
		Logger:            warnings(),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: r.workers}},
		Workers:           workers,
	})
	if err != nil {
		return err
	}
	background := context.WithoutCancel(ctx)
	if err := client.Start(background); err != nil {
		return err
	}
	<-ctx.Done()
	return client.Stop(background)
}

type riverWorker struct {
	river.WorkerDefaults[riverOrder]
	handle func(benchbox.OrderPlaced)
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[riverOrder]) error {
	w.handle(job.Args.OrderPlaced)
	return nil
}

func (r *riverQueue) left(ctx context.Context) (int, error) {
	return count(ctx, r.db, "SELECT count(*) FROM river_job WHERE state <> 'completed'")
}

func (r *riverQueue) reset(ctx context.Context) error {
	_, err := r.db.Exec(ctx, "TRUNCATE river_job")
	return err
}

// inChunks makes n orders and stores them, a thousand at a time.
func inChunks(n int, store func([]benchbox.OrderPlaced) error) error {
	for n > 0 {
		orders := make([]benchbox.OrderPlaced, min(n, 1000))
		for i := range orders {
			var err error
			if orders[i], err = newOrder(); err != nil {
				return err
			}
		}
		if err := store(orders); err != nil {
			return err
		}
		n -= len(orders)
	}
	return nil
}
