package generator_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	minimal "github.com/outboxgen/outboxgen/testdata/golden/minimal/want"
	minimaltest "github.com/outboxgen/outboxgen/testdata/golden/minimal/want/outboxtest"
	options "github.com/outboxgen/outboxgen/testdata/golden/options/want"
	optionstest "github.com/outboxgen/outboxgen/testdata/golden/options/want/optionboxtest"
)

// TestConformanceOfEveryOption has a destination with every option, one that
// keeps no completed rows, one where only a person decides, one that is retired,
// and an order beside a declared key.
func TestConformanceOfEveryOption(t *testing.T) {
	number := int64(0)
	next := func() int64 {
		number++
		return number
	}
	invoice := func(account uuid.UUID) options.Invoice {
		return options.Invoice{
			Account: options.Account{ID: account, Address: options.Address{Street: "Main Street", Tier: options.TierFree}}, Number: next(),
		}
	}
	reminder := func() options.Reminder { return options.Reminder{InvoiceNumber: next(), AccountID: uuid.New()} }
	subject := optionstest.Subject{
		Command: func() options.Command { return options.NewCommand(options.CommandID(next())) },
		Message: func(d options.Destination) options.Message {
			switch d {
			case options.DestinationDefaults:
				return options.ToDefaults(invoice(uuid.New()))
			case options.DestinationEvery:
				return options.ToEvery(reminder())
			case options.DestinationFixedDelays:
				return options.ToFixedDelays(reminder())
			case options.DestinationPersonDecides:
				return options.ToPersonDecides(reminder())
			default:
				return options.ToReconcileGiveUp(invoice(uuid.New()))
			}
		},
		Pair: func(options.Destination) (first, second options.Message) {
			account := uuid.New()
			return options.ToReconcileGiveUp(invoice(account)), options.ToReconcileGiveUp(invoice(account))
		},
	}
	t.Run("memory", func(t *testing.T) {
		subject := subject
		subject.Open = func(t *testing.T) (*options.Store, optionstest.DB) {
			memory := optionstest.NewMemory(t, options.Options{})
			return memory.Store, memory
		}
		optionstest.Conformance(t, subject)
	})
	t.Run("Postgres", func(t *testing.T) {
		pool := pgtest.Pool(t)
		if _, err := pool.Exec(t.Context(), "CREATE SCHEMA shop"); err != nil {
			t.Fatal(err)
		}
		if err := options.Migrate(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		subject := subject
		subject.Open = func(t *testing.T) (*options.Store, optionstest.DB) {
			_, err := pool.Exec(t.Context(), "TRUNCATE shop.option_outbox_message, shop.option_outbox_queue, shop.option_outbox_outcome, shop.option_outbox_hold")
			if err != nil {
				t.Fatal(err)
			}
			return options.New(pool, options.Options{}), pool
		}
		optionstest.Conformance(t, subject)
	})
}

// TestConformanceOfTheLeast has what a specification at least needs, and a
// message that has no content of its own.
func TestConformanceOfTheLeast(t *testing.T) {
	server := pgtest.Pool(t)
	minimaltest.Conformance(t, minimaltest.Subject{
		Open: func(t *testing.T) (*minimal.Store, minimaltest.DB) {
			pool := minimaltest.Scratch(t, server)
			return minimal.New(pool, minimal.Options{}), pool
		},
		Command: func() minimal.Command { return minimal.NewCommand(minimal.CommandID(uuid.New())) },
		Message: func(minimal.Destination) minimal.Message {
			return minimal.ToEcho(minimal.Ping{}).WithKey(uuid.NewString())
		},
	})
}

// fatal is a test that notes why it was stopped.
type fatal struct {
	testing.TB
	reason string
}

func (f *fatal) Fatalf(format string, args ...any) {
	f.reason = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestScratchRefusesAPackageWithASchema(t *testing.T) {
	pool := pgtest.Pool(t)
	f := &fatal{TB: t}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		optionstest.Scratch(f, pool)
	}()
	<-stopped
	if !strings.Contains(f.reason, `the schema "shop"`) {
		t.Errorf("it was stopped with %q", f.reason)
	}
}
