package doctest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	outbox "github.com/outboxgen/outboxgen/templates/outbox"
)

// oldRow is a row of an outbox that was written by hand.
type oldRow struct {
	ID             int64
	Topic, Payload string
}

var (
	// oldRows is the namespace of the commands of rows that are moved.
	oldRows = uuid.MustParse("b5f6a4c2-7f0e-4d53-9c39-6f4f1f0f2a11")
	tenant  = uuid.MustParse("0191d3c0-0000-7000-8000-0000000000aa")
)

// moveSome moves rows, at most limit of them, and returns how many.
func moveSome(ctx context.Context, db *pgx.Conn, box *outbox.Store, limit int) (moved int, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			UPDATE old_status SET status = 'moved' WHERE id IN (
				SELECT id FROM old_status WHERE status IN ('new', 'error') ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
			RETURNING id, topic, payload::text`, limit)
		if err != nil {
			return err
		}
		old, err := pgx.CollectRows(rows, pgx.RowToStructByPos[oldRow])
		if err != nil {
			return err
		}
		slices.SortFunc(old, func(a, b oldRow) int { return cmp.Compare(a.ID, b.ID) })
		for _, row := range old {
			message, err := messageOf(row)
			if err != nil {
				return err
			}
			// The same id for the same row: if it was moved before, by whatever
			// mishap, it is a duplicate.
			id := uuid.NewSHA1(oldRows, []byte(strconv.FormatInt(row.ID, 10)))
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
			return outbox.Message{}, fmt.Errorf("old row %d: %w", row.ID, err)
		}
		return outbox.ToMetrics(p).WithKey("old/" + strconv.FormatInt(row.ID, 10)), nil
	default:
		return outbox.Message{}, fmt.Errorf("old row %d has the topic %q", row.ID, row.Topic)
	}
}

// TestMoving moves the rows of the table that the document shows.
func TestMoving(t *testing.T) {
	ctx := t.Context()
	db := openDatabase(t)
	runSQL(t, db, quotedSQL(t, "docs/migrating.md", "status"))
	runSQL(t, db, `INSERT INTO old_status (topic, payload, status)
		SELECT 'usage', json_build_object('meter', 'door', 'value', n), (ARRAY['new', 'error', 'sent', 'sending'])[1 + n % 4] FROM generate_series(1, 20) AS n`)
	box := outbox.New(db, outbox.Options{})
	moves := func(want ...int) {
		t.Helper()
		for _, n := range want {
			if moved, err := moveSome(ctx, db, box, 4); moved != n || err != nil {
				t.Errorf("%d rows were moved, want %d: %v", moved, n, err)
			}
		}
	}
	moves(4, 4, 2, 0)
	// Whatever the mishap: they are known again.
	runSQL(t, db, "UPDATE old_status SET status = 'new' WHERE status = 'moved'")
	moves(4, 4, 2, 0)
	entries, err := claim(ctx, box)
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, e := range entries {
		got = append(got, e.Payload.(outbox.UsageSample).Value)
	}
	if want := []int64{1, 4, 5, 8, 9, 12, 13, 16, 17, 20}; !slices.Equal(got, want) {
		t.Errorf("the values that were moved are %v, want %v", got, want)
	}
	// One that cannot be moved keeps its portion where it is.
	runSQL(t, db, `INSERT INTO old_status (topic, payload) VALUES ('usage', '{"meter": "door", "value": 1}'), ('other', '{}')`)
	if moved, err := moveSome(ctx, db, box, 4); err == nil {
		t.Errorf("%d rows were moved, with one that cannot be", moved)
	}
	var left int
	if err := db.QueryRow(ctx, "SELECT count(*) FROM old_status WHERE status = 'new'").Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != 2 {
		t.Errorf("%d rows are left, want both", left)
	}
}
