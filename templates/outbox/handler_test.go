package outbox

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// brokenError is an error whose method panics when it is nil, as that of a
// pointer which was returned by mistake does.
type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

func TestOutcomesAndAnswersAreNamed(t *testing.T) {
	var broken *brokenError
	cause := errors.New("mailbox full")
	for _, test := range []struct {
		behaviour string
		value     interface{ String() string }
		want      string
	}{
		{"no outcome is unknown", Outcome{}, "unknown"},
		{"unknown", Unknown(cause), "unknown: mailbox full"},
		{"completed", Completed(), "completed"},
		{"completed with a reference", Completed().WithRef("r-1"), "completed"},
		{"retry", Retry(cause), "retry: mailbox full"},
		{"retry without an error", Retry(nil), "retry"},
		{"retry after a while", RetryAfter(time.Minute, cause), "retry after 1m0s: mailbox full"},
		{"retry after no time", RetryAfter(0, cause), "retry after 0s: mailbox full"},
		{"failed", Failed(cause), "failed: mailbox full"},
		{"failed with an error that cannot speak", Failed(broken), "failed: <nil>"},
		{"unreachable", Unreachable(cause), "unreachable: mailbox full"},
		{"no answer is still unknown", Answer{}, "still unknown"},
		{"still unknown", StillUnknown(cause), "still unknown: mailbox full"},
		{"arrived", Arrived("r-1"), "arrived"},
		{"never arrived", NeverArrived(), "never arrived"},
		{"refused", Refused(cause), "refused: mailbox full"},
		{"refused without an error", Refused(nil), "refused"},
	} {
		t.Run(test.behaviour, func(t *testing.T) {
			if got := test.value.String(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestWhatIsNotSaidIsUnknown(t *testing.T) {
	if (Outcome{}) != Unknown(nil) {
		t.Errorf("the zero outcome is %v", Outcome{})
	}
	if (Answer{}) != StillUnknown(nil) {
		t.Errorf("the zero answer is %v", Answer{})
	}
}

func TestWithRefChangesACopy(t *testing.T) {
	cause := errors.New("timeout")
	without := Unknown(cause)
	with := without.WithRef("r-1")
	if without.ref != "" {
		t.Errorf("the outcome itself got the reference %q", without.ref)
	}
	if with.ref != "r-1" || with.kind != outcomeUnknown || with.err != cause {
		t.Errorf("the copy is %v with the reference %q", with, with.ref)
	}
}

// TestDeliveryTellsAllThatTheEntryHas compares by field, so that a field which is
// added to Delivery and forgotten in deliveryOf shows.
func TestDeliveryTellsAllThatTheEntryHas(t *testing.T) {
	region := "eu"
	entry := Entry{
		Claim: Claim{Token: 1}, ID: OutboxID(uuid.New()), CommandID: CommandID(uuid.New()),
		Columns: Columns{TenantID: uuid.New(), Region: &region}, Destination: DestinationStock,
		PayloadType: "stock_change", PayloadVersion: 1, IdempotencyKey: "k", Headers: map[string]string{"h": "v"},
		Payload: StockChange{}, Raw: []byte("{}"), DecodeErr: ErrUndecodable, Attempt: 2,
		EnqueuedAt: time.Unix(1, 0), ExpiresAt: time.Unix(4, 0), LastAttemptAt: time.Unix(3, 0), RemoteRef: "r", OrderKey: "o", LimitKey: "meter",
	}
	of, got := reflect.ValueOf(entry), reflect.ValueOf(deliveryOf(entry))
	told := map[string]bool{}
	for i := range got.NumField() {
		name := got.Type().Field(i).Name
		told[name] = true
		if got.Field(i).IsZero() || !reflect.DeepEqual(got.Field(i).Interface(), of.FieldByName(name).Interface()) {
			t.Errorf("%s is %v", name, got.Field(i).Interface())
		}
	}
	// The payload is an argument of its own, and the claim is the dispatcher's.
	for i := range of.NumField() {
		if name := of.Type().Field(i).Name; !told[name] && !slices.Contains([]string{"Claim", "Payload", "DecodeErr"}, name) {
			t.Errorf("the handler is not told %s", name)
		}
	}
}

// TestDeliveryIsNamedAsItsEntry holds a log line of a handler to be found by what
// the store has logged of the row.
func TestDeliveryIsNamedAsItsEntry(t *testing.T) {
	logged := func(v slog.LogValuer) string {
		var out strings.Builder
		slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})).Info("m", "row", v)
		return out.String()
	}
	entry := Entry{ID: OutboxID(uuid.New()), Destination: DestinationStock, PayloadType: "stock_change", PayloadVersion: 1, Attempt: 2}
	delivery := deliveryOf(entry)
	if delivery.String() != entry.String() || logged(delivery) != logged(entry) {
		t.Errorf("%v, logged as %q; its entry %v, %q", delivery, logged(delivery), entry, logged(entry))
	}
}

// routeRecorder is a handler for every destination that notes what it is called
// for.
type routeRecorder struct{ calls []string }

func (r *routeRecorder) deliver(method string, d Delivery, p Payload) Outcome {
	r.note(method, d, p)
	return Completed().WithRef(method)
}

func (r *routeRecorder) reconcile(method string, d Delivery, p Payload) Answer {
	r.note(method, d, p)
	return Arrived(method)
}

func (r *routeRecorder) note(method string, d Delivery, p Payload) {
	r.calls = append(r.calls, method+" "+string(d.Destination)+" "+p.payloadType())
}

func (r *routeRecorder) BankTransfer(_ context.Context, d Delivery, p BankTransfer) Outcome {
	return r.deliver("BankTransfer", d, p)
}

func (r *routeRecorder) ReconcileBankTransfer(_ context.Context, d Delivery, p BankTransfer) Answer {
	return r.reconcile("ReconcileBankTransfer", d, p)
}

func (r *routeRecorder) OrderConfirmation(_ context.Context, d Delivery, p OrderConfirmation) Outcome {
	return r.deliver("OrderConfirmation", d, p)
}

func (r *routeRecorder) PaymentCapture(_ context.Context, d Delivery, p PaymentCapture) Outcome {
	return r.deliver("PaymentCapture", d, p)
}

func (r *routeRecorder) ReconcilePaymentCapture(_ context.Context, d Delivery, p PaymentCapture) Answer {
	return r.reconcile("ReconcilePaymentCapture", d, p)
}

func (r *routeRecorder) StockChange(_ context.Context, d Delivery, p StockChange) Outcome {
	return r.deliver("StockChange", d, p)
}

func (r *routeRecorder) UsageSample(_ context.Context, d Delivery, p UsageSample) Outcome {
	return r.deliver("UsageSample", d, p)
}

// allRoutes has h as the handler of every destination.
func allRoutes(h *routeRecorder) Handlers {
	return AllHandlers(HandleBank(h), HandleLedger(h), HandleMailer(h), HandleMetrics(h), HandlePayments(h), HandleStock(h))
}

// TestRoutesCallTheirHandlers holds the routes to the policies: every kind of row
// that can be claimed has its method, and a destination that is to be asked is.
func TestRoutesCallTheirHandlers(t *testing.T) {
	payloads := map[string]Payload{}
	methods := map[string]string{}
	for _, p := range []Payload{BankTransfer{}, OrderConfirmation{}, PaymentCapture{}, StockChange{}, UsageSample{}} {
		payloads[p.payloadType()] = p
		methods[p.payloadType()] = reflect.TypeOf(p).Name()
	}
	handler := &routeRecorder{}
	routes := allRoutes(handler).routes
	if len(routes) != len(policies) {
		t.Fatalf("%d routes, want %d", len(routes), len(policies))
	}
	for i, p := range policies {
		t.Run(string(p.destination), func(t *testing.T) {
			r := routes[i]
			if r.destination != p.destination || r.missing || len(r.calls) != len(p.kinds) {
				t.Fatalf("the route is of %s with %d calls, missing: %t; want %v", r.destination, len(r.calls), r.missing, p.kinds)
			}
			asked := p.firstQuestion != neverAsked
			for _, kind := range p.kinds {
				name, _, _ := strings.Cut(strings.TrimPrefix(kind, string(p.destination)+"/"), "@")
				called, ok := r.calls[name]
				if !ok || (called.ask != nil) != asked {
					t.Fatalf("%s: found %t, asked %t, want %t", kind, ok, called.ask != nil, asked)
				}
				d := Delivery{Destination: p.destination, PayloadType: name, PayloadVersion: 1}
				handler.calls = nil
				if got := called.deliver(t.Context(), d, payloads[name]); got != Completed().WithRef(methods[name]) {
					t.Errorf("%s: %v with the reference %q", kind, got, got.ref)
				}
				want := []string{methods[name] + " " + string(p.destination) + " " + name}
				if asked {
					if got := called.ask(t.Context(), d, payloads[name]); got != Arrived("Reconcile"+methods[name]) {
						t.Errorf("%s: %v with the reference %q", kind, got, got.ref)
					}
					want = append(want, "Reconcile"+want[0])
				}
				if !slices.Equal(handler.calls, want) {
					t.Errorf("%s called %q, want %q", kind, handler.calls, want)
				}
			}
		})
	}
}

func TestPayloadsOfAnotherTypeReachNoHandler(t *testing.T) {
	handler := &routeRecorder{}
	called := HandlePayments(handler).route().calls["payment_capture"]
	d := Delivery{Destination: DestinationPayments, PayloadType: "payment_capture", PayloadVersion: 7}
	for name, payload := range map[string]Payload{"none": nil, "another": StockChange{Shelf: "s3cret"}, "a pointer": &PaymentCapture{AccountID: "s3cret"}} {
		t.Run(name, func(t *testing.T) {
			outcome := called.deliver(t.Context(), d, payload)
			if outcome.kind != outcomeFailed || !errors.Is(outcome.err, ErrUndecodable) {
				t.Errorf("outcome %v", outcome)
			}
			answer := called.ask(t.Context(), d, payload)
			if answer.kind != answerUnknown || !errors.Is(answer.err, ErrUndecodable) {
				t.Errorf("answer %v", answer)
			}
			for _, text := range []string{outcome.String(), answer.String()} {
				if !strings.Contains(text, "payments") || !strings.Contains(text, "payment_capture version 7") || strings.Contains(text, "s3cret") {
					t.Errorf("the reason is %q", text)
				}
			}
		})
	}
	if handler.calls != nil {
		t.Errorf("called %q", handler.calls)
	}
}

func TestRoutesWithoutHandlerAreMissing(t *testing.T) {
	handlers := SomeHandlers(HandleMailer(nil), HandleStock(&routeRecorder{}), PaymentsRoute{}, nil)
	want := []route{
		{destination: DestinationMailer, missing: true},
		{destination: DestinationStock},
		{destination: DestinationPayments, missing: true},
		{missing: true},
	}
	if len(handlers.routes) != len(want) {
		t.Fatalf("%d routes, want %d", len(handlers.routes), len(want))
	}
	for i, got := range handlers.routes {
		if got.destination != want[i].destination || got.missing != want[i].missing || (len(got.calls) == 0) != want[i].missing {
			t.Errorf("route %d is of %q with %d calls, missing: %t", i, got.destination, len(got.calls), got.missing)
		}
	}
}
