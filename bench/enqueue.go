package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const producers = 4

const sqlBusinessTable = "CREATE TABLE business_order (order_id uuid PRIMARY KEY, customer text NOT NULL, placed_at timestamptz NOT NULL)"

const sqlBusinessInsert = "INSERT INTO business_order (order_id, customer, placed_at) VALUES ($1::uuid, $2::text, $3::timestamptz)"

// measureEnqueue counts transactions of a service that stores an order and
// enqueues a message of it, against those that insert the message into one
// table with the same columns and as many indexes.
func measureEnqueue(ctx context.Context, database databaseMaker, s scale) ([]table, error) {
	db, err := database(ctx)
	if err != nil {
		return nil, err
	}
	contenders, err := openOutboxes(ctx, db)
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(ctx, sqlBusinessTable+";"+sqlClassicIndexes, pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, err
	}
	rows := []row{{name: contenders[0].name()}, {name: "one INSERT"}}
	rows[0].against, rows[0].target = &rows[1], atLeast(0.9)
	for _, o := range contenders { // prepares the statements on every connection
		if err := produce(ctx, db, o, 10*producers); err != nil {
			return nil, err
		}
	}
	for range s.rounds {
		for i, o := range contenders {
			start := time.Now()
			if err := produce(ctx, db, o, s.transactions); err != nil {
				return nil, err
			}
			rows[i].values = append(rows[i].values, float64(s.transactions)/time.Since(start).Seconds())
		}
	}
	return []table{{title: "business INSERT and one enqueue in its transaction, 4 producers", unit: "transactions/s", rows: rows}}, nil
}

// produce runs n transactions, shared among the producers.
func produce(ctx context.Context, db *pgxpool.Pool, o outbox, n int) error {
	return together(producers, func(producer int) error {
		for i := producer; i < n; i += producers {
			order, err := newOrder()
			if err != nil {
				return err
			}
			err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, sqlBusinessInsert, order.OrderID, order.Customer, order.PlacedAt); err != nil {
					return err
				}
				return o.enqueue(ctx, tx, order)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// together calls do in n goroutines and waits for all of them.
func together(n int, do func(int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = do(i)
		}()
	}
	all.Wait()
	return errors.Join(errs...)
}
