package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// remote stands for every destination: it records the calls and answers as it is
// told, by default that the message has arrived.
type remote struct {
	deliver func(ctx context.Context, d Delivery) Outcome
	answer  func(ctx context.Context, d Delivery) Answer

	mu       sync.Mutex
	calls    []Delivery // in the order of their beginnings
	asked    []Delivery
	settled  map[OutboxID][]Settlement // given back ones apart
	returned []OutboxID
	lost     []OutboxID
	late     []string      // ids of rows whose handler has returned too late
	changed  chan struct{} // closed, and made anew, with each change
}

func newRemote() *remote {
	return &remote{settled: make(map[OutboxID][]Settlement), changed: make(chan struct{})}
}

// note changes what is recorded.
func (r *remote) note(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	close(r.changed)
	r.changed = make(chan struct{})
}

// wait waits until what is recorded is so.
func (r *remote) wait(t testing.TB, so func() bool) {
	t.Helper()
	for {
		r.mu.Lock()
		done, changed := so(), r.changed
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatal("the test ended first")
		}
	}
}

func (r *remote) waitSettled(t testing.TB, ids ...OutboxID) {
	t.Helper()
	r.wait(t, func() bool {
		return !slices.ContainsFunc(ids, func(id OutboxID) bool { return len(r.settled[id]) == 0 })
	})
}

func (r *remote) waitCalls(t testing.TB, n int) {
	t.Helper()
	r.wait(t, func() bool { return len(r.calls) >= n })
}

// callsOf is how often a message was sent.
func (r *remote) callsOf(id OutboxID) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.calls {
		if d.ID == id {
			n++
		}
	}
	return n
}

func (r *remote) call(ctx context.Context, d Delivery) Outcome {
	r.note(func() { r.calls = append(r.calls, d) })
	if r.deliver == nil {
		return Completed()
	}
	return r.deliver(ctx, d)
}

func (r *remote) ask(ctx context.Context, d Delivery) Answer {
	r.note(func() { r.asked = append(r.asked, d) })
	if r.answer == nil {
		return StillUnknown(nil)
	}
	return r.answer(ctx, d)
}

func (r *remote) OrderConfirmation(ctx context.Context, d Delivery, _ OrderConfirmation) Outcome {
	return r.call(ctx, d)
}
func (r *remote) PaymentCapture(ctx context.Context, d Delivery, _ PaymentCapture) Outcome {
	return r.call(ctx, d)
}
func (r *remote) UsageSample(ctx context.Context, d Delivery, _ UsageSample) Outcome {
	return r.call(ctx, d)
}
func (r *remote) StockChange(ctx context.Context, d Delivery, _ StockChange) Outcome {
	return r.call(ctx, d)
}
func (r *remote) BankTransfer(ctx context.Context, d Delivery, _ BankTransfer) Outcome {
	return r.call(ctx, d)
}
func (r *remote) ReconcileBankTransfer(ctx context.Context, d Delivery, _ BankTransfer) Answer {
	return r.ask(ctx, d)
}
func (r *remote) ReconcilePaymentCapture(ctx context.Context, d Delivery, _ PaymentCapture) Answer {
	return r.ask(ctx, d)
}

func (r *remote) handlers() Handlers {
	return AllHandlers(HandleBank(r), HandleLedger(r), HandleMailer(r), HandleMetrics(r), HandlePayments(r), HandleStock(r))
}

// dispatcher is one that delivers to the remote, which hears of what it settles.
func (r *remote) dispatcher(t testing.TB, s *Store, handlers Handlers, options DispatcherOptions) *Dispatcher {
	t.Helper()
	options.Logger = slog.New(&lateHandler{slog.DiscardHandler, r})
	options.Observer.Settled = func(about DeliveryInfo, s Settlement) {
		r.note(func() {
			if s.op == opGiveBack {
				r.returned = append(r.returned, about.ID)
				return
			}
			r.settled[about.ID] = append(r.settled[about.ID], s)
		})
	}
	options.Observer.Lost = func(about DeliveryInfo) {
		r.note(func() { r.lost = append(r.lost, about.ID) })
	}
	d, err := NewDispatcher(s, handlers, options)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// lateHandler tells a remote of the answers that a dispatcher has left.
type lateHandler struct {
	slog.Handler
	r *remote
}

func (h *lateHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *lateHandler) Handle(_ context.Context, record slog.Record) error {
	if strings.Contains(record.Message, "its answer is left") {
		record.Attrs(func(a slog.Attr) bool {
			h.r.note(func() { h.r.late = append(h.r.late, a.Value.String()) })
			return false
		})
	}
	return nil
}

// run runs a dispatcher until the test ends or stop is called, which returns what
// Run has returned.
func run(t testing.TB, d *Dispatcher) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	result := make(chan error, 1)
	go func() { result <- d.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() { stop() })
	return stop
}

// withPolicy changes what a dispatcher knows of its destinations.
func withPolicy(d *Dispatcher, change func(p *policy)) {
	for _, c := range d.consumers {
		change(&c.policy)
		c.step = c.policy.concurrency
	}
}

func wantRow(t testing.TB, s *Store, id OutboxID, want Status) Record {
	t.Helper()
	r := getRecord(t, s, id)
	if r.Status != want {
		t.Errorf("the row is %s, want %s (last failure: %q)", r, want, r.LastFailure)
	}
	return r
}

func TestDispatcherDeliversToEveryDestination(t *testing.T) {
	pool := testPool(t)
	r := newRemote()
	s := New(pool, Options{})
	stop := run(t, r.dispatcher(t, s, r.handlers(), DispatcherOptions{}))
	var messages []Message
	for _, p := range policies {
		for range 30 {
			messages = append(messages, testMessage(p.destination))
		}
	}
	ids := enqueueAll(t, pool, messages...)
	r.waitSettled(t, ids...)
	if err := stop(); err != nil {
		t.Error(err)
	}
	for _, id := range ids {
		if n := r.callsOf(id); n != 1 {
			t.Errorf("%s was sent %d times", id, n)
		}
	}
	wantRowsHeld(t, pool, 0)
	wantSound(t, s)
}

// wantRowsHeld checks how many rows a worker holds.
func wantRowsHeld(t testing.TB, pool *pgxpool.Pool, want int) {
	t.Helper()
	if n := queryOne[int](t, pool, "SELECT count(*) FROM outbox_queue WHERE claim_taken_at IS NOT NULL"); n != want {
		t.Errorf("%d rows are held, want %d", n, want)
	}
}

func TestNewDispatcherRefuses(t *testing.T) {
	pool := testPool(t)
	r := newRemote()
	mailer := SomeHandlers(HandleMailer(r))
	conn := openConn(t, pool)
	tx := openTx(t, pool)
	s := New(pool, Options{})
	for _, test := range []struct {
		name     string
		store    *Store
		handlers Handlers
		want     string
	}{
		{"no store", nil, mailer, "there is no store"},
		{"no handlers", s, Handlers{}, "there are no handlers"},
		{"a handler that is nil", s, SomeHandlers(HandleMailer(nil)), "the handler of mailer is nil"},
		{"a route that is nil", s, SomeHandlers(nil), "a route is nil"},
		{"two handlers of one destination", s, SomeHandlers(HandleMailer(r), HandleStock(r), HandleMailer(r)), "mailer has two handlers"},
		{"a single connection", New(conn, Options{}), mailer, "single connection"},
		{"a connection of a pool", New(acquire(t, pool), Options{}), mailer, "single connection"},
		{"a transaction", New(tx, Options{}), mailer, "single connection"},
		{"the store within a transaction", s.With(tx).Store, mailer, "single connection"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewDispatcher(test.store, test.handlers, DispatcherOptions{})
			wantErrorText(t, err, test.want)
		})
	}
}

// TestOutcomes has a handler return all that it may, and sees what becomes of the
// row at the first attempt and at the last.
func TestOutcomes(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	failure := errors.New("the reason")
	type end struct {
		status  Status
		failure string
		attempt int
	}
	twice := map[bool]end{true: {StatusPending, "the reason", 1}, false: {StatusPending, "the reason", 1}}
	for _, test := range []struct {
		name    string
		deliver func(ctx context.Context, d Delivery) Outcome
		want    map[bool]end // by whether the destination is idempotent
		last    map[bool]end // where the attempt is the last one; nil = the same
	}{
		{"completed", func(context.Context, Delivery) Outcome { return Completed().WithRef("ref") },
			map[bool]end{true: {StatusCompleted, "", 1}, false: {StatusCompleted, "", 1}}, nil},
		{"retry", func(context.Context, Delivery) Outcome { return Retry(failure) }, twice,
			map[bool]end{true: {StatusFailed, "gave up after 1 attempts: the reason", 1}, false: {StatusFailed, "gave up after 1 attempts: the reason", 1}}},
		{"retry after", func(context.Context, Delivery) Outcome { return RetryAfter(time.Hour, failure) }, twice,
			map[bool]end{true: {StatusFailed, "gave up after 1 attempts: the reason", 1}, false: {StatusFailed, "gave up after 1 attempts: the reason", 1}}},
		{"failed", func(context.Context, Delivery) Outcome { return Failed(failure) },
			map[bool]end{true: {StatusFailed, "the reason", 1}, false: {StatusFailed, "the reason", 1}}, nil},
		{"unreachable is not charged", func(context.Context, Delivery) Outcome { return Unreachable(failure) },
			map[bool]end{true: {StatusPending, "the reason", 0}, false: {StatusPending, "the reason", 0}}, nil},
		{"unknown", func(context.Context, Delivery) Outcome { return Unknown(failure).WithRef("ref") },
			map[bool]end{true: {StatusPending, "the reason", 1}, false: {StatusOutcomeUnknown, "", 1}},
			map[bool]end{true: {StatusFailed, "gave up after 1 attempts: the reason", 1}, false: {StatusOutcomeUnknown, "", 1}}},
		{"no outcome", func(context.Context, Delivery) Outcome { return Outcome{} },
			map[bool]end{true: {StatusPending, "the handler gave no reason", 1}, false: {StatusOutcomeUnknown, "", 1}}, nil},
		{"a panic", func(context.Context, Delivery) Outcome { panic("secret") },
			map[bool]end{true: {StatusPending, "the handler has panicked with a string", 1}, false: {StatusOutcomeUnknown, "", 1}}, nil},
		{"a panic of the runtime", func(_ context.Context, d Delivery) Outcome {
			return Completed().WithRef(strings.Repeat("x", 1/len(d.Headers)))
		},
			map[bool]end{true: {StatusPending, "the handler has panicked: runtime error: integer divide by zero", 1}, false: {StatusOutcomeUnknown, "", 1}}, nil},
		{"a goroutine that ends", func(context.Context, Delivery) Outcome { goexit(); return Completed() },
			map[bool]end{true: {StatusPending, "the handler ended its goroutine", 1}, false: {StatusOutcomeUnknown, "", 1}}, nil},
		{"a run past the timeout", func(ctx context.Context, _ Delivery) Outcome { <-ctx.Done(); return Outcome{err: failure} },
			map[bool]end{true: {StatusPending, "the reason", 1}, false: {StatusOutcomeUnknown, "", 1}}, nil},
	} {
		for _, destination := range []Destination{DestinationMailer, DestinationPayments} {
			for _, last := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, last attempt %t", test.name, destination, last), func(t *testing.T) {
					removeRows(t, pool)
					r := newRemote()
					r.deliver = test.deliver
					d := r.dispatcher(t, s, r.handlers(), DispatcherOptions{})
					withPolicy(d, func(p *policy) {
						p.retryInitial = time.Hour
						if test.name == "a run past the timeout" {
							p.timeout = time.Millisecond
						}
						if last {
							p.maxAttempts = 1
						}
					})
					id := enqueueAll(t, pool, testMessage(destination))[0]
					n, err := d.RunOnce(t.Context())
					if n != 1 || err != nil {
						t.Fatalf("RunOnce: %d, %v", n, err)
					}
					idempotent := destination == DestinationMailer
					want := test.want[idempotent]
					if last && test.last != nil {
						want = test.last[idempotent]
					} else if last && want.status == StatusPending && want.attempt > 0 {
						want = end{StatusFailed, "gave up after 1 attempts: " + want.failure, 1}
					}
					rec := getRecord(t, s, id)
					if got := (end{rec.Status, rec.LastFailure, rec.Attempt}); got != want {
						t.Errorf("the row is %+v, want %+v", got, want)
					}
					if rec.Status == StatusPending || rec.Status == StatusOutcomeUnknown {
						now := queryOne[time.Time](t, pool, "SELECT clock_timestamp()")
						if !rec.NextAttemptAt.After(now) {
							t.Errorf("it is due at %s already", rec.NextAttemptAt)
						}
					}
				})
			}
		}
	}
}

func goexit() { runtime.Goexit() }

func wantErrorText(t testing.TB, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, want one with %q", err, want)
	}
}
