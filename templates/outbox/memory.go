package outbox

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// MemoryDB is a database without Postgres, for tests: [NewMemory] returns it
// with a Store over it. It has the rows of the outbox and nothing else, so its
// transactions run no SQL.
//
// Begin begins a transaction that [Store.With] takes, so that pgx.BeginFunc
// commits and rolls back on it for real: what is not committed is not seen, is
// passed over by claims, and is waited for by whoever wants the same row or the
// same idempotency key.
type MemoryDB struct {
	mu      sync.Mutex
	ended   *sync.Cond // a transaction has ended
	rows    map[OutboxID]*memoryRow
	keys    map[memoryKey]OutboxID
	seq     int64
	now     func() time.Time
}

type memoryKey struct {
	destination Destination
	key         string
}

// NewMemory returns a Store that keeps its rows in memory, for tests, and the
// database under it. It answers as a Store on Postgres does.
func NewMemory(options Options) (*Store, *MemoryDB) {
	db := &MemoryDB{rows: make(map[OutboxID]*memoryRow), keys: make(map[memoryKey]OutboxID), now: time.Now}
	db.ended = sync.NewCond(&db.mu)
	return &Store{backend: &memory{db: db}, options: options}, db
}

// SetNow sets the database's clock. Ids are still drawn by the host's.
func (db *MemoryDB) SetNow(now func() time.Time) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.now = now
}

// memoryRow is a message in two states: as it is committed, and as the
// transaction has left it that works on it. Nil is no row.
type memoryRow struct {
	key       memoryKey
	committed *memoryState
	working   *memoryState
	owner     *memoryTx // nil = the states are the same
}

// memoryState is one message with its place in the queue or its outcome.
type memoryState struct {
	row     newRow
	command Command
	created time.Time
	expires time.Time // of the message

	live      bool
	token     int64
	taken     time.Time // zero = nobody holds the row
	next      time.Time // zero = due, or never asked about
	deadline  time.Time // of the row in the queue; zero = it does not expire
	attempted time.Time
	since     time.Time
	seq       int64
	attempts  int32
	unknown   bool
	worker    string
	failure   string
	ref       string

	completed time.Time
	failed    bool
	holding   bool
}

func (s *memoryState) held() bool { return !s.taken.IsZero() }

func (s *memoryState) pending() bool { return s.live && !s.held() && !s.unknown }

func (s *memoryState) due(at time.Time) bool { return s.next.IsZero() || !s.next.After(at) }

func (s *memoryState) past(at time.Time) bool { return !s.deadline.IsZero() && !s.deadline.After(at) }

func (s *memoryState) kind() string {
	return string(s.row.destination) + "/" + s.row.payloadType + "@" + strconv.Itoa(int(s.row.version))
}

func (s *memoryState) status() Status {
	switch {
	case !s.live && s.failed:
		return StatusFailed
	case !s.live:
		return StatusCompleted
	case s.unknown:
		return StatusOutcomeUnknown
	case s.held():
		return StatusDispatching
	}
	return StatusPending
}

// release ends the hold on a row. The attempt that has ended with it, if any,
// is remembered by the time at which it was claimed.
func (s *memoryState) release(attempted bool) {
	if attempted && !s.unknown && s.held() {
		s.attempted = s.taken
	}
	s.taken, s.worker = time.Time{}, ""
}

// end moves a row to the outcomes.
func (s *memoryState) end(at time.Time, failed bool) {
	s.live, s.completed, s.failed = false, at, failed
	s.release(false)
	s.next, s.since, s.attempted, s.deadline, s.unknown = time.Time{}, time.Time{}, time.Time{}, time.Time{}, false
}

// fail ends a row as failed, and holds its key.
func (s *memoryState) fail(at time.Time, reason string) {
	s.end(at, true)
	s.failure, s.holding = reason, s.row.orderKey != ""
}

// memory is the backend over a MemoryDB, in a transaction of the caller's or
// with one for each call.
type memory struct {
	db *MemoryDB
	tx *memoryTx
}

var errOtherTx = errors.New("the transaction is not one of the memory store: begin it with MemoryDB.Begin")

func (m *memory) within(tx pgx.Tx) backend {
	own, _ := tx.(*memoryTx)
	if own == nil || own.db != m.db {
		own = &memoryTx{err: errOtherTx}
	}
	return &memory{db: m.db, tx: own}
}

// do runs a step under the database's lock, in the caller's transaction or in one
// of its own that is committed when the step succeeds.
func (m *memory) do(step func(tx *memoryTx) error) error {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	if m.tx != nil {
		if err := m.tx.usable(); err != nil {
			return err
		}
		err := step(m.tx)
		if err != nil {
			m.tx.err = errAborted
		}
		return err
	}
	tx := &memoryTx{db: m.db}
	err := step(tx)
	tx.finish(err == nil)
	return err
}

// abort makes the caller's transaction one that can only be rolled back.
func (m *memory) abort() {
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	m.tx.err = errAborted
}

func (m *memory) at(t time.Time) time.Time {
	if t.IsZero() {
		t = m.db.now()
	}
	return stamp(t)
}

// stamp is a time as Postgres keeps it: to the microsecond.
func stamp(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return time.UnixMicro(t.UnixMicro())
}

// seen is the row as the transaction sees it; nil = it does not.
func (tx *memoryTx) seen(r *memoryRow) *memoryState {
	if r.owner == tx {
		return r.working
	}
	return r.committed
}

// lock makes the row the transaction's, after waiting for any other that has it,
// and returns its state, which is nil when there is no such row.
func (tx *memoryTx) lock(ctx context.Context, id OutboxID) (*memoryState, error) {
	for {
		r := tx.db.rows[id]
		if r == nil {
			return nil, nil
		}
		if r.owner == nil || r.owner == tx {
			return tx.own(id, r), nil
		}
		if err := tx.wait(ctx, r.owner); err != nil {
			return nil, err
		}
	}
}

// own makes a row the transaction's that no other has.
func (tx *memoryTx) own(id OutboxID, r *memoryRow) *memoryState {
	if r.owner == tx {
		return r.working
	}
	if r.committed == nil {
		return nil
	}
	state := *r.committed
	r.owner, r.working = tx, &state
	tx.touched = append(tx.touched, id)
	return r.working
}

// each calls visit for every row that the transaction sees and no other works on,
// in the order of their ids, until it returns false.
func (tx *memoryTx) each(visit func(id OutboxID, r *memoryRow, s *memoryState) bool) {
	ids := make([]OutboxID, 0, len(tx.db.rows))
	for id := range tx.db.rows {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareIDs)
	for _, id := range ids {
		r := tx.db.rows[id]
		if s := tx.seen(r); s != nil && !visit(id, r, s) {
			return
		}
	}
}

// free tells whether no other transaction works on the row.
func (tx *memoryTx) free(r *memoryRow) bool { return r.owner == nil || r.owner == tx }

func (m *memory) enqueue(ctx context.Context, command Command, rows []newRow) (places []placed, err error) {
	err = m.do(func(tx *memoryTx) error {
		places, err = tx.enqueue(ctx, m.at(time.Time{}), command, rows)
		return err
	})
	return places, err
}

func (tx *memoryTx) enqueue(ctx context.Context, now time.Time, command Command, rows []newRow) ([]placed, error) {
	places := make([]placed, len(rows))
	inserted := make(map[OutboxID]bool)
	order := make([]int, len(rows)) // that of the keys, as on Postgres
	for i := range rows {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(rows[a].destination, rows[b].destination), strings.Compare(rows[a].key, rows[b].key), compareIDs(rows[a].id, rows[b].id))
	})
	for _, i := range order {
		row := rows[i]
		key := memoryKey{row.destination, row.key}
		var other *memoryState
		for {
			id, taken := tx.db.keys[key]
			if !taken {
				break
			}
			r := tx.db.rows[id]
			if r.owner != nil && r.owner != tx {
				if err := tx.wait(ctx, r.owner); err != nil {
					return nil, err
				}
				continue
			}
			other = tx.seen(r)
			break
		}
		if other == nil {
			places[i] = placed{id: row.id}
			inserted[row.id] = true
			tx.insert(now, command, row)
			continue
		}
		places[i] = placed{id: other.row.id, duplicate: true}
		if other.row.payloadType != row.payloadType || other.row.version == row.version && other.row.payload != row.payload {
			places[i] = placed{id: other.row.id, reused: true}
		}
	}
	for i, place := range places {
		if !place.reused {
			continue
		}
		if inserted[place.id] {
			places[i].id = OutboxID{}
		}
		for id := range inserted {
			tx.remove(id)
		}
		return places, nil
	}
	return places, nil
}

func (tx *memoryTx) insert(now time.Time, command Command, row newRow) {
	command.columns = command.columns.stored()
	s := &memoryState{row: row, command: command, created: row.id.createdAt(), live: true}
	s.expires = stamp(row.expires)
	if s.expires.IsZero() && row.lifetime > 0 {
		s.expires = stamp(now.Add(row.lifetime))
	}
	s.deadline = s.expires
	if due := stamp(row.due); due.After(now) {
		s.next = due
	}
	tx.db.seq++
	s.seq = tx.db.seq
	key := memoryKey{row.destination, row.key}
	tx.db.rows[row.id] = &memoryRow{key: key, working: s, owner: tx}
	tx.db.keys[key] = row.id
	tx.touched = append(tx.touched, row.id)
}

// remove takes a row away that the transaction owns.
func (tx *memoryTx) remove(id OutboxID) { tx.db.rows[id].working = nil }

func (m *memory) queueEnqueue(batch *pgx.Batch, command Command, rows []newRow, answer func([]placed, error) error) {
	batch.Queue(memoryEnqueue, &memoryBatch{command: command, rows: rows, answer: answer})
}

func (m *memory) claimDue(ctx context.Context, c claimCall) (claimed []placedEntry, err error) {
	err = m.do(func(tx *memoryTx) error {
		at := m.at(c.at)
		for i, d := range c.destinations {
			for _, s := range tx.pick(Destination(d), int(c.limits[i]), c.kinds, at) {
				s.token, s.worker, s.taken, s.next = c.token, c.worker, at, time.Time{}
				s.attempts++
				claimed = append(claimed, placedEntry{Entry: s.entry(), seq: s.seq})
			}
		}
		return nil
	})
	return claimed, err
}

// candidate is a row that a claim may take, and where it stands among others.
type candidate struct {
	id   OutboxID
	head OutboxID // of the run that the row belongs to; its own id where it is not ordered
	seq  int64
}

// pick owns the rows that a claim takes: as on Postgres the oldest of those that
// are ready, of those that have come due, and of runs of ordered keys.
func (tx *memoryTx) pick(d Destination, limit int, kinds []string, at time.Time) []*memoryState {
	var ready, later []candidate
	tx.each(func(id OutboxID, r *memoryRow, s *memoryState) bool {
		if s.row.destination != d || s.row.orderKey != "" || !tx.free(r) || !s.pending() || s.past(at) || !slices.Contains(kinds, s.kind()) {
			return true
		}
		switch {
		case s.next.IsZero() && len(ready) < limit:
			ready = append(ready, candidate{id: id, head: id})
		case !s.next.IsZero() && s.due(at):
			later = append(later, candidate{id: id, head: id})
		}
		return true
	})
	slices.SortStableFunc(later, func(a, b candidate) int {
		return tx.seen(tx.db.rows[a.id]).next.Compare(tx.seen(tx.db.rows[b.id]).next)
	})
	all := append(ready, later[:min(limit, len(later))]...)
	all = append(all, tx.runs(d, limit, kinds, at)...)
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Or(compareIDs(a.head, b.head), cmp.Compare(a.seq, b.seq)) })
	var picked []*memoryState
	for _, c := range all[:min(limit, len(all))] {
		picked = append(picked, tx.own(c.id, tx.db.rows[c.id]))
	}
	return picked
}

// runs are the ready rows at the heads of ordered keys.
func (tx *memoryTx) runs(d Destination, limit int, kinds []string, at time.Time) []candidate {
	byKey := make(map[string][]*memoryState) // of those in the way of the key, in the key's order
	holding := make(map[string]bool)
	tx.each(func(_ OutboxID, _ *memoryRow, s *memoryState) bool {
		if s.row.destination != d || s.row.orderKey == "" {
			return true
		}
		holding[s.row.orderKey] = holding[s.row.orderKey] || s.holding
		if s.live && (!s.past(at) || s.held() || s.unknown) {
			byKey[s.row.orderKey] = append(byKey[s.row.orderKey], s)
		}
		return true
	})
	var found []candidate
	heads := 0
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		rows := byKey[key]
		slices.SortFunc(rows, func(a, b *memoryState) int { return cmp.Compare(a.seq, b.seq) })
		run := tx.run(rows, kinds, at)
		if holding[key] || len(run) == 0 {
			continue
		}
		for _, s := range run {
			found = append(found, candidate{id: s.row.id, head: run[0].row.id, seq: s.seq})
		}
		if heads++; heads == limit {
			break
		}
	}
	return found
}

// run is what a claim may take of a key, whose rows are given in its order.
func (tx *memoryTx) run(rows []*memoryState, kinds []string, at time.Time) []*memoryState {
	n := 0
	for i, s := range rows {
		if s.held() || !tx.free(tx.db.rows[s.row.id]) {
			return nil
		}
		if i == n && n < runRows && !s.unknown && s.due(at) && slices.Contains(kinds, s.kind()) {
			n++
		}
	}
	return rows[:n]
}

func (m *memory) claimUnknown(ctx context.Context, c claimCall) (entries []Entry, err error) {
	err = m.do(func(tx *memoryTx) error {
		at := m.at(c.at)
		for i, d := range c.destinations {
			var due []*memoryState
			tx.each(func(_ OutboxID, r *memoryRow, s *memoryState) bool {
				giveUp := c.giveUp[i]
				if s.row.destination == Destination(d) && tx.free(r) && s.live && s.unknown && !s.held() && !s.next.IsZero() && s.due(at) &&
					slices.Contains(c.kinds, s.kind()) && (giveUp == nil || s.since.Add(time.Duration(*giveUp)*time.Microsecond).After(at)) {
					due = append(due, s)
				}
				return true
			})
			slices.SortStableFunc(due, func(a, b *memoryState) int { return a.next.Compare(b.next) })
			for _, s := range due[:min(int(c.limits[i]), len(due))] {
				s = tx.own(s.row.id, tx.db.rows[s.row.id])
				s.token, s.worker, s.taken = c.token, c.worker, at
				entries = append(entries, s.entry())
			}
		}
		return nil
	})
	return entries, err
}

func (m *memory) settle(ctx context.Context, settlements []settlement) (changed map[OutboxID]bool, err error) {
	changed = make(map[OutboxID]bool, len(settlements))
	err = m.do(func(tx *memoryTx) error {
		for _, one := range settlements {
			s, err := tx.lock(ctx, one.claim.ID)
			if err != nil {
				return err
			}
			if s != nil && s.token == one.claim.Token && s.token != 0 && tx.settle(s, one, m.at(time.Time{})) {
				changed[one.claim.ID] = true
			}
		}
		return nil
	})
	return changed, err
}

// settle carries out a settlement whose fence holds, where the status allows it.
func (tx *memoryTx) settle(s *memoryState, one settlement, now time.Time) bool {
	if !s.live {
		if one.op != opFailed || !s.failed {
			return false
		}
		s.failure = one.reason
		return true
	}
	p := policyOf(s.row.destination)
	dispatching := s.held() && !s.unknown
	switch one.op {
	case opCompleted:
		s.end(now, false)
		s.ref = cmp.Or(one.ref, s.ref)
		if p.keepCompleted == 0 {
			tx.remove(s.row.id)
		}
	case opFailed:
		s.fail(now, one.reason)
	case opRetry, opPostpone:
		if one.op == opPostpone {
			if !dispatching {
				return false
			}
			s.attempts--
		}
		s.release(one.op == opRetry)
		s.unknown, s.since = false, time.Time{}
		s.failure = cmp.Or(one.reason, s.failure)
		s.next = time.Time{}
		if at := stamp(one.at); at.After(now) {
			s.next = at
		}
	case opUnknown, opKeepUnknown:
		if !s.unknown && (one.op == opKeepUnknown || !dispatching) {
			return false
		}
		if s.unknown {
			s.ref = cmp.Or(s.ref, one.ref)
		} else {
			s.ref, s.since = cmp.Or(one.ref, s.ref), now
		}
		s.release(true)
		s.unknown = true
		s.next = stamp(one.at)
		if s.next.IsZero() {
			s.next = now
		}
		if giveUp := p.giveUpAfter(); giveUp != nil && !s.since.Add(time.Duration(*giveUp)*time.Microsecond).After(now) {
			s.next = time.Time{}
		}
	case opNeverArrived:
		if !s.unknown {
			return false
		}
		if most := p.attemptsToFail(); most != nil && s.attempts >= *most {
			s.fail(now, one.reason)
			return true
		}
		s.release(false)
		s.unknown, s.since, s.next, s.failure = false, time.Time{}, time.Time{}, one.reason
	case opGiveBack:
		if !s.held() {
			return false
		}
		if !s.unknown {
			s.attempts--
		}
		s.release(false)
	}
	return true
}

func (m *memory) states(_ context.Context, ids []OutboxID) (states map[OutboxID]rowState, err error) {
	states = make(map[OutboxID]rowState)
	err = m.do(func(tx *memoryTx) error {
		for _, id := range ids {
			if r := tx.db.rows[id]; r != nil {
				if s := tx.seen(r); s != nil {
					states[id] = rowState{destination: s.row.destination, status: s.status(), token: s.token, held: s.live && s.held()}
				}
			}
		}
		return nil
	})
	return states, err
}

func (m *memory) extendClaims(ctx context.Context, claims []Claim, at time.Time) (held map[OutboxID]bool, err error) {
	held = make(map[OutboxID]bool)
	err = m.do(func(tx *memoryTx) error {
		for _, c := range claims {
			s, err := tx.lock(ctx, c.ID)
			if err != nil {
				return err
			}
			if s != nil && s.live && s.held() && s.token == c.Token && c.Token != 0 {
				s.taken = m.at(at)
				held[c.ID] = true
			}
		}
		return nil
	})
	return held, err
}

// sweep owns at most limit free rows that a sweep is for, by a time of theirs.
func (tx *memoryTx) sweep(limit int, wanted func(*memoryState) bool, by func(*memoryState) time.Time) []*memoryState {
	var found []*memoryState
	tx.each(func(_ OutboxID, r *memoryRow, s *memoryState) bool {
		if tx.free(r) && wanted(s) {
			found = append(found, s)
		}
		return true
	})
	slices.SortStableFunc(found, func(a, b *memoryState) int { return by(a).Compare(by(b)) })
	found = found[:min(limit, len(found))]
	for i, s := range found {
		found[i] = tx.own(s.row.id, tx.db.rows[s.row.id])
	}
	return found
}

func idsOf(states []*memoryState) []OutboxID {
	var ids []OutboxID
	for _, s := range states {
		ids = append(ids, s.row.id)
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

func known(d Destination) bool {
	return slices.ContainsFunc(policies, func(p *policy) bool { return p.destination == d })
}

func (m *memory) releaseExpired(_ context.Context, limit int, t time.Time) (ids []OutboxID, err error) {
	err = m.do(func(tx *memoryTx) error {
		at := m.at(t)
		expired := tx.sweep(limit, func(s *memoryState) bool {
			return s.live && s.held() && known(s.row.destination) && s.taken.Before(at.Add(-policyOf(s.row.destination).lease))
		}, func(s *memoryState) time.Time { return s.taken })
		for _, s := range expired {
			p := policyOf(s.row.destination)
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
		ids = idsOf(expired)
		return nil
	})
	return ids, err
}

// before is a reason with the failure that it takes the place of.
func before(reason, failure string) string {
	if failure == "" {
		return reason
	}
	return reason + "; before: " + failure
}

func (m *memory) expireDue(_ context.Context, limit int, t time.Time) (ids []OutboxID, err error) {
	err = m.do(func(tx *memoryTx) error {
		at := m.at(t)
		expired := tx.sweep(limit, func(s *memoryState) bool { return s.pending() && s.past(at) && known(s.row.destination) },
			func(s *memoryState) time.Time { return s.deadline })
		for _, s := range expired {
			failure := s.failure
			s.end(at, true)
			s.failure = before("expired", failure)
		}
		ids = idsOf(expired)
		return nil
	})
	return ids, err
}

func (m *memory) cancel(ctx context.Context, id OutboxID, reason string) (done bool, err error) {
	err = m.do(func(tx *memoryTx) error {
		s, err := tx.lock(ctx, id)
		if err != nil || s == nil || !s.pending() {
			return err
		}
		s.end(m.at(time.Time{}), true)
		s.failure, done = reason, true
		return nil
	})
	return done, err
}

func (m *memory) requeue(ctx context.Context, ids []OutboxID, reason string) (requeued []OutboxID, err error) {
	err = m.do(func(tx *memoryTx) error {
		now := m.at(time.Time{})
		for _, id := range ids {
			s, err := tx.lock(ctx, id)
			if err != nil {
				return err
			}
			if s == nil || s.live || !s.failed {
				continue
			}
			if !s.holding {
				tx.db.seq++
				s.seq = tx.db.seq
			}
			if !s.expires.IsZero() && !s.expires.After(now) {
				s.expires = time.Time{}
			}
			s.live, s.failed, s.holding, s.completed = true, false, false, time.Time{}
			s.token, s.attempts, s.deadline = 0, 0, s.expires
			s.failure = before("requeued: "+reason, s.failure)
			requeued = append(requeued, id)
		}
		slices.SortFunc(requeued, compareIDs)
		return nil
	})
	return requeued, err
}

func (m *memory) skip(ctx context.Context, destination Destination, key string) (ids []OutboxID, err error) {
	err = m.do(func(tx *memoryTx) error {
		var holding []OutboxID
		tx.each(func(id OutboxID, _ *memoryRow, s *memoryState) bool {
			if s.holding && s.row.destination == destination && s.row.orderKey == key {
				holding = append(holding, id)
			}
			return true
		})
		for _, id := range holding {
			s, err := tx.lock(ctx, id)
			if err != nil {
				return err
			}
			if s != nil && s.holding {
				s.holding = false
				ids = append(ids, id)
			}
		}
		return nil
	})
	return ids, err
}

func (m *memory) purge(_ context.Context, start OutboxID, limit int, t time.Time) (ids []OutboxID, err error) {
	err = m.do(func(tx *memoryTx) error {
		at := m.at(t)
		tx.each(func(id OutboxID, r *memoryRow, s *memoryState) bool {
			if len(ids) == limit {
				return false
			}
			keep := keepCompletedDefault
			p := policyOf(s.row.destination)
			switch {
			case s.failed && known(p.destination):
				keep = p.keepFailed
			case s.failed:
				keep = keepFailedDefault
			case known(p.destination):
				keep = p.keepCompleted
			}
			if compareIDs(id, start) <= 0 || !tx.free(r) || s.live || s.holding || keep == keepForever || !s.completed.Before(at.Add(-keep)) {
				return true
			}
			tx.own(id, r)
			tx.remove(id)
			ids = append(ids, id)
			return true
		})
		return nil
	})
	return ids, err
}

// entry is the row as a claim returns it.
func (s *memoryState) entry() Entry {
	e := Entry{
		Claim: Claim{ID: s.row.id, Token: s.token}, ID: s.row.id,
		CommandID: s.command.id, Columns: s.command.columns,
		Destination: s.row.destination, PayloadType: s.row.payloadType, PayloadVersion: int(s.row.version),
		IdempotencyKey: s.row.key, Raw: []byte(s.row.payload),
		Attempt: int(s.attempts), EnqueuedAt: s.created, ExpiresAt: s.expires, LastAttemptAt: s.attempted,
		RemoteRef: s.ref, OrderKey: s.row.orderKey,
	}
	e.decode(s.row.headers)
	return e
}

func (s *memoryState) record() Record {
	return Record{
		Entry: s.entry(), Status: s.status(), NextAttemptAt: s.next, Worker: s.worker, ClaimedAt: s.taken,
		UnknownSince: s.since, LastFailure: s.failure, CompletedAt: s.completed, Holding: s.holding,
	}
}

func (m *memory) records(limit int, wanted func(OutboxID, *memoryState) bool) (records []Record, err error) {
	err = m.do(func(tx *memoryTx) error {
		tx.each(func(id OutboxID, _ *memoryRow, s *memoryState) bool {
			if wanted(id, s) {
				records = append(records, s.record())
			}
			return len(records) < limit
		})
		return nil
	})
	return records, err
}

func (m *memory) get(_ context.Context, id OutboxID) ([]Record, error) {
	return m.records(1, func(other OutboxID, _ *memoryState) bool { return other == id })
}

func (m *memory) listForCommand(_ context.Context, id CommandID) ([]Record, error) {
	return m.records(math.MaxInt, func(_ OutboxID, s *memoryState) bool { return s.command.id == id })
}

func (m *memory) list(_ context.Context, f Filter, after, before OutboxID, limit int) ([]Record, error) {
	return m.records(limit, func(id OutboxID, s *memoryState) bool {
		return compareIDs(id, after) > 0 && compareIDs(id, before) < 0 && f.has(s.status()) &&
			(f.Destinations == nil || slices.Contains(f.Destinations, s.row.destination)) &&
			(f.Kinds == nil || slices.Contains(f.Kinds, s.kind())) &&
			(f.LastFailure == "" || strings.Contains(s.failure, f.LastFailure)) &&
			(!f.Holding || s.holding) && (f.CommandID == nil || s.command.id == *f.CommandID) && f.Columns.match(s.command.columns)
	})
}

func (m *memory) stats(context.Context) (rows []statsRow, err error) {
	counts := make(map[statsRow]*statsRow) // by destination, kind and status
	held := make(map[memoryKey]bool)
	count := func(key statsRow, id OutboxID, due bool) {
		row := counts[key]
		if row == nil {
			row = &statsRow{destination: key.destination, kind: key.kind, status: key.status, oldest: id}
			counts[key] = row
		}
		row.rows++
		if due {
			row.due++
		}
	}
	err = m.do(func(tx *memoryTx) error {
		now := m.at(time.Time{})
		tx.each(func(id OutboxID, _ *memoryRow, s *memoryState) bool {
			key := statsRow{destination: s.row.destination, status: s.status()}
			switch {
			case s.live:
				key.kind = s.kind()
				count(key, id, s.pending() && s.due(now) && !s.past(now))
			case s.failed:
				count(key, id, false)
			}
			if k := (memoryKey{s.row.destination, s.row.orderKey}); s.holding && !held[k] {
				held[k] = true
				count(statsRow{destination: s.row.destination, status: statusHolding}, id, false)
			}
			return true
		})
		return nil
	})
	for _, row := range counts {
		rows = append(rows, *row)
	}
	slices.SortFunc(rows, func(a, b statsRow) int {
		return cmp.Or(cmp.Compare(a.destination, b.destination), strings.Compare(a.kind, b.kind), cmp.Compare(a.status, b.status))
	})
	return rows, err
}

// checkRows finds nothing: a row of memory stands in one place.
func (m *memory) checkRows(context.Context) (RowCheck, error) { return RowCheck{}, nil }
