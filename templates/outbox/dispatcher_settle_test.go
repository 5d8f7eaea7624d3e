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

// lockRow locks a row as an open transaction of an operator's would, until it is let go.
func lockRow(t *testing.T, pool *pgxpool.Pool, id OutboxID) (letGo func()) {
	t.Helper()
	tx := openTx(t, pool)
	if _, err := tx.Exec(t.Context(), "SELECT FROM outbox_queue WHERE outbox_id = $1 FOR UPDATE", id.String()); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		must(t, tx.Rollback(t.Context()))
	}
}

// TestALockedRowHoldsUpNoSettlement has somebody lock a row whose outcome is to be
// written for longer than a lease. The others are written meanwhile, and this one
// when it is free.
func TestALockedRowHoldsUpNoSettlement(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	var messages []Message
	for range 20 {
		messages = append(messages, testMessage(DestinationMailer), testMessage(DestinationPayments))
	}
	ids := enqueueAll(t, pool, messages...)
	locked, others := ids[7], slices.Delete(slices.Clone(ids), 7, 8)
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{NoListen: true})
	withPolicy(d, func(p *policy) { p.concurrency = len(ids) })
	clock := newFakeClock()
	d.clock = clock
	tries := make(chan error, 1000)
	d.observer.Failed = func(operation string, err error) {
		if operation == "settle" {
			tries <- err
		}
	}
	stop := run(t, d)
	r.waitCalls(t, len(ids))
	letGo := lockRow(t, pool, locked)
	g.letGo()
	r.waitSettled(t, others...)
	for _, id := range others {
		wantRow(t, s, id, StatusCompleted)
	}
	clock.advance(2 * mailerPolicy.lease)
	for len(tries) > 0 {
		<-tries
	}
	clock.advance(longestPause)
	if err := <-tries; !isLocked(err) {
		t.Errorf("of the locked row it was said: %v", err)
	}
	letGo()
	clock.advance(longestPause)
	r.waitSettled(t, locked)
	must(t, stop())
	wantRow(t, s, locked, StatusCompleted)
	for _, id := range ids {
		if n := r.callsOf(id); n != 1 {
			t.Errorf("%s was sent %d times", id, n)
		}
	}
}

// TestALockedRowHoldsUpNoRenewal has somebody lock a row that is held. The claims of
// the others are renewed meanwhile, and this one's when it is free.
func TestALockedRowHoldsUpNoRenewal(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	var messages []Message
	for range 20 {
		messages = append(messages, testMessage(DestinationPayments))
	}
	ids := enqueueAll(t, pool, messages...)
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	d := r.dispatcher(t, s, SomeHandlers(HandlePayments(r)), DispatcherOptions{NoListen: true})
	withPolicy(d, func(p *policy) { p.concurrency, p.timeout = len(ids), time.Hour })
	clock := newFakeClock()
	d.clock = clock
	stop := run(t, d)
	r.waitCalls(t, len(ids))
	letGo := lockRow(t, pool, ids[0])
	const agedRows = "UPDATE outbox_queue SET claim_taken_at = claim_taken_at - interval '1 day' WHERE outbox_id <> $1"
	const agedNow = "SELECT count(*) FROM outbox_queue WHERE claim_taken_at < clock_timestamp() - interval '1 hour'"
	turn := func() {
		t.Helper()
		clock.waitFor(t, keepStep)
		clock.advance(paymentsPolicy.lease / 3)
		clock.waitFor(t, keepStep)
	}
	for range 2 { // the second time it is known which is locked
		execSQL(t, pool, agedRows, ids[0].String())
		turn()
		if n := queryOne[int](t, pool, agedNow); n != 0 {
			t.Errorf("%d claims of others were not renewed", n)
		}
	}
	letGo()
	execSQL(t, pool, "UPDATE outbox_queue SET claim_taken_at = claim_taken_at - interval '1 day'")
	clock.advance(keepStep)
	turn()
	if n := queryOne[int](t, pool, agedNow); n != 0 {
		t.Errorf("%d claims were not renewed when the row was free", n)
	}
	g.letGo()
	r.waitSettled(t, ids...)
	must(t, stop())
}

// TestARefusedSettlementIsGivenUp has the database refuse one outcome for longer than
// a lease. It is said loudly and given up, so that the sweep decides on the row.
func TestARefusedSettlementIsGivenUp(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	bad := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
	poison(t, pool, bad)
	r := newRemote()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{NoListen: true})
	clock := newFakeClock()
	d.clock = clock
	var log bytes.Buffer
	d.log = slog.New(slog.NewTextHandler(&log, nil))
	failed := make(chan struct{}, 1000)
	d.observer.Failed = func(string, error) { failed <- struct{}{} }
	stop := run(t, d)
	<-failed
	clock.advance(mailerPolicy.lease / 2)
	<-failed
	clock.advance(mailerPolicy.lease / 2)
	<-failed
	must(t, stop())
	wantRow(t, s, bad, StatusDispatching)
	if said := log.String(); strings.Count(said, "an outcome cannot be stored") != 1 || !strings.Contains(said, bad.String()) {
		t.Errorf("the log:\n%s", said)
	}
}

// TestStopWithARefusedSettlement stops while the database refuses one outcome: all
// others are written first.
func TestStopWithARefusedSettlement(t *testing.T) {
	const rows = 300
	pool := testPool(t)
	s := New(pool, Options{})
	var messages []Message
	for range rows {
		messages = append(messages, testMessage(DestinationMailer))
	}
	ids := enqueueAll(t, pool, messages...)
	bad := ids[rows/2]
	poison(t, pool, bad)
	r, g := newRemote(), newBarrier(t)
	r.deliver = func(ctx context.Context, delivery Delivery) Outcome {
		if delivery.ID == bad {
			return Completed()
		}
		return g.deliver(ctx, delivery)
	}
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{NoListen: true})
	withPolicy(d, func(p *policy) { p.concurrency = rows })
	clock := newFakeClock()
	d.clock = clock
	failed := make(chan struct{}, 1000)
	d.observer.Failed = func(string, error) { failed <- struct{}{} }
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	result := make(chan error, 1)
	go func() { result <- d.Run(ctx) }()
	r.waitCalls(t, rows)
	<-failed
	cancel()
	g.letGo()
	r.waitSettled(t, slices.Delete(slices.Clone(ids), rows/2, rows/2+1)...)
	clock.waitFor(t, writeLimit)
	clock.advance(writeLimit)
	var stopped *StopError
	if err := <-result; !errors.As(err, &stopped) || !slices.Equal(stopped.Unsettled, []OutboxID{bad}) {
		t.Errorf("Run returned %v, want a StopError of the refused row", err)
	}
	execSQL(t, pool, "DELETE FROM poison")
	must(t, run(t, d)())
	wantRow(t, s, bad, StatusCompleted) // by the next run
}

// TestALockedRowKeepsItsPlaceInItsKey has somebody lock the first of two rows of an
// order key that were delivered: the second does not complete before it.
func TestALockedRowKeepsItsPlaceInItsKey(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := enqueueChanges(t, pool, 1, 3)
	other := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{NoListen: true})
	clock := newFakeClock()
	d.clock = clock
	tried := make(chan struct{}, 1)
	d.observer.Failed = func(string, error) { notify(tried) }
	stop := run(t, d)
	r.waitCalls(t, 2)
	letGo := lockRow(t, pool, ids[0])
	g.letGo()
	r.waitCalls(t, 4)
	r.waitSettled(t, other)
	for range 4 {
		clock.advance(longestPause)
		<-tried
	}
	for _, id := range ids {
		wantRow(t, s, id, StatusDispatching)
	}
	letGo()
	clock.advance(longestPause)
	r.waitSettled(t, ids...)
	must(t, stop())
	ended := queryOne[[]string](t, pool, "SELECT array_agg(outbox_id::text ORDER BY completed_at) FROM outbox_outcome WHERE outbox_id <> $1", other.String())
	if want := []string{ids[0].String(), ids[1].String(), ids[2].String()}; !slices.Equal(ended, want) {
		t.Errorf("they have completed in the order %v, want %v", ended, want)
	}
}

// refusingBackend refuses every settlement.
type refusingBackend struct{ backend }

func (refusingBackend) settle(context.Context, []settlement) ([]OutboxID, error) {
	return nil, &pgconn.PgError{Code: "23514"}
}

// TestARowBehindARefusedOneHasALeaseOfItsOwn has its turn come when it has waited for
// longer than a lease: it is given up when it has been refused for as long itself.
func TestARowBehindARefusedOneHasALeaseOfItsOwn(t *testing.T) {
	c, _ := roomOf(t, SomeHandlers(HandleStock(newRemote())), func(*policy) {})
	c.d.store.backend = refusingBackend{c.d.store.backend}
	s, clock := c.d.settler, c.d.clock.(*fakeClock)
	behind := &task{row: &claimedRow{Entry: Entry{OrderKey: "key"}}, c: c}
	s.refused = []settling{{t: &task{row: behind.row, c: c}}}
	if rest := s.sift([]settling{{t: behind, s: Claim{}.Completed("")}}); len(rest) != 0 {
		t.Fatalf("%d rows were not put aside", len(rest))
	}
	s.refused = s.refused[1:] // the first is written
	clock.advance(2 * c.policy.lease)
	for _, want := range []int{1, 0} {
		s.retry(t.Context())
		if len(s.refused) != want {
			t.Fatalf("%d settlements are put aside, want %d", len(s.refused), want)
		}
		if want == 1 && !s.refused[0].again {
			t.Error("it may have been written before, and does not say so")
		}
		clock.advance(2 * c.policy.lease)
	}
}
