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
	for n := range 6 {
		o := newOrder(n)
		switch err := shop.placeOrder(ctx, o); {
		case errors.Is(err, errOverLimit):
			end.refused = o
			fmt.Fprintf(out, "rolled back: %v\n", err)
		case err != nil:
			return nil, err
		default:
			end.placed = append(end.placed, o)
		}
	}
	fmt.Fprintf(out, "%d orders placed\n", len(end.placed))

	if err := deliver(ctx, end, out); err != nil {
		return nil, err
	}
	return end, report(ctx, end, out)
}

// deliver lets two workers compete, one of which dies, and clears up after it.
func deliver(ctx context.Context, end *ending, out io.Writer) error {
	held := make(chan struct{})
	mortal := &worker{name: "mortal", box: end.box, remotes: end.remotes, diesAfter: 2, onClaim: func() { close(held) }}
	steady := &worker{name: "steady", box: end.box, remotes: end.remotes, onClaim: func() {}}

	died := make(chan error, 1)
	go func() { died <- mortal.run(ctx) }()
	select {
	case <-held: // both have their share from here on
	case err := <-died:
		return fmt.Errorf("the first worker was to die with rows in its hands: %v", err)
	}
	if err := steady.run(ctx); err != nil {
		return err
	}
	if err := <-died; !errors.Is(err, errDied) {
		return fmt.Errorf("the first worker was to die with rows in its hands: %v", err)
	}

	// An hour later the leases of the dead worker have run out.
	later := time.Now().Add(time.Hour)
	released, err := end.box.ReleaseExpiredClaims(ctx, later)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d rows taken from the worker that died\n", len(released))

	// Nobody knows whether it has captured payments, so the provider is asked.
	if err := steady.reconcile(ctx, later.Add(time.Hour)); err != nil {
		return err
	}
	return steady.run(ctx)
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
