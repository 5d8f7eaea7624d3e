package outbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// TestNothingShowsAPayload prints messages, rows and deliveries in every way that a program
// may come to do it by accident.
func TestNothingShowsAPayload(t *testing.T) {
	const secret = "s3cret"
	payload := orderConfirmation()
	payload.Email, payload.Labels = secret, map[string]string{secret: secret}
	message := ToMailer(payload).WithHeader("authorization", secret).WithKey(secret)
	raw, err := payload.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	entry := Entry{Destination: DestinationMailer, PayloadType: "order_confirmation", PayloadVersion: 1, Payload: payload, Raw: raw,
		Headers: map[string]string{"authorization": secret}, IdempotencyKey: secret}
	record := Record{Entry: entry, Status: StatusFailed, LastFailure: secret}
	// As a verb for numbers shows bytes, and one for text in base 16.
	forms := []string{secret, fmt.Sprint([]byte(secret))[1:8], fmt.Sprintf("%x", secret)}
	for name, value := range map[string]any{"a message": message, "an entry": entry, "a record": record, "a delivery": deliveryOf(entry)} {
		shown := map[string]string{}
		for _, nested := range []struct {
			name  string
			value any
		}{
			{"itself", value}, {"a slice", []any{value}}, {"a map", map[string]any{"k": value}}, {"a struct", struct{ V any }{value}}, {"a pointer", &value},
		} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%c", "%o", "%b", "%e", "%U"} {
				shown[nested.name+" by "+verb] = fmt.Sprintf(verb, nested.value)
			}
			var out bytes.Buffer
			slog.New(slog.NewTextHandler(&out, nil)).Info("m", "v", nested.value)
			slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "v", nested.value)
			shown[nested.name+" by slog"] = out.String()
			text, err := json.Marshal(nested.value)
			if err != nil {
				t.Error(err)
			}
			shown[nested.name+" by json"] = string(text)
		}
		for how, text := range shown {
			for _, form := range forms {
				if strings.Contains(text, form) {
					t.Errorf("%s in %s shows the payload: %s", name, how, text)
				}
			}
		}
		if text := shown["itself by %v"]; !strings.Contains(text, "mailer") || !strings.Contains(text, "order_confirmation") {
			t.Errorf("%s is shown as %q, which names it to nobody", name, text)
		}
	}
}

func TestErrorsShowNoValues(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	entry := claimOne(t, pool, testMessage(DestinationMailer))
	execSQL(t, pool, `UPDATE outbox_message SET payload = '{"order_id": "s3cret", "email": ["s3cret"]}'`)
	if err := getRecord(t, s, entry.ID).DecodeErr; err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error of an unreadable payload is %v", err)
	}
}
