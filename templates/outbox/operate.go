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
	reason = cleanText(reason, maxText)
	return s.move(ctx, "Cancel", id, StatusPending, func() (bool, error) { return s.backend.cancel(ctx, id, reason) })
}

// Requeue sends a failed row again, under the same id, with the same bytes and
// key, and with all its attempts before it. The claims that were given for it
// no longer settle it. An expiry that has passed is dropped.
func (s *Store) Requeue(ctx context.Context, id OutboxID, reason string) error {
	reason = cleanText(reason, maxText)
	return s.move(ctx, "Requeue", id, StatusFailed, func() (bool, error) {
		ids, err := s.backend.requeue(ctx, []OutboxID{id}, reason)
		return len(ids) > 0, err
	})
}

// move does something to a row that has to be in a status, and says why when it
// was not. A row that has come into the status between the two statements is
// tried once more.
func (s *Store) move(ctx context.Context, operation string, id OutboxID, from Status, do func() (bool, error)) error {
	for try := 0; ; try++ {
		done, err := do()
		if done && err == nil {
			return nil
		}
		var states map[OutboxID]rowState
		if err == nil {
			states, err = s.backend.states(ctx, []OutboxID{id})
		}
		if err != nil {
			return fmt.Errorf("outbox: %s %s: %w", operation, id, err)
		}
		state, found := states[id]
		if !found {
			return &ClaimError{Operation: operation, ID: id, Err: ErrNotFound}
		}
		if state.status != from || try > 0 {
			return conflict(operation, id, state)
		}
	}
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
