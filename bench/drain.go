package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// drain delivers the n messages that are due, with so many workers, and fails
// when it was not n. A worker that comes away with nothing asks again when
// another has settled a batch, which may have held up the rest; when all have
// come away with nothing, they end. delivered, when there is one, is told of
// every batch, by one worker at a time.
func drain(ctx context.Context, o outbox, n, workers int, delivered func(batch int)) error {
	var one sync.Mutex
	changed := sync.NewCond(&one) // total or idle has
	total, idle := 0, 0
	err := together(workers, func(worker int) error {
		one.Lock()
		defer one.Unlock()
		for {
			before := total
			one.Unlock()
			batch, err := o.deliver(ctx, fmt.Sprintf("worker-%d", worker))
			one.Lock()
			changed.Broadcast()
			if err == nil && batch > 0 {
				total += batch
				if delivered != nil {
					delivered(batch)
				}
				continue
			}
			idle++
			if err != nil {
				return err
			}
			for total == before && idle < workers {
				changed.Wait()
			}
			if total == before {
				return nil
			}
			idle--
		}
	})
	if err != nil {
		return err
	}
	left, err := o.left(ctx)
	if err == nil && (total != n || left != 0) {
		err = fmt.Errorf("%s: of %d messages %d were delivered and %d are left", o.name(), n, total, left)
	}
	return err
}

// refill leaves n messages that are due and no others, in a quiet database.
func refill(ctx context.Context, db *pgxpool.Pool, o contender, n int) error {
	if err := o.reset(ctx); err != nil {
		return err
	}
	if err := o.fill(ctx, n); err != nil {
		return err
	}
	return settleDown(ctx, db)
}

// measureDrain counts messages that one worker, and four, claim and complete in
// a loop that does nothing else.
func measureDrain(ctx context.Context, database databaseMaker, s scale) ([]table, error) {
	db, err := database(ctx)
	if err != nil {
		return nil, err
	}
	contenders, err := openOutboxes(ctx, db)
	if err != nil {
		return nil, err
	}
	rows, err := drainInTurn(ctx, db, contenders, s)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(rows); i += len(contenders) {
		rows[i].against = &rows[i+1]
	}
	return []table{{title: "claim 100, complete 100, handler does nothing", unit: "messages/s", rows: rows}}, nil
}

// drainInTurn gives the messages per second of each contender with one worker,
// and behind these with four.
func drainInTurn(ctx context.Context, db *pgxpool.Pool, contenders []outbox, s scale) ([]row, error) {
	workers := []int{1, 4}
	rows := make([]row, len(workers)*len(contenders))
	for k := range s.rounds + 1 {
		for w, n := range workers {
			for i, o := range contenders {
				if err := refill(ctx, db, o, s.messages); err != nil {
					return nil, err
				}
				start := time.Now()
				if err := drain(ctx, o, s.messages, n, nil); err != nil {
					return nil, err
				}
				if k == 0 {
					continue // the statements were not prepared yet
				}
				r := &rows[w*len(contenders)+i]
				r.name = fmt.Sprintf("%s, workers: %d", o.name(), n)
				r.values = append(r.values, float64(s.messages)/time.Since(start).Seconds())
			}
		}
	}
	return rows, nil
}
