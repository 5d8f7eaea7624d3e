package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shopspring/decimal"

	"github.com/outboxgen/outboxgen/examples/orders/internal/orderbox"
)

// sqlOrders makes the service's own table.
const sqlOrders = `CREATE TABLE orders (
  order_id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  email text NOT NULL,
  total numeric NOT NULL,
  placed_at timestamptz NOT NULL
)`

// errOverLimit is why an order is refused, late: its rows have been written.
var errOverLimit = errors.New("the order is over the customer's limit")

// order is what a customer asks for.
type order struct {
	id            uuid.UUID
	tenant        uuid.UUID
	email         string
	authorisation string // of the payment, by the customer
	lines         []orderbox.OrderLine
	shipTo        orderbox.Address
	placedAt      time.Time
}

func (o order) total() orderbox.Money {
	sum := orderbox.Money{Currency: orderbox.CurrencyEUR}
	for _, line := range o.lines {
		sum.Amount = sum.Amount.Add(line.Price.Amount.Mul(decimal.NewFromInt32(line.Quantity)))
	}
	return sum
}

// service takes orders.
type service struct {
	db  *pgxpool.Pool
	box *orderbox.Store
}

// placeOrder saves the order and says so to everybody who has to know, in one
// transaction: either all of it happens or none.
func (s *service) placeOrder(ctx context.Context, o order) error {
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO orders (order_id, tenant_id, email, total, placed_at) VALUES ($1, $2, $3, $4, $5)",
			o.id, o.tenant, o.email, o.total().Amount, o.placedAt)
		if err != nil {
			return err
		}
		command := orderbox.NewCommand(orderbox.CommandID(o.id), o.tenant)
		_, err = s.box.With(tx).Enqueue(ctx, command,
			orderbox.ToMailer(orderbox.OrderConfirmation{
				OrderID: o.id, Email: o.email, Lines: o.lines, Total: o.total(), PlacedAt: o.placedAt,
			}),
			orderbox.ToPayments(orderbox.PaymentCapture{
				PaymentID: uuid.NewSHA1(o.id, []byte("payment")), Authorisation: o.authorisation, Amount: o.total(),
			}),
			orderbox.ToWarehouse(orderbox.PickRequest{
				OrderID: o.id, Lines: o.lines, ShipTo: o.shipTo, Carrier: orderbox.CarrierDHL,
			}),
			orderbox.ToLedger(orderbox.LedgerPosting{
				PostingID: uuid.NewSHA1(o.id, []byte("sale")), Debit: "1400", Credit: "8400", Amount: o.total(),
				BookedOn: orderbox.Date{Year: o.placedAt.Year(), Month: o.placedAt.Month(), Day: o.placedAt.Day()},
			}),
			orderbox.ToAnalytics(orderbox.OrderPlaced{
				OrderID: o.id, Total: o.total(), Items: int64(len(o.lines)), Labels: map[string]string{"channel": "web"},
			}),
		)
		if err != nil {
			return err
		}
		if o.total().Amount.GreaterThan(decimal.NewFromInt(1000)) {
			return fmt.Errorf("order %s: %w", o.id, errOverLimit)
		}
		return nil
	})
}
