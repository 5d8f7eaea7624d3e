package outbox

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// inTx runs f in a transaction that is rolled back.
func inTx(t *testing.T, pool *pgxpool.Pool, options Options, f func(tx pgx.Tx, box *Tx)) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	f(tx, New(pool, options).With(tx))
}

// mustEnqueue enqueues messages and returns what was answered.
func mustEnqueue(t testing.TB, box *Tx, messages ...Message) []Enqueued {
	t.Helper()
	placed, err := box.Enqueue(t.Context(), testCommand, messages...)
	if err != nil {
		t.Fatal(err)
	}
	return placed
}

// wantUsable fails the test when the transaction cannot be used further.
func wantUsable(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("the transaction cannot be used any more: %v", err)
	}
}

// wantRows fails the test when the number of messages is another.
func wantRows(t *testing.T, db DB, want int) {
	t.Helper()
	if got := queryOne[int](t, db, "SELECT count(*) FROM outbox_message"); got != want {
		t.Errorf("there are %d messages, want %d", got, want)
	}
}

func TestEnqueueStoresTheWholeMessage(t *testing.T) {
	pool := testPool(t)
	payload := orderConfirmation()
	payload.Lines[0].Sku = `<&> "é" 漢 \`
	raw, err := payload.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	due, expires := someDay, laterDay
	message := ToMailer(payload).At(due).ExpiresAt(expires).WithKey("the key").WithHeader("trace", "a\x00b").WithHeader("", "x")
	inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
		if _, err := box.Enqueue(t.Context(), testCommand, message); err == nil {
			t.Error("a header without a name was accepted")
		}
	})
	message = ToMailer(payload).At(due).ExpiresAt(expires).WithKey("the key").WithHeader("trace", "a\x00b").WithHeader("quote", `"'\`)
	var id OutboxID
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		placed, err := New(pool, Options{}).With(tx).Enqueue(t.Context(), testCommand, message)
		if err != nil {
			return err
		}
		id = placed[0].ID
		wantRows(t, pool, 0) // seen from outside the transaction
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Record{
		Entry: Entry{
			Claim: Claim{ID: id}, ID: id, CommandID: testCommand.id, Columns: testCommand.columns,
			Destination: DestinationMailer, PayloadType: "order_confirmation", PayloadVersion: 1, IdempotencyKey: "the key",
			Headers: map[string]string{"trace": "a\x00b", "quote": `"'\`}, Payload: payload, Raw: raw,
			EnqueuedAt: id.createdAt(), ExpiresAt: expires,
		},
		Status: StatusPending, NextAttemptAt: due,
	}
	if diff := cmp.Diff(want, getRecord(t, New(pool, Options{}), id), sameRecord); diff != "" {
		t.Errorf("the row (-want +got):\n%s", diff)
	}
}

func TestEnqueueTimes(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	for _, test := range []struct {
		name    string
		message Message
		due     time.Time
		expires time.Time
	}{
		{"as it comes", testMessage(DestinationMailer), time.Time{}, time.Time{}},
		{"at a time to come", testMessage(DestinationMailer).At(someDay), someDay, time.Time{}},
		{"at a time that has come", testMessage(DestinationMailer).At(longAgo), time.Time{}, time.Time{}},
		{"with an expiry of its own in place of the declared one", testMessage(DestinationMetrics).ExpiresAt(someDay), time.Time{}, someDay},
		{"in the year 9999", testMessage(DestinationMailer).At(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), time.Time{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			record := getRecord(t, s, enqueueAll(t, pool, test.message)[0])
			if !record.NextAttemptAt.Equal(test.due) || !record.ExpiresAt.Equal(test.expires) {
				t.Errorf("due %v and expiring %v, want %v and %v", record.NextAttemptAt, record.ExpiresAt, test.due, test.expires)
			}
		})
	}
	t.Run("the declared expiry counts from the database's present", func(t *testing.T) {
		clock := postgresSubject{pool}
		start := clock.now(t)
		id := enqueueAll(t, pool, testMessage(DestinationMetrics))[0]
		end := clock.now(t)
		expires := getRecord(t, s, id).ExpiresAt
		if expires.Before(start.Add(time.Hour)) || expires.After(end.Add(time.Hour)) {
			t.Errorf("expires at %v, want an hour after a time between %v and %v", expires, start, end)
		}
	})
}

func TestEnqueueRefusesBadMessages(t *testing.T) {
	pool := testPool(t)
	invalid := orderConfirmation()
	invalid.Lines, invalid.Email = nil, strings.Repeat("x", 321)
	for _, test := range []struct {
		name    string
		message Message
		want    string
	}{
		{"no payload", ToMailer(nil), "there is no payload"},
		{"a payload that breaks its rules", ToMailer(invalid), "email"},
		{"a key where it is declared", testMessage(DestinationPayments).WithKey("mine"), "leave WithKey out"},
		{"an empty key", testMessage(DestinationMailer).WithKey(""), "key is empty"},
		{"a key that is too long", testMessage(DestinationMailer).WithKey(strings.Repeat("k", 1025)), "longer than 1024 bytes"},
		{"NUL in a key", testMessage(DestinationMailer).WithKey("a\x00b"), "holds NUL"},
		{"a key that is not UTF-8", testMessage(DestinationMailer).WithKey("a\xff"), "is not UTF-8"},
		{"a limit key that is too long", ToMetrics(UsageSample{Meter: strings.Repeat("m", 1025)}), "limit key is longer"},
		{"a header without a name", testMessage(DestinationMailer).WithHeader("", "x"), "header"},
		{"a header name that is not UTF-8", testMessage(DestinationMailer).WithHeader("\xff", "x"), "header"},
		{"a header value that is not UTF-8", testMessage(DestinationMailer).WithHeader("x", "\xff"), "header"},
		{"a time that Postgres cannot hold", testMessage(DestinationMailer).At(time.Date(300000, 1, 1, 0, 0, 0, 0, time.UTC)), "years 1 to 9999"},
		{"an expiry that Postgres cannot hold", testMessage(DestinationMailer).ExpiresAt(time.Date(-5000, 1, 1, 0, 0, 0, 0, time.UTC)), "years 1 to 9999"},
		{"an expiry before it is due", testMessage(DestinationMailer).At(laterDay).ExpiresAt(someDay), "expire before it is due"},
		{"an expiry as it is due", testMessage(DestinationMailer).At(someDay).ExpiresAt(someDay), "expire before it is due"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
				_, err := box.Enqueue(t.Context(), testCommand, testMessage(DestinationMailer), test.message, testMessage(DestinationMailer))
				var fault *MessageError
				if !errors.As(err, &fault) {
					t.Fatalf("the error is %v, want a MessageError", err)
				}
				if fault.Index != 1 || fault.Destination != test.message.destination || !strings.Contains(err.Error(), test.want) {
					t.Errorf("the error is %q of message %d for %s, want %q of message 1", err, fault.Index, fault.Destination, test.want)
				}
				wantUsable(t, tx)
				wantRows(t, tx, 0)
			})
		})
	}
	t.Run("each of several", func(t *testing.T) {
		inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
			_, err := box.Enqueue(t.Context(), testCommand, ToMailer(invalid), testMessage(DestinationMailer), ToLedger(nil))
			for _, want := range []string{"message 0 for mailer", "message 2 for ledger"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the error %v does not speak of %q", err, want)
				}
			}
			var violations *ValidationError
			if !errors.As(err, &violations) || len(violations.Violations) != 2 {
				t.Errorf("the error %v does not hold the two violations", err)
			}
			wantUsable(t, tx)
			wantRows(t, tx, 0)
		})
	})
	t.Run("a column of the command", func(t *testing.T) {
		inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
			if _, err := box.Enqueue(t.Context(), testCommand.WithRegion("\x00"), testMessage(DestinationMailer)); err == nil {
				t.Error("NUL in a column was accepted")
			}
			wantUsable(t, tx)
		})
	})
}

func TestEnqueueOfNothing(t *testing.T) {
	pool := testPool(t)
	inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
		if placed := mustEnqueue(t, box); placed != nil {
			t.Errorf("placed %v", placed)
		}
	})
}

func TestEnqueueRollsBackWithTheCaller(t *testing.T) {
	pool := testPool(t)
	inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
		mustEnqueue(t, box, testMessage(DestinationMailer), testMessage(DestinationPayments))
		wantRows(t, tx, 2)
	})
	wantRows(t, pool, 0)
	wantSound(t, New(pool, Options{}))
}

func TestEnqueueHeaders(t *testing.T) {
	pool := testPool(t)
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "4bf9")
	options := Options{Inject: func(ctx context.Context) map[string]string {
		return map[string]string{"trace": ctx.Value(key{}).(string), "who": "injected"}
	}}
	var ids []Enqueued
	own := testMessage(DestinationMailer).WithHeader("who", "own")
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		ids, err = New(pool, options).With(tx).Enqueue(ctx, testCommand, own, testMessage(DestinationLedger))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []map[string]string{{"trace": "4bf9", "who": "own"}, {"trace": "4bf9", "who": "injected"}} {
		if got := getRecord(t, New(pool, Options{}), ids[i].ID).Headers; !maps.Equal(got, want) {
			t.Errorf("the headers of message %d are %v, want %v", i, got, want)
		}
	}
	if !maps.Equal(own.headers, map[string]string{"who": "own"}) {
		t.Errorf("the caller's message was changed: %v", own.headers)
	}
}

func TestMessageMethodsReturnACopy(t *testing.T) {
	base := testMessage(DestinationMailer).WithHeader("a", "1")
	first := base.WithHeader("b", "2").At(someDay).WithKey("key").ExpiresAt(laterDay)
	second := base.WithHeader("b", "3")
	if first.headers["b"] != "2" || second.headers["b"] != "3" || len(base.headers) != 1 {
		t.Errorf("the headers are shared: %v, %v and %v", base.headers, first.headers, second.headers)
	}
	if !base.due.IsZero() || base.keyed || !base.expires.IsZero() {
		t.Error("the message that a method was called on has changed")
	}
}

func TestEnqueueDuplicates(t *testing.T) {
	pool := testPool(t)
	t.Run("the same message in a later call", func(t *testing.T) {
		inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
			first, second := testMessage(DestinationMailer), testMessage(DestinationPayments)
			placed := mustEnqueue(t, box, first, second)
			again := mustEnqueue(t, box, second, testMessage(DestinationLedger), first)
			if again[0] != (Enqueued{placed[1].ID, true}) || again[1].Duplicate || again[2] != (Enqueued{placed[0].ID, true}) {
				t.Errorf("answered %v after %v", again, placed)
			}
			wantRows(t, tx, 3)
		})
	})
	t.Run("after the first has completed", func(t *testing.T) {
		m := testMessage(DestinationMailer)
		entry := claimOne(t, pool, m)
		if err := New(pool, Options{}).MarkCompleted(t.Context(), entry.Claim, ""); err != nil {
			t.Fatal(err)
		}
		inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
			if placed := mustEnqueue(t, box, m); placed[0] != (Enqueued{entry.ID, true}) {
				t.Errorf("answered %v, want the duplicate of %s", placed, entry.ID)
			}
		})
		removeRows(t, pool)
	})
	t.Run("within one call the first is stored", func(t *testing.T) {
		inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
			payload := orderConfirmation()
			var messages []Message
			for range 20 { // more than a sort leaves in place by chance
				messages = append(messages, testMessage(DestinationMailer), ToMailer(payload).WithKey("twice"))
			}
			placed := mustEnqueue(t, box, messages...)
			for i := 1; i < len(placed); i += 2 {
				if placed[i] != (Enqueued{placed[1].ID, i > 1}) {
					t.Errorf("message %d was answered %v, the first of the key %v", i, placed[i], placed[1])
				}
			}
			wantRows(t, tx, 21)
		})
	})
	t.Run("equal content without a key is another message within a call and the same in a retried one", func(t *testing.T) {
		inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
			payload := orderConfirmation()
			placed := mustEnqueue(t, box, ToMailer(payload), ToMailer(payload), ToLedger(payload))
			for i, p := range placed {
				if p.Duplicate {
					t.Errorf("message %d is a duplicate", i)
				}
			}
			again := mustEnqueue(t, box, ToMailer(payload), ToMailer(payload), ToLedger(payload))
			for i := range again {
				if again[i] != (Enqueued{placed[i].ID, true}) {
					t.Errorf("message %d was answered %v, want the duplicate of %v", i, again[i], placed[i])
				}
			}
		})
	})
	t.Run("the same key for two destinations", func(t *testing.T) {
		inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
			payload := orderConfirmation()
			placed := mustEnqueue(t, box, ToMailer(payload).WithKey("k"), ToLedger(payload).WithKey("k"))
			if placed[0].Duplicate || placed[1].Duplicate {
				t.Errorf("answered %v", placed)
			}
		})
	})
	t.Run("a declared key", func(t *testing.T) {
		inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
			payload := paymentCapture()
			placed := mustEnqueue(t, box, ToPayments(payload))
			other := NewCommand(CommandID(uuid.New()), uuid.New())
			again, err := box.Enqueue(t.Context(), other, ToPayments(payload))
			if err != nil || again[0] != (Enqueued{placed[0].ID, true}) {
				t.Errorf("answered %v, %v, want the duplicate of %v", again, err, placed[0])
			}
		})
	})
	t.Run("the same key with another version of the payload", func(t *testing.T) {
		inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
			m := testMessage(DestinationMailer).WithKey("versions")
			placed := mustEnqueue(t, box, m)
			execSQL(t, tx, `UPDATE outbox_message SET payload_version = 2, payload = '{"another": "shape"}'`)
			if again := mustEnqueue(t, box, m); again[0] != (Enqueued{placed[0].ID, true}) {
				t.Errorf("answered %v, want the duplicate of %v", again, placed)
			}
		})
	})
}

func TestEnqueueKeyReused(t *testing.T) {
	pool := testPool(t)
	for _, test := range []struct {
		name  string
		again Message
	}{
		{"with other content", ToLedger(orderConfirmation()).WithKey("taken")},
		{"with another payload", ToLedger(paymentCapture()).WithKey("taken")},
	} {
		t.Run(test.name, func(t *testing.T) {
			inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
				first := ToLedger(orderConfirmation()).WithKey("taken")
				placed := mustEnqueue(t, box, first)
				_, err := box.Enqueue(t.Context(), testCommand, testMessage(DestinationMailer), first, test.again, testMessage(DestinationPayments))
				var fault *MessageError
				if !errors.Is(err, ErrKeyReused) || !errors.As(err, &fault) {
					t.Fatalf("the error is %v, want ErrKeyReused", err)
				}
				if fault.Index != 2 || fault.ExistingID != placed[0].ID || fault.Destination != DestinationLedger {
					t.Errorf("the error is %+v, want message 2 and the row %s", fault, placed[0].ID)
				}
				wantUsable(t, tx)
				wantRows(t, tx, 1)
				wantSound(t, box.Store)
			})
		})
	}
	t.Run("within one call", func(t *testing.T) {
		inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
			_, err := box.Enqueue(t.Context(), testCommand,
				testMessage(DestinationMailer), ToLedger(orderConfirmation()).WithKey("taken"), ToLedger(paymentCapture()).WithKey("taken"))
			var fault *MessageError
			if !errors.Is(err, ErrKeyReused) || !errors.As(err, &fault) {
				t.Fatalf("the error is %v, want ErrKeyReused", err)
			}
			if fault.Index != 2 || fault.ExistingID != (OutboxID{}) {
				t.Errorf("the error is %+v, want message 2 and no row, since none was stored", fault)
			}
			wantUsable(t, tx)
			wantRows(t, tx, 0)
			wantSound(t, box.Store)
		})
	})
}

// waitUntilBlocked returns when a backend waits for a lock of another one. It
// fails the test when the call that was to wait is answered.
func waitUntilBlocked[T any](t *testing.T, db DB, pid uint32, answers <-chan T) {
	t.Helper()
	for queryOne[int](t, db, "SELECT cardinality(pg_blocking_pids($1))", pid) == 0 {
		if len(answers) > 0 {
			t.Fatalf("the call did not wait: it was answered %+v", <-answers)
		}
	}
}

func TestEnqueueWaitsForAnUncommittedDuplicate(t *testing.T) {
	pool := testPool(t)
	for _, test := range []struct {
		name     string
		level    pgx.TxIsoLevel
		commit   bool
		sameBody bool
		want     func(t *testing.T, first OutboxID, placed []Enqueued, err error)
	}{
		{"that commits", pgx.ReadCommitted, true, true, func(t *testing.T, first OutboxID, placed []Enqueued, err error) {
			if err != nil || placed[0] != (Enqueued{first, true}) {
				t.Errorf("answered %v, %v, want the duplicate of %s", placed, err, first)
			}
		}},
		{"that commits with other content", pgx.ReadCommitted, true, false, func(t *testing.T, first OutboxID, placed []Enqueued, err error) {
			var fault *MessageError
			if !errors.Is(err, ErrKeyReused) || !errors.As(err, &fault) || fault.ExistingID != first {
				t.Errorf("the error is %v, want ErrKeyReused by %s", err, first)
			}
		}},
		{"that rolls back", pgx.ReadCommitted, false, true, func(t *testing.T, first OutboxID, placed []Enqueued, err error) {
			if err != nil || placed[0].Duplicate || placed[0].ID == first {
				t.Errorf("answered %v, %v, want a row of its own", placed, err)
			}
		}},
		{"that commits, in a repeatable read", pgx.RepeatableRead, true, true, wantSerializationFailure},
		{"that commits, in a serializable transaction", pgx.Serializable, true, true, wantSerializationFailure},
		{"that rolls back, in a serializable transaction", pgx.Serializable, false, true, func(t *testing.T, first OutboxID, placed []Enqueued, err error) {
			if err != nil || placed[0].Duplicate {
				t.Errorf("answered %v, %v, want a row of its own", placed, err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			removeRows(t, pool)
			s := New(pool, Options{})
			payload, body := orderConfirmation(), orderConfirmation()
			if test.sameBody {
				body = payload
			}
			first, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			placed := mustEnqueue(t, s.With(first), ToMailer(payload).WithKey("k"))

			second, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: test.level})
			if err != nil {
				t.Fatal(err)
			}
			defer second.Rollback(context.WithoutCancel(t.Context()))
			type answer struct {
				placed []Enqueued
				err    error
			}
			answers := make(chan answer, 1)
			go func() {
				placed, err := s.With(second).Enqueue(t.Context(), testCommand, ToMailer(body).WithKey("k"))
				answers <- answer{placed, err}
			}()
			waitUntilBlocked(t, pool, second.Conn().PgConn().PID(), answers)
			if test.commit {
				err = first.Commit(t.Context())
			} else {
				err = first.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			got := <-answers
			test.want(t, placed[0].ID, got.placed, got.err)
		})
	}
}

func wantSerializationFailure(t *testing.T, _ OutboxID, placed []Enqueued, err error) {
	var failure *pgconn.PgError
	if !errors.As(err, &failure) || failure.Code != "40001" {
		t.Errorf("answered %v, %v, want a serialization failure", placed, err)
	}
}

// TestEnqueueNeverDeadlocks has two transactions enqueue the same keys in
// opposite orders, and stops both half way by a third that has the middle one.
func TestEnqueueNeverDeadlocks(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	var forward []Message
	for _, key := range []string{"a", "m", "z"} {
		forward = append(forward, ToMailer(orderConfirmation()).WithKey(key))
	}
	backward := slices.Clone(forward)
	slices.Reverse(backward)

	middle := openTx(t, pool)
	mustEnqueue(t, s.With(middle), forward[1])
	results := make(chan error, 2)
	for _, messages := range [][]Message{forward, backward} {
		tx := openTx(t, pool)
		go func() {
			_, err := s.With(tx).Enqueue(t.Context(), testCommand, messages...)
			if err == nil {
				err = tx.Commit(t.Context())
			}
			results <- err
		}()
		waitUntilBlocked(t, pool, tx.Conn().PgConn().PID(), results)
	}
	if err := middle.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	wantRows(t, pool, len(forward))
}

// roundTrips counts the messages of a connection that ask the server to answer.
type roundTrips struct {
	net.Conn
	started bool
	unread  []byte
	count   *atomic.Int64
}

func (c *roundTrips) Write(p []byte) (int, error) {
	c.unread = append(c.unread, p...)
	for {
		head := 1
		if !c.started {
			head = 0 // the first message of a connection has no type
		}
		if len(c.unread) < head+4 {
			break
		}
		size := head + int(binary.BigEndian.Uint32(c.unread[head:]))
		if len(c.unread) < size {
			break
		}
		if c.started && (c.unread[0] == 'S' || c.unread[0] == 'Q') { // Sync, Query
			c.count.Add(1)
		}
		c.started = true
		c.unread = c.unread[size:]
	}
	return c.Conn.Write(p)
}

// countedConn is a connection, and the number of its round trips.
func countedConn(t *testing.T, pool *pgxpool.Pool) (*pgx.Conn, *atomic.Int64) {
	t.Helper()
	var count atomic.Int64
	config := pool.Config().ConnConfig.Copy()
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &roundTrips{Conn: conn, count: &count}, err
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn, &count
}

func TestRoundTrips(t *testing.T) {
	pool := testPool(t)
	conn, count := countedConn(t, pool)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	box := New(conn, Options{}).With(tx)
	enqueue := func() {
		mustEnqueue(t, box, testMessage(DestinationLedger), testMessage(DestinationMailer), testMessage(DestinationMetrics),
			testMessage(DestinationPayments), testMessage(DestinationLedger))
	}
	enqueue() // which prepares the statement
	before := count.Load()
	enqueue()
	if n := count.Load() - before; n != 1 {
		t.Errorf("Enqueue of five messages for four destinations took %d round trips, want 1", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	s := New(conn, Options{})
	claimAll(t, s, 1)
	before = count.Load()
	entries := claimAll(t, s, 1)
	if n := count.Load() - before; n != 1 {
		t.Errorf("ClaimDue took %d round trips, want 1", n)
	}
	if err := s.MarkCompleted(t.Context(), entries[0].Claim, ""); err != nil {
		t.Fatal(err)
	}
	before = count.Load()
	if err := s.MarkCompleted(t.Context(), entries[1].Claim, ""); err != nil {
		t.Fatal(err)
	}
	if n := count.Load() - before; n != 1 {
		t.Errorf("MarkCompleted took %d round trips, want 1", n)
	}
}
