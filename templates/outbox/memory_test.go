package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// memorySubject is the store in memory as the conformance suite sees it.
type memorySubject struct{ db *MemoryDB }

func (s *memorySubject) open(testing.TB) *Store {
	store, db := NewMemory(Options{})
	s.db = db
	return store
}

func (s *memorySubject) begin(t testing.TB) pgx.Tx {
	tx, err := s.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

func (s *memorySubject) command() Command              { return testCommand }
func (s *memorySubject) message(d Destination) Message { return testMessage(d) }
func (s *memorySubject) now(testing.TB) time.Time      { return stamp(time.Now()) }

func (s *memorySubject) statuses(_ testing.TB, id OutboxID) []Status {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if r := s.db.rows[id]; r != nil && r.committed != nil {
		return []Status{r.committed.status()}
	}
	return nil
}

// TestConformanceOfMemory proves the table of semantics in memory.
func TestConformanceOfMemory(t *testing.T) {
	for d, claims := range conformanceClaims {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			testConformance(t, &memorySubject{}, d, claims...)
		})
	}
}
