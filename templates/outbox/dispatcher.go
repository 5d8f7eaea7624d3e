package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// DispatcherOptions are what a Dispatcher may be given. The zero value is one for
// production.
type DispatcherOptions struct {
	// WorkerID names the worker in the rows that it holds, for people to read.
	// Empty means the host, the process id and a random number.
	WorkerID string
	// Poll is how often rows are looked for that nobody has told of: those that
	// have come due, and those of a notification that was lost. 0 means a second.
	Poll time.Duration
	// StopLimit is for how long Run, once its context has ended, lets handlers go
	// on that run. 0 means 30 seconds.
	StopLimit time.Duration
	// Logger gets what happens, by ids and destinations and never with a value of
	// a payload or the text of a handler's error. nil means slog.Default.
	Logger *slog.Logger
	// Observer is told of what happens, for metrics and traces.
	Observer Observer
	// Extract returns the context that a handler gets, made from ctx and the
	// headers of the message: the other end of Options.Inject.
	Extract func(ctx context.Context, headers map[string]string) context.Context
	// Listen opens a connection to listen for new messages on, which the
	// dispatcher closes. nil means one of the pool's, if the store is over a pool;
	// otherwise new messages are found by polling.
	Listen func(ctx context.Context) (*pgx.Conn, error)
	// NoListen has new messages found by polling alone, as behind a PgBouncer that
	// pools by transaction.
	NoListen bool
	// NoPurge leaves rows that are older than their retention to others: see
	// Store.Purge.
	NoPurge bool
}

// Dispatcher delivers the messages of some destinations by their handlers. It
// claims no more than can be delivered soon, keeps the claims alive while handlers
// run, writes the outcomes, asks about unknown ones, and sweeps up after workers
// that have died. Any number of dispatchers work beside each other.
type Dispatcher struct {
	store     *Store
	consumers []*consumer
	options   DispatcherOptions
	observer  Observer
	log       *slog.Logger
	clock     clock
	probe     time.Duration // of what it listens on
	settler   *settler
	changed   chan struct{} // there is room, or nothing to do
	woken     chan struct{} // new messages may be there
	abort     chan struct{} // closed by Abort

	calls       context.Context // of the handlers
	cancelCalls context.CancelFunc
	doubtful    []doubtfulClaim
	recallAt    time.Time // not before, after one that failed
	recallPause backoff

	mu       sync.Mutex
	working  bool
	aborted  bool
	claimErr error // of the last claim
}

// NewDispatcher returns a dispatcher of the messages in s for the destinations of
// the handlers. It refuses a handler that is nil, a destination with two, and a
// store over a single connection or a transaction: it works on several at once.
func NewDispatcher(s *Store, handlers Handlers, options DispatcherOptions) (*Dispatcher, error) {
	d := &Dispatcher{
		store: s, options: options, observer: options.Observer, log: options.Logger, clock: hostClock{}, probe: probeEvery,
		changed: make(chan struct{}, 1), woken: make(chan struct{}, 1), abort: make(chan struct{}),
	}
	if err := d.check(handlers); err != nil {
		return nil, fmt.Errorf("outbox: NewDispatcher: %w", err)
	}
	if d.options.WorkerID == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		d.options.WorkerID = fmt.Sprintf("%s-%d-%04x", host, os.Getpid(), rand.N(1<<16))
	}
	if d.options.Poll <= 0 {
		d.options.Poll = time.Second
	}
	if d.options.StopLimit <= 0 {
		d.options.StopLimit = 30 * time.Second
	}
	if d.log == nil {
		d.log = slog.Default()
	}
	if source, ok := s.backend.(lockBounder); ok {
		bounded := *s
		bounded.backend = source.boundLocks(lockTime)
		d.store = &bounded
	}
	d.settler = &settler{d: d, wake: make(chan struct{}, 1)}
	for _, r := range handlers.routes {
		d.consumers = append(d.consumers, newConsumer(d, r))
	}
	return d, nil
}

func (d *Dispatcher) check(handlers Handlers) error {
	if d.store == nil {
		return errors.New("there is no store")
	}
	if d.store.backend.single() {
		return errors.New("the store is over a single connection or a transaction: make it over a pool")
	}
	if len(handlers.routes) == 0 {
		return errors.New("there are no handlers")
	}
	seen := make(map[Destination]bool)
	for _, r := range handlers.routes {
		switch {
		case r.destination == "":
			return errors.New("a route is nil")
		case r.missing:
			return fmt.Errorf("the handler of %s is nil", r.destination)
		case seen[r.destination]:
			return fmt.Errorf("%s has two handlers", r.destination)
		}
		seen[r.destination] = true
	}
	return nil
}

// StopError says that rows stayed held when a dispatcher stopped: how they ended
// could not be written in time. Once their leases have run out they are sent
// again, or wait as outcome_unknown, by what their destinations declare. A
// dispatcher that runs again writes what it can of them first.
type StopError struct {
	GivenBack int        // rows that were claimed, not begun, and given back
	Unsettled []OutboxID // rows that stayed held, sorted
}

func (e *StopError) Error() string {
	return fmt.Sprintf("outbox: %d rows stayed held when the dispatcher stopped", len(e.Unsettled))
}

// Run delivers until ctx ends. Then it claims no more, gives back what it has not
// begun, lets handlers that run go on for the StopLimit, ends the contexts of
// those that still do, and writes the outcomes. It returns nil when no row stayed
// held, and a [*StopError] otherwise.
func (d *Dispatcher) Run(ctx context.Context) error {
	_, err := d.work(ctx, func(ctx, background context.Context) {
		var all sync.WaitGroup
		all.Add(2)
		go func() { defer all.Done(); d.sweep(ctx) }()
		go func() { defer all.Done(); d.listen(ctx) }()
		d.claim(ctx, background)
		all.Wait()
	})
	return err
}

// RunOnce does one round: it sweeps, asks about unknown outcomes that are due, and
// claims and delivers what there is room for, then waits until all of it is
// written. It returns how many rows it has claimed: call it again until that is 0
// to deliver all that is due. Where a rate is used up or a circuit is open, 0 says
// only that nothing may be sent now: [Store.Stats] counts what is still due, for
// which to call it again later. When ctx ends it stops as Run does; before it has
// come to claim it returns the error of ctx.
func (d *Dispatcher) RunOnce(ctx context.Context) (int, error) {
	var failure error
	n, err := d.work(ctx, func(ctx, background context.Context) {
		failure = d.once(ctx, background)
		for !d.idle() && ctx.Err() == nil {
			select {
			case <-d.changed:
			case <-ctx.Done():
			}
		}
	})
	if err == nil {
		err = failure
	}
	return n, err
}

// Abort ends Run or RunOnce at once: contexts of handlers end, nothing is waited
// for or given back. The dispatcher cannot be used any more.
func (d *Dispatcher) Abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.aborted {
		d.aborted = true
		close(d.abort)
	}
}

// Ready returns nil when Run is under way, its last claim has succeeded, and the
// tables answer. It is for the readiness check of a host.
func (d *Dispatcher) Ready(ctx context.Context) error {
	d.mu.Lock()
	working, err := d.working, d.claimErr
	d.mu.Unlock()
	if !working {
		return errors.New("outbox: Ready: the dispatcher does not run")
	}
	if err == nil {
		_, err = d.store.backend.states(ctx, nil)
	}
	if err != nil {
		return fmt.Errorf("outbox: Ready: %w", err)
	}
	return nil
}

// begin sets the dispatcher to work, which it can do once at a time.
func (d *Dispatcher) begin() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.aborted {
		return errors.New("outbox: the dispatcher was aborted")
	}
	if d.working {
		return errors.New("outbox: the dispatcher runs already")
	}
	d.working, d.claimErr = true, nil
	return nil
}

func (d *Dispatcher) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.working = false
}

// Once handlers have been told to stop they get stopGrace to return; to write what
// is to be written then takes writeLimit at the most.
const (
	stopGrace  = time.Second
	writeLimit = 10 * time.Second
)

// work does what body does, with what that needs around it, and stops in good
// order. The context of the body ends with ctx; background, for what is not to be
// left half done, ends after it. Abort ends both.
func (d *Dispatcher) work(ctx context.Context, body func(ctx, background context.Context)) (claimed int, err error) {
	if err := d.begin(); err != nil {
		return 0, err
	}
	defer d.end()
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-d.abort:
			stop()
			cancel()
		case <-background.Done():
		}
	}()
	d.calls, d.cancelCalls = context.WithCancel(background)
	defer d.cancelCalls()
	for _, c := range d.consumers {
		c.open()
	}
	var all sync.WaitGroup
	all.Add(2)
	go func() { defer all.Done(); d.settler.run(background) }()
	go func() { defer all.Done(); d.keep(background) }()
	returned := make(chan struct{})
	go func() {
		defer d.signal()
		defer close(returned)
		body(ctx, background)
	}()

	// A claim that is under way when ctx ends may take long. It is not waited for:
	// closed consumers give back what it brings.
	select {
	case <-returned:
	case <-ctx.Done():
	}
	for _, c := range d.consumers {
		c.close()
	}
	if !d.wait(background, d.options.StopLimit, d.idle) {
		d.cancelCalls()
		if !d.wait(background, stopGrace, d.idle) {
			for _, c := range d.consumers {
				c.abandonAll(errStopped)
			}
		}
	}
	d.wait(background, writeLimit, func() bool {
		select {
		case <-returned:
			return d.written()
		default:
			return false
		}
	})
	stop()
	<-returned
	all.Wait()

	stopped := &StopError{Unsettled: d.left()}
	for _, c := range d.consumers {
		c.mu.Lock()
		stopped.GivenBack += c.returned
		claimed += c.taken
		c.mu.Unlock()
	}
	if len(stopped.Unsettled) == 0 {
		return claimed, nil
	}
	d.log.Error("outbox: rows stayed held when the dispatcher stopped", "rows", len(stopped.Unsettled))
	return claimed, stopped
}

// wait waits until something is so that is told of by signal. It tells whether it
// became so within the limit, and before ctx ended.
func (d *Dispatcher) wait(ctx context.Context, limit time.Duration, so func() bool) bool {
	passed, stop := d.clock.after(limit)
	defer stop()
	for !so() {
		select {
		case <-d.changed:
		case <-passed:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (d *Dispatcher) idle() bool {
	return !slices.ContainsFunc(d.consumers, func(c *consumer) bool { return !c.idle() })
}

// written tells whether nothing is held and nothing waits to be written.
func (d *Dispatcher) written() bool {
	return !slices.ContainsFunc(d.consumers, func(c *consumer) bool { return !c.written() })
}

// left are the rows that are held.
func (d *Dispatcher) left() (ids []OutboxID) {
	for _, c := range d.consumers {
		ids = c.left(ids)
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

func (d *Dispatcher) signal() { notify(d.changed) }

// pause waits for a while, or until ctx ends.
func (d *Dispatcher) pause(ctx context.Context, length time.Duration) {
	passed, stop := d.clock.after(length)
	defer stop()
	select {
	case <-passed:
	case <-ctx.Done():
	}
}

// failed tells of a statement of the dispatcher's own that failed.
func (d *Dispatcher) failed(operation string, err error, attrs ...any) {
	d.log.Error("outbox: a statement of the dispatcher failed and is tried again", append([]any{"operation", operation, "error", err}, attrs...)...)
	d.observer.failed(operation, err)
}

func (d *Dispatcher) lost(t *task, operation string) {
	d.log.Warn("outbox: the claim of a row was lost", append(t.attrs(), "operation", operation)...)
	d.observer.lost(t)
}

// lookAgain is when rows are looked for once more after a notification: the next
// enqueue may have sent none, and committed since.
const lookAgain = 2 * notifyEvery

// claim claims until ctx ends. The statements go on in the background: one that is
// given up may have been carried out all the same.
func (d *Dispatcher) claim(ctx, background context.Context) {
	pause := backoff{}
	now := d.clock.now()
	poll, again := now.Add(d.options.Poll), time.Time{}
	for ctx.Err() == nil {
		next := poll
		if err := d.round(ctx, background, now, looksAtOnce); err != nil {
			d.failed("claim", err)
			d.pause(ctx, pause.next())
			next = d.clock.now()
		} else {
			pause = backoff{}
		}
		if !again.IsZero() && again.Before(next) {
			next = again
		}
		if len(d.doubtful) > 0 && d.recallAt.Before(next) {
			next = d.recallAt
		}
		for _, c := range d.consumers {
			next = c.sooner(next)
		}
		passed, stop := d.clock.after(next.Sub(d.clock.now()))
		select {
		case <-ctx.Done():
		case <-d.changed:
		case <-passed:
		case <-d.woken:
			d.hunger(false)
			if again.IsZero() {
				again = d.clock.now().Add(lookAgain)
			}
		}
		stop()
		now = d.clock.now()
		if !again.IsZero() && !again.After(now) {
			again = time.Time{}
			d.hunger(false)
		}
		if !poll.After(now) {
			poll = now.Add(spread(d.options.Poll))
			d.hunger(true)
		}
	}
}

// hunger has every consumer look for rows, and for questions.
func (d *Dispatcher) hunger(questions bool) {
	for _, c := range d.consumers {
		c.mu.Lock()
		c.hungry, c.again = true, true
		c.askDue = c.askDue || questions
		c.mu.Unlock()
	}
}

// once is one round of everything, as far as it gets before ctx ends.
func (d *Dispatcher) once(ctx, background context.Context) (err error) {
	for _, duty := range []func(ctx context.Context) error{d.release, d.expire, d.purge, func(ctx context.Context) error {
		return d.round(ctx, background, d.clock.now(), noBound)
	}} {
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		err = errors.Join(err, duty(ctx))
	}
	return err
}

// round claims once for all destinations that have room. One part that fails keeps
// no other from being done. When ctx ends nothing more is begun.
func (d *Dispatcher) round(ctx, background context.Context, now time.Time, looks int) (err error) {
	d.recall(background, now)
	if ctx.Err() == nil {
		err = d.ask(background, now)
	}
	if ctx.Err() == nil {
		err = errors.Join(err, d.claimDue(background, now, looks))
	}
	d.mu.Lock()
	d.claimErr = err
	d.mu.Unlock()
	return err
}

func (d *Dispatcher) claimDue(ctx context.Context, now time.Time, looks int) error {
	request := ClaimRequest{WorkerID: d.options.WorkerID, Limits: make(map[Destination]int)}
	marks := make(map[Destination]OutboxID)
	walks := make(map[Destination]*walk)
	var leftOut []string
	for _, c := range d.consumers {
		limit, mark, w, left := c.request(now)
		if limit > 0 {
			request.Limits[c.policy.destination], marks[c.policy.destination], walks[c.policy.destination] = limit, mark, &w
			leftOut = append(leftOut, left...)
		}
	}
	if len(request.Limits) == 0 {
		return nil
	}
	call, err := request.call()
	if err != nil {
		return err
	}
	call.leftOut, call.looks = leftOut, looks
	for i, name := range call.destinations {
		call.marks[i], call.walks[i] = marks[Destination(name)], walks[Destination(name)]
	}
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	at := d.clock.now()
	rows, err := d.store.backend.claimDue(ctx, call)
	if err != nil {
		d.doubt(err)
		if len(rows) == 0 {
			return err
		}
	}
	parts := byDestination(inOrder(rows))
	for _, c := range d.consumers {
		if limit := request.Limits[c.policy.destination]; limit > 0 {
			c.claimedDue(parts[c.policy.destination], limit, at, *walks[c.policy.destination])
		}
	}
	if err != nil {
		d.hunger(false)
	}
	return err
}

// doubtfulClaim is a claim that seemed to fail, and may have been carried out.
type doubtfulClaim struct {
	token int64
	until time.Time // when any lease of it has run out
}

// doubt notes what statements may have claimed that seemed to fail.
func (d *Dispatcher) doubt(err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			d.doubt(err)
		}
		return
	}
	var failed *claimError
	if errors.As(err, &failed) {
		var lease time.Duration
		for _, c := range d.consumers {
			lease = max(lease, c.policy.lease)
		}
		d.doubtful = append(d.doubtful, doubtfulClaim{failed.token, d.clock.now().Add(lease)})
	}
}

// recaller is a backend whose claims may be carried out without an answer.
type recaller interface {
	// recall gives back what was claimed under some tokens, and returns the rows.
	recall(ctx context.Context, tokens []int64) ([]OutboxID, error)
}

// recall gives back what was claimed by statements that seemed to fail: nobody
// else knows that nothing of it was sent. What cannot be recalled comes back when
// its lease has run out.
func (d *Dispatcher) recall(ctx context.Context, now time.Time) {
	d.doubtful = slices.DeleteFunc(d.doubtful, func(c doubtfulClaim) bool { return !c.until.After(now) })
	source, ok := d.store.backend.(recaller)
	if !ok || len(d.doubtful) == 0 || d.recallAt.After(now) {
		return
	}
	tokens := make([]int64, len(d.doubtful))
	for i, c := range d.doubtful {
		tokens[i] = c.token
	}
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	ids, err := source.recall(ctx, tokens)
	if err != nil {
		d.failed("recall", err)
		d.recallAt = d.clock.now().Add(d.recallPause.next())
		return
	}
	d.doubtful, d.recallAt, d.recallPause = nil, time.Time{}, backoff{}
	if len(ids) > 0 {
		d.hunger(true)
	}
}

// ask claims unknown outcomes whose question is due.
func (d *Dispatcher) ask(ctx context.Context, now time.Time) error {
	request := ClaimRequest{WorkerID: d.options.WorkerID, Limits: make(map[Destination]int)}
	var leftOut []string
	for _, c := range d.consumers {
		if limit, left := c.questions(now); limit > 0 {
			request.Limits[c.policy.destination] = limit
			leftOut = append(leftOut, left...)
		}
	}
	if len(request.Limits) == 0 {
		return nil
	}
	call, err := request.call()
	if err != nil {
		return err
	}
	call.leftOut = leftOut
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	at := d.clock.now()
	rows, err := d.store.backend.claimUnknown(ctx, call)
	if err != nil {
		d.doubt(err)
		return err
	}
	slices.SortFunc(rows, byID)
	parts := byDestination(rows)
	for _, c := range d.consumers {
		if limit := request.Limits[c.policy.destination]; limit > 0 {
			c.claimedUnknown(parts[c.policy.destination], limit, at)
		}
	}
	return nil
}

func byDestination(rows []*claimedRow) map[Destination][]*claimedRow {
	parts := make(map[Destination][]*claimedRow)
	for _, row := range rows {
		parts[row.Destination] = append(parts[row.Destination], row)
	}
	return parts
}
