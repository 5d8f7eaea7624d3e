package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"
	gueslog "github.com/vgarvardt/gue/v5/adapter/slog"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

// gueWorkers is the number of workers of a pool, each of which holds a connection
// and a transaction while it works. Of 4, 8, 16 and 32 it is the best compromise: one
// pool gains by more, four pools lose.
const gueWorkers = 16

const gueType = "order_placed"

// gueQueue is gue. Its workers take the job that is due first, since its index
// serves that order; by priority, its default, every look sorts all that is due.
type gueQueue struct {
	db     *pgxpool.Pool
	client *gue.Client
}

// sqlGueTable is the schema that gue publishes, which its users apply.
const sqlGueTable = `
CREATE TABLE gue_jobs (
  job_id text NOT NULL PRIMARY KEY,
  priority smallint NOT NULL,
  run_at timestamptz NOT NULL,
  job_type text NOT NULL,
  args bytea NOT NULL,
  error_count integer NOT NULL DEFAULT 0,
  last_error text,
  queue text NOT NULL,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL
);
CREATE INDEX idx_gue_jobs_selector ON gue_jobs (queue, run_at, priority);
`

func newGue(ctx context.Context, db *pgxpool.Pool) (*gueQueue, error) {
	if _, err := db.Exec(ctx, sqlGueTable, pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, err
	}
	client, err := gue.NewClient(pgxv5.NewConnPool(db), gue.WithClientLogger(gueslog.New(warnings())))
	return &gueQueue{db: db, client: client}, err
}

func (g *gueQueue) name() string { return "gue" }

func (g *gueQueue) enqueue(ctx context.Context, tx pgx.Tx, o benchbox.OrderPlaced) error {
	payload, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	return g.client.EnqueueTx(ctx, &gue.Job{Type: gueType, Args: payload}, pgxv5.NewTx(tx))
}

func (g *gueQueue) fill(ctx context.Context, n int) error {
	return inChunks(n, func(orders []benchbox.OrderPlaced) error {
		jobs := make([]*gue.Job, len(orders))
		for i, o := range orders {
			payload, err := o.MarshalJSON()
			if err != nil {
				return err
			}
			jobs[i] = &gue.Job{Type: gueType, Args: payload}
		}
		return g.client.EnqueueBatch(ctx, jobs)
	})
}

func (g *gueQueue) run(ctx context.Context, handle func(benchbox.OrderPlaced)) error {
	work := func(_ context.Context, job *gue.Job) error {
		var o benchbox.OrderPlaced
		if err := o.UnmarshalJSON(job.Args); err != nil {
			return err
		}
		handle(o)
		return nil
	}
	pool, err := gue.NewWorkerPool(g.client, gue.WorkMap{gueType: work}, gueWorkers,
		gue.WithPoolPollStrategy(gue.RunAtPollStrategy),
		gue.WithPoolGracefulShutdown(nil),
		gue.WithPoolLogger(gueslog.New(warnings())))
	if err != nil {
		return err
	}
	return pool.Run(ctx)
}

func (g *gueQueue) left(ctx context.Context) (int, error) {
	return count(ctx, g.db, "SELECT count(*) FROM gue_jobs")
}

func (g *gueQueue) reset(ctx context.Context) error {
	_, err := g.db.Exec(ctx, "TRUNCATE gue_jobs")
	return err
}
