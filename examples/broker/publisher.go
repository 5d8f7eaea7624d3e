package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/examples/broker/internal/eventbox"
)

// stream returns the stream of the events. It knows the ids of its messages for
// a day: an event that is sent again after more than that, since the broker was
// away for so long after it had stored it, would be stored twice.
func stream() jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Duplicates: 24 * time.Hour}
}

// connect connects to the broker. While the connection is lost nothing is kept to
// be sent later: the outbox does that, and knows what was sent.
func connect(url string, options ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(url, append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectBufSize(-1)}, options...)...)
}

func handlers(js jetstream.JetStream) eventbox.Handlers {
	return eventbox.AllHandlers(eventbox.HandleEvents(publisher{js}))
}

// publisher delivers events to the broker.
type publisher struct{ js jetstream.JetStream }

func (p publisher) OrderPlaced(ctx context.Context, d eventbox.Delivery, e eventbox.OrderPlaced) eventbox.Outcome {
	return p.publish(ctx, d, subject(e.OrderID, "placed"))
}

func (p publisher) OrderShipped(ctx context.Context, d eventbox.Delivery, e eventbox.OrderShipped) eventbox.Outcome {
	return p.publish(ctx, d, subject(e.OrderID, "shipped"))
}

func subject(order uuid.UUID, event string) string { return fmt.Sprintf("orders.%s.%s", order, event) }

// publish sends the bytes of an event, under its idempotency key, and waits until
// the stream has stored them.
func (p publisher) publish(ctx context.Context, d eventbox.Delivery, subject string) eventbox.Outcome {
	message := nats.NewMsg(subject)
	message.Data = d.Raw
	for name, value := range d.Headers {
		message.Header.Set(name, value)
	}
	ack, err := p.js.PublishMsg(ctx, message, jetstream.WithMsgID(d.IdempotencyKey), jetstream.WithRetryAttempts(0))
	var refused *jetstream.APIError
	switch {
	case err == nil:
		return eventbox.Completed().WithRef(fmt.Sprintf("%s %d", ack.Stream, ack.Sequence))
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, jetstream.ErrNoStreamResponse):
		return eventbox.Unreachable(err) // there is no connection, or no stream behind it
	case errors.As(err, &refused) && refused.Code >= http.StatusInternalServerError:
		return eventbox.Retry(err) // it has no room or no leader at present
	case errors.As(err, &refused), errors.Is(err, nats.ErrMaxPayload):
		return eventbox.Failed(err)
	default:
		// No acknowledgement has come in time. It is sent again, and the stream
		// drops it if it is there.
		return eventbox.Unknown(err)
	}
}
