package model

import (
	"cmp"
	"path"
	"path/filepath"
	"slices"

	"github.com/outboxgen/outboxgen/schema"
)

// Build resolves a specification that schema.Decode found no fault in. Faults
// are those of Go names: each is reported with its place, with the place of the
// other name where two clash, and with a go_name that mends it. The model is
// nil when there are any.
//
// A Go name depends on its own name, go_name and the initialisms alone, never
// on its neighbours: nothing is renamed to make room.
func Build(spec *schema.Spec) (*Model, schema.Diagnostics) {
	b := &builder{
		spec:     spec,
		namer:    newNamer(),
		types:    map[*schema.Type]*Type{},
		payloads: map[*schema.Payload]*Payload{},
		fields:   map[*schema.Field]*Field{},
		handlers: map[*schema.Payload][]handler{},
	}
	b.namer.adapt(spec.Initialisms, b.report)
	b.scope = newScope(b.report, packageReserved)

	m := &Model{
		SpecFile:   path.Base(filepath.ToSlash(spec.File)),
		Package:    spec.Package.Value,
		Doc:        spec.Doc.Value,
		Out:        spec.Out.Value,
		Store:      b.store(),
		Migrations: Migrations{Dir: spec.Migrations.Dir.Value, Format: spec.Migrations.Format},
		OTel:       spec.Emit.OTel.Value,
	}
	m.Types = b.buildTypes()
	m.Payloads = b.buildPayloads()
	m.Destinations = b.buildDestinations()
	b.scope.declare(b.claims)

	if len(b.diagnostics) > 0 {
		b.diagnostics.Sort()
		return nil, b.diagnostics
	}
	markSensitive(m)
	return m, nil
}

// builder holds what has been built so far, by what it was built from.
type builder struct {
	spec        *schema.Spec
	namer       *namer
	scope       *scope   // of the package
	claims      []*claim // on the scope of the package
	types       map[*schema.Type]*Type
	payloads    map[*schema.Payload]*Payload
	fields      map[*schema.Field]*Field
	handlers    map[*schema.Payload][]handler
	diagnostics schema.Diagnostics
}

// handler is an interface that has a method, or two, for a payload.
type handler struct {
	goName string
	asks   bool
}

func (b *builder) report(d schema.Diagnostic) { b.diagnostics = append(b.diagnostics, d) }

// claim makes the claim of an element on the Go name that its go_name or its
// name gives. names says what the element declares; nil stands for the Go name
// alone.
func (b *builder) claim(what, suffix string, name, goName schema.Text, names func(string) []string) *claim {
	return b.prefixedClaim("", what, suffix, name, goName, names)
}

func (b *builder) prefixedClaim(prefix, what, suffix string, name, goName schema.Text, names func(string) []string) *claim {
	if names == nil {
		names = func(goName string) []string { return []string{prefix + goName} }
	}
	c := &claim{
		what:   what + " " + quote(name.Value),
		pos:    name.Pos,
		prefix: prefix,
		suffix: suffix,
		spelt:  b.namer.spelled(name.Value),
		names:  names,
	}
	if goName.IsSet() {
		c.pos, c.goName, c.spelt = goName.Pos, goName.Value, goName.Value
	} else if made := b.namer.exported(name.Value); isGoName(prefix, made) {
		c.goName = made
	}
	return c
}

func (b *builder) store() Store {
	spec := b.spec.Store
	store := Store{
		Table:  spec.Table.Value,
		Schema: spec.Schema.Value,
		Command: Column{
			Name:   spec.Command.Name.Value,
			GoName: "CommandID",
			GoArg:  "id",
			Type:   spec.Command.Type,
		},
	}
	var claims []*claim
	for _, column := range spec.Columns {
		c := b.claim("column", "Column", column.Name, column.GoName, nil)
		claims = append(claims, c)
		store.Columns = append(store.Columns, &Column{
			Name:       column.Name.Value,
			GoName:     c.goName,
			Doc:        column.Doc.Value,
			Type:       column.Type,
			Optional:   column.Optional,
			Index:      column.Index,
			Default:    column.Default.Value,
			HasDefault: column.Default.IsSet(),
		})
	}
	newScope(b.report, nothingReserved).declare(claims)
	nameArguments(b.namer, store.Columns)
	return store
}

func (b *builder) buildTypes() []*Type {
	for _, spec := range b.spec.Types {
		c := b.claim("type", "Type", spec.Name, spec.GoName, nil)
		b.claims = append(b.claims, c)
		t := &Type{
			Name:       spec.Name.Value,
			GoName:     c.goName,
			Doc:        spec.Doc.Value,
			Deprecated: spec.Deprecated.Value,
			Enum:       spec.Enum,
		}
		b.types[spec] = t
		for _, value := range spec.Values {
			v := b.prefixedClaim(t.GoName, "value", "Value", value.Value, value.GoName, nil)
			v.owner, v.value = c, value.Value.Value
			b.claims = append(b.claims, v)
			t.Values = append(t.Values, &EnumValue{
				Value:  value.Value.Value,
				GoName: t.GoName + v.goName,
				Doc:    value.Doc.Value,
			})
		}
	}
	// The types are known before their fields, which may refer to any of them.
	types := make([]*Type, 0, len(b.spec.Types))
	for _, spec := range b.spec.Types {
		t := b.types[spec]
		t.Fields = b.buildFields(spec.Fields)
		types = append(types, t)
	}
	slices.SortFunc(types, func(x, y *Type) int { return cmp.Compare(x.Name, y.Name) })
	return types
}

func (b *builder) buildPayloads() []*Payload {
	payloads := make([]*Payload, 0, len(b.spec.Payloads))
	for _, spec := range b.spec.Payloads {
		c := b.claim("payload", "Message", spec.Name, spec.GoName, b.payloadNames(spec))
		b.claims = append(b.claims, c)
		if c.goName != "" {
			b.scope.versions[c.goName] = holder{what: c.what, pos: c.pos}
		}
		p := &Payload{
			Name:       spec.Name.Value,
			Version:    1,
			GoName:     c.goName,
			Doc:        spec.Doc.Value,
			Deprecated: spec.Deprecated.Value,
			Fields:     b.buildFields(spec.Fields),
		}
		b.payloads[spec] = p
		payloads = append(payloads, p)
	}
	slices.SortFunc(payloads, comparePayloads)
	return payloads
}

func (b *builder) buildFields(specs []*schema.Field) []*Field {
	var fields []*Field
	var claims []*claim
	for _, spec := range specs {
		c := b.claim("field", "Value", spec.Name, spec.GoName, nil)
		claims = append(claims, c)
		f := &Field{
			Name:       spec.WireName(),
			GoName:     c.goName,
			Doc:        spec.Doc.Value,
			Deprecated: spec.Deprecated.Value,
			Ref:        b.ref(spec.Type),
			Optional:   spec.Optional,
			Sensitive:  spec.Sensitive,
		}
		b.fields[spec] = f
		fields = append(fields, f)
	}
	newScope(b.report, structReserved).declare(claims)
	return fields
}

func (b *builder) buildDestinations() []*Destination {
	destinations := make([]*Destination, 0, len(b.spec.Destinations))
	for _, spec := range b.spec.Destinations {
		c := b.claim("destination", "Target", spec.Name, spec.GoName, b.destinationNames)
		b.claims = append(b.claims, c)
		d := &Destination{
			Name:       spec.Name.Value,
			GoName:     c.goName,
			PolicyName: b.policyName(c.goName),
			Doc:        spec.Doc.Value,
			Idempotent: spec.Idempotent.Value,
			Timeout:    spec.Timeout.Value,
			Lease:      spec.Lease.Value,
			Retry:      spec.Retry,
			Reconcile:  spec.Reconcile,
			Limits: Limits{
				Concurrency: spec.Limits.Concurrency.Value,
				Rate:        spec.Limits.Rate,
				Per:         b.selector(spec.Limits.Per),
				Total:       spec.Limits.Total.Value,
			},
			OrderBy:        b.selector(spec.OrderBy),
			IdempotencyKey: b.selector(spec.IdempotencyKey),
			KeepCompleted:  keep(spec.Retention.Completed),
			KeepFailed:     keep(spec.Retention.Failed),
			Expires:        spec.Expires.Value,
			Retired:        spec.Retired,
		}
		for _, accept := range spec.Accepts {
			d.Accepts = append(d.Accepts, b.payloads[accept.Payload])
			if d.GoName != "" {
				b.handlers[accept.Payload] = append(b.handlers[accept.Payload], handler{goName: d.GoName + "Handler", asks: d.Asked()})
			}
		}
		slices.SortFunc(d.Accepts, comparePayloads)
		destinations = append(destinations, d)
	}
	slices.SortFunc(destinations, func(x, y *Destination) int { return cmp.Compare(x.Name, y.Name) })
	for _, d := range destinations {
		for _, p := range d.Accepts {
			p.Routes = append(p.Routes, d)
		}
	}
	nameRoutes(b.namer, destinations)
	return destinations
}

// payloadNames are what one payload takes: a name of the package, and methods of
// the handlers of the destinations that accept it. These are known when all
// destinations have been built.
func (b *builder) payloadNames(spec *schema.Payload) func(string) []string {
	return func(goName string) []string {
		names := []string{goName}
		for _, h := range b.handlers[spec] {
			names = append(names, h.goName+"."+goName)
			if h.asks {
				names = append(names, h.goName+"."+ReconcileMethod(goName))
			}
		}
		return names
	}
}

// ReconcileMethod is the method of a handler that asks what became of a payload.
func ReconcileMethod(payload string) string { return "Reconcile" + payload }

// destinationNames are the names of the package that one destination takes.
func (b *builder) destinationNames(goName string) []string {
	names := []string{b.policyName(goName)}
	for _, around := range destinationNames {
		names = append(names, around[0]+goName+around[1])
	}
	return names
}

// policyName is the variable of the destination's policy.
func (b *builder) policyName(goName string) string {
	return b.namer.unexported(goName) + "Policy"
}

func (b *builder) selector(spec schema.Selector) []PayloadPaths {
	var selected []PayloadPaths
	for _, paths := range spec.Paths {
		one := PayloadPaths{Payload: b.payloads[paths.Payload]}
		for _, path := range paths.Paths {
			var fields Path
			for _, field := range path.Fields {
				fields = append(fields, b.fields[field])
			}
			one.Paths = append(one.Paths, fields)
		}
		selected = append(selected, one)
	}
	slices.SortFunc(selected, func(x, y PayloadPaths) int { return comparePayloads(x.Payload, y.Payload) })
	return selected
}

func comparePayloads(x, y *Payload) int { return cmp.Compare(x.Name, y.Name) }

func keep(spec schema.Keep) Keep { return Keep{Forever: spec.Forever, For: spec.For} }
