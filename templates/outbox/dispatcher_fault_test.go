package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ageClaims makes every claim older than any lease.
func ageClaims(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	execSQL(t, pool, "UPDATE outbox_queue SET claim_taken_at = claim_taken_at - interval '1 day' WHERE claim_taken_at IS NOT NULL")
}

// TestAStalledWorkerWakes has the claim of a worker run out while its handler
// runs, and another worker deliver the row. Nothing that the first one says then
// changes it, though it has the name of the other.
func TestAStalledWorkerWakes(t *testing.T) {
	for name, outcome := range map[string]Outcome{
		"completed":   Completed().WithRef("late"),
		"failed":      Failed(errors.New("late")),
		"retry":       Retry(errors.New("late")),
		"unreachable": Unreachable(errors.New("late")),
		"unknown":     Unknown(errors.New("late")).WithRef("late"),
	} {
		t.Run(name, func(t *testing.T) {
			pool := testPool(t)
			s := New(pool, Options{})
			id := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
			first, stalled := newRemote(), make(chan struct{})
			first.deliver = func(context.Context, Delivery) Outcome { <-stalled; return outcome }
			d := first.dispatcher(t, s, first.handlers(), DispatcherOptions{WorkerID: "w"})
			result := make(chan error, 1)
			go func() {
				_, err := d.RunOnce(context.WithoutCancel(t.Context())) // sweeps no more once it delivers
				result <- err
			}()
			first.waitCalls(t, 1)
			ageClaims(t, pool)
			second := newRemote()
			second.deliver = func(context.Context, Delivery) Outcome { return Completed().WithRef("in time") }
			if n, err := second.dispatcher(t, s, second.handlers(), DispatcherOptions{WorkerID: "w"}).RunOnce(t.Context()); n != 1 || err != nil {
				t.Fatalf("the second worker: %d, %v", n, err)
			}
			before := wantRow(t, s, id, StatusCompleted)
			close(stalled)
			must(t, <-result)
			if !slices.Equal(first.lost, []OutboxID{id}) {
				t.Errorf("the claims that were lost are %v", first.lost)
			}
			if after := getRecord(t, s, id); after.RemoteRef != "in time" || !after.CompletedAt.Equal(before.CompletedAt) || after.Claim != before.Claim || after.Attempt != 2 {
				t.Errorf("the row is %v with the reference %q, completed at %s", after, after.RemoteRef, after.CompletedAt)
			}
		})
	}
}

// TestClaimsAreKeptAlive has a handler run for longer than the lease, while rows
// wait behind it.
func TestClaimsAreKeptAlive(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r, g := newRemote(), newBarrier(t)
	r.deliver = g.deliver
	clock := newFakeClock()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{})
	d.clock = clock
	withPolicy(d, func(p *policy) { p.timeout = time.Hour })
	id := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
	stop := run(t, d)
	r.waitCalls(t, 1)
	for range 5 {
		execSQL(t, pool, "UPDATE outbox_queue SET claim_taken_at = claim_taken_at - interval '80 seconds'")
		clock.waitFor(t, keepStep)
		clock.advance(mailerPolicy.lease / 2)
		clock.waitFor(t, keepStep) // the claim was looked after
		released, err := s.ReleaseExpiredClaims(t.Context(), time.Time{})
		must(t, err)
		wantIDs(t, released)
	}
	g.letGo()
	r.waitSettled(t, id)
	must(t, stop())
	if record := wantRow(t, s, id, StatusCompleted); record.Attempt != 1 {
		t.Errorf("it took %d attempts", record.Attempt)
	}
}

// TestALostClaimEndsTheCall takes a claim away from a handler that heeds its
// context, and from rows that wait.
func TestALostClaimEndsTheCall(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	r := newRemote()
	r.deliver = func(ctx context.Context, _ Delivery) Outcome { <-ctx.Done(); return Completed() }
	clock := newFakeClock()
	d := r.dispatcher(t, s, SomeHandlers(HandleMailer(r)), DispatcherOptions{})
	d.clock = clock
	withPolicy(d, func(p *policy) { p.timeout, p.concurrency = time.Hour, 1 })
	swift(d)
	ids := enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationMailer))
	stop := run(t, d)
	r.waitCalls(t, 1)
	wantRowsHeld(t, pool, 2)
	for _, id := range ids {
		must(t, s.Reschedule(t.Context(), getRecord(t, s, id).Claim, someDay))
	}
	clock.waitFor(t, keepStep)
	clock.advance(mailerPolicy.lease / 3)
	r.wait(t, func() bool { return len(r.lost) == 2 && len(r.late) == 1 && len(r.settled) == 1 })
	must(t, stop())
	// Nobody has claimed the rows since, so a delivery is still believed.
	for _, id := range ids {
		want := StatusPending
		if id == r.calls[0].ID {
			want = StatusCompleted
		}
		wantRow(t, s, id, want)
	}
	if len(r.calls) != 1 {
		t.Errorf("%d rows were sent, want 1", len(r.calls))
	}
}

// TestAHandlerThatNeverReturns is judged without, and goes on counting.
func TestAHandlerThatNeverReturns(t *testing.T) {
	for destination, want := range map[Destination]Status{DestinationMailer: StatusPending, DestinationPayments: StatusOutcomeUnknown} {
		t.Run(string(destination), func(t *testing.T) {
			pool := testPool(t)
			s := New(pool, Options{})
			r, g := newRemote(), newBarrier(t)
			r.deliver = g.deliver
			clock := newFakeClock()
			d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{})
			d.clock = clock
			withPolicy(d, func(p *policy) { p.timeout, p.concurrency, p.retryInitial = time.Second, 1, time.Hour })
			ids := enqueueAll(t, pool, testMessage(destination), testMessage(destination))
			stop := run(t, d)
			r.waitCalls(t, 1)
			first := r.calls[0].ID
			clock.waitFor(t, keepStep)
			clock.advance(time.Second + graceTime)
			r.waitSettled(t, first)
			wantRow(t, s, first, want)
			// The next claim would have begun the other row.
			for range 3 {
				clock.waitFor(t, keepStep)
				clock.advance(d.options.Poll)
			}
			if n := len(r.calls); n != 1 {
				t.Errorf("%d calls, though the handler of one has not returned", n)
			}
			g.letGo()
			r.waitSettled(t, ids...)
			must(t, stop())
			if !slices.Equal(r.late, []string{first.String()}) {
				t.Errorf("the late answers are %v", r.late)
			}
			// Nobody has claimed the row since, so the delivery is still believed.
			wantRow(t, s, first, StatusCompleted)
		})
	}
}

// flakyPool is a pool whose connections are lost on demand.
func flakyPool(t testing.TB, pool *pgxpool.Pool) (flaky *pgxpool.Pool, request, answer *atomic.Bool) {
	t.Helper()
	request, answer = &atomic.Bool{}, &atomic.Bool{}
	flaky = poolWith(t, pool, func(c *pgx.ConnConfig) {
		c.DefaultQueryExecMode = pgx.QueryExecModeExec // a single answer to all
		dial := c.DialFunc
		c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &cutConn{Conn: conn, request: request, answer: answer}, err
		}
	})
	return flaky, request, answer
}

// TestTheSettleIsLost loses the connection when the remote has accepted: the
// outcome is written later, and nothing is sent twice.
func TestTheSettleIsLost(t *testing.T) {
	for _, destination := range []Destination{DestinationMailer, DestinationPayments, DestinationMetrics} {
		for _, which := range []string{"request", "answer"} {
			t.Run(string(destination)+", the "+which, func(t *testing.T) {
				pool := testPool(t)
				flaky, request, answer := flakyPool(t, pool)
				cut := map[string]*atomic.Bool{"request": request, "answer": answer}[which]
				r := newRemote()
				r.deliver = func(context.Context, Delivery) Outcome {
					cut.Store(true)
					return Completed().WithRef("ref")
				}
				d := r.dispatcher(t, New(flaky, Options{}), r.handlers(), DispatcherOptions{NoListen: true})
				failed := make(chan error, 100)
				d.observer.Failed = func(operation string, err error) {
					if operation == "settle" {
						failed <- err
					}
				}
				id := enqueueAll(t, pool, testMessage(destination))[0]
				stop := run(t, d)
				<-failed
				cut.Store(false)
				r.waitSettled(t, id)
				must(t, stop())
				s := New(pool, Options{})
				if destination == DestinationMetrics { // which keeps no completed rows
					wantRows(t, pool, 0)
				} else if record := wantRow(t, s, id, StatusCompleted); record.RemoteRef != "ref" || record.Attempt != 1 {
					t.Errorf("it is known as %q after %d attempts", record.RemoteRef, record.Attempt)
				}
				if n := r.callsOf(id); n != 1 || len(r.lost) != 0 {
					t.Errorf("it was sent %d times, %d claims were lost", n, len(r.lost))
				}
			})
		}
	}
}

// TestAWorkerDiesAfterSending has a worker vanish when the remote has accepted
// and nothing is written. Where a message may arrive twice the same bytes come
// again under the same key; where it must not, the remote is asked.
func TestAWorkerDiesAfterSending(t *testing.T) {
	for _, destination := range []Destination{DestinationMailer, DestinationPayments} {
		t.Run(string(destination), func(t *testing.T) {
			pool := testPool(t)
			s := New(pool, Options{})
			flaky, request, _ := flakyPool(t, pool)
			dead := newRemote()
			dead.deliver = func(context.Context, Delivery) Outcome {
				request.Store(true)
				return Completed().WithRef("ref")
			}
			first := dead.dispatcher(t, New(flaky, Options{}), dead.handlers(), DispatcherOptions{WorkerID: "w", NoListen: true})
			first.observer.Failed = func(operation string, _ error) {
				if operation == "settle" {
					first.Abort()
				}
			}
			id := enqueueAll(t, pool, testMessage(destination))[0]
			var stopped *StopError
			if err := first.Run(t.Context()); !errors.As(err, &stopped) || !slices.Equal(stopped.Unsettled, []OutboxID{id}) {
				t.Fatalf("Run returned %v, want a StopError of the row", err)
			}
			ageClaims(t, pool)
			// A worker of the same name comes back.
			r := newRemote()
			r.answer = func(_ context.Context, d Delivery) Answer { return Arrived("found " + d.IdempotencyKey) }
			second := r.dispatcher(t, s, r.handlers(), DispatcherOptions{WorkerID: "w"})
			if _, err := second.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			if destination == DestinationMailer {
				wantRow(t, s, id, StatusCompleted)
				before, again := dead.calls[0], r.calls[0]
				if string(again.Raw) != string(before.Raw) || again.IdempotencyKey != before.IdempotencyKey || again.Attempt != 2 {
					t.Errorf("attempt %d sent %s under %q, before it was %s under %q", again.Attempt, again.Raw, again.IdempotencyKey, before.Raw, before.IdempotencyKey)
				}
				return
			}
			record := wantRow(t, s, id, StatusOutcomeUnknown)
			if len(r.asked) != 0 || !record.NextAttemptAt.After(record.UnknownSince.Add(paymentsPolicy.firstQuestion-time.Second)) {
				t.Errorf("asked %d times, the next question is at %s", len(r.asked), record.NextAttemptAt)
			}
			execSQL(t, pool, "UPDATE outbox_queue SET next_attempt_at = clock_timestamp()")
			if _, err := second.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			if record := wantRow(t, s, id, StatusCompleted); record.RemoteRef != "found "+record.IdempotencyKey || record.Attempt != 1 {
				t.Errorf("it is known as %q after %d attempts", record.RemoteRef, record.Attempt)
			}
			if len(r.calls) != 0 || len(dead.calls) != 1 {
				t.Errorf("it was sent %d times", len(r.calls)+len(dead.calls))
			}
		})
	}
}

// cutAt is a connection that loses the answer to the first statement with a certain
// text that is sent on any of its like.
type cutAt struct {
	cutConn
	text string
	done *atomic.Bool
}

func (c *cutAt) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.text)) && c.done.CompareAndSwap(false, true) {
		c.answer.Store(true)
	}
	return c.cutConn.Write(p)
}

// TestTheClaimIsLost loses the answer to a claim: its rows come back uncharged, and
// those of the other lanes go on. The claim is tried again at once, not at the next
// poll.
func TestTheClaimIsLost(t *testing.T) {
	for _, test := range []struct {
		of          string
		text        string
		destination Destination
	}{
		{"rows that no order binds", "later.outbox_id", DestinationMailer},
		{"ordered rows", "firsts AS", DestinationStock},
		{"questions", "d.give_up", DestinationPayments},
	} {
		t.Run(test.of, func(t *testing.T) {
			pool := testPool(t)
			var done atomic.Bool
			flaky := poolWith(t, pool, func(c *pgx.ConnConfig) {
				c.DefaultQueryExecMode = pgx.QueryExecModeExec // a single answer to all
				dial := c.DialFunc
				c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := dial(ctx, network, addr)
					return &cutAt{cutConn{Conn: conn, request: &atomic.Bool{}, answer: &atomic.Bool{}}, test.text, &done}, err
				}
			})
			ids := append(parkAll(t, pool, testMessage(DestinationPayments)),
				enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationStock))...)
			r := newRemote()
			r.answer = func(context.Context, Delivery) Answer { return Arrived("") }
			d := r.dispatcher(t, New(flaky, Options{}), r.handlers(), DispatcherOptions{NoListen: true, Poll: deaf})
			var held atomic.Bool
			d.observer.Failed = func(operation string, _ error) {
				if operation == "claim" {
					held.Store(queryOne[bool](t, pool, "SELECT claim_taken_at IS NOT NULL FROM outbox_queue WHERE destination = $1", test.destination))
				}
			}
			stop := run(t, d)
			r.waitSettled(t, ids...)
			must(t, stop())
			for _, id := range ids {
				if record := wantRow(t, New(pool, Options{}), id, StatusCompleted); record.Attempt != 1 {
					t.Errorf("%s took %d attempts", record.Destination, record.Attempt)
				}
			}
			if !held.Load() || len(r.calls) != 2 || len(r.asked) != 1 {
				t.Errorf("the row was held when the claim had failed: %t; sent %d times, asked %d times", held.Load(), len(r.calls), len(r.asked))
			}
		})
	}
}

// failingClaim is a backend whose first claim fails.
type failingClaim struct {
	backend
	failed *atomic.Bool
}

func (f failingClaim) claimDue(ctx context.Context, c claimCall) ([]*claimedRow, error) {
	if f.failed.CompareAndSwap(false, true) {
		return nil, errors.New("no connection")
	}
	return f.backend.claimDue(ctx, c)
}

// TestAClaimThatFailsIsTriedAgain at once, though the next poll is a day away.
func TestAClaimThatFailsIsTriedAgain(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	id := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
	s.backend = failingClaim{s.backend, &atomic.Bool{}}
	r := newRemote()
	stop := run(t, r.dispatcher(t, s, r.handlers(), DispatcherOptions{NoListen: true, Poll: deaf}))
	r.waitSettled(t, id)
	must(t, stop())
}

// failingRecalls is a backend whose recalls fail for a while.
type failingRecalls struct {
	backend
	failing *atomic.Bool
	tried   *atomic.Int64
}

func (f failingRecalls) recall(ctx context.Context, tokens []int64) ([]OutboxID, error) {
	f.tried.Add(1)
	if f.failing.Load() {
		return nil, errors.New("no time for it")
	}
	return f.backend.(recaller).recall(ctx, tokens)
}

// lostClaim claims rows of a destination as by a statement whose answer was lost.
func lostClaim(t *testing.T, s *Store, destination Destination) *claimError {
	t.Helper()
	call, err := ClaimRequest{WorkerID: "w", Limits: map[Destination]int{destination: 10}}.call()
	must(t, err)
	rows, err := s.backend.claimDue(t.Context(), call)
	must(t, err)
	if len(rows) != 1 {
		t.Fatalf("claimed %d rows, want 1", len(rows))
	}
	return &claimError{rows[0].Claim.Token, errors.New("cut off")}
}

// TestARecallThatFails keeps no row from being claimed, and is tried again until it
// succeeds. Several claims are recalled together.
func TestARecallThatFails(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := enqueueAll(t, pool, testMessage(DestinationPayments), testMessage(DestinationLedger))
	lost := errors.Join(lostClaim(t, s, DestinationPayments), lostClaim(t, s, DestinationLedger))
	failing := failingRecalls{s.backend, &atomic.Bool{}, &atomic.Int64{}}
	failing.failing.Store(true)
	s.backend = failing
	r := newRemote()
	d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{NoListen: true, Poll: deaf})
	d.observer.Failed = func(operation string, err error) {
		if operation != "recall" {
			t.Errorf("%s: %v", operation, err)
		}
	}
	d.doubt(lost)
	id := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
	stop := run(t, d)
	r.waitSettled(t, id)
	if failing.tried.Load() == 0 {
		t.Error("no recall was tried")
	}
	wantRowsHeld(t, pool, 2)
	failing.failing.Store(false)
	r.waitSettled(t, ids...)
	must(t, stop())
	for _, id := range ids {
		if record := wantRow(t, New(pool, Options{}), id, StatusCompleted); record.Attempt != 1 {
			t.Errorf("%s took %d attempts", record.Destination, record.Attempt)
		}
	}
}

// TestARecallIsGivenUp when the lease of what may have been claimed has run out.
func TestARecallIsGivenUp(t *testing.T) {
	s := New(testPool(t), Options{})
	failing := failingRecalls{s.backend, &atomic.Bool{}, &atomic.Int64{}}
	failing.failing.Store(true)
	s.backend = failing
	r := newRemote()
	d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{})
	clock := newFakeClock()
	d.clock = clock
	var lease time.Duration
	for _, p := range policies {
		lease = max(lease, p.lease)
	}
	d.doubt(&claimError{1, errors.New("cut off")})
	for _, test := range []struct {
		after time.Duration
		want  int64 // recalls that were tried
	}{{0, 1}, {0, 1}, {lease - 1, 2}, {1, 2}} {
		clock.advance(test.after)
		d.recall(t.Context(), clock.now())
		if n := failing.tried.Load(); n != test.want {
			t.Errorf("%d recalls were tried, want %d", n, test.want)
		}
	}
	if len(d.doubtful) != 0 {
		t.Errorf("%d claims are still to be recalled", len(d.doubtful))
	}
}

// TestALaneThatFailsKeepsNoOther loses the answer to the claim of ordered rows that
// goes first.
func TestALaneThatFailsKeepsNoOther(t *testing.T) {
	pool := testPool(t)
	var done atomic.Bool
	flaky := poolWith(t, pool, func(c *pgx.ConnConfig) {
		c.DefaultQueryExecMode = pgx.QueryExecModeExec // a single answer to all
		dial := c.DialFunc
		c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &cutAt{cutConn{Conn: conn, request: &atomic.Bool{}, answer: &atomic.Bool{}}, "firsts AS", &done}, err
		}
	})
	ids := enqueueAll(t, pool, change("a", 1), testMessage(DestinationMailer))
	backend := newPostgres(flaky, &orderKeys{}, newNotifier())
	backend.keys.saw(string(DestinationStock), true, false)
	rows, err := backend.claimDue(t.Context(), claimCallFor(t, 10))
	var lost *claimError
	if !errors.As(err, &lost) {
		t.Errorf("the error is %v, want that of the ordered rows", err)
	}
	wantIDs(t, entryIDs(decoded(rows)), ids[1])
}

// endingBackend is a backend that ends a context as it is called.
type endingBackend struct {
	backend
	sweeps, asks func()
}

func (e endingBackend) releaseExpired(ctx context.Context, destinations []Destination, limit int, at time.Time) ([]OutboxID, error) {
	e.sweeps()
	return e.backend.releaseExpired(context.WithoutCancel(ctx), destinations, limit, at)
}

func (e endingBackend) claimUnknown(ctx context.Context, c claimCall) ([]*claimedRow, error) {
	e.asks()
	return e.backend.claimUnknown(ctx, c)
}

// TestRunOnceClaimsNothingWhenItsContextHasEnded ends it at each place.
func TestRunOnceClaimsNothingWhenItsContextHasEnded(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	id := enqueueAll(t, pool, testMessage(DestinationPayments))[0]
	stay := func() {}
	for _, test := range []struct {
		name   string
		ending func(cancel func()) endingBackend
		want   error
	}{
		{"before", func(cancel func()) endingBackend {
			cancel()
			return endingBackend{s.backend, func() { t.Error("it swept") }, stay}
		}, context.Canceled},
		{"while it sweeps", func(cancel func()) endingBackend { return endingBackend{s.backend, cancel, stay} }, context.Canceled},
		{"while it asks", func(cancel func()) endingBackend { return endingBackend{s.backend, stay, cancel} }, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := newRemote()
			d := r.dispatcher(t, &Store{backend: test.ending(cancel)}, r.handlers(), DispatcherOptions{})
			if n, err := d.RunOnce(ctx); n != 0 || !errors.Is(err, test.want) {
				t.Errorf("RunOnce: %d, %v, want %v", n, err, test.want)
			}
			if record := wantRow(t, s, id, StatusPending); record.Attempt != 0 || record.Claim.Token != 0 {
				t.Errorf("the row was claimed: %v", record)
			}
		})
	}
}

// TestQuestions has the remote asked about unknown outcomes.
func TestQuestions(t *testing.T) {
	for _, test := range []struct {
		name    string
		answer  func(context.Context, Delivery) Answer
		want    Status
		failure string
		asked   bool // is to be asked again
	}{
		{"arrived", func(context.Context, Delivery) Answer { return Arrived("ref") }, StatusCompleted, "", false},
		{"never arrived", func(context.Context, Delivery) Answer { return NeverArrived() }, StatusPending, "the destination has not received it", false},
		{"refused", func(context.Context, Delivery) Answer { return Refused(errors.New("no")) }, StatusFailed, "no", false},
		{"still unknown", func(context.Context, Delivery) Answer { return StillUnknown(errors.New("busy")) }, StatusOutcomeUnknown, "busy", true},
		{"a panic", func(context.Context, Delivery) Answer { panic("secret") }, StatusOutcomeUnknown, "the handler has panicked with a string", true},
		{"a timeout", func(ctx context.Context, _ Delivery) Answer { <-ctx.Done(); return Answer{} }, StatusOutcomeUnknown, "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := testPool(t)
			s := New(pool, Options{})
			id := parkAll(t, pool, testMessage(DestinationPayments))[0]
			r := newRemote()
			r.answer = test.answer
			r.deliver = func(context.Context, Delivery) Outcome { t.Error("it was sent"); return Completed() }
			d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{})
			withPolicy(d, func(p *policy) {
				p.concurrency = 1
				if test.name == "a timeout" {
					p.timeout = time.Millisecond
				}
			})
			if n, err := d.RunOnce(t.Context()); n != 1 || err != nil {
				t.Fatalf("RunOnce: %d, %v", n, err)
			}
			record := wantRow(t, s, id, test.want)
			if record.LastFailure != test.failure || record.Attempt != 1 {
				t.Errorf("the last failure is %q, the attempts are %d", record.LastFailure, record.Attempt)
			}
			now := queryOne[time.Time](t, pool, "SELECT clock_timestamp()")
			if test.asked && !record.NextAttemptAt.After(now.Add(paymentsPolicy.askEvery-time.Minute)) {
				t.Errorf("the next question is at %s", record.NextAttemptAt)
			}
			if len(r.asked) != 1 {
				t.Errorf("it was asked about %d times", len(r.asked))
			}
		})
	}
}

// TestDispatcherOfAnotherClock has a database whose clock is ten minutes off that of
// the dispatcher: what it sends are delays, so a retry is due by the database's.
func TestDispatcherOfAnotherClock(t *testing.T) {
	for _, shift := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		t.Run(shift.String(), func(t *testing.T) {
			pool := shiftedPool(t, fmt.Sprintf("%d min", int(shift.Minutes())))
			s := New(pool, Options{})
			r := newRemote()
			r.deliver = func(_ context.Context, d Delivery) Outcome {
				switch {
				case d.Attempt > 1:
					return Completed()
				case d.Destination == DestinationMailer:
					return RetryAfter(time.Hour, errors.New("busy"))
				}
				return Unknown(errors.New("no answer"))
			}
			r.answer = func(context.Context, Delivery) Answer { return NeverArrived() }
			d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{})
			ids := enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationPayments))
			for range 2 { // the second finds nothing that is due
				if _, err := d.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for i, delay := range []time.Duration{time.Hour, paymentsPolicy.firstQuestion} {
				var left time.Duration
				must(t, pool.QueryRow(t.Context(), "SELECT next_attempt_at - clock_timestamp() FROM outbox_queue WHERE outbox_id = $1", ids[i].String()).Scan(&left))
				if left <= delay/2 || left > delay {
					t.Errorf("%s is due in %s by the database's clock, want nearly %s", ids[i], left, delay)
				}
			}
			execSQL(t, pool, "UPDATE outbox_queue SET next_attempt_at = clock_timestamp()")
			for range 2 { // the question, and then the message again
				if _, err := d.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for _, id := range ids {
				if record := wantRow(t, s, id, StatusCompleted); record.Attempt != 2 {
					t.Errorf("%s took %d attempts", id, record.Attempt)
				}
			}
		})
	}
}

// TestASweepRacesACompletion has rows whose leases are over when their outcomes are
// written: each is completed, by the first worker or by one that sends it again,
// and is never left behind.
func TestASweepRacesACompletion(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	var messages []Message
	for range 40 {
		messages = append(messages, testMessage(DestinationMailer))
	}
	ids := enqueueAll(t, pool, messages...)
	r := newRemote()
	r.deliver = func(context.Context, Delivery) Outcome {
		if _, err := s.ReleaseExpiredClaims(t.Context(), time.Now().Add(time.Hour)); err != nil {
			t.Error(err)
		}
		return Completed()
	}
	d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{})
	for n := 1; n > 0; {
		var err error
		if n, err = d.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		wantRow(t, s, id, StatusCompleted)
	}
	wantSound(t, s)
}
