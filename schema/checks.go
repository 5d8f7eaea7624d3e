package schema

import (
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

var (
	quotable = []ScalarType{Int32, Int64, Uint64, Float64}
	numeric  = append(slices.Clone(quotable), Decimal, Bigint)
	lengthy  = []ScalarType{String, Bytes}
	zeroable = scalarTypes[:len(scalarTypes)-1] // all but json
)

// checkRule says which types a check fits.
type checkRule struct {
	scalars []ScalarType
	kinds   []TypeKind
	fits    string // in words, for the hint
}

var checkRules = map[string]checkRule{
	"quoted":     {scalars: quotable, fits: "quoted fits " + joinTypes(quotable)},
	"min":        {scalars: numeric, fits: "min fits " + joinTypes(numeric) + "; min_length and min_items bound other types"},
	"max":        {scalars: numeric, fits: "max fits " + joinTypes(numeric) + "; max_length and max_items bound other types"},
	"min_length": {scalars: lengthy, fits: "min_length fits string and bytes"},
	"max_length": {scalars: lengthy, fits: "max_length fits string and bytes"},
	"pattern":    {scalars: []ScalarType{String}, fits: "pattern fits string"},
	"min_items":  {kinds: []TypeKind{List, Map}, fits: "min_items fits lists and maps"},
	"max_items":  {kinds: []TypeKind{List, Map}, fits: "max_items fits lists and maps"},
	"nonzero":    {scalars: zeroable, fits: "nonzero fits " + joinTypes(zeroable)},
}

// checks reads the checks of o into t. Where t is nil, its fault is reported
// and only what does not depend on it is looked at.
func (d *decoder) checks(o object, t *TypeExpr) {
	known := t != nil
	if !known {
		t = &TypeExpr{}
	}
	fitting := func(key string) *node {
		n := o.get(key)
		if n == nil || !known {
			return n
		}
		rule := checkRules[key]
		if slices.Contains(rule.kinds, t.Kind) || t.Kind == Scalar && slices.Contains(rule.scalars, t.Scalar) {
			return n
		}
		d.fault(CodeCheckMisfit, o.keyPos(key), "%s does not fit %s", key, t.describe()).hint(rule.fits)
		return nil
	}
	c := &t.Checks
	t.Quoted = d.flag(fitting("quoted")).Value
	c.NonZero = d.flag(fitting("nonzero"))
	c.Pattern = d.pattern(fitting("pattern"))
	c.MinLength = d.integer(fitting("min_length"), 0)
	c.MaxLength = d.integer(fitting("max_length"), 0)
	c.MinItems = d.integer(fitting("min_items"), 0)
	c.MaxItems = d.integer(fitting("max_items"), 0)
	if minimum, maximum := fitting("min"), fitting("max"); known {
		c.Min = d.bound(minimum, t.Scalar)
		c.Max = d.bound(maximum, t.Scalar)
	}

	if c.Min.IsSet() && c.Max.IsSet() && rat(c.Min.Value).Cmp(rat(c.Max.Value)) > 0 {
		d.bounds(c.Min.Pos, c.Max.Pos, "min", "max", c.Min.Value, c.Max.Value)
	}
	d.lengths(c.MinLength, c.MaxLength, "min_length", "max_length")
	d.lengths(c.MinItems, c.MaxItems, "min_items", "max_items")
}

func (d *decoder) lengths(low, high Int, lowName, highName string) {
	if low.IsSet() && high.IsSet() && low.Value > high.Value {
		d.bounds(low.Pos, high.Pos, lowName, highName, strconv.Itoa(low.Value), strconv.Itoa(high.Value))
	}
}

func (d *decoder) bounds(low, high Pos, lowName, highName, lowValue, highValue string) {
	d.fault(CodeBounds, low, "%s %s is above %s %s: no value meets both", lowName, clip(lowValue), highName, clip(highValue)).
		related(high, highName+" stands here")
}

// describe says what t is, for messages.
func (t *TypeExpr) describe() string {
	switch t.Kind {
	case Scalar:
		return "the type " + string(t.Scalar)
	case Named:
		if t.Named.Enum {
			return "an enum"
		}
		return "the type " + quote(t.Named.Name.Value)
	case List:
		return "a list"
	default:
		return "a map"
	}
}

func (d *decoder) pattern(n *node) Text {
	t := d.text(n)
	if !t.IsSet() {
		return t
	}
	if _, err := regexp.Compile(t.Value); err != nil {
		reason := err.Error()
		var bad *syntax.Error
		if errors.As(err, &bad) {
			reason = fmt.Sprintf("%s: %s", bad.Code, quote(bad.Expr))
		}
		d.fault(CodePattern, t.Pos, "the pattern does not compile: %s", reason).
			hint("patterns are RE2, as Go's regexp package reads them")
		return Text{}
	}
	return t
}

// floatNumber is fraction with an exponent.
var floatNumber = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

// maxDigits keeps bounds to what can be compared at once.
const maxDigits = 1000

// bound reads a bound of a number of type t into its canonical decimal form.
func (d *decoder) bound(n *node, t ScalarType) Text {
	if n == nil {
		return Text{}
	}
	if n.kind != number && n.kind != text {
		d.wrongKind(n, "a number")
		return Text{}
	}
	if len(n.value) > maxDigits {
		d.fault(CodeRange, n.pos, "%s has %d digits; at most %d are possible", n.label, len(n.value), maxDigits)
		return Text{}
	}
	canonical, ok := "", false
	switch t {
	case Int32, Int64:
		bits := map[ScalarType]int{Int32: 32, Int64: 64}[t]
		value, err := strconv.ParseInt(n.value, 10, bits)
		canonical, ok = strconv.FormatInt(value, 10), err == nil && wholeNumber.MatchString(n.value)
	case Uint64:
		value, err := strconv.ParseUint(strings.TrimPrefix(n.value, "+"), 10, 64)
		canonical, ok = strconv.FormatUint(value, 10), err == nil && wholeNumber.MatchString(n.value)
	case Float64:
		value, err := strconv.ParseFloat(n.value, 64)
		// A number that only its rounding makes zero is out of range too.
		mantissa, _, _ := strings.Cut(strings.ToLower(n.value), "e")
		lost := value == 0 && strings.ContainsAny(mantissa, "123456789")
		canonical, ok = canonicalDecimal(strconv.FormatFloat(value, 'f', -1, 64)), err == nil && !lost && floatNumber.MatchString(n.value)
	case Decimal:
		canonical, ok = canonicalDecimal(n.value), fraction.MatchString(n.value)
	case Bigint:
		canonical, ok = canonicalDecimal(n.value), wholeNumber.MatchString(n.value)
	default:
		return Text{} // the check does not fit, which is reported
	}
	if !ok {
		d.fault(CodeRange, n.pos, "%s must be a number of type %s, found %s", n.label, t, n.describe())
		return Text{}
	}
	return Text{Value: canonical, Pos: n.pos}
}

// canonicalDecimal drops what a decimal number can be written without: a plus
// sign, zeros at the end of the fraction, the sign of zero.
func canonicalDecimal(s string) string {
	s = strings.TrimPrefix(s, "+")
	if strings.Contains(s, ".") {
		s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	if s == "-0" {
		return "0"
	}
	return s
}

// rat is the value of a canonical decimal number.
func rat(canonical string) *big.Rat {
	r, _ := new(big.Rat).SetString(canonical)
	return r
}
