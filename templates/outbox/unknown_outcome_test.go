package outbox

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// parkAll enqueues messages and makes their outcomes unknown. The first question
// about the first of them is the first that is due.
func parkAll(t *testing.T, pool *pgxpool.Pool, messages ...Message) []OutboxID {
	t.Helper()
	ids := enqueueAll(t, pool, messages...)
	s := New(pool, Options{})
	var settlements []Settlement
	for i, e := range claimAll(t, s, len(messages)) {
		settlements = append(settlements, e.Claim.OutcomeUnknown("", longAgo.Add(time.Duration(i)*time.Minute)))
	}
	wantSettled(t, s, settlements, make([]error, len(messages)))
	return ids
}

// askAbout holds rows for a question, as of at.
func askAbout(t *testing.T, s *Store, at time.Time, limits map[Destination]int) []Entry {
	t.Helper()
	entries, err := s.ClaimUnknown(t.Context(), ClaimRequest{WorkerID: "asker", Limits: limits, At: at})
	must(t, err)
	return entries
}

// TestClaimUnknownLeavesLimitKeysOut has questions of one limit key, and of none, that
// are not to be asked.
func TestClaimUnknownLeavesLimitKeysOut(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := parkAll(t, pool, testMessage(DestinationPayments), testMessage(DestinationPayments), testMessage(DestinationPayments), testMessage(DestinationBank))
	for i, key := range []string{"x", "y"} {
		execSQL(t, pool, "UPDATE outbox_queue SET limit_key = $2 WHERE outbox_id = $1", ids[i].String(), key)
	}
	for _, test := range []struct {
		leftOut []string
		want    []OutboxID
	}{
		{[]string{"payments/x", "payments/"}, []OutboxID{ids[1], ids[3]}},
		{nil, []OutboxID{ids[0], ids[2]}},
	} {
		call := claimCallFor(t, 10)
		call.leftOut = test.leftOut
		rows, err := s.backend.claimUnknown(t.Context(), call)
		must(t, err)
		slices.SortFunc(rows, byID)
		wantIDs(t, entryIDs(decoded(rows)), test.want...)
	}
}

func TestClaimUnknownLimitsEachDestination(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := parkAll(t, pool, testMessage(DestinationBank), testMessage(DestinationPayments), testMessage(DestinationBank), testMessage(DestinationPayments), testMessage(DestinationBank))
	limits := map[Destination]int{DestinationBank: 2, DestinationPayments: 1}
	wantIDs(t, entryIDs(askAbout(t, s, time.Time{}, limits)), ids[0], ids[1], ids[2])
	wantIDs(t, entryIDs(askAbout(t, s, time.Time{}, limits)), ids[3], ids[4])
	wantIDs(t, entryIDs(askAbout(t, s, time.Time{}, limits)))
}

// TestClaimUnknownTakesTheOldestQuestion has questions in another order than that
// of the rows.
func TestClaimUnknownTakesTheOldestQuestion(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := parkAll(t, pool, testMessage(DestinationBank), testMessage(DestinationBank), testMessage(DestinationBank))
	must(t, s.KeepUnknown(t.Context(), getRecord(t, s, ids[0]).Claim, someDay))
	one := map[Destination]int{DestinationBank: 1}
	wantIDs(t, entryIDs(askAbout(t, s, time.Time{}, one)), ids[1])
	wantIDs(t, entryIDs(askAbout(t, s, time.Time{}, one)), ids[2])
	wantIDs(t, entryIDs(askAbout(t, s, time.Time{}, one)))
}

// TestClaimUnknownPassesOverLockedRows fails by the lock timeout when it waits.
func TestClaimUnknownPassesOverLockedRows(t *testing.T) {
	pool := testPool(t)
	ids := parkAll(t, pool, testMessage(DestinationBank), testMessage(DestinationBank))
	locker, err := pool.Begin(t.Context())
	must(t, err)
	defer locker.Rollback(context.WithoutCancel(t.Context()))
	execSQL(t, locker, "SELECT 1 FROM outbox_queue WHERE outbox_id = $1 FOR UPDATE", ids[0].String())
	s := New(impatientConn(t, pool.Config().ConnConfig), Options{})
	wantIDs(t, entryIDs(askAbout(t, s, time.Time{}, map[Destination]int{DestinationBank: 2})), ids[1])
}

// TestHoldsForQuestionsExpire lets an asker vanish: another gets the question,
// and the first can settle nothing any more.
func TestHoldsForQuestionsExpire(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	limits := map[Destination]int{DestinationBank: 1}
	ids := parkAll(t, pool, testMessage(DestinationBank))
	lost := askAbout(t, s, longAgo, limits)[0]
	wantIDs(t, entryIDs(askAbout(t, s, time.Time{}, limits)))
	released, err := s.ReleaseExpiredClaims(t.Context(), longAgo.Add(bankPolicy.lease))
	must(t, err)
	wantIDs(t, released)
	released, err = s.ReleaseExpiredClaims(t.Context(), longAgo.Add(bankPolicy.lease+time.Second))
	must(t, err)
	wantIDs(t, released, ids...)
	if r := getRecord(t, s, ids[0]); r.Status != StatusOutcomeUnknown || r.Attempt != 1 || r.Worker != "" {
		t.Errorf("the row is %s at attempt %d, held by %q", r.Status, r.Attempt, r.Worker)
	}
	again := askAbout(t, s, time.Time{}, limits)
	wantIDs(t, entryIDs(again), ids...)
	refusal := ClaimError{ID: ids[0], Destination: DestinationBank, Status: StatusOutcomeUnknown}
	wantRefusal(t, s.KeepUnknown(t.Context(), lost.Claim, someDay), ErrConflict, refusal)
	wantRefusal(t, s.MarkNeverArrived(t.Context(), lost.Claim, "lost"), ErrConflict, refusal)
	must(t, s.MarkNeverArrived(t.Context(), again[0].Claim, "lost"))
}

// TestFirstQuestion has a claim whose lease runs out where a repetition could do
// harm: the first question is due after the time that the destination declares.
func TestFirstQuestion(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	limits := map[Destination]int{DestinationBank: 1}
	ids := enqueueAll(t, pool, testMessage(DestinationBank))
	at := longAgo.Add(time.Hour)
	if _, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: limits, At: longAgo}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReleaseExpiredClaims(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, entryIDs(askAbout(t, s, at.Add(bankPolicy.firstQuestion-time.Second), limits)))
	wantIDs(t, entryIDs(askAbout(t, s, at.Add(bankPolicy.firstQuestion), limits)), ids...)
}

// TestGivingUp has rows whose outcome has been unknown for longer than anybody
// is asked: they stay, and a person settles them.
func TestGivingUp(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	limits := map[Destination]int{DestinationBank: 10}
	for _, test := range []struct {
		name   string
		settle func(ctx context.Context, c Claim) error
		want   Status
	}{
		{"it did arrive", func(ctx context.Context, c Claim) error { return s.MarkCompleted(ctx, c, "ref") }, StatusCompleted},
		{"it was refused", func(ctx context.Context, c Claim) error { return s.MarkFailed(ctx, c, "refused") }, StatusFailed},
		{"it is to be sent again", func(ctx context.Context, c Claim) error { return s.MarkRetry(ctx, c, "lost", time.Time{}) }, StatusPending},
		{"it never arrived", func(ctx context.Context, c Claim) error { return s.MarkNeverArrived(ctx, c, "lost") }, StatusPending},
	} {
		t.Run(test.name, func(t *testing.T) {
			removeRows(t, pool)
			id := parkAll(t, pool, testMessage(DestinationBank))[0]
			since := getRecord(t, s, id).UnknownSince
			last := askAbout(t, s, since.Add(bankPolicy.giveUp-time.Second), limits)
			wantIDs(t, entryIDs(last), id)
			must(t, s.GiveBack(t.Context(), last[0].Claim))
			wantIDs(t, entryIDs(askAbout(t, s, since.Add(bankPolicy.giveUp), limits)))
			if r := getRecord(t, s, id); r.Status != StatusOutcomeUnknown || !r.UnknownSince.Equal(since) {
				t.Errorf("the row is %s since %v", r.Status, r.UnknownSince)
			}
			// An answer that comes after that leaves no further question.
			execSQL(t, pool, "UPDATE outbox_queue SET unknown_since = unknown_since - interval '2 days'")
			must(t, s.KeepUnknown(t.Context(), last[0].Claim, longAgo))
			if r := getRecord(t, s, id); !r.NextAttemptAt.IsZero() {
				t.Errorf("the next question is due at %v", r.NextAttemptAt)
			}
			// Nor does one that would have the remote asked after that.
			execSQL(t, pool, "UPDATE outbox_queue SET unknown_since = clock_timestamp()")
			must(t, s.KeepUnknown(t.Context(), last[0].Claim, time.Now().Add(bankPolicy.giveUp+time.Hour)))
			if r := getRecord(t, s, id); !r.NextAttemptAt.IsZero() {
				t.Errorf("the next question, after giving up, is due at %v", r.NextAttemptAt)
			}
			wantIDs(t, entryIDs(askAbout(t, s, time.Time{}, limits)))
			stats, err := s.Stats(t.Context())
			must(t, err)
			if bank := stats.Destinations[0]; bank.Destination != DestinationBank || bank.OutcomeUnknown != 1 {
				t.Errorf("the row is counted as %+v", bank)
			}
			must(t, test.settle(t.Context(), getRecord(t, s, id).Claim))
			if r := getRecord(t, s, id); r.Status != test.want {
				t.Errorf("the row is %s, want %s", r.Status, test.want)
			}
		})
	}
}

// TestAnUnknownOutcomeIsMeasuredAnew after a row was sent again.
func TestAnUnknownOutcomeIsMeasuredAnew(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	id := parkAll(t, pool, testMessage(DestinationBank))[0]
	execSQL(t, pool, "UPDATE outbox_queue SET unknown_since = $1", longAgo)
	must(t, s.MarkRetry(t.Context(), getRecord(t, s, id).Claim, "lost", time.Time{}))
	must(t, s.MarkOutcomeUnknown(t.Context(), claimAll(t, s, 1)[0].Claim, "", longAgo))
	wantIDs(t, entryIDs(askAbout(t, s, time.Time{}, map[Destination]int{DestinationBank: 1})), id)
}

// TestWhereOnlyAPersonDecides has a destination that declares reconcile: none.
func TestWhereOnlyAPersonDecides(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	declared := paymentsPolicy
	t.Cleanup(func() { paymentsPolicy = declared })
	paymentsPolicy.firstQuestion = neverAsked
	limits := map[Destination]int{DestinationPayments: 10}
	marked := enqueueAll(t, pool, testMessage(DestinationPayments))[0]
	must(t, s.MarkOutcomeUnknown(t.Context(), claimAll(t, s, 1)[0].Claim, "", longAgo))
	abandoned := enqueueAll(t, pool, testMessage(DestinationPayments))[0]
	if _, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: limits, At: longAgo}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReleaseExpiredClaims(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, entryIDs(askAbout(t, s, laterDay, limits)))
	for _, id := range []OutboxID{marked, abandoned} {
		r := getRecord(t, s, id)
		if r.Status != StatusOutcomeUnknown || !r.NextAttemptAt.IsZero() {
			t.Errorf("the row is %s, and the next question is due at %v", r.Status, r.NextAttemptAt)
		}
		must(t, s.MarkCompleted(t.Context(), r.Claim, ""))
	}
}

// TestNeverArrived sends a row again as long as it has attempts left.
func TestNeverArrived(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	for _, test := range []struct {
		name        string
		message     Message
		destination Destination
		attempts    int // after which it fails; 0 = never
	}{
		{"not idempotent", testMessage(DestinationBank), DestinationBank, bankPolicy.maxAttempts},
		{"idempotent", testMessage(DestinationMailer), DestinationMailer, mailerPolicy.maxAttempts},
		{"ordered", change("a", 1), DestinationStock, stockPolicy.maxAttempts},
		{"without a bound", testMessage(DestinationLedger), DestinationLedger, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			removeRows(t, pool)
			id := enqueueAll(t, pool, test.message)[0]
			for attempt := 1; attempt <= 12; attempt++ {
				entries := claimAll(t, s, 1)
				wantIDs(t, entryIDs(entries), id)
				must(t, s.MarkOutcomeUnknown(t.Context(), entries[0].Claim, "", longAgo))
				claim := askAbout(t, s, time.Time{}, map[Destination]int{test.destination: 1})[0].Claim
				must(t, s.MarkNeverArrived(t.Context(), claim, "lost"))
				record := getRecord(t, s, id)
				if attempt == test.attempts {
					if record.Status != StatusFailed || record.Attempt != attempt || record.LastFailure != "lost" || record.Holding != (test.destination == DestinationStock) {
						t.Errorf("after the last attempt the row is %s at attempt %d for %q and holds its key: %v",
							record.Status, record.Attempt, record.LastFailure, record.Holding)
					}
					break
				}
				if record.Status != StatusPending || record.Attempt != attempt || record.LastFailure != "lost" {
					t.Errorf("after the attempt %d the row is %s at attempt %d for %q", attempt, record.Status, record.Attempt, record.LastFailure)
				}
				must(t, s.MarkNeverArrived(t.Context(), claim, "lost")) // once more
			}
			wantSound(t, s)
		})
	}
}
