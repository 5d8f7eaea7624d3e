package outboxtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shopspring/decimal"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/templates/outbox"
)

func command() outbox.Command {
	return outbox.NewCommand(outbox.CommandID(uuid.New()), uuid.New())
}

func order() outbox.OrderConfirmation {
	return outbox.OrderConfirmation{
		OrderID: uuid.New(), Email: "ada@example.com", PlacedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Lines: []outbox.OrderLine{{Sku: "chair", Quantity: 1, Price: money()}},
	}
}

func money() outbox.Money { return outbox.Money{Amount: decimal.New(1, 0), Currency: "EUR"} }

func message(d outbox.Destination) outbox.Message {
	switch d {
	case outbox.DestinationBank:
		return outbox.ToBank(outbox.BankTransfer{TransferID: uuid.New(), Amount: money()})
	case outbox.DestinationLedger:
		return outbox.ToLedger(order())
	case outbox.DestinationMailer:
		return outbox.ToMailer(order())
	case outbox.DestinationMetrics:
		return outbox.ToMetrics(outbox.UsageSample{Meter: uuid.NewString(), Value: 1})
	case outbox.DestinationPayments:
		return outbox.ToPayments(outbox.PaymentCapture{PaymentID: uuid.New(), AccountID: "acme", Amount: money()})
	default:
		return outbox.ToStock(outbox.StockChange{Shelf: uuid.NewString(), Change: 1})
	}
}

func TestConformanceOfMemory(t *testing.T) {
	Conformance(t, Subject{
		Open: func(t *testing.T) (*outbox.Store, DB) {
			memory := NewMemory(t, outbox.Options{})
			return memory.Store, memory.MemoryDB
		},
		Command: command, Message: message,
	})
}

func TestConformanceOfPostgres(t *testing.T) {
	server := pgtest.Pool(t)
	var pool *pgxpool.Pool
	Conformance(t, Subject{
		Open: func(t *testing.T) (*outbox.Store, DB) {
			pool = Scratch(t, server)
			return outbox.New(pool, outbox.Options{}), pool
		},
		Command: command, Message: message,
		Corrupt: func(t *testing.T, id outbox.OutboxID) {
			if _, err := pool.Exec(t.Context(), `UPDATE outbox_message SET payload = '"none"' WHERE outbox_id = $1`, id.String()); err != nil {
				t.Fatal(err)
			}
		},
	})
}

// probe is a test that may fail: it notes what the helpers report.
type probe struct {
	testing.TB
	failed   strings.Builder
	cleanups []func()
}

// stopped is what a probe panics with in the place of runtime.Goexit.
type stopped struct{}

func (p *probe) Helper()          {}
func (p *probe) Cleanup(f func()) { p.cleanups = append(p.cleanups, f) }

func (p *probe) Errorf(format string, args ...any) { fmt.Fprintf(&p.failed, format, args...) }

func (p *probe) Fatal(args ...any) { p.Fatalf("%s", fmt.Sprint(args...)) }

func (p *probe) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	panic(stopped{})
}

// run runs a helper and returns what it reported.
func (p *probe) run(f func()) string {
	func() {
		defer func() {
			if r := recover(); r != nil && r != (stopped{}) {
				panic(r)
			}
		}()
		f()
	}()
	for _, cleanup := range p.cleanups {
		cleanup()
	}
	return p.failed.String()
}

func enqueue(t *testing.T, m Memory, messages ...outbox.Message) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), m, func(tx pgx.Tx) error {
		_, err := m.With(tx).Enqueue(t.Context(), command(), messages...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRequireEnqueued(t *testing.T) {
	capture := outbox.PaymentCapture{PaymentID: uuid.New(), AccountID: "acme", Amount: money()}
	for _, test := range []struct {
		behaviour string
		enqueued  []outbox.Message
		reports   string // empty = the payload is found
	}{
		{"one among others", []outbox.Message{outbox.ToPayments(capture), outbox.ToMailer(order())}, ""},
		{"none", []outbox.Message{outbox.ToMailer(order())}, "0 payloads of type outbox.PaymentCapture are in the outbox, want 1; its rows:"},
		{"two", []outbox.Message{outbox.ToPayments(capture), outbox.ToLedger(capture)}, "2 payloads of type outbox.PaymentCapture"},
	} {
		t.Run(test.behaviour, func(t *testing.T) {
			m := NewMemory(t, outbox.Options{})
			enqueue(t, m, test.enqueued...)
			var got outbox.PaymentCapture
			p := &probe{TB: t}
			report := p.run(func() { got = RequireEnqueued[outbox.PaymentCapture](p, m.Store) })
			if test.reports == "" {
				if report != "" || got.PaymentID != capture.PaymentID {
					t.Errorf("got %v and the report %q", got, report)
				}
				return
			}
			if !strings.HasPrefix(report, test.reports) || !strings.Contains(report, " pending") {
				t.Errorf("the report is %q, want one that begins with %q and lists the rows", report, test.reports)
			}
			if strings.Contains(report, "ada@example.com") {
				t.Errorf("the report shows what is sensitive: %q", report)
			}
		})
	}
}

func TestNewMemoryReportsOpenTransactions(t *testing.T) {
	for _, test := range []struct {
		behaviour string
		end       func(tx pgx.Tx, ctx context.Context) error
		want      string
	}{
		{"committed", pgx.Tx.Commit, ""},
		{"rolled back", pgx.Tx.Rollback, ""},
		{"left open", func(pgx.Tx, context.Context) error { return nil }, "1 transactions were neither committed nor rolled back"},
	} {
		t.Run(test.behaviour, func(t *testing.T) {
			p := &probe{TB: t}
			report := p.run(func() {
				tx, err := NewMemory(p, outbox.Options{}).Begin(t.Context())
				if err == nil {
					err = test.end(tx, t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			})
			if report != test.want {
				t.Errorf("the report is %q, want %q", report, test.want)
			}
		})
	}
}

func TestConformanceRefusesTablesWithRows(t *testing.T) {
	m := NewMemory(t, outbox.Options{})
	enqueue(t, m, message(outbox.DestinationMailer))
	if err := empty(t.Context(), m.Store); err == nil {
		t.Error("tables with rows were accepted")
	}
}
