package schema

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// scalarTypes are the types that the language brings, in the order in which the
// documentation tells of them.
var scalarTypes = []ScalarType{String, Bool, Int32, Int64, Uint64, Float64, UUID, Time, Date, DurationType, Decimal, Bigint, Bytes, JSON}

// formWords cannot name a type, as they are part of how fields are written.
var formWords = []string{"optional", "list", "map"}

const (
	optionalWord = "optional"
	fieldForm    = "a type name, `optional` and a type name, or a mapping"
)

// readTypes reads the named types. All names are known before the first field
// is read, since types may refer to later ones and to themselves.
func (d *decoder) readTypes(n *node) []*Type {
	d.types = map[string]*Type{}
	if n == nil {
		return nil
	}
	if n.kind != mapping {
		d.wrongKind(n, "a mapping of names to types")
		return nil
	}
	var all []*Type
	for _, e := range n.entries {
		t := &Type{Name: d.name(e, "a type")}
		if slices.Contains(formWords, e.key) || slices.Contains(scalarTypes, ScalarType(e.key)) {
			d.fault(CodeReservedName, e.pos, "a type cannot be named %s: the language uses the word", quote(e.key))
		}
		d.types[e.key] = t
		all = append(all, t)
	}
	for i, e := range n.entries {
		d.readType(all[i], e)
	}
	d.cycles(all)
	return all
}

func (d *decoder) readType(t *Type, e entry) {
	what := "type " + quote(e.key)
	o, ok := d.object(e.value, e.pos, what, typeKeys)
	if !ok {
		return
	}
	t.GoName = d.goName(o.get("go_name"))
	t.Doc = d.text(o.get("doc"))
	t.Deprecated = d.deprecated(o.get("deprecated"))
	fields, enum := o.get("fields"), o.get("enum")
	switch {
	case fields != nil && enum != nil:
		d.fault(CodeExclusive, o.keyPos("enum"), "%s has fields and enum; a type is one of the two", what).
			related(o.keyPos("fields"), "fields stands here")
	case enum != nil:
		t.Enum = true
		t.Values = d.enumValues(enum)
	case fields != nil:
		t.Fields = d.fields(fields, what)
	default:
		d.fault(CodeMissingKey, e.pos, "%s has neither fields nor enum", what)
	}
}

func (d *decoder) enumValues(n *node) []*EnumValue {
	items := d.list(n)
	if n.kind == list && len(items) == 0 {
		d.fault(CodeNoItems, n.pos, "an enum needs a value at least")
	}
	var values []*EnumValue
	seen := map[string]Pos{}
	for _, item := range items {
		v := d.enumValue(item)
		if !v.Value.IsSet() {
			continue
		}
		if first, again := seen[v.Value.Value]; again {
			d.fault(CodeDuplicate, v.Value.Pos, "the value %s stands here a second time", quote(v.Value.Value)).
				related(first, "it stands here first")
			continue
		}
		seen[v.Value.Value] = v.Value.Pos
		values = append(values, v)
	}
	return values
}

func (d *decoder) enumValue(n *node) *EnumValue {
	if n.kind != mapping {
		return &EnumValue{Value: d.text(n)}
	}
	o, ok := d.object(n, n.pos, "a value of an enum", enumValueKeys)
	if !ok {
		return &EnumValue{}
	}
	return &EnumValue{
		Value:  d.text(o.need("value", "add the text that stands in the JSON")),
		GoName: d.goPart(o.get("go_name")),
		Doc:    d.text(o.get("doc")),
	}
}

// cycles reports types that contain themselves through required fields: no
// value of them could end.
func (d *decoder) cycles(all []*Type) {
	const (
		open = iota + 1
		done
	)
	state := map[*Type]int{}
	var trail []*Type
	var visit func(t *Type)
	visit = func(t *Type) {
		state[t] = open
		trail = append(trail, t)
		for _, f := range t.Fields {
			if f.Optional || f.Type == nil || f.Type.Kind != Named {
				continue
			}
			switch next := f.Type.Named; state[next] {
			case open:
				d.cycle(f, trail[slices.Index(trail, next):])
			case done:
			default:
				visit(next)
			}
		}
		trail = trail[:len(trail)-1]
		state[t] = done
	}
	for _, t := range all {
		if state[t] == 0 {
			visit(t)
		}
	}
}

func (d *decoder) cycle(closing *Field, types []*Type) {
	const shown = 5
	var names []string
	for _, t := range types[:min(shown, len(types))] {
		names = append(names, t.Name.Value)
	}
	if len(types) > shown {
		names = append(names, "…")
	}
	names = append(names, types[0].Name.Value)
	d.fault(CodeTypeCycle, closing.Type.Pos, "type %s contains itself: %s", quote(types[0].Name.Value), strings.Join(names, " → ")).
		hint("make a field of the cycle optional, or a list or map")
}

func (d *decoder) readPayloads(n *node) []*Payload {
	d.payloads = map[string]*Payload{}
	if n == nil {
		return nil
	}
	if n.kind != mapping {
		d.wrongKind(n, "a mapping of names to payloads")
		return nil
	}
	if len(n.entries) == 0 {
		d.fault(CodeNoItems, n.pos, "a specification needs a payload at least")
	}
	var all []*Payload
	for _, e := range n.entries {
		p := d.payload(e)
		d.payloads[e.key] = p
		all = append(all, p)
	}
	return all
}

func (d *decoder) payload(e entry) *Payload {
	p := &Payload{Name: d.name(e, "a payload")}
	what := "payload " + quote(e.key)
	o, ok := d.object(e.value, e.pos, what, payloadKeys)
	if !ok {
		return p
	}
	p.GoName = d.goName(o.get("go_name"))
	p.Doc = d.text(o.get("doc"))
	p.Deprecated = d.deprecated(o.get("deprecated"))
	if fields := o.need("fields", "a payload without content has `fields: {}`"); fields != nil {
		p.Fields = d.fields(fields, what)
	}
	return p
}

// fields reads the fields of a payload or object. The result is nil only when
// they could not be read.
func (d *decoder) fields(n *node, owner string) []*Field {
	if n.kind != mapping {
		d.wrongKind(n, "a mapping of names to fields")
		return nil
	}
	all := []*Field{}
	wire := map[string]Pos{}
	for _, e := range n.entries {
		f := d.field(e)
		all = append(all, f)
		pos := f.Name.Pos
		if f.JSON.IsSet() {
			pos = f.JSON.Pos
		}
		if first, again := wire[f.WireName()]; again {
			d.fault(CodeWireName, pos, "%s has a second field with the wire name %s", owner, quote(f.WireName())).
				related(first, "the first one").
				hint("give one of them another wire name by json")
			continue
		}
		wire[f.WireName()] = pos
	}
	return all
}

func (d *decoder) field(e entry) *Field {
	f := &Field{Name: d.name(e, "a field")}
	if e.value.kind == text {
		name := e.value.value
		if words := strings.Fields(name); len(words) > 1 && words[0] == optionalWord {
			f.Optional = true
			name = strings.Join(words[1:], " ")
		}
		f.Type = d.typeName(name, e.value.pos)
		return f
	}
	if e.value.kind != mapping {
		d.wrongKind(e.value, fieldForm)
		return f
	}
	o, ok := d.object(e.value, e.pos, "field "+quote(e.key), fieldKeys)
	if !ok {
		return f
	}
	f.JSON = d.wireName(o.get("json"))
	f.GoName = d.goName(o.get("go_name"))
	f.Doc = d.text(o.get("doc"))
	f.Deprecated = d.deprecated(o.get("deprecated"))
	f.Optional = d.flag(o.get("optional")).Value
	f.Sensitive = d.flag(o.get("sensitive")).Value
	f.Type = d.typeExpr(o)
	return f
}

// wirePattern has what encoding/json takes as a name in a struct tag.
var wirePattern = regexp.MustCompile(`^[\pL\p{Nd}!#$%&()*+\-./:;<=>?@\[\]^_{|}~ ]+$`)

func (d *decoder) wireName(n *node) Text {
	t := d.text(n)
	switch {
	case !t.IsSet():
	case t.Value == "":
		d.fault(CodeWireName, t.Pos, "the wire name is empty")
	case t.Value == "-" || !wirePattern.MatchString(t.Value):
		d.fault(CodeWireName, t.Pos, "%s cannot be a wire name", quote(t.Value)).
			hint("it has letters, digits, spaces and signs other than quotes, commas and backslashes, and is not \"-\"")
	}
	return t
}

// typeName resolves the name of a type; nil when there is none.
func (d *decoder) typeName(name string, pos Pos) *TypeExpr {
	if slices.Contains(scalarTypes, ScalarType(name)) {
		return &TypeExpr{Pos: pos, Kind: Scalar, Scalar: ScalarType(name)}
	}
	if t, ok := d.types[name]; ok {
		return &TypeExpr{Pos: pos, Kind: Named, Named: t}
	}
	if rest, ok := strings.CutPrefix(name, optionalWord+" "); ok {
		d.fault(CodeFieldOption, pos, "optional stands on fields: as the whole field, or as an option beside type, list and map").
			hint(fmt.Sprintf("write %s here", quote(strings.TrimSpace(rest))))
		return nil
	}
	f := d.fault(CodeUnknownType, pos, "there is no type %s", quote(name))
	if near := d.nearest(name, d.typeNames()); near != "" {
		f.hint(fmt.Sprintf("did you mean %s?", near))
	} else {
		f.hint("name it under types, or use one of " + joinTypes(scalarTypes))
	}
	return nil
}

// typeNames are all names of types, in a fixed order.
func (d *decoder) typeNames() []string {
	names := slices.Sorted(maps.Keys(d.types))
	for _, s := range scalarTypes {
		names = append(names, string(s))
	}
	return names
}

func joinTypes(types []ScalarType) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = string(t)
	}
	return strings.Join(names, ", ")
}

// typeExpr reads the form and the checks of a field or an element.
func (d *decoder) typeExpr(o object) *TypeExpr {
	var form string
	for _, key := range formKeys {
		switch {
		case o.get(key) == nil:
		case form == "":
			form = key
		default:
			d.fault(CodeExclusive, o.keyPos(key), "%s has %s and %s; it is one of type, list and map", o.what, form, key).
				related(o.keyPos(form), form+" stands here")
		}
	}
	var t *TypeExpr
	switch form {
	case "":
		d.fault(CodeMissingKey, o.pos, "%s has none of type, list and map", o.what)
	case "type":
		if name := d.text(o.get(form)); name.IsSet() {
			t = d.typeName(name.Value, name.Pos)
		}
	case "list":
		t = d.container(o.get(form), List)
	case "map":
		t = d.container(o.get(form), Map)
	}
	d.checks(o, t)
	return t
}

func (d *decoder) container(n *node, kind TypeKind) *TypeExpr {
	t := &TypeExpr{Pos: n.pos, Kind: kind}
	switch n.kind {
	case text:
		t.Elem = d.typeName(n.value, n.pos)
	case mapping:
		t.Elem = d.element(n)
	default:
		d.wrongKind(n, "a type name or a mapping")
	}
	if t.Elem == nil {
		return nil
	}
	return t
}

// element reads what a list or map is made of: a form and its checks, without
// the options that stand on fields.
func (d *decoder) element(n *node) *TypeExpr {
	const what = "the element"
	var own []entry
	for _, e := range n.entries {
		if slices.Contains(optionKeys, e.key) {
			d.fault(CodeFieldOption, e.pos, "%s stands on fields, not inside a list or map", e.key)
			continue
		}
		own = append(own, e)
	}
	o, ok := d.object(&node{pos: n.pos, label: n.label, kind: mapping, entries: own}, n.pos, what, append(slices.Clone(formKeys), checkKeys...))
	if !ok {
		return nil
	}
	return d.typeExpr(o)
}
