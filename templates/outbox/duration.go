package outbox

import (
	"errors"
	"time"
)

// Duration is a length of time that is stored as text, as in 1m30s. Convert it
// from and to a [time.Duration].
type Duration time.Duration

// String writes d as [time.Duration] does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes d as String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what [time.ParseDuration] reads.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New(ruleDuration)
	}
	*d = Duration(parsed)
	return nil
}

const ruleDuration = "must be a duration such as 1m30s"

func encodeDuration(d Duration, w *jsonWriter) { w.string(d.String()) }

func decodeDuration(v jsonValue) Duration {
	var d Duration
	if text, _ := v.content(); d.UnmarshalText(text) != nil {
		v.fail(ruleDuration)
	}
	return d
}
