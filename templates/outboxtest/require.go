package outboxtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outboxgen/outboxgen/templates/outbox"
)

// listed is how many rows a helper looks at.
const listed = 10_000

// RequireEnqueued returns the only payload of the type P that is in the outbox,
// whatever became of its row. The test stops when there is none, or more than
// one. The message then tells what there is; fields that are sensitive are not
// shown.
func RequireEnqueued[P outbox.Payload](t testing.TB, store *outbox.Store) P {
	t.Helper()
	records, err := store.List(t.Context(), outbox.Filter{}, outbox.OutboxID{}, listed)
	if err != nil {
		t.Fatal(err)
	}
	var found []P
	var others strings.Builder
	for _, r := range records {
		if payload, ok := r.Payload.(P); ok {
			found = append(found, payload)
		}
		fmt.Fprintf(&others, "\n\t%v: %v", r, r.Payload)
	}
	if len(found) != 1 {
		var wanted P
		t.Fatalf("%d payloads of type %T are in the outbox, want 1; its rows:%s", len(found), wanted, others.String())
	}
	return found[0]
}
