package schema

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// maxName is the longest name of a destination, payload, type or field, in
// bytes. Destination and payload make the kind of a row, which is indexed.
const maxName = 63

var namePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*$`)

// name checks the key of a destination, payload, type or field and returns it
// as it stands, so that what follows it is read in any case.
func (d *decoder) name(e entry, what string) Text {
	switch {
	case !namePattern.MatchString(e.key):
		d.fault(CodeName, e.pos, "%s cannot be named %s", what, quote(e.key)).
			hint("a name has ASCII letters, digits, _, . and -, and starts with a letter")
	case len(e.key) > maxName:
		d.fault(CodeName, e.pos, "the name %s has %d characters; at most %d are possible", quote(e.key), len(e.key), maxName)
	}
	return e.name()
}

var (
	goNamePattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9_]*$`)
	goPartPattern = regexp.MustCompile(`^[A-Za-z0-9_]+$`)
)

// goName reads the exported Go identifier that the author wants.
func (d *decoder) goName(n *node) Text {
	t := d.text(n)
	if t.IsSet() && !goNamePattern.MatchString(t.Value) {
		d.fault(CodeGoName, t.Pos, "%s cannot be an exported Go name", quote(t.Value)).
			hint("it has ASCII letters, digits and _, and starts with a capital")
	}
	return t
}

// goPart reads the part of a Go identifier that stands behind the name of an
// enum.
func (d *decoder) goPart(n *node) Text {
	t := d.text(n)
	if t.IsSet() && !goPartPattern.MatchString(t.Value) {
		d.fault(CodeGoName, t.Pos, "%s cannot be part of a Go name", quote(t.Value)).
			hint("it has ASCII letters, digits and _")
	}
	return t
}

// deprecated reads the text of a deprecation.
func (d *decoder) deprecated(n *node) Text {
	if n != nil && n.kind == boolean {
		d.fault(CodeWrongKind, n.pos, "deprecated must be a text, found %s", n.describe()).
			hint("say what to use instead")
		return Text{}
	}
	t := d.text(n)
	if t.IsSet() && strings.TrimSpace(t.Value) == "" {
		d.fault(CodeText, t.Pos, "deprecated is empty").hint("say what to use instead")
	}
	return t
}

// maxDuration leaves room to add several durations without overflow.
const maxDuration = 36500 * day

const day = 24 * time.Hour

const durationForm = "a duration such as 30s, 5m, 1h30m or 2d"

// invalid stands for a duration whose fault is reported; whoever compares
// durations leaves it out.
const invalid time.Duration = -1

// duration reads a duration above zero, or from zero where zero makes sense.
// Without n it is def, without a place.
func (d *decoder) duration(n *node, def time.Duration, zero bool) Duration {
	if n == nil {
		return Duration{Value: def}
	}
	if n.kind == number {
		if zero && n.value == "0" {
			return Duration{Pos: n.pos}
		}
		f := d.fault(CodeDuration, n.pos, "%s must be %s, found %s", n.label, durationForm, n.describe())
		if wholeNumber.MatchString(n.value) && n.value != "0" {
			f.hint(fmt.Sprintf("give it a unit: %ss", n.value))
		}
		return Duration{Value: invalid}
	}
	if n.kind != text {
		d.wrongKind(n, durationForm)
		return Duration{Value: invalid}
	}
	value, err := parseDuration(n.value)
	switch {
	case err != nil:
		d.fault(CodeDuration, n.pos, "%s must be %s, found %s", n.label, durationForm, n.describe())
	case value < 0:
		d.fault(CodeDuration, n.pos, "%s cannot be negative", n.label)
	case value == 0 && !zero:
		d.fault(CodeDuration, n.pos, "%s cannot be zero", n.label)
	case value > maxDuration:
		d.fault(CodeDuration, n.pos, "%s cannot be longer than 36500d", n.label)
	default:
		return Duration{Value: value, Pos: n.pos}
	}
	return Duration{Value: invalid}
}

// short writes a duration as people do: 1m for 1m0s.
func short(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

var days = regexp.MustCompile(`^([0-9]+)d`)

// parseDuration is time.ParseDuration with days in front.
func parseDuration(s string) (time.Duration, error) {
	match := days.FindStringSubmatch(s)
	if match == nil {
		return time.ParseDuration(s)
	}
	count, err := strconv.ParseInt(match[1], 10, 64)
	if err != nil || count > int64(maxDuration/day) {
		return maxDuration + 1, nil
	}
	total := time.Duration(count) * day
	rest := s[len(match[0]):]
	if rest == "" {
		return total, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || strings.ContainsAny(rest[:1], "+-") {
		return 0, fmt.Errorf("%q does not go on as a duration", rest)
	}
	if more > maxDuration {
		return maxDuration + 1, nil
	}
	return total + more, nil
}

var ratePattern = regexp.MustCompile(`^([1-9][0-9]*)/([smh])$`)

// rate reads a number of calls in a second, a minute or an hour.
func (d *decoder) rate(n *node) Rate {
	t := Text{}
	if n != nil && n.kind == text {
		t = d.text(n)
	} else if n != nil {
		d.wrongKind(n, "a rate such as 50/s, 100/m or 5/h")
	}
	if !t.IsSet() {
		return Rate{}
	}
	match := ratePattern.FindStringSubmatch(t.Value)
	if match == nil {
		d.fault(CodeRate, t.Pos, "%s must be a rate such as 50/s, 100/m or 5/h, found %s", n.label, n.describe())
		return Rate{}
	}
	count, err := strconv.ParseInt(match[1], 10, 64)
	if err != nil || count > maxInt {
		d.fault(CodeRate, t.Pos, "%s is too high: at most %d", n.label, maxInt)
		return Rate{}
	}
	per := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}
	return Rate{Count: int(count), Per: per[match[2]], Pos: t.Pos}
}

// dir reads a directory relative to the specification. Whether it leaves the
// module is for those to judge who know where the module is.
func (d *decoder) dir(n *node) Text {
	t := d.text(n)
	if !t.IsSet() {
		return t
	}
	switch {
	case t.Value == "":
		d.fault(CodePath, t.Pos, "%s is empty", n.label).hint("the directory of the specification itself is \".\"")
	case controlIn(t.Value, "") >= 0:
		d.fault(CodePath, t.Pos, "%s holds a control character", n.label)
	case strings.Contains(t.Value, `\`):
		d.fault(CodePath, t.Pos, "%s holds a backslash", n.label).hint("separate directories by / on every system")
	case path.IsAbs(t.Value) || drive.MatchString(t.Value):
		d.fault(CodePath, t.Pos, "%s is an absolute path", n.label).hint("write it relative to the specification")
	default:
		t.Value = path.Clean(t.Value)
	}
	return t
}

var drive = regexp.MustCompile(`^[A-Za-z]:`)
