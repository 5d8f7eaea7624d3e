package schema

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// What stands where the author says nothing. A lease gives two calls time, and
// the settling of the second.
const (
	defaultTimeout        = 30 * time.Second
	defaultLeaseMargin    = 30 * time.Second
	defaultMaxAttempts    = 10
	defaultRetryInitial   = time.Second
	defaultRetryMax       = 15 * time.Minute
	defaultRetryFactor    = 2
	defaultRetryJitter    = 0.2
	defaultReconcileFirst = time.Minute
	defaultReconcileEvery = 10 * time.Minute
	defaultConcurrency    = 8
	defaultKeepCompleted  = 7 * day
	defaultKeepFailed     = 30 * day
)

// Words that stand in the place of a number, a mapping or a duration.
const (
	unlimitedWord = "unlimited"
	noneWord      = "none"
	neverWord     = "never"
)

func (d *decoder) readDestinations(n *node) []*Destination {
	if n == nil {
		return nil
	}
	if n.kind != mapping {
		d.wrongKind(n, "a mapping of names to destinations")
		return nil
	}
	if len(n.entries) == 0 {
		d.fault(CodeNoItems, n.pos, "a specification needs a destination at least")
		return nil
	}
	var all []*Destination
	for _, e := range n.entries {
		all = append(all, d.destination(e))
	}
	return all
}

func (d *decoder) destination(e entry) *Destination {
	dest := &Destination{Name: d.name(e, "a destination")}
	o, ok := d.object(e.value, e.pos, "destination "+quote(e.key), destinationKeys)
	if !ok {
		return dest
	}
	dest.GoName = d.goName(o.get("go_name"))
	dest.Doc = d.text(o.get("doc"))
	dest.Accepts = d.accepts(o.need("accepts", "list the payloads that may be sent there"))
	dest.Idempotent = d.flag(o.need("idempotent", "true when the same message may reach it twice without harm; there is no default, since it decides what happens when a call ends without an answer"))
	dest.Timeout = d.duration(o.get("timeout"), defaultTimeout, false)
	dest.Lease = d.lease(o.get("lease"), dest.Timeout)
	dest.Retry = d.retry(o.get("retry"))
	dest.Reconcile = d.reconcile(o, dest.Idempotent)
	dest.Limits = d.limits(o.get("limits"), dest.Accepts)
	dest.OrderBy = d.selector(o.get("order_by"), dest.Accepts, orderBy)
	dest.IdempotencyKey = d.selector(o.get("idempotency_key"), dest.Accepts, idempotencyKey)
	dest.Retention = d.retention(o.get("retention"))
	dest.Expires = d.duration(o.get("expires"), 0, false)
	dest.Retired = d.flag(o.get("retired")).Value
	return dest
}

func (d *decoder) accepts(n *node) []Accept {
	items := d.list(n)
	if n != nil && n.kind == list && len(items) == 0 {
		d.fault(CodeNoItems, n.pos, "a destination accepts a payload at least")
	}
	var all []Accept
	seen := map[string]Pos{}
	for _, item := range items {
		if item.kind == mapping || item.kind == list {
			d.wrongKind(item, "the name of a payload")
			d.routesUnclear = true
			continue
		}
		name := d.text(item)
		if !name.IsSet() {
			d.routesUnclear = true
			continue
		}
		if first, again := seen[name.Value]; again {
			d.fault(CodeDuplicate, name.Pos, "the payload %s stands here a second time", quote(name.Value)).
				related(first, "it stands here first")
			continue
		}
		seen[name.Value] = name.Pos
		payload := d.payloads[name.Value]
		if payload == nil {
			d.routesUnclear = true
			f := d.fault(CodeUnknownPayload, name.Pos, "there is no payload %s", quote(name.Value))
			if near := d.nearest(name.Value, slices.Sorted(maps.Keys(d.payloads))); near != "" {
				f.hint(fmt.Sprintf("did you mean %s?", near))
			} else {
				f.hint("name it under payloads")
			}
			continue
		}
		all = append(all, Accept{Name: name, Payload: payload})
	}
	return all
}

// unrouted reports payloads that no destination accepts, unless another fault
// hides what the destinations accept.
func (d *decoder) unrouted(s *Spec) {
	routed := map[*Payload]bool{}
	for _, dest := range s.Destinations {
		if dest.Accepts == nil {
			return
		}
		for _, a := range dest.Accepts {
			routed[a.Payload] = true
		}
	}
	if s.Destinations == nil || d.routesUnclear {
		return
	}
	for _, p := range s.Payloads {
		if !routed[p] {
			d.fault(CodeUnrouted, p.Name.Pos, "no destination accepts the payload %s: it can never be sent", quote(p.Name.Value)).
				hint("add it to accepts of a destination, or remove it")
		}
	}
}

func (d *decoder) lease(n *node, timeout Duration) Duration {
	if n == nil {
		return Duration{Value: 2*timeout.Value + defaultLeaseMargin}
	}
	lease := d.duration(n, 0, false)
	if lease.Value == invalid || lease.Value > timeout.Value {
		return lease
	}
	f := d.fault(CodeLease, lease.Pos, "the lease, %s, must exceed the timeout, %s", short(lease.Value), short(timeout.Value))
	if timeout.IsSet() {
		f.related(timeout.Pos, "the timeout stands here")
	}
	f.hint("a claim must not count as abandoned while its call may still run")
	return lease
}

func (d *decoder) retry(n *node) Retry {
	r := Retry{
		MaxAttempts: defaultMaxAttempts,
		Initial:     defaultRetryInitial,
		Max:         defaultRetryMax,
		Factor:      defaultRetryFactor,
		Jitter:      defaultRetryJitter,
	}
	if n == nil {
		return r
	}
	r.Pos = n.pos
	o, ok := d.object(n, n.pos, "retry", retryKeys)
	if !ok {
		return r
	}
	if delays := o.get("delays"); delays != nil {
		return d.fixedDelays(o, delays)
	}
	if attempts := o.get("max_attempts"); attempts != nil {
		r.MaxAttempts = d.maxAttempts(attempts)
	}
	initial := d.duration(o.get("initial"), defaultRetryInitial, false)
	longest := d.duration(o.get("max"), defaultRetryMax, false)
	r.Initial, r.Max = initial.Value, longest.Value
	if initial.Value != invalid && longest.Value != invalid && initial.Value > longest.Value {
		d.initialAboveMax(initial, longest)
	}
	if factor := d.float(o.get("factor"), "1 or more", func(f float64) bool { return f >= 1 }); factor.IsSet() {
		r.Factor = factor.Value
	}
	if jitter := d.float(o.get("jitter"), "from 0 to 1", func(f float64) bool { return f >= 0 && f <= 1 }); jitter.IsSet() {
		r.Jitter = jitter.Value
	}
	return r
}

func (d *decoder) initialAboveMax(initial, longest Duration) {
	if !initial.IsSet() {
		d.fault(CodeRetry, longest.Pos, "max, %s, is below initial, %s", short(longest.Value), short(initial.Value)).
			hint("set initial too, which is 1s when not set")
		return
	}
	f := d.fault(CodeRetry, initial.Pos, "initial, %s, is above max, %s", short(initial.Value), short(longest.Value))
	if longest.IsSet() {
		f.related(longest.Pos, "max stands here")
	} else {
		f.hint("set max too, which is 15m when not set")
	}
}

func (d *decoder) fixedDelays(o object, delays *node) Retry {
	r := Retry{Factor: 1, Pos: o.pos}
	for _, key := range retryKeys {
		if key != "delays" && o.get(key) != nil {
			d.fault(CodeExclusive, o.keyPos(key), "retry has %s beside delays", key).
				related(o.keyPos("delays"), "delays stands here").
				hint("the list of delays says when and how often; keep it or the other keys")
		}
	}
	if delays.kind == list && len(delays.items) == 0 {
		d.fault(CodeNoItems, delays.pos, "delays needs a duration at least").
			hint("for a single attempt write `retry: {max_attempts: 1}`")
	}
	for _, item := range d.list(delays) {
		r.Delays = append(r.Delays, d.duration(item, 0, true).Value)
	}
	r.MaxAttempts = len(r.Delays) + 1
	return r
}

func (d *decoder) maxAttempts(n *node) int {
	if n.kind == text {
		if n.value != unlimitedWord {
			d.fault(CodeNotAllowed, n.pos, "max_attempts must be a whole number or %s, found %s", unlimitedWord, n.describe())
		}
		return 0
	}
	return d.integer(n, 1).Value
}

func (d *decoder) reconcile(o object, idempotent Flag) Reconcile {
	n := o.get("reconcile")
	if n != nil && idempotent.Value {
		d.fault(CodeReconcile, o.keyPos("reconcile"), "an idempotent destination has nothing to reconcile").
			related(idempotent.Pos, "idempotent is set here").
			hint("remove reconcile: what ended without an answer is sent again")
	}
	if idempotent.Value {
		return Reconcile{}
	}
	r := Reconcile{First: defaultReconcileFirst, Every: defaultReconcileEvery}
	if n == nil {
		return r
	}
	r.Pos = n.pos
	if n.kind == text {
		if n.value != noneWord {
			d.fault(CodeNotAllowed, n.pos, "reconcile must be a mapping or %s, found %s", noneWord, n.describe())
		}
		return Reconcile{None: true, Pos: n.pos}
	}
	keys, ok := d.object(n, n.pos, "reconcile", reconcileKeys)
	if !ok {
		return r
	}
	first := d.duration(keys.get("first"), r.First, true)
	giveUp := d.duration(keys.get("give_up"), 0, false)
	r.First, r.GiveUp = first.Value, giveUp.Value
	r.Every = d.duration(keys.get("every"), r.Every, false).Value
	if giveUp.IsSet() && first.Value != invalid && giveUp.Value <= first.Value {
		d.fault(CodeReconcile, giveUp.Pos, "give_up, %s, must exceed first, %s: else the remote is never asked", short(giveUp.Value), short(first.Value)).
			hint("to leave unknown outcomes to a person write `reconcile: none`")
	}
	return r
}

func (d *decoder) limits(n *node, accepts []Accept) Limits {
	l := Limits{Concurrency: Int{Value: defaultConcurrency}}
	if n == nil {
		return l
	}
	l.Pos = n.pos
	o, ok := d.object(n, n.pos, "limits", limitsKeys)
	if !ok {
		return l
	}
	if c := d.integer(o.get("concurrency"), 1); c.IsSet() {
		l.Concurrency = c
	}
	l.Rate = d.rate(o.get("rate"))
	l.Per = d.selector(o.get("per"), accepts, limitsPer)
	l.Total = d.integer(o.get("total"), 1)
	if o.get("total") != nil && o.get("per") == nil {
		d.fault(CodeLimits, o.keyPos("total"), "total has a meaning only beside per").
			hint("without per, concurrency bounds the whole destination")
	}
	return l
}

func (d *decoder) retention(n *node) Retention {
	r := Retention{Completed: Keep{For: defaultKeepCompleted}, Failed: Keep{For: defaultKeepFailed}}
	if n == nil {
		return r
	}
	o, ok := d.object(n, n.pos, "retention", retentionKeys)
	if !ok {
		return r
	}
	r.Completed = d.keep(o.get("completed"), r.Completed, true)
	r.Failed = d.keep(o.get("failed"), r.Failed, false)
	return r
}

func (d *decoder) keep(n *node, def Keep, zero bool) Keep {
	if n == nil {
		return def
	}
	if n.kind == text && n.value == neverWord {
		return Keep{Forever: true, Pos: n.pos}
	}
	return Keep{For: d.duration(n, 0, zero).Value, Pos: n.pos}
}
