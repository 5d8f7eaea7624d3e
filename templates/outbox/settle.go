package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// MarkCompleted says that the row was delivered. ref is what the remote calls
// it; empty keeps what is known of that. It is accepted as long as no other
// claim was given: also when the outcome was unknown, and when the claim had run
// out and the row waits to be sent again. Repeating it changes nothing.
func (s *Store) MarkCompleted(ctx context.Context, claim Claim, ref string) error {
	return s.settleOne(ctx, claim.Completed(ref))
}

// MarkFailed gives the row up. Nobody sends it again but a person, through
// Requeue. Repeating it changes the reason.
func (s *Store) MarkFailed(ctx context.Context, claim Claim, reason string) error {
	return s.settleOne(ctx, claim.Failed(reason))
}

// MarkRetry makes the row pending again, due at the given time, after an attempt
// that is known to have failed. The zero time means at once.
func (s *Store) MarkRetry(ctx context.Context, claim Claim, reason string, at time.Time) error {
	return s.settleOne(ctx, claim.Retry(reason, at))
}

// Reschedule makes the row pending again, due at the given time, and keeps its
// last failure. The attempt stays counted.
func (s *Store) Reschedule(ctx context.Context, claim Claim, at time.Time) error {
	return s.settleOne(ctx, claim.Reschedule(at))
}

// Postpone makes the row pending again, due at the given time, because nothing
// was sent: the attempt is not counted.
func (s *Store) Postpone(ctx context.Context, claim Claim, reason string, at time.Time) error {
	return s.settleOne(ctx, claim.Postpone(reason, at))
}

// MarkOutcomeUnknown says that the remote was called and that nobody knows what
// it did. The row is not sent again by itself: at askAt the remote is asked, or
// a person decides. ref is what the remote calls the row, as far as known.
func (s *Store) MarkOutcomeUnknown(ctx context.Context, claim Claim, ref string, askAt time.Time) error {
	return s.settleOne(ctx, claim.OutcomeUnknown(ref, askAt))
}

// KeepUnknown leaves the outcome of the row unknown: the remote could not tell.
// It is asked again at askAt.
func (s *Store) KeepUnknown(ctx context.Context, claim Claim, askAt time.Time) error {
	return s.settleOne(ctx, claim.KeepUnknown(askAt))
}

// MarkNeverArrived says that the remote, asked about a row whose outcome was
// unknown, has never seen it: the row is due again at once, or fails when it has
// used up its attempts. Repeating it changes nothing as long as the row is pending.
func (s *Store) MarkNeverArrived(ctx context.Context, claim Claim, reason string) error {
	return s.settleOne(ctx, claim.NeverArrived(reason))
}

// GiveBack returns rows that were claimed and never started: they are as before
// the claim, the attempt is not counted. Rows held for a question are let go.
// Where claims were lost the others are given back all the same, and the error
// joins a [*ClaimError] for each.
func (s *Store) GiveBack(ctx context.Context, claims ...Claim) error {
	settlements := make([]Settlement, len(claims))
	for i, claim := range claims {
		settlements[i] = claim.GiveBack()
	}
	answers, err := s.settle(ctx, settlements)
	if err != nil {
		return fmt.Errorf("outbox: GiveBack: %w", err)
	}
	return errors.Join(answers...)
}

// Settlement is what is to be said of one claimed row. The methods of [Claim]
// make it, and [Store.Settle] carries it out.
type Settlement struct {
	operation string
	settlement
}

// String names the operation and the row.
func (s Settlement) String() string { return s.operation + " " + s.claim.ID.String() }

// Completed is what [Store.MarkCompleted] does.
func (c Claim) Completed(ref string) Settlement {
	return Settlement{"MarkCompleted", settlement{op: opCompleted, claim: c, ref: ref}}
}

// Failed is what [Store.MarkFailed] does.
func (c Claim) Failed(reason string) Settlement {
	return Settlement{"MarkFailed", settlement{op: opFailed, claim: c, reason: reason}}
}

// Retry is what [Store.MarkRetry] does.
func (c Claim) Retry(reason string, at time.Time) Settlement {
	return Settlement{"MarkRetry", settlement{op: opRetry, claim: c, reason: reason, at: at}}
}

// Reschedule is what [Store.Reschedule] does.
func (c Claim) Reschedule(at time.Time) Settlement {
	return Settlement{"Reschedule", settlement{op: opRetry, claim: c, at: at}}
}

// Postpone is what [Store.Postpone] does.
func (c Claim) Postpone(reason string, at time.Time) Settlement {
	return Settlement{"Postpone", settlement{op: opPostpone, claim: c, reason: reason, at: at}}
}

// OutcomeUnknown is what [Store.MarkOutcomeUnknown] does.
func (c Claim) OutcomeUnknown(ref string, askAt time.Time) Settlement {
	return Settlement{"MarkOutcomeUnknown", settlement{op: opUnknown, claim: c, ref: ref, at: askAt}}
}

// KeepUnknown is what [Store.KeepUnknown] does.
func (c Claim) KeepUnknown(askAt time.Time) Settlement {
	return Settlement{"KeepUnknown", settlement{op: opKeepUnknown, claim: c, at: askAt}}
}

// NeverArrived is what [Store.MarkNeverArrived] does.
func (c Claim) NeverArrived(reason string) Settlement {
	return Settlement{"MarkNeverArrived", settlement{op: opNeverArrived, claim: c, reason: reason}}
}

// GiveBack is what [Store.GiveBack] does.
func (c Claim) GiveBack() Settlement {
	return Settlement{"GiveBack", settlement{op: opGiveBack, claim: c}}
}

// Settle carries out many settlements of all sorts in one round trip and answers
// for each, in order: nil, or the error that the call for it alone would have
// returned. One that is refused never keeps another from being carried out.
// What is said twice of a row is done in order, in a further round trip.
//
// The error says that nothing is known of any: the connection was lost, say. To
// call again with the same settlements does no harm. What was carried out before
// is accepted, or refused without effect: with ErrConflict where the row has been
// claimed since, and in any case for Postpone, and for NeverArrived where the row
// has failed by it; with ErrNotFound where the row was removed as it completed.
func (s *Store) Settle(ctx context.Context, settlements ...Settlement) ([]error, error) {
	answers, err := s.settle(ctx, settlements)
	if err != nil {
		return nil, fmt.Errorf("outbox: Settle: %w", err)
	}
	return answers, nil
}

func (s *Store) settleOne(ctx context.Context, one Settlement) error {
	answers, err := s.settle(ctx, []Settlement{one})
	if err != nil {
		return fmt.Errorf("outbox: %s: %w", one, err)
	}
	return answers[0]
}

// settle carries out settlements and answers for each, in order. The error says
// that nothing is known of any of them.
func (s *Store) settle(ctx context.Context, list []Settlement) ([]error, error) {
	answers := make([]error, len(list))
	rest := make([]int, 0, len(list)) // what is to be carried out, by its place in the list
	for i, one := range list {
		if err := checkTime(one.at); err != nil {
			answers[i] = fmt.Errorf("outbox: %s: %w", one, err)
			continue
		}
		rest = append(rest, i)
	}
	for len(rest) > 0 {
		// What is said twice of a row is done one after the other.
		var round []int
		round, rest = firstOfEach(rest, func(i int) OutboxID { return list[i].claim.ID })
		for try := 0; len(round) > 0; try++ {
			batch := make([]settlement, len(round))
			for n, i := range round {
				batch[n] = list[i].settlement
				batch[n].reason, batch[n].ref = cleanText(batch[n].reason, maxText), cleanText(batch[n].ref, maxText)
			}
			changed, err := s.backend.settle(ctx, batch)
			if err != nil {
				return nil, err
			}
			if len(changed) == len(round) {
				break
			}
			done := set(changed)
			missed := slices.DeleteFunc(round, func(i int) bool { return done[list[i].claim.ID] })
			ids := make([]OutboxID, len(missed))
			for n, i := range missed {
				ids[n] = list[i].claim.ID
			}
			states, err := s.backend.states(ctx, ids)
			if err != nil {
				return nil, err
			}
			// A row that has moved between the settle and this look may be
			// where the settle is accepted; one more try, not a race without end.
			round = round[:0]
			for _, i := range missed {
				one := list[i]
				state, found := states[one.claim.ID]
				switch v := one.judge(state); {
				case !found:
					answers[i] = &ClaimError{Operation: one.operation, ID: one.claim.ID, Err: ErrNotFound}
				case v == again && try == 0:
					round = append(round, i)
				case v != accepted:
					answers[i] = conflict(one.operation, one.claim.ID, state)
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
