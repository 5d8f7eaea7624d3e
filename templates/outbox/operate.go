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
	all, err := s.expireDue(ctx, allDestinations(), at, limit)
	if err != nil {
		err = fmt.Errorf("outbox: ExpireDue: %w", err)
	}
	return all, err
}

func (s *Store) expireDue(ctx context.Context, destinations []Destination, at time.Time, limit int) ([]OutboxID, error) {
	var all []OutboxID
	for len(all) < limit {
		step := min(limit-len(all), sweepStep)
		ids, err := s.backend.expireDue(ctx, destinations, step, at)
		all = append(all, ids...)
		if err != nil {
			return all, err
		}
		if len(ids) < step {
			break
		}
	}
	slices.SortFunc(all, compareIDs)
	return all, nil
}

// Pause keeps rows of a destination from being claimed, by any worker and by
// ClaimUnknown as well, until [Store.Resume]. What is claimed already goes on.
func (s *Store) Pause(ctx context.Context, destination Destination) error {
	return s.setPaused(ctx, "Pause", destination, true)
}

// Resume lets rows of a paused destination be claimed again. One that is not
// paused stays as it is.
func (s *Store) Resume(ctx context.Context, destination Destination) error {
	return s.setPaused(ctx, "Resume", destination, false)
}

func (s *Store) setPaused(ctx context.Context, operation string, destination Destination, paused bool) error {
	err := fmt.Errorf("there is no destination %q", destination)
	if slices.Contains(allDestinations(), destination) {
		err = s.backend.pause(ctx, destination, paused)
	}
	if err != nil {
		return fmt.Errorf("outbox: %s: %w", operation, err)
	}
	return nil
}

// Cancel fails a pending row, so that it is not sent. A row that a worker holds
// may be on its way and cannot be cancelled: ErrConflict.
func (s *Store) Cancel(ctx context.Context, id OutboxID, reason string) error {
	reason = cleanText(reason, maxText)
	return s.move(ctx, "Cancel", id, StatusPending, func() (bool, error) { return s.backend.cancel(ctx, id, reason) })
}

// Requeue sends a failed row again, under the same id, with the same bytes and
// key, and with all its attempts before it. The claims that were given for it
// no longer settle it. An expiry that has passed is dropped. Where the row holds
// the key of an ordered destination it takes its old place; after a Skip it goes
// to the end of its key.
func (s *Store) Requeue(ctx context.Context, id OutboxID, reason string) error {
	reason = cleanText(reason, maxText)
	return s.move(ctx, "Requeue", id, StatusFailed, func() (bool, error) {
		ids, err := s.backend.requeue(ctx, []OutboxID{id}, reason)
		return len(ids) > 0, err
	})
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
