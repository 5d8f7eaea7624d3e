package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/semconv/v1.39.0/messagingconv"
	"go.opentelemetry.io/otel/trace"
)

// telemetry is where an observer feeds what the tests read.
type telemetry struct {
	reader   sdkmetric.Reader
	meters   metric.MeterProvider
	spans    *tracetest.SpanRecorder
	tracers  trace.TracerProvider
	observer Observer
}

func newTelemetry(t *testing.T) *telemetry {
	t.Helper()
	reader, spans := sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
	x := &telemetry{
		reader: reader, meters: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		spans: spans, tracers: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
	}
	observer, err := OTelObserver(OTelOptions{MeterProvider: x.meters, TracerProvider: x.tracers})
	must(t, err)
	x.observer = observer
	return x
}

// metrics are all readings, each as reading writes it: of a histogram the number of
// its values.
func (x *telemetry) metrics(t *testing.T) (all []string) {
	t.Helper()
	var collected metricdata.ResourceMetrics
	must(t, x.reader.Collect(t.Context(), &collected))
	for _, scope := range collected.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, point := range data.DataPoints {
					all = append(all, reading(m.Name, m.Unit, int(point.Value), point.Attributes.ToSlice()...))
				}
			case metricdata.Histogram[float64]:
				for _, point := range data.DataPoints {
					all = append(all, reading(m.Name, m.Unit, int(point.Count), point.Attributes.ToSlice()...))
				}
			default:
				t.Errorf("%s is a %T", m.Name, m.Data)
			}
		}
	}
	slices.Sort(all)
	return all
}

func reading(name, unit string, value int, attributes ...attribute.KeyValue) string {
	set := attribute.NewSet(attributes...)
	return fmt.Sprintf("%s in %s: %d of %s", name, unit, value, set.Encoded(attribute.DefaultEncoder()))
}

func (x *telemetry) wantMetrics(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, x.metrics(t)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// The names that the conventions give.
var (
	consumedMessages  = messagingconv.ClientConsumedMessages{}
	processDuration   = messagingconv.ProcessDuration{}
	operationDuration = messagingconv.ClientOperationDuration{}
)

func about(operation string, destination Destination, more ...attribute.KeyValue) []attribute.KeyValue {
	return append([]attribute.KeyValue{
		semconv.MessagingSystemKey.String("outboxgen"), semconv.MessagingOperationName(operation), semconv.MessagingDestinationName(string(destination)),
		semconv.DBCollectionName("outbox_message"),
	}, more...)
}

// ended are the attributes of a call that has ended.
func ended(outcome string, success bool) []attribute.KeyValue {
	attributes := []attribute.KeyValue{attribute.String("outboxgen.outcome", outcome)}
	if !success {
		attributes = append(attributes, semconv.ErrorTypeKey.String(outcome))
	}
	return attributes
}

// TestOTelTellsOfCalls has a dispatcher deliver a message, or ask about it, and
// reads everything that came of it.
func TestOTelTellsOfCalls(t *testing.T) {
	reason := errors.New("secret")
	for _, test := range []struct {
		name       string
		deliver    func() Outcome
		answer     func() Answer // nil = nothing is asked
		outcome    string        // of the last call
		success    bool
		arrived    bool
		settlement string // of the last call
	}{
		{"completed", func() Outcome { return Completed().WithRef("secret") }, nil, "completed", true, true, "MarkCompleted"},
		{"retry", func() Outcome { return Retry(reason) }, nil, "retry", false, false, "MarkRetry"},
		{"retry after a delay", func() Outcome { return RetryAfter(time.Hour, reason) }, nil, "retry", false, false, "MarkRetry"},
		{"failed", func() Outcome { return Failed(reason) }, nil, "failed", false, false, "MarkFailed"},
		{"unreachable", func() Outcome { return Unreachable(reason) }, nil, "unreachable", false, false, "Postpone"},
		{"unknown", func() Outcome { return Unknown(reason).WithRef("secret") }, nil, "unknown", false, false, "MarkOutcomeUnknown"},
		{"panic", func() Outcome { panic("secret") }, nil, "unknown", false, false, "MarkOutcomeUnknown"},
		{"arrived", nil, func() Answer { return Arrived("secret") }, "arrived", true, true, "MarkCompleted"},
		{"never arrived", nil, NeverArrived, "never_arrived", true, false, "MarkNeverArrived"},
		{"refused", nil, func() Answer { return Refused(reason) }, "refused", true, false, "MarkFailed"},
		{"still unknown", nil, func() Answer { return StillUnknown(reason) }, "still_unknown", false, false, "KeepUnknown"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := testPool(t)
			s := New(pool, Options{})
			x, r := newTelemetry(t), newRemote()
			r.deliver = func(ctx context.Context, _ Delivery) Outcome {
				if !trace.SpanFromContext(ctx).IsRecording() {
					t.Error("the handler has no span to add to")
				}
				if test.deliver == nil {
					return Unknown(nil)
				}
				return test.deliver()
			}
			r.answer = func(context.Context, Delivery) Answer { return test.answer() }
			d, err := NewDispatcher(s, r.handlers(), DispatcherOptions{Observer: x.observer, NoListen: true, Logger: slog.New(slog.DiscardHandler)})
			must(t, err)
			withPolicy(d, func(p *policy) { p.firstQuestion = 0 })
			message := ToPayments(PaymentCapture{PaymentID: uuid.New(), AccountID: "secret", Amount: orderConfirmation().Lines[0].Price})
			id := enqueueAll(t, pool, message.WithHeader("x", "secret"))[0]
			runOnce(t, d, 1)

			operation, kind, duration, unit := "deliver", trace.SpanKindConsumer, processDuration.Name(), processDuration.Unit()
			var want []string
			rows, attempt := 1, 1
			if test.answer != nil {
				// The last of its attempts: whatever the answer is, none follows.
				rows, attempt = 2, paymentsPolicy.maxAttempts
				execSQL(t, pool, "UPDATE outbox_queue SET attempt_count = $1", attempt)
				runOnce(t, d, 1)
				want = append(want,
					reading(duration, unit, 1, about(operation, DestinationPayments, ended("unknown", false)...)...),
					reading("outboxgen.settlements", "{settlement}", 1, about("MarkOutcomeUnknown", DestinationPayments)...),
				)
				operation, kind, duration, unit = "reconcile", trace.SpanKindClient, operationDuration.Name(), operationDuration.Unit()
			}
			want = append(want,
				reading(consumedMessages.Name(), consumedMessages.Unit(), rows, about("claim", DestinationPayments)...),
				reading(duration, unit, 1, about(operation, DestinationPayments, ended(test.outcome, test.success)...)...),
				reading("outboxgen.settlements", "{settlement}", 1, about(test.settlement, DestinationPayments)...),
			)
			if test.arrived {
				want = append(want, reading("outboxgen.delivery.latency", "s", 1, about("deliver", DestinationPayments)...))
			}
			x.wantMetrics(t, want...)

			spans := x.spans.Ended()
			if len(spans) != rows || len(x.spans.Started()) != rows {
				t.Fatalf("%d spans of %d have ended, want %d", len(spans), len(x.spans.Started()), rows)
			}
			span := spans[rows-1]
			if want := operation + " payments"; span.Name() != want || span.SpanKind() != kind {
				t.Errorf("the span is %q, %s, want %q, %s", span.Name(), span.SpanKind(), want, kind)
			}
			status := sdktrace.Status{Code: codes.Error}
			if test.success {
				status = sdktrace.Status{}
			}
			if span.Status() != status {
				t.Errorf("status %v, want %v", span.Status(), status)
			}
			attributes := about(operation, DestinationPayments, ended(test.outcome, test.success)...)
			attributes = append(attributes,
				semconv.MessagingMessageID(id.String()), semconv.MessagingMessageConversationID(testCommand.id.String()),
				attribute.String("outboxgen.payload.type", "payment_capture"), attribute.Int("outboxgen.payload.version", 1), attribute.Int("outboxgen.attempt", attempt),
			)
			if test.answer == nil {
				attributes = append(attributes, semconv.MessagingOperationTypeProcess)
			}
			if want, got := reading("", "", 0, attributes...), reading("", "", 0, span.Attributes()...); want != got {
				t.Errorf("attributes (-want +got):\n%s", cmp.Diff(want, got))
			}
			if len(span.Events()) > 0 || len(span.Links()) > 0 {
				t.Errorf("events %v, links %v, want none", span.Events(), span.Links())
			}
		})
	}
}

func runOnce(t *testing.T, d *Dispatcher, want int) {
	t.Helper()
	if n, err := d.RunOnce(t.Context()); n != want || err != nil {
		t.Fatalf("RunOnce: %d, %v, want %d", n, err, want)
	}
}

// TestOTelLinksTheEnqueuer carries a trace through the table. The span of the
// delivery begins a trace of its own, whatever Run is called within.
func TestOTelLinksTheEnqueuer(t *testing.T) {
	before := otel.GetTextMapPropagator()
	t.Cleanup(func() { otel.SetTextMapPropagator(before) })
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	member, err := baggage.NewMemberRaw("tenant", "a b")
	must(t, err)
	bag, err := baggage.New(member)
	must(t, err)
	for _, test := range []struct {
		name  string
		trace bool // the enqueuer has one
	}{{"an enqueuer with a trace", true}, {"an enqueuer without one", false}} {
		t.Run(test.name, func(t *testing.T) {
			pool := testPool(t)
			s := New(pool, Options{Inject: OTelInject})
			x, r := newTelemetry(t), newRemote()
			ctx := t.Context()
			var want []sdktrace.Link
			if test.trace {
				var enqueuer trace.Span
				ctx, enqueuer = x.tracers.Tracer("test").Start(baggage.ContextWithBaggage(ctx, bag), "enqueuer")
				want = []sdktrace.Link{{SpanContext: enqueuer.SpanContext().WithRemote(true)}}
			}
			must(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := s.With(tx).Enqueue(ctx, testCommand, testMessage(DestinationMailer))
				return err
			}))
			var carried string
			r.deliver = func(ctx context.Context, _ Delivery) Outcome {
				carried = baggage.FromContext(ctx).Member("tenant").Value()
				return Completed()
			}
			d, err := NewDispatcher(s, r.handlers(), DispatcherOptions{Observer: x.observer, Extract: OTelExtract, NoListen: true})
			must(t, err)
			ctx, runner := x.tracers.Tracer("test").Start(t.Context(), "runner")
			if n, err := d.RunOnce(ctx); n != 1 || err != nil {
				t.Fatalf("RunOnce: %d, %v", n, err)
			}
			spans := x.spans.Ended()
			if len(spans) != 1 {
				t.Fatalf("%d spans have ended, want that of the delivery", len(spans))
			}
			if spans[0].Parent().IsValid() || spans[0].SpanContext().TraceID() == runner.SpanContext().TraceID() {
				t.Errorf("the span has the parent %v", spans[0].Parent())
			}
			if diff := cmp.Diff(links(want), links(spans[0].Links())); diff != "" {
				t.Errorf("links (-want +got):\n%s", diff)
			}
			if test.trace != (carried == "a b") {
				t.Errorf("the handler has the baggage %q", carried)
			}
		})
	}
}

func links(all []sdktrace.Link) (contexts []string) {
	for _, l := range all {
		contexts = append(contexts, fmt.Sprintf("%s %s remote=%t", l.SpanContext.TraceID(), l.SpanContext.SpanID(), l.SpanContext.IsRemote()))
	}
	return contexts
}

// TestOTelCounts calls the functions of an observer one by one.
func TestOTelCounts(t *testing.T) {
	row := DeliveryInfo{Destination: DestinationMetrics}
	open := func(n int) string {
		return reading("outboxgen.open.circuits", "{circuit}", n, about("deliver", DestinationMetrics)...)
	}
	for _, test := range []struct {
		name string
		act  func(Observer)
		want []string
	}{
		{"nothing", func(Observer) {}, nil},
		{"rows claimed together", func(o Observer) {
			o.Claimed(DestinationMetrics, 3)
			o.Claimed(DestinationMailer, 2)
			o.Claimed(DestinationMetrics, 4)
		}, []string{
			reading(consumedMessages.Name(), consumedMessages.Unit(), 7, about("claim", DestinationMetrics)...),
			reading(consumedMessages.Name(), consumedMessages.Unit(), 2, about("claim", DestinationMailer)...),
		}},
		{"a call whose context is over", func(o Observer) {
			ctx, cancel := context.WithCancel(o.Started(context.Background(), row))
			cancel()
			o.Delivered(ctx, row, Outcome{}, time.Second)
		}, []string{reading(processDuration.Name(), processDuration.Unit(), 1, about("deliver", DestinationMetrics, ended("unknown", false)...)...)}},
		{"a lost claim of a delivery", func(o Observer) { o.Lost(row) },
			[]string{reading("outboxgen.lost.claims", "{claim}", 1, about("deliver", DestinationMetrics)...)}},
		{"a lost claim of a question", func(o Observer) { o.Lost(DeliveryInfo{Destination: DestinationBank, Question: true}) },
			[]string{reading("outboxgen.lost.claims", "{claim}", 1, about("reconcile", DestinationBank)...)}},
		{"a statement that failed", func(o Observer) { o.Failed("sweep", errors.New("secret")) },
			[]string{reading("outboxgen.failed.statements", "{statement}", 1, slices.DeleteFunc(about("sweep", ""), func(a attribute.KeyValue) bool { return a.Key == semconv.MessagingDestinationNameKey })...)}},
		{"circuits of two limit keys", func(o Observer) {
			o.CircuitChanged(DestinationMetrics, "secret", true)
			o.CircuitChanged(DestinationMetrics, "other", true)
		}, []string{open(2)}},
		{"a circuit that opens again", func(o Observer) {
			o.CircuitChanged(DestinationMetrics, "secret", true)
			o.CircuitChanged(DestinationMetrics, "secret", true)
		}, []string{open(1)}},
		{"a circuit that closes, opens and closes", func(o Observer) {
			for _, opens := range []bool{true, true, false, true, false} {
				o.CircuitChanged(DestinationMetrics, "secret", opens)
			}
		}, []string{open(0)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := newTelemetry(t)
			test.act(x.observer)
			x.wantMetrics(t, test.want...)
		})
	}
}

// TestOTelLatency is by the clock of the enqueuer's host, which may be ahead.
func TestOTelLatency(t *testing.T) {
	for _, test := range []struct {
		name     string
		enqueued time.Duration // from now
		check    func(seconds float64) bool
	}{
		{"an hour ago", -time.Hour, func(seconds float64) bool { return seconds >= 3600 }},
		{"in an hour, by a clock that is ahead", time.Hour, func(seconds float64) bool { return seconds == 0 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := newTelemetry(t)
			x.observer.Delivered(t.Context(), DeliveryInfo{EnqueuedAt: time.Now().Add(test.enqueued)}, Completed(), time.Second)
			var collected metricdata.ResourceMetrics
			must(t, x.reader.Collect(t.Context(), &collected))
			for _, m := range collected.ScopeMetrics[0].Metrics {
				if m.Name != "outboxgen.delivery.latency" {
					continue
				}
				if seconds := m.Data.(metricdata.Histogram[float64]).DataPoints[0].Sum; !test.check(seconds) {
					t.Errorf("the latency is %v s", seconds)
				}
				return
			}
			t.Error("there is no latency")
		})
	}
}

// TestOTelEndsNoOtherSpan has a call come to its end before its span began, as when
// Extract panics.
func TestOTelEndsNoOtherSpan(t *testing.T) {
	x := newTelemetry(t)
	ctx, _ := x.tracers.Tracer("test").Start(t.Context(), "another's")
	x.observer.Delivered(ctx, DeliveryInfo{}, Completed(), time.Second)
	if ended := x.spans.Ended(); len(ended) > 0 {
		t.Errorf("the span %q has ended", ended[0].Name())
	}
}

// TestOTelTakesWhatTheProgramHasSet where it is given no providers.
func TestOTelTakesWhatTheProgramHasSet(t *testing.T) {
	meters, tracers := otel.GetMeterProvider(), otel.GetTracerProvider()
	t.Cleanup(func() {
		otel.SetMeterProvider(meters)
		otel.SetTracerProvider(tracers)
	})
	x := newTelemetry(t)
	otel.SetMeterProvider(x.meters)
	otel.SetTracerProvider(x.tracers)
	observer, err := OTelObserver(OTelOptions{})
	must(t, err)
	observer.Claimed(DestinationMailer, 1)
	x.wantMetrics(t, reading(consumedMessages.Name(), consumedMessages.Unit(), 1, about("claim", DestinationMailer)...))
	observer.Started(t.Context(), DeliveryInfo{Destination: DestinationMailer})
	if started := x.spans.Started(); len(started) != 1 {
		t.Errorf("%d spans have begun", len(started))
	}
}

// refusing is a meter without any instruments.
type refusing struct{ noop.MeterProvider }

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

type refusingMeter struct{ noop.Meter }

func (refusingMeter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errors.New(name)
}

func (refusingMeter) Int64UpDownCounter(name string, _ ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return nil, errors.New(name)
}

func (refusingMeter) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return nil, errors.New(name)
}

func TestOTelObserverReportsEveryErrorOfTheMeter(t *testing.T) {
	_, err := OTelObserver(OTelOptions{MeterProvider: refusing{}})
	if err == nil {
		t.Fatal("there is no error")
	}
	for _, name := range []string{
		consumedMessages.Name(), processDuration.Name(), operationDuration.Name(), "outboxgen.delivery.latency", "outboxgen.settlements",
		"outboxgen.lost.claims", "outboxgen.open.circuits", "outboxgen.failed.statements",
	} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q does not tell of %s", err, name)
		}
	}
}
