package outbox

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestSettlesKeepTheOrderOfAKey has the settles of a run fail twice, as when Postgres
// shuts down and starts up again, and the dispatcher die after it has written
// something. What is completed must be the first rows of the key.
func TestSettlesKeepTheOrderOfAKey(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	execSQL(t, pool, "CREATE TABLE away ()")
	execSQL(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF EXISTS (SELECT FROM away) THEN RAISE EXCEPTION 'starting up' USING ERRCODE = '57P03'; END IF; RETURN NULL; END $$`)
	execSQL(t, pool, "CREATE TRIGGER refuse BEFORE INSERT ON outbox_outcome FOR EACH STATEMENT EXECUTE FUNCTION refuse()")
	var messages []Message
	for n := range runRows {
		messages = append(messages, ToStock(StockChange{Shelf: "a", Change: int64(n)}))
	}
	ids := enqueueAll(t, pool, messages...)
	r, died := newRemote(), make(chan struct{}, runRows)
	d := r.dispatcher(t, s, SomeHandlers(HandleStock(r)), DispatcherOptions{NoListen: true, NoPurge: true})
	written := d.observer.Settled
	d.observer.Settled = func(about DeliveryInfo, settlement Settlement) {
		written(about, settlement)
		if about.ID == ids[0] {
			execSQL(t, pool, "INSERT INTO away DEFAULT VALUES")
			d.settler.waitFor(runRows - 1) // which are settled together
			return
		}
		died <- struct{}{}
		<-t.Context().Done() // as one that was killed
	}
	failures := 0
	d.observer.Failed = func(operation string, _ error) {
		if operation == "settle" {
			if failures++; failures == 2 {
				execSQL(t, pool, "DELETE FROM away")
			}
		}
	}
	r.deliver = func(_ context.Context, delivery Delivery) Outcome {
		if delivery.ID == ids[1] { // the first row is settled by itself
			r.waitSettled(t, ids[0])
		}
		return Completed()
	}
	go d.Run(t.Context())
	<-died
	var completed []bool
	for _, id := range ids {
		completed = append(completed, getRecord(t, s, id).Status == StatusCompleted)
	}
	if i := slices.Index(completed, false); i >= 0 && slices.Contains(completed[i:], true) {
		t.Errorf("the rows that are completed: %v", completed)
	}
}

// waitFor waits until n settlements wait to be written. It is for functions that the
// settler itself calls, which hears of no other meanwhile.
func (s *settler) waitFor(n int) {
	for {
		s.mu.Lock()
		waiting := len(s.waiting)
		s.mu.Unlock()
		if waiting >= n {
			return
		}
		<-s.wake
	}
}

// poison has the database refuse the outcome of every message whose id is in the
// table poison, as a constraint would.
func poison(t testing.TB, pool *pgxpool.Pool, id OutboxID) {
	t.Helper()
	execSQL(t, pool, "CREATE TABLE poison (outbox_id uuid)")
	execSQL(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.outbox_id IN (SELECT outbox_id FROM poison) THEN RAISE EXCEPTION 'refused' USING ERRCODE = 'check_violation'; END IF; RETURN NEW; END $$`)
	execSQL(t, pool, "CREATE TRIGGER refuse BEFORE INSERT ON outbox_outcome FOR EACH ROW EXECUTE FUNCTION refuse()")
	execSQL(t, pool, "INSERT INTO poison VALUES ($1)", id.String())
}

// TestASettlementThatIsRefused has the database refuse one outcome in the middle of a
// batch. All others are written, those that come later too; the one is said loudly,
// stays held, and is written once the database takes it.
func TestASettlementThatIsRefused(t *testing.T) {
	const rows = 60
	pool := testPool(t)
	s := New(pool, Options{})
	var messages []Message
	for range rows {
		messages = append(messages, testMessage(DestinationMailer))
	}
	ids := enqueueAll(t, pool, messages...)
	bad := ids[rows/2]
	poison(t, pool, bad)

	r := newRemote()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{NoListen: true, Poll: time.Millisecond})
	withPolicy(d, func(p *policy) { p.concurrency = rows })
	var log bytes.Buffer
	d.log = slog.New(slog.NewTextHandler(&log, nil))
	var failures []error
	d.observer.Failed = func(operation string, err error) {
		if operation == "settle" {
			r.note(func() { failures = append(failures, err) })
		}
	}
	written := d.observer.Settled
	d.observer.Settled = func(about DeliveryInfo, settlement Settlement) {
		written(about, settlement)
		if about.ID == ids[0] {
			d.settler.waitFor(rows - 1) // which are settled together
		}
	}
	r.deliver = func(_ context.Context, delivery Delivery) Outcome {
		if delivery.ID != ids[0] { // which is settled by itself
			r.waitSettled(t, ids[0])
		}
		return Completed().WithRef("ref")
	}
	stop := run(t, d)
	good := slices.DeleteFunc(slices.Clone(ids), func(id OutboxID) bool { return id == bad })
	r.waitSettled(t, good...)
	good = append(good, enqueueAll(t, pool, testMessage(DestinationMailer))...)
	r.waitSettled(t, good...)
	for _, id := range good {
		wantRow(t, s, id, StatusCompleted)
	}
	wantRow(t, s, bad, StatusDispatching)
	if len(r.settled[bad]) != 0 {
		t.Error("the refused one was told of as written")
	}
	r.mu.Lock()
	tried := len(failures)
	r.mu.Unlock()
	r.wait(t, func() bool { return len(failures) > tried }) // it is tried again
	execSQL(t, pool, "DELETE FROM poison")
	r.waitSettled(t, bad)
	must(t, stop())
	if record := wantRow(t, s, bad, StatusCompleted); record.RemoteRef != "ref" || record.Attempt != 1 {
		t.Errorf("it is known as %q after %d attempts", record.RemoteRef, record.Attempt)
	}
	for _, id := range append(good, bad) {
		if calls, settled := r.callsOf(id), len(r.settled[id]); calls != 1 || settled != 1 {
			t.Errorf("%s was sent %d times, and settled %d times", id, calls, settled)
		}
	}
	for _, err := range failures {
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "23514" {
			t.Errorf("observed was %v", err)
		}
	}
	if said := strings.Count(log.String(), `level=ERROR msg="outbox: a statement of the dispatcher failed and is tried again" operation=settle`); said != len(failures) {
		t.Errorf("%d failures were logged, %d observed:\n%s", said, len(failures), log.String())
	}
	wantSound(t, s)
}
