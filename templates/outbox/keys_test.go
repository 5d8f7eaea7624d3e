package outbox

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"
)

// TestKeysAreFrozen has the keys that messages get without one of the caller's.
// A key that changes with a release makes a second message of one that was
// enqueued before and is enqueued again after it.
func TestKeysAreFrozen(t *testing.T) {
	id := uuid.MustParse("0191d3c0-0000-7000-8000-00000000000b")
	price := Money{Amount: decimal.RequireFromString("49.90"), Currency: "EUR"}
	order := OrderConfirmation{
		OrderID: id, Email: "ada@example.com", Lines: []OrderLine{{Sku: "chair", Quantity: 2, Price: price}},
		Labels: map[string]string{"b": "2", "a": "1"}, PlacedAt: time.Date(2026, 3, 1, 12, 30, 0, 123456789, time.UTC),
	}
	capture := PaymentCapture{PaymentID: id, AccountID: "acme", Amount: price}
	for _, test := range []struct {
		name    string
		message Message
		before  int // equal messages in the same call
		want    string
	}{
		{"derived", ToMailer(order), 0, "sha256:ff1d64b423766a7815162f4848c22837cff0a05a23c2196ea43d6109b45c4afe"},
		{"derived, of a second equal message", ToMailer(order), 1, "sha256:ff1d64b423766a7815162f4848c22837cff0a05a23c2196ea43d6109b45c4afe:1"},
		{"derived, for another destination", ToLedger(order), 0, "sha256:3d64648f549e5149c2a0ef519ee14ae2dcad725a87bf47af48827618069756e6"},
		{"derived, of another payload", ToLedger(capture), 0, "sha256:587ff8aab5942e3afc264b1fd3d6da4186238fb99bf971b229625fdff7674478"},
		{"derived, of an ordered destination", ToStock(StockChange{Shelf: "a:b", Change: -1}), 0, "sha256:8d83c9195471c44b52f95094bd40f0e26306b9973238f4054424b3f0d56eefd2"},
		{"declared", ToPayments(capture), 0, "payment_capture:0191d3c0-0000-7000-8000-00000000000b"},
		{"the caller's", ToMailer(order).WithKey("order 7: 100%"), 0, "order 7: 100%"},
	} {
		t.Run(test.name, func(t *testing.T) {
			equals := make(map[string]int)
			for range test.before {
				if _, err := test.message.prepare(testCommand, equals); err != nil {
					t.Fatal(err)
				}
			}
			row, err := test.message.prepare(testCommand, equals)
			if err != nil {
				t.Fatal(err)
			}
			if row.key != test.want {
				t.Errorf("the key is %q, want %q", row.key, test.want)
			}
		})
	}
}

// TestJoinKeyLosesNothing has parts that a plain separator would confuse.
func TestJoinKeyLosesNothing(t *testing.T) {
	seen := make(map[string][]string)
	for _, test := range []struct {
		parts []string
		want  string
	}{
		{[]string{""}, "%"},
		{[]string{"", ""}, ":"},
		{[]string{"a", "b"}, "a:b"},
		{[]string{"a:b"}, "a%3Ab"},
		{[]string{"a%3Ab"}, "a%253Ab"},
		{[]string{"a", "", "b"}, "a::b"},
		{[]string{"%"}, "%25"},
		{[]string{"\x00"}, "%00"},
		{[]string{"%00"}, "%2500"},
		{[]string{"é", "😀"}, "é:😀"},
	} {
		got := joinKey(test.parts...)
		if got != test.want {
			t.Errorf("joinKey(%q) = %q, want %q", test.parts, got, test.want)
		}
		if other, taken := seen[got]; taken {
			t.Errorf("joinKey(%q) = joinKey(%q)", test.parts, other)
		}
		seen[got] = test.parts
	}
}
