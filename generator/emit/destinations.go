package emit

import (
	"fmt"
	"strconv"
	"time"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/schema"
)

// Destinations is the source of destinations.gen.go: for each destination its
// constant, its sealed interface, the functions that address a payload to it,
// and its policy.
func Destinations(m *model.Model) ([]byte, error) {
	f := newFile(m.Package)
	for _, d := range m.Destinations {
		destinationConstant(f, d)
		if !d.Retired {
			destinationPayload(f, d)
			destinationTo(f, d)
			for _, p := range d.Accepts {
				destinationMethod(f, d, p)
			}
		}
		destinationPolicy(f, d)
	}
	policies(f, m.Destinations)
	return source(f)
}

func destinationConstant(f *jen.File, d *model.Destination) {
	declare(f, []string{
		orElse(d.Doc, constantOf(d)+" is the destination "+d.Name+"."),
		ambiguousEnd(d),
		retiredNote(d),
	}, jen.Const().Id(constantOf(d)).Id("Destination").Op("=").Lit(d.Name))
}

// ambiguousEnd says what becomes of a row when nobody knows whether it arrived.
func ambiguousEnd(d *model.Destination) string {
	switch {
	case d.Idempotent:
		return "It is idempotent: a message that may or may not have arrived is sent again."
	case !d.Asked():
		return "It is not idempotent: a message that may or may not have arrived is not sent\n" +
			"again; its row waits as outcome_unknown until a person decides."
	default:
		return "It is not idempotent: a message that may or may not have arrived is not sent\n" +
			"again; its row waits as outcome_unknown until the destination has been asked."
	}
}

func retiredNote(d *model.Destination) string {
	if !d.Retired {
		return ""
	}
	return "It is retired: it takes no new messages, and still gets those that are stored."
}

// destinationPayload declares the interface that seals the destination: what it
// does not accept does not compile.
func destinationPayload(f *jen.File, d *model.Destination) {
	accepted := interfaceOf(d) + " is a payload that " + d.Name + " accepts:"
	for _, p := range d.Accepts {
		accepted += "\n  - [" + p.GoName + "]"
	}
	declare(f, []string{accepted}, jen.Type().Id(interfaceOf(d)).Interface(
		jen.Id("Payload"),
		jen.Id(methodOf(d)).Params().Id("Message"),
	))
}

func destinationTo(f *jen.File, d *model.Destination) {
	doc := functionOf(d) + " makes a message for " + d.Name + "."
	var key string
	if len(d.IdempotencyKey) > 0 {
		key = "Fields of the payload make its idempotency key, so it takes none by WithKey."
	}
	declare(f, []string{doc, key}, jen.Func().Id(functionOf(d)).Params(jen.Id("p").Id(interfaceOf(d))).Id("Message").Block(
		jen.If(jen.Id("p").Op("==").Nil()).Block(
			jen.Return(jen.Id("Message").Values(jen.Id("destination").Op(":").Id(constantOf(d)))),
		),
		jen.Return(jen.Id("p").Dot(methodOf(d)).Call()),
	))
}

func destinationMethod(f *jen.File, d *model.Destination, p *model.Payload) {
	values := []jen.Code{
		jen.Id("destination").Op(":").Id(constantOf(d)),
		jen.Id("payload").Op(":").Id("p"),
	}
	// The payload's name comes first in a declared key: two payloads may hold
	// the same value in fields that have nothing to do with each other.
	for _, key := range []struct {
		field string
		paths []model.PayloadPaths
		first []jen.Code
	}{
		{"declaredKey", d.IdempotencyKey, []jen.Code{jen.Lit(p.Name)}},
		{"orderKey", d.OrderBy, nil},
		{"limitKey", d.Limits.Per, nil},
	} {
		if parts := keyParts(key.paths, p); parts != nil {
			values = append(values, jen.Id(key.field).Op(":").Id("joinKey").Add(arguments(append(key.first, parts...))))
		}
	}
	members := jen.Values(values...)
	if len(values) > 2 {
		members = lines(values)
	}
	declare(f, nil, jen.Func().Params(jen.Id("p").Id(p.GoName)).Id(methodOf(d)).Params().Id("Message").Block(
		jen.Return(jen.Id("Message").Add(members)),
	))
}

// keyParts are the texts that make the key of one payload, or nil when it has
// none.
func keyParts(selected []model.PayloadPaths, p *model.Payload) []jen.Code {
	var parts []jen.Code
	for _, one := range selected {
		if one.Payload == p {
			for _, path := range one.Paths {
				parts = append(parts, keyPart(path))
			}
		}
	}
	return parts
}

// keyPart is the text of the value that a path leads to.
func keyPart(path model.Path) jen.Code {
	value := jen.Id("p")
	for _, field := range path {
		value = value.Dot(field.GoName)
	}
	ref := path[len(path)-1].Ref
	if ref.Named != nil {
		return jen.String().Call(value)
	}
	switch ref.Scalar {
	case schema.Bool:
		return jen.Qual(pathStrconv, "FormatBool").Call(value)
	case schema.Int32:
		return jen.Qual(pathStrconv, "FormatInt").Call(jen.Int64().Call(value), jen.Lit(10))
	case schema.Int64:
		return jen.Qual(pathStrconv, "FormatInt").Call(value, jen.Lit(10))
	case schema.Uint64:
		return jen.Qual(pathStrconv, "FormatUint").Call(value, jen.Lit(10))
	case schema.UUID:
		return value.Dot("String").Call()
	default:
		return value
	}
}

func destinationPolicy(f *jen.File, d *model.Destination) {
	var kinds []jen.Code
	for _, p := range d.Accepts {
		kinds = append(kinds, jen.Lit(d.Kind(p)))
	}
	var values []jen.Code
	set := func(field string, value jen.Code) { values = append(values, jen.Id(field).Op(":").Add(value)) }

	set("destination", jen.Id(constantOf(d)))
	set("kinds", jen.Index().String().Add(elements(kinds)))
	set("idempotent", jen.Lit(d.Idempotent))
	if len(d.OrderBy) > 0 {
		set("ordered", jen.True())
	}
	set("timeout", duration(d.Timeout))
	set("lease", duration(d.Lease))
	set("maxAttempts", jen.Lit(d.Retry.MaxAttempts))
	if len(d.Retry.Delays) > 0 {
		var delays []jen.Code
		for _, delay := range d.Retry.Delays {
			delays = append(delays, duration(delay))
		}
		set("retryDelays", jen.Index().Qual(pathTime, "Duration").Add(elements(delays)))
	} else {
		set("retryInitial", duration(d.Retry.Initial))
		set("retryMax", duration(d.Retry.Max))
		set("retryFactor", fraction(d.Retry.Factor))
		set("retryJitter", fraction(d.Retry.Jitter))
	}
	if d.Asked() {
		set("firstQuestion", duration(d.Reconcile.First))
		set("askEvery", duration(d.Reconcile.Every))
		if d.Reconcile.GiveUp != 0 {
			set("giveUp", duration(d.Reconcile.GiveUp))
		}
	} else {
		set("firstQuestion", jen.Id("neverAsked"))
	}
	set("concurrency", jen.Lit(d.Limits.Concurrency))
	if d.Limits.Rate.Count != 0 {
		set("rate", rate(d.Limits.Rate))
	}
	if len(d.Limits.Per) > 0 {
		set("per", jen.True())
	}
	if d.Limits.Total != 0 {
		set("total", jen.Lit(d.Limits.Total))
	}
	set("keepCompleted", keep(d.KeepCompleted))
	set("keepFailed", keep(d.KeepFailed))
	if d.Expires != 0 {
		set("expires", duration(d.Expires))
	}
	declare(f, []string{d.PolicyName + " is what the specification says of " + d.Name + "."},
		jen.Var().Id(d.PolicyName).Op("=").Id("policy").Add(lines(values)))
}

// policies declares the table of all of them. Each is on a line of its own, and
// declared where its destination is, so that one more changes no other line.
func policies(f *jen.File, destinations []*model.Destination) {
	var all []jen.Code
	for _, d := range destinations {
		all = append(all, jen.Op("&").Id(d.PolicyName))
	}
	declare(f, []string{"policies has every destination, by name."},
		jen.Var().Id("policies").Op("=").Index().Op("*").Id("policy").Add(lines(all)))
}

func keep(k model.Keep) jen.Code {
	if k.Forever {
		return jen.Id("keepForever")
	}
	return duration(k.For)
}

// duration writes a duration as a person would: in its largest whole unit.
func duration(d time.Duration) jen.Code {
	if d == 0 {
		return jen.Lit(0)
	}
	const day = 24 * time.Hour
	if d%day == 0 {
		hours := jen.Lit(24).Op("*").Qual(pathTime, "Hour")
		if d == day {
			return hours
		}
		return whole(int64(d / day)).Op("*").Add(hours)
	}
	for _, unit := range []struct {
		name string
		size time.Duration
	}{
		{"Hour", time.Hour}, {"Minute", time.Minute}, {"Second", time.Second}, {"Millisecond", time.Millisecond},
		{"Microsecond", time.Microsecond}, {"Nanosecond", time.Nanosecond},
	} {
		switch {
		case d == unit.size:
			return jen.Qual(pathTime, unit.name)
		case d%unit.size == 0:
			return whole(int64(d/unit.size)).Op("*").Qual(pathTime, unit.name)
		}
	}
	panic(fmt.Sprintf("no unit divides %d", d)) // a nanosecond divides every duration
}

// rate is the calls in a second.
func rate(r schema.Rate) jen.Code {
	if r.Per == time.Second {
		return whole(int64(r.Count))
	}
	return jen.Op(strconv.Itoa(r.Count) + ".0").Op("/").Add(whole(int64(r.Per / time.Second)))
}

// fraction is a number as a person would write it.
func fraction(n float64) jen.Code { return jen.Op(strconv.FormatFloat(n, 'g', -1, 64)) }

// whole is an untyped constant; jen.Lit gives an int64 its type.
func whole(n int64) *jen.Statement { return jen.Op(strconv.FormatInt(n, 10)) }

func constantOf(d *model.Destination) string  { return "Destination" + d.GoName }
func interfaceOf(d *model.Destination) string { return d.GoName + "Payload" }
func functionOf(d *model.Destination) string  { return "To" + d.GoName }
func methodOf(d *model.Destination) string    { return "to" + d.GoName }
