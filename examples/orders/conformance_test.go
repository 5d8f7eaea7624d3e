package main

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"github.com/outboxgen/outboxgen/examples/orders/internal/orderbox"
	"github.com/outboxgen/outboxgen/examples/orders/internal/orderbox/orderboxtest"
	"github.com/outboxgen/outboxgen/internal/pgtest"
)

func TestConformance(t *testing.T) {
	server := pgtest.Pool(t)
	orderboxtest.Conformance(t, orderboxtest.Subject{
		Open: func(t *testing.T) (*orderbox.Store, orderboxtest.DB) {
			pool := orderboxtest.Scratch(t, server)
			return orderbox.New(pool, orderbox.Options{}), pool
		},
		Command: func() orderbox.Command { return orderbox.NewCommand(orderbox.CommandID(uuid.New()), uuid.New()) },
		Message: anyMessage,
	})
}

// anyMessage returns a message for the destination that is like no other.
func anyMessage(d orderbox.Destination) orderbox.Message {
	amount := orderbox.Money{Amount: decimal.New(10, 0), Currency: orderbox.CurrencyEUR}
	switch d {
	case orderbox.DestinationMailer:
		return orderbox.ToMailer(orderbox.RefundNotice{OrderID: uuid.New(), Email: "ada@example.com", Amount: amount, Reason: orderbox.RefundReasonReturned})
	case orderbox.DestinationPayments:
		return orderbox.ToPayments(orderbox.PaymentCapture{PaymentID: uuid.New(), Authorisation: "by the customer", Amount: amount})
	case orderbox.DestinationWarehouse:
		return orderbox.ToWarehouse(orderbox.PickCancellation{OrderID: uuid.New()})
	case orderbox.DestinationLedger:
		return orderbox.ToLedger(orderbox.LedgerPosting{
			PostingID: uuid.New(), Debit: "bank", Credit: "sales", Amount: amount,
			BookedOn: orderbox.Date{Year: 2026, Month: time.March, Day: 1},
		})
	default:
		return orderbox.ToAnalytics(orderbox.OrderCancelled{OrderID: uuid.New()})
	}
}
