package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

// ordered is the generated outbox with its messages in a destination that keeps
// an order within each key.
type ordered struct {
	*generated
	keys  int
	order keyOrder
}

func (o *ordered) name() string { return fmt.Sprintf("ordered, keys: %d", o.keys) }

func (o *ordered) fill(ctx context.Context, n int) error {
	h := history{n: n, destination: benchbox.DestinationBilling, state: due, keys: o.keys, age: time.Hour}
	if err := o.insert(ctx, h); err != nil {
		return err
	}
	rows, err := o.db.Query(ctx, "SELECT outbox_id, seq FROM outbox_queue")
	if err != nil {
		return err
	}
	places := make(map[benchbox.OutboxID]int64, n)
	var id uuid.UUID
	var seq int64
	_, err = pgx.ForEachRow(rows, []any{&id, &seq}, func() error {
		places[benchbox.OutboxID(id)] = seq
		return nil
	})
	o.order.begin(places)
	return err
}

func (o *ordered) deliver(ctx context.Context, worker string) (int, error) {
	entries, err := o.claim(ctx, worker, map[benchbox.Destination]int{benchbox.DestinationBilling: batchSize})
	if err != nil {
		return 0, err
	}
	o.order.watch(entries)
	return len(entries), o.complete(ctx, entries)
}

// keyOrder watches in which order the messages of each key are delivered.
type keyOrder struct {
	mu     sync.Mutex
	places map[benchbox.OutboxID]int64 // of every message, the column seq
	last   map[string]int64            // of every key, the place of the message delivered last
	astray int                         // messages, since the beginning, that came behind one that they stand before
}

func (k *keyOrder) begin(places map[benchbox.OutboxID]int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.places, k.last = places, make(map[string]int64)
}

// watch is told of messages in the order in which they are delivered.
func (k *keyOrder) watch(entries []benchbox.Entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range entries {
		place := k.places[e.ID]
		if place <= k.last[e.OrderKey] {
			k.astray++
		}
		k.last[e.OrderKey] = max(place, k.last[e.OrderKey])
	}
}

// measureOrdered drains messages that have an order within few keys and within
// many, and the same messages without an order.
func measureOrdered(ctx context.Context, database databaseMaker, s scale) ([]table, error) {
	db, err := database(ctx)
	if err != nil {
		return nil, err
	}
	if err := benchbox.Migrate(ctx, db); err != nil {
		return nil, err
	}
	plain := newGenerated(db)
	few, many := &ordered{generated: plain, keys: 10}, &ordered{generated: plain, keys: 1000}
	contenders := []outbox{plain, few, many}
	rows, err := drainInTurn(ctx, db, contenders, s)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		if first := i - i%len(contenders); i != first {
			rows[i].against = &rows[first]
		}
	}
	astray := few.order.astray + many.order.astray
	if astray > 0 {
		return nil, fmt.Errorf("%d messages were delivered out of the order of their keys", astray)
	}
	title := fmt.Sprintf("claim 100, complete 100, where there is an order; out of it: %d messages", astray)
	return []table{{title: title, unit: "messages/s", rows: rows}}, nil
}
