package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/examples/broker/internal/eventbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Getenv("NATS_URL")); err != nil {
		fmt.Fprintln(os.Stderr, "broker:", err)
		os.Exit(1)
	}
}

// run delivers until ctx ends.
func run(ctx context.Context, databaseURL, natsURL string) error {
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := eventbox.Migrate(ctx, db); err != nil {
		return err
	}
	nc, err := connect(natsURL)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if _, err := js.CreateOrUpdateStream(ctx, stream()); err != nil {
		return err
	}
	d, err := eventbox.NewDispatcher(eventbox.New(db, eventbox.Options{}), handlers(js), eventbox.DispatcherOptions{})
	if err != nil {
		return err
	}
	return d.Run(ctx)
}
