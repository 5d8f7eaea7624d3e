package outbox

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// memoryTx is a transaction of a MemoryDB. Its methods that have no doc comment
// are those of pgx.Tx that mean nothing without SQL.
type memoryTx struct {
	db      *MemoryDB
	touched []OutboxID           // of the rows that it owns
	paused  map[Destination]bool // what it has paused and resumed
	waits   *memoryTx            // whose end this one waits for
	over    bool
	err     error // why the transaction cannot be used
}

var (
	errNoSQL    = errors.New("outbox: the store in memory runs no SQL")
	errDeadlock = errors.New("deadlock: the transactions wait for each other")
	errAborted  = errors.New("the transaction is aborted: an operation in it has failed")
)

// Begin begins a transaction. Give it to Store.With.
func (db *MemoryDB) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.open++
	return &memoryTx{db: db}, nil
}

// OpenTransactions counts the transactions of Begin that have not ended.
func (db *MemoryDB) OpenTransactions() int {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.open
}

func (tx *memoryTx) usable() error {
	if tx.over {
		return pgx.ErrTxClosed
	}
	return tx.err
}

// seen is the row as the transaction sees it; nil = it does not.
func (tx *memoryTx) seen(r *memoryRow) *memoryState {
	if r.owner == tx {
		return r.working
	}
	return r.committed
}

// find is the row of an id as the transaction sees it; nil = it does not.
func (tx *memoryTx) find(id OutboxID) *memoryState {
	if r := tx.db.rows[id]; r != nil {
		return tx.seen(r)
	}
	return nil
}

// all are the wanted ones of the rows that the transaction sees, by id.
func (tx *memoryTx) all(wanted func(*memoryState) bool) (found []*memoryState) {
	for _, r := range tx.db.rows {
		if s := tx.seen(r); s != nil && wanted(s) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, compareStates)
	return found
}

// compareStates orders rows by their ids.
func compareStates(a, b *memoryState) int { return compareIDs(a.row.id, b.row.id) }

// isPaused tells whether the transaction sees a destination as paused.
func (tx *memoryTx) isPaused(d Destination) bool {
	paused, own := tx.paused[d]
	return own && paused || !own && tx.db.paused[d]
}

// other is the transaction that works on a row, if that is not this one.
func (tx *memoryTx) other(s *memoryState) *memoryTx {
	if owner := tx.db.rows[s.row.id].owner; owner != tx {
		return owner
	}
	return nil
}

// own makes a row the transaction's that no other works on, and returns the
// state that it may change.
func (tx *memoryTx) own(s *memoryState) *memoryState {
	r := tx.db.rows[s.row.id]
	if r.owner == nil {
		state := *r.committed
		r.owner, r.working = tx, &state
		tx.touched = append(tx.touched, s.row.id)
	}
	return r.working
}

// lock owns the wanted ones of some rows. Where another transaction works on one
// that it wants it waits for the end of that, and looks anew. It owns nothing
// while it waits, so that a call which is a transaction of its own is in nobody's
// way.
func (tx *memoryTx) lock(ctx context.Context, ids []OutboxID, wanted func(*memoryState) bool) ([]*memoryState, error) {
	for {
		var found []*memoryState
		var other *memoryTx
		for _, id := range ids {
			if s := tx.find(id); s != nil && wanted(s) {
				found = append(found, s)
				other = cmp.Or(other, tx.other(s))
			}
		}
		if other == nil {
			for i, s := range found {
				found[i] = tx.own(s)
			}
			return found, nil
		}
		if err := tx.wait(ctx, other); err != nil {
			return nil, err
		}
	}
}

// take owns at most limit of the wanted rows, the first by a time of theirs or,
// without one, by id. It passes over those that another transaction works on.
func (tx *memoryTx) take(limit int, wanted func(*memoryState) bool, by func(*memoryState) time.Time) []*memoryState {
	found := tx.all(func(s *memoryState) bool { return tx.other(s) == nil && wanted(s) })
	if by != nil {
		slices.SortStableFunc(found, func(a, b *memoryState) int { return by(a).Compare(by(b)) })
	}
	found = found[:min(limit, len(found))]
	for i, s := range found {
		found[i] = tx.own(s)
	}
	return found
}

// remove takes a row away that the transaction owns.
func (tx *memoryTx) remove(id OutboxID) { tx.db.rows[id].working = nil }

// idsOf are the ids of rows, sorted.
func idsOf(states []*memoryState) []OutboxID {
	var ids []OutboxID
	for _, s := range states {
		ids = append(ids, s.row.id)
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

// wait waits until other has ended, or may have let a row go, or ctx has ended.
func (tx *memoryTx) wait(ctx context.Context, other *memoryTx) error {
	for t := other; t != nil; t = t.waits {
		if t == tx {
			return errDeadlock
		}
	}
	tx.waits = other
	defer func() { tx.waits = nil }()
	stop := context.AfterFunc(ctx, func() {
		tx.db.mu.Lock()
		defer tx.db.mu.Unlock()
		tx.db.ended.Broadcast()
	})
	defer stop()
	tx.db.ended.Wait()
	return ctx.Err()
}

// finish ends the transaction and wakes those who wait for it, or for rows that
// it has put into the queue.
func (tx *memoryTx) finish(commit bool) {
	queued := false
	for _, id := range tx.touched {
		if commit {
			r := tx.db.rows[id]
			queued = queued || r.queues()
			r.committed = r.working
		}
		tx.release(id)
	}
	if queued {
		tx.db.wake()
	}
	if commit {
		maps.Copy(tx.db.paused, tx.paused)
	}
	tx.touched, tx.over = nil, true
	tx.db.ended.Broadcast()
}

// release lets a row go, as it is committed.
func (tx *memoryTx) release(id OutboxID) {
	r := tx.db.rows[id]
	r.owner, r.working = nil, nil
	if r.committed != nil {
		tx.db.keys[r.key] = id // which the transaction may have given to another row
		return
	}
	delete(tx.db.rows, id)
	if tx.db.keys[r.key] == id {
		delete(tx.db.keys, r.key)
	}
}

func (tx *memoryTx) end(commit bool) error {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	if tx.over {
		return pgx.ErrTxClosed
	}
	tx.finish(commit && tx.err == nil)
	tx.db.open--
	if commit && tx.err != nil {
		return pgx.ErrTxCommitRollback
	}
	return nil
}

// Commit makes what was done in the transaction visible.
func (tx *memoryTx) Commit(context.Context) error { return tx.end(true) }

// Rollback undoes what was done in the transaction.
func (tx *memoryTx) Rollback(context.Context) error { return tx.end(false) }

// Begin sets a savepoint, which is what a transaction within one is.
func (tx *memoryTx) Begin(context.Context) (pgx.Tx, error) {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	if err := tx.usable(); err != nil {
		return nil, err
	}
	point := &memorySavepoint{memoryTx: tx, states: make(map[OutboxID]*memoryState, len(tx.touched)), before: maps.Clone(tx.paused)}
	for _, id := range tx.touched {
		state := tx.db.rows[id].working
		if state != nil {
			copied := *state
			state = &copied
		}
		point.states[id] = state
	}
	return point, nil
}

// memorySavepoint is a part of a transaction that can be rolled back by itself.
type memorySavepoint struct {
	*memoryTx
	states map[OutboxID]*memoryState // of the rows that the transaction owned; nil = it had removed the row
	before map[Destination]bool      // what the transaction had paused and resumed
	closed bool
}

// Commit keeps what was done since the savepoint, for the transaction to commit.
func (p *memorySavepoint) Commit(context.Context) error {
	p.db.mu.Lock()
	defer p.db.mu.Unlock()
	if p.closed {
		return pgx.ErrTxClosed
	}
	p.closed = true
	return p.usable()
}

// Rollback undoes what was done since the savepoint. The transaction can be used
// again, if an operation has failed since.
func (p *memorySavepoint) Rollback(context.Context) error {
	p.db.mu.Lock()
	defer p.db.mu.Unlock()
	if p.closed || p.over {
		return pgx.ErrTxClosed
	}
	p.closed, p.err = true, nil
	for _, id := range p.touched {
		if _, before := p.states[id]; !before {
			p.release(id)
		}
	}
	for id, state := range p.states {
		r := p.db.rows[id]
		r.working = state
		if _, taken := p.db.keys[r.key]; state != nil || !taken {
			p.db.keys[r.key] = id
		}
	}
	p.touched, p.paused = slices.Collect(maps.Keys(p.states)), p.before
	p.db.ended.Broadcast()
	return nil
}

// SendBatch carries out messages that were queued, and refuses anything else.
func (tx *memoryTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	return &memoryResults{ctx: ctx, backend: &memory{db: tx.db, tx: tx}, queries: batch.QueuedQueries}
}

// SendBatch carries out messages that were queued, in a transaction of its own,
// and refuses anything else.
func (db *MemoryDB) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.open++
	tx := &memoryTx{db: db}
	return &memoryResults{ctx: ctx, backend: &memory{db: db, tx: tx}, queries: batch.QueuedQueries, own: tx}
}

func (tx *memoryTx) CopyFrom(context.Context, pgx.Identifier, []string, pgx.CopyFromSource) (int64, error) {
	return 0, errNoSQL
}

func (tx *memoryTx) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }

func (tx *memoryTx) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, errNoSQL
}

func (tx *memoryTx) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errNoSQL
}

func (tx *memoryTx) Query(context.Context, string, ...any) (pgx.Rows, error) { return nil, errNoSQL }

func (tx *memoryTx) QueryRow(context.Context, string, ...any) pgx.Row { return noRow{} }

func (tx *memoryTx) Conn() *pgx.Conn { return nil }

// noRow is the row of a query that was not run.
type noRow struct{}

func (noRow) Scan(...any) error { return errNoSQL }

// memoryEnqueue stands in a batch for the statement that stores messages.
const memoryEnqueue = "messages of the store in memory"

// memoryBatch are the messages of such a statement.
type memoryBatch struct {
	command Command
	rows    []newRow
	answer  func([]placed, error) error
}

// memoryResults carries out a batch as its results are read.
type memoryResults struct {
	ctx     context.Context
	backend *memory
	queries []*pgx.QueuedQuery
	own     *memoryTx // ends with the batch; nil where the batch is sent in a transaction
	err     error
}

func (r *memoryResults) Exec() (pgconn.CommandTag, error) {
	if r.err != nil || len(r.queries) == 0 {
		return pgconn.CommandTag{}, cmp.Or(r.err, errNoSQL)
	}
	query := r.queries[0]
	r.queries = r.queries[1:]
	if r.err = r.carryOut(query); r.err != nil {
		r.backend.tx.abort()
	}
	return pgconn.CommandTag{}, r.err
}

func (r *memoryResults) carryOut(query *pgx.QueuedQuery) error {
	if query.SQL != memoryEnqueue || len(query.Arguments) != 1 {
		return errNoSQL
	}
	batch, ours := query.Arguments[0].(*memoryBatch)
	if !ours {
		return errNoSQL
	}
	return batch.answer(r.backend.enqueue(r.ctx, batch.command, batch.rows))
}

func (r *memoryResults) Query() (pgx.Rows, error) { return nil, errNoSQL }

func (r *memoryResults) QueryRow() pgx.Row { return noRow{} }

// Tx is nil: no batch begins a transaction in memory. pgx asks for it from 5.12 on.
func (r *memoryResults) Tx() pgx.Tx { return nil }

// Close carries out what is left. After an error nothing of a batch is kept that
// is a transaction of its own.
func (r *memoryResults) Close() error {
	for r.err == nil && len(r.queries) > 0 {
		_, _ = r.Exec()
	}
	if r.own != nil && !r.own.over {
		return cmp.Or(r.err, r.own.end(r.err == nil))
	}
	return r.err
}

// abort makes the transaction one that can only be rolled back.
func (tx *memoryTx) abort() {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	tx.err = errAborted
}
