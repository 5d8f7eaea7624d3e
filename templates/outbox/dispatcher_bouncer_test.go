package outbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestDispatcherBehindPgBouncer delivers through a PgBouncer that pools by transaction
// what was enqueued through it, by polling or woken on a connection past it, asks
// about what is unknown, and stops with nothing held.
func TestDispatcherBehindPgBouncer(t *testing.T) {
	polled := func(d *Dispatcher, clock *fakeClock) { clock.advance(d.options.Poll) }
	for _, test := range []struct {
		name    string
		mode    pgx.QueryExecMode
		options func(direct *pgxpool.Pool) DispatcherOptions
		idle    func(d *Dispatcher) time.Duration     // what it waits for when it has nothing to do
		wake    func(d *Dispatcher, clock *fakeClock) // has it look for the messages that are there
	}{
		{"polling", pgx.QueryExecModeExec, func(*pgxpool.Pool) DispatcherOptions {
			return DispatcherOptions{NoListen: true}
		}, func(d *Dispatcher) time.Duration { return d.options.Poll }, polled},
		{"listening past it", pgx.QueryExecModeCacheDescribe, func(direct *pgxpool.Pool) DispatcherOptions {
			return DispatcherOptions{Poll: deaf, Listen: func(ctx context.Context) (*pgx.Conn, error) {
				return pgx.ConnectConfig(ctx, direct.Config().ConnConfig)
			}}
		}, func(*Dispatcher) time.Duration { return lookAgain }, func(*Dispatcher, *fakeClock) {}},
		{"listening through it, and polling", pgx.QueryExecModeSimpleProtocol, func(*pgxpool.Pool) DispatcherOptions {
			return DispatcherOptions{}
		}, func(*Dispatcher) time.Duration { return lookAgain }, polled},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			direct := testPool(t)
			pool := bouncedPool(t, direct, test.mode)
			s := New(pool, Options{})
			r, g := newRemote(), newBarrier(t)
			r.deliver = func(_ context.Context, d Delivery) Outcome {
				if d.Destination == DestinationPayments {
					return Unknown(errors.New("cut off"))
				}
				return Completed()
			}
			r.answer = func(context.Context, Delivery) Answer { return Arrived("found") }
			clock := newFakeClock()
			d := r.dispatcher(t, s, r.handlers(), test.options(direct))
			d.clock = clock
			withPolicy(d, func(p *policy) { p.firstQuestion = 0 })
			swift(d)
			stop := run(t, d)
			clock.waitFor(t, test.idle(d))

			var messages []Message
			for _, p := range policies {
				for range 20 {
					messages = append(messages, testMessage(p.destination))
				}
			}
			ids := enqueueAll(t, pool, messages...)
			test.wake(d, clock)
			r.waitSettled(t, ids...)
			clock.advance(d.options.Poll) // the questions are due
			r.wait(t, func() bool {
				for i, id := range ids {
					if messages[i].destination == DestinationPayments && len(r.settled[id]) < 2 {
						return false
					}
				}
				return true
			})
			for i, id := range ids {
				if n := r.callsOf(id); n != 1 {
					t.Errorf("%s of %s was sent %d times", id, messages[i].destination, n)
				}
				if messages[i].destination == DestinationPayments {
					if record := wantRow(t, s, id, StatusCompleted); record.RemoteRef != "found" {
						t.Errorf("%s is known as %q", id, record.RemoteRef)
					}
				}
			}
			if n := len(r.asked); n != 20 {
				t.Errorf("the remote was asked %d times, want once for each of 20 messages", n)
			}

			// Stop with calls under way, and rows that wait.
			r.note(func() { r.deliver = g.deliver })
			before := len(ids)
			messages = messages[:0]
			for range 100 {
				messages = append(messages, testMessage(DestinationMailer))
			}
			ids = enqueueAll(t, pool, messages...)
			clock.advance(d.options.Poll)
			r.waitCalls(t, before+mailerPolicy.concurrency)
			stopped := make(chan error, 1)
			go func() { stopped <- stop() }()
			r.wait(t, func() bool { return len(r.returned) > 0 })
			g.letGo()
			if err := <-stopped; err != nil {
				t.Errorf("Run returned %v", err)
			}
			wantRowsHeld(t, direct, 0)
			for _, id := range ids {
				want := StatusPending
				if r.callsOf(id) > 0 {
					want = StatusCompleted
				}
				if record := wantRow(t, s, id, want); record.Attempt != r.callsOf(id) {
					t.Errorf("%s was charged %d attempts and sent %d times", id, record.Attempt, r.callsOf(id))
				}
			}
			wantSound(t, s)
		})
	}
}
