package schema

import (
	"fmt"
	"slices"
	"strings"
)

// selectorUse is what a selector is for.
type selectorUse struct {
	name string
	// shared: keys of different payloads are compared with each other, so
	// that they must be made of the same kinds of values.
	shared bool
}

var (
	orderBy        = selectorUse{name: "order_by", shared: true}
	limitsPer      = selectorUse{name: "per", shared: true}
	idempotencyKey = selectorUse{name: "idempotency_key"}
)

const selectorForm = "a field, a list of fields, or a mapping of payloads to these"

// selector reads which fields of the accepted payloads make a key.
func (d *decoder) selector(n *node, accepts []Accept, use selectorUse) Selector {
	if n == nil {
		return Selector{}
	}
	s := Selector{Pos: n.pos}
	if n.kind == mapping {
		s.Paths = d.selectorMap(n, accepts, use)
	} else {
		paths := d.pathTexts(n, selectorForm)
		for _, a := range accepts {
			s.Paths = append(s.Paths, d.payloadPaths(a.Payload, paths, use))
		}
	}
	if use.shared {
		d.sameKinds(s, use)
	}
	return s
}

// selectorMap reads the form that names the fields of each payload.
func (d *decoder) selectorMap(n *node, accepts []Accept, use selectorUse) []PayloadPaths {
	written := map[string][]Text{}
	for _, e := range n.entries {
		written[e.key] = d.pathTexts(e.value, "a field or a list of fields")
	}
	var all []PayloadPaths
	var known []string
	for _, a := range accepts {
		known = append(known, a.Name.Value)
		paths, ok := written[a.Name.Value]
		if !ok {
			d.fault(CodeSelectorMap, n.pos, "%s names no field of the accepted payload %s", use.name, quote(a.Name.Value)).
				related(a.Name.Pos, "it is accepted here")
			continue
		}
		delete(written, a.Name.Value)
		all = append(all, d.payloadPaths(a.Payload, paths, use))
	}
	for _, e := range n.entries {
		if _, left := written[e.key]; left {
			f := d.fault(CodeUnknownPayload, e.pos, "%s names the payload %s, which the destination does not accept", use.name, quote(e.key))
			if near := d.nearest(e.key, known); near != "" {
				f.hint(fmt.Sprintf("did you mean %s?", near))
			}
		}
	}
	return all
}

// pathTexts reads one path or a list of them.
func (d *decoder) pathTexts(n *node, want string) []Text {
	items := []*node{n}
	switch {
	case n.kind == list:
		items = n.items
	case n.kind != text:
		d.wrongKind(n, want)
		return nil
	}
	if len(items) == 0 {
		d.fault(CodeNoItems, n.pos, "%s needs a field at least", n.label)
	}
	var all []Text
	seen := map[string]Pos{}
	for _, item := range items {
		t := d.text(item)
		if !t.IsSet() {
			continue
		}
		if first, again := seen[t.Value]; again {
			d.fault(CodeDuplicate, t.Pos, "the field %s stands here a second time", quote(t.Value)).
				related(first, "it stands here first")
			continue
		}
		seen[t.Value] = t.Pos
		all = append(all, t)
	}
	return all
}

// payloadPaths resolves texts in p. It has all of the paths or, when one of
// them is at fault, none.
func (d *decoder) payloadPaths(p *Payload, texts []Text, use selectorUse) PayloadPaths {
	all := PayloadPaths{Payload: p}
	for _, t := range texts {
		if fields := d.path(t, p, use); fields != nil {
			all.Paths = append(all.Paths, Path{Pos: t.Pos, Fields: fields})
		}
	}
	if len(all.Paths) < len(texts) {
		all.Paths = nil
	}
	return all
}

// path follows a path through the fields of p. It is nil when the path leads
// nowhere, which is reported, or into something whose own fault is reported.
func (d *decoder) path(t Text, p *Payload, use selectorUse) []*Field {
	var trail []*Field
	fields, owner, rest := p.Fields, "payload "+quote(p.Name.Value), t.Value
	for {
		if fields == nil {
			return nil
		}
		f := d.step(t, rest, fields, owner, use)
		if f == nil {
			return nil
		}
		trail = append(trail, f)
		if f.Type == nil {
			return nil
		}
		if f.Name.Value == rest {
			if keyKind(f.Type) == "" {
				d.fault(CodeSelectorKind, t.Pos, "%s cannot use %s of %s, which is %s", use.name, quote(f.Name.Value), owner, f.Type.describe()).
					hint("a key is made of string, bool, int32, int64, uint64, uuid and enums")
				return nil
			}
			return trail
		}
		rest = rest[len(f.Name.Value)+1:]
		fields, owner = f.Type.Named.Fields, "type "+quote(f.Type.Named.Name.Value)
	}
}

// step finds the field that rest begins with. Names may hold dots, so that a
// path can be read in several ways; then it is refused.
func (d *decoder) step(t Text, rest string, fields []*Field, owner string, use selectorUse) *Field {
	var found, through *Field
	var names []string
	for _, f := range fields {
		names = append(names, f.Name.Value)
		switch {
		case !f.begins(rest):
			continue
		case f.Name.Value != rest && f.Type != nil && !f.Type.isObject():
			through = f
			continue
		case found == nil || !found.leadsOn(rest):
			found = f
			continue
		case !f.leadsOn(rest):
			continue
		}
		d.fault(CodeSelectorPath, t.Pos, "%s can be read in two ways in %s", quote(rest), owner).
			related(found.Name.Pos, "through this field").
			related(f.Name.Pos, "or through this one")
		return nil
	}
	switch {
	case found == nil && through != nil:
		d.fault(CodeSelectorPath, t.Pos, "%s leads through %s of %s, which is %s", quote(t.Value), quote(through.Name.Value), owner, through.Type.describe()).
			hint("a path leads through required fields that are objects")
	case found == nil:
		f := d.fault(CodeSelectorPath, t.Pos, "%s has no field %s, which %s names", owner, quote(rest), use.name)
		if near := d.nearest(rest, names); near != "" {
			f.hint(fmt.Sprintf("did you mean %s?", near))
		}
	case found.Optional:
		d.fault(CodeSelectorPath, t.Pos, "%s cannot use %s of %s, which is optional", use.name, quote(found.Name.Value), owner).
			related(found.Name.Pos, "the field stands here")
		return nil
	case found.Sensitive:
		d.fault(CodeSelectorPath, t.Pos, "%s cannot use %s of %s, which is sensitive: keys are stored and shown", use.name, quote(found.Name.Value), owner).
			related(found.Name.Pos, "the field stands here")
		return nil
	}
	return found
}

// begins tells whether path is f or leads into it.
func (f *Field) begins(path string) bool {
	return path == f.Name.Value || strings.HasPrefix(path, f.Name.Value+".")
}

// leadsOn tells whether a path that f begins has a next step behind it too.
func (f *Field) leadsOn(path string) bool {
	if path == f.Name.Value || f.Type == nil {
		return true
	}
	rest := path[len(f.Name.Value)+1:]
	return slices.ContainsFunc(f.Type.Named.Fields, func(next *Field) bool { return next.begins(rest) })
}

func (t *TypeExpr) isObject() bool { return t.Kind == Named && !t.Named.Enum }

// keyKind is the kind of value that t gives to a key, "" when it gives none.
func keyKind(t *TypeExpr) string {
	switch {
	case t.Kind == Named && t.Named.Enum:
		return "string"
	case t.Kind != Scalar:
		return ""
	}
	switch t.Scalar {
	case String, UUID, Bool:
		return string(t.Scalar)
	case Int32, Int64, Uint64:
		return "integer"
	default:
		return ""
	}
}

// sameKinds reports payloads whose keys could never equal those of the first.
func (d *decoder) sameKinds(s Selector, use selectorUse) {
	var first PayloadPaths
	for _, p := range s.Paths {
		switch {
		case len(p.Paths) == 0: // at fault, which is reported
		case first.Payload == nil:
			first = p
		case p.kinds() != first.kinds():
			d.fault(CodeSelectorKind, p.Paths[0].Pos, "%s is made of %s for the payload %s, and of %s for %s", use.name,
				p.kinds(), quote(p.Payload.Name.Value), first.kinds(), quote(first.Payload.Name.Value)).
				hint("rows of both payloads share a key only when it is made of the same kinds of values")
		}
	}
}

// kinds are the kinds of the values that make the key, in words.
func (p PayloadPaths) kinds() string {
	kinds := make([]string, len(p.Paths))
	for i, path := range p.Paths {
		kinds[i] = keyKind(path.Fields[len(path.Fields)-1].Type)
	}
	return strings.Join(kinds, ", ")
}
