package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

const pageSize = 100

// A reader answers questions about messages.
type reader interface {
	// page gives the ids of the messages of a status behind one, a page at the
	// most and the oldest first. No status means all.
	page(ctx context.Context, status benchbox.Status, after benchbox.OutboxID) ([]string, error)
	// totals gives the number of messages of each destination and status, in
	// order and as text, without those that are completed.
	totals(ctx context.Context) ([]string, error)
}

func (g *generated) page(ctx context.Context, status benchbox.Status, after benchbox.OutboxID) ([]string, error) {
	var filter benchbox.Filter
	if status != "" {
		filter.Statuses = []benchbox.Status{status}
	}
	records, err := g.store.List(ctx, filter, after, pageSize)
	ids := make([]string, len(records))
	for i, r := range records {
		ids[i] = r.ID.String()
	}
	return ids, err
}

func (g *generated) totals(ctx context.Context) ([]string, error) {
	stats, err := g.store.Stats(ctx)
	var totals []string
	for _, d := range stats.Destinations {
		for _, t := range []struct {
			status benchbox.Status
			n      int64
		}{
			{benchbox.StatusFailed, d.Failed}, {benchbox.StatusOutcomeUnknown, d.OutcomeUnknown}, {benchbox.StatusPending, d.Pending},
		} {
			if t.n > 0 {
				totals = append(totals, total(string(d.Destination), string(t.status), t.n))
			}
		}
	}
	return totals, err
}

// view is the view of the generated package, asked by hand.
type view struct{ db *pgxpool.Pool }

func (v view) page(ctx context.Context, status benchbox.Status, after benchbox.OutboxID) ([]string, error) {
	condition, args := "", []any{after.String()}
	if status != "" {
		condition, args = "AND q.status = $2::text", append(args, string(status))
	}
	rows, err := v.db.Query(ctx, fmt.Sprintf(
		"SELECT %s FROM outbox q WHERE q.outbox_id > $1::uuid %s ORDER BY q.outbox_id LIMIT %d", sqlClassicColumns, condition, pageSize), args...)
	if err != nil {
		return nil, err
	}
	messages, err := pgx.CollectRows(rows, scanClassic)
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.id.String()
	}
	return ids, err
}

func (v view) totals(ctx context.Context) ([]string, error) {
	rows, err := v.db.Query(ctx, "SELECT destination, status, count(*), min(created_at) FROM outbox WHERE status <> 'completed' GROUP BY destination, status")
	if err != nil {
		return nil, err
	}
	totals, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var destination, status string
		var n int64
		var oldest time.Time
		err := row.Scan(&destination, &status, &n, &oldest)
		return total(destination, status, n), err
	})
	slices.Sort(totals)
	return totals, err
}

func total(destination, status string, n int64) string {
	return fmt.Sprintf("%s %s %d", destination, status, n)
}

// viewEvery is how often the store is asked for each time that the view is. A
// question costs the view seconds.
const viewEvery = 50

// measureList asks the store and the view for pages of 100 and for counts,
// where most messages are completed.
func measureList(ctx context.Context, database databaseMaker, s scale) ([]table, error) {
	db, err := database(ctx)
	if err != nil {
		return nil, err
	}
	if err := benchbox.Migrate(ctx, db); err != nil {
		return nil, err
	}
	store := newGenerated(db)
	rare := s.history / 100
	for _, h := range []history{
		{n: s.history - 3*rare, destination: benchbox.DestinationLedger, state: completed},
		{n: rare, destination: benchbox.DestinationLedger, state: failed},
		{n: rare, destination: benchbox.DestinationLedger, state: due},
		{n: rare, destination: benchbox.DestinationPayments, state: unknown},
	} {
		h.age = 30 * 24 * time.Hour
		if err := store.insert(ctx, h); err != nil {
			return nil, err
		}
	}
	if err := settleDown(ctx, db); err != nil {
		return nil, err
	}
	questions := []question{{"counts without the completed", func(ctx context.Context, r reader, _ benchbox.OutboxID) ([]string, error) {
		return r.totals(ctx)
	}}}
	for _, status := range []benchbox.Status{
		"", benchbox.StatusCompleted, benchbox.StatusPending, benchbox.StatusFailed, benchbox.StatusOutcomeUnknown,
	} {
		title := strings.TrimSpace(fmt.Sprintf("page of %d %s", pageSize, status))
		questions = append(questions, question{title, func(ctx context.Context, r reader, after benchbox.OutboxID) ([]string, error) {
			return r.page(ctx, status, after)
		}})
	}
	var tables []table
	for _, q := range questions {
		rows, err := q.measure(ctx, store, view{db}, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", q.title, err)
		}
		title := fmt.Sprintf("%s, among %d messages, of which %d are pending, %[3]d failed, %[3]d unknown", q.title, s.history, rare)
		tables = append(tables, table{title: title, unit: "ms", rows: rows})
	}
	return tables, nil
}

// A question is put to readers, who give the same answer. One that is for pages
// goes on behind a message; the zero id is the beginning.
type question struct {
	title string
	ask   func(ctx context.Context, r reader, after benchbox.OutboxID) ([]string, error)
}

func (q question) measure(ctx context.Context, store, view reader, s scale) ([]row, error) {
	rows := []row{{name: "generated, p50"}, {name: "generated, p99"}, {name: "the view, p50"}}
	rows[2].against = &rows[0]
	var after benchbox.OutboxID
	for k := range s.rounds + 1 {
		calls := s.calls
		if k == 0 {
			calls = warmUp
		}
		var ofStore, ofView []float64
		for n := range calls {
			answer, took, err := q.timed(ctx, store, after)
			if err != nil {
				return nil, err
			}
			ofStore = append(ofStore, took)
			if n%viewEvery == 0 {
				same, took, err := q.timed(ctx, view, after)
				if err != nil {
					return nil, err
				}
				if !slices.Equal(answer, same) {
					return nil, fmt.Errorf("the store says %v, the view %v", answer, same)
				}
				ofView = append(ofView, took)
			}
			after = benchbox.OutboxID{}
			if len(answer) == pageSize { // the next page
				if after, err = benchbox.ParseOutboxID(answer[pageSize-1]); err != nil {
					return nil, err
				}
			}
		}
		if k == 0 {
			continue
		}
		for i, v := range []float64{median(ofStore), quantile(ofStore, 0.99), median(ofView)} {
			rows[i].values = append(rows[i].values, v)
		}
	}
	return rows, nil
}

// timed asks once, and gives the milliseconds that it took.
func (q question) timed(ctx context.Context, r reader, after benchbox.OutboxID) ([]string, float64, error) {
	start := time.Now()
	answer, err := q.ask(ctx, r, after)
	return answer, time.Since(start).Seconds() * 1000, err
}
