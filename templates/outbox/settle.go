package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// MarkCompleted says that the row was delivered. ref is what the remote calls
// it; empty keeps what is known of that. It is accepted as long as no other
// claim was given: also when the outcome was unknown, and when the claim had run
// out and the row waits to be sent again. Repeating it changes nothing.
func (s *Store) MarkCompleted(ctx context.Context, claim Claim, ref string) error {
	return s.settleOne(ctx, "MarkCompleted", settlement{op: opCompleted, claim: claim, ref: ref})
}

// MarkFailed gives the row up. Nobody sends it again but a person, through
// Requeue. Repeating it changes the reason.
func (s *Store) MarkFailed(ctx context.Context, claim Claim, reason string) error {
	return s.settleOne(ctx, "MarkFailed", settlement{op: opFailed, claim: claim, reason: reason})
}

// MarkRetry makes the row pending again, due at the given time, after an attempt
// that is known to have failed. The zero time means at once.
func (s *Store) MarkRetry(ctx context.Context, claim Claim, reason string, at time.Time) error {
	return s.settleOne(ctx, "MarkRetry", settlement{op: opRetry, claim: claim, reason: reason, at: at})
}

// Reschedule makes the row pending again, due at the given time, and keeps its
// last failure. The attempt stays counted.
func (s *Store) Reschedule(ctx context.Context, claim Claim, at time.Time) error {
	return s.settleOne(ctx, "Reschedule", settlement{op: opRetry, claim: claim, at: at})
}

// Postpone makes the row pending again, due at the given time, because nothing
// was sent: the attempt is not counted.
func (s *Store) Postpone(ctx context.Context, claim Claim, reason string, at time.Time) error {
	return s.settleOne(ctx, "Postpone", settlement{op: opPostpone, claim: claim, reason: reason, at: at})
}

// MarkOutcomeUnknown says that the remote was called and that nobody knows what
// it did. The row is not sent again by itself: at askAt the remote is asked, or
// a person decides. ref is what the remote calls the row, as far as known.
func (s *Store) MarkOutcomeUnknown(ctx context.Context, claim Claim, ref string, askAt time.Time) error {
	return s.settleOne(ctx, "MarkOutcomeUnknown", settlement{op: opUnknown, claim: claim, ref: ref, at: askAt})
}

// KeepUnknown leaves the outcome of the row unknown: the remote could not tell.
// It is asked again at askAt.
func (s *Store) KeepUnknown(ctx context.Context, claim Claim, askAt time.Time) error {
	return s.settleOne(ctx, "KeepUnknown", settlement{op: opKeepUnknown, claim: claim, at: askAt})
}

// GiveBack returns rows that were claimed and never started: they are as before
// the claim, the attempt is not counted. Rows held for a question are let go.
// Where claims were lost the others are given back all the same, and the error
// joins a [*ClaimError] for each.
func (s *Store) GiveBack(ctx context.Context, claims ...Claim) error {
	settlements := make([]settlement, len(claims))
	for i, claim := range claims {
		settlements[i] = settlement{op: opGiveBack, claim: claim}
	}
	answers, err := s.settle(ctx, "GiveBack", settlements)
	if err != nil {
		return err
	}
	return errors.Join(answers...)
}

func (s *Store) settleOne(ctx context.Context, operation string, one settlement) error {
	answers, err := s.settle(ctx, operation, []settlement{one})
	if err != nil {
		return err
	}
	return answers[0]
}

// settle applies settlements and answers for each, in order. The second result
// says that nothing is known of any of them.
func (s *Store) settle(ctx context.Context, operation string, list []settlement) ([]error, error) {
	type indexed struct {
		settlement
		index int
	}
	answers := make([]error, len(list))
	rest := make([]indexed, len(list))
	for i, one := range list {
		one.reason = cleanText(one.reason, maxText)
		one.ref = cleanText(one.ref, maxText)
		if err := checkTime(one.at); err != nil {
			return nil, fmt.Errorf("outbox: %s: %w", operation, err)
		}
		rest[i] = indexed{one, i}
	}
	for len(rest) > 0 {
		// What is said twice of a row is done one after the other.
		var round []indexed
		round, rest = firstOfEach(rest, func(one indexed) OutboxID { return one.claim.ID })
		for try := 0; len(round) > 0; try++ {
			batch := make([]settlement, len(round))
			for i, one := range round {
				batch[i] = one.settlement
			}
			changed, err := s.backend.settle(ctx, batch)
			if err != nil {
				return nil, fmt.Errorf("outbox: %s: %w", operation, err)
			}
			var missed []indexed
			var ids []OutboxID
			for _, one := range round {
				if !changed[one.claim.ID] {
					missed = append(missed, one)
					ids = append(ids, one.claim.ID)
				}
			}
			if len(missed) == 0 {
				break
			}
			states, err := s.backend.states(ctx, ids)
			if err != nil {
				return nil, fmt.Errorf("outbox: %s: %w", operation, err)
			}
			// A row that has moved between the settle and this look may be
			// where the settle is accepted; one more try, not a race without end.
			round = round[:0]
			for _, one := range missed {
				state, found := states[one.claim.ID]
				switch v := one.judge(state); {
				case !found:
					answers[one.index] = &ClaimError{Operation: operation, ID: one.claim.ID, Err: ErrNotFound}
				case v == again && try == 0:
					round = append(round, one)
				case v != accepted:
					answers[one.index] = conflict(operation, one.claim.ID, state)
				}
			}
		}
	}
	return answers, nil
}

func conflict(operation string, id OutboxID, state rowState) error {
	return &ClaimError{Operation: operation, ID: id, Destination: state.destination, Status: state.status, Err: ErrConflict}
}

func compareIDs(a, b OutboxID) int { return bytes.Compare(a[:], b[:]) }
