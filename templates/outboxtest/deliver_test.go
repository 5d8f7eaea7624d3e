package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/templates/outbox"
)

// remote stands for every destination. It takes what is sent, and knows when it is
// asked what it has taken.
type remote struct {
	outcome outbox.Outcome // once it has taken a message
	forgets int            // questions that it cannot answer

	mu    sync.Mutex
	sent  []outbox.Delivery
	asked int
}

func (r *remote) take(d outbox.Delivery) outbox.Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, d)
	return r.outcome
}

func (r *remote) find(d outbox.Delivery) outbox.Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked++; r.asked <= r.forgets {
		return outbox.StillUnknown(errors.New("busy"))
	}
	for _, other := range r.sent {
		if other.IdempotencyKey == d.IdempotencyKey {
			return outbox.Arrived("found")
		}
	}
	return outbox.NeverArrived()
}

func (r *remote) OrderConfirmation(_ context.Context, d outbox.Delivery, _ outbox.OrderConfirmation) outbox.Outcome {
	return r.take(d)
}

func (r *remote) UsageSample(_ context.Context, d outbox.Delivery, _ outbox.UsageSample) outbox.Outcome {
	return r.take(d)
}

func (r *remote) PaymentCapture(_ context.Context, d outbox.Delivery, _ outbox.PaymentCapture) outbox.Outcome {
	return r.take(d)
}

func (r *remote) ReconcilePaymentCapture(_ context.Context, d outbox.Delivery, _ outbox.PaymentCapture) outbox.Answer {
	return r.find(d)
}

func (r *remote) BankTransfer(_ context.Context, d outbox.Delivery, _ outbox.BankTransfer) outbox.Outcome {
	return r.take(d)
}

func (r *remote) ReconcileBankTransfer(_ context.Context, d outbox.Delivery, _ outbox.BankTransfer) outbox.Answer {
	return r.find(d)
}

func (r *remote) handlers() outbox.Handlers {
	return outbox.SomeHandlers(outbox.HandleBank(r), outbox.HandleMailer(r), outbox.HandleMetrics(r), outbox.HandlePayments(r))
}

func TestDeliver(t *testing.T) {
	failure := errors.New("the reason")
	for _, test := range []struct {
		behaviour   string
		outcome     outbox.Outcome
		destination outbox.Destination
		status      outbox.Status
		failure     string
	}{
		{"a message that arrives", outbox.Completed(), outbox.DestinationMailer, outbox.StatusCompleted, ""},
		{"a message whose row is not kept", outbox.Completed(), outbox.DestinationMetrics, outbox.StatusCompleted, ""},
		{"a message that is to be sent again", outbox.Retry(failure), outbox.DestinationMailer, outbox.StatusPending, "the reason"},
		{"a message that is refused", outbox.Failed(failure), outbox.DestinationMailer, outbox.StatusFailed, "the reason"},
		{"a message whose outcome is unknown", outbox.Unknown(failure), outbox.DestinationPayments, outbox.StatusOutcomeUnknown, "the reason"},
	} {
		t.Run(test.behaviour, func(t *testing.T) {
			r := &remote{outcome: test.outcome}
			later := message(test.destination).At(time.Now().Add(time.Minute))
			record := Deliver(t, r.handlers(), command(), later)
			if record.Status != test.status || record.LastFailure != test.failure || record.Payload == nil {
				t.Errorf("the row is %v, failed by %q", record, record.LastFailure)
			}
			if len(r.sent) != 1 || r.sent[0].ID != record.ID {
				t.Errorf("%v were sent, want %s once", r.sent, record.ID)
			}
		})
	}
}

// TestDeliverWithCrash has workers die at every point.
func TestDeliverWithCrash(t *testing.T) {
	for _, test := range []struct {
		destination outbox.Destination
		point       CrashPoint
		sent, asked int
		attempt     int
	}{
		{outbox.DestinationMailer, BeforeSend, 1, 0, 2},
		{outbox.DestinationMailer, AfterSend, 2, 0, 2},
		{outbox.DestinationMailer, AfterSettle, 1, 0, 1},
		{outbox.DestinationPayments, BeforeSend, 1, 1, 2},
		{outbox.DestinationPayments, AfterSend, 1, 1, 1},
		{outbox.DestinationPayments, AfterSettle, 1, 0, 1},
	} {
		t.Run(fmt.Sprintf("%s, %s", test.destination, test.point), func(t *testing.T) {
			r := &remote{outcome: outbox.Completed()}
			record := DeliverWithCrash(t, r.handlers(), command(), message(test.destination), test.point)
			if record.Status != outbox.StatusCompleted || record.Attempt != test.attempt {
				t.Errorf("the row is %v, want it completed at attempt %d", record, test.attempt)
			}
			if len(r.sent) != test.sent || r.asked != test.asked {
				t.Errorf("it was sent %d times and asked about %d times, want %d and %d", len(r.sent), r.asked, test.sent, test.asked)
			}
			for _, d := range r.sent {
				if d.IdempotencyKey != record.IdempotencyKey || string(d.Raw) != string(record.Raw) {
					t.Errorf("%v was sent with another key or other bytes", d)
				}
			}
		})
	}
}

func TestDeliverWithCrashGoesOn(t *testing.T) {
	for _, test := range []struct {
		behaviour   string
		remote      *remote
		destination outbox.Destination
		point       CrashPoint
		status      outbox.Status
		failure     string
		attempt     int
	}{
		{"to the last retry", &remote{outcome: outbox.Retry(errors.New("busy"))}, outbox.DestinationMailer, AfterSettle,
			outbox.StatusFailed, "gave up after 3 attempts: busy", 3},
		{"to the question that is answered", &remote{outcome: outbox.Completed(), forgets: 3}, outbox.DestinationPayments, AfterSend,
			outbox.StatusCompleted, "busy", 1},
		{"until nobody is asked any more", &remote{outcome: outbox.Completed(), forgets: maxRounds}, outbox.DestinationBank, AfterSend,
			outbox.StatusOutcomeUnknown, "busy", 1},
	} {
		t.Run(test.behaviour, func(t *testing.T) {
			record := DeliverWithCrash(t, test.remote.handlers(), command(), message(test.destination), test.point)
			if record.Status != test.status || record.LastFailure != test.failure || record.Attempt != test.attempt {
				t.Errorf("the row is %v, failed by %q, want it %s by %q at attempt %d", record, record.LastFailure, test.status, test.failure, test.attempt)
			}
		})
	}
}

func TestDeliveriesThatCannotBe(t *testing.T) {
	completes := &remote{outcome: outbox.Completed()}
	mailer := outbox.SomeHandlers(outbox.HandleMailer(completes))
	endless := &remote{outcome: outbox.Completed(), forgets: 2 * maxRounds}
	for _, test := range []struct {
		behaviour string
		deliver   func(t testing.TB)
		want      string
	}{
		{"without a handler for it", func(t testing.TB) {
			Deliver(t, mailer, command(), message(outbox.DestinationPayments))
		}, "the message for payments: payment_capture was not claimed: no handler is for it"},
		{"without a handler for it, in which a worker should die", func(t testing.TB) {
			DeliverWithCrash(t, mailer, command(), message(outbox.DestinationPayments), AfterSend)
		}, "the worker has not died after send: no handler is for the message"},
		{"with no handlers at all", func(t testing.TB) {
			Deliver(t, outbox.Handlers{}, command(), message(outbox.DestinationMailer))
		}, "there are no handlers"},
		{"of a message that is not valid", func(t testing.TB) {
			Deliver(t, mailer, command(), outbox.ToMailer(outbox.OrderConfirmation{OrderID: uuid.New()}))
		}, "lines must have at least 1 item"},
		{"of a message that comes to no end", func(t testing.TB) {
			DeliverWithCrash(t, endless.handlers(), command(), message(outbox.DestinationPayments), AfterSend)
		}, "after 1000 rounds the message has come to no end"},
	} {
		t.Run(test.behaviour, func(t *testing.T) {
			p := &probe{TB: t}
			if report := p.run(func() { test.deliver(p) }); !strings.Contains(report, test.want) {
				t.Errorf("the report is %q, want one with %q", report, test.want)
			}
		})
	}
}
