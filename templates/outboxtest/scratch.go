package outboxtest

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/templates/outbox"
)

// Scratch makes a schema of its own in the database of a pool, and the tables in
// it, and returns a pool that finds them there and nothing else. Both go when the
// test ends. The pool that is given connects to the server itself, not by way of
// PgBouncer, as a role that may create schemas in the database.
//
// Where the specification names the schema of the tables they are nowhere else,
// and the test stops. There Conformance needs a database of its own, in which
// that schema was created and Migrate called.
func Scratch(t testing.TB, server *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	if tableSchema != "" {
		t.Fatalf("the specification puts the tables into the schema %q: test on a database of its own, and call Migrate there", tableSchema)
	}
	schema := "outbox_scratch_" + uuid.NewString()
	name := pgx.Identifier{schema}.Sanitize()
	if _, err := server.Exec(t.Context(), "CREATE SCHEMA "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The context of a test is over when its cleanups run.
		if _, err := server.Exec(context.WithoutCancel(t.Context()), "DROP SCHEMA "+name+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	config := server.Config()
	config.ConnConfig.RuntimeParams["search_path"] = name
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := outbox.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}
