package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/webhooks/internal/hookbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL")); err != nil {
		fmt.Fprintln(os.Stderr, "webhooks:", err)
		os.Exit(1)
	}
}

// run delivers until ctx ends.
func run(ctx context.Context, databaseURL string) error {
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := prepare(ctx, db); err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil // it would be asked to connect in place of the dialer
	transport.DialContext = (&net.Dialer{Control: publicOnly}).DialContext
	d, err := dispatcher(db, newClient(transport), hookbox.DispatcherOptions{})
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// prepare makes the tables.
func prepare(ctx context.Context, db *pgxpool.Pool) error {
	if _, err := db.Exec(ctx, sqlEndpoints); err != nil {
		return err
	}
	return hookbox.Migrate(ctx, db)
}

func dispatcher(db *pgxpool.Pool, client *http.Client, options hookbox.DispatcherOptions) (*hookbox.Dispatcher, error) {
	s := &sender{client: client, endpoints: table{db}, now: time.Now}
	return hookbox.NewDispatcher(hookbox.New(db, hookbox.Options{}), hookbox.AllHandlers(hookbox.HandleWebhooks(s)), options)
}
