// Package outboxtest is for tests of what uses package outbox: a store without a
// database, checks of what was enqueued, deliveries in which workers die, and a
// suite of cases that every database has to pass which the outbox is to stand on.
package outboxtest

import (
	"testing"

	"github.com/outboxgen/outboxgen/templates/outbox"
)

// Memory is a store in memory together with its database, so that transactions
// are begun on it: pgx.BeginFunc(ctx, memory, ...).
type Memory struct {
	*outbox.Store
	*outbox.MemoryDB
}

// NewMemory returns a store in memory that has no rows. The test fails when it
// ends and has left a transaction open, which in production would keep a
// connection.
func NewMemory(t testing.TB, options outbox.Options) Memory {
	store, db := outbox.NewMemory(options)
	t.Cleanup(func() {
		if n := db.OpenTransactions(); n > 0 {
			t.Errorf("%d transactions were neither committed nor rolled back", n)
		}
	})
	return Memory{store, db}
}
