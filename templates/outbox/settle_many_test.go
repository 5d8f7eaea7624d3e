package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// wantSettled settles and compares the answers, which errors.Is knows.
func wantSettled(t testing.TB, s *Store, settlements []Settlement, want []error) {
	t.Helper()
	answers, err := s.Settle(t.Context(), settlements...)
	must(t, err)
	if len(answers) != len(want) {
		t.Fatalf("there are %d answers for %d settlements", len(answers), len(want))
	}
	for i, answer := range answers {
		if !errors.Is(answer, want[i]) {
			t.Errorf("%s was answered %v, want %v", settlements[i], answer, want[i])
		}
	}
}

func wantStatus(t testing.TB, s *Store, id OutboxID, want Status) {
	t.Helper()
	if got := getRecord(t, s, id).Status; got != want {
		t.Errorf("the row %s is %s, want %s", id, got, want)
	}
}

// everySort is a settlement of every sort, and what becomes of its row.
var everySort = []struct {
	settle  func(Claim) Settlement
	unknown bool // the row is held for a question
	want    Status
	again   error // what the same settlement is answered afterwards
}{
	{settle: func(c Claim) Settlement { return c.Completed("ref") }, want: StatusCompleted},
	{settle: func(c Claim) Settlement { return c.Failed("refused") }, want: StatusFailed},
	{settle: func(c Claim) Settlement { return c.Retry("busy", someDay) }, want: StatusPending},
	{settle: func(c Claim) Settlement { return c.Reschedule(someDay) }, want: StatusPending},
	{settle: func(c Claim) Settlement { return c.Postpone("down", someDay) }, want: StatusPending, again: ErrConflict},
	{settle: func(c Claim) Settlement { return c.OutcomeUnknown("ref", someDay) }, want: StatusOutcomeUnknown},
	{settle: Claim.GiveBack, want: StatusPending},
	{settle: func(c Claim) Settlement { return c.KeepUnknown(someDay) }, unknown: true, want: StatusOutcomeUnknown},
	{settle: func(c Claim) Settlement { return c.NeverArrived("lost") }, unknown: true, want: StatusPending},
	{settle: Claim.GiveBack, unknown: true, want: StatusOutcomeUnknown, again: ErrConflict},
	{settle: func(c Claim) Settlement { return c.Completed("") }, unknown: true, want: StatusCompleted},
}

// claimEverySort makes a claimed row for each of everySort and its settlement.
func claimEverySort(t *testing.T, pool *pgxpool.Pool) (ids []OutboxID, settlements []Settlement) {
	t.Helper()
	s := New(pool, Options{})
	removeRows(t, pool)
	for _, sort := range everySort {
		id := enqueueAll(t, pool, testMessage(DestinationPayments))[0]
		claim := claimAll(t, s, 1)[0].Claim
		if sort.unknown {
			must(t, s.MarkOutcomeUnknown(t.Context(), claim, "", longAgo))
			claim = askAbout(t, s, time.Time{}, map[Destination]int{DestinationPayments: 1})[0].Claim
		}
		ids = append(ids, id)
		settlements = append(settlements, sort.settle(claim))
	}
	return ids, settlements
}

func wantEverySort(t *testing.T, s *Store, ids []OutboxID) {
	t.Helper()
	for i, sort := range everySort {
		wantStatus(t, s, ids[i], sort.want)
		if r := getRecord(t, s, ids[i]); r.Worker != "" {
			t.Errorf("the row %s is held by %q", ids[i], r.Worker)
		}
	}
	wantSound(t, s)
}

func TestSettleManyInOneRoundTrip(t *testing.T) {
	pool := testPool(t)
	conn, count := countedConn(t, pool)
	s := New(conn, Options{})
	for _, prepared := range []bool{false, true} {
		ids, settlements := claimEverySort(t, pool)
		before := count.Load()
		wantSettled(t, s, settlements, make([]error, len(settlements)))
		if n := count.Load() - before; prepared && n != 1 {
			t.Errorf("Settle of %d rows took %d round trips, want 1", len(ids), n)
		}
		wantEverySort(t, s, ids)
	}
	if answers, err := s.Settle(t.Context()); len(answers) != 0 || err != nil {
		t.Errorf("Settle of nothing was answered %v, %v", answers, err)
	}
}

// TestSettleManyAnswersForEach has settlements that are refused between others.
func TestSettleManyAnswersForEach(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids, settlements := claimEverySort(t, pool)
	missing := Claim{ID: OutboxID(uuid.New()), Token: 1}
	badTime := time.Date(300000, 1, 1, 0, 0, 0, 0, time.UTC)
	id := enqueueAll(t, pool, testMessage(DestinationPayments))[0]
	stale := claimAll(t, s, 1)[0].Claim
	must(t, s.GiveBack(t.Context(), stale))
	current := claimAll(t, s, 1)[0].Claim
	var all []Settlement
	var want []error
	for i, settlement := range settlements {
		bad := []Settlement{missing.Completed(""), stale.Failed("stale"), current.Retry("", badTime), {settlement: settlement.settlement}}
		bad[3].claim.Token++
		all = append(all, bad[i%4], settlement)
		want = append(want, []error{ErrNotFound, ErrConflict, nil, ErrConflict}[i%4], nil)
	}
	answers, err := s.Settle(t.Context(), all...)
	must(t, err)
	for i, answer := range answers {
		if all[i].at.Equal(badTime) {
			if answer == nil || !strings.Contains(answer.Error(), "years 1 to 9999") || !strings.Contains(answer.Error(), "MarkRetry "+id.String()) {
				t.Errorf("a time that cannot be stored was answered %v", answer)
			}
			continue
		}
		if !errors.Is(answer, want[i]) {
			t.Errorf("%s was answered %v, want %v", all[i], answer, want[i])
		}
	}
	wantEverySort(t, s, ids)
	wantStatus(t, s, id, StatusDispatching)
}

// TestSettleTwiceInOneCall says two things of a row, which are done in order.
func TestSettleTwiceInOneCall(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	completed := func(c Claim) Settlement { return c.Completed("ref") }
	failed := func(c Claim) Settlement { return c.Failed("refused") }
	retry := func(c Claim) Settlement { return c.Retry("busy", someDay) }
	postpone := func(c Claim) Settlement { return c.Postpone("down", someDay) }
	unknown := func(c Claim) Settlement { return c.OutcomeUnknown("", longAgo) }
	never := func(c Claim) Settlement { return c.NeverArrived("lost") }
	for _, test := range []struct {
		name    string
		say     []func(Claim) Settlement
		answers []error
		want    Status
		attempt int
	}{
		{"completed twice", []func(Claim) Settlement{completed, completed}, []error{nil, nil}, StatusCompleted, 1},
		{"completed, then failed", []func(Claim) Settlement{completed, failed}, []error{nil, ErrConflict}, StatusCompleted, 1},
		{"failed, then completed", []func(Claim) Settlement{failed, completed}, []error{nil, ErrConflict}, StatusFailed, 1},
		{"failed twice", []func(Claim) Settlement{failed, failed}, []error{nil, nil}, StatusFailed, 1},
		{"retried, then completed", []func(Claim) Settlement{retry, completed}, []error{nil, nil}, StatusCompleted, 1},
		{"postponed twice", []func(Claim) Settlement{postpone, postpone}, []error{nil, ErrConflict}, StatusPending, 0},
		{"given back twice", []func(Claim) Settlement{Claim.GiveBack, Claim.GiveBack}, []error{nil, nil}, StatusPending, 0},
		{"unknown, then never arrived, then failed", []func(Claim) Settlement{unknown, never, failed}, []error{nil, nil, nil}, StatusFailed, 1},
		{"never arrived before it is unknown", []func(Claim) Settlement{never, unknown}, []error{ErrConflict, nil}, StatusOutcomeUnknown, 1},
		{"given back, then completed", []func(Claim) Settlement{Claim.GiveBack, completed}, []error{nil, nil}, StatusCompleted, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			removeRows(t, pool)
			entry := claimOne(t, pool, testMessage(DestinationPayments))
			var settlements []Settlement
			for _, say := range test.say {
				settlements = append(settlements, say(entry.Claim))
			}
			wantSettled(t, s, settlements, test.answers)
			if r := getRecord(t, s, entry.ID); r.Status != test.want || r.Attempt != test.attempt {
				t.Errorf("the row is %s at attempt %d, want %s at %d", r.Status, r.Attempt, test.want, test.attempt)
			}
			wantSound(t, s)
		})
	}
}

// TestSettleAThousand has a text that Postgres would not take and stale claims
// among a thousand.
func TestSettleAThousand(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	var messages []Message
	for range 1000 {
		messages = append(messages, testMessage(DestinationPayments))
	}
	ids := enqueueAll(t, pool, messages...)
	var settlements []Settlement
	want := make([]error, len(ids))
	statuses := make([]Status, len(ids))
	for i, e := range claimAll(t, s, len(ids)) {
		var settlement Settlement
		switch {
		case i == 500:
			settlement, statuses[i] = e.Claim.Failed("poison \x00\xff"+strings.Repeat("x", 1<<20)), StatusFailed
		case i%10 == 9:
			stale := e.Claim
			stale.Token++
			settlement, want[i], statuses[i] = stale.Completed(""), ErrConflict, StatusDispatching
		case i%10 == 8:
			settlement, statuses[i] = e.Claim.Retry(fmt.Sprint("reason ", i), someDay), StatusPending
		default:
			settlement, statuses[i] = e.Claim.Completed(fmt.Sprint("ref ", i)), StatusCompleted
		}
		settlements = append(settlements, settlement)
	}
	wantSettled(t, s, settlements, want)
	for i, id := range ids {
		r := getRecord(t, s, id)
		if r.Status != statuses[i] {
			t.Errorf("row %d is %s, want %s", i, r.Status, statuses[i])
		}
		if r.Status == StatusCompleted && r.RemoteRef != fmt.Sprint("ref ", i) || r.Status == StatusPending && r.LastFailure != fmt.Sprint("reason ", i) {
			t.Errorf("row %d has the reference %q and the failure %q of another", i, r.RemoteRef, r.LastFailure)
		}
	}
	wantSound(t, s)
}

// cutConn is a connection that can be lost on demand.
type cutConn struct {
	net.Conn
	request, answer *atomic.Bool // lose what is sent, or what is answered to it
	answered        []byte
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.request.Load() {
		c.Conn.Close()
		return len(p), nil // what is lost on its way was written
	}
	return c.Conn.Write(p)
}

// Read waits for the end of the answer before it is lost, so that what was asked
// for has been done.
func (c *cutConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.answer.Load() {
			return n, err
		}
		c.answered = append(c.answered, p[:n]...)
		if bytes.HasSuffix(c.answered, []byte{'Z', 0, 0, 0, 5, 'I'}) { // ReadyForQuery, in no transaction
			c.Conn.Close()
			return 0, net.ErrClosed
		}
	}
}

// TestSettleOverALostConnection settles rows of all sorts, loses the connection
// at some point, and settles them again.
func TestSettleOverALostConnection(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	// The statements before the one that fails a row have been carried out.
	execSQL(t, pool, `CREATE FUNCTION end_backend() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF new.failed AND current_setting('application_name') = 'cut' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
			RETURN new;
		END $$`)
	execSQL(t, pool, "CREATE TRIGGER cut BEFORE INSERT ON outbox_outcome FOR EACH ROW EXECUTE FUNCTION end_backend()")
	for _, test := range []struct {
		name            string
		request, answer bool
		application     string
		done            bool // before it is settled again
	}{
		{name: "before the server got it", request: true},
		{name: "in the midst of the statements", application: "cut"},
		{name: "before the answer came", answer: true, done: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			ids, settlements := claimEverySort(t, pool)
			var before []Record
			for _, id := range ids {
				before = append(before, getRecord(t, s, id))
			}
			var request, answer atomic.Bool
			config := pool.Config().ConnConfig.Copy()
			config.RuntimeParams["application_name"] = test.application
			config.DefaultQueryExecMode = pgx.QueryExecModeExec // a single answer to all
			dial := config.DialFunc
			config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				return &cutConn{Conn: conn, request: &request, answer: &answer}, err
			}
			conn, err := pgx.ConnectConfig(t.Context(), config)
			must(t, err)
			defer conn.Close(context.WithoutCancel(t.Context()))
			request.Store(test.request)
			answer.Store(test.answer)
			answers, err := New(conn, Options{}).Settle(t.Context(), settlements...)
			if err == nil || answers != nil {
				t.Fatalf("Settle was answered %v, %v", answers, err)
			}
			want := make([]error, len(ids))
			for i, sort := range everySort {
				if test.done {
					want[i] = sort.again
					wantStatus(t, s, ids[i], sort.want)
				} else {
					wantStatus(t, s, ids[i], before[i].Status)
				}
			}
			wantSettled(t, s, settlements, want)
			wantEverySort(t, s, ids)
		})
	}
}

// TestDeadlocksAreTriedAgain lets a claim be extended while a transaction settles
// the same rows in another order.
func TestDeadlocksAreTriedAgain(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationMailer))
	entries := claimAll(t, s, 2)
	slow := connWith(t, pool, "deadlock_timeout", "1min") // so that the other is the victim
	tx, err := slow.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	must(t, s.With(tx).MarkCompleted(t.Context(), entries[1].Claim, ""))
	victim := connWith(t, pool, "deadlock_timeout", "2s")
	extended := make(chan []Claim, 1)
	failed := make(chan error, 1)
	go func() {
		claims, err := New(victim, Options{}).ExtendClaims(t.Context(), time.Time{}, entries[0].Claim, entries[1].Claim)
		extended <- claims
		failed <- err
	}()
	waitUntilBlocked[error](t, pool, victim.PgConn().PID(), nil)
	must(t, s.With(tx).MarkRetry(t.Context(), entries[0].Claim, "busy", time.Time{}))
	must(t, tx.Commit(t.Context()))
	if claims, err := <-extended, <-failed; err != nil || len(claims) != 0 {
		t.Errorf("ExtendClaims returned %v, %v, want nothing that is still held", claims, err)
	}
}
