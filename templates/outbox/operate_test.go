package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var outOfRange = time.Date(300000, 1, 1, 0, 0, 0, 0, time.UTC)

// TestTimesOutOfRange has every operation that takes a time refuse one that
// would end the caller's transaction.
func TestTimesOutOfRange(t *testing.T) {
	pool := testPool(t)
	claim := claimOne(t, pool, testMessage(DestinationMailer)).Claim
	inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
		ctx := t.Context()
		for name, run := range map[string]func() error{
			"MarkRetry":            func() error { return box.MarkRetry(ctx, claim, "", outOfRange) },
			"Reschedule":           func() error { return box.Reschedule(ctx, claim, outOfRange) },
			"Postpone":             func() error { return box.Postpone(ctx, claim, "", outOfRange) },
			"MarkOutcomeUnknown":   func() error { return box.MarkOutcomeUnknown(ctx, claim, "", outOfRange) },
			"KeepUnknown":          func() error { return box.KeepUnknown(ctx, claim, outOfRange) },
			"ExtendClaims":         func() error { _, err := box.ExtendClaims(ctx, outOfRange, claim); return err },
			"ReleaseExpiredClaims": func() error { _, err := box.ReleaseExpiredClaims(ctx, outOfRange); return err },
			"ExpireDue":            func() error { _, err := box.ExpireDue(ctx, outOfRange, 1); return err },
			"Purge":                func() error { _, err := box.Purge(ctx, outOfRange, 1); return err },
		} {
			if err := run(); err == nil || !strings.HasPrefix(err.Error(), "outbox: "+name) || !strings.HasSuffix(err.Error(), ": a time must lie within the years 1 to 9999") {
				t.Errorf("%s: the error is %v", name, err)
			}
		}
		wantUsable(t, tx)
	})
}

// TestEndsOfTime has the operations that compute with a time take the first and
// the last that there are.
func TestEndsOfTime(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	claimOne(t, pool, testMessage(DestinationMailer).ExpiresAt(someDay))
	for _, at := range []time.Time{time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)} {
		if _, err := s.ReleaseExpiredClaims(t.Context(), at); err != nil {
			t.Error(err)
		}
		if _, err := s.ExpireDue(t.Context(), at, 10); err != nil {
			t.Error(err)
		}
		if _, err := s.Purge(t.Context(), at, 10); err != nil {
			t.Error(err)
		}
	}
}

func TestSettlingOneRowTwiceInACall(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	claim := claimOne(t, pool, testMessage(DestinationMailer)).Claim
	stale := Claim{ID: claim.ID, Token: claim.Token + 1}
	unknown := Claim{ID: OutboxID(uuid.New()), Token: 1}
	held, err := s.ExtendClaims(t.Context(), time.Time{}, stale, claim, unknown, claim)
	if err != nil || !slices.Equal(held, []Claim{claim, claim}) {
		t.Errorf("ExtendClaims returned %v, %v", held, err)
	}
	err = s.GiveBack(t.Context(), stale, claim, unknown, claim)
	var refusals []string
	for _, joined := range err.(interface{ Unwrap() []error }).Unwrap() {
		var refusal *ClaimError
		if !errors.As(joined, &refusal) {
			t.Fatalf("the error is %v", joined)
		}
		refusals = append(refusals, fmt.Sprint(refusal.ID, errors.Is(joined, ErrConflict), errors.Is(joined, ErrNotFound)))
	}
	if want := []string{fmt.Sprint(claim.ID, true, false), fmt.Sprint(unknown.ID, false, true)}; !slices.Equal(refusals, want) {
		t.Errorf("refused %v, want %v", refusals, want)
	}
	if record := getRecord(t, s, claim.ID); record.Status != StatusPending || record.Attempt != 0 {
		t.Errorf("the row is %s at attempt %d", record.Status, record.Attempt)
	}
}

// TestSettleKeepsOtherEntriesWhole settles rows of every sort in one call, with
// a stale one between them.
func TestSettleOfEverySortAtOnce(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	var messages []Message
	for range 8 {
		messages = append(messages, testMessage(DestinationMailer))
	}
	enqueueAll(t, pool, messages...)
	var claims []Claim
	for _, e := range claimAll(t, s, 10) {
		claims = append(claims, e.Claim)
	}
	answers, err := s.Settle(t.Context(),
		claims[0].Failed("a"),
		Claim{ID: claims[1].ID, Token: 7}.Completed(""),
		claims[2].Retry("b", someDay),
		claims[3].OutcomeUnknown("c", someDay),
		claims[3].KeepUnknown(laterDay), // after the one before
		claims[4].GiveBack(),
		claims[5].Postpone("d", time.Time{}),
		claims[6].Completed("e"),
		claims[7].KeepUnknown(someDay),
	)
	if err != nil {
		t.Fatal(err)
	}
	for i, answer := range answers {
		if refused := i == 1 || i == 8; refused != errors.Is(answer, ErrConflict) || !refused && answer != nil {
			t.Errorf("settlement %d was answered %v", i, answer)
		}
	}
	var got []string
	for _, claim := range claims {
		r := getRecord(t, s, claim.ID)
		got = append(got, fmt.Sprintf("%s %d %q %q %d", r.Status, r.Attempt, r.LastFailure, r.RemoteRef, r.NextAttemptAt.Year()))
	}
	want := []string{
		`failed 1 "a" "" 1`, `dispatching 1 "" "" 1`, `pending 1 "b" "" 2100`, `outcome_unknown 1 "" "c" 2101`,
		`pending 0 "" "" 1`, `pending 0 "d" "" 1`, `completed 1 "" "e" 1`, `dispatching 1 "" "" 1`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the rows are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	wantSound(t, s)
}

func TestReleaseExpiredClaimsGoesByTheLeaseOfTheDestination(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	lease := ledgerPolicy.lease
	t.Cleanup(func() { ledgerPolicy.lease = lease })
	ledgerPolicy.lease = time.Hour
	ids := enqueueAll(t, pool, testMessage(DestinationLedger), testMessage(DestinationMailer), testMessage(DestinationPayments), testMessage(DestinationMailer))
	_, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", At: someDay,
		Limits: map[Destination]int{DestinationLedger: 1, DestinationMailer: 1, DestinationPayments: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		after time.Duration
		want  []OutboxID
	}{
		{mailerPolicy.lease, nil},
		{mailerPolicy.lease + time.Microsecond, []OutboxID{ids[1], ids[2]}},
		{time.Hour, nil},
		{time.Hour + time.Microsecond, []OutboxID{ids[0]}},
	} {
		released, err := s.ReleaseExpiredClaims(t.Context(), someDay.Add(step.after))
		if err != nil {
			t.Fatal(err)
		}
		wantIDs(t, released, step.want...)
	}
}

func TestReleaseExpiredClaimsLeavesOtherDestinations(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	entry := claimOne(t, pool, testMessage(DestinationMailer))
	execSQL(t, pool, "UPDATE outbox_queue SET destination = 'fax'")
	released, err := s.ReleaseExpiredClaims(t.Context(), laterDay)
	if err != nil {
		t.Fatal(err)
	}
	wantIDs(t, released)
	if r := getRecord(t, s, entry.ID); r.Status != StatusDispatching {
		t.Errorf("the row is %s", r.Status)
	}
}

// TestReleaseExpiredClaimsNobodyIsAsked lets a lease run out where only a person
// can tell what happened.
func TestReleaseExpiredClaimsWhereNobodyIsAsked(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	first := paymentsPolicy.firstQuestion
	t.Cleanup(func() { paymentsPolicy.firstQuestion = first })
	paymentsPolicy.firstQuestion = neverAsked
	entry := claimOne(t, pool, testMessage(DestinationPayments))
	if _, err := s.ReleaseExpiredClaims(t.Context(), someDay); err != nil {
		t.Fatal(err)
	}
	if r := getRecord(t, s, entry.ID); r.Status != StatusOutcomeUnknown || !r.NextAttemptAt.IsZero() {
		t.Errorf("the row is %s, the next question at %v", r.Status, r.NextAttemptAt)
	}
	entries, err := s.ClaimUnknown(t.Context(), ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationPayments: 1}, At: laterDay})
	if err != nil || len(entries) != 0 {
		t.Errorf("claimed %v, %v", entries, err)
	}
	if err := s.MarkCompleted(t.Context(), entry.Claim, "seen by a person"); err != nil {
		t.Error(err)
	}
}

// fillQueue inserts n copies of the one message that there is, all pending.
func fillQueue(t *testing.T, pool *pgxpool.Pool, n int) []OutboxID {
	t.Helper()
	source := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
	ids := make([]OutboxID, n)
	for i := range ids {
		ids[i] = OutboxID(uuid.Must(uuid.NewV7()))
	}
	execSQL(t, pool, `INSERT INTO outbox_message (outbox_id, command_id, tenant_id, created_at, expires_at, payload_version, destination, payload_type, idempotency_key, payload)
		SELECT i, m.command_id, m.tenant_id, m.created_at, m.expires_at, m.payload_version, m.destination, m.payload_type, i::text, m.payload
		FROM outbox_message m, unnest($2::uuid[]) i WHERE m.outbox_id = $1`, source.String(), idArray(ids))
	execSQL(t, pool, `INSERT INTO outbox_queue (outbox_id, destination, kind, expires_at)
		SELECT i, q.destination, q.kind, q.expires_at FROM outbox_queue q, unnest($2::uuid[]) i WHERE q.outbox_id = $1`, source.String(), idArray(ids))
	execSQL(t, pool, "DELETE FROM outbox_message WHERE outbox_id = $1", source.String())
	execSQL(t, pool, "DELETE FROM outbox_queue WHERE outbox_id = $1", source.String())
	return ids
}

// TestSweepsOfManyRows has each sweep take more rows than one of its steps.
func TestSweepsOfManyRows(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	const n = 2*sweepStep + 100
	ids := fillQueue(t, pool, n)
	execSQL(t, pool, "UPDATE outbox_queue SET claim_token = 1, claim_worker = 'w', claim_taken_at = $1, attempt_count = 1", longAgo)
	released, err := s.ReleaseExpiredClaims(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	wantIDs(t, released, ids...)

	execSQL(t, pool, "UPDATE outbox_queue SET expires_at = $1::timestamptz + (hashtext(outbox_id::text) || ' milliseconds')::interval", longAgo)
	expired, err := s.ExpireDue(t.Context(), time.Time{}, sweepStep+50)
	if err != nil {
		t.Fatal(err)
	}
	if len(expired) != sweepStep+50 || !slices.IsSortedFunc(expired, compareIDs) {
		t.Errorf("expired %d rows, want %d, sorted", len(expired), sweepStep+50)
	}
	for _, limit := range []int{0, -1} {
		if none, err := s.ExpireDue(t.Context(), time.Time{}, limit); err != nil || len(none) != 0 {
			t.Errorf("ExpireDue with the limit %d: %d rows, %v", limit, len(none), err)
		}
		if none, err := s.Purge(t.Context(), laterDay, limit); err != nil || none != 0 {
			t.Errorf("Purge with the limit %d: %d rows, %v", limit, none, err)
		}
	}
	rest, err := s.ExpireDue(t.Context(), time.Time{}, 1<<40)
	if err != nil || len(rest) != n-len(expired) {
		t.Errorf("expired %d rows, %v, want the other %d", len(rest), err, n-len(expired))
	}

	for _, step := range []struct{ limit, want int }{{sweepStep + 10, sweepStep + 10}, {1 << 40, n - sweepStep - 10}, {10, 0}} {
		if removed, err := s.Purge(t.Context(), laterDay, step.limit); err != nil || removed != step.want {
			t.Errorf("Purge with the limit %d removed %d rows, %v, want %d", step.limit, removed, err, step.want)
		}
		wantSound(t, s)
	}
	wantRows(t, pool, 0)
}

func TestPurgeGoesByTheRetention(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	const day = 24 * time.Hour
	for _, test := range []struct {
		name        string
		destination Destination
		fail        bool
		keep        time.Duration // 0 = for ever
	}{
		{"completed", DestinationMailer, false, 7 * day},
		{"failed", DestinationMailer, true, 30 * day},
		{"failed where completed rows are not kept", DestinationMetrics, true, day},
		{"completed, kept for ever", DestinationLedger, false, 0},
		{"failed, kept for ever", DestinationLedger, true, 0},
		{"completed, of a destination that is not known", "fax", false, keepCompletedDefault},
		{"failed, of a destination that is not known", "fax", true, keepFailedDefault},
	} {
		t.Run(test.name, func(t *testing.T) {
			removeRows(t, pool)
			d := test.destination
			if d == "fax" {
				d = DestinationMailer
			}
			message := testMessage(d)
			entry := claimOne(t, pool, message)
			settle := func() error { return s.MarkCompleted(t.Context(), entry.Claim, "") }
			if test.fail {
				settle = func() error { return s.MarkFailed(t.Context(), entry.Claim, "") }
			}
			if err := settle(); err != nil {
				t.Fatal(err)
			}
			execSQL(t, pool, "UPDATE outbox_message SET destination = $1", string(test.destination))
			execSQL(t, pool, "UPDATE outbox_outcome SET destination = $1", string(test.destination))
			live := enqueueAll(t, pool, testMessage(DestinationMailer))[0]
			ended := getRecord(t, s, entry.ID).CompletedAt
			if test.keep == 0 {
				if removed, err := s.Purge(t.Context(), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), 10); err != nil || removed != 0 {
					t.Errorf("removed %d rows, %v", removed, err)
				}
				return
			}
			for _, step := range []struct {
				at   time.Time
				want int
			}{{ended.Add(test.keep), 0}, {ended.Add(test.keep + time.Microsecond), 1}, {ended.Add(test.keep + day), 0}} {
				if removed, err := s.Purge(t.Context(), step.at, 10); err != nil || removed != step.want {
					t.Errorf("removed %d rows at %v, %v, want %d", removed, step.at.Sub(ended), err, step.want)
				}
			}
			if _, err := s.Get(t.Context(), entry.ID); !errors.Is(err, ErrNotFound) {
				t.Errorf("the row can still be read: %v", err)
			}
			if r := getRecord(t, s, live); r.Status != StatusPending {
				t.Errorf("the live row is %s", r.Status)
			}
			if test.destination == d {
				inTx(t, pool, Options{}, func(_ pgx.Tx, box *Tx) {
					if placed := mustEnqueue(t, box, message); placed[0].Duplicate {
						t.Error("the idempotency key was not forgotten")
					}
				})
			}
			wantSound(t, s)
		})
	}
}

func TestPurgeLeavesAFailedRowThatHoldsItsKey(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	entry := claimOne(t, pool, testMessage(DestinationMailer))
	execSQL(t, pool, "UPDATE outbox_queue SET order_key = 'k'")
	execSQL(t, pool, "UPDATE outbox_message SET order_key = 'k'")
	if err := s.MarkFailed(t.Context(), entry.Claim, "refused"); err != nil {
		t.Fatal(err)
	}
	if removed, err := s.Purge(t.Context(), laterDay, 10); err != nil || removed != 0 {
		t.Errorf("removed %d rows, %v", removed, err)
	}
	seq := queryOne[int64](t, pool, "SELECT seq FROM outbox_outcome")
	if err := s.Requeue(t.Context(), entry.ID, "mended"); err != nil {
		t.Fatal(err)
	}
	if holds, place := queryOne[int](t, pool, "SELECT count(*) FROM outbox_hold"), queryOne[int64](t, pool, "SELECT seq FROM outbox_queue"); holds != 0 || place != seq {
		t.Errorf("after Requeue %d keys are held and the place is %d, want none and %d", holds, place, seq)
	}
}

func TestStats(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	mail := func() Message { return testMessage(DestinationMailer) }
	ids := enqueueAll(t, pool, mail(), mail(), mail(), mail(), mail(), mail(), mail().At(someDay), mail().ExpiresAt(longAgo), mail(), testMessage(DestinationPayments), mail())
	execSQL(t, pool, "UPDATE outbox_message SET destination = 'fax' WHERE outbox_id = $1", ids[10].String())
	execSQL(t, pool, "UPDATE outbox_queue SET destination = 'fax', kind = 'fax/page@1' WHERE outbox_id = $1", ids[10].String())
	for i, e := range claimAll(t, s, 5) {
		var err error
		switch i {
		case 0:
			err = s.MarkFailed(t.Context(), e.Claim, "")
		case 1:
			err = s.MarkCompleted(t.Context(), e.Claim, "")
		case 2, 3:
			err = s.MarkOutcomeUnknown(t.Context(), e.Claim, "", someDay)
		case 4: // stays with its worker
		case 5:
			err = s.MarkOutcomeUnknown(t.Context(), e.Claim, "", time.Time{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	stats, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []DestinationStats{
		{Destination: DestinationBank},
		{Destination: "fax", Pending: 1, Due: 1, OldestPending: ids[10].createdAt()},
		{Destination: DestinationLedger},
		{Destination: DestinationMailer, Pending: 4, Due: 2, OldestPending: ids[5].createdAt(), Dispatching: 1,
			OutcomeUnknown: 2, OldestUnknown: ids[2].createdAt(), Failed: 1},
		{Destination: DestinationMetrics},
		{Destination: DestinationPayments, OutcomeUnknown: 1, OldestUnknown: ids[9].createdAt()},
		{Destination: DestinationStock},
	}
	if !slices.Equal(stats.Destinations, want) {
		t.Errorf("the stats are\n%+v\nwant\n%+v", stats.Destinations, want)
	}
	if want := []KindStats{{"fax/page@1", 1}}; !slices.Equal(stats.Unclaimed, want) {
		t.Errorf("unclaimed are %v, want %v", stats.Unclaimed, want)
	}
}

func TestCheckRowsFindsDamage(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	for _, test := range []struct {
		name, damage string
		want         RowCheck
	}{
		{"none", "SELECT $1::uuid", RowCheck{}},
		{"a message that is alive and has ended", `INSERT INTO outbox_outcome (outbox_id, claim_token, completed_at, attempt_count, failed, destination)
			VALUES ($1, 0, now(), 0, true, 'mailer')`, RowCheck{Both: 1}},
		{"a message that is neither", "DELETE FROM outbox_queue WHERE outbox_id = $1", RowCheck{Neither: 1}},
		{"a live row without a message", "DELETE FROM outbox_message WHERE outbox_id = $1", RowCheck{Orphans: 1}},
		{"an ended row without a message", `WITH gone AS (DELETE FROM outbox_queue WHERE outbox_id = $1), forgotten AS (DELETE FROM outbox_message WHERE outbox_id = $1)
			INSERT INTO outbox_outcome (outbox_id, claim_token, completed_at, attempt_count, failed, destination) VALUES ($1, 0, now(), 0, true, 'mailer')`, RowCheck{Orphans: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			removeRows(t, pool)
			ids := enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationLedger))
			execSQL(t, pool, test.damage, ids[0].String())
			if check, err := s.CheckRows(t.Context()); err != nil || check != test.want {
				t.Errorf("CheckRows: %+v, %v, want %+v", check, err, test.want)
			}
		})
	}
}

func TestListForCommandOldestFirst(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := enqueueAll(t, pool, testMessage(DestinationPayments), testMessage(DestinationMailer), testMessage(DestinationLedger))
	inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) { // another command's
		if _, err := box.Enqueue(t.Context(), NewCommand(CommandID(uuid.New()), uuid.New()), testMessage(DestinationMailer)); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	for _, e := range claimAll(t, s, 1)[:1] {
		if err := s.MarkCompleted(t.Context(), e.Claim, ""); err != nil {
			t.Fatal(err)
		}
	}
	records, err := s.ListForCommand(t.Context(), testCommand.id)
	if err != nil {
		t.Fatal(err)
	}
	var got []OutboxID
	for _, r := range records {
		got = append(got, r.ID)
	}
	wantIDs(t, got, ids...)
}

func TestViewHasTheColumnsOfOneTable(t *testing.T) {
	pool := testPool(t)
	rows, err := pool.Query(t.Context(), "SELECT column_name || ' ' || data_type FROM information_schema.columns WHERE table_name = 'outbox' ORDER BY ordinal_position")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"outbox_id uuid", "command_id uuid", "tenant_id uuid", "region text", "destination text", "payload_type text", "payload_version integer",
		"idempotency_key text", "payload json", "headers json", "created_at timestamp with time zone", "expires_at timestamp with time zone",
		"order_key text", "limit_key text", "status text", "next_attempt_at timestamp with time zone", "attempt_count integer", "claim_token bigint",
		"claim_worker text", "claim_taken_at timestamp with time zone", "attempted_at timestamp with time zone", "unknown_since timestamp with time zone",
		"last_failure text", "remote_ref text", "completed_at timestamp with time zone",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the view has the columns %q, want %q", got, want)
	}
}

// lookingDB calls a hook before the second of the store's own transactions.
type lookingDB struct {
	DB
	begun int
	hook  func()
}

func (db *lookingDB) Begin(ctx context.Context) (pgx.Tx, error) {
	if db.begun++; db.begun == 2 {
		db.hook()
	}
	return db.DB.Begin(ctx)
}

// TestCancelOfARowThatIsGivenBackMeanwhile has a row that is held when it is to be
// cancelled, and pending when the store looks why that was not possible.
func TestCancelOfARowThatIsGivenBackMeanwhile(t *testing.T) {
	pool := testPool(t)
	claim := claimOne(t, pool, testMessage(DestinationMailer)).Claim
	s := New(&lookingDB{DB: pool, hook: func() {
		if err := New(pool, Options{}).GiveBack(t.Context(), claim); err != nil {
			t.Error(err)
		}
	}}, Options{})
	if err := s.Cancel(t.Context(), claim.ID, "not wanted"); err != nil {
		t.Fatal(err)
	}
	r, err := s.Get(t.Context(), claim.ID)
	if err != nil || r.Status != StatusFailed || r.LastFailure != "not wanted" {
		t.Errorf("the row is %v, %q, %v", r, r.LastFailure, err)
	}
}

// TestReasonsDoNotGrowWithoutEnd fails and requeues a row over and over.
func TestReasonsDoNotGrowWithoutEnd(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	long := strings.Repeat("x", maxText)
	claim := claimOne(t, pool, testMessage(DestinationMailer)).Claim
	for range 3 {
		if err := s.MarkFailed(t.Context(), claim, long); err != nil {
			t.Fatal(err)
		}
		if err := s.Requeue(t.Context(), claim.ID, long); err != nil {
			t.Fatal(err)
		}
		r, err := s.Get(t.Context(), claim.ID)
		if err != nil || len(r.LastFailure) != maxText || !strings.HasPrefix(r.LastFailure, "requeued: xxx") {
			t.Fatalf("the last failure has %d bytes and begins with %.20q: %v", len(r.LastFailure), r.LastFailure, err)
		}
		claim = claimAll(t, s, 1)[0].Claim
	}
}

// TestEnqueueRefusesATimeBehindTheDeclaredExpiry has metrics, which expire after an
// hour.
func TestEnqueueRefusesATimeBehindTheDeclaredExpiry(t *testing.T) {
	pool := testPool(t)
	due := time.Now().Add(2 * time.Hour)
	inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
		_, err := box.Enqueue(t.Context(), testCommand, testMessage(DestinationMetrics).At(due))
		if err == nil || !strings.Contains(err.Error(), "would expire before it is due") {
			t.Errorf("the error is %v", err)
		}
		if _, err := box.Enqueue(t.Context(), testCommand, testMessage(DestinationMetrics).At(due).ExpiresAt(due.Add(time.Hour))); err != nil {
			t.Error(err)
		}
		if _, err := box.Enqueue(t.Context(), testCommand, testMessage(DestinationMetrics).At(time.Now().Add(time.Minute))); err != nil {
			t.Error(err)
		}
	})
}

// TestPause has rows of every lane, and one whose outcome is unknown.
func TestPause(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := enqueueAll(t, pool, change("a", 1), testMessage(DestinationPayments), testMessage(DestinationPayments), testMessage(DestinationMailer))
	must(t, s.MarkOutcomeUnknown(t.Context(), claimAll(t, s, 1)[1].Claim, "", longAgo))
	request := ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationStock: 9, DestinationPayments: 9, DestinationMailer: 9}}
	_, err := s.ReleaseExpiredClaims(t.Context(), time.Now().Add(time.Hour))
	must(t, err)
	for _, d := range []Destination{DestinationStock, DestinationPayments} {
		must(t, s.Pause(t.Context(), d))
		must(t, s.Pause(t.Context(), d))
	}
	entries, err := New(pool, Options{}).ClaimDue(t.Context(), request)
	must(t, err)
	wantIDs(t, entryIDs(entries), ids[3])
	entries, err = s.ClaimUnknown(t.Context(), request)
	must(t, err)
	wantIDs(t, entryIDs(entries))
	if err := s.Skip(t.Context(), DestinationStock, ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("Skip took the pause for a held key: %v", err)
	}
	stats, err := s.Stats(t.Context())
	must(t, err)
	for _, d := range stats.Destinations {
		if paused := d.Destination == DestinationStock || d.Destination == DestinationPayments; d.Paused != paused || d.HeldKeys != 0 {
			t.Errorf("%s: paused is %t, with %d held keys", d.Destination, d.Paused, d.HeldKeys)
		}
	}
	for _, d := range []Destination{DestinationStock, DestinationPayments, DestinationMailer} {
		must(t, s.Resume(t.Context(), d))
	}
	entries, err = s.ClaimDue(t.Context(), request)
	must(t, err)
	wantIDs(t, entryIDs(entries), ids[0], ids[2])
	entries, err = s.ClaimUnknown(t.Context(), request)
	must(t, err)
	wantIDs(t, entryIDs(entries), ids[1])
	if s.Pause(t.Context(), "fax") == nil || s.Resume(t.Context(), "fax") == nil {
		t.Error("a destination that does not exist was paused")
	}
}
