package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"time"
)

// ruling is what follows from a call.
type ruling struct {
	settlement Settlement
	completed  bool // the next row of its key may follow
	reach      reach
}

// reach is what a call has shown of the way to its destination.
type reach int

const (
	reachUnknown reach = iota
	reached
	notReached
)

// Why a call has no outcome of its own.
var (
	errTimeout  = errors.New("the handler did not return in time")
	errStopped  = errors.New("the program was stopped while the handler ran")
	errNoReturn = errors.New("the handler ended its goroutine")
)

// call calls the handler of a row, or asks about it.
func (c *consumer) call(t *task) ruling {
	if t.row.decodePayload(); t.row.DecodeErr != nil {
		return c.judge(t, Failed(t.row.DecodeErr), StillUnknown(t.row.DecodeErr))
	}
	outcome, answer := c.invoke(t)
	return c.judge(t, outcome, answer)
}

// invoke calls the handler. A panic is no outcome.
func (c *consumer) invoke(t *task) (outcome Outcome, answer Answer) {
	ctx := t.ctx
	o := &c.d.observer
	defer func() {
		if p := recover(); p != nil {
			err := panicked(p)
			outcome, answer = Outcome{err: err}, Answer{err: err}
			c.d.log.Error("outbox: a handler has panicked", append(t.attrs(), "reason", err.Error(), "stack", string(debug.Stack()))...)
		}
		took := c.d.clock.now().Sub(t.started)
		if t.question && o.Answered != nil {
			o.Answered(ctx, infoOf(t), answer, took)
		}
		if !t.question && o.Delivered != nil {
			o.Delivered(ctx, infoOf(t), outcome, took)
		}
	}()
	if c.d.options.Extract != nil {
		ctx = c.d.options.Extract(ctx, t.row.Headers)
	}
	if o.Started != nil {
		ctx = o.Started(ctx, infoOf(t))
	}
	call := c.calls[t.row.PayloadType]
	if t.question {
		answer = call.ask(ctx, deliveryOf(t.row.Entry), t.row.Payload)
		return outcome, answer
	}
	outcome = call.deliver(ctx, deliveryOf(t.row.Entry), t.row.Payload)
	return outcome, answer
}

// panicked says why a handler has panicked. Only the texts of the runtime's own
// errors are known to hold nothing of a payload.
func panicked(p any) error {
	if err, ok := p.(runtime.Error); ok {
		return fmt.Errorf("the handler has panicked: %w", err)
	}
	return fmt.Errorf("the handler has panicked with a %T", p)
}

// judge says what becomes of a row by the outcome of its delivery, or, where it
// was asked about, by the answer.
func (c *consumer) judge(t *task, o Outcome, a Answer) ruling {
	if t.question {
		return c.judgeAnswer(t.row.Claim, a)
	}
	claim, attempt := t.row.Claim, t.row.Attempt
	reason := reasonOf(o.err)
	switch o.kind {
	case outcomeCompleted:
		return ruling{settlement: claim.Completed(o.ref), completed: true, reach: reached}
	case outcomeFailed:
		return ruling{settlement: claim.Failed(reason), reach: reached}
	case outcomeUnreachable:
		return ruling{settlement: claim.Postpone(reason, time.Time{}), reach: notReached}
	case outcomeRetryAfter:
		return ruling{settlement: c.retry(t, reason, o.after), reach: reached}
	case outcomeRetry:
		return ruling{settlement: c.retry(t, reason, c.policy.delay(attempt, rand.Float64())), reach: reached}
	}
	if c.policy.idempotent {
		return ruling{settlement: c.retry(t, reason, c.policy.delay(attempt, rand.Float64()))}
	}
	unknown := claim.OutcomeUnknown(o.ref, time.Time{})
	unknown.reason = reason
	return ruling{settlement: later(unknown, max(0, c.policy.firstQuestion))}
}

func (c *consumer) judgeAnswer(claim Claim, a Answer) ruling {
	switch a.kind {
	case answerArrived:
		return ruling{settlement: claim.Completed(a.ref), reach: reached}
	case answerNeverArrived:
		return ruling{settlement: claim.NeverArrived("the destination has not received it"), reach: reached}
	case answerRefused:
		return ruling{settlement: claim.Failed(reasonOf(a.err)), reach: reached}
	}
	keep := claim.KeepUnknown(time.Time{})
	if a.err != nil {
		keep.reason = reasonOf(a.err)
	}
	return ruling{settlement: later(keep, c.policy.askEvery)}
}

// retry sends a row again after a delay, or fails it when its attempts are used up.
// An attempt that the dispatcher itself has cut off, in order to stop, is not the
// message's fault: no row fails by it.
func (c *consumer) retry(t *task, reason string, delay time.Duration) Settlement {
	cutOff := errors.Is(t.ctx.Err(), context.Canceled)
	if c.policy.maxAttempts > 0 && t.row.Attempt >= c.policy.maxAttempts && !cutOff {
		return t.row.Claim.Failed(fmt.Sprintf("gave up after %d attempts: %s", t.row.Attempt, reason))
	}
	return later(t.row.Claim.Retry(reason, time.Time{}), delay)
}

// later is a settlement by which the row is due, or the next question, after a
// delay from the database's present.
func later(s Settlement, delay time.Duration) Settlement {
	s.delay = max(0, delay)
	return s
}

// reasonOf is the text of an error, by way of fmt, which bears an Error method
// that panics.
func reasonOf(err error) string {
	if err == nil {
		return "the handler gave no reason"
	}
	return fmt.Sprintf("%v", err)
}
