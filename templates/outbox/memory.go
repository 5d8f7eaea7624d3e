package outbox

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// MemoryDB is what a Store of [NewMemory] stands on in the place of Postgres. It
// has the rows of the outbox and nothing else: its transactions run no SQL.
//
// What a transaction of [MemoryDB.Begin] does is seen by others when it has
// committed, and never when it was rolled back, by pgx.BeginFunc as well. Until
// then claims pass over its rows, and who wants to settle one of them, or to
// enqueue a message with the idempotency key of one, waits.
type MemoryDB struct {
	mu     sync.Mutex
	ended  *sync.Cond    // a transaction has ended, or gone back to a savepoint
	queued chan struct{} // closed, and made anew, when rows may be due that were not
	rows   map[OutboxID]*memoryRow
	keys   map[memoryKey]OutboxID
	paused map[Destination]bool
	seq    int64
	open   int // transactions of Begin
	now    func() time.Time
}

type memoryKey struct {
	destination Destination
	key         string
}

// NewMemory returns a Store for tests, which keeps its rows in memory and
// answers as one on Postgres does, and the database that its transactions are
// begun on. Its payloads are gone with it.
func NewMemory(options Options) (*Store, *MemoryDB) {
	db := &MemoryDB{
		rows: make(map[OutboxID]*memoryRow), keys: make(map[memoryKey]OutboxID), paused: make(map[Destination]bool), queued: make(chan struct{}), now: time.Now,
	}
	db.ended = sync.NewCond(&db.mu)
	return &Store{backend: &memory{db: db, keys: &orderKeys{}}, options: options}, db
}

// SetClock sets the database's clock, which is the host's at first. A dispatcher
// that runs looks at once for messages that have come due by it, and by its next
// poll for questions about unknown outcomes. When a message was enqueued is told
// by the host's in any case, as on Postgres.
func (db *MemoryDB) SetClock(now func() time.Time) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.now = now
	db.wake()
}

// wake has those look for rows that wait for some.
func (db *MemoryDB) wake() {
	close(db.queued)
	db.queued = make(chan struct{})
}

// memoryRow is a message in two states: as it is committed, and as the
// transaction has left it that works on it. Nil is no row.
type memoryRow struct {
	key       memoryKey
	committed *memoryState
	working   *memoryState
	owner     *memoryTx // nil = only the committed state counts
}

// queues tells whether the row is due once the transaction commits that works on
// it, and was not in the queue before.
func (r *memoryRow) queues() bool {
	return (r.committed == nil || !r.committed.live) && r.working != nil && r.working.pending() && r.working.next.IsZero()
}

// memoryState is one message with its place in the queue or its outcome.
type memoryState struct {
	row     newRow
	command Command
	expires time.Time // of the message; zero = it does not expire

	live      bool
	token     int64
	taken     time.Time // zero = nobody holds the row
	next      time.Time // zero = due, or never asked about
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

func (s *memoryState) past(at time.Time) bool { return !s.expires.IsZero() && !s.expires.After(at) }

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

func (s *memoryState) rowState() rowState {
	return rowState{destination: s.row.destination, status: s.status(), token: s.token, held: s.held()}
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
	s.release(false)
	s.live, s.completed, s.failed, s.unknown = false, at, failed, false
	s.next, s.since, s.attempted = time.Time{}, time.Time{}, time.Time{}
}

// fail ends a row as failed, and holds its key.
func (s *memoryState) fail(at time.Time, reason string) {
	s.end(at, true)
	s.failure, s.holding = reason, s.row.orderKey != ""
}

// memory is the backend over a MemoryDB, in a transaction of the caller's or
// with one for each call.
type memory struct {
	db   *MemoryDB
	keys *orderKeys
	tx   *memoryTx // nil = one for each call
}

var errOtherTx = errors.New("the transaction is not one of this store's MemoryDB")

func (m *memory) within(tx pgx.Tx) backend {
	var own *memoryTx
	switch tx := tx.(type) {
	case *memoryTx:
		own = tx
	case *memorySavepoint:
		own = tx.memoryTx
	}
	if own == nil || own.db != m.db {
		own = &memoryTx{db: m.db, err: errOtherTx}
	}
	return &memory{db: m.db, keys: m.keys, tx: own}
}

func (m *memory) single() bool { return m.tx != nil }

// listen wakes after each commit that has put rows in which are due.
func (m *memory) listen(ctx context.Context, l listening) error {
	for {
		m.db.mu.Lock()
		queued := m.db.queued
		m.db.mu.Unlock()
		l.wake() // what was put in before, or since the last time, has told nobody
		select {
		case <-queued:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// do runs a step under the database's lock, in the caller's transaction or in one
// of its own that is committed when the step succeeds.
func (m *memory) do(ctx context.Context, step func(tx *memoryTx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.db.mu.Lock()
	defer m.db.mu.Unlock()
	if m.tx == nil {
		tx := &memoryTx{db: m.db}
		err := step(tx)
		tx.finish(err == nil)
		return err
	}
	if err := m.tx.usable(); err != nil {
		return err
	}
	err := step(m.tx)
	if err != nil {
		m.tx.err = errAborted
	}
	return err
}

// at is the given time, or the clock's, as Postgres keeps it.
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

func (m *memory) enqueue(ctx context.Context, command Command, rows []newRow) (places []placed, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		places, err = tx.enqueue(ctx, m.at(time.Time{}), command, rows)
		return err
	})
	return places, err
}

func (tx *memoryTx) enqueue(ctx context.Context, now time.Time, command Command, rows []newRow) ([]placed, error) {
	places := make([]placed, len(rows))
	inserted := make(map[OutboxID]bool)
	for _, i := range inOrderOfKeys(rows) {
		row := rows[i]
		other, err := tx.withKey(ctx, memoryKey{row.destination, row.key})
		if err != nil {
			return nil, err
		}
		switch {
		case other == nil:
			places[i] = placed{id: row.id}
			inserted[row.id] = true
			tx.insert(now, command, row)
		case other.row.payloadType != row.payloadType || other.row.version == row.version && other.row.payload != row.payload:
			places[i] = placed{id: other.row.id, reused: true}
		default:
			places[i] = placed{id: other.row.id, duplicate: true}
		}
	}
	for i, place := range places {
		if !place.reused {
			continue
		}
		if inserted[place.id] {
			places[i].id = OutboxID{} // a row that is taken back
		}
		for id := range inserted {
			tx.remove(id)
		}
		return places, nil
	}
	for _, row := range rows { // whose ids are in the order of the messages
		if inserted[row.id] {
			tx.find(row.id).seq = tx.db.nextSeq()
		}
	}
	return places, nil
}

// inOrderOfKeys are the indices of rows in the order in which Postgres inserts
// them: two transactions with the same keys wait for one another in it, and
// never deadlock.
func inOrderOfKeys(rows []newRow) []int {
	order := make([]int, len(rows))
	for i := range rows {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(rows[a].destination, rows[b].destination), strings.Compare(rows[a].key, rows[b].key), compareIDs(rows[a].id, rows[b].id))
	})
	return order
}

// withKey is the row that has an idempotency key, or nil. Where another
// transaction is inserting or removing that row its end is waited for.
func (tx *memoryTx) withKey(ctx context.Context, key memoryKey) (*memoryState, error) {
	for {
		id, taken := tx.db.keys[key]
		if !taken {
			return nil, nil
		}
		r := tx.db.rows[id]
		if r.owner == nil || r.owner == tx || r.committed != nil && r.working != nil {
			return tx.seen(r), nil
		}
		if err := tx.wait(ctx, r.owner); err != nil {
			return nil, err
		}
	}
}

func (tx *memoryTx) insert(now time.Time, command Command, row newRow) {
	command.columns = command.columns.stored()
	s := &memoryState{row: row, command: command, expires: stamp(row.expires), live: true}
	if s.expires.IsZero() && row.lifetime > 0 {
		s.expires = stamp(now.Add(row.lifetime))
	}
	if due := stamp(row.due); due.After(now) {
		s.next = due
	}
	key := memoryKey{row.destination, row.key}
	tx.db.rows[row.id] = &memoryRow{key: key, working: s, owner: tx}
	tx.db.keys[key] = row.id
	tx.touched = append(tx.touched, row.id)
}

func (db *MemoryDB) nextSeq() int64 {
	db.seq++
	return db.seq
}

func (m *memory) queueEnqueue(batch *pgx.Batch, command Command, rows []newRow, answer func([]placed, error) error) {
	batch.Queue(memoryEnqueue, &memoryBatch{command: command, rows: rows, answer: answer})
}

func (m *memory) settle(ctx context.Context, settlements []settlement) (changed map[OutboxID]bool, err error) {
	changed = make(map[OutboxID]bool, len(settlements))
	said := make(map[OutboxID]settlement, len(settlements))
	ids := make([]OutboxID, len(settlements))
	for i, one := range settlements {
		said[one.claim.ID] = one
		ids[i] = one.claim.ID
	}
	err = m.do(ctx, func(tx *memoryTx) error {
		rows, err := tx.lock(ctx, ids, func(s *memoryState) bool { return said[s.row.id].judge(s.rowState()) == again })
		now := m.at(time.Time{})
		for _, s := range rows {
			tx.settle(s, said[s.row.id], now)
			changed[s.row.id] = true
		}
		return err
	})
	return changed, err
}

// settle carries out a settlement that the state of the row allows.
func (tx *memoryTx) settle(s *memoryState, one settlement, now time.Time) {
	p := policyOf(s.row.destination)
	switch one.op {
	case opCompleted:
		s.end(now, false)
		s.ref = cmp.Or(one.ref, s.ref)
		if p.keepCompleted == 0 {
			tx.remove(s.row.id)
		}
	case opFailed:
		if !s.live {
			s.failure = one.reason
			return
		}
		s.fail(now, one.reason)
	case opRetry, opPostpone:
		if one.op == opPostpone {
			s.attempts--
		}
		s.release(one.op == opRetry)
		s.unknown, s.since, s.next = false, time.Time{}, time.Time{}
		s.failure = cmp.Or(one.reason, s.failure)
		if at := one.due(now); at.After(now) {
			s.next = at
		}
	case opUnknown, opKeepUnknown:
		s.failure = cmp.Or(one.reason, s.failure)
		s.next = one.due(now)
		if s.unknown {
			s.ref = cmp.Or(s.ref, one.ref)
		} else {
			s.ref, s.since = cmp.Or(one.ref, s.ref), now
		}
		if !s.asked(p, now) || !s.asked(p, s.next) {
			s.next = time.Time{}
		}
		s.release(true)
		s.unknown = true
	case opNeverArrived:
		if most := p.attemptsToFail(); most != nil && s.attempts >= *most {
			s.fail(now, one.reason)
			return
		}
		s.release(false)
		s.unknown, s.since, s.next, s.failure = false, time.Time{}, time.Time{}, one.reason
	case opGiveBack:
		if !s.unknown {
			s.attempts--
		}
		s.release(false)
	}
}

// due is the time that the settlement gives the row.
func (s settlement) due(now time.Time) time.Time {
	if s.at.IsZero() {
		return stamp(now.Add(s.delay))
	}
	return stamp(s.at)
}

// asked tells whether the remote is still asked about a row whose outcome is
// unknown.
func (s *memoryState) asked(p policy, at time.Time) bool {
	giveUp := p.giveUpAfter()
	return giveUp == nil || s.since.Add(time.Duration(*giveUp)*time.Microsecond).After(at)
}

func (m *memory) states(ctx context.Context, ids []OutboxID) (states map[OutboxID]rowState, err error) {
	states = make(map[OutboxID]rowState)
	err = m.do(ctx, func(tx *memoryTx) error {
		for _, id := range ids {
			if s := tx.find(id); s != nil {
				states[id] = s.rowState()
			}
		}
		return nil
	})
	return states, err
}

func (m *memory) cancel(ctx context.Context, id OutboxID, reason string) (done bool, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		rows, err := tx.lock(ctx, []OutboxID{id}, (*memoryState).pending)
		for _, s := range rows {
			s.end(m.at(time.Time{}), true)
			s.failure, done = reason, true
		}
		return err
	})
	return done, err
}

func (m *memory) requeue(ctx context.Context, ids []OutboxID, reason string) (requeued []OutboxID, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		rows, err := tx.lock(ctx, ids, func(s *memoryState) bool { return !s.live && s.failed })
		now := m.at(time.Time{})
		slices.SortFunc(rows, func(a, b *memoryState) int { return cmp.Compare(a.seq, b.seq) })
		for _, s := range rows {
			if !s.holding {
				s.seq = tx.db.nextSeq()
			}
			if s.past(now) {
				s.expires = time.Time{}
			}
			s.live, s.failed, s.holding, s.completed = true, false, false, time.Time{}
			s.token, s.attempts = 0, 0
			s.failure = before("requeued: "+reason, s.failure)
		}
		requeued = idsOf(rows)
		return err
	})
	return requeued, err
}

// before is a reason with the failure that it takes the place of, no longer than
// the statements make it.
func before(reason, failure string) string {
	if failure != "" {
		reason += "; before: " + failure
	}
	end := len(reason)
	for runes := utf8.RuneCountInString(reason); runes > maxText; runes-- {
		_, size := utf8.DecodeLastRuneInString(reason[:end])
		end -= size
	}
	return reason[:end]
}

func (m *memory) skip(ctx context.Context, destination Destination, key string) (ids []OutboxID, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		holds := func(s *memoryState) bool {
			return s.holding && s.row.destination == destination && s.row.orderKey == key
		}
		rows, err := tx.lock(ctx, idsOf(tx.all(holds)), holds)
		for _, s := range rows {
			s.holding = false
		}
		ids = idsOf(rows)
		return err
	})
	return ids, err
}

func (m *memory) pause(ctx context.Context, destination Destination, paused bool) error {
	return m.do(ctx, func(tx *memoryTx) error {
		if tx.paused == nil {
			tx.paused = make(map[Destination]bool)
		}
		tx.paused[destination] = paused
		return nil
	})
}

// placed is the row as a claiming call returns it.
func (s *memoryState) placed() placedEntry { return placedEntry{Entry: s.entry(), seq: s.seq} }

func (s *memoryState) entry() Entry {
	e := Entry{
		Claim: Claim{ID: s.row.id, Token: s.token}, ID: s.row.id,
		CommandID: s.command.id, Columns: s.command.columns,
		Destination: s.row.destination, PayloadType: s.row.payloadType, PayloadVersion: int(s.row.version),
		IdempotencyKey: s.row.key, Raw: []byte(s.row.payload),
		Attempt: int(s.attempts), EnqueuedAt: s.row.id.createdAt(), ExpiresAt: s.expires, LastAttemptAt: s.attempted,
		RemoteRef: s.ref, OrderKey: s.row.orderKey, LimitKey: s.row.limitKey,
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

func (m *memory) records(ctx context.Context, limit int, wanted func(*memoryState) bool) (records []Record, err error) {
	err = m.do(ctx, func(tx *memoryTx) error {
		rows := tx.all(wanted)
		for _, s := range rows[:min(limit, len(rows))] {
			records = append(records, s.record())
		}
		return nil
	})
	return records, err
}

func (m *memory) get(ctx context.Context, id OutboxID) ([]Record, error) {
	return m.records(ctx, 1, func(s *memoryState) bool { return s.row.id == id })
}

func (m *memory) listForCommand(ctx context.Context, id CommandID) ([]Record, error) {
	return m.records(ctx, math.MaxInt, func(s *memoryState) bool { return s.command.id == id })
}

func (m *memory) list(ctx context.Context, f Filter, after, before OutboxID, limit int) ([]Record, error) {
	return m.records(ctx, limit, func(s *memoryState) bool {
		return compareIDs(s.row.id, after) > 0 && compareIDs(s.row.id, before) < 0 && f.has(s.status()) &&
			(len(f.Destinations) == 0 || slices.Contains(f.Destinations, s.row.destination)) &&
			(len(f.Kinds) == 0 || slices.Contains(f.Kinds, s.kind())) &&
			strings.Contains(s.failure, f.LastFailure) && (!f.Holding || s.holding) &&
			(f.CommandID == nil || s.command.id == *f.CommandID) && f.Columns.match(s.command.columns)
	})
}

func (m *memory) stats(ctx context.Context) (rows []statsRow, err error) {
	type group struct {
		destination Destination
		kind        string
		status      Status
	}
	counts := make(map[group]*statsRow)
	count := func(g group, id OutboxID) *statsRow {
		row := counts[g]
		if row == nil {
			row = &statsRow{destination: g.destination, kind: g.kind, status: g.status, oldest: id}
			counts[g] = row
		}
		row.rows++
		return row
	}
	held := make(map[memoryKey]bool)
	err = m.do(ctx, func(tx *memoryTx) error {
		now := m.at(time.Time{})
		for _, s := range tx.all(func(s *memoryState) bool { return s.live || s.failed }) {
			g := group{destination: s.row.destination, status: s.status()}
			if s.live {
				g.kind = s.kind()
			}
			row := count(g, s.row.id)
			if s.pending() && !s.next.After(now) && !s.past(now) {
				row.due++
			}
			if k := (memoryKey{s.row.destination, s.row.orderKey}); s.holding && !held[k] {
				held[k] = true
				count(group{destination: s.row.destination, status: statusHolding}, s.row.id)
			}
		}
		for _, d := range allDestinations() {
			if tx.isPaused(d) {
				count(group{destination: d, status: statusPaused}, OutboxID{})
			}
		}
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
func (m *memory) checkRows(ctx context.Context) (RowCheck, error) { return RowCheck{}, ctx.Err() }
