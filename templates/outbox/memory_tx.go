package outbox

import (
	"cmp"
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// memoryTx is a transaction of a MemoryDB.
type memoryTx struct {
	db      *MemoryDB
	touched []OutboxID
	waits   *memoryTx // whose end this one waits for
	over    bool
	err     error // why the transaction cannot be used
}

var (
	errNoSQL    = errors.New("outbox: the memory store runs no SQL")
	errDeadlock = errors.New("deadlock: the transactions wait for each other")
	errAborted  = errors.New("the transaction is aborted: an operation in it has failed")
)

// Begin begins a transaction. Give it to Store.With.
func (db *MemoryDB) Begin(context.Context) (pgx.Tx, error) { return &memoryTx{db: db}, nil }

func (tx *memoryTx) usable() error {
	if tx.err != nil {
		return tx.err
	}
	if tx.over {
		return pgx.ErrTxClosed
	}
	return nil
}

// finish ends the transaction and wakes those who wait for it.
func (tx *memoryTx) finish(commit bool) {
	for _, id := range tx.touched {
		r := tx.db.rows[id]
		if r == nil || r.owner != tx {
			continue
		}
		if commit {
			r.committed = r.working
		}
		if r.committed == nil {
			delete(tx.db.rows, id)
			if tx.db.keys[r.key] == id {
				delete(tx.db.keys, r.key)
			}
		}
		r.owner, r.working = nil, nil
	}
	tx.touched, tx.over = nil, true
	tx.db.ended.Broadcast()
}

// wait waits until other has ended, or ctx has.
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
	for !other.over && ctx.Err() == nil {
		tx.db.ended.Wait()
	}
	return ctx.Err()
}

func (tx *memoryTx) end(commit bool) error {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	if tx.over {
		return pgx.ErrTxClosed
	}
	tx.finish(commit && tx.err == nil)
	if commit && tx.err != nil {
		return pgx.ErrTxCommitRollback
	}
	return nil
}

// Commit makes what was done in the transaction visible.
func (tx *memoryTx) Commit(context.Context) error { return tx.end(true) }

// Rollback undoes what was done in the transaction.
func (tx *memoryTx) Rollback(context.Context) error { return tx.end(false) }

// SendBatch carries out messages that were queued, and refuses anything else.
func (tx *memoryTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	return &memoryResults{ctx: ctx, backend: &memory{db: tx.db, tx: tx}, queries: batch.QueuedQueries}
}

// SendBatch carries out messages that were queued, in a transaction of its own,
// and refuses anything else.
func (db *MemoryDB) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	tx := &memoryTx{db: db}
	return &memoryResults{ctx: ctx, backend: &memory{db: db, tx: tx}, queries: batch.QueuedQueries, own: tx}
}

// The rest of pgx.Tx, which has no meaning without SQL.

func (tx *memoryTx) Begin(context.Context) (pgx.Tx, error) { return nil, errNoSQL }

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

func (tx *memoryTx) QueryRow(context.Context, string, ...any) pgx.Row { return memoryRowError{} }

func (tx *memoryTx) Conn() *pgx.Conn { return nil }

// memoryRowError is the row of a query that was not run.
type memoryRowError struct{}

func (memoryRowError) Scan(...any) error { return errNoSQL }

// memoryEnqueue marks a statement of a batch that stores messages.
const memoryEnqueue = "messages of the memory store"

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
	r.err = r.carryOut(query)
	if r.err != nil {
		r.backend.abort()
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

func (r *memoryResults) QueryRow() pgx.Row { return memoryRowError{} }

// Close carries out what is left. After an error nothing of a batch that is a
// transaction of its own is kept.
func (r *memoryResults) Close() error {
	for r.err == nil && len(r.queries) > 0 {
		_, _ = r.Exec()
	}
	if r.own != nil && !r.own.over {
		return cmp.Or(r.err, r.own.end(r.err == nil))
	}
	return r.err
}
