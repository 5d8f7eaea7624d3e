package outbox

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// How far a dispatcher goes ahead of its handlers.
const (
	// prefetchTime is for how long the rows last that an idempotent destination
	// has waiting.
	prefetchTime = 500 * time.Millisecond
	maxPrefetch  = 500
	// keysAtOnce is by how much the calls to all limit keys together may exceed
	// those to one, where the specification gives no total.
	keysAtOnce = 16
	// claimsFromMark is how many claims begin behind the mark before one begins
	// at the first row: some commit late, or come back.
	claimsFromMark = 20
)

// consumer delivers to one destination.
type consumer struct {
	d      *Dispatcher
	policy policy
	calls  map[string]call
	asks   bool // somebody can be asked about unknown outcomes

	mu        sync.Mutex
	limiters  map[string]*limiter // by limit key; of one key where the limits are not for each value
	waiting   []*task             // the first of its order key each, in the order of the claim
	held      map[*task]struct{}  // rows whose claim has not been settled
	rows      int                 // that wait or are under way
	active    int                 // handlers that run
	abandoned int                 // of these, the ones whose row was judged without them
	unsettled int                 // rows that have an outcome, which is not written yet
	taken     int                 // rows that were claimed since it was opened
	returned  int                 // rows that were given back since it was closed
	pace      time.Duration       // that a call takes
	closed    bool                // nothing is begun any more

	hungry  bool      // rows may be due
	walk    walk      // of the last claim, among the order keys
	again   bool      // hungry has become true since the last request
	lookAt  time.Time // when rows may be due again; zero = by the next poll
	mark    OutboxID  // ready rows up to here have been claimed
	claims  int
	step    int  // rows to ask for, where a claim may give too many of one limit key
	askDue  bool // questions may be due
	askTurn bool // the last room went to deliveries
}

// task is a claimed row on its way.
type task struct {
	row      *claimedRow
	question bool // it is asked about, not delivered
	c        *consumer
	limiter  *limiter
	next     *task // the next row of its order key, if the claim has given one
	state    taskState
	claimed  time.Time // by the dispatcher's clock, as are the others; before the claim was sent
	renewed  time.Time
	stuck    bool // the last renewal has failed on its own; for renewAll
	started  time.Time
	ctx      context.Context // of the call
	cancel   context.CancelFunc
}

type taskState int

const (
	taskWaiting   taskState = iota
	taskRunning             // its handler was called
	taskAbandoned           // the handler has not returned, and the row was judged without it
	taskLost                // the claim is another's
	taskAnswered            // its settlement waits to be written
)

func newConsumer(d *Dispatcher, r route) *consumer {
	c := &consumer{
		d: d, policy: policyOf(r.destination), calls: r.calls,
		limiters: make(map[string]*limiter), held: make(map[*task]struct{}),
	}
	for _, call := range r.calls {
		c.asks = c.asks || call.ask != nil
	}
	c.step = c.policy.concurrency
	return c
}

// limiterOf is the limiter of a limit key.
func (c *consumer) limiterOf(key string) *limiter {
	if !c.policy.per {
		key = ""
	}
	l := c.limiters[key]
	if l == nil {
		l = &limiter{bucket: bucket{rate: c.policy.rate}}
		c.limiters[key] = l
	}
	return l
}

// total is the number of calls that run at the same time.
func (c *consumer) total() int {
	switch {
	case !c.policy.per:
		return c.policy.concurrency
	case c.policy.total > 0:
		return c.policy.total
	}
	return keysAtOnce * c.policy.concurrency
}

// window is the number of rows that may wait or be under way. Where a message
// must not arrive twice each has a call of its own, so that a process that dies
// leaves none in doubt that was not sent.
func (c *consumer) window() int {
	n := c.total()
	if !c.policy.idempotent || c.policy.per {
		return n
	}
	if c.policy.ordered {
		n *= runRows // one after the other within a key
	}
	if c.pace > 0 {
		n += int(min(maxPrefetch, float64(c.policy.concurrency)*float64(prefetchTime)/float64(c.pace)))
	}
	return n
}

// room is the number of rows that may be claimed.
func (c *consumer) room(now time.Time) int {
	if c.closed || c.abandoned >= c.total() {
		return 0
	}
	window := c.window()
	n := window - c.rows - c.abandoned
	if c.policy.per {
		n = c.total() - c.active
	} else if l := c.limiterOf(""); l.circuit.broken() {
		n = l.room(c.policy.concurrency, now) - len(c.waiting)
	} else {
		n = min(n, l.bucket.available(now))
	}
	return min(n, max(2*window, maxPrefetch)-c.unsettled)
}

// wants tells whether room is worth a claim: a handler is free, or half of what
// may wait has gone.
func (c *consumer) wants(room int) bool {
	return room > 0 && (c.active < c.total() || 2*room >= c.window())
}

// request says how many due rows to claim, behind which mark, from where among the
// order keys, and without which limit keys.
func (c *consumer) request(now time.Time) (limit int, mark OutboxID, w walk, leftOut []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.lookAt.IsZero() && !c.lookAt.After(now) {
		c.lookAt, c.hungry, c.again = time.Time{}, true, true
	}
	if !c.hungry {
		return 0, mark, w, nil
	}
	room := c.room(now)
	if !c.wants(room) {
		if !c.policy.per {
			if at, ok := c.limiterOf("").opens(now); ok {
				c.look(at)
			}
		}
		return 0, mark, w, nil
	}
	if c.policy.per {
		room = min(room, c.step)
		leftOut = c.leaveOut(now)
	}
	if c.again {
		c.walk = walk{} // keys that it has passed may be due since
	}
	c.again, c.askTurn = false, true
	if c.claims++; c.claims%claimsFromMark == 0 {
		c.mark = OutboxID{}
	}
	return room, c.mark, c.walk, leftOut
}

// leaveOut says which limit keys a claim is to leave out.
func (c *consumer) leaveOut(now time.Time) (leftOut []string) {
	for key, l := range c.limiters {
		// A key that is full is left until half of it is free: its rows would
		// come a few at a time, and all others of the claim be given back.
		n := l.room(c.policy.concurrency, now)
		before := l.leftOut
		l.leftOut = n <= 0 || before && !l.circuit.broken() && 2*l.active > c.policy.concurrency
		if before && !l.leftOut {
			c.mark = OutboxID{} // claims have passed over its rows
		}
		if l.leftOut {
			leftOut = append(leftOut, string(c.policy.destination)+"/"+key)
		} else if l.fresh(now) {
			delete(c.limiters, key)
		} else if l.forgotten(now) {
			delete(c.limiters, key)
			c.d.observer.circuitChanged(c.policy.destination, key, false)
		}
		if at, ok := l.opens(now); ok {
			c.look(at)
		}
	}
	slices.Sort(leftOut)
	return leftOut
}

// look has rows looked for at a time, if not sooner.
func (c *consumer) look(at time.Time) {
	if c.lookAt.IsZero() || at.Before(c.lookAt) {
		c.lookAt = at
	}
}

// claimedDue takes the rows of a claim that asked for limit of them, and how far it
// has come among the order keys.
func (c *consumer) claimedDue(rows []*claimedRow, limit int, at time.Time, w walk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.mark == OutboxID{}
	short := len(rows) < limit
	c.mark = OutboxID{}
	if !short {
		for _, row := range rows {
			if row.OrderKey == "" && compareIDs(row.ID, c.mark) > 0 {
				c.mark = row.ID
			}
		}
	}
	c.walk = w
	c.hungry = c.again || !short || !first || w.unfinished()
	placed := c.admit(rows, at, false)
	now := c.d.clock.now()
	if c.policy.per {
		c.step = min(2*c.step, c.total())
		if placed < len(rows) {
			c.step = max(1, placed)
		}
	} else if at, ok := c.limiterOf("").opens(now); ok && c.hungry {
		c.look(at)
	}
	if c.hungry && c.wants(c.room(now)) {
		c.d.signal()
	}
}

// admit takes claimed rows and begins as many as it may. It returns how many it
// has kept.
func (c *consumer) admit(rows []*claimedRow, at time.Time, question bool) (kept int) {
	c.d.observer.claimed(c.policy.destination, len(rows))
	now := c.d.clock.now()
	tasks := make([]task, len(rows))
	heads := make([]*task, 0, len(rows))
	last := make(map[string]*task)
	for i, row := range rows {
		t := &tasks[i]
		*t = task{row: row, question: question, c: c, limiter: c.limiterOf(row.LimitKey), claimed: at, renewed: at}
		t.limiter.bucket.take(1)
		c.held[t] = struct{}{}
		c.rows++
		t.limiter.rows++
		if row.OrderKey == "" || question {
			heads = append(heads, t)
			continue
		}
		if before := last[row.OrderKey]; before != nil {
			before.next = t
		} else {
			heads = append(heads, t)
		}
		last[row.OrderKey] = t
	}
	c.taken += len(rows)
	kept = len(rows)
	for _, t := range heads {
		l := t.limiter
		switch {
		case c.closed || now.Sub(at) >= c.policy.lease || c.policy.per && c.active >= c.total() || (c.policy.per || l.circuit.broken()) && !l.admits(c.policy.concurrency, now):
			kept -= c.giveBack(t)
			l.leftOut = true
		case l.active < c.policy.concurrency:
			c.start(t, now)
			go c.work(t)
		default:
			c.waiting = append(c.waiting, t)
		}
	}
	return kept
}

// giveBack gives back a row that has not been begun, and those behind it, and
// returns their number.
func (c *consumer) giveBack(t *task) (n int) {
	for ; t != nil; t = t.next {
		if t.state != taskWaiting {
			continue
		}
		n++
		t.limiter.bucket.take(-1)
		c.mark = OutboxID{}
		c.answer(t, t.row.Claim.GiveBack())
	}
	return n
}

// answer has the settlement of a row written.
func (c *consumer) answer(t *task, s Settlement) {
	t.state = taskAnswered
	c.rows--
	t.limiter.rows--
	c.unsettled++
	c.d.settler.add(t, s)
}

// offer has a late settlement written if it tells of a delivery. As long as nobody
// has claimed the row since, that is better than what was guessed without it.
func (c *consumer) offer(t *task, s Settlement) {
	if s.op == opCompleted {
		c.unsettled++
		c.d.settler.add(t, s)
	}
}

// start readies a row for its call, which the caller makes.
func (c *consumer) start(t *task, now time.Time) {
	t.state, t.started = taskRunning, now
	t.ctx, t.cancel = context.WithTimeout(c.d.calls, c.policy.timeout)
	c.active++
	t.limiter.active++
}

// work calls the handler for a row, and then for those that wait. A handler that
// ends its goroutine has no outcome.
func (c *consumer) work(t *task) {
	defer func() {
		if t == nil {
			return
		}
		if t = c.finish(t, c.judge(t, Outcome{err: errNoReturn}, Answer{err: errNoReturn})); t != nil {
			go c.work(t)
		}
	}()
	for t != nil {
		t = c.finish(t, c.call(t))
	}
}

// finish takes the verdict on a call that has returned, and returns the row that
// is next.
func (c *consumer) finish(t *task, v ruling) *task {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.d.clock.now()
	c.active--
	t.limiter.active--
	t.cancel()
	took := max(now.Sub(t.started), 1)
	if c.pace == 0 {
		c.pace = took
	}
	c.pace += (took - c.pace) / 8
	c.feel(t.limiter, t.row.LimitKey, v.reach, now)
	if v.reach == notReached {
		// The attempts do not grow, nor do the delays: the circuit keeps the rows from
		// being tried.
		v.settlement.delay = c.policy.delay(1, rand.Float64())
	}
	var next *task
	switch t.state {
	case taskRunning:
		if v.completed && !c.closed {
			next = t.next
		}
		c.answer(t, v.settlement)
		if next == nil {
			c.giveBack(t.next)
		}
	case taskAbandoned:
		c.abandoned--
		t.limiter.abandoned--
		c.d.log.Warn("outbox: a handler has returned after its row was judged without it", t.attrs()...)
		c.offer(t, v.settlement)
	case taskLost:
		c.abandoned--
		t.limiter.abandoned--
		c.d.log.Warn("outbox: a handler has returned after the claim of its row was lost", t.attrs()...)
		c.offer(t, v.settlement)
	}
	if next = c.pick(next, now); next != nil {
		c.start(next, now)
	}
	if t.limiter.leftOut && 2*t.limiter.active <= c.policy.concurrency {
		c.hungry, c.again = true, true
	}
	if c.closed || c.rows == 0 || (c.hungry || c.askDue) && c.wants(c.room(now)) {
		c.d.signal()
	}
	return next
}

// pick is the row to begin with next: the given one, which follows in its key, or
// else one of those that wait. Claims that may have run out are given back.
func (c *consumer) pick(t *task, now time.Time) *task {
	for {
		if t == nil && len(c.waiting) > 0 && c.limiterOf("").active < c.policy.concurrency {
			t = c.waiting[0]
			c.waiting[0] = nil
			c.waiting = c.waiting[1:]
		}
		if t == nil {
			return nil
		}
		if t.state == taskWaiting && now.Sub(t.renewed) < c.policy.lease && (!c.policy.per || t.limiter.admits(c.policy.concurrency, now)) {
			return t
		}
		c.giveBack(t)
		t = nil
	}
}

// feel tells the circuit of a limiter what a call has shown of the destination.
func (c *consumer) feel(l *limiter, key string, r reach, now time.Time) {
	if !c.policy.per {
		key = ""
	}
	switch r {
	case reached:
		if l.circuit.succeed() {
			c.d.log.Info("outbox: the destination can be reached again", "destination", c.policy.destination)
			c.d.observer.circuitChanged(c.policy.destination, key, false)
			c.hungry, c.again = true, true
		}
	case notReached:
		if !l.circuit.fail(now) {
			return
		}
		c.d.log.Warn("outbox: the destination cannot be reached and is left alone", "destination", c.policy.destination, "pause", l.circuit.pause)
		c.d.observer.circuitChanged(c.policy.destination, key, true)
		c.look(l.circuit.until)
		for _, t := range c.waiting {
			c.giveBack(t)
		}
		c.waiting = nil
	}
}

// close begins nothing any more, and gives back what waits.
func (c *consumer) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for t := range c.held {
		if t.state == taskWaiting {
			c.giveBack(t)
		}
	}
	c.waiting = nil
}

// open begins again, with nothing but the outcomes that could not be written.
func (c *consumer) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed, c.hungry, c.again, c.askDue, c.askTurn = false, true, true, true, true
	c.mark = OutboxID{}
	c.held = make(map[*task]struct{})
	c.taken, c.returned = 0, 0
}

// idle tells whether nothing waits and nothing is under way.
func (c *consumer) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rows == 0
}

// written tells whether nothing is held and nothing waits to be written.
func (c *consumer) written() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held) == 0 && c.unsettled == 0
}

// settled takes the answer to a settlement.
func (c *consumer) settled(t *task, s Settlement, err error) {
	c.mu.Lock()
	delete(c.held, t)
	c.unsettled--
	if s.op == opGiveBack && err == nil {
		c.hungry, c.again = true, true
		if c.closed {
			c.returned++
		}
	}
	if s.op == opCompleted && t.row.OrderKey != "" && t.next == nil {
		// Claims have passed over the rows behind it while it was held.
		c.hungry, c.again = true, true
	}
	again := s.op == opRetry || s.op == opPostpone
	if again {
		c.look(c.d.clock.now().Add(s.delay))
	}
	wanted := again || c.rows == 0 || (c.hungry || c.askDue) && c.wants(c.room(c.d.clock.now()))
	c.mu.Unlock()
	if wanted {
		c.d.signal()
	}
	switch {
	case err == nil:
		if c.d.observer.Settled != nil {
			c.d.observer.Settled(infoOf(t), s)
		}
	case errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound):
		c.d.lost(t, s.operation)
	default:
		c.d.log.Error("outbox: an outcome cannot be stored", append(t.attrs(), "operation", s.operation, "error", err)...)
		c.d.observer.failed("settle", err)
	}
}

// graceTime is how long after its timeout a handler may still answer for its row.
const graceTime = 2 * time.Second

// watch judges the rows whose handlers have not returned in time, gives back what
// has waited for too long, and returns the rows whose claims are to be renewed.
func (c *consumer) watch(now time.Time) (renew []*task) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.held {
		switch {
		case t.state == taskRunning && now.Sub(t.started) >= c.policy.timeout+graceTime:
			c.abandon(t, errTimeout)
		case t.state == taskRunning && now.Sub(t.renewed) >= c.policy.lease:
			c.lose(t)
		case t.state == taskWaiting && now.Sub(t.claimed) >= c.policy.lease/2:
			c.pace = max(c.pace, now.Sub(t.claimed)) // so that no more are claimed ahead
			c.giveBack(t)
		case now.Sub(t.renewed) >= c.policy.lease/3:
			renew = append(renew, t)
		}
	}
	return renew
}

// abandon judges a row whose handler has not returned. The call counts until it
// does.
func (c *consumer) abandon(t *task, why error) {
	c.answer(t, c.judge(t, Outcome{err: why}, Answer{err: why}).settlement)
	t.state = taskAbandoned
	c.abandoned++
	t.limiter.abandoned++
	t.cancel()
	c.giveBack(t.next)
	c.d.log.Error("outbox: a handler has not returned: its row is judged without it", t.attrs()...)
}

// lose drops a row whose claim is another's. A call that runs counts until it
// returns.
func (c *consumer) lose(t *task) {
	running := t.state == taskRunning
	t.state = taskLost
	c.rows--
	t.limiter.rows--
	delete(c.held, t)
	if running {
		c.abandoned++
		t.limiter.abandoned++
		t.cancel()
		c.giveBack(t.next)
	}
	c.d.lost(t, "ExtendClaims")
	c.d.signal()
}

// renewed takes the answer to a renewal of its tasks, and perhaps of others', that
// was sent at a time. All that are lost are so at once: none begins after another.
func (c *consumer) renewed(tasks []*task, at time.Time, kept map[Claim]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range tasks {
		if _, held := c.held[t]; held && kept[t.row.Claim] {
			t.renewed = at
		}
	}
	for _, t := range tasks {
		_, held := c.held[t]
		if held && !kept[t.row.Claim] && (t.state == taskWaiting || t.state == taskRunning) {
			c.lose(t)
		}
	}
}

// abandonAll judges every row whose handler still runs.
func (c *consumer) abandonAll(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.held {
		if t.state == taskRunning {
			c.abandon(t, why)
		}
	}
}

// left adds the rows that are held.
func (c *consumer) left(ids []OutboxID) []OutboxID {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.held {
		ids = append(ids, t.row.ID)
	}
	return ids
}

// sooner is when rows are to be looked for again, if that is before t.
func (c *consumer) sooner(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.lookAt.IsZero() && c.lookAt.Before(t) {
		return c.lookAt
	}
	return t
}

// questions says how many unknown outcomes to claim, and without which limit keys:
// half of the room, or, where there is room for one, every other time.
func (c *consumer) questions(now time.Time) (limit int, leftOut []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	room := c.room(now)
	if !c.asks || !c.askDue || room <= 0 || room == 1 && c.hungry && !c.askTurn {
		return 0, nil
	}
	if c.policy.per {
		leftOut = c.leaveOut(now)
	}
	c.askTurn = false
	return (room + 1) / 2, leftOut
}

// claimedUnknown takes the rows of a claim that asked for limit of them.
func (c *consumer) claimedUnknown(rows []*claimedRow, limit int, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.admit(rows, at, true)
	c.askDue = len(rows) == limit && kept == len(rows)
}

func (t *task) attrs() []any {
	return []any{slog.String("id", t.row.ID.String()), slog.String("destination", string(t.row.Destination)), slog.Int("attempt", t.row.Attempt)}
}
