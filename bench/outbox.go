package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

// batchSize is the number of messages that a worker claims and settles at once.
const batchSize = 100

// A contender is somewhere to put messages from which they are delivered.
type contender interface {
	name() string
	// enqueue stores a message in the caller's transaction.
	enqueue(ctx context.Context, tx pgx.Tx, o benchbox.OrderPlaced) error
	// fill stores n messages that are due, all for one destination.
	fill(ctx context.Context, n int) error
	// left is the number of messages that are not completed.
	left(ctx context.Context) (int, error)
	// reset removes all messages.
	reset(ctx context.Context) error
}

// An outbox is a contender that is tables and the statements that work on them.
type outbox interface {
	contender
	// queue adds to a batch what enqueue does.
	queue(ctx context.Context, batch *pgx.Batch, o benchbox.OrderPlaced) error
	// deliver claims a batch of what is due, decodes it and settles it as
	// completed. It returns the number of messages.
	deliver(ctx context.Context, worker string) (int, error)
}

// openOutboxes makes the contenders in one database.
func openOutboxes(ctx context.Context, db *pgxpool.Pool) ([]outbox, error) {
	if err := benchbox.Migrate(ctx, db); err != nil {
		return nil, err
	}
	if _, err := db.Exec(ctx, sqlClassicTable, pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, err
	}
	return []outbox{newGenerated(db), &classic{db: db}}, nil
}

// generated is the outbox of the generated package.
type generated struct {
	db    *pgxpool.Pool
	store *benchbox.Store
}

func newGenerated(db *pgxpool.Pool) *generated {
	return &generated{db: db, store: benchbox.New(db, benchbox.Options{})}
}

func (g *generated) name() string { return "generated" }

func (g *generated) enqueue(ctx context.Context, tx pgx.Tx, o benchbox.OrderPlaced) error {
	_, err := g.store.With(tx).Enqueue(ctx, benchbox.NewCommand(benchbox.CommandID(o.OrderID)), benchbox.ToLedger(o))
	return err
}

func (g *generated) queue(ctx context.Context, batch *pgx.Batch, o benchbox.OrderPlaced) error {
	_, err := g.store.QueueEnqueue(ctx, batch, benchbox.NewCommand(benchbox.CommandID(o.OrderID)), benchbox.ToLedger(o))
	return err
}

func (g *generated) fill(ctx context.Context, n int) error {
	return g.insert(ctx, history{n: n, destination: benchbox.DestinationLedger, state: due, age: time.Hour})
}

func (g *generated) deliver(ctx context.Context, worker string) (int, error) {
	entries, err := g.claim(ctx, worker, map[benchbox.Destination]int{benchbox.DestinationLedger: batchSize})
	if err != nil {
		return 0, err
	}
	return len(entries), g.complete(ctx, entries)
}

// complete settles rows as completed, none of which may be refused.
func (g *generated) complete(ctx context.Context, entries []benchbox.Entry) error {
	settlements := make([]benchbox.Settlement, len(entries))
	for i, e := range entries {
		settlements[i] = e.Claim.Completed("")
	}
	answers, err := g.store.Settle(ctx, settlements...)
	return errors.Join(append(answers, err)...)
}

// claim claims rows, all of which must be readable.
func (g *generated) claim(ctx context.Context, worker string, limits map[benchbox.Destination]int) ([]benchbox.Entry, error) {
	entries, err := g.store.ClaimDue(ctx, benchbox.ClaimRequest{WorkerID: worker, Limits: limits})
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.DecodeErr != nil {
			return nil, e.DecodeErr
		}
	}
	return entries, nil
}

func claimsOf(entries []benchbox.Entry) []benchbox.Claim {
	claims := make([]benchbox.Claim, len(entries))
	for i, e := range entries {
		claims[i] = e.Claim
	}
	return claims
}

func (g *generated) left(ctx context.Context) (int, error) {
	return count(ctx, g.db, "SELECT (SELECT count(*) FROM outbox_message) - (SELECT count(*) FROM outbox_outcome WHERE NOT failed)")
}

func (g *generated) reset(ctx context.Context) error {
	_, err := g.db.Exec(ctx, "TRUNCATE outbox_message, outbox_queue, outbox_outcome, outbox_hold")
	return err
}

// A history is messages as they would be after a while. Filling it through the
// store would take minutes.
type history struct {
	n           int
	destination benchbox.Destination
	state       state
	keys        int           // that the messages have in turn; 0 = they are not ordered
	age         time.Duration // of the oldest message; the others follow up to the present
}

type state int

const (
	due state = iota
	scheduled
	unknown
	completed
	failed
)

// insert stores a history.
func (g *generated) insert(ctx context.Context, h history) error {
	payload, order, err := samplePayload()
	if err != nil {
		return err
	}
	_, err = g.db.Exec(ctx, sqlInsertMessages, h.n, h.age.Microseconds(), string(h.destination), payload, order, h.keys)
	if err != nil {
		return err
	}
	stated, err := g.db.Exec(ctx, sqlInsertStates[h.state], string(h.destination))
	if err == nil && stated.RowsAffected() != int64(h.n) {
		err = fmt.Errorf("%d messages of a history of %d were stored", stated.RowsAffected(), h.n)
	}
	return err
}

// sqlPastOrders gives $1 orders from $2 microseconds ago until now, the oldest
// first, with ids as UUIDv7 has them. $5 is the order in the payload $4.
const sqlPastOrders = `
SELECT o.n, (lpad(to_hex((extract(epoch FROM o.at) * 1000)::bigint), 12, '0') || '7' || substr(o.random, 1, 3) || '8' || substr(o.random, 4, 15))::uuid AS outbox_id,
  o.order_id, o.at, replace($4::text, $5::text, o.order_id::text)::json AS payload
FROM (
  SELECT n, at, gen_random_uuid() AS order_id, replace(gen_random_uuid()::text, '-', '') AS random
  FROM (SELECT n, now() - (1 - n::float8 / $1::integer) * ($2::bigint * interval '1 microsecond') AS at FROM generate_series(1, $1::integer) n) t) o`

const sqlInsertMessages = `
INSERT INTO outbox_message (outbox_id, command_id, created_at, payload_version, destination, payload_type, idempotency_key, payload, order_key)
SELECT p.outbox_id, p.order_id, p.at, 1, $3::text, 'order_placed', 'order_placed:' || p.order_id, p.payload, 'customer ' || p.n % NULLIF($6::integer, 0)
FROM (` + sqlPastOrders + `) p ORDER BY p.outbox_id`

// sqlInsertStates give the messages of a destination that have none a state.
var sqlInsertStates = map[state]string{
	due: `
INSERT INTO outbox_queue (outbox_id, destination, kind, order_key)
SELECT m.outbox_id, m.destination, m.destination || '/order_placed@1', m.order_key` + sqlStateless,
	scheduled: `
INSERT INTO outbox_queue (outbox_id, destination, kind, next_attempt_at)
SELECT m.outbox_id, m.destination, m.destination || '/order_placed@1', now() + interval '1 day' + (m.created_at - now()) / 100` + sqlStateless,
	unknown: `
INSERT INTO outbox_queue (outbox_id, destination, kind, claim_token, attempt_count, attempted_at, unknown, unknown_since)
SELECT m.outbox_id, m.destination, m.destination || '/order_placed@1', 1, 1, m.created_at, true, m.created_at + interval '1 minute'` + sqlStateless,
	completed: `
INSERT INTO outbox_outcome (outbox_id, claim_token, completed_at, attempt_count, failed, destination)
SELECT m.outbox_id, 1, m.created_at + interval '1 second', 1, false, m.destination` + sqlStateless,
	failed: `
INSERT INTO outbox_outcome (outbox_id, claim_token, completed_at, attempt_count, failed, destination, last_failure)
SELECT m.outbox_id, 1, m.created_at + interval '1 hour', 10, true, m.destination, 'connection refused'` + sqlStateless,
}

const sqlStateless = `
FROM outbox_message m
WHERE m.destination = $1::text
  AND NOT EXISTS (SELECT FROM outbox_queue q WHERE q.outbox_id = m.outbox_id)
  AND NOT EXISTS (SELECT FROM outbox_outcome o WHERE o.outbox_id = m.outbox_id)
ORDER BY m.outbox_id`

// newOrder makes a message of about 300 bytes.
func newOrder() (benchbox.OrderPlaced, error) {
	id, err := uuid.NewRandom()
	return benchbox.OrderPlaced{
		OrderID:  id,
		Customer: "Ada Lovelace",
		Email:    "ada.lovelace@example.com",
		Lines: []benchbox.OrderLine{
			{SKU: "ENGINE-1843-BRASS", Quantity: 1, Cents: 249_900},
			{SKU: "PUNCHED-CARDS-500", Quantity: 12, Cents: 1_995},
		},
		PlacedAt: time.Now(),
	}, err
}

// samplePayload is an order as it is stored, and its id, which stands once in it.
func samplePayload() (payload, orderID string, err error) {
	o, err := newOrder()
	if err != nil {
		return "", "", err
	}
	text, err := json.Marshal(o)
	return string(text), o.OrderID.String(), err
}

// withConns is a pool of up to n connections to the same database.
func withConns(ctx context.Context, db *pgxpool.Pool, n int) (*pgxpool.Pool, error) {
	config := db.Config()
	config.MaxConns = int32(n)
	return pgxpool.NewWithConfig(ctx, config)
}

func count(ctx context.Context, db *pgxpool.Pool, sql string) (int, error) {
	var n int
	err := db.QueryRow(ctx, sql).Scan(&n)
	return n, err
}

// settleDown brings statistics and visibility up to date and empties the
// buffers, so that a round meets what a quiet database is like.
func settleDown(ctx context.Context, db *pgxpool.Pool) error {
	for _, sql := range []string{"VACUUM ANALYZE", "CHECKPOINT"} {
		if _, err := db.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}
