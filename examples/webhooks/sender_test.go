package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/webhooks/internal/hookbox"
	"github.com/outboxgen/outboxgen/internal/pgtest"
)

var secret = []byte("a secret that two know")

func TestHowADeliveryEnds(t *testing.T) {
	now := time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name       string
		status     int
		retryAfter string
		want       string
		off        bool // the endpoint is switched off
	}{
		{name: "accepted", status: 202, want: "completed"},
		{name: "a redirect is not followed", status: 307, want: "failed: the endpoint has answered 307 Temporary Redirect"},
		{name: "refused", status: 400, want: "failed: the endpoint has answered 400 Bad Request"},
		{name: "gone for good", status: 410, want: "failed: the endpoint has answered 410 Gone", off: true},
		{name: "too slow a request", status: 408, want: "retry: the endpoint has answered 408 Request Timeout"},
		{name: "too many requests", status: 429, want: "retry: the endpoint has answered 429 Too Many Requests"},
		{name: "too many requests, with seconds", status: 429, retryAfter: "90", want: "retry after 1m30s: the endpoint has answered 429 Too Many Requests"},
		{name: "too many requests, with a date", status: 429, retryAfter: now.Add(2 * time.Hour).Format(http.TimeFormat), want: "retry after 2h0m0s: the endpoint has answered 429 Too Many Requests"},
		{name: "a date that is past", status: 429, retryAfter: now.Add(-time.Hour).Format(http.TimeFormat), want: "retry after 0s: the endpoint has answered 429 Too Many Requests"},
		{name: "a wait that is too long", status: 503, retryAfter: "2000000000", want: "retry after 12h0m0s: the endpoint has answered 503 Service Unavailable"},
		{name: "a wait that cannot be read", status: 503, retryAfter: "soon", want: "retry: the endpoint has answered 503 Service Unavailable"},
		{name: "broken", status: 500, want: "retry: the endpoint has answered 500 Internal Server Error"},
	} {
		t.Run(test.name, func(t *testing.T) {
			calls := 0
			remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls++
				if test.retryAfter != "" {
					w.Header().Set("Retry-After", test.retryAfter)
				}
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(test.status)
			}))
			defer remote.Close()
			db := prepared(t)
			id := register(t, db, remote.URL)
			s := &sender{client: newClient(remote.Client().Transport), endpoints: table{db}, now: func() time.Time { return now }}
			if got := s.Event(t.Context(), hookbox.Delivery{Raw: []byte("{}")}, hookbox.Event{EndpointID: id}).String(); got != test.want {
				t.Errorf("the outcome is %q, want %q", got, test.want)
			}
			if calls != 1 {
				t.Errorf("the endpoint was called %d times, want once", calls)
			}
			if _, err := s.endpoints.find(t.Context(), id); errors.Is(err, errNoEndpoint) != test.off {
				t.Errorf("find afterwards: %v; is the endpoint to be switched off: %t", err, test.off)
			}
		})
	}
}

func TestHowADeliveryWithoutAnAnswerEnds(t *testing.T) {
	db := prepared(t)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	received := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // what is left of a body keeps the server from seeing that the client has gone
		received <- struct{}{}
		<-r.Context().Done()
	}))
	defer silent.Close()
	for _, test := range []struct {
		name   string
		id     uuid.UUID
		client *http.Client
		want   string
	}{
		{name: "nobody listens", id: register(t, db, closed.URL+"/?token=hidden"), client: newClient(http.DefaultTransport), want: "unreachable"},
		{name: "no answer in time", id: register(t, db, silent.URL+"/?token=hidden"), client: newClient(http.DefaultTransport), want: "unknown"},
		{
			name: "an address of our own network", id: register(t, db, closed.URL), want: "failed",
			client: newClient(&http.Transport{DialContext: (&net.Dialer{Control: publicOnly}).DialContext}),
		},
		{name: "no URL", id: register(t, db, "://hidden"), client: newClient(http.DefaultTransport), want: "failed"},
		{name: "an endpoint that is not known", id: uuid.New(), client: newClient(http.DefaultTransport), want: "failed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			go func() {
				select {
				case <-received:
					giveUp()
				case <-ctx.Done():
				}
			}()
			s := &sender{client: test.client, endpoints: table{db}, now: time.Now}
			got := s.Event(ctx, hookbox.Delivery{Raw: []byte("{}")}, hookbox.Event{EndpointID: test.id}).String()
			if kind, _, _ := strings.Cut(got, ":"); kind != test.want {
				t.Errorf("the outcome is %q, want %s", got, test.want)
			}
			if strings.Contains(got, "hidden") {
				t.Errorf("the outcome shows the URL: %s", got)
			}
		})
	}
}

func TestPublicOnly(t *testing.T) {
	for address, want := range map[string]error{
		"8.8.8.8:443":                nil,
		"[2001:4860:4860::8888]:443": nil,
		"127.0.0.1:80":               errPrivateAddress,
		"[::1]:80":                   errPrivateAddress,
		"[::ffff:127.0.0.1]:80":      errPrivateAddress,
		"10.1.2.3:80":                errPrivateAddress,
		"192.168.0.1:80":             errPrivateAddress,
		"169.254.169.254:80":         errPrivateAddress,
		"[fd00::1]:80":               errPrivateAddress,
		"0.0.0.0:80":                 errPrivateAddress,
	} {
		if got := publicOnly("tcp", address, nil); !errors.Is(got, want) {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}

// TestSign has the vector with which the reference libraries of Standard Webhooks are
// tested: TestSymmetricWebhookSign in libraries/go/webhook_symmetric_test.go of
// https://github.com/standard-webhooks/standard-webhooks.
func TestSign(t *testing.T) {
	secret, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") // behind the prefix whsec_
	if err != nil {
		t.Fatal(err)
	}
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	if got := sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`)); got != want {
		t.Errorf("the signature is %q, want %q", got, want)
	}
}

func TestTheSignatureOfEveryAttemptVerifies(t *testing.T) {
	type request struct {
		header http.Header
		body   []byte
	}
	requests := make(chan request, 2)
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		requests <- request{header: r.Header, body: body}
		if len(requests) == 1 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer remote.Close()
	db := prepared(t)
	event := hookbox.Event{EndpointID: register(t, db, remote.URL), Type: "order.placed", OccurredAt: time.Now(), Data: json.RawMessage(`{"total": 1.10, "note": "<&>"}`)}
	row := enqueue(t, db, event)[0]
	start := time.Now().Unix()
	drain(t, db)

	if len(requests) != 2 {
		t.Fatalf("the endpoint was called %d times, want 2", len(requests))
	}
	for range 2 {
		r := <-requests
		id, at := r.header.Get("Webhook-Id"), r.header.Get("Webhook-Timestamp")
		mac := hmac.New(sha256.New, secret)
		io.WriteString(mac, id+"."+at+"."+string(r.body))
		if got, want := r.header.Get("Webhook-Signature"), "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)); got != want {
			t.Errorf("the signature is %q, want %q", got, want)
		}
		if id != row.ID.String() {
			t.Errorf("the id is %q, want that of the row, %s", id, row.ID)
		}
		if seconds, err := strconv.ParseInt(at, 10, 64); err != nil || seconds < start || seconds > time.Now().Unix() {
			t.Errorf("the timestamp is %q (%v), which is not the time of the request", at, err)
		}
		if string(r.body) != string(row.Raw) {
			t.Errorf("the body is %s, want the bytes that were enqueued, %s", r.body, row.Raw)
		}
	}
}

func TestRetryAfterIsKept(t *testing.T) {
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer remote.Close()
	db := prepared(t)
	enqueue(t, db, event(register(t, db, remote.URL)))
	before := clock(t, db)
	drain(t, db)
	after := clock(t, db)
	row := rows(t, db)[0]
	if next := row.NextAttemptAt; row.Status != hookbox.StatusPending || next.Before(before.Add(time.Hour)) || next.After(after.Add(time.Hour)) {
		t.Errorf("the row is %s and due at %v, want pending and due an hour after the answer, between %v and %v", row.Status, next, before.Add(time.Hour), after.Add(time.Hour))
	}
}

func TestADeadEndpointStopsNoOther(t *testing.T) {
	for _, test := range []struct {
		name string
		dead func(t *testing.T) (url string, revive func())
	}{
		{name: "nobody listens", dead: func(*testing.T) (string, func()) {
			closed := httptest.NewServer(http.NotFoundHandler())
			closed.Close()
			return closed.URL, func() {}
		}},
		{name: "it never answers", dead: func(t *testing.T) (string, func()) {
			revived := make(chan struct{})
			silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-revived }))
			t.Cleanup(silent.Close)
			return silent.URL, func() { close(revived) }
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			const many, few = 1000, 20
			delivered := make(chan struct{}, few)
			live := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { delivered <- struct{}{} }))
			defer live.Close()
			url, revive := test.dead(t)
			db := prepared(t)
			dead := register(t, db, url)
			events := slices.Repeat([]hookbox.Event{event(dead)}, many)
			enqueue(t, db, append(events, slices.Repeat([]hookbox.Event{event(register(t, db, live.URL))}, few)...)...)

			// A connection that was never used would hold up the end of the server.
			d, err := dispatcher(db, newClient(&http.Transport{DisableKeepAlives: true}), hookbox.DispatcherOptions{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- d.Run(ctx) }()
			for range few {
				select {
				case <-delivered:
				case err := <-ended:
					t.Fatalf("the dispatcher has ended: %v", err)
				}
			}
			untouched := 0
			for _, r := range rows(t, db) {
				if payload, ok := r.Payload.(hookbox.Event); ok && payload.EndpointID == dead && r.Attempt == 0 {
					untouched++
				}
			}
			if untouched == 0 {
				t.Error("no event waits for the dead endpoint: the test shows nothing")
			}
			stop()
			revive()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// prepared is a database with the tables of the example.
func prepared(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := pgtest.Pool(t)
	if err := prepare(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return db
}

// register makes an endpoint.
func register(t *testing.T, db *pgxpool.Pool, url string) uuid.UUID {
	t.Helper()
	id := uuid.New()
	if _, err := db.Exec(t.Context(), "INSERT INTO endpoint (endpoint_id, url, secret) VALUES ($1, $2, $3)", id, url, secret); err != nil {
		t.Fatal(err)
	}
	return id
}

func event(endpoint uuid.UUID) hookbox.Event {
	return hookbox.Event{EndpointID: endpoint, Type: "order.placed", OccurredAt: time.Now(), Data: json.RawMessage(`{}`)}
}

// enqueue enqueues events, and returns the rows of the database.
func enqueue(t *testing.T, db *pgxpool.Pool, events ...hookbox.Event) []hookbox.Record {
	t.Helper()
	ctx := t.Context()
	messages := make([]hookbox.Message, len(events))
	for i, e := range events {
		messages[i] = hookbox.ToWebhooks(e).WithKey(fmt.Sprintf("event-%d", i))
	}
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := hookbox.New(db, hookbox.Options{}).With(tx).Enqueue(ctx, hookbox.NewCommand(hookbox.CommandID(uuid.New())), messages...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows(t, db)
}

// rows are all rows, the oldest first.
func rows(t *testing.T, db *pgxpool.Pool) []hookbox.Record {
	t.Helper()
	all, err := hookbox.New(db, hookbox.Options{}).List(t.Context(), hookbox.Filter{}, hookbox.OutboxID{}, 2000)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// drain delivers what is due.
func drain(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	d, err := dispatcher(db, newClient(http.DefaultTransport), hookbox.DispatcherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		n, err := d.RunOnce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
	}
}

// clock is the time of the database.
func clock(t *testing.T, db *pgxpool.Pool) (now time.Time) {
	t.Helper()
	if err := db.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&now); err != nil {
		t.Fatal(err)
	}
	return now
}
