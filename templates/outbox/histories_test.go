package outbox

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	godiff "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shopspring/decimal"
	"pgregory.net/rapid"
)

// side is one of the stores that a history is carried out on. Ids, tokens and
// the clock are its own: answers are compared by the numbers of the rows and of
// the claims, and by the time since the history began.
type side struct {
	store  *Store
	db     beginner
	ids    []OutboxID // by the number of the row
	rows   map[OutboxID]int
	claims []Claim // by the number of the claim
	tokens map[Claim]int
}

type beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

func newSide(store *Store, db beginner) *side {
	// The first row and the first claim are those that there never were.
	s := &side{store: store, db: db, rows: make(map[OutboxID]int), tokens: make(map[Claim]int)}
	s.addRow(OutboxID(uuid.MustParse("0191d3c0-0000-7000-8000-00000000dead")))
	s.addClaim(Claim{ID: s.ids[0], Token: 1})
	return s
}

func (s *side) addRow(id OutboxID) {
	s.rows[id] = len(s.ids)
	s.ids = append(s.ids, id)
}

func (s *side) addClaim(c Claim) {
	s.tokens[c] = len(s.claims)
	s.claims = append(s.claims, c)
}

// answer is what an operation has returned.
type answer struct {
	err     error
	placed  []Enqueued
	ids     []OutboxID
	claims  []Claim
	n       int
	records []Record
	stats   Stats
	check   RowCheck
}

// text writes an answer so that those of two stores can be compared; when
// writes a time.
func (s *side) text(a answer, when func(time.Time) string) []string {
	row := func(id OutboxID) string {
		if id == (OutboxID{}) {
			return "no row"
		}
		n, known := s.rows[id]
		if !known {
			return "unknown row"
		}
		return fmt.Sprintf("row %d", n)
	}
	claim := func(c Claim) string {
		n, known := s.tokens[c]
		if c.Token == 0 {
			return "never claimed"
		}
		if !known {
			return "unknown claim"
		}
		return fmt.Sprintf("claim %d", n)
	}
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, err := range flatten(a.err) {
		var refused *ClaimError
		var message *MessageError
		switch {
		case errors.As(err, &refused):
			add("%s of %s: %v: %s %s", refused.Operation, row(refused.ID), refused.Err, refused.Destination, refused.Status)
		case errors.As(err, &message):
			add("message %d for %s: %v: %s", message.Index, message.Destination, message.Err, row(message.ExistingID))
		case errors.Is(err, ErrNotFound):
			add("%v", ErrNotFound)
		default:
			add("%v", err)
		}
	}
	for _, p := range a.placed {
		add("%s, duplicate %t", row(p.ID), p.Duplicate)
	}
	for _, id := range a.ids {
		add("%s", row(id))
	}
	for _, c := range a.claims {
		add("%s", claim(c))
	}
	add("%d, %+v", a.n, a.check)
	for _, r := range a.records {
		region := "no region"
		if r.Columns.Region != nil {
			region = *r.Columns.Region
		}
		add("%s of %s in %s: %s/%s@%d %q %q %v %s, expires %s: %s, %s by %q at %s, attempt %d, before at %s, next %s, unknown %s, ended %s, holding %t, failure %q, ref %q, undecodable %v",
			row(r.ID), r.CommandID, region, r.Destination, r.PayloadType, r.PayloadVersion, r.IdempotencyKey, r.OrderKey, r.Headers, r.Raw, when(r.ExpiresAt),
			r.Status, claim(r.Claim), r.Worker, when(r.ClaimedAt), r.Attempt, when(r.LastAttemptAt), when(r.NextAttemptAt), when(r.UnknownSince),
			when(r.CompletedAt), r.Holding, r.LastFailure, r.RemoteRef, r.DecodeErr)
	}
	for _, d := range a.stats.Destinations {
		add("%s: %d pending, %d due, %d dispatching, %d unknown, %d failed, %d keys held, paused %t; oldest pending %s, unknown %s",
			d.Destination, d.Pending, d.Due, d.Dispatching, d.OutcomeUnknown, d.Failed, d.HeldKeys, d.Paused, when(d.OldestPending), when(d.OldestUnknown))
	}
	for _, k := range a.stats.Unclaimed {
		add("unclaimed: %+v", k)
	}
	return lines
}

// flatten takes joined errors apart.
func flatten(err error) []error {
	var joined interface{ Unwrap() []error }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &joined):
		return joined.Unwrap()
	}
	return []error{err}
}

func (a answer) entries() (entries []Entry) {
	for _, r := range a.records {
		entries = append(entries, r.Entry)
	}
	return entries
}

func entryRecords(entries []Entry) (records []Record) {
	for _, e := range entries {
		records = append(records, Record{Entry: e})
	}
	return records
}

func modelEntries(rows []*modelRow) (records []Record) {
	for _, r := range rows {
		records = append(records, Record{Entry: r.Entry})
	}
	return records
}

func modelRecords(rows []*modelRow) (records []Record) {
	for _, r := range rows {
		records = append(records, r.Record)
	}
	return records
}

// history is a sequence of operations on both stores and on the model, which
// goes by the memory's ids, tokens and clock.
type history struct {
	*rapid.T
	memory, postgres *side
	model            *model
	start            time.Time
	unique           time.Duration
}

// step advances the clock, carries an operation out everywhere and compares the
// answers. What the stores claim is taken up between the two and the model,
// which has to agree to it.
func (h *history) step(t *rapid.T, do func(s *side) answer, claims bool, modelled func(got answer) answer) {
	t.Helper()
	h.model.now = h.model.now.Add(time.Millisecond)
	memory, postgres := do(h.memory), do(h.postgres)
	for _, s := range []struct {
		*side
		answer
	}{{h.memory, memory}, {h.postgres, postgres}} {
		for _, p := range s.placed {
			if _, known := s.rows[p.ID]; !known {
				s.addRow(p.ID)
			}
		}
		if claims {
			for _, r := range s.records {
				s.addClaim(r.Claim)
			}
		}
	}
	h.compare(t, "memory (-) and Postgres (+)", h.memory.text(memory, h.inHours), h.postgres.text(postgres, h.inHours))
	h.compare(t, "memory (-) and the model (+)", h.memory.text(memory, h.exactly), h.memory.text(modelled(memory), h.exactly))
}

func (h *history) compare(t *rapid.T, which string, a, b []string) {
	t.Helper()
	if !slices.Equal(a, b) {
		t.Fatalf("%s differ:\n%s", which, godiff.Diff(a, b))
	}
}

// exactly writes a time of memory's clock or the model's.
func (h *history) exactly(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return at.Sub(h.start).String()
}

// inHours writes a time in whole hours. A history takes much less, and the times
// that it names are hours apart: so two clocks give the same.
func (h *history) inHours(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return fmt.Sprint(math.Floor(at.Sub(h.start).Hours()), "h")
}

// hours is a time that no two operations share, so that an order by time is one.
func (h *history) hours(n int) time.Time {
	h.unique += time.Microsecond
	return h.start.Add(time.Duration(n)*time.Hour + h.unique)
}

// draw draws one of some values, by its index: it may be a long one to print.
func draw[V any](t *rapid.T, label string, values ...V) V {
	return values[rapid.IntRange(0, len(values)-1).Draw(t, label)]
}

// past and future times lie before and after the present; none is near to the
// ends of leases, retentions and lifetimes that begin at it.
func (h *history) at(t *rapid.T, hours ...int) time.Time {
	n := draw(t, "hours", append(hours, 0)...)
	if n == 0 {
		return time.Time{}
	}
	return h.hours(n)
}

// afterAll is a time within an hour, behind all that hours has given in it.
func (h *history) afterAll(t *rapid.T, hours ...int) time.Time {
	n := draw(t, "hours", append(hours, 0)...)
	if n == 0 {
		return time.Time{}
	}
	return h.hours(n).Add(30 * time.Minute)
}

var historyCommands = []Command{
	NewCommand(CommandID(uuid.MustParse("0191d3c0-0000-7000-8000-000000000001")), uuid.MustParse("0191d3c0-0000-7000-8000-0000000000aa")),
	NewCommand(CommandID(uuid.MustParse("0191d3c0-0000-7000-8000-000000000002")), uuid.MustParse("0191d3c0-0000-7000-8000-0000000000bb")).WithRegion("eu"),
}

// message draws a message, one of few, so that the same is met again.
func (h *history) message(t *rapid.T) Message {
	number := byte(rapid.IntRange(1, 4).Draw(t, "number"))
	id := uuid.UUID{15: number}
	order := orderConfirmation()
	order.OrderID = id
	amount := Money{Amount: decimal.New(int64(number), 0), Currency: "EUR"}
	// A declared key that is the same for other content is a key reused.
	if rapid.Bool().Draw(t, "other amount") {
		amount.Amount = decimal.New(7, 0)
	}
	capture := PaymentCapture{PaymentID: id, AccountID: "acme", Amount: amount}
	var m Message
	switch draw(t, "destination", DestinationBank, DestinationLedger, DestinationMailer, DestinationMetrics, DestinationPayments, DestinationStock) {
	case DestinationBank:
		m = ToBank(BankTransfer{TransferID: id, Amount: amount})
	case DestinationLedger:
		m = draw(t, "payload", ToLedger(capture), ToLedger(order))
		if rapid.Bool().Draw(t, "keyed") {
			m = m.WithKey(draw(t, "key", "a", "b"))
		}
	case DestinationMailer:
		m = ToMailer(order).WithHeader("trace", fmt.Sprint(number))
	case DestinationMetrics:
		return ToMetrics(UsageSample{Meter: draw(t, "meter", "m", "n"), Value: int64(number)})
	case DestinationPayments:
		m = ToPayments(capture)
	case DestinationStock:
		m = h.stockChange(t)
	}
	switch draw(t, "times", "", "", "due", "expires") {
	case "due":
		m = m.At(h.hours(draw(t, "hours", -2, 1, 5)))
	case "expires":
		m = m.ExpiresAt(h.hours(draw(t, "hours", 1, 2, 5)))
	}
	return m
}

func (h *history) stockChange(t *rapid.T) Message {
	return ToStock(StockChange{Shelf: draw(t, "shelf", "a", "b", "c", "d"), Change: rapid.Int64Range(0, 99).Draw(t, "change")})
}

var errHistory = errors.New("rolled back by the history")

// enqueue enqueues messages in a transaction that ends in some way.
func (h *history) enqueue(t *rapid.T, messages []Message) {
	command := draw(t, "command", historyCommands...)
	end := draw(t, "end", "commit", "commit", "commit", "roll back", "roll back to a savepoint")
	h.step(t, func(s *side) (a answer) {
		ctx := context.Background()
		err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
			if end != "roll back to a savepoint" {
				a.placed, a.err = s.store.With(tx).Enqueue(ctx, command, messages...)
				if end == "roll back" {
					return errHistory
				}
				return nil // also when a message was refused: the transaction can go on
			}
			err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				a.placed, a.err = s.store.With(tx).Enqueue(ctx, command, messages...)
				return errHistory
			})
			if !errors.Is(err, errHistory) {
				return err
			}
			return nil
		})
		if err != nil && !errors.Is(err, errHistory) {
			a.err = err
		}
		return a
	}, false, func(got answer) (a answer) {
		before := maps.Clone(h.model.rows)
		ids := make([]OutboxID, len(messages))
		for i, p := range got.placed {
			ids[i] = p.ID
		}
		for i := range ids {
			if ids[i] == (OutboxID{}) {
				ids[i] = OutboxID(uuid.New()) // of a call that is refused
			}
		}
		a.placed, a.err = h.model.enqueue(command, messages, ids)
		if end != "commit" {
			h.model.rows = before
		}
		return a
	})
}

func (h *history) limits(t *rapid.T, limit *rapid.Generator[int]) map[Destination]int {
	limits := make(map[Destination]int)
	for _, p := range policies {
		if n := limit.Draw(t, "limit of "+string(p.destination)); n > 0 {
			limits[p.destination] = n
		}
	}
	return limits
}

var smallLimit = rapid.OneOf(rapid.Just(0), rapid.IntRange(1, 4), rapid.IntRange(5, 30))

func (h *history) claimDue(t *rapid.T) {
	request := ClaimRequest{WorkerID: "worker", Limits: h.limits(t, smallLimit), At: h.afterAll(t, -2, 1, 5)}
	h.step(t, func(s *side) answer {
		entries, err := s.store.ClaimDue(context.Background(), request)
		return answer{err: err, records: entryRecords(entries)}
	}, true, func(got answer) answer {
		rows, err := h.model.claim(request.Limits, request.At, "", OutboxID{}, got.entries())
		return answer{err: err, records: modelEntries(rows)}
	})
}

// claimSome claims as a dispatcher does: from a mark on, and without the rows of
// a limit key.
func (h *history) claimSome(t *rapid.T) {
	request := ClaimRequest{WorkerID: "worker", Limits: h.limits(t, smallLimit), At: h.afterAll(t, 1)}
	mark, leftOut := h.row(t), draw(t, "left out", "metrics/m", "metrics/n", "metrics/x")
	h.step(t, func(s *side) answer {
		call, err := request.call()
		if err != nil || len(call.destinations) == 0 {
			return answer{err: err}
		}
		call.leftOut = []string{leftOut}
		for i := range call.marks {
			call.marks[i] = s.ids[mark]
		}
		entries, err := s.store.backend.claimDue(context.Background(), call)
		return answer{err: err, records: entryRecords(decoded(inOrder(entries)))}
	}, true, func(got answer) answer {
		rows, err := h.model.claim(request.Limits, request.At, leftOut, h.memory.ids[mark], got.entries())
		return answer{err: err, records: modelEntries(rows)}
	})
}

// claimInVain claims in a transaction that is rolled back.
func (h *history) claimInVain(t *rapid.T) {
	request := ClaimRequest{WorkerID: "worker", Limits: h.limits(t, smallLimit)}
	h.step(t, func(s *side) (a answer) {
		a.err = pgx.BeginFunc(context.Background(), s.db, func(tx pgx.Tx) error {
			entries, err := s.store.With(tx).ClaimDue(context.Background(), request)
			a.n = len(entries)
			for _, e := range entries {
				a.ids = append(a.ids, e.ID)
			}
			return errors.Join(err, errHistory)
		})
		return a
	}, false, func(got answer) answer { return got })
}

func (h *history) claimUnknown(t *rapid.T) {
	request := ClaimRequest{WorkerID: "worker", Limits: h.limits(t, smallLimit), At: h.afterAll(t, 1, 5, 60)}
	at := h.model.present(request.At).Add(time.Hour)
	for d, limit := range request.Limits {
		// Rows that were released together are asked about at the same time: which
		// of them a claim takes is not said.
		rows := h.model.unknown(d, at)
		if limit < len(rows) && rows[limit-1].NextAttemptAt.Equal(rows[limit].NextAttemptAt) {
			request.Limits[d] = len(rows)
		}
	}
	h.step(t, func(s *side) answer {
		entries, err := s.store.ClaimUnknown(context.Background(), request)
		return answer{err: err, records: entryRecords(entries)}
	}, true, func(got answer) answer {
		return answer{records: modelEntries(h.model.claimUnknown(request.Limits, request.At, got.entries()))}
	})
}

// row draws the number of a row; 0 is one that there is not.
func (h *history) row(t *rapid.T) int { return rapid.IntRange(0, len(h.memory.ids)-1).Draw(t, "row") }

// claim draws the number of a claim, mostly of one that is still a row's.
func (h *history) claim(t *rapid.T) int {
	if current := h.model.sorted(func(r *modelRow) bool { return r.Claim.Token != 0 }); len(current) > 0 && rapid.IntRange(0, 4).Draw(t, "current") > 0 {
		return h.memory.tokens[draw(t, "row", current...).Claim]
	}
	return rapid.IntRange(0, len(h.memory.claims)-1).Draw(t, "claim")
}

// settlement draws what is to be said of a claim.
func (h *history) settlement(t *rapid.T) func(Claim) Settlement {
	reason, ref := draw(t, "reason", "", "busy", "refused"), draw(t, "ref", "", "ref 1", "ref 2")
	at, delay := h.at(t, -2, 1, 5), time.Duration(0)
	if at.IsZero() {
		delay = draw(t, "delay", 0, 0, h.hours(2).Sub(h.start))
	}
	zero := rapid.IntRange(0, 9).Draw(t, "no token") == 0
	settle := draw(t, "settlement", "completed", "failed", "retry", "reschedule", "postpone", "unknown", "unknown", "keep", "never", "back")
	say := func(c Claim) Settlement {
		switch settle {
		case "completed":
			return c.Completed(ref)
		case "failed":
			return c.Failed(reason)
		case "retry":
			return c.Retry(reason, at)
		case "reschedule":
			return c.Reschedule(at)
		case "postpone":
			return c.Postpone(reason, at)
		case "unknown":
			return c.OutcomeUnknown(ref, at)
		case "keep":
			return c.KeepUnknown(at)
		case "never":
			return c.NeverArrived(reason)
		}
		return c.GiveBack()
	}
	return func(c Claim) Settlement {
		if zero {
			c.Token = 0
		}
		settlement := say(c)
		settlement.delay = delay // which a dispatcher gives in the place of a time
		if settle == "unknown" || settle == "keep" {
			settlement.reason = reason // which a dispatcher gives as well
		}
		return settlement
	}
}

// pause pauses a destination, or lets it go on.
func (h *history) pause(t *rapid.T) {
	d := draw(t, "destination", DestinationStock, DestinationBank, DestinationMetrics)
	paused := rapid.IntRange(0, 2).Draw(t, "pause") == 0
	h.step(t, func(s *side) answer {
		if paused {
			return answer{err: s.store.Pause(context.Background(), d)}
		}
		return answer{err: s.store.Resume(context.Background(), d)}
	}, false, func(answer) answer {
		h.model.paused[d] = paused
		return answer{}
	})
}

func (h *history) settle(t *rapid.T) {
	n := rapid.IntRange(1, 6).Draw(t, "settlements")
	claims, says := make([]int, n), make([]func(Claim) Settlement, n)
	for i := range n {
		claims[i], says[i] = h.claim(t), h.settlement(t)
	}
	settlements := func(s *side) (all []Settlement) {
		for i, say := range says {
			all = append(all, say(s.claims[claims[i]]))
		}
		return all
	}
	h.step(t, func(s *side) answer {
		errs, err := s.store.Settle(context.Background(), settlements(s)...)
		return answer{err: errors.Join(append(errs, err)...)}
	}, false, func(answer) answer {
		var errs []error
		for _, s := range settlements(h.memory) {
			errs = append(errs, h.model.settle(s))
		}
		return answer{err: errors.Join(errs...)}
	})
}

func (h *history) extend(t *rapid.T) {
	at := h.at(t, -2, 1)
	var numbers []int
	for range rapid.IntRange(1, 4).Draw(t, "claims") {
		numbers = append(numbers, h.claim(t))
	}
	numbers = slices.Compact(slices.Sorted(slices.Values(numbers)))
	claims := func(s *side) (claims []Claim) {
		for _, n := range numbers {
			claims = append(claims, s.claims[n])
		}
		return claims
	}
	byRow := func(a, b Claim) int { return compareIDs(a.ID, b.ID) }
	h.step(t, func(s *side) answer {
		held, err := s.store.ExtendClaims(context.Background(), at, claims(s)...)
		slices.SortFunc(held, byRow)
		return answer{err: err, claims: held}
	}, false, func(answer) answer {
		held := h.model.extend(claims(h.memory), at)
		slices.SortFunc(held, byRow)
		return answer{claims: held}
	})
}

func (h *history) release(t *rapid.T) {
	at := h.afterAll(t, 1, 5)
	h.step(t, func(s *side) answer {
		ids, err := s.store.ReleaseExpiredClaims(context.Background(), at)
		return answer{err: err, ids: ids}
	}, false, func(answer) answer { return answer{ids: h.model.release(at)} })
}

func (h *history) expire(t *rapid.T) {
	at, limit := h.afterAll(t, 1, 2, 5), rapid.IntRange(1, 3).Draw(t, "limit")
	h.step(t, func(s *side) answer {
		ids, err := s.store.ExpireDue(context.Background(), at, limit)
		return answer{err: err, ids: ids}
	}, false, func(answer) answer { return answer{ids: h.model.expire(at, limit)} })
}

func (h *history) purge(t *rapid.T) {
	at, limit := h.afterAll(t, 26, 24*8, 24*40), rapid.IntRange(1, 5).Draw(t, "limit")
	h.step(t, func(s *side) answer {
		n, err := s.store.Purge(context.Background(), at, limit)
		return answer{err: err, n: n}
	}, false, func(answer) answer { return answer{n: h.model.purge(at, limit)} })
}

func (h *history) cancel(t *rapid.T) {
	row, reason := h.row(t), draw(t, "reason", "", "not wanted")
	h.step(t, func(s *side) answer {
		return answer{err: s.store.Cancel(context.Background(), s.ids[row], reason)}
	}, false, func(answer) answer { return answer{err: h.model.cancel(h.memory.ids[row], reason)} })
}

func (h *history) requeue(t *rapid.T) {
	row := h.row(t)
	if failed := h.model.list(Filter{Statuses: []Status{StatusFailed}}, math.MaxInt); len(failed) > 0 {
		row = h.memory.rows[draw(t, "failed row", failed...).ID]
	}
	h.step(t, func(s *side) answer {
		return answer{err: s.store.Requeue(context.Background(), s.ids[row], "mended")}
	}, false, func(answer) answer { return answer{err: h.model.requeue(h.memory.ids[row], "mended")} })
}

func (h *history) requeueMatching(t *rapid.T) {
	filter, limit := h.filter(t), rapid.IntRange(1, 3).Draw(t, "limit")
	h.step(t, func(s *side) answer {
		ids, err := s.store.RequeueMatching(context.Background(), filter, limit, "all mended")
		return answer{err: err, ids: ids}
	}, false, func(answer) (a answer) {
		failed := filter
		failed.Statuses = []Status{StatusFailed}
		rows := h.model.list(failed, limit)
		for _, r := range rows {
			a.ids = append(a.ids, r.ID)
		}
		slices.SortFunc(rows, func(a, b *modelRow) int { return cmp.Compare(a.seq, b.seq) })
		for _, r := range rows {
			a.err = errors.Join(a.err, h.model.requeue(r.ID, "all mended"))
		}
		return a
	})
}

func (h *history) skip(t *rapid.T) {
	shelf := draw(t, "shelf", "a", "b", "c", "d")
	h.step(t, func(s *side) answer {
		return answer{err: s.store.Skip(context.Background(), DestinationStock, shelf)}
	}, false, func(answer) answer { return answer{err: h.model.skip(shelf)} })
}

func (h *history) filter(t *rapid.T) (f Filter) {
	for _, narrow := range rapid.SliceOfN(rapid.IntRange(0, 6), 0, 3).Draw(t, "filters") {
		switch narrow {
		case 0:
			f.Statuses = []Status{draw(t, "status", StatusPending, StatusDispatching, StatusCompleted, StatusFailed, StatusOutcomeUnknown), StatusPending}
		case 1:
			f.Destinations = []Destination{draw(t, "destination", DestinationStock, DestinationBank, DestinationLedger)}
		case 2:
			f.Kinds = []string{"ledger/order_confirmation@1", "stock/stock_change@1"}
		case 3:
			id := draw(t, "command", historyCommands...).id
			f.CommandID = &id
		case 4:
			region := draw(t, "region", "eu", "us")
			f.Columns.Region = &region
		case 5:
			f.LastFailure = draw(t, "failure", "busy", "refused", "requeued")
		case 6:
			f.Holding = true
		}
	}
	return f
}

func (h *history) list(t *rapid.T) {
	filter, limit := h.filter(t), rapid.IntRange(1, 5).Draw(t, "limit")
	h.step(t, func(s *side) answer {
		records, err := s.store.List(context.Background(), filter, OutboxID{}, limit)
		return answer{err: err, records: records}
	}, false, func(answer) answer { return answer{records: modelRecords(h.model.list(filter, limit))} })
}

func (h *history) listForCommand(t *rapid.T) {
	id := draw(t, "command", historyCommands...).id
	h.step(t, func(s *side) answer {
		records, err := s.store.ListForCommand(context.Background(), id)
		return answer{err: err, records: records}
	}, false, func(answer) answer {
		return answer{records: modelRecords(h.model.list(Filter{CommandID: &id}, math.MaxInt))}
	})
}

// all compares every row, and what is counted of them.
func (h *history) all(t *rapid.T) {
	h.step(t, func(s *side) answer {
		records, err := s.store.List(context.Background(), Filter{}, OutboxID{}, maxPage)
		stats, statsErr := s.store.Stats(context.Background())
		check, checkErr := s.store.CheckRows(context.Background())
		return answer{err: errors.Join(err, statsErr, checkErr), records: records, stats: stats, check: check}
	}, false, func(answer) answer {
		return answer{records: modelRecords(h.model.list(Filter{}, math.MaxInt)), stats: h.model.stats()}
	})
}

// TestHistories carries random histories out on the store in memory, on one on
// Postgres and on the model, and compares every answer and, after each
// operation, every row. For long runs: -rapid.checks 10000 -rapid.steps 60.
func TestHistories(t *testing.T) {
	fewChecks(t, 30)
	pool := testPool(t)
	rapid.Check(t, func(rt *rapid.T) { newHistory(t, rt, pool).run() })
}

// fewChecks sets the number of histories, unless the command line does.
func fewChecks(t *testing.T, n int) {
	const name = "rapid.checks"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	checks := flag.Lookup(name)
	before := checks.Value.String()
	if err := checks.Value.Set(fmt.Sprint(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { checks.Value.Set(before) })
}

func newHistory(t *testing.T, rt *rapid.T, pool *pgxpool.Pool) *history {
	removeRows(t, pool)
	start := queryOne[time.Time](t, pool, "SELECT clock_timestamp()")
	h := &history{T: rt, start: start, model: &model{now: start, rows: make(map[OutboxID]*modelRow), paused: make(map[Destination]bool)}}
	store, db := NewMemory(Options{})
	db.SetClock(func() time.Time { return h.model.now })
	h.memory, h.postgres = newSide(store, db), newSide(New(pool, Options{}), pool)
	return h
}

func (h *history) run() {
	h.Repeat(map[string]func(*rapid.T){
		"": h.all,
		"enqueue": func(t *rapid.T) {
			var messages []Message
			for range rapid.IntRange(1, 4).Draw(t, "messages") {
				messages = append(messages, h.message(t))
			}
			h.enqueue(t, messages)
		},
		"enqueue many changes": func(t *rapid.T) {
			var messages []Message
			for range rapid.IntRange(5, 20).Draw(t, "messages") {
				messages = append(messages, h.stockChange(t))
			}
			h.enqueue(t, messages)
		},
		"ClaimDue": h.claimDue, "ClaimDue again": h.claimDue, "ClaimDue of some": h.claimSome, "ClaimDue in vain": h.claimInVain, "ClaimUnknown": h.claimUnknown,
		"Settle": h.settle, "Settle again": h.settle, "ExtendClaims": h.extend,
		"ReleaseExpiredClaims": h.release, "ExpireDue": h.expire, "Purge": h.purge,
		"Cancel": h.cancel, "Requeue": h.requeue, "RequeueMatching": h.requeueMatching, "Skip": h.skip, "Pause": h.pause,
		"List": h.list, "ListForCommand": h.listForCommand,
	})
}
