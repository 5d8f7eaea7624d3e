package outbox

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestAClaimThatDeadlocksAtItsCommit has a claim of ordered rows lose a deadlock when
// its statements have given rows already: a trigger that is deferred to the commit
// wants a row of the other's, who wants a row of the claim. The other then has the
// rows for later, so that the claim, tried again, has nothing to give.
func TestAClaimThatDeadlocksAtItsCommit(t *testing.T) {
	pool := testPool(t)
	execSQL(t, pool, "CREATE TABLE business AS SELECT 0 AS n")
	execSQL(t, pool, "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE business SET n = n + 1; RETURN NULL; END $$")
	execSQL(t, pool, `CREATE FUNCTION await() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$`)
	id := enqueueAll(t, pool, testMessage(DestinationStock))[0]
	execSQL(t, pool, "CREATE CONSTRAINT TRIGGER touch AFTER UPDATE ON outbox_queue DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.claim_worker = 'w') EXECUTE FUNCTION touch()")
	execSQL(t, pool, "CREATE TRIGGER await AFTER UPDATE ON outbox_queue FOR EACH ROW WHEN (NEW.claim_worker = 'w') EXECUTE FUNCTION await()")

	// Who has waited for as long as its timeout looks for a deadlock, and loses it.
	claimer := poolWith(t, pool, func(c *pgx.ConnConfig) { c.RuntimeParams["deadlock_timeout"] = "10ms" })
	gate, other := openTx(t, pool), openTx(t, pool)
	execSQL(t, gate, "SELECT pg_advisory_xact_lock(1)")
	execSQL(t, other, "SET LOCAL deadlock_timeout = '1h'")
	execSQL(t, other, "UPDATE business SET n = 0")

	type answer struct {
		entries []Entry
		err     error
	}
	claimed := make(chan answer, 1)
	s := New(claimer, Options{})
	go func() {
		entries, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationStock: 1}})
		claimed <- answer{entries, err}
	}()
	waitUntilSomebodyWaits(t, pool, gate)
	postponed := make(chan error, 1)
	go func() {
		_, err := other.Exec(t.Context(), "UPDATE outbox_queue SET next_attempt_at = clock_timestamp() + interval '1 hour' WHERE outbox_id = $1", id.String())
		if err == nil {
			err = other.Commit(context.WithoutCancel(t.Context()))
		}
		postponed <- err
	}()
	waitUntilBlocked(t, pool, other.Conn().PgConn().PID(), postponed)
	must(t, gate.Commit(t.Context()))
	must(t, <-postponed)
	if got := <-claimed; got.err != nil || len(got.entries) != 0 {
		t.Errorf("claimed %v, %v, want nothing", got.entries, got.err)
	}
	if n := queryOne[int](t, pool, "SELECT n FROM business"); n != 0 {
		t.Errorf("%d claims were committed", n)
	}
	wantRow(t, New(pool, Options{}), id, StatusPending)
}

// waitUntilSomebodyWaits waits until a transaction holds somebody up.
func waitUntilSomebodyWaits(t *testing.T, db DB, holder pgx.Tx) {
	t.Helper()
	for queryOne[int](t, db, "SELECT count(*) FROM pg_stat_activity WHERE $1::integer = ANY (pg_blocking_pids(pid))", holder.Conn().PgConn().PID()) == 0 {
	}
}
