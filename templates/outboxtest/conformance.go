package outboxtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/templates/outbox"
)

// DB is what the suite begins transactions on, several at a time: a *pgxpool.Pool,
// or a *MemoryDB of the package. They are to be read committed.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Subject is what [Conformance] tests.
type Subject struct {
	// Open returns the store and its database, for each case anew. The tables
	// must have no rows: see [Scratch].
	Open func(t *testing.T) (*outbox.Store, DB)
	// Command returns the command that messages are enqueued for.
	Command func() outbox.Command
	// Message returns a message for the destination, due at once, whose content,
	// idempotency key and order key no other has.
	Message func(outbox.Destination) outbox.Message
	// Pair returns two messages for the destination that have the same order key,
	// and idempotency keys of their own. It is called for destinations that have
	// both order_by and idempotency_key: elsewhere one message is enqueued under
	// two keys. Nil skips the cases that need it.
	Pair func(outbox.Destination) (first, second outbox.Message)
	// Corrupt makes the stored payload of a row one that cannot be read. Nil
	// skips the case that needs it.
	Corrupt func(t *testing.T, id outbox.OutboxID)
}

// Conformance tests that a database keeps the promises of the outbox, for each
// destination that takes messages: run it on the server that production runs on.
// It tries every operation on a row in every state, under its own claim, a lost
// one and none, and compares the answer and the whole row; then what several
// transactions do to each other.
func Conformance(t *testing.T, subject Subject) {
	for _, p := range policies {
		t.Run(string(p.destination), func(t *testing.T) {
			t.Run("table", func(t *testing.T) { testTable(subject.open(t, p)) })
			for _, test := range conformanceCases {
				if test.only != nil && !test.only(p) {
					continue
				}
				t.Run(test.behaviour, func(t *testing.T) {
					c := subject.open(t, p)
					test.run(c)
					c.sound()
				})
			}
		})
	}
}

// policy is what the specification says of a destination.
type policy struct {
	destination   outbox.Destination
	idempotent    bool
	ordered       bool          // the rows of one order key are delivered in their order
	keyed         bool          // fields of the payload make the idempotency key
	lease         time.Duration // age at which a claim counts as abandoned
	maxAttempts   int           // 0 = unlimited
	byHand        bool          // nobody is asked about an unknown outcome
	firstQuestion time.Duration // from an unknown outcome to the first question
	giveUp        time.Duration // from an unknown outcome to the last question; 0 = nobody gives up
	keepCompleted time.Duration // keepForever, or 0 where rows are removed as they complete
	keepFailed    time.Duration // keepForever, or the age at which Purge removes rows
	expires       time.Duration // age at which a row that was not delivered fails; 0 = never
}

// keepForever is the retention of rows that are never purged.
const keepForever time.Duration = -1

// conformance is one case that is being run.
type conformance struct {
	*testing.T
	subject Subject
	store   *outbox.Store
	db      DB
	tx      pgx.Tx // that the store and db are; nil = they are in none
	command outbox.Command
	policy  policy
	current outbox.Claim // the row's own; no token = it has none
	lost    outbox.Claim // an older one; no token = there is none

	// Of an operation of the table:
	row        outbox.Record // as it is before; zero = it is missing
	claimed    []outbox.Entry
	start, end time.Time // by the database's clock
}

// open opens a store and refuses one that has rows: the suite claims and changes
// whatever is due.
func (s Subject) open(t *testing.T, p policy) *conformance {
	t.Helper()
	store, db := s.Open(t)
	c := &conformance{T: t, subject: s, store: store, db: db, command: s.Command(), policy: p}
	c.must(empty(t.Context(), store))
	return c
}

// empty is an error when there are rows.
func empty(ctx context.Context, store *outbox.Store) error {
	records, err := store.List(ctx, outbox.Filter{}, outbox.OutboxID{}, 1)
	if err == nil && len(records) > 0 {
		err = errors.New("the tables have rows: run the suite on tables of its own")
	}
	return err
}

// within is the case in a transaction, or within a savepoint of its transaction,
// that is rolled back when t ends.
func (c *conformance) within(t *testing.T) *conformance {
	t.Helper()
	inner := *c
	inner.T = t
	inner.tx = inner.begin()
	inner.db, inner.store = inner.tx, c.store.With(inner.tx).Store
	return &inner
}

// begin begins a transaction that is rolled back when the test ends, unless it
// has ended before.
func (c *conformance) begin() pgx.Tx {
	c.Helper()
	tx, err := c.db.Begin(c.Context())
	c.must(err)
	c.Cleanup(func() {
		// The context of a test is over when its cleanups run.
		if err := tx.Rollback(context.WithoutCancel(c.Context())); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			c.Error(err)
		}
	})
	return tx
}

// now reads the database's clock. In memory it is the host's, to the microsecond.
func (c *conformance) now() (now time.Time) {
	c.Helper()
	if c.tx.Conn() == nil {
		return time.Now().Truncate(time.Microsecond)
	}
	c.must(c.tx.QueryRow(c.Context(), "SELECT clock_timestamp()").Scan(&now))
	return now
}

func (c *conformance) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// expect stops the test when an operation returned another number of rows.
func (c *conformance) expect(operation string, got, want int) {
	c.Helper()
	if got != want {
		c.Fatalf("%s returned %d rows, want %d", operation, got, want)
	}
}

// is fails the test when the error is another than the expected one.
func (c *conformance) is(err, want error) {
	c.Helper()
	if !errors.Is(err, want) {
		c.Errorf("the error is %v, want %v", err, want)
	}
}

// sound fails the test when a message does not stand in exactly one place.
func (c *conformance) sound() {
	c.Helper()
	check, err := c.store.CheckRows(c.Context())
	c.must(err)
	if check != (outbox.RowCheck{}) {
		c.Errorf("rows are not sound: %+v", check)
	}
}

// message is one that does not expire while the suite runs.
func (c *conformance) message() outbox.Message {
	m := c.subject.Message(c.policy.destination)
	if c.policy.expires > 0 {
		m = m.ExpiresAt(expiry)
	}
	return m
}

// messages are n of them.
func (c *conformance) messages(n int) []outbox.Message {
	messages := make([]outbox.Message, n)
	for i := range messages {
		messages[i] = c.message()
	}
	return messages
}

// pair is two messages of one order key.
func (c *conformance) pair() (first, second outbox.Message) {
	c.Helper()
	if !c.policy.keyed {
		m := c.message()
		return m, m.WithKey(uuid.NewString())
	}
	if c.subject.Pair == nil {
		c.Skip("Subject.Pair is nil")
	}
	first, second = c.subject.Pair(c.policy.destination)
	if c.policy.expires > 0 {
		first, second = first.ExpiresAt(expiry), second.ExpiresAt(expiry)
	}
	return first, second
}

func (c *conformance) enqueue(messages ...outbox.Message) (answers []outbox.Enqueued) {
	c.Helper()
	c.must(pgx.BeginFunc(c.Context(), c.db, func(tx pgx.Tx) (err error) {
		answers, err = c.store.With(tx).Enqueue(c.Context(), c.command, messages...)
		return err
	}))
	return answers
}

// enqueuePair enqueues two messages of one order key and returns their ids.
func (c *conformance) enqueuePair() (first, second outbox.OutboxID) {
	c.Helper()
	answers := c.enqueue(c.pair())
	return answers[0].ID, answers[1].ID
}

func (c *conformance) request(limit int, at time.Time) outbox.ClaimRequest {
	return outbox.ClaimRequest{WorkerID: worker, Limits: map[outbox.Destination]int{c.policy.destination: limit}, At: at}
}

// claim claims what is due at a time, at most limit rows; zero means the present.
func (c *conformance) claim(limit int, at time.Time) []outbox.Entry {
	c.Helper()
	entries, err := c.store.ClaimDue(c.Context(), c.request(limit, at))
	c.must(err)
	return entries
}

// claimOne claims the only row that is due at a time.
func (c *conformance) claimOne(at time.Time) outbox.Entry {
	c.Helper()
	entries := c.claim(10, at)
	c.expect("ClaimDue", len(entries), 1)
	c.lost, c.current = c.current, entries[0].Claim
	return entries[0]
}

func (c *conformance) claimsNothing() {
	c.Helper()
	c.expect("ClaimDue", len(c.claim(10, time.Time{})), 0)
}

func (c *conformance) get(id outbox.OutboxID) outbox.Record {
	c.Helper()
	record, err := c.store.Get(c.Context(), id)
	c.must(err)
	return record
}

// find is the row, or the zero Record when it is missing.
func (c *conformance) find(id outbox.OutboxID) outbox.Record {
	c.Helper()
	record, err := c.store.Get(c.Context(), id)
	if errors.Is(err, outbox.ErrNotFound) {
		return outbox.Record{}
	}
	c.must(err)
	return record
}
