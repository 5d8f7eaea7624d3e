package outbox

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// model is the table of semantics once more, as small as it can be told: rows
// in a map, and operations that change them one after the other. It shares no
// rule with the stores that are held against it.
type model struct {
	now    time.Time // by which operations go that are given no time
	rows   map[OutboxID]*modelRow
	paused map[Destination]bool
	seq    int
}

type modelRow struct {
	Record
	seq int // place within the key
}

func (r *modelRow) held() bool { return r.Worker != "" }

// sorted are the rows that are wanted, in the order of their ids.
func (m *model) sorted(wanted func(*modelRow) bool) []*modelRow {
	rows := slices.SortedFunc(maps.Values(m.rows), func(a, b *modelRow) int { return compareIDs(a.ID, b.ID) })
	return slices.DeleteFunc(rows, func(r *modelRow) bool { return !wanted(r) })
}

func (m *model) present(at time.Time) time.Time {
	if at.IsZero() {
		return m.now
	}
	return at
}

// enqueue takes messages with the ids that the store has drawn for them.
func (m *model) enqueue(command Command, messages []Message, ids []OutboxID) ([]Enqueued, error) {
	before := maps.Clone(m.rows)
	equals := make(map[string]int)
	var answers []Enqueued
	for i, message := range messages {
		row, err := message.prepare(command, equals)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(m.sorted(func(*modelRow) bool { return true }), func(r *modelRow) bool {
			return r.Destination == row.destination && r.IdempotencyKey == row.key
		})
		if at >= 0 {
			other := m.sorted(func(*modelRow) bool { return true })[at]
			if other.PayloadType != row.payloadType || other.PayloadVersion == int(row.version) && string(other.Raw) != row.payload {
				m.rows = before
				reused := &MessageError{Index: i, Destination: row.destination, ExistingID: other.ID, Err: ErrKeyReused}
				if before[other.ID] == nil {
					reused.ExistingID = OutboxID{}
				}
				return nil, reused
			}
			answers = append(answers, Enqueued{ID: other.ID, Duplicate: true})
			continue
		}
		r := &modelRow{Record: Record{Status: StatusPending, Entry: Entry{
			Claim: Claim{ID: ids[i]}, ID: ids[i], CommandID: command.id, Columns: command.columns, Destination: row.destination,
			PayloadType: row.payloadType, PayloadVersion: int(row.version), IdempotencyKey: row.key, Raw: []byte(row.payload),
			Headers: message.headers, ExpiresAt: row.expires, OrderKey: row.orderKey, LimitKey: row.limitKey,
		}}}
		if row.lifetime > 0 && row.expires.IsZero() {
			r.ExpiresAt = m.now.Add(row.lifetime)
		}
		if row.due.After(m.now) {
			r.NextAttemptAt = row.due
		}
		m.seq++
		r.seq = m.seq
		m.rows[r.ID] = r
		answers = append(answers, Enqueued{ID: r.ID})
	}
	return answers, nil
}

// letGo ends the hold on a row, and the attempt if there was one.
func (r *modelRow) letGo() {
	if r.Status == StatusDispatching {
		r.LastAttemptAt = r.ClaimedAt
	}
	r.Worker, r.ClaimedAt = "", time.Time{}
}

func (r *modelRow) end(status Status, at time.Time) {
	r.Status, r.CompletedAt, r.Worker = status, at, ""
	r.NextAttemptAt, r.ClaimedAt, r.UnknownSince, r.LastAttemptAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
}

func (r *modelRow) wait(at, now time.Time) {
	r.Status, r.UnknownSince, r.NextAttemptAt = StatusPending, time.Time{}, time.Time{}
	if at.After(now) {
		r.NextAttemptAt = at
	}
}

func (r *modelRow) giveUp(at time.Time, reason string) {
	r.end(StatusFailed, at)
	r.LastFailure, r.Holding = reason, r.OrderKey != ""
}

func (m *model) settle(s Settlement) error {
	r := m.rows[s.claim.ID]
	if r == nil {
		return &ClaimError{Operation: s.operation, ID: s.claim.ID, Err: ErrNotFound}
	}
	if s.claim.Token == 0 || s.claim.Token != r.Claim.Token || !m.carryOut(r, s) {
		return m.refuse(s.operation, r)
	}
	return nil
}

func (m *model) refuse(operation string, r *modelRow) error {
	return &ClaimError{Operation: operation, ID: r.ID, Destination: r.Destination, Status: r.Status, Err: ErrConflict}
}

// carryOut does what a claim of the row may say in the row's status, if that
// allows it.
func (m *model) carryOut(r *modelRow, s Settlement) bool {
	p := policyOf(r.Destination)
	ended := r.Status == StatusCompleted || r.Status == StatusFailed
	switch s.operation {
	case "MarkCompleted":
		if ended {
			return r.Status == StatusCompleted
		}
		r.end(StatusCompleted, m.now)
		if s.ref != "" {
			r.RemoteRef = s.ref
		}
		if p.keepCompleted == 0 {
			delete(m.rows, r.ID)
		}
		return true
	case "MarkFailed":
		if r.Status == StatusFailed {
			r.LastFailure = s.reason
		} else if !ended {
			r.giveUp(m.now, s.reason)
		}
		return r.Status == StatusFailed
	case "MarkRetry", "Reschedule":
		if ended {
			return false
		}
		r.letGo()
		r.wait(m.due(s), m.now)
		if s.operation == "MarkRetry" && s.reason != "" {
			r.LastFailure = s.reason
		}
		return true
	case "Postpone":
		if r.Status != StatusDispatching {
			return false
		}
		attempted := r.LastAttemptAt
		r.letGo()
		r.wait(m.due(s), m.now)
		r.LastAttemptAt = attempted
		r.Attempt--
		if s.reason != "" {
			r.LastFailure = s.reason
		}
		return true
	case "GiveBack":
		switch {
		case r.Status == StatusDispatching:
			attempted := r.LastAttemptAt
			r.letGo()
			r.wait(time.Time{}, m.now)
			r.LastAttemptAt = attempted
			r.Attempt--
		case r.Status == StatusOutcomeUnknown && r.held():
			r.letGo()
		case r.Status != StatusPending:
			return false
		}
		return true
	case "MarkOutcomeUnknown", "KeepUnknown":
		switch {
		case r.Status == StatusOutcomeUnknown:
			if r.RemoteRef == "" {
				r.RemoteRef = s.ref
			}
		case r.Status == StatusDispatching && s.operation == "MarkOutcomeUnknown":
			if s.ref != "" {
				r.RemoteRef = s.ref
			}
			r.UnknownSince = m.now
		default:
			return false
		}
		if s.reason != "" {
			r.LastFailure = s.reason
		}
		r.letGo()
		r.Status, r.NextAttemptAt = StatusOutcomeUnknown, m.due(s)
		if m.personOnly(p, r, m.now) || m.personOnly(p, r, r.NextAttemptAt) {
			r.NextAttemptAt = time.Time{}
		}
		return true
	case "MarkNeverArrived":
		switch {
		case r.Status == StatusOutcomeUnknown && p.maxAttempts > 0 && r.Attempt >= p.maxAttempts:
			r.giveUp(m.now, s.reason)
		case r.Status == StatusOutcomeUnknown:
			r.letGo()
			r.wait(time.Time{}, m.now)
			r.LastFailure = s.reason
		case r.Status != StatusPending:
			return false
		}
		return true
	}
	panic("no such operation: " + s.operation)
}

// due is the time that a settlement gives, or the delay from now.
func (m *model) due(s Settlement) time.Time {
	if s.at.IsZero() {
		return m.now.Add(s.delay)
	}
	return s.at
}

// personOnly tells whether nobody asks about the row any more.
func (m *model) personOnly(p policy, r *modelRow, at time.Time) bool {
	if !p.idempotent && p.firstQuestion == neverAsked {
		return true
	}
	return p.giveUp > 0 && !r.UnknownSince.Add(p.giveUp).After(at)
}

func (r *modelRow) isDue(at time.Time) bool {
	return r.Status == StatusPending && !r.NextAttemptAt.After(at) && !r.isPast(at)
}

func (r *modelRow) isPast(at time.Time) bool { return !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(at) }

// claim takes what a store has claimed, when it may have: of destinations that
// are not ordered there is one answer, of others there are several, and got is
// to be one of them. It returns the rows in their order.
func (m *model) claim(limits map[Destination]int, at time.Time, leftOut string, mark OutboxID, got []Entry) ([]*modelRow, error) {
	at = m.present(at)
	type claimed struct {
		*modelRow
		head OutboxID
	}
	var all []claimed
	for d, limit := range limits {
		if d == DestinationStock || m.paused[d] {
			continue
		}
		due := m.sorted(func(r *modelRow) bool {
			return r.Destination == d && r.isDue(at) && string(d)+"/"+r.LimitKey != leftOut
		})
		var ready, later []*modelRow
		for _, r := range due {
			switch {
			case !r.NextAttemptAt.IsZero():
				later = append(later, r)
			case compareIDs(r.ID, mark) > 0:
				ready = append(ready, r)
			}
		}
		slices.SortStableFunc(later, func(a, b *modelRow) int { return a.NextAttemptAt.Compare(b.NextAttemptAt) })
		both := append(ready[:min(limit, len(ready))], later[:min(limit, len(later))]...)
		slices.SortFunc(both, func(a, b *modelRow) int { return compareIDs(a.ID, b.ID) })
		for _, r := range both[:min(limit, len(both))] {
			all = append(all, claimed{r, r.ID})
		}
	}
	runs := m.runs(at)
	ordered := 0
	for _, e := range got {
		if e.Destination != DestinationStock {
			continue
		}
		ordered++
		run := runs[e.OrderKey]
		if len(run) == 0 || run[0].ID != e.ID {
			return nil, fmt.Errorf("the row %s of the key %q is not the next of a key that is free", e.ID, e.OrderKey)
		}
		head := e.ID
		for _, c := range all {
			if c.OrderKey == e.OrderKey && c.Destination == e.Destination {
				head = c.head
			}
		}
		all = append(all, claimed{run[0], head})
		runs[e.OrderKey] = run[1:]
	}
	if ordered > limits[DestinationStock] {
		return nil, fmt.Errorf("claimed %d ordered rows, at most %d were asked for", ordered, limits[DestinationStock])
	}
	if ordered == 0 && limits[DestinationStock] > 0 && len(runs) > 0 {
		return nil, fmt.Errorf("no ordered row was claimed, and the keys %q are free", slices.Sorted(maps.Keys(runs)))
	}
	slices.SortFunc(all, func(a, b claimed) int { return cmp.Or(compareIDs(a.head, b.head), cmp.Compare(a.seq, b.seq)) })
	rows := make([]*modelRow, len(all))
	for i, c := range all {
		rows[i] = c.modelRow
		c.Status, c.NextAttemptAt = StatusDispatching, time.Time{}
		c.Attempt++
		c.hold(at, got)
	}
	return rows, nil
}

// hold gives the row to the worker of a claim.
func (r *modelRow) hold(at time.Time, got []Entry) {
	r.Worker, r.ClaimedAt = "worker", at
	if len(got) > 0 { // else the answers differ in length
		r.Claim.Token = got[0].Claim.Token
	}
}

// runs are the rows that one claim may take of each ordered key, where it may
// take any.
func (m *model) runs(at time.Time) map[string][]*modelRow {
	byKey := make(map[string][]*modelRow)
	if m.paused[DestinationStock] {
		return byKey
	}
	closed := make(map[string]bool)
	for _, r := range m.sorted(func(r *modelRow) bool { return r.OrderKey != "" }) {
		closed[r.OrderKey] = closed[r.OrderKey] || r.Holding || r.held()
		if r.CompletedAt.IsZero() && !(r.Status == StatusPending && r.isPast(at)) {
			byKey[r.OrderKey] = append(byKey[r.OrderKey], r)
		}
	}
	for key, rows := range byKey {
		slices.SortFunc(rows, func(a, b *modelRow) int { return cmp.Compare(a.seq, b.seq) })
		n := 0
		for n < min(runRows, len(rows)) && rows[n].isDue(at) {
			n++
		}
		byKey[key] = rows[:n]
		if closed[key] || n == 0 {
			delete(byKey, key)
		}
	}
	return byKey
}

// unknown are the rows to be asked about, by the time of the question.
func (m *model) unknown(d Destination, at time.Time) []*modelRow {
	rows := m.sorted(func(r *modelRow) bool {
		return r.Destination == d && r.Status == StatusOutcomeUnknown && !r.held() &&
			!r.NextAttemptAt.IsZero() && !r.NextAttemptAt.After(at) && !m.personOnly(policyOf(d), r, at)
	})
	slices.SortStableFunc(rows, func(a, b *modelRow) int { return a.NextAttemptAt.Compare(b.NextAttemptAt) })
	return rows
}

func (m *model) claimUnknown(limits map[Destination]int, at time.Time, got []Entry) []*modelRow {
	at = m.present(at)
	var all []*modelRow
	for d, limit := range limits {
		if m.paused[d] {
			continue
		}
		rows := m.unknown(d, at)
		all = append(all, rows[:min(limit, len(rows))]...)
	}
	slices.SortFunc(all, func(a, b *modelRow) int { return compareIDs(a.ID, b.ID) })
	for _, r := range all {
		r.hold(at, got)
	}
	return all
}

func (m *model) extend(claims []Claim, at time.Time) (held []Claim) {
	for _, c := range claims {
		if r := m.rows[c.ID]; r != nil && r.held() && r.Claim == c {
			r.ClaimedAt = m.present(at)
			held = append(held, c)
		}
	}
	return held
}

func (m *model) release(at time.Time) (ids []OutboxID) {
	at = m.present(at)
	for _, r := range m.sorted(func(r *modelRow) bool {
		return r.held() && r.ClaimedAt.Before(at.Add(-policyOf(r.Destination).lease))
	}) {
		ids = append(ids, r.ID)
		p := policyOf(r.Destination)
		switch {
		case r.Status == StatusOutcomeUnknown:
			r.letGo()
		case !p.idempotent:
			r.letGo()
			r.Status, r.UnknownSince, r.NextAttemptAt = StatusOutcomeUnknown, at, at.Add(p.firstQuestion)
		case p.maxAttempts > 0 && r.Attempt >= p.maxAttempts:
			r.giveUp(at, strings.TrimSuffix("abandoned by "+r.Worker+"; before: "+r.LastFailure, "; before: "))
		default:
			r.letGo()
			r.Status = StatusPending
		}
	}
	return ids
}

func (m *model) expired(at time.Time) []*modelRow {
	rows := m.sorted(func(r *modelRow) bool { return r.Status == StatusPending && r.isPast(at) })
	slices.SortStableFunc(rows, func(a, b *modelRow) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
	return rows
}

func (m *model) expire(at time.Time, limit int) (ids []OutboxID) {
	at = m.present(at)
	rows := m.expired(at)
	for _, r := range rows[:min(limit, len(rows))] {
		ids = append(ids, r.ID)
		r.end(StatusFailed, at)
		r.LastFailure = strings.TrimSuffix("expired; before: "+r.LastFailure, "; before: ")
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

func (m *model) cancel(id OutboxID, reason string) error {
	r := m.rows[id]
	switch {
	case r == nil:
		return &ClaimError{Operation: "Cancel", ID: id, Err: ErrNotFound}
	case r.Status != StatusPending:
		return m.refuse("Cancel", r)
	}
	r.end(StatusFailed, m.now)
	r.LastFailure = reason
	return nil
}

func (m *model) requeue(id OutboxID, reason string) error {
	r := m.rows[id]
	switch {
	case r == nil:
		return &ClaimError{Operation: "Requeue", ID: id, Err: ErrNotFound}
	case r.Status != StatusFailed:
		return m.refuse("Requeue", r)
	}
	if !r.Holding {
		m.seq++
		r.seq = m.seq
	}
	if r.isPast(m.now) {
		r.ExpiresAt = time.Time{}
	}
	r.Status, r.CompletedAt, r.Holding, r.Attempt, r.Claim.Token = StatusPending, time.Time{}, false, 0, 0
	r.LastFailure = strings.TrimSuffix("requeued: "+reason+"; before: "+r.LastFailure, "; before: ")
	return nil
}

func (m *model) skip(key string) error {
	held := m.sorted(func(r *modelRow) bool { return r.Holding && r.OrderKey == key })
	for _, r := range held {
		r.Holding = false
	}
	if len(held) == 0 {
		return ErrNotFound
	}
	return nil
}

func (m *model) purge(at time.Time, limit int) int {
	at = m.present(at)
	old := m.sorted(func(r *modelRow) bool {
		p := policyOf(r.Destination)
		keep := p.keepFailed
		if r.Status == StatusCompleted {
			keep = p.keepCompleted
		}
		return !r.CompletedAt.IsZero() && !r.Holding && keep != keepForever && r.CompletedAt.Add(keep).Before(at)
	})
	old = old[:min(limit, len(old))]
	for _, r := range old {
		delete(m.rows, r.ID)
	}
	return len(old)
}

func (m *model) list(f Filter, limit int) []*modelRow {
	rows := m.sorted(func(r *modelRow) bool {
		kind := fmt.Sprintf("%s/%s@%d", r.Destination, r.PayloadType, r.PayloadVersion)
		return (len(f.Statuses) == 0 || slices.Contains(f.Statuses, r.Status)) &&
			(len(f.Destinations) == 0 || slices.Contains(f.Destinations, r.Destination)) &&
			(len(f.Kinds) == 0 || slices.Contains(f.Kinds, kind)) &&
			(f.CommandID == nil || *f.CommandID == r.CommandID) &&
			(f.Columns.Region == nil || r.Columns.Region != nil && *r.Columns.Region == *f.Columns.Region) &&
			strings.Contains(r.LastFailure, f.LastFailure) && (!f.Holding || r.Holding)
	})
	return rows[:min(limit, len(rows))]
}

func (m *model) stats() Stats {
	byName := make(map[Destination]*DestinationStats)
	var stats Stats
	for _, p := range policies {
		byName[p.destination] = &DestinationStats{Destination: p.destination, Paused: m.paused[p.destination]}
	}
	held := make(map[string]bool)
	for _, r := range m.sorted(func(*modelRow) bool { return true }) {
		d := byName[r.Destination]
		switch r.Status {
		case StatusPending:
			if d.Pending++; d.Pending == 1 {
				d.OldestPending = r.ID.createdAt()
			}
			if r.isDue(m.now) {
				d.Due++
			}
		case StatusDispatching:
			d.Dispatching++
		case StatusOutcomeUnknown:
			if d.OutcomeUnknown++; d.OutcomeUnknown == 1 {
				d.OldestUnknown = r.ID.createdAt()
			}
		case StatusFailed:
			d.Failed++
			if r.Holding && !held[r.OrderKey] {
				held[r.OrderKey] = true
				d.HeldKeys++
			}
		}
	}
	for _, p := range policies {
		stats.Destinations = append(stats.Destinations, *byName[p.destination])
	}
	return stats
}
