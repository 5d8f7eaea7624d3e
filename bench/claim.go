package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

// warmUp is the number of calls that are not measured, after which the server
// has planned the statement for good.
const warmUp = 10

var allDestinations = []benchbox.Destination{
	benchbox.DestinationLedger, benchbox.DestinationMailer, benchbox.DestinationPayments, benchbox.DestinationWarehouse,
}

// A claimShape is which rows a claim of 100 takes.
type claimShape struct {
	title  string
	limits map[benchbox.Destination]int
	mixed  bool // every second row was scheduled, and has come due
}

func claimShapes() []claimShape {
	one := map[benchbox.Destination]int{benchbox.DestinationLedger: batchSize}
	four := make(map[benchbox.Destination]int)
	for _, d := range allDestinations {
		four[d] = batchSize / len(allDestinations)
	}
	return []claimShape{
		{title: "one destination", limits: one},
		{title: "one destination, half of the rows had been scheduled", limits: one, mixed: true},
		{title: "four destinations, 25 rows of each", limits: four},
	}
}

// A claimSide is a store with its own history.
type claimSide struct {
	name string
	*generated
	lately map[benchbox.OutboxID]bool // rows that come due in a mixed claim
}

// measureClaim claims 100 rows beside nothing and beside a large history of
// each sort. What was claimed is put back outside the measured time, so that
// every claim meets the same rows.
func measureClaim(ctx context.Context, database databaseMaker, s scale) ([]table, error) {
	var sides []*claimSide
	for _, h := range []struct {
		name string
		history
	}{
		{name: "empty history"},
		{fmt.Sprintf("%d completed", s.history), history{n: s.history, state: completed}},
		{fmt.Sprintf("%d scheduled later", s.history), history{n: s.history, state: scheduled}},
		{fmt.Sprintf("%d due", s.history), history{n: s.history, state: due}},
	} {
		db, err := database(ctx)
		if err != nil {
			return nil, err
		}
		side, err := newClaimSide(ctx, db, h.history)
		if err != nil {
			return nil, err
		}
		side.name = h.name
		sides = append(sides, side)
	}
	var tables []table
	for _, shape := range claimShapes() {
		t, err := measureShape(ctx, sides, shape, s)
		if err != nil {
			return nil, err
		}
		tables = append(tables, t)
	}
	return tables, nil
}

func newClaimSide(ctx context.Context, db *pgxpool.Pool, h history) (*claimSide, error) {
	if err := benchbox.Migrate(ctx, db); err != nil {
		return nil, err
	}
	side := &claimSide{generated: newGenerated(db), lately: make(map[benchbox.OutboxID]bool)}
	h.destination, h.age = benchbox.DestinationLedger, 30*24*time.Hour
	if err := side.insert(ctx, h); err != nil {
		return nil, err
	}
	for _, d := range allDestinations {
		if err := side.insert(ctx, history{n: 10 * batchSize, destination: d, state: due, age: time.Hour}); err != nil {
			return nil, err
		}
	}
	return side, settleDown(ctx, db)
}

func measureShape(ctx context.Context, sides []*claimSide, shape claimShape, s scale) (table, error) {
	t := table{title: "claim of 100, " + shape.title, unit: "ms"}
	p50, p99 := make([]row, len(sides)), make([]row, len(sides))
	for i, side := range sides {
		p50[i].name, p99[i].name = side.name+", p50", side.name+", p99"
		if i > 0 {
			p50[i].against = &p50[0]
			p99[i].against, p99[i].target = &p99[0], atMost(1.3)
		}
		if shape.mixed {
			if err := side.scheduleHalf(ctx); err != nil {
				return t, err
			}
		}
		for range warmUp {
			if _, err := side.measure(ctx, shape); err != nil {
				return t, err
			}
		}
	}
	for range s.rounds {
		times := make([][]float64, len(sides))
		for range s.calls {
			for i, side := range sides {
				took, err := side.measure(ctx, shape)
				if err != nil {
					return t, err
				}
				times[i] = append(times[i], took.Seconds()*1000)
			}
		}
		for i := range sides {
			p50[i].values = append(p50[i].values, median(times[i]))
			p99[i].values = append(p99[i].values, quantile(times[i], 0.99))
		}
	}
	if shape.mixed {
		for _, side := range sides {
			if err := side.comeDue(ctx); err != nil {
				return t, err
			}
		}
	}
	t.rows = append(p50, p99...)
	return t, nil
}

// measure takes the time of one claim, and puts the rows back.
func (c *claimSide) measure(ctx context.Context, shape claimShape) (time.Duration, error) {
	start := time.Now()
	entries, err := c.claim(ctx, "bench", shape.limits)
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	if len(entries) != batchSize {
		return 0, fmt.Errorf("a claim gave %d rows, not %d", len(entries), batchSize)
	}
	if err := c.store.GiveBack(ctx, claimsOf(entries)...); err != nil {
		return 0, err
	}
	if shape.mixed {
		return took, c.schedule(ctx, entries)
	}
	return took, nil
}

// scheduleHalf makes every second one of the oldest rows one that has waited
// for its time, which has come.
func (c *claimSide) scheduleHalf(ctx context.Context) error {
	entries, err := c.claim(ctx, "bench", map[benchbox.Destination]int{benchbox.DestinationLedger: 4 * batchSize})
	if err != nil {
		return err
	}
	for i, e := range entries {
		if i%2 == 0 {
			c.lately[e.ID] = true
		}
	}
	if err := c.store.GiveBack(ctx, claimsOf(entries)...); err != nil {
		return err
	}
	return c.schedule(ctx, entries)
}

// schedule makes those rows wait again that do in a mixed claim. The store has
// no call for it: a time that has come makes a row due at once.
func (c *claimSide) schedule(ctx context.Context, entries []benchbox.Entry) error {
	var ids []string
	for _, e := range entries {
		if c.lately[e.ID] {
			ids = append(ids, e.ID.String())
		}
	}
	_, err := c.db.Exec(ctx, `
UPDATE outbox_queue q SET next_attempt_at = m.created_at FROM outbox_message m
WHERE q.outbox_id = ANY ($1::uuid[]) AND m.outbox_id = q.outbox_id`, ids)
	return err
}

// comeDue ends the waiting of the rows of a mixed claim.
func (c *claimSide) comeDue(ctx context.Context) error {
	clear(c.lately)
	_, err := c.db.Exec(ctx, "UPDATE outbox_queue SET next_attempt_at = NULL WHERE next_attempt_at <= now()")
	return err
}
