package outbox

import "github.com/shopspring/decimal"

// A decimal has the range of numeric in Postgres. Without a bound, the few bytes
// of 1e999999999 would stand for more digits than fit into memory.
const (
	maxDecimalDigits   = 131072 // before the point
	maxDecimalFraction = 16383  // digits behind the point
	maxDecimalText     = maxDecimalDigits + maxDecimalFraction + len("-.e-16383")
)

const ruleDecimal = "must be a decimal number with at most 131072 digits before the point and 16383 behind it"

func decimalInRange(v decimal.Decimal) bool {
	exponent := int(v.Exponent())
	return exponent >= -maxDecimalFraction && v.NumDigits()+exponent <= maxDecimalDigits
}

// encodeDecimal writes equal numbers alike: without zeros behind the last digit
// of the fraction.
func encodeDecimal(v decimal.Decimal, w *jsonWriter) {
	if !decimalInRange(v) {
		w.fail(ruleDecimal)
		return
	}
	w.string(v.String())
}

// decodeDecimal reads a string or a number: others may have written the row.
func decodeDecimal(v jsonValue) decimal.Decimal {
	text, ok := v.numeral()
	if ok && len(text) <= maxDecimalText { // the time to parse grows with the square of the length
		if d, err := decimal.NewFromString(string(text)); err == nil && decimalInRange(d) {
			return d
		}
	}
	v.fail(ruleDecimal)
	return decimal.Decimal{}
}

func validDecimal(v decimal.Decimal, c *checks) {
	if !decimalInRange(v) {
		c.fail(ruleDecimal)
	}
}

func decimalAtLeast(limit string) rule[decimal.Decimal] {
	return func(v decimal.Decimal, c *checks) {
		if decimalInRange(v) && v.LessThan(decimal.RequireFromString(limit)) {
			c.fail("must be at least " + limit)
		}
	}
}

func decimalAtMost(limit string) rule[decimal.Decimal] {
	return func(v decimal.Decimal, c *checks) {
		if decimalInRange(v) && v.GreaterThan(decimal.RequireFromString(limit)) {
			c.fail("must be at most " + limit)
		}
	}
}

func nonZeroDecimal(v decimal.Decimal, c *checks) {
	if v.IsZero() {
		c.fail(ruleNonZero)
	}
}
