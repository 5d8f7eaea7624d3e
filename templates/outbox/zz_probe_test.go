package outbox

import (
	"testing"
	"time"
	"fmt"
	"github.com/jackc/pgx/v5"
)

func TestProbe(t *testing.T) {
	pool := poolWith(t, testPool(t), func(c *pgx.ConnConfig) {
		c.RuntimeParams["enable_hashjoin"] = "off"
		c.RuntimeParams["enable_mergejoin"] = "off"
	})
	for _, table := range []string{"outbox_message", "outbox_queue", "outbox_outcome"} {
		execSQL(t, pool, "ALTER TABLE "+table+" SET (autovacuum_enabled = off)")
		execSQL(t, pool, "ANALYZE "+table)
	}
	for range 10 {
		var messages []Message
		for i := range 1000 {
			m := testMessage(policies[i%len(policies)].destination)
			if i%8 >= 4 {
				m = m.At(someDay).ExpiresAt(laterDay)
			}
			messages = append(messages, m)
		}
		enqueueAll(t, pool, messages...)
	}
	s := New(pool, Options{})
	for n := range 600 {
		start := time.Now()
		entries, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: everyLimit(1), At: someDay})
		if err != nil { t.Fatal(err) }
		mid := time.Now()
		settlements := make([]settlement, len(entries))
		for i, e := range entries { settlements[i] = settlement{op: opFailed, claim: e.Claim} }
		s.settle(t.Context(), "Settle", settlements)
		if n < 12 || n%50 == 0 { fmt.Println(n, len(entries), mid.Sub(start), time.Since(mid)) }
	}
	names := []string{"ledger","mailer","metrics","payments"}
	call,_ := ClaimRequest{WorkerID:"w", Limits: everyLimit(1), At: someDay}.call()
	marks := []string{"00000000-0000-0000-0000-000000000000","00000000-0000-0000-0000-000000000000","00000000-0000-0000-0000-000000000000","00000000-0000-0000-0000-000000000000"}
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			execSQL(t, tx, "SET LOCAL plan_cache_mode = "+mode)
			rows, err := tx.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS) "+sqlClaimDue, names, call.limits, marks, call.kinds, call.token, "w", &someDay)
			if err != nil { t.Fatal(err) }
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil { t.Fatal(err) }
			for _, l := range lines { fmt.Println(l) }
			tx.Rollback(t.Context())
			return nil
		})
	}
}
