package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shopspring/decimal"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

// testPool is a pool on a fresh database that has the tables.
func testPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	if err := Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

// testCommand is the command of most tests.
var testCommand = NewCommand(CommandID(uuid.MustParse("0191d3c0-0000-7000-8000-000000000001")),
	uuid.MustParse("0191d3c0-0000-7000-8000-0000000000aa")).WithRegion("eu")

// orderConfirmation is a payload whose content no other has.
func orderConfirmation() OrderConfirmation {
	note := "leave at the door"
	return OrderConfirmation{
		OrderID: uuid.New(), Email: "ada@example.com",
		Lines:    []OrderLine{{Sku: "chair", Quantity: 2, Price: Money{Amount: decimal.RequireFromString("49.90"), Currency: "EUR"}}},
		Labels:   map[string]string{"campaign": "spring"},
		Note:     &note,
		PlacedAt: time.Date(2026, 3, 1, 12, 30, 0, 123456789, time.UTC),
	}
}

func paymentCapture() PaymentCapture {
	return PaymentCapture{PaymentID: uuid.New(), AccountID: "acme", Amount: Money{Amount: decimal.RequireFromString("99.80"), Currency: "USD"}}
}

// testMessage is a message for the destination whose content no other has.
func testMessage(d Destination) Message {
	switch d {
	case DestinationBank:
		return ToBank(BankTransfer{TransferID: uuid.New(), Amount: Money{Amount: decimal.RequireFromString("10.00"), Currency: "CHF"}})
	case DestinationLedger:
		return ToLedger(orderConfirmation())
	case DestinationMailer:
		return ToMailer(orderConfirmation())
	case DestinationMetrics:
		return ToMetrics(UsageSample{Meter: uuid.NewString(), Value: 1})
	case DestinationPayments:
		return ToPayments(paymentCapture())
	case DestinationStock:
		return ToStock(StockChange{Shelf: uuid.NewString(), Change: 1})
	}
	panic("no message for " + d)
}

// enqueueAll enqueues messages in a transaction of its own.
func enqueueAll(t testing.TB, pool *pgxpool.Pool, messages ...Message) []OutboxID {
	t.Helper()
	return enqueueIn(t, New(pool, Options{}), pool, messages...)
}

// enqueueIn enqueues messages in a transaction of a store's database.
func enqueueIn(t testing.TB, s *Store, db beginner, messages ...Message) []OutboxID {
	t.Helper()
	var placed []Enqueued
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
		placed, err = s.With(tx).Enqueue(t.Context(), testCommand, messages...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]OutboxID, len(placed))
	for i, p := range placed {
		ids[i] = p.ID
	}
	return ids
}

// claimAll claims what is due of every destination, at most limit of each.
func claimAll(t testing.TB, s *Store, limit int) []Entry {
	t.Helper()
	limits := make(map[Destination]int)
	for _, p := range policies {
		limits[p.destination] = limit
	}
	entries, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "worker", Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// claimOne enqueues a message and claims it. Nothing else may be due.
func claimOne(t testing.TB, pool *pgxpool.Pool, m Message) Entry {
	t.Helper()
	enqueueAll(t, pool, m)
	entries := claimAll(t, New(pool, Options{}), 10)
	if len(entries) != 1 {
		t.Fatalf("claimed %d rows, want 1", len(entries))
	}
	return entries[0]
}

func execSQL(t testing.TB, db DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// queryOne returns the one value that a query gives.
func queryOne[T any](t testing.TB, db DB, sql string, args ...any) (value T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// removeRows empties the tables. TRUNCATE would cost more for a few rows.
func removeRows(t testing.TB, db DB) {
	t.Helper()
	execSQL(t, db, "WITH a AS (DELETE FROM outbox_queue), b AS (DELETE FROM outbox_outcome), c AS (DELETE FROM outbox_hold) DELETE FROM outbox_message")
}

// wantSound fails the test when a message does not stand in exactly one place.
func wantSound(t testing.TB, s *Store) {
	t.Helper()
	check, err := s.CheckRows(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if check != (RowCheck{}) {
		t.Errorf("CheckRows: %+v", check)
	}
}

func getRecord(t testing.TB, s *Store, id OutboxID) Record {
	t.Helper()
	record, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return record
}

// postgresSubject is Postgres as the conformance suite sees it.
type postgresSubject struct{ pool *pgxpool.Pool }

func (p postgresSubject) open(t testing.TB) *Store {
	removeRows(t, p.pool)
	return New(p.pool, Options{})
}

func (p postgresSubject) begin(t testing.TB) pgx.Tx {
	tx, err := p.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A test that fails within the transaction is not to keep the connection.
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

func (p postgresSubject) command() Command              { return testCommand }
func (p postgresSubject) message(d Destination) Message { return testMessage(d) }

func (p postgresSubject) now(t testing.TB) time.Time {
	return queryOne[time.Time](t, p.pool, "SELECT clock_timestamp()")
}

func (p postgresSubject) statuses(t testing.TB, id OutboxID) []Status {
	rows, err := p.pool.Query(t.Context(), "SELECT status FROM outbox WHERE outbox_id = $1", id.String())
	if err != nil {
		t.Fatal(err)
	}
	statuses, err := pgx.CollectRows(rows, pgx.RowTo[Status])
	if err != nil {
		t.Fatal(err)
	}
	return statuses
}

// conformanceClaims are a destination of every sort and the claims that the
// table is walked under for it: idempotent with a bound of attempts, not
// idempotent, the same by Settle, without a bound and with nothing purged, with
// completed rows not kept, and ordered.
var conformanceClaims = map[Destination][]string{
	DestinationMailer:   {theSame, anOlder, another, noToken, zero},
	DestinationPayments: {theSame, another},
	DestinationBank:     {theSame, anOlder, another},
	DestinationLedger:   {theSame},
	DestinationMetrics:  {theSame},
	DestinationStock:    {theSame, anOlder},
}

// TestConformancePostgres proves the table of semantics on Postgres.
func TestConformancePostgres(t *testing.T) {
	for d, claims := range conformanceClaims {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			testConformance(t, postgresSubject{testPool(t)}, d, claims...)
		})
	}
}
