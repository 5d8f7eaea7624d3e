package outbox

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// TestJoinKey freezes the form of keys: one that is stored must meet the one
// that a later version of the package makes of the same values.
func TestJoinKey(t *testing.T) {
	for _, test := range []struct {
		parts []string
		want  string
	}{
		{[]string{""}, "%"},
		{[]string{"%"}, "%25"},
		{[]string{"", ""}, ":"},
		{[]string{"payment_capture", "7f3c"}, "payment_capture:7f3c"},
		{[]string{"a:b", "c"}, "a%3Ab:c"},
		{[]string{"a", "b:c"}, "a:b%3Ac"},
		{[]string{"a%3Ab"}, "a%253Ab"},
		{[]string{"NUL \x00"}, "NUL %00"},
		{[]string{"漢", "é "}, "漢:é "},
	} {
		if got := joinKey(test.parts...); got != test.want {
			t.Errorf("joinKey(%q) = %q, want %q", test.parts, got, test.want)
		}
	}
}

// FuzzJoinKey compares the keys of two lists of values, which the fuzzer gives
// separated by newlines.
func FuzzJoinKey(f *testing.F) {
	for _, pair := range [][2]string{{"", "\n"}, {"a\nb", "a:b"}, {"%", ""}, {"%3A", ":"}, {"\x00", "%00"}, {"a", "a\n"}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		one, other := joinKey(strings.Split(a, "\n")...), joinKey(strings.Split(b, "\n")...)
		if one == "" || strings.Contains(one, "\x00") {
			t.Errorf("joinKey of %q is %q", a, one)
		}
		if (one == other) != (a == b) {
			t.Errorf("joinKey of %q is %q, of %q %q", a, one, b, other)
		}
	})
}

// TestDerivedKey freezes the form of keys that are made of a message.
func TestDerivedKey(t *testing.T) {
	command := NewCommand(CommandID(uuid.MustParse("0191d3c0-0000-7000-8000-000000000001")), uuid.Nil)
	row := newRow{destination: DestinationMailer, payloadType: "order_confirmation", payload: `{"order_id":"1"}`}
	equals := make(map[string]int)
	const want = "sha256:496fe42ec54424046d98ee6ad329388fbdbd36ab12008255a73358a42297cdb9"
	if got := derivedKey(command, row, equals); got != want {
		t.Errorf("the key is %s, want %s", got, want)
	}
	if got := derivedKey(command, row, equals); got != want+":1" {
		t.Errorf("the key of the second equal message is %s, want %s:1", got, want)
	}
	for name, change := range map[string]func(c *Command, r *newRow){
		"the command":     func(c *Command, _ *newRow) { *c = NewCommand(CommandID(uuid.New()), uuid.Nil) },
		"the destination": func(_ *Command, r *newRow) { r.destination = DestinationLedger },
		"the payload":     func(_ *Command, r *newRow) { r.payloadType = "order_confirmatio"; r.payload = "n" + r.payload },
		"the content":     func(_ *Command, r *newRow) { r.payload += " " },
	} {
		other, changed := command, row
		change(&other, &changed)
		if got := derivedKey(other, changed, make(map[string]int)); strings.HasPrefix(got, want) {
			t.Errorf("%s does not change the key", name)
		}
	}
	if got := derivedKey(NewCommand(command.id, uuid.New()).WithRegion("eu"), row, make(map[string]int)); got != want {
		t.Error("the columns of the command change the key")
	}
}
