package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// listed is a population for lists: rows in every status, of several commands
// and columns, with failures of several sorts.
type listed struct {
	pool     *pgxpool.Pool
	store    *Store
	random   *rand.Rand
	commands []Command
}

func populate(t testing.TB) *listed {
	t.Helper()
	pool := testPool(t)
	p := &listed{pool: pool, store: New(pool, Options{}), random: rand.New(rand.NewPCG(1, 2))}
	tenants := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	for i := range 20 {
		command := NewCommand(CommandID(uuid.New()), tenants[i%len(tenants)])
		if i%4 > 0 {
			command = command.WithRegion([]string{"eu", "us"}[i%2])
		}
		p.commands = append(p.commands, command)
	}
	for range 6 {
		p.enqueue(t, 60)
		p.settle(t)
	}
	// What is claimed last stays so: some as unknown and asked about.
	p.enqueue(t, 60)
	p.claim(t, 8)
	if _, err := p.store.ClaimUnknown(t.Context(), ClaimRequest{WorkerID: "asker", Limits: map[Destination]int{DestinationPayments: 3, DestinationBank: 3}}); err != nil {
		t.Fatal(err)
	}
	return p
}

// pick is one of the elements, by chance.
func pick[T any](p *listed, of ...T) T { return of[p.random.IntN(len(of))] }

func (p *listed) message() Message {
	switch p.random.IntN(8) {
	case 0:
		return ToLedger(orderConfirmation())
	case 1:
		return ToLedger(paymentCapture())
	case 2:
		return ToPayments(paymentCapture())
	case 3:
		return ToBank(BankTransfer{TransferID: uuid.New(), Amount: paymentCapture().Amount})
	case 4:
		return ToMetrics(UsageSample{Meter: "m", Value: p.random.Int64()}).WithKey(uuid.NewString())
	case 5:
		return ToStock(StockChange{Shelf: pick(p, "a", "b", "c", "d", "e", "f"), Change: p.random.Int64()})
	}
	return ToMailer(orderConfirmation()).At(pick(p, time.Time{}, longAgo, someDay))
}

func (p *listed) enqueue(t testing.TB, n int) {
	t.Helper()
	for range n {
		err := pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
			_, err := p.store.With(tx).Enqueue(t.Context(), pick(p, p.commands...), p.message())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (p *listed) claim(t testing.TB, limit int) []Entry {
	t.Helper()
	limits := make(map[Destination]int)
	for _, policy := range policies {
		limits[policy.destination] = limit
	}
	entries, err := p.store.ClaimDue(t.Context(), ClaimRequest{WorkerID: "worker", Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func (p *listed) settle(t testing.TB) {
	t.Helper()
	var settlements []Settlement
	for _, entry := range p.claim(t, 10) {
		c := entry.Claim
		settlements = append(settlements, pick(p,
			c.Completed(""), c.Completed("ref"), c.Failed("refused: 100% of it"), c.Failed("timed_out"), c.Retry("timed out", someDay),
			c.Retry("refused", time.Time{}), c.OutcomeUnknown("", longAgo), c.OutcomeUnknown("ref", someDay), c.GiveBack()))
	}
	answers, err := p.store.Settle(t.Context(), settlements...)
	if err := errors.Join(append(answers, err)...); err != nil {
		t.Fatal(err)
	}
}

// walk reads every row by itself, in the order of the ids.
func (p *listed) walk(t testing.TB) []Record {
	t.Helper()
	rows, err := p.pool.Query(t.Context(), "SELECT outbox_id FROM outbox_message ORDER BY outbox_id")
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, scanID)
	if err != nil {
		t.Fatal(err)
	}
	var all []Record
	for _, id := range ids {
		all = append(all, getRecord(t, p.store, id))
	}
	return all
}

// admits is what a filter means.
func (f Filter) admits(r Record) bool {
	kind := fmt.Sprintf("%s/%s@%d", r.Destination, r.PayloadType, r.PayloadVersion)
	return (len(f.Statuses) == 0 || slices.Contains(f.Statuses, r.Status)) &&
		(len(f.Destinations) == 0 || slices.Contains(f.Destinations, r.Destination)) &&
		(len(f.Kinds) == 0 || slices.Contains(f.Kinds, kind)) &&
		(f.CommandID == nil || *f.CommandID == r.CommandID) &&
		(f.Columns.TenantID == nil || *f.Columns.TenantID == r.Columns.TenantID) &&
		(f.Columns.Region == nil || r.Columns.Region != nil && *f.Columns.Region == *r.Columns.Region) &&
		(f.EnqueuedFrom.IsZero() || !r.EnqueuedAt.Before(f.EnqueuedFrom)) &&
		(f.EnqueuedBefore.IsZero() || r.EnqueuedAt.Before(f.EnqueuedBefore)) &&
		strings.Contains(r.LastFailure, f.LastFailure) &&
		(!f.Holding || r.Holding)
}

// wantList lists by pages and compares the ids with those that a walk has found.
func (p *listed) wantList(t testing.TB, s *Store, all []Record, filter Filter, limit int) (want []Record) {
	t.Helper()
	for _, r := range all {
		if filter.admits(r) {
			want = append(want, r)
		}
	}
	var got []Record
	var after OutboxID
	for {
		page, err := s.List(t.Context(), filter, after, limit)
		if err != nil {
			t.Fatalf("%+v: %v", filter, err)
		}
		got = append(got, page...)
		if len(page) > limit {
			t.Fatalf("%+v: a page of %d has %d rows", filter, limit, len(page))
		}
		if len(page) < limit {
			break
		}
		after = page[limit-1].ID
	}
	if !slices.EqualFunc(want, got, func(a, b Record) bool { return a.ID == b.ID }) {
		t.Errorf("%+v by pages of %d gives the rows\n%v, want\n%v", filter, limit, got, want)
	}
	return want
}

func TestList(t *testing.T) {
	p := populate(t)
	all := p.walk(t)
	one := func() Record { return pick(p, all...) }
	fields := []struct {
		name string
		set  func(f *Filter)
	}{
		{"statuses", func(f *Filter) { f.Statuses = []Status{one().Status, one().Status} }},
		{"one status", func(f *Filter) {
			f.Statuses = []Status{pick(p, StatusPending, StatusDispatching, StatusCompleted, StatusFailed, StatusOutcomeUnknown)}
		}},
		{"destinations", func(f *Filter) { f.Destinations = []Destination{one().Destination, one().Destination} }},
		{"a destination that is gone", func(f *Filter) { f.Destinations = []Destination{"gone", one().Destination} }},
		{"kinds", func(f *Filter) {
			f.Kinds = []string{pick(p, "ledger/payment_capture@1", "mailer/order_confirmation@1"), pick(p, "ledger/order_confirmation@1", "ledger/order_confirmation@2")}
		}},
		{"command", func(f *Filter) { id := one().CommandID; f.CommandID = &id }},
		{"a required column", func(f *Filter) { id := one().Columns.TenantID; f.Columns.TenantID = &id }},
		{"an optional column", func(f *Filter) { region := pick(p, "eu", "us", ""); f.Columns.Region = &region }},
		{"enqueued from", func(f *Filter) { f.EnqueuedFrom = one().EnqueuedAt }},
		{"enqueued from between milliseconds", func(f *Filter) { f.EnqueuedFrom = one().EnqueuedAt.Add(time.Microsecond) }},
		{"enqueued before", func(f *Filter) { f.EnqueuedBefore = one().EnqueuedAt }},
		{"enqueued before between milliseconds", func(f *Filter) { f.EnqueuedBefore = one().EnqueuedAt.Add(time.Microsecond) }},
		{"last failure", func(f *Filter) { f.LastFailure = pick(p, "refused", "timed_out", "timed", "%", "d", "nowhere") }},
		{"holding", func(f *Filter) { f.Holding = true }},
	}

	for _, status := range []Status{StatusPending, StatusDispatching, StatusCompleted, StatusFailed, StatusOutcomeUnknown} {
		if len(p.wantList(t, p.store, all, Filter{Statuses: []Status{status}}, 10)) < 5 {
			t.Errorf("the population has too few rows that are %s", status)
		}
	}
	t.Run("empty lists", func(t *testing.T) {
		p.wantList(t, p.store, all, Filter{Statuses: []Status{}, Destinations: []Destination{}, Kinds: []string{}}, 50)
	})
	for _, field := range fields {
		t.Run(field.name, func(t *testing.T) {
			found := 0
			for range 4 {
				var filter Filter
				field.set(&filter)
				found += len(p.wantList(t, p.store, all, filter, 20+p.random.IntN(60)))
			}
			if found == 0 {
				t.Error("no filter has found a row")
			}
		})
	}
	for _, mode := range execModes {
		pool := poolWith(t, p.pool, inMode(mode))
		t.Run("combined, "+mode.String(), func(t *testing.T) {
			s := New(pool, Options{})
			whole, err := s.List(t.Context(), Filter{}, OutboxID{}, maxPage)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(all, whole, sameRecord); diff != "" {
				t.Errorf("without a filter (-want +got):\n%s", diff)
			}
			found := 0
			for range 60 {
				var filter Filter
				for _, i := range p.random.Perm(len(fields))[:2+p.random.IntN(2)] {
					fields[i].set(&filter)
				}
				found += len(p.wantList(t, s, all, filter, 20+p.random.IntN(60)))
			}
			if found == 0 {
				t.Error("no filter has found a row")
			}
		})
		t.Run("in a transaction, "+mode.String(), func(t *testing.T) {
			inTx(t, pool, Options{}, func(_ pgx.Tx, box *Tx) {
				for _, field := range fields {
					var filter Filter
					field.set(&filter)
					p.wantList(t, box.Store, all, filter, 100)
				}
			})
		})
	}
}

func TestListRefusesBadRequests(t *testing.T) {
	bad := "\x00"
	for _, test := range []struct {
		name   string
		filter Filter
		limit  int
		want   string
	}{
		{"limit 0", Filter{}, 0, "the limit is 0"},
		{"a negative limit", Filter{}, -1, "the limit is -1"},
		{"a limit that is too large", Filter{}, maxPage + 1, "the limit is 10001"},
		{"a status that is none", Filter{Statuses: []Status{"done"}}, 1, `no status "done"`},
		{"a status that only Stats has", Filter{Statuses: []Status{statusHolding}}, 1, `no status "holding"`},
		{"a destination", Filter{Destinations: []Destination{"\xff"}}, 1, "the destination"},
		{"a kind", Filter{Kinds: []string{bad}}, 1, "the kind"},
		{"a column", Filter{Columns: ColumnsFilter{Region: &bad}}, 1, "the column region"},
		{"the last failure", Filter{LastFailure: bad}, 1, "the part of the last failure"},
		{"a time that no id has", Filter{EnqueuedFrom: time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC)}, 1, "1970 to 9999"},
		{"a time past all", Filter{EnqueuedBefore: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, 1, "1970 to 9999"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := New(nil, Options{}) // which asks nobody
			_, err := s.List(t.Context(), test.filter, OutboxID{}, test.limit)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error of List is %v, want one with %q", err, test.want)
			}
			if len(test.filter.Statuses) > 0 {
				return // RequeueMatching has its own
			}
			_, err = s.RequeueMatching(t.Context(), test.filter, test.limit, "")
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error of RequeueMatching is %v, want one with %q", err, test.want)
			}
		})
	}
}

// TestListPagesWhileRowsMove lists everything by small pages, between which rows
// are enqueued, claimed and settled.
func TestListPagesWhileRowsMove(t *testing.T) {
	p := populate(t)
	var want []OutboxID
	for _, r := range p.walk(t) {
		if r.Destination != DestinationMetrics { // whose rows vanish when they complete
			want = append(want, r.ID)
		}
	}
	last := want[len(want)-1]
	var got []OutboxID
	var after OutboxID
	for compareIDs(after, last) < 0 {
		page, err := p.store.List(t.Context(), Filter{}, after, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page {
			if r.Destination != DestinationMetrics && compareIDs(r.ID, last) <= 0 {
				got = append(got, r.ID)
			}
		}
		after = page[len(page)-1].ID
		p.enqueue(t, 2)
		p.settle(t)
		if len(got)%5 == 0 {
			if _, err := p.store.RequeueMatching(t.Context(), Filter{}, 3, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantIDs(t, got, want...)
	wantSound(t, p.store)
}

func TestRequeueMatching(t *testing.T) {
	t.Run("takes the oldest failed rows that match, and names them", func(t *testing.T) {
		p := populate(t)
		before := p.walk(t)
		filter := Filter{LastFailure: "refused", Destinations: []Destination{DestinationMailer, DestinationLedger}}
		failed := filter
		failed.Statuses = []Status{StatusFailed}
		var want []OutboxID
		for _, r := range before {
			if failed.admits(r) {
				want = append(want, r.ID)
			}
		}
		if len(want) < 4 {
			t.Fatalf("the population has %d rows that match", len(want))
		}
		for _, statuses := range [][]Status{nil, {StatusPending}} {
			filter.Statuses = statuses
			ids, err := p.store.RequeueMatching(t.Context(), filter, 2, "mended")
			if err != nil {
				t.Fatal(err)
			}
			wantIDs(t, ids, want[:2]...)
			want = want[2:]
		}
		ids, err := p.store.RequeueMatching(t.Context(), filter, maxPage, "mended")
		if err != nil {
			t.Fatal(err)
		}
		wantIDs(t, ids, want...)
		for i, r := range p.walk(t) {
			was := before[i]
			switch {
			case failed.admits(was):
				if r.Status != StatusPending || r.Attempt != 0 || r.LastFailure != "requeued: mended; before: "+was.LastFailure {
					t.Errorf("%s has not been requeued: %q", r, r.LastFailure)
				}
			case r.Status != was.Status:
				t.Errorf("%s was %s", r, was.Status)
			}
		}
		if ids, err := p.store.RequeueMatching(t.Context(), filter, 10, ""); len(ids) != 0 || err != nil {
			t.Errorf("once more it answered %v, %v", ids, err)
		}
		wantSound(t, p.store)
	})
	t.Run("does not name what another has requeued meanwhile", func(t *testing.T) {
		pool := testPool(t)
		s := New(pool, Options{})
		enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationMailer), testMessage(DestinationMailer))
		var ids []OutboxID
		for _, entry := range claimAll(t, s, 3) {
			ids = append(ids, entry.ID)
			if err := s.MarkFailed(t.Context(), entry.Claim, "refused"); err != nil {
				t.Fatal(err)
			}
		}
		other, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer other.Rollback(context.WithoutCancel(t.Context()))
		if err := s.With(other).Requeue(t.Context(), ids[1], "by another"); err != nil {
			t.Fatal(err)
		}
		conn, _ := countedConn(t, pool)
		type answer struct {
			ids []OutboxID
			err error
		}
		answers := make(chan answer, 1)
		go func() {
			ids, err := New(conn, Options{}).RequeueMatching(t.Context(), Filter{}, 10, "mended")
			answers <- answer{ids, err}
		}()
		waitUntilBlocked[error](t, pool, conn.PgConn().PID(), nil)
		if err := other.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := <-answers
		if got.err != nil {
			t.Fatal(got.err)
		}
		wantIDs(t, got.ids, ids[0], ids[2])
		wantSound(t, s)
	})
}
