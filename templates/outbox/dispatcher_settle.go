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
	// lockTime bounds how long a settle or a renewal waits for one lock. Somebody's
	// open transaction may hold one row for as long as it likes, and the others of
	// the statement wait with it. To find it among a thousand takes ten times as
	// long, which is to be well within any lease.
	lockTime = 100 * time.Millisecond
	// The pause after a statement that failed, which doubles from the first up to
	// the longest.
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// lockBounder is a backend whose statements may have to wait for locks.
type lockBounder interface {
	// boundLocks returns a backend whose settles and renewals fail when they have
	// waited for a lock for so long.
	boundLocks(d time.Duration) backend
}

// settler writes the settlements of a dispatcher in batches. What comes while one
// is written goes with the next, so that none waits for others to come.
type settler struct {
	d    *Dispatcher
	wake chan struct{}
	said []Settlement // of the batch that is written

	refused []settling // on their own, and those behind them in their order keys; they are tried singly, the first at retryAt
	retryAt time.Time
	pause   backoff // between the tries of one

	mu      sync.Mutex
	waiting []settling
}

// settling is a settlement that waits to be written.
type settling struct {
	t     *task
	s     Settlement
	again bool      // it may have been written before
	since time.Time // by the dispatcher's clock: when it was first refused on its own; zero = it was not
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
// it was. What is not written when ctx ends is left to the next run.
func (s *settler) run(ctx context.Context) {
	var room, batch []settling
	pause := backoff{}
	size := settleBatch
	for ctx.Err() == nil {
		if len(batch) == 0 {
			s.retry(ctx)
			clear(room)
			room = s.take(room[:0], settleBatch)
			if batch = s.sift(room); len(batch) == 0 {
				s.idle(ctx)
				continue
			}
		}
		n := min(size, len(batch))
		now := s.d.clock.now()
		err := s.write(ctx, batch[:n])
		if err == nil {
			batch = batch[n:]
			size, pause = min(2*size, settleBatch), backoff{}
			continue
		}
		if ctx.Err() != nil {
			break
		}
		s.d.failed("settle", err, "rows", len(batch))
		for i := range batch[:n] {
			batch[i].again = true
		}
		switch {
		case !blamesARow(err):
			s.d.pause(ctx, pause.next())
		case n > 1:
			// One of them is to blame: it is found by halves, and put aside. The
			// others do not wait while it is looked for.
			size = n / 2
		default:
			batch[0].since = now
			if s.refused = append(s.refused, batch[0]); len(s.refused) == 1 {
				s.pause = backoff{}
				s.retryLater(now)
			}
			batch = s.sift(batch[1:])
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.Concat(batch, s.refused, s.waiting)
	s.refused = nil
}

// sift puts aside what is said of rows behind refused ones in their order keys: a row
// must not complete before one that may be sent again.
func (s *settler) sift(batch []settling) []settling {
	if len(s.refused) == 0 {
		return batch
	}
	return slices.DeleteFunc(batch, func(one settling) bool {
		behind := slices.ContainsFunc(s.refused, func(other settling) bool { return sameKey(one.t, other.t) })
		if behind {
			s.refused = append(s.refused, one)
		}
		return behind
	})
}

// sameKey tells whether two rows have an order key in common.
func sameKey(a, b *task) bool {
	return a.c == b.c && a.row.OrderKey != "" && a.row.OrderKey == b.row.OrderKey
}

// retry tries one settlement that was refused, if its time has come. It is given up
// when it has been refused for as long as a lease: then nobody renews the claim any
// more, and the sweep decides, of the rows behind it in its order key as well. Not so
// while the row is locked, which keeps the sweep from it too.
func (s *settler) retry(ctx context.Context) {
	now := s.d.clock.now()
	if len(s.refused) == 0 || now.Before(s.retryAt) {
		return
	}
	one := s.refused[:1]
	err := s.write(ctx, one)
	if err != nil && ctx.Err() != nil {
		return
	}
	if err == nil {
		s.refused = slices.Delete(s.refused, 0, 1)
		// What was in the way of this one may have been in the way of all.
		s.pause = backoff{}
		return
	}
	tried, others := s.refused[:1:1], s.refused[:0:0]
	for _, other := range s.refused[1:] {
		if sameKey(other.t, tried[0].t) {
			tried = append(tried, other)
		} else {
			others = append(others, other)
		}
	}
	tried[0].again = true
	if tried[0].since.IsZero() {
		tried[0].since = now
	}
	if blamesARow(err) && !isLocked(err) && now.Sub(tried[0].since) >= tried[0].t.c.policy.lease {
		s.refused = others
		for _, one := range tried {
			one.t.c.settled(one.t, one.s, err)
		}
		return
	}
	s.d.failed("settle", err, "rows", 1)
	s.refused = append(others, tried...)
	s.retryLater(now)
}

// retryLater has the refused ones take turns, so that each waits for the pause.
func (s *settler) retryLater(now time.Time) {
	s.retryAt = now.Add(max(firstPause, s.pause.next()/time.Duration(len(s.refused))))
}

// idle waits until there is something to write, or ctx ends.
func (s *settler) idle(ctx context.Context) {
	var retry <-chan time.Time
	if len(s.refused) > 0 {
		passed, stop := s.d.clock.after(s.retryAt.Sub(s.d.clock.now()))
		defer stop()
		retry = passed
	}
	select {
	case <-s.wake:
	case <-retry:
	case <-ctx.Done():
	}
}

// blamesARow tells whether the database has refused what was to be written, or a
// row of it is locked or damaged, and not only has no time, room or peace for any
// now. See the classes of errors in appendix A of the manual of Postgres.
func blamesARow(err error) bool {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.Code[:min(2, len(refused.Code))] {
	case "08", "25", "40", "53", "57", "58":
		return false
	case "55":
		return isLocked(err)
	}
	return true
}

// isLocked tells whether a statement has waited for a lock for longer than lockTime.
func isLocked(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "55P03"
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
