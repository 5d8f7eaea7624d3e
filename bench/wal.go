package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// measureWAL counts the bytes of write-ahead log that a message costs when it
// is enqueued, and when it is claimed and completed. The pages have not been
// written since a checkpoint, so images of whole pages are in it, as they are
// when traffic is slow.
func measureWAL(ctx context.Context, database databaseMaker, s scale) ([]table, error) {
	db, err := database(ctx)
	if err != nil {
		return nil, err
	}
	contenders, err := openOutboxes(ctx, db)
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(ctx, sqlBusinessTable); err != nil {
		return nil, err
	}
	enqueued, drained := make([]row, len(contenders)), make([]row, len(contenders))
	for i, o := range contenders {
		enqueued[i].name, drained[i].name = o.name(), o.name()
	}
	enqueued[0].against = &enqueued[1]
	drained[0].against, drained[0].target = &drained[1], atMost(0.25)
	for range s.rounds {
		for i, o := range contenders {
			if err := o.reset(ctx); err != nil {
				return nil, err
			}
			if err := settleDown(ctx, db); err != nil {
				return nil, err
			}
			bytes, err := walOf(ctx, db, func() error { return inTransaction(db, o).produce(ctx, 4, s.messages) })
			if err != nil {
				return nil, err
			}
			enqueued[i].values = append(enqueued[i].values, bytes/float64(s.messages))
			if err := settleDown(ctx, db); err != nil {
				return nil, err
			}
			bytes, err = walOf(ctx, db, func() error { return drain(ctx, o, s.messages, 1, nil) })
			if err != nil {
				return nil, err
			}
			drained[i].values = append(drained[i].values, bytes/float64(s.messages))
		}
	}
	return []table{
		{title: "write-ahead log of a transaction with a business INSERT and one enqueue", unit: "bytes", rows: enqueued},
		{title: "write-ahead log for a message, from its claim to its end, in batches of 100", unit: "bytes", rows: drained},
	}, nil
}

// walOf is the number of bytes that the server has written to its log while do
// ran. There must be no other traffic.
func walOf(ctx context.Context, db *pgxpool.Pool, do func() error) (float64, error) {
	var before string
	if err := db.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&before); err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	var bytes float64
	err := db.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::float8", before).Scan(&bytes)
	return bytes, err
}
