package emit

import (
	"testing"
	"time"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/schema"
)

func TestDurationsAreWrittenInTheirLargestUnit(t *testing.T) {
	tests := []struct {
		duration time.Duration
		want     string
	}{
		{0, "0"},
		{1, "time.Nanosecond"},
		{1500, "1500 * time.Nanosecond"},
		{250 * time.Microsecond, "250 * time.Microsecond"},
		{1500 * time.Millisecond, "1500 * time.Millisecond"},
		{time.Second, "time.Second"},
		{90 * time.Second, "90 * time.Second"},
		{90 * time.Minute, "90 * time.Minute"},
		{time.Hour, "time.Hour"},
		{36 * time.Hour, "36 * time.Hour"},
		{24 * time.Hour, "24 * time.Hour"},
		{7 * 24 * time.Hour, "7 * 24 * time.Hour"},
		{90*time.Second + time.Nanosecond, "90000000001 * time.Nanosecond"},
	}
	for _, test := range tests {
		t.Run(test.duration.String(), func(t *testing.T) {
			if got := jen.Add(duration(test.duration)).GoString(); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestRatesAreWrittenAsCallsInASecond(t *testing.T) {
	for _, test := range []struct {
		rate schema.Rate
		want string
	}{
		{schema.Rate{Count: 50, Per: time.Second}, "50"},
		{schema.Rate{Count: 100, Per: time.Minute}, "100.0 / 60"},
		{schema.Rate{Count: 5, Per: time.Hour}, "5.0 / 3600"},
	} {
		if got := jen.Add(rate(test.rate)).GoString(); got != test.want {
			t.Errorf("%d in %s: got %s, want %s", test.rate.Count, test.rate.Per, got, test.want)
		}
	}
}

func TestFractionsAreWrittenShortest(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 0.2: "0.2", 2: "2", 1.5: "1.5"} {
		if got := jen.Add(fraction(n)).GoString(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
