package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

var chaosTime = flag.Duration("chaos", time.Minute, "how long TestKilledDispatchers kills dispatchers")

// What a process finds in its environment that is a dispatcher and no test.
const (
	chaosDatabase = "OUTBOX_CHAOS_DATABASE"
	chaosRemote   = "OUTBOX_CHAOS_REMOTE"
)

func TestMain(m *testing.M) {
	if database := os.Getenv(chaosDatabase); database != "" {
		if err := dispatchUnderChaos(database, os.Getenv(chaosRemote)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	chaosWorkers = 3
	chaosShelves = 10
	// chaosWindow is how many messages of a destination the remote has not seen at
	// the most. It makes the load that which the dispatchers bear.
	chaosWindow = 100
	// chaosCall is how long a call takes, half of it before the remote has accepted.
	// It is part of the load: some calls are under way whenever a dispatcher dies.
	chaosCall = 10 * time.Millisecond
	// Of so many calls the remote refuses one, and accepts one without an answer.
	chaosRefused    = 23
	chaosUnanswered = 29
)

// dispatchUnderChaos is the program that is killed. It ends in good order at the
// end of its input, which is that of the test.
func dispatchUnderChaos(database, remote string) error {
	for _, p := range policies {
		p.timeout, p.lease = time.Second, 2*time.Second
		p.retryInitial, p.retryMax, p.maxAttempts = 20*time.Millisecond, 200*time.Millisecond, 0
		if p.firstQuestion != neverAsked {
			p.firstQuestion, p.askEvery = 100*time.Millisecond, 200*time.Millisecond
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	h := chaosHandler{remote, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	d, err := NewDispatcher(New(pool, Options{}), SomeHandlers(HandleMailer(h), HandlePayments(h), HandleStock(h)), DispatcherOptions{
		Poll: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// chaosHandler calls the remote over HTTP.
type chaosHandler struct {
	remote string
	client *http.Client
}

// chaosMessage is what the remote gets of a message, to deliver or to ask about.
type chaosMessage struct {
	ID          OutboxID
	Destination Destination
	Key         string
	Attempt     int
	Raw         []byte
}

func (m chaosMessage) name() string { return string(m.Destination) + "/" + m.Key }

func (h chaosHandler) post(ctx context.Context, path string, d Delivery) (status int, answer string, err error) {
	body, err := json.Marshal(chaosMessage{d.ID, d.Destination, d.IdempotencyKey, d.Attempt, d.Raw})
	if err != nil {
		return 0, "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.remote+path, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	response, err := h.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func (h chaosHandler) send(ctx context.Context, d Delivery) Outcome {
	switch status, ref, err := h.post(ctx, "/messages", d); {
	case err != nil:
		return Unknown(err)
	case status == http.StatusOK:
		return Completed().WithRef(ref)
	default:
		return Retry(errors.New(http.StatusText(status)))
	}
}

func (h chaosHandler) OrderConfirmation(ctx context.Context, d Delivery, _ OrderConfirmation) Outcome {
	return h.send(ctx, d)
}
func (h chaosHandler) PaymentCapture(ctx context.Context, d Delivery, _ PaymentCapture) Outcome {
	return h.send(ctx, d)
}
func (h chaosHandler) StockChange(ctx context.Context, d Delivery, _ StockChange) Outcome {
	return h.send(ctx, d)
}
func (h chaosHandler) ReconcilePaymentCapture(ctx context.Context, d Delivery, _ PaymentCapture) Answer {
	switch status, ref, err := h.post(ctx, "/questions", d); {
	case err != nil:
		return StillUnknown(err)
	case status == http.StatusOK:
		return Arrived(ref)
	default:
		return NeverArrived()
	}
}

// chaosSystem is the remote: it outlives whoever calls it, and records what it
// has accepted.
type chaosSystem struct {
	calls atomic.Int64
	slots map[Destination]chan struct{} // of the messages that it has not seen

	mu         sync.Mutex
	accepted   []chaosMessage // in the order in which they were
	received   map[string]*chaosReceipt
	heads      map[string]int64 // the highest change of each shelf
	asked      int
	unanswered int
	faults     []string
}

// chaosReceipt is what the remote knows of a message.
type chaosReceipt struct {
	raw    []byte
	times  int // that it was accepted
	denied int // attempts up to this one are not accepted any more: it has said that they never arrived
}

func newChaosSystem() *chaosSystem {
	s := &chaosSystem{slots: make(map[Destination]chan struct{}), received: make(map[string]*chaosReceipt), heads: make(map[string]int64)}
	for _, d := range []Destination{DestinationMailer, DestinationPayments, DestinationStock} {
		s.slots[d] = make(chan struct{}, chaosWindow)
	}
	return s
}

func (s *chaosSystem) fault(m chaosMessage, what string) {
	s.faults = append(s.faults, fmt.Sprintf("%s %s, attempt %d: %s", m.Destination, m.ID, m.Attempt, what))
}

func (s *chaosSystem) receipt(m chaosMessage) *chaosReceipt {
	r := s.received[m.name()]
	if r == nil {
		r = &chaosReceipt{raw: m.Raw}
		s.received[m.name()] = r
	}
	return r
}

func (s *chaosSystem) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m chaosMessage
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		return // whoever called has died meanwhile
	}
	if r.URL.Path == "/questions" {
		if !s.hasAccepted(m) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, m.ID)
		return
	}
	n := s.calls.Add(1)
	time.Sleep(chaosCall / 2)
	if n%chaosRefused == 0 || !s.accept(m, n%chaosUnanswered == 0) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	time.Sleep(chaosCall / 2)
	if n%chaosUnanswered == 0 {
		panic(http.ErrAbortHandler)
	}
	fmt.Fprint(w, m.ID)
}

// hasAccepted tells whether a message has arrived. Where it has not, it never will
// by an attempt that was made before: the answer would be worth nothing otherwise.
func (s *chaosSystem) hasAccepted(m chaosMessage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	r := s.receipt(m)
	if r.times == 0 {
		r.denied = max(r.denied, m.Attempt)
	}
	return r.times > 0
}

func (s *chaosSystem) accept(m chaosMessage, unanswered bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.receipt(m)
	if m.Attempt <= r.denied {
		return false
	}
	s.accepted = append(s.accepted, m)
	if r.times++; r.times == 1 {
		select {
		case <-s.slots[m.Destination]:
		default: // nobody has enqueued it, as will be found at the end
		}
	}
	if unanswered {
		s.unanswered++
	}
	if !bytes.Equal(m.Raw, r.raw) {
		s.fault(m, "its bytes are not those of an earlier attempt")
	}
	if m.Destination == DestinationPayments && r.times > 1 {
		s.fault(m, "it has arrived before")
	}
	if m.Destination == DestinationStock {
		change := changeOf(m)
		if head := s.heads[change.Shelf]; change.Change > head+1 {
			s.fault(m, fmt.Sprintf("change %d of the shelf has come after %d", change.Change, head))
		}
		s.heads[change.Shelf] = max(s.heads[change.Shelf], change.Change)
	}
	return true
}

func changeOf(m chaosMessage) (change StockChange) {
	if err := json.Unmarshal(m.Raw, &change); err != nil {
		panic(err) // the tests of the codec would fail as well
	}
	return change
}

// chaosProcess is a dispatcher.
type chaosProcess struct {
	cmd    *exec.Cmd
	input  io.Closer
	output bytes.Buffer
}

func startDispatcher(t testing.TB, database, remote string) *chaosProcess {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &chaosProcess{cmd: exec.Command(program)}
	p.cmd.Env = append(os.Environ(), chaosDatabase+"="+database, chaosRemote+"="+remote)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// kill ends the process as kill -9 does. It must have run until then.
func (p *chaosProcess) kill(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Errorf("a dispatcher has ended before it was killed: %v", err)
	}
	p.cmd.Wait()
	if p.cmd.ProcessState.Exited() {
		t.Errorf("a dispatcher has ended before it was killed: %v\n%s", p.cmd.ProcessState, &p.output)
	}
}

// stop ends the process in good order.
func (p *chaosProcess) stop(t testing.TB) {
	t.Helper()
	p.input.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("a dispatcher has ended with %v\n%s", err, &p.output)
	}
}

// chaosProducer enqueues until ctx ends, and returns the ids of the messages that
// it has enqueued. An enqueue whose commit was not answered is made again under
// the same command, until it is known to be there.
func chaosProducer(ctx context.Context, t testing.TB, pool *pgxpool.Pool, slots chan<- struct{}, message func(n int) Message) (ids []OutboxID) {
	s := New(pool, Options{})
	for n := 0; ; n++ {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return ids
		}
		m, command := message(n), NewCommand(CommandID(uuid.New()), testCommand.columns.TenantID)
		for {
			var placed []Enqueued
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
				placed, err = s.With(tx).Enqueue(t.Context(), command, m)
				return err
			})
			if err == nil {
				ids = append(ids, placed[0].ID)
				break
			}
			if fault := new(MessageError); errors.As(err, &fault) || t.Failed() {
				t.Error(err)
				return ids
			}
			time.Sleep(chaosCall) // the database is away for longer than that
		}
	}
}

// TestKilledDispatchers has three dispatchers deliver under load. Every second one
// of them is killed and started again, and halfway Postgres crashes.
func TestKilledDispatchers(t *testing.T) {
	server := pgtest.Cluster(t)
	database, err := server.CreateDatabase(t.Context())
	must(t, err)
	pool, err := pgxpool.New(t.Context(), database)
	must(t, err)
	t.Cleanup(pool.Close)
	must(t, Migrate(t.Context(), pool))
	system := newChaosSystem()
	remote := httptest.NewServer(system)
	t.Cleanup(remote.Close)

	workers := make([]*chaosProcess, chaosWorkers)
	t.Cleanup(func() {
		for _, w := range workers {
			if w != nil {
				w.cmd.Process.Kill() // no more than a repetition where the test has come to its end
			}
		}
	})
	for i := range workers {
		workers[i] = startDispatcher(t, database, remote.URL)
	}

	load, stopLoad := context.WithTimeout(t.Context(), *chaosTime)
	defer stopLoad()
	messages := map[Destination]func(n int) Message{
		DestinationMailer:   func(int) Message { return testMessage(DestinationMailer) },
		DestinationPayments: func(int) Message { return testMessage(DestinationPayments) },
		DestinationStock: func(n int) Message {
			return ToStock(StockChange{Shelf: fmt.Sprint(n % chaosShelves), Change: int64(n/chaosShelves + 1)})
		},
	}
	var mu sync.Mutex
	enqueued := make(map[OutboxID]Destination)
	var producers sync.WaitGroup
	for destination, message := range messages {
		producers.Add(1)
		go func() {
			defer producers.Done()
			ids := chaosProducer(load, t, pool, system.slots[destination], message)
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				enqueued[id] = destination
			}
		}()
	}
	producers.Add(1)
	go func() {
		defer producers.Done()
		select {
		case <-load.Done():
		case <-time.After(*chaosTime / 2):
			if err := errors.Join(server.Crash(), server.Restart(t.Context())); err != nil {
				t.Error(err)
			}
		}
	}()
	kills := 0
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for load.Err() == nil {
		select {
		case <-load.Done():
		case <-tick.C:
			i := kills % len(workers)
			workers[i].kill(t)
			workers[i] = startDispatcher(t, database, remote.URL)
			kills++
		}
	}
	producers.Wait()
	if t.Failed() {
		return
	}

	s := New(pool, Options{})
	waitUntilNothingIsAlive(t, pool)
	for _, w := range workers {
		w.stop(t)
	}
	wantSound(t, s)
	system.mu.Lock()
	defer system.mu.Unlock()
	for _, fault := range system.faults {
		t.Error(fault)
	}
	system.wantDelivered(t, pool, enqueued)
	t.Logf("%d messages, %d calls of which %d were not answered, %d accepted, %d questions, %d dispatchers killed",
		len(enqueued), system.calls.Load(), system.unanswered, len(system.accepted), system.asked, kills)
	if kills == 0 || system.unanswered == 0 || system.asked == 0 || len(system.accepted) == len(enqueued) {
		t.Error("nothing has gone wrong, so nothing was tried")
	}
}

// waitUntilNothingIsAlive waits until every row has ended. It gives up a little
// before the test binary would.
func waitUntilNothingIsAlive(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	ctx := t.Context()
	if deadline, ok := t.(*testing.T).Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-10*time.Second))
		defer cancel()
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var alive string
		err := pool.QueryRow(ctx, "SELECT coalesce(string_agg(format('%s %s, attempt %s', outbox_id, kind, attempt_count), E'\n'), '') FROM outbox_queue").Scan(&alive)
		if err == nil && alive == "" {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("these rows are alive still (%v):\n%s", err, alive)
		}
	}
}

// wantDelivered compares what was accepted with what was enqueued, and with the
// rows.
func (s *chaosSystem) wantDelivered(t testing.TB, pool *pgxpool.Pool, enqueued map[OutboxID]Destination) {
	t.Helper()
	type row struct {
		ID          uuid.UUID
		Destination string
		Key         string
		Status      string
		Attempts    int
		Failure     string
	}
	rows, err := pool.Query(t.Context(),
		"SELECT outbox_id, destination, idempotency_key, status, attempt_count, coalesce(last_failure, '') FROM outbox ORDER BY outbox_id")
	must(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	must(t, err)
	if len(all) != len(enqueued) {
		t.Errorf("%d messages were enqueued, and there are %d rows", len(enqueued), len(all))
	}
	last := make(map[OutboxID]int)
	known := make(map[string]bool)
	for _, r := range all {
		m := chaosMessage{ID: OutboxID(r.ID), Destination: Destination(r.Destination), Key: r.Key}
		if enqueued[m.ID] != m.Destination {
			t.Errorf("%s %s is none of those that were enqueued", m.Destination, m.ID)
		}
		if r.Status != string(StatusCompleted) {
			t.Errorf("%s %s is %s (%s)", m.Destination, m.ID, r.Status, r.Failure)
		}
		if receipt := s.received[m.name()]; receipt == nil || receipt.times == 0 {
			t.Errorf("%s %s is completed and has not arrived", m.Destination, m.ID)
		}
		last[m.ID], known[m.name()] = r.Attempts, true
	}
	for name := range s.received {
		if !known[name] {
			t.Errorf("%s has arrived and was not enqueued", name)
		}
	}
	s.wantAttemptsOnce(t)
	s.wantOrder(t, last)
}

// wantAttemptsOnce checks that no attempt was made twice: a claim has one holder.
func (s *chaosSystem) wantAttemptsOnce(t testing.TB) {
	t.Helper()
	type attempt struct {
		id OutboxID
		n  int
	}
	seen := make(map[attempt]bool)
	for _, m := range s.accepted {
		a := attempt{m.ID, m.Attempt}
		if seen[a] {
			t.Errorf("%s %s was sent twice in attempt %d", m.Destination, m.ID, m.Attempt)
		}
		seen[a] = true
	}
}

// wantOrder checks that the calls by which the changes of a shelf were completed
// came in the order of the changes: those of the last attempt. A call of an earlier
// one may have come from a dispatcher that had lost its claim.
func (s *chaosSystem) wantOrder(t testing.TB, last map[OutboxID]int) {
	t.Helper()
	completed := make(map[string][]int64)
	for _, m := range s.accepted {
		if m.Destination == DestinationStock && m.Attempt == last[m.ID] {
			change := changeOf(m)
			completed[change.Shelf] = append(completed[change.Shelf], change.Change)
		}
	}
	for shelf, changes := range completed {
		for i, change := range changes {
			if change != int64(i+1) {
				t.Errorf("the changes of shelf %s were completed in the order %v", shelf, changes[max(0, i-8):min(len(changes), i+8)])
				break
			}
		}
	}
}
