package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// shelves is a remote for ordered changes: it knows the numbers of each shelf in
// the order in which they arrived, and the calls at the same time.
type shelves struct {
	mu      sync.Mutex
	arrived map[string][]int64
	busy    map[string]bool
	overlap bool
	accept  func(p StockChange, d Delivery) Outcome
}

func (s *shelves) StockChange(_ context.Context, d Delivery, p StockChange) Outcome {
	s.mu.Lock()
	s.overlap = s.overlap || s.busy[p.Shelf]
	s.busy[p.Shelf] = true
	s.mu.Unlock()
	outcome := s.accept(p, d)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy[p.Shelf] = false
	if outcome.kind == outcomeCompleted {
		s.arrived[p.Shelf] = append(s.arrived[p.Shelf], p.Change)
	}
	return outcome
}

func newShelves(accept func(p StockChange, d Delivery) Outcome) *shelves {
	return &shelves{arrived: make(map[string][]int64), busy: make(map[string]bool), accept: accept}
}

// enqueueChanges enqueues changes of some shelves, numbered within each.
func enqueueChanges(t testing.TB, pool *pgxpool.Pool, shelves, changes int) []OutboxID {
	t.Helper()
	var messages []Message
	for change := range changes {
		for shelf := range shelves {
			messages = append(messages, ToStock(StockChange{Shelf: fmt.Sprint("shelf ", shelf), Change: int64(change)}))
		}
	}
	return enqueueAll(t, pool, messages...)
}

// TestOrderIsKept has two dispatchers deliver the changes of some shelves, with
// calls that do not complete now and then.
func TestOrderIsKept(t *testing.T) {
	for _, idempotent := range []bool{true, false} {
		t.Run(fmt.Sprintf("idempotent %t", idempotent), func(t *testing.T) {
			const keys, changes = 12, 40
			pool := testPool(t)
			s := New(pool, Options{})
			failure := errors.New("busy")
			remote := newShelves(func(p StockChange, d Delivery) Outcome {
				switch {
				case d.Attempt > 1:
					return Completed()
				case p.Change%7 == 3:
					return Retry(failure)
				case p.Change%11 == 5 && len(d.RemoteRef) == 0 && d.LastAttemptAt.IsZero():
					return RetryAfter(time.Millisecond, failure)
				}
				return Completed()
			})
			r := newRemote()
			var stops []func() error
			ids := enqueueChanges(t, pool, keys, changes)
			for range 2 {
				d := r.dispatcher(t, s, SomeHandlers(HandleStock(remote)), DispatcherOptions{Poll: time.Millisecond})
				withPolicy(d, func(p *policy) { p.retryInitial, p.idempotent = time.Millisecond, idempotent })
				swift(d)
				stops = append(stops, run(t, d))
			}
			r.wait(t, func() bool {
				return !slices.ContainsFunc(ids, func(id OutboxID) bool {
					settled := r.settled[id]
					return len(settled) == 0 || settled[len(settled)-1].op != opCompleted
				})
			})
			for _, stop := range stops {
				must(t, stop())
			}
			if remote.overlap {
				t.Error("two changes of a shelf were under way at the same time")
			}
			for shelf, arrived := range remote.arrived {
				if len(arrived) != changes || !slices.IsSorted(arrived) {
					t.Errorf("%s: %v", shelf, arrived)
				}
			}
			wantSound(t, s)
		})
	}
}

// TestARowThatDoesNotComplete holds those behind it, which are given back.
func TestARowThatDoesNotComplete(t *testing.T) {
	failure := errors.New("no")
	for name, outcome := range map[string]Outcome{
		"retry": RetryAfter(time.Hour, failure), "failed": Failed(failure), "unreachable": Unreachable(failure), "unknown": Unknown(failure),
	} {
		t.Run(name, func(t *testing.T) {
			pool := testPool(t)
			s := New(pool, Options{})
			ids := enqueueChanges(t, pool, 1, 5)
			remote := newShelves(func(p StockChange, _ Delivery) Outcome {
				if p.Change == 1 {
					return outcome
				}
				return Completed()
			})
			r := newRemote()
			d := r.dispatcher(t, s, SomeHandlers(HandleStock(remote)), DispatcherOptions{})
			withPolicy(d, func(p *policy) { p.retryInitial = time.Hour })
			swift(d)
			for range 2 {
				if _, err := d.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := remote.arrived["shelf 0"]; !slices.Equal(got, []int64{0}) {
				t.Errorf("%v arrived", got)
			}
			wantIDs(t, r.returned, ids[2:]...)
			for _, id := range ids[2:] {
				if record := wantRow(t, s, id, StatusPending); record.Attempt != 0 {
					t.Errorf("%s was charged", id)
				}
			}
		})
	}
}
