package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/examples/orders/internal/orderbox"
)

// remotes stand for the systems that are told.
type remotes struct {
	mu       sync.Mutex
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
func (r *remotes) send(e orderbox.Entry) (ref string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down[e.Destination] {
		return "", errRefused
	}
	m := message{e.Destination, e.IdempotencyKey}
	ref = fmt.Sprintf("%s-%d", e.Destination, len(r.received)+1)
	r.received[m] = append(r.received[m], ref)
	return ref, nil
}

// find asks a remote whether a message has arrived.
func (r *remotes) find(e orderbox.Entry) (ref string, arrived bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	refs := r.received[message{e.Destination, e.IdempotencyKey}]
	if len(refs) == 0 {
		return "", false
	}
	return refs[0], true
}

// worker claims rows and delivers them. A dispatcher does more: it keeps claims
// alive, works on many rows at once, and sweeps and asks by itself.
type worker struct {
	name    string
	box     *orderbox.Store
	remotes *remotes
	// diesAfter is the number of messages that the worker sends before it dies,
	// with the last of them and all others that it holds unsettled; 0 = it lives.
	diesAfter int
	sent      int
	// onClaim is called when the worker holds rows.
	onClaim func()
}

// errDied is how a worker ends that holds rows.
var errDied = errors.New("died")

// run delivers until nothing is due.
func (w *worker) run(ctx context.Context) error {
	for {
		entries, err := w.box.ClaimDue(ctx, orderbox.ClaimRequest{WorkerID: w.name, Limits: map[orderbox.Destination]int{
			orderbox.DestinationMailer:    3,
			orderbox.DestinationPayments:  2,
			orderbox.DestinationWarehouse: 3,
			orderbox.DestinationLedger:    3,
			orderbox.DestinationAnalytics: 3,
		}})
		if err != nil || len(entries) == 0 {
			return err
		}
		w.onClaim()
		for _, e := range entries {
			if err := w.deliver(ctx, e); err != nil {
				return err
			}
		}
	}
}

// mostAttempts is when this worker gives a row up.
const mostAttempts = 3

func (w *worker) deliver(ctx context.Context, e orderbox.Entry) error {
	if e.DecodeErr != nil {
		return w.box.MarkFailed(ctx, e.Claim, e.DecodeErr.Error())
	}
	ref, err := w.remotes.send(e)
	w.sent++
	switch {
	case w.sent == w.diesAfter:
		return errDied
	case err == nil:
		return w.box.MarkCompleted(ctx, e.Claim, ref)
	case e.Attempt >= mostAttempts:
		return w.box.MarkFailed(ctx, e.Claim, err.Error())
	default:
		return w.box.MarkRetry(ctx, e.Claim, err.Error(), time.Time{})
	}
}

// reconcile asks the payment provider about the rows whose outcome nobody knows
// and whose question is due at the given time. What has not arrived is sent
// again, unless its attempts are used up.
func (w *worker) reconcile(ctx context.Context, at time.Time) error {
	entries, err := w.box.ClaimUnknown(ctx, orderbox.ClaimRequest{
		WorkerID: w.name, Limits: map[orderbox.Destination]int{orderbox.DestinationPayments: 100}, At: at,
	})
	if err != nil {
		return err
	}
	for _, e := range entries {
		if ref, arrived := w.remotes.find(e); arrived {
			err = w.box.MarkCompleted(ctx, e.Claim, ref)
		} else {
			err = w.box.MarkNeverArrived(ctx, e.Claim, "the provider has never heard of it")
		}
		if err != nil {
			return err
		}
	}
	return nil
}
