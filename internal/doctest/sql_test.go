package doctest

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	outbox "github.com/outboxgen/outboxgen/templates/outbox"
)

// inDatabase is a session on a database that has the tables of the outbox. It is
// on a server of its own, since roles are those of a server.
func (r *reader) inDatabase(t *testing.T) *pgx.Conn {
	if r.session == nil {
		r.session = openDatabase(r.document)
	}
	return r.session
}

func openDatabase(t *testing.T) *pgx.Conn {
	url, err := pgtest.Cluster(t).CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return conn
}

// runSQL runs a block, in one transaction unless it begins and ends some itself.
func runSQL(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%v in\n%s", err, sql)
	}
}
