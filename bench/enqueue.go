package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

const sqlBusinessTable = "CREATE TABLE business_order (order_id uuid PRIMARY KEY, customer text NOT NULL, placed_at timestamptz NOT NULL)"

const sqlBusinessInsert = "INSERT INTO business_order (order_id, customer, placed_at) VALUES ($1::uuid, $2::text, $3::timestamptz)"

// measureEnqueue counts transactions of a service that stores an order and
// enqueues a message of it, against those that insert the message into one
// table with the same columns and as many indexes, and those of the peers.
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
	peers, err := openPeers(ctx, db)
	if err != nil {
		return nil, err
	}
	all := []contender{contenders[0], contenders[1], peers.river, peers.watermill, peers.gue}
	services, rows := make([]service, len(all)), make([]row, len(all))
	for i, c := range all {
		services[i], rows[i].name = inTransaction(db, c), c.name()
	}
	rows[1].name = "one INSERT"
	if err := measureServices(ctx, services, 4, s, rows); err != nil {
		return nil, err
	}
	if err := checkMessages(ctx, db, all); err != nil {
		return nil, err
	}
	rows = compared(rows, []target{atLeast(0.9), atLeast(1.8)})
	return []table{{title: "business INSERT and one enqueue in its transaction, 4 producers", unit: "transactions/s", rows: rows}}, nil
}

// measureQueue counts the same transactions where the business INSERT, the
// message and the commit are one round trip, against those where each is one.
func measureQueue(ctx context.Context, database databaseMaker, s scale) ([]table, error) {
	db, err := database(ctx)
	if err != nil {
		return nil, err
	}
	producers := []int{4, 16}
	if db, err = withConns(ctx, db, slices.Max(producers)); err != nil { // nobody waits for a connection
		return nil, err
	}
	defer db.Close()
	contenders, err := openOutboxes(ctx, db)
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(ctx, sqlBusinessTable+";"+sqlClassicIndexes, pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, err
	}
	generated, classic := contenders[0], contenders[1]
	services := []service{inTransaction(db, classic), inBatch(db, classic), inTransaction(db, generated), inBatch(db, generated)}
	var tables []table
	for _, n := range producers {
		rows := []row{{name: "one INSERT"}, {name: "one INSERT in the batch"}, {name: "Enqueue"}, {name: "QueueEnqueue"}}
		rows[1].against, rows[2].against, rows[3].against = &rows[0], &rows[0], &rows[2]
		if err := measureServices(ctx, services, n, s, rows); err != nil {
			return nil, err
		}
		tables = append(tables, table{
			title: fmt.Sprintf("business INSERT and one message, statement by statement and in one batch, %d producers", n),
			unit:  "transactions/s", rows: rows,
		})
	}
	return tables, checkMessages(ctx, db, []contender{generated, classic})
}

// checkMessages fails when there is not one message for each order.
func checkMessages(ctx context.Context, db *pgxpool.Pool, contenders []contender) error {
	orders, err := count(ctx, db, "SELECT count(*) FROM business_order")
	if err != nil {
		return err
	}
	messages := 0
	for _, o := range contenders {
		n, err := o.left(ctx)
		if err != nil {
			return err
		}
		messages += n
	}
	if messages != orders {
		return fmt.Errorf("there are %d messages for %d orders", messages, orders)
	}
	return nil
}

// A service stores an order, and a message of it in the same transaction.
type service func(ctx context.Context, order benchbox.OrderPlaced) error

// inTransaction sends each statement by itself.
func inTransaction(db *pgxpool.Pool, to contender) service {
	return func(ctx context.Context, order benchbox.OrderPlaced) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sqlBusinessInsert, order.OrderID, order.Customer, order.PlacedAt); err != nil {
				return err
			}
			return to.enqueue(ctx, tx, order)
		})
	}
}

// inBatch sends all statements at once, which makes them a transaction.
func inBatch(db *pgxpool.Pool, to outbox) service {
	return func(ctx context.Context, order benchbox.OrderPlaced) error {
		batch := &pgx.Batch{}
		batch.Queue(sqlBusinessInsert, order.OrderID, order.Customer, order.PlacedAt)
		if err := to.queue(ctx, batch, order); err != nil {
			return err
		}
		return db.SendBatch(ctx, batch).Close()
	}
}

// measureServices adds the transactions per second of each service to its row.
func measureServices(ctx context.Context, services []service, producers int, s scale, rows []row) error {
	for _, one := range services { // prepares the statements on every connection
		if err := one.produce(ctx, producers, 10*producers); err != nil {
			return err
		}
	}
	for range s.rounds {
		for i, one := range services {
			start := time.Now()
			if err := one.produce(ctx, producers, s.transactions); err != nil {
				return err
			}
			rows[i].values = append(rows[i].values, float64(s.transactions)/time.Since(start).Seconds())
		}
	}
	return nil
}

// produce runs n transactions, shared among the producers.
func (s service) produce(ctx context.Context, producers, n int) error {
	return together(producers, func(producer int) error {
		for i := producer; i < n; i += producers {
			order, err := newOrder()
			if err != nil {
				return err
			}
			if err := s(ctx, order); err != nil {
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
