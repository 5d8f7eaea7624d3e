package outbox

import "math/big"

// A bigint has as many digits as numeric has in Postgres.
const (
	maxBigintDigits = 131072
	maxBigintBits   = maxBigintDigits * 332192 / 100000 // no number of that many bits has more digits
)

const ruleBigint = "must be a whole number of fewer than 131072 digits"

func bigintInRange(v *big.Int) bool { return v.BitLen() <= maxBigintBits }

func encodeBigint(v *big.Int, w *jsonWriter) {
	if v == nil || !bigintInRange(v) {
		w.fail(ruleBigint)
		return
	}
	w.buf = append(w.buf, '"')
	w.buf = v.Append(w.buf, 10)
	w.buf = append(w.buf, '"')
}

// decodeBigint reads a string or a number: others may have written the row.
func decodeBigint(v jsonValue) *big.Int {
	text, ok := v.numeral()
	if ok && len(text) <= len("-")+maxBigintDigits { // the time to parse grows with the square of the length
		if i, ok := new(big.Int).SetString(string(text), 10); ok && bigintInRange(i) {
			return i
		}
	}
	v.fail(ruleBigint)
	return nil
}

func validBigint(v *big.Int, c *checks) {
	if v == nil || !bigintInRange(v) {
		c.fail(ruleBigint)
	}
}

func bigintAtLeast(limit string) rule[*big.Int] {
	return func(v *big.Int, c *checks) {
		if v != nil && compareBigint(v, limit) < 0 {
			c.fail("must be at least " + limit)
		}
	}
}

func bigintAtMost(limit string) rule[*big.Int] {
	return func(v *big.Int, c *checks) {
		if v != nil && compareBigint(v, limit) > 0 {
			c.fail("must be at most " + limit)
		}
	}
}

// compareBigint compares v with a whole number in decimal.
func compareBigint(v *big.Int, number string) int {
	n, _ := new(big.Int).SetString(number, 10)
	return v.Cmp(n)
}

func nonZeroBigint(v *big.Int, c *checks) {
	if v != nil && v.Sign() == 0 {
		c.fail(ruleNonZero)
	}
}
