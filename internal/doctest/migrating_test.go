package doctest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	outbox "github.com/outboxgen/outboxgen/templates/outbox"
)

// oldRow is a row of an outbox that was written by hand.
type oldRow struct{ ID, Topic, Payload string }

var (
	// oldRows is the namespace of the commands of rows that are moved.
	oldRows = uuid.MustParse("b5f6a4c2-7f0e-4d53-9c39-6f4f1f0f2a11")
	tenant  = uuid.MustParse("0191d3c0-0000-7000-8000-0000000000aa")
)

// What takes the next rows out of each shape of table.
const (
	takeByStatus = `
		WITH taken AS (
			UPDATE old_status SET status = 'moved' WHERE id IN (
				SELECT id FROM old_status WHERE status IN ('new', 'error') ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
			RETURNING id, topic, payload)
		SELECT id::text, topic, payload::text FROM taken ORDER BY taken.id`
	takeBySentAt = `
		WITH taken AS (
			UPDATE old_sent_at SET sent_at = '-infinity' WHERE id IN (
				SELECT id FROM old_sent_at WHERE sent_at IS NULL ORDER BY created_at, id LIMIT $1 FOR UPDATE SKIP LOCKED)
			RETURNING id, topic, payload, created_at)
		SELECT id::text, topic, payload::text FROM taken ORDER BY created_at, taken.id`
	takeDeleted = `
		WITH taken AS (
			DELETE FROM old_deleted WHERE id IN (
				SELECT id FROM old_deleted ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
			RETURNING id, topic, payload)
		SELECT id::text, topic, payload::text FROM taken ORDER BY taken.id`
)

// moveSome moves rows, at most limit of them, and returns how many.
func moveSome(ctx context.Context, db *pgxpool.Pool, box *outbox.Store, take string, limit int) (moved int, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, take, limit)
		if err != nil {
			return err
		}
		old, err := pgx.CollectRows(rows, pgx.RowToStructByPos[oldRow])
		if err != nil {
			return err
		}
		for _, row := range old {
			message, err := messageOf(row)
			if err != nil {
				return err
			}
			// The same id for the same row: if it was moved before, by whatever
			// mishap, it is a duplicate.
			id := uuid.NewSHA1(oldRows, []byte(row.ID))
			if _, err := box.With(tx).Enqueue(ctx, outbox.NewCommand(outbox.CommandID(id), tenant), message); err != nil {
				return err
			}
		}
		moved = len(old)
		return nil
	})
	return moved, err
}

func messageOf(row oldRow) (outbox.Message, error) {
	switch row.Topic {
	case "usage":
		var p outbox.UsageSample
		if err := json.Unmarshal([]byte(row.Payload), &p); err != nil {
			return outbox.Message{}, fmt.Errorf("old row %s: %w", row.ID, err)
		}
		return outbox.ToMetrics(p).WithKey("old/" + row.ID), nil
	default:
		return outbox.Message{}, fmt.Errorf("old row %s has the topic %q", row.ID, row.Topic)
	}
}

// meter is a remote that notes what arrives.
type meter struct {
	mu      sync.Mutex
	arrived []int64
}

func (m *meter) UsageSample(_ context.Context, _ outbox.Delivery, p outbox.UsageSample) outbox.Outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arrived = append(m.arrived, p.Value)
	return outbox.Completed()
}

// TestMoving moves the rows of each table that the document shows, with mishaps on
// the way, and delivers them: what was open arrives once, and what was sent does not.
func TestMoving(t *testing.T) {
	for _, shape := range []struct {
		table, take string
		fill        string // 20 rows with the values from 1, and marks those that were sent
		again       string // has the rows that were moved open again
		bad         string // adds one that can be moved and one that cannot
		open        string // a condition
		want        []int64
	}{
		{
			"status", takeByStatus,
			`INSERT INTO old_status (topic, payload, status)
			SELECT 'usage', json_build_object('meter', 'door', 'value', n), (ARRAY['new', 'error', 'sent', 'sending'])[1 + n % 4]
			FROM generate_series(1, 20) AS n`,
			"UPDATE old_status SET status = 'new' WHERE status = 'moved'",
			`INSERT INTO old_status (topic, payload) VALUES ('usage', '{"meter": "door", "value": 21}'), ('other', '{}')`,
			"status IN ('new', 'error')",
			[]int64{1, 4, 5, 8, 9, 12, 13, 16, 17, 20},
		},
		{
			"sent_at", takeBySentAt,
			`INSERT INTO old_sent_at (id, topic, payload, created_at, sent_at)
			SELECT gen_random_uuid(), 'usage', json_build_object('meter', 'door', 'value', n), now() + n * interval '1 second', CASE WHEN n % 2 = 0 THEN now() END
			FROM generate_series(1, 20) AS n`,
			"UPDATE old_sent_at SET sent_at = NULL WHERE sent_at = '-infinity'",
			`INSERT INTO old_sent_at (id, topic, payload) VALUES (gen_random_uuid(), 'usage', '{"meter": "door", "value": 21}'), (gen_random_uuid(), 'other', '{}')`,
			"sent_at IS NULL",
			[]int64{1, 3, 5, 7, 9, 11, 13, 15, 17, 19},
		},
		{
			"deleted", takeDeleted,
			`INSERT INTO old_deleted (topic, payload)
			SELECT 'usage', json_build_object('meter', 'door', 'value', n) FROM generate_series(1, 20) AS n;
			DELETE FROM old_deleted WHERE id % 2 = 0;
			CREATE TABLE as_it_was AS TABLE old_deleted`,
			"INSERT INTO old_deleted TABLE as_it_was",
			`INSERT INTO old_deleted (topic, payload) VALUES ('usage', '{"meter": "door", "value": 21}'), ('other', '{}')`,
			"true",
			[]int64{1, 3, 5, 7, 9, 11, 13, 15, 17, 19},
		},
	} {
		t.Run(shape.table, func(t *testing.T) {
			ctx := t.Context()
			db := pgtest.Pool(t)
			exec := func(sql string) {
				t.Helper()
				if _, err := db.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Fatalf("%v in\n%s", err, sql)
				}
			}
			if err := outbox.Migrate(ctx, db); err != nil {
				t.Fatal(err)
			}
			exec(quotedSQL(t, "docs/migrating.md", shape.table))
			exec(shape.fill)
			box := outbox.New(db, outbox.Options{})
			moves := func(want ...int) {
				t.Helper()
				for _, n := range want {
					if moved, err := moveSome(ctx, db, box, shape.take, 4); moved != n || err != nil {
						t.Errorf("%d rows were moved, want %d: %v", moved, n, err)
					}
				}
			}
			moves(4, 4, 2, 0)
			// Whatever the mishap: they are known again.
			exec(shape.again)
			moves(4, 4, 2, 0)
			// One that cannot be moved keeps its portion where it is.
			exec(shape.bad)
			if moved, err := moveSome(ctx, db, box, shape.take, 4); err == nil {
				t.Errorf("%d rows were moved, with one that cannot be", moved)
			}
			var left int
			if err := db.QueryRow(ctx, "SELECT count(*) FROM old_"+shape.table+" WHERE "+shape.open).Scan(&left); err != nil {
				t.Fatal(err)
			}
			if left != 2 {
				t.Errorf("%d rows are left, want both", left)
			}

			rows, err := box.List(ctx, outbox.Filter{}, outbox.OutboxID{}, 100)
			if err != nil {
				t.Fatal(err)
			}
			var moved []int64 // in their order
			for _, row := range rows {
				moved = append(moved, row.Payload.(outbox.UsageSample).Value)
			}
			if !slices.Equal(moved, shape.want) {
				t.Errorf("the values that were moved are %v, want %v", moved, shape.want)
			}
			remote := &meter{}
			d, err := outbox.NewDispatcher(box, outbox.SomeHandlers(outbox.HandleMetrics(remote)), outbox.DispatcherOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for n := 1; n > 0; {
				if n, err = d.RunOnce(ctx); err != nil {
					t.Fatal(err)
				}
			}
			slices.Sort(remote.arrived)
			if !slices.Equal(remote.arrived, shape.want) {
				t.Errorf("the values that arrived are %v, want %v", remote.arrived, shape.want)
			}
		})
	}
}
