package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what a Store reads and settles through: a *pgxpool.Pool, a *pgx.Conn, a
// pgx.Tx, or what wraps one of them. What wraps a transaction must be a pgx.Tx
// itself, or it is taken for something that transactions can be begun on.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}

// Options are what a Store may be given besides its database.
type Options struct {
	// Inject returns headers that every message of a call to Enqueue gets
	// besides its own, such as the trace that ctx belongs to. A header that the
	// message has itself stays.
	Inject func(ctx context.Context) map[string]string
}

// Store claims, settles and reads the rows of the outbox. Messages are enqueued
// through [Store.With], in the caller's own transaction, since only there a row
// exists exactly when the change that it tells of does.
//
// Over a pool or a connection each call is a transaction of its own, read
// committed. Times are the database's; where a call takes one, the zero time
// means the database's present. A Store over a pool may be used by any number
// of goroutines.
type Store struct {
	backend backend
	options Options
}

// New returns a Store over db. The tables must be there: see [Migrate].
func New(db DB, options Options) *Store {
	return &Store{backend: newPostgres(db, &orderKeys{}, newNotifier()), options: options}
}

// With returns the store within a transaction of the caller's: what it does is
// committed, or rolled back, with tx.
func (s *Store) With(tx pgx.Tx) *Tx {
	return &Tx{&Store{backend: s.backend.within(tx), options: s.options}}
}

// Tx is a Store within a transaction of the caller's.
type Tx struct{ *Store }

// Enqueued is the answer for one message.
type Enqueued struct {
	ID        OutboxID
	Duplicate bool // the message was there before; ID is that of the first
}

// Enqueue stores messages, each for its destination, in the caller's
// transaction and in one round trip: all of them, or none and an error. They
// are delivered once the transaction has committed.
//
// A message whose idempotency key is there before is answered as a duplicate
// and not stored again. Where the key belongs to another message the error is a
// [*MessageError] with ErrKeyReused; a payload that breaks a rule gives one with
// a [*ValidationError]. After either the transaction can be used further.
func (t *Tx) Enqueue(ctx context.Context, command Command, messages ...Message) ([]Enqueued, error) {
	rows, err := t.prepare(ctx, command, messages)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	places, err := t.backend.enqueue(ctx, command, rows)
	return answersFor(rows, places, err)
}

func answersFor(rows []newRow, places []placed, err error) ([]Enqueued, error) {
	if err != nil {
		return nil, fmt.Errorf("outbox: Enqueue: %w", err)
	}
	answers := make([]Enqueued, len(places))
	for i, p := range places {
		if p.reused {
			return nil, &MessageError{Index: i, Destination: rows[i].destination, ExistingID: p.id, Err: ErrKeyReused}
		}
		answers[i] = Enqueued{ID: p.id, Duplicate: p.duplicate}
	}
	return answers, nil
}

// prepare checks all messages of a call and makes their rows.
func (s *Store) prepare(ctx context.Context, command Command, messages []Message) ([]newRow, error) {
	if err := command.check(); err != nil {
		return nil, fmt.Errorf("outbox: Enqueue: %w", err)
	}
	if len(messages) == 0 {
		return nil, nil
	}
	if s.options.Inject != nil {
		messages = withHeaders(messages, s.options.Inject(ctx))
	}
	rows := make([]newRow, len(messages))
	equals := make(map[string]int)
	var faults []error
	for i, m := range messages {
		row, err := m.prepare(command, equals)
		if err != nil {
			faults = append(faults, &MessageError{Index: i, Destination: m.destination, Err: err})
			continue
		}
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("outbox: Enqueue: %w", err)
		}
		row.id = OutboxID(id)
		rows[i] = row
	}
	if len(faults) == 1 {
		return nil, faults[0]
	}
	if len(faults) > 1 {
		return nil, errors.Join(faults...)
	}
	return rows, nil
}

// withHeaders adds headers to every message that has none of the name.
func withHeaders(messages []Message, headers map[string]string) []Message {
	if len(headers) == 0 {
		return messages
	}
	changed := make([]Message, len(messages))
	for i, m := range messages {
		for name, value := range headers {
			if _, own := m.headers[name]; !own {
				m = m.WithHeader(name, value)
			}
		}
		changed[i] = m
	}
	return changed
}

// Get returns the row as it stands, or ErrNotFound. An operator settles a row
// through the claim of its record.
func (s *Store) Get(ctx context.Context, id OutboxID) (Record, error) {
	records, err := s.backend.get(ctx, id)
	if err != nil {
		return Record{}, fmt.Errorf("outbox: Get %s: %w", id, err)
	}
	if len(records) == 0 {
		return Record{}, fmt.Errorf("outbox: Get %s: %w", id, ErrNotFound)
	}
	return records[0], nil
}

// ListForCommand returns the rows that one command has enqueued, oldest first.
func (s *Store) ListForCommand(ctx context.Context, id CommandID) ([]Record, error) {
	records, err := s.backend.listForCommand(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("outbox: ListForCommand %s: %w", id, err)
	}
	return records, nil
}

// Stats counts the rows that are alive and those that have failed. Completed
// rows are not counted: there is no cheap and exact answer.
type Stats struct {
	Destinations []DestinationStats // those of the package and any other that has rows, by name
	Unclaimed    []KindStats        // rows that are alive and that this package does not know, by kind
}

// DestinationStats are the rows of one destination.
type DestinationStats struct {
	Destination    Destination
	Pending        int64
	Due            int64     // of the pending rows, those that could be claimed now
	OldestPending  time.Time // when it was enqueued; zero = none is pending
	Dispatching    int64
	OutcomeUnknown int64
	OldestUnknown  time.Time // when it was enqueued; zero = none is unknown
	Failed         int64     // that have not been purged
	Paused         bool      // see Pause
	HeldKeys       int64     // keys that wait since a row has failed: see Skip and Requeue
}

// KindStats are rows that nobody with this package claims.
type KindStats struct {
	Kind string // destination/payload@version
	Rows int64
}

// Stats counts the rows. It reads every row that is alive.
func (s *Store) Stats(ctx context.Context) (Stats, error) {
	rows, err := s.backend.stats(ctx)
	if err != nil {
		return Stats{}, fmt.Errorf("outbox: Stats: %w", err)
	}
	return sumStats(rows), nil
}

// RowCheck counts what is wrong with the rows. It is the zero value when all is
// well.
type RowCheck struct {
	Both    int64 // messages that are alive and have ended
	Neither int64 // messages that are neither
	Orphans int64 // rows that have no message
}

// CheckRows checks that every message is either alive or has ended. It reads
// all tables.
func (s *Store) CheckRows(ctx context.Context) (RowCheck, error) {
	check, err := s.backend.checkRows(ctx)
	if err != nil {
		return RowCheck{}, fmt.Errorf("outbox: CheckRows: %w", err)
	}
	return check, nil
}
