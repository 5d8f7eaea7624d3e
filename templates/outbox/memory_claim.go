package outbox

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

func (m *memory) claimDue(ctx context.Context, c claimCall) ([]placedEntry, error) {
	return m.cursors.walk(c, func(lanes []*lane) (claimed []placedEntry, goOn map[string]string, err error) {
		goOn = make(map[string]string)
		err = m.do(ctx, func(tx *memoryTx) error {
			at := m.at(c.at)
			for _, l := range lanes {
				rows, key, ordered := tx.pick(l, c.kinds, at)
				if ordered {
					goOn[l.destination] = key
				}
				for _, s := range rows {
					s.token, s.worker, s.taken, s.next = c.token, c.worker, at, time.Time{}
					s.attempts++
					claimed = append(claimed, placedEntry{Entry: s.entry(), seq: s.seq})
				}
			}
			return nil
		})
		return claimed, goOn, err
	})
}

// pick locks the rows of a destination that a claim looks at and returns those
// that it takes: the oldest of those that are ready, of those that have come
// due, and of runs of ordered keys. It says behind which key the next claim goes
// on, and whether there are any keys.
func (tx *memoryTx) pick(l *lane, kinds []string, at time.Time) (rows []*memoryState, goOn string, ordered bool) {
	limit := int(l.limit)
	due := func(s *memoryState) bool {
		return s.row.destination == Destination(l.destination) && s.row.orderKey == "" && !s.past(at) && s.claimable(kinds, at)
	}
	ready := tx.take(limit, func(s *memoryState) bool { return due(s) && s.next.IsZero() }, nil)
	later := tx.take(limit, func(s *memoryState) bool { return due(s) && !s.next.IsZero() }, func(s *memoryState) time.Time { return s.next })
	var all []candidate
	for _, s := range append(ready, later...) {
		all = append(all, candidate{state: s, head: s.row.id})
	}
	runs, goOn, ordered := tx.runs(l, kinds, at)
	all = append(all, runs...)
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(compareIDs(a.head, b.head), cmp.Compare(a.state.seq, b.state.seq))
	})
	for _, c := range all[:min(limit, len(all))] {
		rows = append(rows, c.state)
	}
	return rows, goOn, ordered
}

// claimable tells whether the row could be claimed if it stood alone.
func (s *memoryState) claimable(kinds []string, at time.Time) bool {
	return s.pending() && s.due(at) && slices.Contains(kinds, s.kind())
}

// candidate is a row that a claim may take.
type candidate struct {
	state *memoryState
	head  OutboxID // of the run that the row belongs to; its own id where it is not ordered
}

// keyRun are the first rows of an ordered key, in the key's order and as many as
// a claim may take at the most.
type keyRun struct {
	rows  []*memoryState
	ready int // of these, the first that could be taken
}

func (r keyRun) head() *memoryState { return r.rows[0] }

// runs are the rows that a claim may take of ordered keys, found as on Postgres:
// no more keys behind the cursor are looked at than the limit may need, and of
// those that are ready the runs with the oldest heads are taken.
func (tx *memoryTx) runs(l *lane, kinds []string, at time.Time) (found []candidate, goOn string, ordered bool) {
	limit := int(l.limit)
	byKey := make(map[string][]*memoryState)
	holding := make(map[string]bool)
	for _, s := range tx.all(func(s *memoryState) bool {
		return s.row.destination == Destination(l.destination) && s.row.orderKey > l.start
	}) {
		if s.live {
			byKey[s.row.orderKey] = append(byKey[s.row.orderKey], s)
		}
		holding[s.row.orderKey] = holding[s.row.orderKey] || s.holding
	}
	if len(byKey) == 0 {
		return nil, "", l.start != ""
	}
	keys := slices.Sorted(maps.Keys(byKey))
	if len(keys) >= keysLook {
		keys = keys[:keysLook]
		goOn = keys[keysLook-1]
	}
	var runs []keyRun
	heads, rows, most := 0, 0, 2*limit+runRows
	for _, key := range keys {
		run, held := runOf(byKey[key], kinds, at)
		if run.ready == 0 || holding[key] {
			continue
		}
		if !held && rows+len(run.rows) > most {
			goOn = runs[len(runs)-1].head().row.orderKey
			break
		}
		heads++
		if !held {
			runs = append(runs, run)
			rows += len(run.rows)
		}
		if heads == limit || rows == most {
			goOn = key
			break
		}
	}
	return tx.oldest(runs, limit), goOn, true
}

// runOf is the run of a key that has these rows, and whether a worker holds any
// of those that a claim looks at.
func runOf(rows []*memoryState, kinds []string, at time.Time) (run keyRun, held bool) {
	rows = slices.DeleteFunc(rows, func(s *memoryState) bool { return s.pending() && s.past(at) })
	slices.SortFunc(rows, func(a, b *memoryState) int { return cmp.Compare(a.seq, b.seq) })
	held = slices.ContainsFunc(rows[:min(runRows+runLook, len(rows))], (*memoryState).held)
	run.rows = rows[:min(runRows, len(rows))]
	for _, s := range run.rows {
		if !s.claimable(kinds, at) {
			break
		}
		run.ready++
	}
	return run, held
}

// oldest locks the runs with the oldest heads, as many as the limit needs, and
// returns their ready rows. A key of which another transaction works on any row
// is left to a later claim.
func (tx *memoryTx) oldest(runs []keyRun, limit int) (found []candidate) {
	slices.SortFunc(runs, func(a, b keyRun) int { return compareIDs(a.head().row.id, b.head().row.id) })
	needed, ready := 0, 0
	for ; needed < len(runs) && ready < limit; needed++ {
		ready += runs[needed].ready
	}
	runs = slices.DeleteFunc(runs, func(r keyRun) bool { return tx.other(r.head()) != nil })
	ready = 0
	for _, run := range runs[:min(needed, len(runs))] {
		if ready >= limit {
			break
		}
		ready += run.ready
		if !slices.ContainsFunc(run.rows, func(s *memoryState) bool { return tx.other(s) != nil }) {
			for i, s := range run.rows {
				s = tx.own(s)
				if i < run.ready {
					found = append(found, candidate{state: s, head: run.head().row.id})
				}
			}
		}
	}
	return found
}

func (m *memory) claimUnknown(ctx context.Context, c claimCall) (entries []Entry, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		at := m.at(c.at)
		for i, d := range c.destinations {
			p := policyOf(Destination(d))
			rows := tx.take(int(c.limits[i]), func(s *memoryState) bool {
				return s.row.destination == p.destination && s.unknown && !s.held() && !s.next.IsZero() && s.due(at) &&
					slices.Contains(c.kinds, s.kind()) && s.asked(p, at)
			}, func(s *memoryState) time.Time { return s.next })
			for _, s := range rows {
				s.token, s.worker, s.taken = c.token, c.worker, at
				entries = append(entries, s.entry())
			}
		}
		return nil
	})
	return entries, err
}

func (m *memory) extendClaims(ctx context.Context, claims []Claim, at time.Time) (extended map[OutboxID]bool, err error) {
	extended = make(map[OutboxID]bool)
	tokens := make(map[OutboxID]int64, len(claims))
	ids := make([]OutboxID, len(claims))
	for i, c := range claims {
		tokens[c.ID] = c.Token
		ids[i] = c.ID
	}
	err = m.do(ctx, func(tx *memoryTx) error {
		rows, err := tx.lock(ctx, ids, func(s *memoryState) bool { return s.live })
		for _, s := range rows {
			if s.held() && s.token == tokens[s.row.id] {
				s.taken = m.at(at)
				extended[s.row.id] = true
			}
		}
		return err
	})
	return extended, err
}

func (m *memory) releaseExpired(ctx context.Context, limit int, t time.Time) (ids []OutboxID, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		at := m.at(t)
		expired := tx.take(limit, func(s *memoryState) bool {
			return s.held() && s.taken.Before(at.Add(-policyOf(s.row.destination).lease))
		}, nil)
		for _, s := range expired {
			s.abandon(policyOf(s.row.destination), at)
		}
		ids = idsOf(expired)
		return nil
	})
	return ids, err
}

// abandon ends a claim that is older than its lease.
func (s *memoryState) abandon(p policy, at time.Time) {
	switch most := p.attemptsToFail(); {
	case s.unknown:
		s.release(false)
	case !p.idempotent:
		s.release(true)
		s.unknown, s.since = true, at
		if p.firstQuestion != neverAsked {
			s.next = stamp(at.Add(p.firstQuestion))
		}
	case most != nil && s.attempts >= *most:
		s.fail(at, before("abandoned by "+s.worker, s.failure))
	default:
		s.release(true)
	}
}

func (m *memory) expireDue(ctx context.Context, limit int, t time.Time) (ids []OutboxID, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		at := m.at(t)
		expired := tx.take(limit, func(s *memoryState) bool { return s.pending() && s.past(at) },
			func(s *memoryState) time.Time { return s.expires })
		for _, s := range expired {
			s.end(at, true)
			s.failure = before("expired", s.failure)
		}
		ids = idsOf(expired)
		return nil
	})
	return ids, err
}

func (m *memory) purge(ctx context.Context, start OutboxID, limit int, t time.Time) (ids []OutboxID, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		at := m.at(t)
		old := tx.take(limit, func(s *memoryState) bool {
			p := policyOf(s.row.destination)
			keep := p.keepCompleted
			if s.failed {
				keep = p.keepFailed
			}
			return compareIDs(s.row.id, start) > 0 && !s.live && !s.holding && keep != keepForever && s.completed.Before(at.Add(-keep))
		}, nil)
		for _, s := range old {
			tx.remove(s.row.id)
		}
		ids = idsOf(old)
		return nil
	})
	return ids, err
}
