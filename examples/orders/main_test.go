package main

import (
	"io"
	"testing"

	"github.com/outboxgen/outboxgen/examples/orders/internal/orderbox"
	"github.com/outboxgen/outboxgen/internal/pgtest"
)

func TestStory(t *testing.T) {
	ctx := t.Context()
	end, err := story(ctx, pgtest.Pool(t), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := map[orderbox.Destination]orderbox.Status{
		orderbox.DestinationMailer:    orderbox.StatusCompleted,
		orderbox.DestinationPayments:  orderbox.StatusCompleted,
		orderbox.DestinationWarehouse: orderbox.StatusCompleted,
		orderbox.DestinationLedger:    orderbox.StatusCompleted,
		orderbox.DestinationAnalytics: orderbox.StatusFailed, // it is down until they expire
	}
	repeated := 0
	for _, o := range end.placed {
		records, err := end.box.ListForCommand(ctx, orderbox.CommandID(o.id))
		if err != nil {
			t.Fatal(err)
		}
		if len(records) != len(want) {
			t.Fatalf("order %s has %d rows, want %d", o.id, len(records), len(want))
		}
		for _, r := range records {
			if r.Status != want[r.Destination] {
				t.Errorf("%v: want %s", r, want[r.Destination])
			}
			arrived := len(end.remotes.received[message{r.Destination, r.IdempotencyKey}])
			switch {
			case r.Destination == orderbox.DestinationPayments && arrived != 1:
				t.Errorf("%v: the capture arrived %d times, want once", r, arrived)
			case r.Status == orderbox.StatusCompleted && arrived != r.Attempt:
				t.Errorf("%v: it arrived %d times, want once for each attempt", r, arrived)
			}
			if r.Attempt > 1 {
				repeated++
			}
		}
	}
	if repeated != 6 {
		t.Errorf("%d messages were sent again, want those to three idempotent destinations about two orders", repeated)
	}
	records, err := end.box.ListForCommand(ctx, orderbox.CommandID(end.refused.id))
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 0 {
		t.Errorf("the order that was rolled back has rows: %v", records)
	}
}
