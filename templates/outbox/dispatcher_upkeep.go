package outbox

import (
	"context"
	"slices"
	"sync"
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
		d.renewAll(ctx, renew)
	}
}

// maxStuck is how many claims are tried in one turn whose renewal has failed on its
// own: each may take the time of a lock.
const maxStuck = 5

// renewAll renews claims. One that keeps a statement from being carried out, as
// where somebody has locked the row, is found by halves, and tried behind the others
// from then on. The larger parts go first, so that most are renewed at once.
func (d *Dispatcher) renewAll(ctx context.Context, tasks []*task) {
	var free, stuck []*task
	for _, t := range tasks {
		if t.stuck {
			stuck = append(stuck, t)
		} else {
			free = append(free, t)
		}
	}
	parts := slices.Collect(slices.Chunk(free, sweepStep))
	parts = slices.AppendSeq(parts, slices.Chunk(stuck[:min(len(stuck), maxStuck)], 1))
	for len(parts) > 0 && ctx.Err() == nil {
		part := parts[0]
		parts = parts[1:]
		err := d.renew(ctx, part)
		if err != nil && ctx.Err() == nil {
			d.failed("extend", err, "rows", len(part))
		}
		n := len(part)
		switch {
		case n == 1:
			part[0].stuck = blamesARow(err)
		case blamesARow(err):
			parts = append(parts, part[:n/2], part[n/2:])
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
	for _, c := range d.consumers {
		c.renewed(tasks, at, held)
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

// sweep does the upkeep of the tables until ctx ends. No duty waits for another: a
// purge may take long.
func (d *Dispatcher) sweep(ctx context.Context) {
	releaseEvery := d.consumers[0].policy.lease / 4
	for _, c := range d.consumers {
		releaseEvery = min(releaseEvery, c.policy.lease/4)
	}
	var all sync.WaitGroup
	for _, duty := range []struct {
		name  string
		every time.Duration
		do    func(context.Context) error
	}{
		{"release", releaseEvery, d.release},
		{"expire", expireEvery, d.expire},
		{"purge", purgeEvery, d.purge},
	} {
		all.Add(1)
		go func() {
			defer all.Done()
			for ctx.Err() == nil {
				next := d.clock.now().Add(spread(duty.every))
				if err := duty.do(ctx); err != nil && ctx.Err() == nil {
					d.failed(duty.name, err)
				}
				d.pause(ctx, next.Sub(d.clock.now()))
			}
		}()
	}
	all.Wait()
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
