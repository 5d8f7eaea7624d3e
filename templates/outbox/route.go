package outbox

import (
	"context"
	"fmt"
)

// Route is a destination with the handler that delivers to it. The Handle
// functions make it.
type Route interface{ route() route }

// Handlers are the routes of one dispatcher. [AllHandlers] and [SomeHandlers] make
// them.
type Handlers struct{ routes []route }

// SomeHandlers are the handlers of a dispatcher that delivers to some of the
// destinations. It leaves the messages for all others to other programs.
func SomeHandlers(routes ...Route) Handlers {
	var h Handlers
	for _, r := range routes {
		if r == nil {
			h.routes = append(h.routes, route{missing: true})
			continue
		}
		h.routes = append(h.routes, r.route())
	}
	return h
}

// route is a destination and what is called for it.
type route struct {
	destination Destination     // empty where the Route itself is nil
	missing     bool            // the handler is nil
	calls       map[string]call // by payload type
}

// call is what is called for the messages of one payload type.
type call struct {
	deliver func(context.Context, Delivery, Payload) Outcome
	ask     func(context.Context, Delivery, Payload) Answer // nil where nobody is asked
}

// on calls a handler's method with payloads of its type. It fails others, and
// nil, since no attempt would end otherwise.
func on[P Payload](method func(context.Context, Delivery, P) Outcome) func(context.Context, Delivery, Payload) Outcome {
	return func(ctx context.Context, d Delivery, payload Payload) Outcome {
		p, ok := payload.(P)
		if !ok {
			return Failed(errOtherPayload(d))
		}
		return method(ctx, d, p)
	}
}

// ask is on for a Reconcile method. Of a payload that the method does not take
// nothing has become known.
func ask[P Payload](method func(context.Context, Delivery, P) Answer) func(context.Context, Delivery, Payload) Answer {
	return func(ctx context.Context, d Delivery, payload Payload) Answer {
		p, ok := payload.(P)
		if !ok {
			return StillUnknown(errOtherPayload(d))
		}
		return method(ctx, d, p)
	}
}

func errOtherPayload(d Delivery) error {
	return fmt.Errorf("%w: the handler of %s does not take %s version %d", ErrUndecodable, d.Destination, d.PayloadType, d.PayloadVersion)
}

// deliveryOf is what the handler learns of a claimed row.
func deliveryOf(e Entry) Delivery {
	return Delivery{
		ID: e.ID, CommandID: e.CommandID, Columns: e.Columns, Destination: e.Destination,
		PayloadType: e.PayloadType, PayloadVersion: e.PayloadVersion, IdempotencyKey: e.IdempotencyKey, Attempt: e.Attempt,
		Headers: e.Headers, Raw: e.Raw, EnqueuedAt: e.EnqueuedAt, ExpiresAt: e.ExpiresAt, LastAttemptAt: e.LastAttemptAt,
		RemoteRef: e.RemoteRef, OrderKey: e.OrderKey, LimitKey: e.LimitKey,
	}
}
