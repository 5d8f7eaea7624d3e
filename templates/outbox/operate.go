package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// ExpireDue fails pending rows that were not delivered by their time, unsent:
// at most limit of them and in short steps. It returns their ids, sorted.
func (s *Store) ExpireDue(ctx context.Context, at time.Time, limit int) ([]OutboxID, error) {
	if err := checkTime(at); err != nil {
		return nil, fmt.Errorf("outbox: ExpireDue: %w", err)
	}
	var all []OutboxID
	for len(all) < limit {
		step := min(limit-len(all), sweepStep)
		ids, err := s.backend.expireDue(ctx, step, at)
		all = append(all, ids...)
		if err != nil {
			return all, fmt.Errorf("outbox: ExpireDue: %w", err)
		}
		if len(ids) < step {
			break
		}
	}
	slices.SortFunc(all, compareIDs)
	return all, nil
}

// Cancel fails a pending row, so that it is not sent. A row that a worker holds
// may be on its way and cannot be cancelled: ErrConflict.
func (s *Store) Cancel(ctx context.Context, id OutboxID, reason string) error {
	done, err := s.backend.cancel(ctx, id, cleanText(reason, maxText))
	return s.answer(ctx, "Cancel", id, done, err)
}

// Requeue sends a failed row again, under the same id, with the same bytes and
// key, and with all its attempts before it. The claims that were given for it
// no longer settle it. An expiry that has passed is dropped. Where the row holds
// the key of an ordered destination it takes its old place; after a Skip it goes
// to the end of its key.
func (s *Store) Requeue(ctx context.Context, id OutboxID, reason string) error {
	ids, err := s.backend.requeue(ctx, []OutboxID{id}, cleanText(reason, maxText))
	return s.answer(ctx, "Requeue", id, len(ids) > 0, err)
}

// Skip lets a key of an ordered destination go on that failed rows hold: they
// stay failed. The key is that of [Record]. ErrNotFound says that nothing holds it.
func (s *Store) Skip(ctx context.Context, destination Destination, orderKey string) error {
	ids, err := s.backend.skip(ctx, destination, cleanText(orderKey, maxKey))
	if err != nil {
		return fmt.Errorf("outbox: Skip %s: %w", destination, err)
	}
	if len(ids) == 0 {
		return fmt.Errorf("outbox: Skip %s: nothing holds the key: %w", destination, ErrNotFound)
	}
	return nil
}

// answer says why an operation on one row has changed nothing.
func (s *Store) answer(ctx context.Context, operation string, id OutboxID, done bool, err error) error {
	if done {
		return nil
	}
	var states map[OutboxID]rowState
	if err == nil {
		states, err = s.backend.states(ctx, []OutboxID{id})
	}
	if err != nil {
		return fmt.Errorf("outbox: %s %s: %w", operation, id, err)
	}
	if state, found := states[id]; found {
		return conflict(operation, id, state)
	}
	return &ClaimError{Operation: operation, ID: id, Err: ErrNotFound}
}

// Purge removes rows that have ended and that are older than the retention of
// their destination, at most limit of them and in short steps, and returns how
// many. Their idempotency keys are forgotten with them.
func (s *Store) Purge(ctx context.Context, at time.Time, limit int) (int, error) {
	if err := checkTime(at); err != nil {
		return 0, fmt.Errorf("outbox: Purge: %w", err)
	}
	var start OutboxID
	removed := 0
	for removed < limit {
		step := min(limit-removed, sweepStep)
		ids, err := s.backend.purge(ctx, start, step, at)
		if err != nil {
			return removed, fmt.Errorf("outbox: Purge: %w", err)
		}
		removed += len(ids)
		if len(ids) < step {
			break
		}
		start = ids[len(ids)-1]
	}
	return removed, nil
}
