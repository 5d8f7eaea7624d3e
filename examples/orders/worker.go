package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/outboxgen/outboxgen/examples/orders/internal/orderbox"
)

// remotes stand for the systems that are told.
type remotes struct {
	mu       sync.Mutex
	calls    int
	received map[message][]string // a reference for each time that the message arrived
	down     map[orderbox.Destination]bool
}

// message is what a remote tells one message from another by.
type message struct {
	destination orderbox.Destination
	key         string
}

var errRefused = errors.New("connection refused")

// send calls a remote, which gives a reference for what it has taken.
func (r *remotes) send(d orderbox.Delivery) (ref string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down[d.Destination] {
		return "", errRefused
	}
	m := message{d.Destination, d.IdempotencyKey}
	r.calls++
	ref = fmt.Sprintf("%s-%d", d.Destination, r.calls)
	r.received[m] = append(r.received[m], ref)
	return ref, nil
}

// find asks a remote whether a message has arrived.
func (r *remotes) find(d orderbox.Delivery) (ref string, arrived bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	refs := r.received[message{d.Destination, d.IdempotencyKey}]
	if len(refs) == 0 {
		return "", false
	}
	return refs[0], true
}

// worker handles the messages for all destinations. The remotes of this example
// take a message as it is; a real handler makes a request of its payload.
type worker struct {
	remotes *remotes
	// dies gets a value for each call of a worker that is killed before the answer
	// comes; nil = it lives.
	dies chan<- struct{}
}

func (w *worker) handlers() orderbox.Handlers {
	return orderbox.AllHandlers(
		orderbox.HandleAnalytics(w), orderbox.HandleLedger(w), orderbox.HandleMailer(w),
		orderbox.HandlePayments(w), orderbox.HandleWarehouse(w),
	)
}

// deliver sends a message, and says how that has ended.
func (w *worker) deliver(ctx context.Context, d orderbox.Delivery) orderbox.Outcome {
	ref, err := w.send(ctx, d)
	switch {
	case err == nil:
		return orderbox.Completed().WithRef(ref)
	case errors.Is(err, errRefused):
		return orderbox.Unreachable(err) // nothing was sent
	default:
		return orderbox.Unknown(err) // it may have arrived all the same
	}
}

func (w *worker) send(ctx context.Context, d orderbox.Delivery) (ref string, err error) {
	ref, err = w.remotes.send(d)
	if w.dies != nil {
		w.dies <- struct{}{}
		<-ctx.Done()
		return "", ctx.Err()
	}
	return ref, err
}

// ask asks the payment provider about a message of which nobody knows whether it
// has arrived.
func (w *worker) ask(d orderbox.Delivery) orderbox.Answer {
	if ref, arrived := w.remotes.find(d); arrived {
		return orderbox.Arrived(ref)
	}
	return orderbox.NeverArrived()
}

func (w *worker) OrderConfirmation(ctx context.Context, d orderbox.Delivery, _ orderbox.OrderConfirmation) orderbox.Outcome {
	return w.deliver(ctx, d)
}

func (w *worker) ShippingNotice(ctx context.Context, d orderbox.Delivery, _ orderbox.ShippingNotice) orderbox.Outcome {
	return w.deliver(ctx, d)
}

func (w *worker) RefundNotice(ctx context.Context, d orderbox.Delivery, _ orderbox.RefundNotice) orderbox.Outcome {
	return w.deliver(ctx, d)
}

func (w *worker) PaymentCapture(ctx context.Context, d orderbox.Delivery, _ orderbox.PaymentCapture) orderbox.Outcome {
	return w.deliver(ctx, d)
}

func (w *worker) ReconcilePaymentCapture(_ context.Context, d orderbox.Delivery, _ orderbox.PaymentCapture) orderbox.Answer {
	return w.ask(d)
}

func (w *worker) PaymentRefund(ctx context.Context, d orderbox.Delivery, _ orderbox.PaymentRefund) orderbox.Outcome {
	return w.deliver(ctx, d)
}

func (w *worker) ReconcilePaymentRefund(_ context.Context, d orderbox.Delivery, _ orderbox.PaymentRefund) orderbox.Answer {
	return w.ask(d)
}

func (w *worker) PickRequest(ctx context.Context, d orderbox.Delivery, _ orderbox.PickRequest) orderbox.Outcome {
	return w.deliver(ctx, d)
}

func (w *worker) PickCancellation(ctx context.Context, d orderbox.Delivery, _ orderbox.PickCancellation) orderbox.Outcome {
	return w.deliver(ctx, d)
}

func (w *worker) LedgerPosting(ctx context.Context, d orderbox.Delivery, _ orderbox.LedgerPosting) orderbox.Outcome {
	return w.deliver(ctx, d)
}

func (w *worker) OrderPlaced(ctx context.Context, d orderbox.Delivery, _ orderbox.OrderPlaced) orderbox.Outcome {
	return w.deliver(ctx, d)
}

func (w *worker) OrderCancelled(ctx context.Context, d orderbox.Delivery, _ orderbox.OrderCancelled) orderbox.Outcome {
	return w.deliver(ctx, d)
}
