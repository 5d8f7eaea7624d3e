package outbox

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

func (m *memory) claimDue(ctx context.Context, c claimCall) (claimed []*claimedRow, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		at := m.at(c.at)
		for i, d := range c.destinations {
			if tx.isPaused(Destination(d)) {
				*c.walks[i] = walk{}
				continue
			}
			loose := tx.loose(Destination(d), int(c.limits[i]), c.marks[i], c, at)
			rows := append(loose, m.ordered(tx, i, int(c.limits[i])-len(loose), c, at)...)
			for _, s := range rows {
				s.token, s.worker, s.taken, s.next = c.token, c.worker, at, time.Time{}
				s.attempts++
				claimed = append(claimed, s.placed())
			}
		}
		return nil
	})
	return claimed, err
}

// fits tells whether a call may claim the row if it stands alone.
func (c claimCall) fits(s *memoryState, at time.Time) bool {
	return s.pending() && !s.next.After(at) && c.wants(s)
}

// wants tells whether a call is for rows like this one.
func (c claimCall) wants(s *memoryState) bool {
	return slices.Contains(c.kinds, s.kind()) && !slices.Contains(c.leftOut, string(s.row.destination)+"/"+s.row.limitKey)
}

// loose locks rows of a destination that no order binds, those that are ready
// and those that have come due, and returns the oldest.
func (tx *memoryTx) loose(d Destination, limit int, mark OutboxID, c claimCall, at time.Time) []*memoryState {
	due := func(s *memoryState) bool {
		return s.row.destination == d && s.row.orderKey == "" && c.fits(s, at) && !s.past(at)
	}
	ready := tx.take(limit, func(s *memoryState) bool { return due(s) && s.next.IsZero() && compareIDs(s.row.id, mark) > 0 }, nil)
	later := tx.take(limit, func(s *memoryState) bool { return due(s) && !s.next.IsZero() }, func(s *memoryState) time.Time { return s.next })
	rows := append(ready, later...)
	slices.SortFunc(rows, compareStates)
	return rows[:min(limit, len(rows))]
}

// ordered locks runs of the ordered keys of a destination. It goes on behind the
// keys that the last claim has looked at, and around until it finds any or has
// looked as often as the call allows.
func (m *memory) ordered(tx *memoryTx, which, limit int, c claimCall, at time.Time) []*memoryState {
	if limit <= 0 {
		return nil
	}
	d, w := c.destinations[which], c.walks[which]
	w.begin(m.keys.get(d))
	for looks := 1; ; looks++ {
		l := memoryLook{destination: Destination(d), start: w.start, limit: limit, run: int(c.runs[which])}
		heads, goOn := tx.lockHeads(l, c, at)
		rows := tx.takeRuns(l, heads, c, at)
		m.keys.set(d, goOn)
		w.advance(goOn)
		if len(rows) > 0 || w.over || looks == c.looks {
			return rows
		}
	}
}

// memoryLook is a look at order keys.
type memoryLook struct {
	destination Destination
	start       string // it is at the keys behind this one
	limit, run  int    // of the rows in all, and of one key
}

// lockHeads locks the heads of keys that can go on, as many as the limit needs of
// those that come next. It returns them and the key from which the next claim
// goes on.
func (tx *memoryTx) lockHeads(l memoryLook, c claimCall, at time.Time) (locked []*memoryState, goOn string) {
	byKey, held := tx.keysBehind(l)
	keys := slices.Sorted(maps.Keys(byKey))
	var heads []*memoryState
	needed, total, last := 0, 0, 0
	for ; last < len(keys) && last < keysLook && total < 2*l.limit; last++ {
		rows := byKey[keys[last]]
		if way := inTheWay(rows, at); len(way) > 0 && c.fits(way[0], at) && !held[keys[last]] {
			if total < l.limit {
				needed++
			}
			heads = append(heads, way[0])
			total += min(l.run, len(rows))
		}
	}
	for _, h := range heads {
		if len(locked) < needed && tx.other(h) == nil {
			locked = append(locked, tx.own(h))
		}
	}
	switch {
	case len(locked) > 0 && locked[len(locked)-1].row.orderKey < heads[len(heads)-1].row.orderKey:
		return locked, locked[len(locked)-1].row.orderKey
	case last > 0 && (last == keysLook || total >= 2*l.limit):
		return locked, keys[last-1]
	}
	return locked, ""
}

// keysBehind are the rows of each key behind the start of the look that are alive, in
// the key's order, and the keys that failed rows hold.
func (tx *memoryTx) keysBehind(l memoryLook) (byKey map[string][]*memoryState, held map[string]bool) {
	byKey, held = make(map[string][]*memoryState), make(map[string]bool)
	for _, s := range tx.all(func(s *memoryState) bool {
		return s.row.destination == l.destination && s.row.orderKey > l.start
	}) {
		if s.live {
			byKey[s.row.orderKey] = append(byKey[s.row.orderKey], s)
		}
		held[s.row.orderKey] = held[s.row.orderKey] || s.holding
	}
	for _, rows := range byKey {
		slices.SortFunc(rows, func(a, b *memoryState) int { return cmp.Compare(a.seq, b.seq) })
	}
	return byKey, held
}

// inTheWay are those of the rows of a key that the later ones wait for.
func inTheWay(rows []*memoryState, at time.Time) (way []*memoryState) {
	for _, s := range rows {
		if !s.pending() || !s.past(at) {
			way = append(way, s)
		}
	}
	return way
}

// takeRuns locks the first rows of the keys whose heads are locked and returns
// those that are ready, of the oldest heads first. A key is left to a later
// claim where a worker holds one of its next rows, or another transaction works
// on one of the first.
func (tx *memoryTx) takeRuns(l memoryLook, heads []*memoryState, c claimCall, at time.Time) (taken []*memoryState) {
	byKey, _ := tx.keysBehind(l)
	slices.SortFunc(heads, compareStates)
	for _, head := range heads {
		rows := inTheWay(byKey[head.row.orderKey], at)
		rows = rows[:min(l.run+runLook, len(rows))]
		first := rows[:min(l.run, len(rows))]
		alone := !slices.ContainsFunc(rows, (*memoryState).held)
		for i, s := range first {
			if tx.other(s) != nil {
				alone = false
				continue
			}
			first[i] = tx.own(s)
		}
		for _, s := range first {
			if !alone || !c.fits(s, at) || len(taken) == l.limit {
				break
			}
			taken = append(taken, s)
		}
	}
	return taken
}

func (m *memory) claimUnknown(ctx context.Context, c claimCall) (claimed []*claimedRow, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		at := m.at(c.at)
		for i, d := range c.destinations {
			p := policyOf(Destination(d))
			if tx.isPaused(p.destination) {
				continue
			}
			rows := tx.take(int(c.limits[i]), func(s *memoryState) bool {
				return s.row.destination == p.destination && s.unknown && !s.held() && !s.next.IsZero() && !s.next.After(at) &&
					c.wants(s) && s.asked(p, at)
			}, func(s *memoryState) time.Time { return s.next })
			for _, s := range rows {
				s.token, s.worker, s.taken = c.token, c.worker, at
				claimed = append(claimed, s.placed())
			}
		}
		return nil
	})
	return claimed, err
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

func (m *memory) releaseExpired(ctx context.Context, destinations []Destination, limit int, t time.Time) (ids []OutboxID, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		at := m.at(t)
		expired := tx.take(limit, func(s *memoryState) bool {
			return s.held() && slices.Contains(destinations, s.row.destination) && s.taken.Before(at.Add(-policyOf(s.row.destination).lease))
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

func (m *memory) expireDue(ctx context.Context, destinations []Destination, limit int, t time.Time) (ids []OutboxID, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		at := m.at(t)
		expired := tx.take(limit, func(s *memoryState) bool {
			return s.pending() && s.past(at) && slices.Contains(destinations, s.row.destination)
		}, func(s *memoryState) time.Time { return s.expires })
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
