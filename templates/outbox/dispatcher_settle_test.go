package outbox

import (
	"context"
	"slices"
	"testing"
)

// TestSettlesKeepTheOrderOfAKey has the settles of a run fail twice, as when Postgres
// shuts down and starts up again, and the dispatcher die after it has written
// something. What is completed must be the first rows of the key.
func TestSettlesKeepTheOrderOfAKey(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	execSQL(t, pool, "CREATE TABLE away ()")
	execSQL(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF EXISTS (SELECT FROM away) THEN RAISE EXCEPTION 'starting up' USING ERRCODE = '57P03'; END IF; RETURN NULL; END $$`)
	execSQL(t, pool, "CREATE TRIGGER refuse BEFORE INSERT ON outbox_outcome FOR EACH STATEMENT EXECUTE FUNCTION refuse()")
	var messages []Message
	for n := range runRows {
		messages = append(messages, ToStock(StockChange{Shelf: "a", Change: int64(n)}))
	}
	ids := enqueueAll(t, pool, messages...)
	r, died := newRemote(), make(chan struct{}, runRows)
	d := r.dispatcher(t, s, SomeHandlers(HandleStock(r)), DispatcherOptions{NoListen: true, NoPurge: true})
	written := d.observer.Settled
	d.observer.Settled = func(about DeliveryInfo, settlement Settlement) {
		written(about, settlement)
		if about.ID == ids[0] {
			execSQL(t, pool, "INSERT INTO away DEFAULT VALUES")
			r.waitCalls(t, runRows) // the others are settled together
			for d.consumers[0].unsettledNow() < runRows-1 {
			}
			return
		}
		died <- struct{}{}
		<-t.Context().Done() // as one that was killed
	}
	failures := 0
	d.observer.Failed = func(operation string, _ error) {
		if operation == "settle" {
			if failures++; failures == 2 {
				execSQL(t, pool, "DELETE FROM away")
			}
		}
	}
	r.deliver = func(_ context.Context, delivery Delivery) Outcome {
		if delivery.ID == ids[1] { // the first row is settled by itself
			r.waitSettled(t, ids[0])
		}
		return Completed()
	}
	go d.Run(t.Context())
	<-died
	var completed []bool
	for _, id := range ids {
		completed = append(completed, getRecord(t, s, id).Status == StatusCompleted)
	}
	if i := slices.Index(completed, false); i >= 0 && slices.Contains(completed[i:], true) {
		t.Errorf("the rows that are completed: %v", completed)
	}
}

func (c *consumer) unsettledNow() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unsettled
}
