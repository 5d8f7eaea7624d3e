package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

// classic is the outbox as it is written by hand, carefully: one table with a
// status, partial indexes, SKIP LOCKED, a fence, claims and settles in batches.
type classic struct{ db *pgxpool.Pool }

const sqlClassicTable = `
CREATE TABLE classic_outbox (
  outbox_id uuid PRIMARY KEY,
  command_id uuid NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz,
  payload_version integer NOT NULL,
  destination text COLLATE "C" NOT NULL,
  payload_type text COLLATE "C" NOT NULL,
  idempotency_key text COLLATE "C" NOT NULL,
  order_key text COLLATE "C",
  limit_key text COLLATE "C",
  headers json,
  payload json NOT NULL,
  status text COLLATE "C" DEFAULT 'pending' NOT NULL,
  next_attempt_at timestamptz NOT NULL,
  attempt_count integer DEFAULT 0 NOT NULL,
  claim_token bigint DEFAULT 0 NOT NULL,
  claim_taken_at timestamptz,
  claim_worker text,
  attempted_at timestamptz,
  unknown_since timestamptz,
  seq bigint GENERATED ALWAYS AS IDENTITY,
  last_failure text,
  remote_ref text,
  completed_at timestamptz,
  UNIQUE (destination, idempotency_key)
);
CREATE INDEX classic_outbox_command ON classic_outbox (command_id);
CREATE INDEX classic_outbox_due ON classic_outbox (destination, next_attempt_at) WHERE status = 'pending';
`

// sqlClassicIndexes are the further indexes that the generated package has on
// a message while it is alive.
const sqlClassicIndexes = `
CREATE INDEX classic_outbox_later ON classic_outbox (destination, next_attempt_at) WHERE status = 'pending' AND attempt_count > 0;
CREATE INDEX classic_outbox_unknown ON classic_outbox (destination, next_attempt_at) WHERE status = 'outcome_unknown';
CREATE INDEX classic_outbox_order ON classic_outbox (destination, order_key, seq) WHERE order_key IS NOT NULL;
CREATE INDEX classic_outbox_expiry ON classic_outbox (expires_at) WHERE expires_at IS NOT NULL;
`

const sqlClassicEnqueue = `
INSERT INTO classic_outbox (outbox_id, command_id, created_at, payload_version, destination, payload_type, idempotency_key, payload, next_attempt_at)
VALUES ($1::uuid, $2::uuid, $3::timestamptz, 1, 'ledger', 'order_placed', $4::text, $5::json, $3::timestamptz)`

const sqlClassicClaim = `
UPDATE classic_outbox q
SET status = 'dispatching', claim_token = $1::bigint, claim_worker = $2::text, claim_taken_at = clock_timestamp(), attempt_count = q.attempt_count + 1
WHERE q.outbox_id = ANY (ARRAY(
  SELECT w.outbox_id FROM classic_outbox w
  WHERE w.status = 'pending' AND w.destination = 'ledger' AND w.next_attempt_at <= (SELECT clock_timestamp())
  ORDER BY w.next_attempt_at LIMIT $3::integer FOR UPDATE SKIP LOCKED))
RETURNING ` + sqlClassicColumns

// sqlClassicColumns are those of a classicMessage, of a table or view q.
const sqlClassicColumns = `
  q.outbox_id, q.command_id, q.destination, q.payload_type, q.payload_version, q.idempotency_key,
  q.payload::text, q.headers::text, q.created_at, q.expires_at, q.attempt_count, q.attempted_at, q.remote_ref`

const sqlClassicComplete = `
UPDATE classic_outbox q
SET status = 'completed', completed_at = clock_timestamp(), claim_taken_at = NULL, claim_worker = NULL
WHERE q.outbox_id = ANY ($1::uuid[]) AND q.claim_token = $2::bigint AND q.status = 'dispatching'`

const sqlClassicFill = `
INSERT INTO classic_outbox (outbox_id, command_id, created_at, payload_version, destination, payload_type, idempotency_key, payload, next_attempt_at)
SELECT p.outbox_id, p.order_id, p.at, 1, $3::text, 'order_placed', 'order_placed:' || p.order_id, p.payload, p.at
FROM (` + sqlPastOrders + `) p ORDER BY p.outbox_id`

func (c *classic) name() string { return "one table" }

func (c *classic) enqueue(ctx context.Context, tx pgx.Tx, o benchbox.OrderPlaced) error {
	args, err := classicArguments(o)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, sqlClassicEnqueue, args...)
	return err
}

func (c *classic) queue(_ context.Context, batch *pgx.Batch, o benchbox.OrderPlaced) error {
	args, err := classicArguments(o)
	if err != nil {
		return err
	}
	batch.Queue(sqlClassicEnqueue, args...)
	return nil
}

// classicArguments are those of sqlClassicEnqueue.
func classicArguments(o benchbox.OrderPlaced) ([]any, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	payload, err := o.MarshalJSON()
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	return []any{id.String(), o.OrderID.String(), time.Now(), "order_placed:" + o.OrderID.String(), string(payload)}, nil
}

func (c *classic) fill(ctx context.Context, n int) error {
	payload, order, err := samplePayload()
	if err != nil {
		return err
	}
	_, err = c.db.Exec(ctx, sqlClassicFill, n, time.Hour.Microseconds(), string(benchbox.DestinationLedger), payload, order)
	return err
}

// classicMessage is a message with what a worker must know of it.
type classicMessage struct {
	id, command            uuid.UUID
	destination, kind, key string
	version, attempt       int32
	payload                string
	headers, ref           *string
	created                time.Time
	expires, attempted     *time.Time
	decoded                benchbox.OrderPlaced
}

// scanClassic reads sqlClassicColumns.
func scanClassic(row pgx.CollectableRow) (m classicMessage, err error) {
	err = row.Scan(&m.id, &m.command, &m.destination, &m.kind, &m.version, &m.key, &m.payload, &m.headers, &m.created,
		&m.expires, &m.attempt, &m.attempted, &m.ref)
	if err != nil {
		return m, err
	}
	return m, m.decoded.UnmarshalJSON([]byte(m.payload))
}

func (c *classic) deliver(ctx context.Context, worker string) (int, error) {
	token := rand.Int64()
	rows, err := c.db.Query(ctx, sqlClassicClaim, token, worker, batchSize)
	if err != nil {
		return 0, err
	}
	messages, err := pgx.CollectRows(rows, scanClassic)
	if err != nil || len(messages) == 0 {
		return 0, err
	}
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.id.String()
	}
	done, err := c.db.Exec(ctx, sqlClassicComplete, ids, token)
	if err != nil {
		return 0, err
	}
	if int(done.RowsAffected()) != len(ids) {
		return 0, errors.New("a claim was lost")
	}
	return len(ids), nil
}

func (c *classic) left(ctx context.Context) (int, error) {
	return count(ctx, c.db, "SELECT count(*) FROM classic_outbox WHERE status <> 'completed'")
}

func (c *classic) reset(ctx context.Context) error {
	_, err := c.db.Exec(ctx, "TRUNCATE classic_outbox")
	return err
}
