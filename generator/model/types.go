package model

import "github.com/outboxgen/outboxgen/schema"

// ref resolves the type of a field. Types refer to each other in cycles: what
// they refer to is known by its identity, not yet by its fields.
func (b *builder) ref(spec *schema.TypeExpr) *Ref {
	if spec == nil {
		return nil
	}
	return &Ref{
		Kind:   spec.Kind,
		Scalar: spec.Scalar,
		Named:  b.types[spec.Named],
		Elem:   b.ref(spec.Elem),
		Quoted: spec.Quoted,
		Checks: checks(spec.Checks),
	}
}

func checks(spec schema.Checks) Checks {
	return Checks{
		Min:       spec.Min.Value,
		Max:       spec.Max.Value,
		MinLength: limit(spec.MinLength),
		MaxLength: limit(spec.MaxLength),
		Pattern:   spec.Pattern.Value,
		MinItems:  limit(spec.MinItems),
		MaxItems:  limit(spec.MaxItems),
		NonZero:   spec.NonZero.Value,
	}
}

func limit(spec schema.Int) *int {
	if !spec.IsSet() {
		return nil
	}
	return &spec.Value
}

// markSensitive marks every type and payload that holds a sensitive field,
// however deep. Since types may refer to themselves, it repeats until nothing
// changes.
func markSensitive(m *Model) {
	for changed := true; changed; {
		changed = false
		for _, t := range m.Types {
			if !t.Sensitive && holdsSensitive(t.Fields) {
				t.Sensitive, changed = true, true
			}
		}
	}
	for _, p := range m.Payloads {
		p.Sensitive = holdsSensitive(p.Fields)
	}
}

func holdsSensitive(fields []*Field) bool {
	for _, field := range fields {
		if field.Sensitive {
			return true
		}
		ref := field.Ref
		for ref.Elem != nil {
			ref = ref.Elem
		}
		if ref.Named != nil && ref.Named.Sensitive {
			return true
		}
	}
	return false
}
