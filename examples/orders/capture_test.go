package main

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"github.com/outboxgen/outboxgen/examples/orders/internal/orderbox"
	"github.com/outboxgen/outboxgen/examples/orders/internal/orderbox/orderboxtest"
)

// provider is a payment provider that counts the captures that it gets.
type provider struct {
	orderbox.PaymentsHandler
	captures int
}

func (p *provider) PaymentCapture(context.Context, orderbox.Delivery, orderbox.PaymentCapture) orderbox.Outcome {
	p.captures++
	return orderbox.Completed()
}

func (p *provider) ReconcilePaymentCapture(context.Context, orderbox.Delivery, orderbox.PaymentCapture) orderbox.Answer {
	if p.captures > 0 {
		return orderbox.Arrived("")
	}
	return orderbox.NeverArrived()
}

func TestACaptureIsNotRepeated(t *testing.T) {
	for _, point := range []orderboxtest.CrashPoint{orderboxtest.BeforeSend, orderboxtest.AfterSend, orderboxtest.AfterSettle} {
		t.Run(string(point), func(t *testing.T) {
			p := &provider{}
			handlers := orderbox.SomeHandlers(orderbox.HandlePayments(p))
			command := orderbox.NewCommand(orderbox.CommandID(uuid.New()), uuid.New())
			message := orderbox.ToPayments(orderbox.PaymentCapture{
				PaymentID: uuid.New(), Authorisation: "by the customer", Amount: orderbox.Money{Amount: decimal.New(10, 0), Currency: orderbox.CurrencyEUR},
			})
			record := orderboxtest.DeliverWithCrash(t, handlers, command, message, point)
			if record.Status != orderbox.StatusCompleted || p.captures != 1 {
				t.Errorf("%v, after %d captures", record, p.captures)
			}
		})
	}
}
