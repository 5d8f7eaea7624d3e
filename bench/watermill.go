package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

const watermillTopic = "orders"

// watermillQueue is watermill-sql with its queue schema, which removes messages as
// they are acknowledged: the fastest that it has, and the one that several
// subscribers can share without consumer groups. It reads a hundred at a time, which
// is its default, and hands out one at a time, which cannot be changed. Where there
// is nothing it looks again after its default of a second.
type watermillQueue struct {
	db     *pgxpool.Pool
	logger watermill.LoggerAdapter
}

func newWatermill(ctx context.Context, db *pgxpool.Pool) (*watermillQueue, error) {
	w := &watermillQueue{db: db, logger: watermill.NewSlogLogger(warnings())}
	subscriber, err := w.subscriber()
	if err != nil {
		return nil, err
	}
	return w, subscriber.SubscribeInitialize(watermillTopic)
}

func (w *watermillQueue) subscriber() (*watermillsql.Subscriber, error) {
	return watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(w.db), watermillsql.SubscriberConfig{
		SchemaAdapter:  watermillsql.PostgreSQLQueueSchema{},
		OffsetsAdapter: watermillsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
	}, w.logger)
}

func (w *watermillQueue) name() string { return "watermill-sql" }

func (w *watermillQueue) enqueue(_ context.Context, tx pgx.Tx, o benchbox.OrderPlaced) error {
	return w.publish(watermillsql.TxFromPgx(tx), o)
}

func (w *watermillQueue) fill(_ context.Context, n int) error {
	return inChunks(n, func(orders []benchbox.OrderPlaced) error {
		return w.publish(watermillsql.BeginnerFromPgx(w.db), orders...)
	})
}

func (w *watermillQueue) publish(to watermillsql.ContextExecutor, orders ...benchbox.OrderPlaced) error {
	publisher, err := watermillsql.NewPublisher(to, watermillsql.PublisherConfig{SchemaAdapter: watermillsql.PostgreSQLQueueSchema{}}, w.logger)
	if err != nil {
		return err
	}
	messages := make([]*message.Message, len(orders))
	for i, o := range orders {
		payload, err := o.MarshalJSON()
		if err != nil {
			return err
		}
		messages[i] = message.NewMessage(watermill.NewUUID(), payload)
	}
	return publisher.Publish(watermillTopic, messages...)
}

func (w *watermillQueue) run(ctx context.Context, handle func(benchbox.OrderPlaced)) error {
	subscriber, err := w.subscriber()
	if err != nil {
		return err
	}
	// Close lets it finish a batch, where the end of its context would not.
	messages, err := subscriber.Subscribe(context.WithoutCancel(ctx), watermillTopic)
	if err != nil {
		return err
	}
	closed := make(chan error, 1)
	context.AfterFunc(ctx, func() { closed <- subscriber.Close() })
	for m := range messages {
		var o benchbox.OrderPlaced
		if err := o.UnmarshalJSON(m.Payload); err != nil {
			return err
		}
		handle(o)
		m.Ack()
	}
	return <-closed
}

func (w *watermillQueue) left(ctx context.Context) (int, error) {
	return count(ctx, w.db, "SELECT count(*) FROM watermill_"+watermillTopic)
}

func (w *watermillQueue) reset(ctx context.Context) error {
	_, err := w.db.Exec(ctx, "TRUNCATE watermill_"+watermillTopic)
	return err
}
