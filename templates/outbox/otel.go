package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// OTelOptions are what [OTelObserver] may be given. The zero value takes what the
// program has set in the package otel.
type OTelOptions struct {
	MeterProvider  metric.MeterProvider // nil means otel.GetMeterProvider
	TracerProvider trace.TracerProvider // nil means otel.GetTracerProvider
}

// OTelObserver returns an Observer that feeds OpenTelemetry with the metrics and
// traces of one dispatcher. The error is the meter's.
//
// Each call of a handler is a span: of the kind consumer when it delivers, client
// when it asks about an unknown outcome. The span begins a trace of its own and is
// linked to the one that [OTelInject] has stored and [OTelExtract] has read: a
// message may be delivered long after that has ended, and more than once.
//
// Names and units are those of the semantic conventions for messaging, version
// 1.39.0, and begin with outboxgen where these have none:
//
//	messaging.client.consumed.messages   rows that were claimed
//	messaging.process.duration           seconds that deliveries took; it counts them
//	messaging.client.operation.duration  seconds that questions took; it counts them
//	outboxgen.delivery.latency           seconds from Enqueue to when a message was known to have arrived
//	outboxgen.settlements                settlements that were written
//	outboxgen.lost.claims                claims that were lost
//	outboxgen.open.circuits              destinations, or limit keys, that are left alone
//	outboxgen.failed.statements          statements of the dispatcher's own that failed
//
// Durations have the attribute outboxgen.outcome: completed, retry, failed,
// unreachable or unknown; of questions arrived, never_arrived, refused or
// still_unknown. It is the error.type as well where the call was no success. The
// latency is the difference of two hosts' clocks, at least 0; for a message that
// is due later it holds that time too.
//
// All of them, and the spans, have the attribute db.collection.name: the table of
// the messages, by which the packages of one program differ.
//
// Nothing tells what a payload holds. That goes for the texts of errors, remote
// references and limit keys too, which are left out. A handler may add what it
// deems fit to the span in its context.
func OTelObserver(options OTelOptions) (Observer, error) {
	if options.MeterProvider == nil {
		options.MeterProvider = otel.GetMeterProvider()
	}
	if options.TracerProvider == nil {
		options.TracerProvider = otel.GetTracerProvider()
	}
	meter := options.MeterProvider.Meter(otelScope)
	o := &otelObserver{tracer: options.TracerProvider.Tracer(otelScope), open: make(map[otelCircuit]struct{})}
	var faults [8]error
	o.claims, faults[0] = meter.Int64Counter("messaging.client.consumed.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Number of rows that were claimed."))
	o.deliveries, faults[1] = meter.Float64Histogram("messaging.process.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of deliveries."), metric.WithExplicitBucketBoundaries(otelCallBounds()...))
	o.questions, faults[2] = meter.Float64Histogram("messaging.client.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of questions about unknown outcomes."), metric.WithExplicitBucketBoundaries(otelCallBounds()...))
	o.latency, faults[3] = meter.Float64Histogram("outboxgen.delivery.latency", metric.WithUnit("s"),
		metric.WithDescription("Time from enqueueing a message to when it was known to have arrived."),
		metric.WithExplicitBucketBoundaries(0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 21600, 86400))
	o.settlements, faults[4] = meter.Int64Counter("outboxgen.settlements", metric.WithUnit("{settlement}"),
		metric.WithDescription("Number of settlements that were written."))
	o.losses, faults[5] = meter.Int64Counter("outboxgen.lost.claims", metric.WithUnit("{claim}"),
		metric.WithDescription("Number of claims that were lost: what their handlers did is not written."))
	o.circuits, faults[6] = meter.Int64UpDownCounter("outboxgen.open.circuits", metric.WithUnit("{circuit}"),
		metric.WithDescription("Number of destinations, or limit keys of them, that are left alone since they cannot be reached."))
	o.failures, faults[7] = meter.Int64Counter("outboxgen.failed.statements", metric.WithUnit("{statement}"),
		metric.WithDescription("Number of statements of the dispatcher's own that failed and are tried again."))
	if err := errors.Join(faults[:]...); err != nil {
		return Observer{}, fmt.Errorf("outbox: OTelObserver: %w", err)
	}
	return Observer{
		Claimed: o.claimed, Started: o.started, Delivered: o.delivered, Answered: o.answered, Settled: o.settled,
		Lost: o.lost, CircuitChanged: o.circuitChanged, Failed: o.failed,
	}, nil
}

// OTelInject is an [Options].Inject. It returns the headers by which the
// propagator that the program has set in the package otel carries the trace, and
// whatever else it carries of ctx. They are stored with the message.
func OTelInject(ctx context.Context) map[string]string {
	headers := propagation.MapCarrier{}
	otel.GetTextMapPropagator().Inject(ctx, headers)
	return headers
}

// OTelExtract is a [DispatcherOptions].Extract, the other end of [OTelInject].
func OTelExtract(ctx context.Context, headers map[string]string) context.Context {
	return otel.GetTextMapPropagator().Extract(ctx, propagation.MapCarrier(headers))
}

// otelScope is the name of the instrumentation scope.
const otelScope = "github.com/outboxgen/outboxgen"

// The names of the calls of handlers.
const (
	otelDeliver   = "deliver"
	otelReconcile = "reconcile"
)

// otelCallBounds are the boundaries, in seconds, that the conventions give for the
// durations of operations.
func otelCallBounds() []float64 {
	return []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
}

// otelObserver is what the functions of one Observer share.
type otelObserver struct {
	tracer      trace.Tracer
	claims      metric.Int64Counter
	deliveries  metric.Float64Histogram
	questions   metric.Float64Histogram
	latency     metric.Float64Histogram
	settlements metric.Int64Counter
	losses      metric.Int64Counter
	circuits    metric.Int64UpDownCounter
	failures    metric.Int64Counter

	mu   sync.Mutex
	open map[otelCircuit]struct{}
}

type otelCircuit struct {
	destination Destination
	key         string
}

// otelSpan is the key of a context for the span of a call. The span that the trace
// package finds in the context may be another's.
type otelSpan struct{}

// otelAttributes say what an operation is about. They tell one message from
// another of its destination by nothing, so that metrics can have them.
func otelAttributes(operation string, destination Destination) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.system", "outboxgen"),
		attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.destination.name", string(destination)),
		otelTable(),
	}
}

// otelTable tells one package from another of the same program, which may have
// destinations of the same name.
func otelTable() attribute.KeyValue {
	return attribute.String("db.collection.name", strings.ReplaceAll(messageTable, `"`, ""))
}

func (o *otelObserver) claimed(destination Destination, rows int) {
	o.claims.Add(context.Background(), int64(rows), metric.WithAttributes(otelAttributes("claim", destination)...))
}

func (o *otelObserver) started(ctx context.Context, about DeliveryInfo) context.Context {
	operation, kind := otelDeliver, trace.SpanKindConsumer
	if about.Question {
		operation, kind = otelReconcile, trace.SpanKindClient
	}
	options := []trace.SpanStartOption{
		trace.WithNewRoot(), trace.WithSpanKind(kind),
		trace.WithAttributes(otelAttributes(operation, about.Destination)...),
		trace.WithAttributes(
			attribute.String("messaging.message.id", about.ID.String()),
			attribute.String("messaging.message.conversation_id", about.CommandID.String()),
			attribute.String("outboxgen.payload.type", about.PayloadType),
			attribute.Int("outboxgen.payload.version", about.PayloadVersion),
			attribute.Int("outboxgen.attempt", about.Attempt),
		),
	}
	if !about.Question {
		options = append(options, trace.WithAttributes(attribute.String("messaging.operation.type", "process")))
	}
	if enqueuer := trace.SpanContextFromContext(ctx); enqueuer.IsRemote() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: enqueuer}))
	}
	ctx, span := o.tracer.Start(ctx, operation+" "+string(about.Destination), options...)
	return context.WithValue(ctx, otelSpan{}, span)
}

func (o *otelObserver) delivered(ctx context.Context, about DeliveryInfo, outcome Outcome, took time.Duration) {
	name := "unknown"
	switch outcome.kind {
	case outcomeCompleted:
		name = "completed"
		o.arrived(ctx, about)
	case outcomeRetry, outcomeRetryAfter:
		name = "retry"
	case outcomeFailed:
		name = "failed"
	case outcomeUnreachable:
		name = "unreachable"
	}
	otelEnd(ctx, o.deliveries, otelAttributes(otelDeliver, about.Destination), name, outcome.kind == outcomeCompleted, took)
}

func (o *otelObserver) answered(ctx context.Context, about DeliveryInfo, answer Answer, took time.Duration) {
	name := "still_unknown"
	switch answer.kind {
	case answerArrived:
		name = "arrived"
		o.arrived(ctx, about)
	case answerNeverArrived:
		name = "never_arrived"
	case answerRefused:
		name = "refused"
	}
	otelEnd(ctx, o.questions, otelAttributes(otelReconcile, about.Destination), name, answer.kind != answerUnknown, took)
}

func (o *otelObserver) arrived(ctx context.Context, about DeliveryInfo) {
	latency := max(0, time.Since(about.EnqueuedAt))
	o.latency.Record(ctx, latency.Seconds(), metric.WithAttributes(otelAttributes(otelDeliver, about.Destination)...))
}

// otelEnd records a call and ends its span. There is none if the call has come to
// its end before the span began.
func otelEnd(ctx context.Context, durations metric.Float64Histogram, attributes []attribute.KeyValue, outcome string, success bool, took time.Duration) {
	result := []attribute.KeyValue{attribute.String("outboxgen.outcome", outcome)}
	if !success {
		result = append(result, attribute.String("error.type", outcome))
	}
	durations.Record(ctx, took.Seconds(), metric.WithAttributes(append(attributes, result...)...))
	span, ok := ctx.Value(otelSpan{}).(trace.Span)
	if !ok {
		return
	}
	span.SetAttributes(result...)
	if !success {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

func (o *otelObserver) settled(about DeliveryInfo, s Settlement) {
	o.settlements.Add(context.Background(), 1, metric.WithAttributes(otelAttributes(s.operation, about.Destination)...))
}

func (o *otelObserver) lost(about DeliveryInfo) {
	operation := otelDeliver
	if about.Question {
		operation = otelReconcile
	}
	o.losses.Add(context.Background(), 1, metric.WithAttributes(otelAttributes(operation, about.Destination)...))
}

// circuitChanged counts a circuit once, however often it opens again.
func (o *otelObserver) circuitChanged(destination Destination, key string, open bool) {
	circuit := otelCircuit{destination, key}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, was := o.open[circuit]; was == open {
		return
	}
	change := int64(1)
	if open {
		o.open[circuit] = struct{}{}
	} else {
		delete(o.open, circuit)
		change = -1
	}
	o.circuits.Add(context.Background(), change, metric.WithAttributes(otelAttributes(otelDeliver, destination)...))
}

func (o *otelObserver) failed(operation string, _ error) {
	o.failures.Add(context.Background(), 1, metric.WithAttributes(
		attribute.String("messaging.system", "outboxgen"), attribute.String("messaging.operation.name", operation), otelTable()))
}
