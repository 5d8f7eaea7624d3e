package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shopspring/decimal"

	"github.com/outboxgen/outboxgen/examples/orders/internal/orderbox"
	"github.com/outboxgen/outboxgen/internal/pgtest"
)

func main() {
	if err := demo(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

// demo runs the story on a Postgres that it starts.
func demo(ctx context.Context, out io.Writer) (err error) {
	server, err := pgtest.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	url, err := server.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	db, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = story(ctx, db, out)
	return err
}

// ending is what the story leaves behind.
type ending struct {
	box     *orderbox.Store
	placed  []order
	refused order
	remotes *remotes
}

// story takes orders, delivers what they enqueue, and prints how every row ends.
func story(ctx context.Context, db *pgxpool.Pool, out io.Writer) (*ending, error) {
	if _, err := db.Exec(ctx, sqlOrders); err != nil {
		return nil, err
	}
	if err := orderbox.Migrate(ctx, db); err != nil {
		return nil, err
	}
	box := orderbox.New(db, orderbox.Options{})
	end := &ending{box: box, remotes: &remotes{
		received: make(map[message][]string),
		down:     map[orderbox.Destination]bool{orderbox.DestinationAnalytics: true},
	}}

	shop := &service{db: db, box: box}
	if err := place(ctx, shop, end, out, newOrder(0), newOrder(1)); err != nil {
		return nil, err
	}
	if err := die(ctx, end, out); err != nil {
		return nil, err
	}
	if err := place(ctx, shop, end, out, newOrder(2), newOrder(3), newOrder(4), newOrder(5)); err != nil {
		return nil, err
	}
	if err := deliver(ctx, db, end); err != nil {
		return nil, err
	}
	return end, report(ctx, end, out)
}

// place takes orders.
func place(ctx context.Context, shop *service, end *ending, out io.Writer, orders ...order) error {
	for _, o := range orders {
		switch err := shop.placeOrder(ctx, o); {
		case errors.Is(err, errOverLimit):
			end.refused = o
			fmt.Fprintf(out, "rolled back: %v\n", err)
		case err != nil:
			return err
		default:
			end.placed = append(end.placed, o)
		}
	}
	fmt.Fprintf(out, "%d orders placed\n", len(end.placed))
	return nil
}

// die has a worker killed that has sent every message so far, and has had an
// answer to none.
func die(ctx context.Context, end *ending, out io.Writer) error {
	records, err := end.box.List(ctx, orderbox.Filter{}, orderbox.OutboxID{}, 100)
	if err != nil {
		return err
	}
	calls := make(chan struct{}, len(records))
	w := &worker{remotes: end.remotes, dies: calls}
	mortal, err := orderbox.NewDispatcher(end.box, w.handlers(), orderbox.DispatcherOptions{WorkerID: "mortal"})
	if err != nil {
		return err
	}
	died := make(chan error, 1)
	go func() { died <- mortal.Run(ctx) }()
	for range records {
		select {
		case <-calls:
		case err := <-died:
			return fmt.Errorf("the worker has ended before it was killed: %v", err)
		}
	}
	mortal.Abort()
	var held *orderbox.StopError
	if err := <-died; !errors.As(err, &held) {
		return fmt.Errorf("the worker was to die with rows in its hands: %v", err)
	}
	fmt.Fprintf(out, "a worker died with %d rows in its hands\n", len(held.Unsettled))
	return nil
}

// deliver has another worker do what there is to do now, and after some time.
func deliver(ctx context.Context, db *pgxpool.Pool, end *ending) error {
	w := &worker{remotes: end.remotes}
	steady, err := orderbox.NewDispatcher(end.box, w.handlers(), orderbox.DispatcherOptions{WorkerID: "steady"})
	if err != nil {
		return err
	}
	for _, later := range []time.Duration{
		0,
		time.Hour,      // the claims of the dead worker have run out, and nobody knows whether it has captured payments
		time.Hour,      // the provider is asked about these
		24 * time.Hour, // what analytics could not be told is worth nothing any more
	} {
		if err := pass(ctx, db, later); err != nil {
			return err
		}
		for {
			n, err := steady.RunOnce(ctx)
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
		}
	}
	return nil
}

// pass lets time go by: it moves all times of the rows that wait into the past.
func pass(ctx context.Context, db *pgxpool.Pool, d time.Duration) error {
	_, err := db.Exec(ctx, `UPDATE order_outbox_queue SET claim_taken_at = claim_taken_at - $1::interval,
  next_attempt_at = next_attempt_at - $1::interval, expires_at = expires_at - $1::interval`, d)
	return err
}

// report prints every row of every order.
func report(ctx context.Context, end *ending, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nORDER\tDESTINATION\tPAYLOAD\tSTATUS\tATTEMPTS\tREMOTE\tLAST FAILURE")
	for n, o := range append(end.placed, end.refused) {
		records, err := end.box.ListForCommand(ctx, orderbox.CommandID(o.id))
		if err != nil {
			return err
		}
		for _, r := range records {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%d\t%s\t%s\n", n+1, r.Destination, r.PayloadType, r.Status, r.Attempt, r.RemoteRef, r.LastFailure)
		}
		if len(records) == 0 {
			fmt.Fprintf(table, "refused\t(no rows: they were rolled back with the order)\n")
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	check, err := end.box.CheckRows(ctx)
	if err != nil {
		return err
	}
	if check != (orderbox.RowCheck{}) {
		return fmt.Errorf("the tables are damaged: %+v", check)
	}
	return nil
}

// newOrder is the nth order of the day; the third is too large.
func newOrder(n int) order {
	quantity := int32(n + 1)
	if n == 2 {
		quantity = 1000
	}
	return order{
		id: uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(n)}), tenant: uuid.NewSHA1(uuid.NameSpaceOID, []byte("shop")),
		email: fmt.Sprintf("customer%d@example.com", n), authorisation: fmt.Sprintf("auth-%d", n),
		lines: []orderbox.OrderLine{
			{SKU: "TEA-250", Quantity: quantity, Price: orderbox.Money{Amount: decimal.RequireFromString("7.90"), Currency: orderbox.CurrencyEUR}},
			{SKU: "CUP-1", Quantity: 1, Price: orderbox.Money{Amount: decimal.RequireFromString("12.50"), Currency: orderbox.CurrencyEUR}},
		},
		shipTo:   orderbox.Address{Name: "A. Customer", Lines: []string{"1 High Street"}, Postcode: "10115", Country: "DE"},
		placedAt: time.Now(),
	}
}
