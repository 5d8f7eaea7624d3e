package doctest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shopspring/decimal"

	outbox "github.com/outboxgen/outboxgen/templates/outbox"
)

const operations = "docs/operations.md"

// quotedSQL is the block of SQL of a document that has a word behind the language.
func quotedSQL(t *testing.T, document, about string) string {
	t.Helper()
	all, err := blocks(read(t, document))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(b block) bool { return b.language == "sql" && b.about == about })
	if i < 0 {
		t.Fatalf("%s has no SQL about %s", document, about)
	}
	return all[i].text()
}

// someday is a time at which nothing is due yet.
var someday = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

func newCommand() outbox.Command {
	return outbox.NewCommand(outbox.CommandID(uuid.New()), uuid.New())
}

func capture() outbox.Message {
	return outbox.ToPayments(outbox.PaymentCapture{
		PaymentID: uuid.New(), AccountID: "acme", Amount: outbox.Money{Amount: decimal.NewFromInt(1), Currency: outbox.CurrencyEUR},
	})
}

func stockChange(shelf string) outbox.Message {
	return outbox.ToStock(outbox.StockChange{Shelf: shelf, Change: 1})
}

// enqueue enqueues messages, and returns their ids.
func enqueue(ctx context.Context, conn *pgx.Conn, messages ...outbox.Message) (ids []outbox.OutboxID, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		placed, err := outbox.New(conn, outbox.Options{}).With(tx).Enqueue(ctx, newCommand(), messages...)
		for _, p := range placed {
			ids = append(ids, p.ID)
		}
		return err
	})
	return ids, err
}

// claim claims what is due of every destination.
func claim(ctx context.Context, s *outbox.Store) ([]outbox.Entry, error) {
	limits := make(map[outbox.Destination]int)
	for _, d := range []outbox.Destination{
		outbox.DestinationBank, outbox.DestinationLedger, outbox.DestinationMailer, outbox.DestinationMetrics, outbox.DestinationPayments, outbox.DestinationStock,
	} {
		limits[d] = 10
	}
	return s.ClaimDue(ctx, outbox.ClaimRequest{WorkerID: "w", Limits: limits})
}

// fixture is what stands in the tables when a role is tried: made by their owner.
type fixture struct {
	pending, later, failed, unknown outbox.OutboxID
	holding                         outbox.Record
}

func newFixture(ctx context.Context, conn *pgx.Conn) (f fixture, err error) {
	const empty = "WITH a AS (DELETE FROM outbox_queue), b AS (DELETE FROM outbox_outcome), c AS (DELETE FROM outbox_hold) DELETE FROM outbox_message"
	if _, err := conn.Exec(ctx, empty); err != nil {
		return f, err
	}
	s := outbox.New(conn, outbox.Options{})
	ids, err := enqueue(ctx, conn, capture(), capture(), capture(), stockChange("a"))
	if err != nil {
		return f, err
	}
	f.failed, f.unknown = ids[0], ids[2]
	entries, err := claim(ctx, s)
	if err != nil {
		return f, err
	}
	for _, e := range entries {
		if e.ID == f.unknown {
			err = s.MarkOutcomeUnknown(ctx, e.Claim, "", time.Time{})
		} else {
			err = s.MarkFailed(ctx, e.Claim, "refused")
		}
		if err != nil {
			return f, err
		}
	}
	if f.holding, err = s.Get(ctx, ids[3]); err != nil {
		return f, err
	}
	ids, err = enqueue(ctx, conn, capture(), capture().At(someday))
	if err != nil {
		return f, err
	}
	f.pending, f.later = ids[0], ids[1]
	return f, nil
}

// uses are what the roles are for: everything that the document says a role may
// call, on a connection of that role.
var uses = map[string]func(ctx context.Context, conn *pgx.Conn, f fixture) error{
	"outbox_enqueuer":   useAsEnqueuer,
	"outbox_dispatcher": useAsDispatcher,
	"outbox_reader":     useAsReader,
	"outbox_operator":   useAsOperator,
	"outbox_monitor":    useAsMonitor,
}

func useAsEnqueuer(ctx context.Context, conn *pgx.Conn, _ fixture) error {
	message := outbox.ToMetrics(outbox.UsageSample{Meter: "door", Value: 1}).WithKey("key")
	if _, err := enqueue(ctx, conn, message); err != nil {
		return err
	}
	if _, err := enqueue(ctx, conn, message, capture(), stockChange("b")); err != nil {
		return err
	}
	_, err := enqueue(ctx, conn, capture(), outbox.ToMetrics(outbox.UsageSample{Meter: "other", Value: 2}).WithKey("key"))
	if !errors.Is(err, outbox.ErrKeyReused) {
		return fmt.Errorf("of a key that was used before: %w", err)
	}
	batch := &pgx.Batch{}
	if _, err := outbox.New(conn, outbox.Options{}).QueueEnqueue(ctx, batch, newCommand(), capture()); err != nil {
		return err
	}
	return conn.SendBatch(ctx, batch).Close()
}

func useAsDispatcher(ctx context.Context, conn *pgx.Conn, f fixture) error {
	s := outbox.New(conn, outbox.Options{})
	entries, err := claim(ctx, s)
	if err != nil {
		return err
	}
	for _, e := range entries {
		for _, settlement := range []outbox.Settlement{
			e.Claim.Retry("busy", time.Time{}), e.Claim.OutcomeUnknown("", time.Time{}), e.Claim.NeverArrived("gone"), e.Claim.Failed("refused"), e.Claim.Completed(""),
		} {
			answers, err := s.Settle(ctx, settlement)
			if err != nil {
				return err
			}
			if answers[0] != nil && !errors.Is(answers[0], outbox.ErrConflict) {
				return answers[0]
			}
		}
	}
	unknown, err := s.ClaimUnknown(ctx, outbox.ClaimRequest{WorkerID: "w", Limits: map[outbox.Destination]int{outbox.DestinationPayments: 10}})
	if err != nil {
		return err
	}
	for _, e := range unknown {
		if _, err := s.ExtendClaims(ctx, time.Time{}, e.Claim); err != nil {
			return err
		}
		if err := s.MarkCompleted(ctx, e.Claim, ""); err != nil {
			return err
		}
	}
	if _, err := s.ReleaseExpiredClaims(ctx, someday); err != nil {
		return err
	}
	if _, err := s.ExpireDue(ctx, someday, 10); err != nil {
		return err
	}
	_, err = s.Purge(ctx, someday, 10)
	return err
}

func useAsReader(ctx context.Context, conn *pgx.Conn, f fixture) error {
	s := outbox.New(conn, outbox.Options{})
	record, err := s.Get(ctx, f.pending)
	if err != nil {
		return err
	}
	if _, err := s.ListForCommand(ctx, record.CommandID); err != nil {
		return err
	}
	if _, err := s.List(ctx, outbox.Filter{}, outbox.OutboxID{}, 10); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SELECT * FROM outbox"); err != nil {
		return err
	}
	return useAsMonitor(ctx, conn, f)
}

func useAsOperator(ctx context.Context, conn *pgx.Conn, f fixture) error {
	s := outbox.New(conn, outbox.Options{})
	unknown, err := s.Get(ctx, f.unknown)
	if err != nil {
		return err
	}
	if err := s.MarkCompleted(ctx, unknown.Claim, "ref"); err != nil {
		return err
	}
	if err := s.Cancel(ctx, f.later, "not wanted"); err != nil {
		return err
	}
	if err := s.Requeue(ctx, f.failed, "mended"); err != nil {
		return err
	}
	if _, err := s.RequeueMatching(ctx, outbox.Filter{Destinations: []outbox.Destination{outbox.DestinationPayments}}, 10, "mended"); err != nil {
		return err
	}
	if err := s.Skip(ctx, f.holding.Destination, f.holding.OrderKey); err != nil {
		return err
	}
	return errors.Join(s.Pause(ctx, outbox.DestinationStock), s.Resume(ctx, outbox.DestinationStock))
}

func useAsMonitor(ctx context.Context, conn *pgx.Conn, _ fixture) error {
	s := outbox.New(conn, outbox.Options{})
	if _, err := s.Stats(ctx); err != nil {
		return err
	}
	_, err := s.CheckRows(ctx)
	return err
}

// TestRoles has each role do what it is for and what the others are for, and finds
// that each of its grants is needed.
func TestRoles(t *testing.T) {
	ctx := t.Context()
	owner := openDatabase(t)
	runSQL(t, owner, quotedSQL(t, operations, "roles"))
	runSQL(t, owner, quotedSQL(t, operations, "monitor"))
	// try uses a connection as a role.
	try := func(t *testing.T, role, use string) error {
		t.Helper()
		f, err := newFixture(ctx, owner)
		if err != nil {
			t.Fatal(err)
		}
		config := owner.Config().Copy()
		config.RuntimeParams["role"] = role
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		return uses[use](ctx, conn, f)
	}
	may := map[string][]string{
		"outbox_enqueuer":   {"outbox_enqueuer"},
		"outbox_dispatcher": {"outbox_dispatcher", "outbox_monitor"},
		"outbox_reader":     {"outbox_reader", "outbox_monitor"},
		"outbox_operator":   {"outbox_operator", "outbox_dispatcher", "outbox_reader", "outbox_monitor"},
		"outbox_monitor":    {"outbox_monitor"},
	}
	for role := range uses {
		for use := range uses {
			t.Run(role+" does what is for "+use, func(t *testing.T) {
				err := try(t, role, use)
				if slices.Contains(may[role], use) {
					if err != nil {
						t.Error(err)
					}
				} else if !isDenied(err) {
					t.Errorf("the error is %v, want one that denies it", err)
				}
			})
		}
	}
	for _, g := range grants(t, owner) {
		t.Run("without "+g.privilege+" on "+g.table+" for "+g.role, func(t *testing.T) {
			runSQL(t, owner, "REVOKE "+g.privilege+" ON "+g.table+" FROM "+g.role)
			if err := try(t, g.role, g.role); !isDenied(err) {
				t.Errorf("the error is %v, want one that denies it", err)
			}
			runSQL(t, owner, "GRANT "+g.privilege+" ON "+g.table+" TO "+g.role)
		})
	}
}

func isDenied(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42501"
}

// grant is a privilege that a role has itself.
type grant struct{ role, privilege, table string }

func grants(t *testing.T, conn *pgx.Conn) []grant {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		SELECT a.grantee::regrole::text, a.privilege_type, c.relname FROM pg_class c, aclexplode(c.relacl) a WHERE a.grantee <> c.relowner AND c.relname ^@ 'outbox'
		UNION ALL
		SELECT a.grantee::regrole::text, format('%s (%I)', a.privilege_type, t.attname), c.relname
		FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid, aclexplode(t.attacl) a WHERE c.relname ^@ 'outbox'
		ORDER BY 1, 3, 2`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g grant, err error) {
		return g, row.Scan(&g.role, &g.privilege, &g.table)
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("nothing was granted")
	}
	return all
}

// asked is a payment provider that has received what was sent before a restore.
type asked struct {
	received map[string]bool // by idempotency key

	mu        sync.Mutex
	sent      []string
	questions []string
}

func (a *asked) PaymentCapture(_ context.Context, d outbox.Delivery, _ outbox.PaymentCapture) outbox.Outcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent = append(a.sent, d.IdempotencyKey)
	return outbox.Completed()
}

func (a *asked) ReconcilePaymentCapture(_ context.Context, d outbox.Delivery, _ outbox.PaymentCapture) outbox.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.questions = append(a.questions, d.IdempotencyKey)
	if a.received[d.IdempotencyKey] {
		return outbox.Arrived("")
	}
	return outbox.NeverArrived()
}

// TestRestoredRowsAreAskedAbout does after a restore what the document says: of two
// payments that are pending in the backup one was sent since.
func TestRestoredRowsAreAskedAbout(t *testing.T) {
	ctx := t.Context()
	owner := openDatabase(t)
	pool, err := pgxpool.New(ctx, owner.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := outbox.New(pool, outbox.Options{})
	ids, err := enqueue(ctx, owner, capture(), capture())
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, id := range ids {
		record, err := s.Get(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, record.IdempotencyKey)
	}
	provider := &asked{received: map[string]bool{keys[0]: true}}
	d, err := outbox.NewDispatcher(s, outbox.SomeHandlers(outbox.HandlePayments(provider)), outbox.DispatcherOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	// deliver has the dispatcher work until it finds nothing more to do.
	deliver := func() {
		t.Helper()
		for {
			n, err := d.RunOnce(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				return
			}
		}
	}

	runSQL(t, owner, quotedSQL(t, operations, "pause"))
	deliver()
	runSQL(t, owner, quotedSQL(t, operations, "restore"))
	deliver()
	if len(provider.sent)+len(provider.questions) > 0 {
		t.Fatalf("while the destination was paused %q were sent, and %q asked about", provider.sent, provider.questions)
	}
	runSQL(t, owner, quotedSQL(t, operations, "resume"))
	deliver()
	slices.Sort(provider.questions)
	slices.Sort(keys)
	if !slices.Equal(provider.questions, keys) {
		t.Errorf("%q were asked about, want %q", provider.questions, keys)
	}
	if len(provider.sent) != 1 || provider.received[provider.sent[0]] {
		t.Errorf("%q were sent, want the one that has not arrived", provider.sent)
	}
	for _, id := range ids {
		record, err := s.Get(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if record.Status != outbox.StatusCompleted {
			t.Errorf("%v, want it completed", record)
		}
	}
}
