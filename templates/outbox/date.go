package outbox

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"time"
)

// Date is a day of the Gregorian calendar, without a time or a time zone. Dates
// of the years 1 to 9999 can be stored; the zero Date is none of them.
type Date struct {
	Year  int
	Month time.Month
	Day   int
}

// Valid tells whether d is a day that exists and can be stored.
func (d Date) Valid() bool {
	t := time.Date(d.Year, d.Month, d.Day, 0, 0, 0, 0, time.UTC)
	return t.Year() == d.Year && t.Month() == d.Month && t.Day() == d.Day && storable(t)
}

// String writes d as in 2026-11-30.
func (d Date) String() string { return fmt.Sprintf("%04d-%02d-%02d", d.Year, d.Month, d.Day) }

// MarshalText writes d as String does. A date that is not valid is an error.
func (d Date) MarshalText() ([]byte, error) {
	if !d.Valid() {
		return nil, errors.New(ruleDate)
	}
	return []byte(d.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (d *Date) UnmarshalText(text []byte) error {
	t, err := time.Parse(time.DateOnly, string(text))
	if err != nil || !storable(t) {
		return errors.New(ruleDate)
	}
	d.Year, d.Month, d.Day = t.Date()
	return nil
}

// Value passes d to a database as text: it implements [driver.Valuer].
func (d Date) Value() (driver.Value, error) {
	text, err := d.MarshalText()
	return string(text), err
}

// Scan reads a date from a database: it implements sql.Scanner.
func (d *Date) Scan(src any) error {
	switch src := src.(type) {
	case string:
		return d.UnmarshalText([]byte(src))
	case time.Time:
		d.Year, d.Month, d.Day = src.Date()
		return nil
	}
	return fmt.Errorf("a date cannot be read from %T", src)
}

const ruleDate = "must be a date such as 2026-11-30, within the years 1 to 9999"

func encodeDate(d Date, w *jsonWriter) {
	if !d.Valid() {
		w.fail(ruleDate)
		return
	}
	w.string(d.String())
}

func decodeDate(v jsonValue) Date {
	var d Date
	if text, _ := v.content(); d.UnmarshalText(text) != nil {
		v.fail(ruleDate)
	}
	return d
}

func validDate(d Date, c *checks) {
	if !d.Valid() {
		c.fail(ruleDate)
	}
}
