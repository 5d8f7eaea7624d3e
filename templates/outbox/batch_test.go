package outbox

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// business is the table that the caller of these tests writes to.
const business = "CREATE TABLE account (id uuid PRIMARY KEY, balance bigint NOT NULL)"

// batchTest is a batch as callers make it: a change, messages, and the commit.
type batchTest struct {
	*pgx.Batch
	account uuid.UUID
	store   *Store
}

func newBatch(db DB) batchTest {
	b := batchTest{Batch: &pgx.Batch{}, account: uuid.New(), store: New(db, Options{})}
	b.Queue("INSERT INTO account VALUES ($1::uuid, 100)", b.account.String())
	return b
}

func (b batchTest) enqueue(t testing.TB, messages ...Message) *Queued {
	t.Helper()
	queued, err := b.store.QueueEnqueue(t.Context(), b.Batch, testCommand, messages...)
	if err != nil {
		t.Fatal(err)
	}
	return queued
}

// wantAnswers returns what was answered, which must not be an error.
func wantAnswers(t testing.TB, q *Queued) []Enqueued {
	t.Helper()
	answers, err := q.Enqueued()
	if err != nil {
		t.Fatal(err)
	}
	return answers
}

// wantCommitted checks whether another connection sees the change.
func (b batchTest) wantCommitted(t testing.TB, pool *pgxpool.Pool, want bool) {
	t.Helper()
	if got := queryOne[bool](t, pool, "SELECT EXISTS (SELECT FROM account WHERE id = $1::uuid)", b.account.String()); got != want {
		t.Errorf("the change has been committed: %t, want %t", got, want)
	}
}

// batchTransactions are the ways in which a batch commits.
var batchTransactions = []struct {
	name string
	// send carries out the batch, and more before and after it.
	send func(ctx context.Context, conn *pgx.Conn, b *pgx.Batch) error
}{
	{"a transaction by itself", func(ctx context.Context, conn *pgx.Conn, b *pgx.Batch) error {
		return conn.SendBatch(ctx, b).Close()
	}},
	{"begun and committed in the batch", func(ctx context.Context, conn *pgx.Conn, b *pgx.Batch) error {
		begin := &pgx.Batch{}
		begin.Queue("BEGIN")
		b.QueuedQueries = append(begin.QueuedQueries, b.QueuedQueries...)
		b.Queue("COMMIT")
		err := conn.SendBatch(ctx, b).Close()
		if conn.PgConn().TxStatus() != 'I' {
			_, rollback := conn.Exec(ctx, "ROLLBACK")
			err = errors.Join(err, rollback)
		}
		return err
	}},
}

func TestQueueEnqueueIsOneRoundTrip(t *testing.T) {
	pool := testPool(t)
	execSQL(t, pool, business)
	for _, mode := range execModes {
		for _, transaction := range batchTransactions {
			t.Run(mode.String()+", "+transaction.name, func(t *testing.T) {
				removeRows(t, pool)
				conn, count := countedConn(t, poolWith(t, pool, inMode(mode)))
				send := func() {
					b := newBatch(conn)
					first := b.enqueue(t, testMessage(DestinationMailer), testMessage(DestinationPayments))
					second := b.enqueue(t, testMessage(DestinationMetrics))
					before := queryOne[int](t, pool, "SELECT count(*) FROM outbox_message")
					if err := transaction.send(t.Context(), conn, b.Batch); err != nil {
						t.Fatal(err)
					}
					b.wantCommitted(t, pool, true)
					wantRows(t, pool, before+3)
					for _, answer := range append(wantAnswers(t, first), wantAnswers(t, second)...) {
						if answer.Duplicate {
							t.Errorf("%s is called a duplicate", answer.ID)
						}
						if record := getRecord(t, b.store, answer.ID); record.Status != StatusPending {
							t.Errorf("%s is %s", answer.ID, record.Status)
						}
					}
				}
				send() // which describes the statements, where that is remembered
				counted := &pgx.Batch{}
				b := newBatch(conn)
				b.enqueue(t, testMessage(DestinationMailer))
				b.enqueue(t, testMessage(DestinationLedger))
				counted.QueuedQueries = b.QueuedQueries
				want := int64(1)
				if mode == pgx.QueryExecModeDescribeExec {
					want = 2 // it asks anew each time
				}
				before := count.Load()
				if err := transaction.send(t.Context(), conn, counted); err != nil {
					t.Fatal(err)
				}
				if n := count.Load() - before; n != want {
					t.Errorf("it took %d round trips, want %d", n, want)
				}
				b.wantCommitted(t, pool, true)
				wantSound(t, b.store)
			})
		}
	}
}

func TestQueueEnqueueDuplicates(t *testing.T) {
	pool := testPool(t)
	execSQL(t, pool, business)
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			removeRows(t, pool)
			pool := poolWith(t, pool, inMode(mode))
			stored, other := testMessage(DestinationMailer), testMessage(DestinationLedger).WithKey("twice")
			ids := enqueueAll(t, pool, stored)

			b := newBatch(pool)
			first := b.enqueue(t, testMessage(DestinationPayments), stored, other, other)
			second := b.enqueue(t, other, stored)
			if err := pool.SendBatch(t.Context(), b.Batch).Close(); err != nil {
				t.Fatal(err)
			}
			one, two := wantAnswers(t, first), wantAnswers(t, second)
			if len(one) != 4 || one[0].Duplicate || one[1] != (Enqueued{ids[0], true}) || one[2].Duplicate || one[3] != (Enqueued{one[2].ID, true}) {
				t.Errorf("the first call was answered %v, with %s stored before", one, ids[0])
			}
			if !slices.Equal(two, []Enqueued{{one[2].ID, true}, {ids[0], true}}) {
				t.Errorf("the second call was answered %v after %v", two, one)
			}
			b.wantCommitted(t, pool, true)
			wantRows(t, pool, 3)
			wantSound(t, b.store)
		})
	}
}

// TestQueueEnqueueKeyReused has the key taken before the batch, by the call
// itself, and by an earlier call of the batch.
func TestQueueEnqueueKeyReused(t *testing.T) {
	pool := testPool(t)
	execSQL(t, pool, business)
	for _, mode := range execModes {
		for _, transaction := range batchTransactions {
			t.Run(mode.String()+", "+transaction.name, func(t *testing.T) {
				removeRows(t, pool)
				conn, _ := countedConn(t, poolWith(t, pool, inMode(mode)))
				taken := enqueueAll(t, pool, ToLedger(orderConfirmation()).WithKey("taken"))[0]
				for _, test := range []struct {
					name     string
					messages []Message
					index    int
					existing OutboxID
				}{
					{"other content", []Message{testMessage(DestinationMailer), ToLedger(orderConfirmation()).WithKey("taken")}, 1, taken},
					{"another payload", []Message{ToLedger(paymentCapture()).WithKey("taken")}, 0, taken},
					{"within the call", []Message{ToLedger(paymentCapture()).WithKey("new"), testMessage(DestinationMailer), ToLedger(paymentCapture()).WithKey("new")}, 2, OutboxID{}},
				} {
					t.Run(test.name, func(t *testing.T) {
						b := newBatch(conn)
						before := b.enqueue(t, testMessage(DestinationMailer))
						queued := b.enqueue(t, test.messages...)
						after := b.enqueue(t, testMessage(DestinationMailer))
						err := transaction.send(t.Context(), conn, b.Batch)
						var fault *MessageError
						if !errors.Is(err, ErrKeyReused) || !errors.As(err, &fault) {
							t.Fatalf("the batch ended with %v, want ErrKeyReused", err)
						}
						if fault.Index != test.index || fault.ExistingID != test.existing || fault.Destination != DestinationLedger {
							t.Errorf("the error is %+v, want message %d and the row %s", fault, test.index, test.existing)
						}
						if answers, err := queued.Enqueued(); answers != nil || !errors.Is(err, ErrKeyReused) {
							t.Errorf("answered %v, %v, want ErrKeyReused", answers, err)
						}
						if answers, err := after.Enqueued(); answers != nil || err == nil {
							t.Errorf("a call behind it was answered %v, %v, want an error", answers, err)
						}
						wantAnswers(t, before) // which tells nothing, as the batch has failed
						b.wantCommitted(t, pool, false)
						wantRows(t, pool, 1)
						wantSound(t, b.store)
					})
				}
			})
		}
	}
}

func TestQueueEnqueueRefusesBadMessages(t *testing.T) {
	batch := &pgx.Batch{}
	bad := orderConfirmation()
	bad.Lines = nil
	_, err := New(nil, Options{}).QueueEnqueue(t.Context(), batch, testCommand, testMessage(DestinationLedger), ToMailer(bad))
	var fault *MessageError
	var invalid *ValidationError
	if !errors.As(err, &fault) || fault.Index != 1 || !errors.As(err, &invalid) {
		t.Errorf("the error is %v, want a violation of message 1", err)
	}
	if batch.Len() != 0 {
		t.Errorf("%d statements were queued", batch.Len())
	}
}

func TestQueueEnqueueOfNothing(t *testing.T) {
	batch := &pgx.Batch{}
	queued, err := New(nil, Options{}).QueueEnqueue(t.Context(), batch, testCommand)
	if err != nil {
		t.Fatal(err)
	}
	if answers := wantAnswers(t, queued); len(answers) != 0 || batch.Len() != 0 {
		t.Errorf("answered %v and queued %d statements", answers, batch.Len())
	}
}

func TestQueuedWithoutAnswers(t *testing.T) {
	pool := testPool(t)
	execSQL(t, pool, business)
	for _, test := range []struct {
		name string
		send func(b batchTest) error
	}{
		{"not sent", func(batchTest) error { return nil }},
		{"a statement before it fails", func(b batchTest) error {
			b.QueuedQueries[0].Arguments[0] = "no uuid"
			if err := pool.SendBatch(t.Context(), b.Batch).Close(); err == nil {
				return errors.New("the batch was carried out")
			}
			return nil
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBatch(pool)
			queued := b.enqueue(t, testMessage(DestinationMailer))
			if err := test.send(b); err != nil {
				t.Fatal(err)
			}
			if answers, err := queued.Enqueued(); answers != nil || !errors.Is(err, errNotSent) {
				t.Errorf("answered %v, %v, want that the batch was not carried out", answers, err)
			}
			wantRows(t, pool, 0)
		})
	}
}

// TestQueueEnqueueWaitsForAnUncommittedDuplicate forces the race of two
// transactions for a key.
func TestQueueEnqueueWaitsForAnUncommittedDuplicate(t *testing.T) {
	pool := testPool(t)
	execSQL(t, pool, business)
	for _, test := range []struct {
		name     string
		begin    string // of the batch; empty = it is a transaction by itself
		commit   bool
		sameBody bool
		want     func(t *testing.T, first OutboxID, placed []Enqueued, err error)
	}{
		{"that commits", "", true, true, func(t *testing.T, first OutboxID, placed []Enqueued, err error) {
			if err != nil || placed[0] != (Enqueued{first, true}) {
				t.Errorf("answered %v, %v, want the duplicate of %s", placed, err, first)
			}
		}},
		{"that commits with other content", "", true, false, func(t *testing.T, first OutboxID, placed []Enqueued, err error) {
			var fault *MessageError
			if !errors.Is(err, ErrKeyReused) || !errors.As(err, &fault) || fault.ExistingID != first {
				t.Errorf("the error is %v, want ErrKeyReused by %s", err, first)
			}
		}},
		{"that rolls back", "", false, true, func(t *testing.T, first OutboxID, placed []Enqueued, err error) {
			if err != nil || placed[0].Duplicate || placed[0].ID == first {
				t.Errorf("answered %v, %v, want a row of its own", placed, err)
			}
		}},
		{"that commits, in a repeatable read", "BEGIN ISOLATION LEVEL REPEATABLE READ", true, true, wantSerializationFailure},
		{"that commits, in a serializable transaction", "BEGIN ISOLATION LEVEL SERIALIZABLE", true, true, wantSerializationFailure},
	} {
		t.Run(test.name, func(t *testing.T) {
			removeRows(t, pool)
			payload, body := orderConfirmation(), orderConfirmation()
			if test.sameBody {
				body = payload
			}
			first, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			placed := mustEnqueue(t, New(pool, Options{}).With(first), ToMailer(payload).WithKey("k"))

			conn, _ := countedConn(t, pool)
			b := newBatch(conn)
			queued := b.enqueue(t, ToMailer(body).WithKey("k"))
			if test.begin != "" {
				begin := &pgx.Batch{}
				begin.Queue(test.begin)
				b.QueuedQueries = append(begin.QueuedQueries, b.QueuedQueries...)
				b.Queue("COMMIT")
			}
			closed := make(chan error, 1)
			go func() { closed <- conn.SendBatch(t.Context(), b.Batch).Close() }()
			waitUntilBlocked[error](t, pool, conn.PgConn().PID(), nil)
			if test.commit {
				err = first.Commit(t.Context())
			} else {
				err = first.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			err = <-closed
			var answers []Enqueued
			if err == nil {
				answers = wantAnswers(t, queued)
			}
			test.want(t, placed[0].ID, answers, err)
			b.wantCommitted(t, pool, err == nil)
		})
	}
}

// pausedInsert makes every insert of messages stop at its end until release is
// called, when the insert has chosen what is a duplicate and nobody has looked
// which row it is a duplicate of.
func pausedInsert(t testing.TB, pool *pgxpool.Pool) (release func()) {
	t.Helper()
	execSQL(t, pool, `CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'`)
	execSQL(t, pool, `CREATE TRIGGER pause AFTER INSERT ON outbox_message EXECUTE FUNCTION pause()`)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.WithoutCancel(t.Context())) })
	execSQL(t, tx, "SELECT pg_advisory_xact_lock(1)")
	return func() {
		t.Helper()
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestADuplicateOfARowThatIsPurgedMeanwhile(t *testing.T) {
	ended := func(t *testing.T) (*pgxpool.Pool, Message) {
		pool := testPool(t)
		execSQL(t, pool, business)
		m := testMessage(DestinationMailer)
		entry := claimOne(t, pool, m)
		if err := New(pool, Options{}).MarkCompleted(t.Context(), entry.Claim, ""); err != nil {
			t.Fatal(err)
		}
		return pool, m
	}
	purge := func(t *testing.T, pool *pgxpool.Pool) {
		if n, err := New(pool, Options{}).Purge(t.Context(), someDay, 10); n != 1 || err != nil {
			t.Fatalf("Purge removed %d, %v", n, err)
		}
	}
	t.Run("Enqueue stores it anew", func(t *testing.T) {
		pool, m := ended(t)
		release := pausedInsert(t, pool)
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		type answer struct {
			placed []Enqueued
			err    error
		}
		answers := make(chan answer, 1)
		go func() {
			placed, err := New(pool, Options{}).With(tx).Enqueue(t.Context(), testCommand, m)
			answers <- answer{placed, err}
		}()
		waitUntilBlocked[error](t, pool, tx.Conn().PgConn().PID(), nil)
		purge(t, pool)
		release()
		got := <-answers
		if got.err != nil || got.placed[0].Duplicate {
			t.Errorf("answered %v, %v, want a row of its own", got.placed, got.err)
		}
	})
	t.Run("a batch fails and says so", func(t *testing.T) {
		pool, m := ended(t)
		release := pausedInsert(t, pool)
		conn, _ := countedConn(t, pool)
		b := newBatch(conn)
		queued := b.enqueue(t, m)
		closed := make(chan error, 1)
		go func() { closed <- conn.SendBatch(t.Context(), b.Batch).Close() }()
		waitUntilBlocked[error](t, pool, conn.PgConn().PID(), nil)
		purge(t, pool)
		release()
		err := <-closed
		if err == nil || errors.Is(err, ErrKeyReused) {
			t.Errorf("the batch ended with %v, want an error that is not ErrKeyReused", err)
		}
		if answers, err := queued.Enqueued(); answers != nil || err == nil {
			t.Errorf("answered %v, %v, want an error", answers, err)
		}
		b.wantCommitted(t, pool, false)
		b = newBatch(conn)
		queued = b.enqueue(t, m)
		if err := conn.SendBatch(t.Context(), b.Batch).Close(); err != nil {
			t.Fatal(err)
		}
		if answers := wantAnswers(t, queued); answers[0].Duplicate {
			t.Errorf("the batch that was sent again was answered %v, want a row of its own", answers)
		}
	})
}

// TestEnqueueWaitsForAPurge has the row with the key removed by a transaction
// that has not ended.
func TestEnqueueWaitsForAPurge(t *testing.T) {
	for _, test := range []struct {
		name      string
		commit    bool
		duplicate bool
	}{
		{"that commits", true, false},
		{"that rolls back", false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := testPool(t)
			s := New(pool, Options{})
			m := testMessage(DestinationMailer)
			entry := claimOne(t, pool, m)
			if err := s.MarkCompleted(t.Context(), entry.Claim, ""); err != nil {
				t.Fatal(err)
			}
			purge, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n, err := s.With(purge).Purge(t.Context(), someDay, 10); n != 1 || err != nil {
				t.Fatalf("Purge removed %d, %v", n, err)
			}
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.WithoutCancel(t.Context()))
			answers := make(chan []Enqueued, 1)
			go func() {
				placed, err := s.With(tx).Enqueue(t.Context(), testCommand, m)
				if err != nil {
					t.Error(err)
				}
				answers <- placed
			}()
			waitUntilBlocked[error](t, pool, tx.Conn().PgConn().PID(), nil)
			if test.commit {
				err = purge.Commit(t.Context())
			} else {
				err = purge.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if placed := <-answers; len(placed) != 1 || placed[0].Duplicate != test.duplicate {
				t.Errorf("answered %v, want duplicate: %t", placed, test.duplicate)
			}
		})
	}
}
