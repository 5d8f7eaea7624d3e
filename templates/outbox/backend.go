package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// backend is what a Store stands on: the rows, and the steps that move them.
// Everything that can be decided without the rows is decided in the Store.
type backend interface {
	// within is the backend in a transaction of the caller's.
	within(tx pgx.Tx) backend
	// single tells whether there is one connection or transaction alone to work on.
	single() bool
	// enqueue inserts all rows or none. It answers for each, in order, whether
	// its key was there; none was inserted if any answer says reused.
	enqueue(ctx context.Context, command Command, rows []newRow) ([]placed, error)
	// queueEnqueue adds what enqueue does to a batch. The answer comes when the
	// batch is carried out; what the callback returns is the result of closing it.
	queueEnqueue(batch *pgx.Batch, command Command, rows []newRow, answer func([]placed, error) error)
	// claimDue may return rows and an error. Then those rows are claimed, and what
	// the error tells of was under other tokens: see claimError.
	claimDue(ctx context.Context, c claimCall) ([]*claimedRow, error)
	claimUnknown(ctx context.Context, c claimCall) ([]*claimedRow, error)
	// settle applies each settlement whose fence holds, all in one transaction,
	// and answers with the rows that it changed. No id occurs twice.
	settle(ctx context.Context, settlements []settlement) ([]OutboxID, error)
	// states says where rows stand; a row that is missing is missing there.
	states(ctx context.Context, ids []OutboxID) (map[OutboxID]rowState, error)
	extendClaims(ctx context.Context, claims []Claim, at time.Time) (map[OutboxID]bool, error)
	releaseExpired(ctx context.Context, destinations []Destination, limit int, at time.Time) ([]OutboxID, error)
	expireDue(ctx context.Context, destinations []Destination, limit int, at time.Time) ([]OutboxID, error)
	cancel(ctx context.Context, id OutboxID, reason string) (bool, error)
	requeue(ctx context.Context, ids []OutboxID, reason string) ([]OutboxID, error)
	skip(ctx context.Context, destination Destination, key string) ([]OutboxID, error)
	pause(ctx context.Context, destination Destination, paused bool) error
	// purge removes at most limit rows behind start and returns their ids, sorted.
	purge(ctx context.Context, start OutboxID, limit int, at time.Time) ([]OutboxID, error)
	get(ctx context.Context, id OutboxID) ([]Record, error)
	listForCommand(ctx context.Context, id CommandID) ([]Record, error)
	list(ctx context.Context, f Filter, after, before OutboxID, limit int) ([]Record, error)
	stats(ctx context.Context) ([]statsRow, error)
	checkRows(ctx context.Context) (RowCheck, error)
}

// placed is the answer of enqueue for one message.
type placed struct {
	id        OutboxID // of the row that has the key; zero where that was of the same call and the key is reused
	duplicate bool
	reused    bool
}

// claimCall is one call of claimDue or claimUnknown.
type claimCall struct {
	destinations []string
	limits       []int32
	marks        []OutboxID // ready rows that no order binds are claimed behind these
	runs         []int32    // the most rows of one ordered key
	walks        []*walk    // where the claim begins among the ordered keys, and how far it comes
	looks        int        // at ordered keys, keysLook of them at a time; noBound = until the walks are over
	leftOut      []string   // destination/limit key of rows that are not to be claimed
	giveUp       []*int64   // microseconds after which nobody is asked; nil = never
	kinds        []string
	token        int64
	worker       string
	at           time.Time
}

// less is the call for what is left to claim when some rows are, under a token of
// its own.
func (c claimCall) less(claimed []*claimedRow) claimCall {
	c.limits, c.token = slices.Clone(c.limits), newToken()
	for _, row := range claimed {
		c.limits[slices.Index(c.destinations, string(row.Destination))]--
	}
	return c
}

// claimError is a statement that claims and has failed. It may have been carried
// out all the same, without an answer.
type claimError struct {
	token int64 // under which it would have claimed
	err   error
}

func (e *claimError) Error() string { return e.err.Error() }
func (e *claimError) Unwrap() error { return e.err }

// claimedRow is a row as a claim returns it. Its payload is not decoded yet: a
// dispatcher has its handlers' goroutines do that beside one another.
type claimedRow struct {
	Entry
	seq int64 // of ordered rows, the place within the key
}

// settleOp is what a settlement does. Those that share a statement are apart
// only in what they ask of the row.
type settleOp int

const (
	opCompleted settleOp = iota
	opFailed
	opRetry    // pending again, after a failure or rescheduled
	opPostpone // pending again, nothing was sent
	opUnknown
	opKeepUnknown
	opNeverArrived
	opGiveBack
)

// settlement is one settle of one row.
type settlement struct {
	op     settleOp
	claim  Claim
	reason string // of all but opCompleted and opGiveBack; empty keeps the last one, except with opFailed and opNeverArrived
	ref    string // of opCompleted and opUnknown; empty = none
	at     time.Time
	delay  time.Duration // counts where at is zero, from the database's present
}

// rowState is what decides whether a settle would be accepted.
type rowState struct {
	destination Destination
	status      Status
	token       int64
	held        bool
}

// The statuses under which the keys are counted that failed rows hold, and under
// which a destination stands that is paused.
const (
	statusHolding Status = "holding"
	statusPaused  Status = "paused"
)

// statsRow counts the rows of one kind in one status. Failed rows have no kind.
type statsRow struct {
	destination Destination
	kind        string
	status      Status
	rows, due   int64
	oldest      OutboxID
}

// verdict judges a settle that changed nothing by the state that the row is in
// now: accepted, since it has been done before; worth another try, since it
// would be done now; or refused.
type verdict int

const (
	refused verdict = iota
	accepted
	again
)

func (s settlement) judge(row rowState) verdict {
	if row.token != s.claim.Token || row.token == 0 {
		return refused
	}
	ended := row.status == StatusCompleted || row.status == StatusFailed
	unknown := row.status == StatusOutcomeUnknown
	dispatching := row.status == StatusDispatching
	would := false
	switch s.op {
	case opCompleted:
		if row.status == StatusCompleted {
			return accepted
		}
		would = !ended
	case opFailed:
		would = row.status != StatusCompleted
	case opRetry:
		would = !ended
	case opPostpone:
		would = dispatching
	case opUnknown:
		would = dispatching || unknown
	case opKeepUnknown:
		would = unknown
	case opNeverArrived:
		if row.status == StatusPending {
			return accepted
		}
		would = unknown
	case opGiveBack:
		if row.status == StatusPending {
			return accepted
		}
		would = dispatching || unknown && row.held
	}
	if would {
		return again
	}
	return refused
}
