package outbox

import (
	"context"
	"slices"
	"time"
)

// keepStep is how often handlers are watched and claims are looked at, at the most.
const keepStep = time.Second

// keep watches the handlers and renews claims until ctx ends.
func (d *Dispatcher) keep(ctx context.Context) {
	every := keepStep
	for _, c := range d.consumers {
		every = min(every, c.policy.timeout, c.policy.lease/8)
	}
	for {
		d.pause(ctx, every)
		if ctx.Err() != nil {
			return
		}
		var renew []*task
		for _, c := range d.consumers {
			renew = append(renew, c.watch(d.clock.now())...)
		}
		for part := range slices.Chunk(renew, sweepStep) {
			if err := d.renew(ctx, part); err != nil && ctx.Err() == nil {
				d.failed("extend", err, "rows", len(part))
			}
		}
	}
}

// renew renews claims.
func (d *Dispatcher) renew(ctx context.Context, tasks []*task) error {
	claims := make([]Claim, len(tasks))
	for i, t := range tasks {
		claims[i] = t.row.Claim
	}
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	at := d.clock.now()
	kept, err := d.store.ExtendClaims(ctx, time.Time{}, claims...)
	if err != nil {
		return err
	}
	held := make(map[Claim]bool, len(kept))
	for _, claim := range kept {
		held[claim] = true
	}
	for _, t := range tasks {
		t.c.renewed(t, at, held[t.row.Claim])
	}
	return nil
}

// How often rows are looked for that have expired, or are older than their
// retention, and how many of them go at a time.
const (
	expireEvery = 10 * time.Second
	purgeEvery  = time.Minute
	sweepLimit  = 10_000
)

// sweep does the upkeep of the tables until ctx ends.
func (d *Dispatcher) sweep(ctx context.Context) {
	releaseEvery := d.consumers[0].policy.lease / 4
	for _, c := range d.consumers {
		releaseEvery = min(releaseEvery, c.policy.lease/4)
	}
	duties := []struct {
		name  string
		every time.Duration
		do    func(context.Context) error
		next  time.Time
	}{
		{name: "release", every: releaseEvery, do: d.release},
		{name: "expire", every: expireEvery, do: d.expire},
		{name: "purge", every: purgeEvery, do: d.purge},
	}
	for {
		soonest := d.clock.now().Add(expireEvery)
		for i := range duties {
			duty := &duties[i]
			if now := d.clock.now(); !duty.next.After(now) {
				if err := duty.do(ctx); err != nil && ctx.Err() == nil {
					d.failed(duty.name, err)
				}
				duty.next = now.Add(spread(duty.every))
			}
			if duty.next.Before(soonest) {
				soonest = duty.next
			}
		}
		d.pause(ctx, soonest.Sub(d.clock.now()))
		if ctx.Err() != nil {
			return
		}
	}
}

// release ends the claims of dead workers.
func (d *Dispatcher) release(ctx context.Context) error {
	return d.steps(ctx, func(ctx context.Context) (int, error) {
		ids, err := d.store.backend.releaseExpired(ctx, d.destinations(), sweepStep, time.Time{})
		if len(ids) > 0 {
			d.log.Warn("outbox: the claims of rows had run out", "rows", len(ids))
			notify(d.woken)
		}
		return len(ids), err
	})
}

// expire fails the rows that were not delivered in time.
func (d *Dispatcher) expire(ctx context.Context) error {
	return d.steps(ctx, func(ctx context.Context) (int, error) {
		ids, err := d.store.backend.expireDue(ctx, d.destinations(), sweepStep, time.Time{})
		if len(ids) > 0 {
			d.log.Warn("outbox: rows have expired", "rows", len(ids))
		}
		return len(ids), err
	})
}

// purge removes rows that are older than their retention, those of destinations
// that the package does not know included.
func (d *Dispatcher) purge(ctx context.Context) error {
	if d.options.NoPurge {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, purgeEvery)
	defer cancel()
	_, err := d.store.Purge(ctx, time.Time{}, sweepLimit)
	return err
}

// steps repeats a step, each within the time of a statement, until it finds less
// than its limit, or sweepLimit in all.
func (d *Dispatcher) steps(ctx context.Context, step func(context.Context) (int, error)) error {
	for range sweepLimit / sweepStep {
		ctx, cancel := context.WithTimeout(ctx, statementTime)
		n, err := step(ctx)
		cancel()
		if err != nil || n < sweepStep {
			return err
		}
	}
	return nil
}

func (d *Dispatcher) destinations() []Destination {
	all := make([]Destination, len(d.consumers))
	for i, c := range d.consumers {
		all[i] = c.policy.destination
	}
	return all
}
