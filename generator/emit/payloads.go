package emit

import (
	"slices"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/schema"
)

// Payloads is the source of payloads.gen.go: the payloads and the types that
// they are made of, and how they are checked, written and read.
func Payloads(m *model.Model) ([]byte, error) {
	e := newPayloadEmitter(m)
	for _, p := range m.Payloads {
		e.payload(p)
	}
	for _, t := range m.Types {
		if t.Enum {
			e.enum(t)
		} else {
			e.object(t)
		}
	}
	e.readers(m.Payloads)
	if e.err != nil {
		return nil, e.err
	}
	return source(e.file)
}

type payloadEmitter struct {
	file     *jen.File
	pkg      string
	keyed    typeSet               // objects that hold a map, however deep
	checked  typeSet               // objects that can break a rule
	held     typeSet               // types that some payload holds, however deep
	patterns map[*model.Ref]string // variables that hold the compiled patterns
	err      error                 // the first
}

func newPayloadEmitter(m *model.Model) *payloadEmitter {
	e := &payloadEmitter{file: newFile(m.Package), pkg: m.Package, patterns: patternNames(m)}
	e.keyed = typesWhere(m.Types, holdsMap)
	// A type that can hold itself is checked for its depth, and so are those
	// that hold it.
	cyclic := cyclicTypes(m.Types)
	e.checked = typesWhere(m.Types, func(r *model.Ref, found typeSet) bool {
		e.checked = found
		return cyclic[leaf(r).Named] || len(e.rules(r)) > 0
	})
	e.held = typeSet{}
	for _, p := range m.Payloads {
		e.hold(p.Fields)
	}
	return e
}

func (e *payloadEmitter) hold(fields []*model.Field) {
	for _, f := range fields {
		if t := leaf(f.Ref).Named; t != nil && !e.held[t] {
			e.held[t] = true
			e.hold(t.Fields)
		}
	}
}

// structure is what payloads and objects have in common.
type structure struct {
	goName    string
	receiver  string
	fields    []*model.Field
	sensitive bool
	checked   bool
}

func (e *payloadEmitter) payload(p *model.Payload) {
	s := structure{goName: p.GoName, receiver: "p", fields: p.Fields, sensitive: p.Sensitive}
	s.checked = slices.ContainsFunc(p.Fields, func(f *model.Field) bool { return len(e.rules(f.Ref)) > 0 })
	e.declare([]string{orElse(p.Doc, p.GoName+" is the payload "+p.Name+"."), deprecated(p.Deprecated)}, s.declaration())

	validate := jen.Return(jen.Nil())
	if s.checked {
		validate = jen.Return(jen.Id("validate").Call(jen.Lit(p.Name), jen.Id("p").Dot("check")))
	}
	e.method(s, "Validate reports every rule that the payload breaks, as a [*ValidationError].",
		jen.Id("Validate").Params().Error().Add(inline(validate)))
	e.structure(s)
	e.file.Line()
	e.file.Func().Params(jen.Id(p.GoName)).Id("payloadType").Params().String().Add(inline(jen.Return(jen.Lit(p.Name))))
	e.file.Func().Params(jen.Id(p.GoName)).Id("payloadVersion").Params().Int32().Add(inline(jen.Return(jen.Lit(p.Version))))
}

func (e *payloadEmitter) object(t *model.Type) {
	s := structure{goName: t.GoName, receiver: "t", fields: t.Fields, sensitive: t.Sensitive}
	s.checked = e.checked[t] && e.held[t] // what no payload holds is never asked
	e.declare([]string{orElse(t.Doc, t.GoName+" is the type "+t.Name+"."), deprecated(t.Deprecated)}, s.declaration())
	e.structure(s)
}

// structure emits the methods of a struct.
func (e *payloadEmitter) structure(s structure) {
	if s.checked {
		e.check(s)
	}
	e.method(s, "MarshalJSON writes the "+s.noun()+" as it is stored.",
		jen.Id("MarshalJSON").Params().Params(jen.Index().Byte(), jen.Error()).
			Add(inline(jen.Return(jen.Id("marshal").Call(s.dot("encode"))))))
	e.encode(s)
	e.declare([]string{"UnmarshalJSON reads what MarshalJSON writes. After an error nothing has changed."},
		jen.Func().Params(jen.Id(s.receiver).Op("*").Id(s.goName)).Id("UnmarshalJSON").
			Params(jen.Id("data").Index().Byte()).Error().
			Add(inline(jen.Return(jen.Id("unmarshal").Call(jen.Id("data"), jen.Id(s.receiver))))))
	e.decode(s)
	if s.sensitive {
		e.redact(s)
	}
}

func (s structure) noun() string {
	if s.receiver == "p" {
		return "payload"
	}
	return "value"
}

func (s structure) dot(name string) *jen.Statement { return jen.Id(s.receiver).Dot(name) }

func (s structure) declaration() jen.Code {
	return jen.Type().Id(s.goName).StructFunc(func(g *jen.Group) {
		for _, f := range s.fields {
			if doc := docLines(f.Doc, deprecated(f.Deprecated)); doc != "" {
				g.Comment(doc)
			}
			field := g.Id(f.GoName)
			if isPointer(f) {
				field.Op("*")
			}
			field.Add(goType(f.Ref))
			if f.Sensitive {
				field.Comment("sensitive")
			}
		}
	})
}

// check emits the method that applies the rules of every field, behind the
// patterns that it needs.
func (e *payloadEmitter) check(s structure) {
	var statements []jen.Code
	for _, f := range s.fields {
		if r := leaf(f.Ref); r.Checks.Pattern != "" {
			e.pattern(r)
		}
		rules := e.rules(f.Ref)
		if len(rules) == 0 {
			continue
		}
		if isPointer(f) {
			rules = []jen.Code{jen.Id("ifSet").Call(rules...)}
		}
		if f.Sensitive && holdsMap(f.Ref, e.keyed) {
			rules = []jen.Code{jen.Id("secret").Call(rules...)}
		}
		statement := jen.Id("check").Call(append([]jen.Code{jen.Id("c"), jen.Lit(f.Name), s.dot(f.GoName)}, rules...)...)
		if f.Optional && canBeNil(f.Ref) {
			statement = jen.If(s.dot(f.GoName).Op("!=").Nil()).Block(statement)
		}
		statements = append(statements, statement)
	}
	e.method(s, "", jen.Id("check").Params(jen.Id("c").Op("*").Id("checks")).Block(statements...))
}

func (e *payloadEmitter) encode(s structure) {
	statements := []jen.Code{jen.Id("w").Dot("open").Call(jen.LitRune('{'))}
	for _, f := range s.fields {
		encoder := encoderOf(f.Ref)
		if f.Sensitive {
			encoder = jen.Id("encodeSecret").Call(encoder)
		}
		put := "put"
		if isPointer(f) {
			put = "putOptional"
		}
		statement := jen.Id(put).Call(jen.Id("w"), jen.Lit(f.Name), s.dot(f.GoName), encoder)
		if f.Optional && canBeNil(f.Ref) {
			statement = jen.If(s.dot(f.GoName).Op("!=").Nil()).Block(statement)
		}
		statements = append(statements, statement)
	}
	statements = append(statements, jen.Id("w").Dot("close").Call(jen.LitRune('}')))
	e.method(s, "", jen.Id("encode").Params(jen.Id("w").Op("*").Id("jsonWriter")).Block(statements...))
}

func (e *payloadEmitter) decode(s structure) {
	object := jen.Id("v").Dot("object").Call()
	if len(s.fields) > 0 {
		object = jen.Id("o").Op(":=").Add(object)
	}
	statements := []jen.Code{object}
	for _, f := range s.fields {
		decoder := decoderOf(f.Ref)
		if f.Sensitive && holdsMap(f.Ref, e.keyed) {
			decoder = jen.Id("decodeSecret").Call(decoder)
		}
		read := "required"
		switch {
		case isPointer(f):
			read, decoder = "optional", jen.Id("decodePointer").Call(decoder)
		case f.Optional:
			read = "optional"
		case f.Ref.Scalar == schema.JSON:
			read = "requiredOrNull"
		}
		statements = append(statements, s.dot(f.GoName).Op("=").Id(read).Call(jen.Id("o"), jen.Lit(f.Name), decoder))
	}
	e.declare(nil, jen.Func().Params(jen.Id(s.receiver).Op("*").Id(s.goName)).Id("decode").
		Params(jen.Id("v").Id("jsonValue")).Block(statements...))
}

// redact emits what keeps secrets out of fmt and log/slog.
func (e *payloadEmitter) redact(s structure) {
	e.method(s, "String is the JSON of the "+s.noun()+" without what is sensitive.",
		jen.Id("String").Params().String().Add(inline(jen.Return(jen.Id("redacted").Call(s.dot("encode"))))))
	e.method(s, "GoString is String under the name of the type.",
		jen.Id("GoString").Params().String().
			Add(inline(jen.Return(jen.Lit(e.pkg+"."+s.goName).Op("+").Add(s.dot("String")).Call()))))
	e.method(s, "LogValue is String for log/slog.",
		jen.Id("LogValue").Params().Qual(pathSlog, "Value").
			Add(inline(jen.Return(jen.Qual(pathSlog, "StringValue").Call(s.dot("String").Call())))))
}

func (e *payloadEmitter) enum(t *model.Type) {
	e.declare([]string{orElse(t.Doc, t.GoName+" is the type "+t.Name+"."), deprecated(t.Deprecated)},
		jen.Type().Id(t.GoName).String())
	var values []jen.Code
	e.declare([]string{"The values of " + t.GoName + "."}, jen.Const().DefsFunc(func(g *jen.Group) {
		for _, v := range t.Values {
			// A comment on each keeps gofmt from aligning one value with another.
			g.Comment(docLines(orElse(v.Doc, v.GoName+" is the value "+strconv.Quote(v.Value)+".")))
			g.Id(v.GoName).Id(t.GoName).Op("=").Lit(v.Value)
			values = append(values, jen.Id(v.GoName))
		}
	}))
	one := jen.Null()
	for i, v := range values {
		if i > 0 {
			one.Op(",").Line()
		}
		one.Add(v)
	}
	e.declare([]string{"Valid tells whether e is one of the constants. Enqueue takes no other value; one\n" +
		"that is read may come from a later version of the program."},
		jen.Func().Params(jen.Id("e").Id(t.GoName)).Id("Valid").Params().Bool().Block(
			jen.Switch(jen.Id("e")).Block(jen.Case(one).Block(jen.Return(jen.True()))),
			jen.Return(jen.False()),
		))
}

// readers emits what finds the reader of a stored payload. It is a switch since
// gofmt aligns the values of a map, and one more payload is to change no line of
// the others.
func (e *payloadEmitter) readers(payloads []*model.Payload) {
	var cases []jen.Code
	for _, p := range payloads {
		cases = append(cases, jen.Case(jen.Id("codecKey").Values(jen.Lit(p.Name), jen.Lit(p.Version))).
			Block(jen.Return(jen.Id("readPayload").Index(jen.Id(p.GoName)))))
	}
	e.declare([]string{"readerOf is what reads a stored payload, or nil where the package has no such type."},
		jen.Func().Id("readerOf").Params(jen.Id("key").Id("codecKey")).
			Func().Params(jen.Index().Byte()).Params(jen.Id("Payload"), jen.Error()).Block(
			jen.Switch(jen.Id("key")).Block(cases...),
			jen.Return(jen.Nil()),
		))
}

func (e *payloadEmitter) declare(doc []string, declaration jen.Code) {
	declare(e.file, doc, declaration)
}

// method declares a method with a value receiver.
func (e *payloadEmitter) method(s structure, doc string, rest jen.Code) {
	e.declare([]string{doc}, jen.Func().Params(jen.Id(s.receiver).Id(s.goName)).Add(rest))
}

// rules are what values of a type must keep: first what the type implies, then
// what the author asked for.
func (e *payloadEmitter) rules(r *model.Ref) []jen.Code {
	switch {
	case r.Kind == schema.List:
		rules := limits(r.Checks.MinItems, r.Checks.MaxItems, jen.Id("minItems").Index(goType(r.Elem)), jen.Id("maxItems").Index(goType(r.Elem)))
		if items := e.rules(r.Elem); len(items) > 0 {
			rules = append(rules, jen.Id("each").Call(items...))
		}
		return rules
	case r.Kind == schema.Map:
		rules := limits(r.Checks.MinItems, r.Checks.MaxItems, jen.Id("minEntries").Index(goType(r.Elem)), jen.Id("maxEntries").Index(goType(r.Elem)))
		entries, values := jen.Id("entries"), e.rules(r.Elem)
		if len(values) == 0 {
			entries.Index(goType(r.Elem)) // which nothing else tells
		}
		return append(rules, entries.Call(values...))
	case r.Kind == schema.Named && r.Named.Enum:
		return []jen.Code{jen.Id("declared").Index(jen.Id(r.Named.GoName))}
	case r.Kind == schema.Named && e.checked[r.Named]:
		return []jen.Code{jen.Id(r.Named.GoName).Dot("check")}
	case r.Kind == schema.Named:
		return nil
	}
	return e.scalarRules(r)
}

func (e *payloadEmitter) scalarRules(r *model.Ref) []jen.Code {
	var rules []jen.Code
	if implied, ok := impliedRules[r.Scalar]; ok {
		rules = append(rules, jen.Id(implied))
	}
	c := r.Checks
	switch r.Scalar {
	case schema.String:
		if c.NonZero && (c.MinLength == nil || *c.MinLength == 0) {
			rules = append(rules, jen.Id("minLength").Call(jen.Lit(1)))
		}
		rules = append(rules, limits(c.MinLength, c.MaxLength, jen.Id("minLength"), jen.Id("maxLength"))...)
	case schema.Bytes:
		rules = append(rules, limits(c.MinLength, c.MaxLength, jen.Id("minBytes"), jen.Id("maxBytes"))...)
	default:
		if c.NonZero {
			rules = append(rules, nonZero(r))
		}
		if c.Min != "" {
			rules = append(rules, e.bound(r.Scalar, "atLeast", c.Min))
		}
		if c.Max != "" {
			rules = append(rules, e.bound(r.Scalar, "atMost", c.Max))
		}
	}
	if c.Pattern != "" {
		rules = append(rules, jen.Id("matches").Call(jen.Id(e.patterns[r])))
	}
	return rules
}

// impliedRules are the rules of the types that have values which cannot be
// stored.
var impliedRules = map[schema.ScalarType]string{
	schema.String:  "validText",
	schema.Float64: "finite",
	schema.Time:    "validTime",
	schema.Date:    "validDate",
	schema.Decimal: "validDecimal",
	schema.Bigint:  "validBigint",
	schema.JSON:    "validJSON",
}

// limits are the rules of a least and a greatest count. A least count of 0 is
// no rule.
func limits(least, most *int, leastRule, mostRule *jen.Statement) []jen.Code {
	var rules []jen.Code
	if least != nil && *least > 0 {
		rules = append(rules, leastRule.Call(jen.Lit(*least)))
	}
	if most != nil {
		rules = append(rules, mostRule.Call(jen.Lit(*most)))
	}
	return rules
}

func nonZero(r *model.Ref) jen.Code {
	switch r.Scalar {
	case schema.Time:
		return jen.Id("nonZeroTime")
	case schema.Decimal:
		return jen.Id("nonZeroDecimal")
	case schema.Bigint:
		return jen.Id("nonZeroBigint")
	}
	return jen.Id("nonZero").Index(goType(r))
}

// bound is the rule atLeast or atMost with its limit. The limit is parsed, so
// that nothing but a number gets into the source.
func (e *payloadEmitter) bound(t schema.ScalarType, rule, limit string) jen.Code {
	var literal jen.Code
	var err error
	switch t {
	case schema.Int32, schema.Int64:
		var i int64
		i, err = strconv.ParseInt(limit, 10, 64)
		literal = scalarTypes[t].goType().Call(jen.Op(strconv.FormatInt(i, 10)))
	case schema.Uint64:
		var i uint64
		i, err = strconv.ParseUint(limit, 10, 64)
		literal = scalarTypes[t].goType().Call(jen.Op(strconv.FormatUint(i, 10)))
	case schema.Float64:
		var f float64
		f, err = strconv.ParseFloat(limit, 64)
		literal = jen.Lit(f)
	default:
		rule = string(t) + strings.ToUpper(rule[:1]) + rule[1:] // decimalAtLeast, bigintAtMost
		literal = jen.Lit(limit)
	}
	if err != nil && e.err == nil {
		e.err = err
	}
	return jen.Id(rule).Call(literal)
}

// patternNames names the variables of the patterns after type and field. As
// these may run together in more than one way, a name that is taken gets a
// number.
func patternNames(m *model.Model) map[*model.Ref]string {
	names := make(map[*model.Ref]string)
	taken := make(map[string]bool)
	add := func(owner string, fields []*model.Field) {
		for _, f := range fields {
			r := leaf(f.Ref)
			if r.Checks.Pattern == "" {
				continue
			}
			name := "pattern" + owner + f.GoName
			for i := 2; taken[name]; i++ {
				name = "pattern" + owner + f.GoName + strconv.Itoa(i)
			}
			names[r], taken[name] = name, true
		}
	}
	for _, p := range m.Payloads {
		add(p.GoName, p.Fields)
	}
	for _, t := range m.Types {
		add(t.GoName, t.Fields)
	}
	return names
}

// pattern declares the variable that holds the pattern of a field.
func (e *payloadEmitter) pattern(r *model.Ref) {
	literal := jen.Lit(r.Checks.Pattern)
	if strconv.CanBackquote(r.Checks.Pattern) {
		literal = jen.Op("`" + r.Checks.Pattern + "`")
	}
	e.declare(nil, jen.Var().Id(e.patterns[r]).Op("=").Qual(pathRegexp, "MustCompile").Call(literal))
}

// scalarTypes are the Go types of the scalars, and the ends of the names of the
// functions that write and read them.
var scalarTypes = map[schema.ScalarType]struct {
	goType func() *jen.Statement
	codec  string
}{
	schema.String:       {jen.String, "String"},
	schema.Bool:         {jen.Bool, "Bool"},
	schema.Int32:        {jen.Int32, "Int32"},
	schema.Int64:        {jen.Int64, "Int64"},
	schema.Uint64:       {jen.Uint64, "Uint64"},
	schema.Float64:      {jen.Float64, "Float64"},
	schema.UUID:         {func() *jen.Statement { return jen.Qual(pathUUID, "UUID") }, "UUID"},
	schema.Time:         {func() *jen.Statement { return jen.Qual(pathTime, "Time") }, "Time"},
	schema.Date:         {func() *jen.Statement { return jen.Id("Date") }, "Date"},
	schema.DurationType: {func() *jen.Statement { return jen.Id("Duration") }, "Duration"},
	schema.Decimal:      {func() *jen.Statement { return jen.Qual(pathDecimal, "Decimal") }, "Decimal"},
	schema.Bigint:       {func() *jen.Statement { return jen.Op("*").Qual(pathBig, "Int") }, "Bigint"},
	schema.Bytes:        {func() *jen.Statement { return jen.Index().Byte() }, "Bytes"},
	schema.JSON:         {func() *jen.Statement { return jen.Qual(pathJSON, "RawMessage") }, "JSON"},
}

// goType is the Go type of required values.
func goType(r *model.Ref) *jen.Statement {
	switch r.Kind {
	case schema.List:
		return jen.Index().Add(goType(r.Elem))
	case schema.Map:
		return jen.Map(jen.String()).Add(goType(r.Elem))
	case schema.Named:
		return jen.Id(r.Named.GoName)
	}
	return scalarTypes[r.Scalar].goType()
}

// encoderOf is the function that writes values of a type.
func encoderOf(r *model.Ref) *jen.Statement {
	switch {
	case r.Kind == schema.List:
		return jen.Id("encodeList").Call(encoderOf(r.Elem))
	case r.Kind == schema.Map:
		return jen.Id("encodeMap").Call(encoderOf(r.Elem))
	case r.Kind == schema.Named && r.Named.Enum:
		return jen.Id("encodeEnum").Index(jen.Id(r.Named.GoName))
	case r.Kind == schema.Named:
		return jen.Id(r.Named.GoName).Dot("encode")
	}
	encoder := jen.Id("encode" + scalarTypes[r.Scalar].codec)
	if r.Quoted {
		return jen.Id("encodeQuoted").Call(encoder)
	}
	return encoder
}

// decoderOf is the function that reads values of a type.
func decoderOf(r *model.Ref) *jen.Statement {
	switch {
	case r.Kind == schema.List:
		return jen.Id("decodeList").Call(decoderOf(r.Elem))
	case r.Kind == schema.Map:
		return jen.Id("decodeMap").Call(decoderOf(r.Elem))
	case r.Kind == schema.Named && r.Named.Enum:
		return jen.Id("decodeEnum").Index(jen.Id(r.Named.GoName))
	case r.Kind == schema.Named:
		return jen.Id("decodeObject").Index(jen.Id(r.Named.GoName))
	}
	decoder := jen.Id("decode" + scalarTypes[r.Scalar].codec)
	if r.Quoted {
		return jen.Id("decodeQuoted").Call(decoder)
	}
	return decoder
}

// canBeNil tells whether the Go type has a nil of its own, which then stands for
// an optional field that is not set.
func canBeNil(r *model.Ref) bool {
	switch r.Kind {
	case schema.List, schema.Map:
		return true
	}
	switch r.Scalar {
	case schema.Bytes, schema.JSON, schema.Bigint:
		return true
	}
	return false
}

// isPointer tells whether the field is a pointer since its type has no nil.
func isPointer(f *model.Field) bool { return f.Optional && !canBeNil(f.Ref) }

// leaf is what a list or map holds in the end, and every other type itself.
func leaf(r *model.Ref) *model.Ref {
	for r.Elem != nil {
		r = r.Elem
	}
	return r
}

// typeSet is a set of named types.
type typeSet map[*model.Type]bool

// typesWhere collects the objects with a field of whose type is holds, given
// what was found so far. It asks again until nothing changes, since types may
// refer to each other in any order.
func typesWhere(types []*model.Type, is func(r *model.Ref, found typeSet) bool) typeSet {
	found := typeSet{}
	for changed := true; changed; {
		changed = false
		for _, t := range types {
			if !found[t] && slices.ContainsFunc(t.Fields, func(f *model.Field) bool { return is(f.Ref, found) }) {
				found[t], changed = true, true
			}
		}
	}
	return found
}

// cyclicTypes are the types that can hold themselves.
func cyclicTypes(types []*model.Type) typeSet {
	cyclic := typeSet{}
	for _, t := range types {
		holders := typesWhere(types, func(r *model.Ref, found typeSet) bool {
			return leaf(r).Named == t || found[leaf(r).Named]
		})
		cyclic[t] = holders[t]
	}
	return cyclic
}

// holdsMap tells whether values of a type hold a map, given the objects that do.
func holdsMap(r *model.Ref, found typeSet) bool {
	for ; r.Elem != nil; r = r.Elem {
		if r.Kind == schema.Map {
			return true
		}
	}
	return found[r.Named]
}
