package outbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Queued are messages that wait in a batch of the caller's. Their answers are
// there once the batch has been sent and its results closed without an error.
type Queued struct {
	answers []Enqueued
	err     error
}

// errNotSent is the answer of a batch that was not sent, or not to its end.
var errNotSent = errors.New("outbox: the batch with the messages has not been carried out")

// Enqueued returns the answer for each message, in order.
func (q *Queued) Enqueued() ([]Enqueued, error) { return q.answers, q.err }

// QueueEnqueue adds messages to a batch of the caller's, so that the change they
// tell of, the messages and the commit are one round trip: a batch that begins
// no transaction is one by itself. The caller sends the batch and closes its
// results.
//
// It is all or none, as with Enqueue, with one difference: where the key of a
// message belongs to another message the statement fails, and so does the whole
// batch, since a commit may stand behind it already. Closing the results then
// returns a [*MessageError] with ErrKeyReused. A transaction that the batch has
// begun is left to be rolled back, as after any error.
func (s *Store) QueueEnqueue(ctx context.Context, batch *pgx.Batch, command Command, messages ...Message) (*Queued, error) {
	queued := &Queued{}
	rows, err := s.prepare(ctx, command, messages)
	if err != nil || len(rows) == 0 {
		return queued, err
	}
	queued.err = errNotSent
	s.backend.queueEnqueue(batch, command, rows, func(places []placed, err error) error {
		queued.answers, queued.err = answersFor(rows, places, err)
		return queued.err
	})
	return queued, nil
}
