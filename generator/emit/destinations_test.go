package emit

import (
	"testing"
	"time"

	"github.com/dave/jennifer/jen"
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
