package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/examples/broker/internal/eventbox"
	"github.com/outboxgen/outboxgen/internal/pgtest"
)

func TestEveryEventIsStoredOnceAndInOrderThoughAcknowledgementsAreLost(t *testing.T) {
	ctx := t.Context()
	db := pgtest.Pool(t)
	if err := eventbox.Migrate(ctx, db); err != nil {
		t.Fatal(err)
	}
	box := eventbox.New(db, eventbox.Options{})
	want := enqueue(t, db, box, 20)

	broker := startBroker(t)
	cut := &cutter{}
	js := connected(t, broker, nats.SetCustomDialer(cut), nats.ReconnectWait(10*time.Millisecond))
	ordersStream, err := js.CreateStream(ctx, stream())
	if err != nil {
		t.Fatal(err)
	}
	cut.arm()
	deliverAll(t, box, handlers(js))

	if !cut.done() {
		t.Fatal("no acknowledgement was lost")
	}
	info, err := ordersStream.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stored := make(map[string][]string) // key and bytes in the order of the stream, by the subject of the order
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		message, err := ordersStream.GetMsg(ctx, seq)
		if err != nil {
			t.Fatal(err)
		}
		subject := message.Subject[:strings.LastIndex(message.Subject, ".")]
		stored[subject] = append(stored[subject], message.Header.Get(nats.MsgIdHdr)+" "+string(message.Data))
	}
	if len(stored) != len(want) {
		t.Errorf("the stream has events of %d orders, want %d", len(stored), len(want))
	}
	for subject, events := range want {
		if !slices.Equal(stored[subject], events) {
			t.Errorf("%s: stored\n%s\nwant\n%s", subject, strings.Join(stored[subject], "\n"), strings.Join(events, "\n"))
		}
	}
	sentAgain := false
	for _, r := range records(t, box) {
		sentAgain = sentAgain || r.Attempt > 1
	}
	if !sentAgain {
		t.Error("no event was sent again")
	}
}

func TestHowAPublicationEnds(t *testing.T) {
	for _, test := range []struct {
		name   string
		stream jetstream.StreamConfig
		before func(t *testing.T, broker *server.Server, nc *nats.Conn, giveUp context.CancelFunc)
		want   string
	}{
		{name: "stored", stream: stream(), want: "completed"},
		{
			name:   "no stream takes the subject",
			stream: jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other.>"}},
			want:   "unreachable",
		},
		{
			name:   "the broker has gone",
			stream: stream(),
			before: func(t *testing.T, broker *server.Server, nc *nats.Conn, _ context.CancelFunc) {
				gone := nc.StatusChanged(nats.RECONNECTING)
				broker.Shutdown()
				<-gone
			},
			want: "unreachable",
		},
		{
			name:   "the stream does not take messages of this size",
			stream: jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, MaxMsgSize: 10},
			want:   "failed",
		},
		{
			name:   "the stream is full",
			stream: jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, MaxBytes: 1, Discard: jetstream.DiscardNew},
			want:   "retry",
		},
		{
			name:   "no acknowledgement comes",
			stream: jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other.>"}},
			before: func(t *testing.T, _ *server.Server, nc *nats.Conn, giveUp context.CancelFunc) {
				if _, err := nc.Subscribe("orders.>", func(*nats.Msg) { giveUp() }); err != nil {
					t.Fatal(err)
				}
			},
			want: "unknown",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			broker := startBroker(t)
			js := connected(t, broker)
			if _, err := js.CreateStream(t.Context(), test.stream); err != nil {
				t.Fatal(err)
			}
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			if test.before != nil {
				test.before(t, broker, js.Conn(), giveUp)
			}
			d := eventbox.Delivery{Raw: []byte(`{"cents":1}`), IdempotencyKey: "key", Headers: map[string]string{"Traceparent": "00"}}
			outcome := publisher{js}.OrderPlaced(ctx, d, eventbox.OrderPlaced{OrderID: uuid.New()})
			if kind, _, _ := strings.Cut(outcome.String(), ":"); kind != test.want {
				t.Errorf("the outcome is %q, want %s", outcome, test.want)
			}
		})
	}
}

// enqueue enqueues two events about each of n orders. It returns what is to be
// stored of them, key and bytes, by the subject of the order.
func enqueue(t *testing.T, db *pgxpool.Pool, box *eventbox.Store, n int) map[string][]string {
	t.Helper()
	ctx := t.Context()
	for range n {
		order := uuid.New()
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			_, err := box.With(tx).Enqueue(ctx, eventbox.NewCommand(eventbox.CommandID(order)),
				eventbox.ToEvents(eventbox.OrderPlaced{OrderID: order, Cents: 790, PlacedAt: time.Now()}),
				eventbox.ToEvents(eventbox.OrderShipped{OrderID: order}))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := make(map[string][]string)
	for _, r := range records(t, box) {
		subject := fmt.Sprintf("orders.%s", uuid.UUID(r.CommandID))
		want[subject] = append(want[subject], r.IdempotencyKey+" "+string(r.Raw))
	}
	return want
}

// records are the rows, the oldest first.
func records(t *testing.T, box *eventbox.Store) []eventbox.Record {
	t.Helper()
	all, err := box.List(t.Context(), eventbox.Filter{}, eventbox.OutboxID{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// deliverAll runs a dispatcher until every row has completed.
func deliverAll(t *testing.T, box *eventbox.Store, h eventbox.Handlers) {
	t.Helper()
	settled := make(chan struct{}, 1)
	d, err := eventbox.NewDispatcher(box, h, eventbox.DispatcherOptions{Observer: eventbox.Observer{
		Settled: func(eventbox.DeliveryInfo, eventbox.Settlement) {
			select {
			case settled <- struct{}{}:
			default:
			}
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	waits := func(r eventbox.Record) bool { return r.Status != eventbox.StatusCompleted }
	for slices.ContainsFunc(records(t, box), waits) {
		select {
		case <-settled:
		case err := <-ended:
			t.Fatalf("the dispatcher has ended: %v", err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// startBroker starts a NATS server with JetStream.
func startBroker(t *testing.T) *server.Server {
	t.Helper()
	broker, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	broker.Start()
	t.Cleanup(func() {
		broker.Shutdown()
		broker.WaitForShutdown()
	})
	if !broker.ReadyForConnections(30 * time.Second) {
		t.Fatal("the broker does not start")
	}
	return broker
}

func connected(t *testing.T, broker *server.Server, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	nc, err := connect(broker.ClientURL(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// cutter dials. Once it is armed it cuts the connection, one time, when the
// broker has answered to a message: the answer is lost.
type cutter struct {
	mu    sync.Mutex
	armed bool
	cuts  int
}

func (c *cutter) arm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
}

func (c *cutter) done() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts > 0
}

func (c *cutter) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &cutConn{Conn: conn, cutter: c}, nil
}

type cutConn struct {
	net.Conn
	cutter *cutter
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.cutter.mu.Lock()
	defer c.cutter.mu.Unlock()
	if c.cutter.armed && bytes.Contains(p[:n], []byte("MSG _INBOX.")) {
		c.cutter.armed = false
		c.cutter.cuts++
		c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}
