package outbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// settleBatch is the number of settlements that one statement writes.
	settleBatch = 500
	// statementTime bounds each statement of a dispatcher's own, so that a
	// connection that is dead without knowing it holds nothing up.
	statementTime = 10 * time.Second
	// The pause after a statement that failed, which doubles from the first up to
	// the longest.
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// settler writes the settlements of a dispatcher in batches. What comes while one
// is written goes with the next, so that none waits for others to come.
type settler struct {
	d    *Dispatcher
	wake chan struct{}
	said []Settlement // of the batch that is written

	mu      sync.Mutex
	waiting []settling
}

// settling is a settlement that waits to be written.
type settling struct {
	t     *task
	s     Settlement
	again bool // it may have been written before
}

func (s *settler) add(t *task, settlement Settlement) {
	s.mu.Lock()
	s.waiting = append(s.waiting, settling{t: t, s: settlement})
	s.mu.Unlock()
	notify(s.wake)
}

// take adds to a batch what waits, at most n of it.
func (s *settler) take(batch []settling, n int) []settling {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, len(s.waiting))
	batch = append(batch, s.waiting[:n]...)
	s.waiting = slices.Delete(s.waiting, 0, n)
	return batch
}

// run writes what comes until ctx ends, in the order in which it came, so that the
// rows of a key complete in their order whenever the process dies. It goes on with a
// batch that could not be written until it is: a lost answer does not tell whether
// it was.
func (s *settler) run(ctx context.Context) {
	var room, batch, refused []settling
	pause := backoff{}
	size := settleBatch
	for ctx.Err() == nil {
		if len(batch) == 0 {
			// What was refused is tried again when the rest is written.
			clear(room)
			batch = s.take(append(room[:0], refused...), settleBatch)
			room, refused = batch, nil
			if len(batch) == 0 {
				select {
				case <-s.wake:
				case <-ctx.Done():
				}
				continue
			}
		}
		n := min(size, len(batch))
		err := s.write(ctx, batch[:n])
		if err == nil {
			batch = batch[n:]
			size, pause = settleBatch, backoff{}
			continue
		}
		if ctx.Err() != nil {
			break
		}
		s.d.failed("settle", err, "rows", len(batch))
		for i := range batch[:n] {
			batch[i].again = true
		}
		if blamesARow(err) {
			// One of them is to blame: it is found by halves, and passed over. The
			// others do not wait while it is looked for.
			if n > 1 {
				size = n / 2
				continue
			}
			refused = append(refused, batch[0])
			batch = batch[1:]
			size = settleBatch
		}
		s.d.pause(ctx, pause.next())
	}
}

// blamesARow tells whether the database has refused what was to be written, and not
// only has no time, room or peace for it now. See the classes of errors in appendix
// A of the manual of Postgres.
func blamesARow(err error) bool {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.Code[:min(2, len(refused.Code))] {
	case "08", "25", "40", "53", "55", "57", "58", "XX":
		return false
	}
	return true
}

// clear forgets what was not written.
func (s *settler) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = nil
}

// write writes a batch.
func (s *settler) write(ctx context.Context, batch []settling) error {
	s.said = s.said[:0]
	for _, one := range batch {
		s.said = append(s.said, one.s)
	}
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	answers, err := s.d.store.settle(ctx, s.said)
	if err != nil {
		return err
	}
	for i, one := range batch {
		if one.writtenBefore(answers[i]) {
			answers[i] = nil
		}
		one.t.c.settled(one.t, one.s, answers[i])
	}
	return nil
}

// writtenBefore tells whether a refusal may come from the settlement having been
// written before, without an answer: the row was removed as it completed, or is not
// any more in the state that the operation asks for.
func (s *settling) writtenBefore(refusal error) bool {
	switch {
	case !s.again:
		return false
	case errors.Is(refusal, ErrNotFound):
		return s.s.op == opCompleted
	case errors.Is(refusal, ErrConflict):
		return s.s.op == opPostpone || s.s.op == opNeverArrived
	}
	return false
}

// backoff is a pause that doubles with each failure.
type backoff struct{ failures int }

func (b *backoff) next() time.Duration {
	d := min(firstPause<<min(b.failures, 10), longestPause)
	b.failures++
	return spread(d)
}

// notify wakes who waits on a channel of one place, now or when it comes to wait.
func notify(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
