package outbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

func entryIDs(entries []Entry) []OutboxID {
	var ids []OutboxID
	for _, e := range entries {
		ids = append(ids, e.ID)
	}
	return ids
}

func wantIDs(t *testing.T, got []OutboxID, want ...OutboxID) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got the rows %v, want %v", got, want)
	}
}

func TestClaimDueRefusesBadRequests(t *testing.T) {
	s := New(testPool(t), Options{})
	mailer := map[Destination]int{DestinationMailer: 1}
	for _, test := range []struct {
		name    string
		request ClaimRequest
		want    string
	}{
		{"a worker without a name", ClaimRequest{Limits: mailer}, "the worker has no name"},
		{"a destination that the package does not know", ClaimRequest{WorkerID: "w", Limits: map[Destination]int{"fax": 1}}, `no destination "fax"`},
		{"a time that Postgres cannot hold", ClaimRequest{WorkerID: "w", Limits: mailer, At: time.Date(300000, 1, 1, 0, 0, 0, 0, time.UTC)}, "years 1 to 9999"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for name, claim := range map[string]func(context.Context, ClaimRequest) ([]Entry, error){"ClaimDue": s.ClaimDue, "ClaimUnknown": s.ClaimUnknown} {
				if _, err := claim(t.Context(), test.request); err == nil || !strings.Contains(err.Error(), "outbox: "+name+": ") || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%s: the error is %v, want %q", name, err, test.want)
				}
			}
		})
	}
}

func TestClaimDueOfNothing(t *testing.T) {
	pool := testPool(t)
	enqueueAll(t, pool, testMessage(DestinationMailer))
	for name, limits := range map[string]map[Destination]int{
		"no destination":   nil,
		"a limit of zero":  {DestinationMailer: 0},
		"a negative limit": {DestinationMailer: -1},
		"another one":      {DestinationLedger: 1},
	} {
		entries, err := New(pool, Options{}).ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: limits})
		if err != nil || len(entries) != 0 {
			t.Errorf("%s: claimed %v, %v", name, entries, err)
		}
	}
}

func TestClaimDueLimitsEachDestination(t *testing.T) {
	pool := testPool(t)
	var messages []Message
	for range 5 {
		messages = append(messages, testMessage(DestinationMailer), testMessage(DestinationLedger), testMessage(DestinationPayments))
	}
	ids := enqueueAll(t, pool, messages...)
	s := New(pool, Options{})
	claim := func() []Entry {
		entries, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationMailer: 1, DestinationLedger: 3, DestinationMetrics: 4}})
		if err != nil {
			t.Fatal(err)
		}
		return entries
	}
	wantIDs(t, entryIDs(claim()), ids[0], ids[1], ids[4], ids[7])
	wantIDs(t, entryIDs(claim()), ids[3], ids[10], ids[13])
	wantIDs(t, entryIDs(claim()), ids[6])
}

// TestClaimDueTakesTheOldestOfBothLanes has rows that were always ready between
// rows that have just come due.
func TestClaimDueTakesTheOldestOfBothLanes(t *testing.T) {
	pool := testPool(t)
	at := func(d time.Duration) Message { return testMessage(DestinationMailer).At(someDay.Add(d)) }
	ids := enqueueAll(t, pool,
		at(2*time.Hour), testMessage(DestinationMailer), at(time.Hour), testMessage(DestinationMailer), at(3*time.Hour), at(1000*time.Hour))
	s := New(pool, Options{})
	for _, want := range [][]OutboxID{{ids[0], ids[1]}, {ids[2], ids[3]}, {ids[4]}, nil} {
		entries, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationMailer: 2}, At: someDay.Add(3 * time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		wantIDs(t, entryIDs(entries), want...)
	}
}

func TestClaimDueLeavesWhatThePackageDoesNotKnow(t *testing.T) {
	pool := testPool(t)
	ids := enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationMailer), testMessage(DestinationLedger), testMessage(DestinationPayments))
	execSQL(t, pool, "UPDATE outbox_message SET payload_version = 2 WHERE outbox_id = $1", ids[0].String())
	execSQL(t, pool, "UPDATE outbox_queue SET kind = 'mailer/order_confirmation@2' WHERE outbox_id = $1", ids[0].String())
	execSQL(t, pool, "UPDATE outbox_queue SET kind = 'ledger/usage_sample@1' WHERE outbox_id = $1", ids[2].String())
	s := New(pool, Options{})
	wantIDs(t, entryIDs(claimAll(t, s, 1)), ids[1], ids[3])
	wantIDs(t, entryIDs(claimAll(t, s, 1)))
	stats, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := []KindStats{{"ledger/usage_sample@1", 1}, {"mailer/order_confirmation@2", 1}}; !slices.Equal(stats.Unclaimed, want) {
		t.Errorf("unclaimed are %v, want %v", stats.Unclaimed, want)
	}
	if record := getRecord(t, s, ids[0]); record.Payload != nil || !errors.Is(record.DecodeErr, ErrUndecodable) || record.Status != StatusPending {
		t.Errorf("the row of the unknown version reads as %v, %v, %s", record.Payload, record.DecodeErr, record.Status)
	}
}

func TestClaimUnknownLeavesWhatThePackageDoesNotKnow(t *testing.T) {
	pool := testPool(t)
	ids := enqueueAll(t, pool, testMessage(DestinationPayments), testMessage(DestinationPayments), testMessage(DestinationPayments))
	s := New(pool, Options{})
	for _, e := range claimAll(t, s, 10) {
		if err := s.MarkOutcomeUnknown(t.Context(), e.Claim, "", time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	execSQL(t, pool, "UPDATE outbox_queue SET kind = 'payments/payment_capture@2' WHERE outbox_id = $1", ids[0].String())
	for _, want := range [][]OutboxID{{ids[1]}, {ids[2]}, nil} {
		entries, err := s.ClaimUnknown(t.Context(), ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationPayments: 1}})
		if err != nil {
			t.Fatal(err)
		}
		wantIDs(t, entryIDs(entries), want...)
	}
}

// TestClaimDueParksAnUnreadableRowAlone damages rows as no enqueue can.
func TestClaimDueParksAnUnreadableRowAlone(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	for name, damage := range map[string]string{
		"a payload of another shape":   `UPDATE outbox_message SET payload = '["nothing", "of this"]' WHERE outbox_id = $1`,
		"a payload that lacks a field": `UPDATE outbox_message SET payload = '{}' WHERE outbox_id = $1`,
		"headers that are no object":   `UPDATE outbox_message SET headers = '[1]' WHERE outbox_id = $1`,
		"a header that is no text":     `UPDATE outbox_message SET headers = '{"trace": 1}' WHERE outbox_id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			removeRows(t, pool)
			ids := enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationMailer), testMessage(DestinationMailer))
			execSQL(t, pool, damage, ids[1].String())
			entries := claimAll(t, s, 10)
			wantIDs(t, entryIDs(entries), ids...)
			for i, e := range entries {
				if damaged := i == 1; damaged != errors.Is(e.DecodeErr, ErrUndecodable) || damaged != (e.Payload == nil) {
					t.Errorf("row %d has the payload %v and the error %v", i, e.Payload, e.DecodeErr)
				}
			}
			if err := s.MarkFailed(t.Context(), entries[1].Claim, entries[1].DecodeErr.Error()); err != nil {
				t.Error(err)
			}
			if err := s.MarkCompleted(t.Context(), entries[2].Claim, ""); err != nil {
				t.Error(err)
			}
			if records, err := s.ListForCommand(t.Context(), testCommand.id); err != nil || len(records) != 3 {
				t.Errorf("listed %v, %v", records, err)
			}
		})
	}
}

func TestClaimedEntry(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	payload := paymentCapture()
	entry := claimOne(t, pool, ToPayments(payload).WithHeader("trace", "1"))
	raw, err := payload.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if string(entry.Raw) != string(raw) || !maps.Equal(entry.Headers, map[string]string{"trace": "1"}) || entry.Attempt != 1 || !entry.LastAttemptAt.IsZero() {
		t.Errorf("claimed %s %v attempt %d after %v", entry.Raw, entry.Headers, entry.Attempt, entry.LastAttemptAt)
	}
	claimed := getRecord(t, s, entry.ID).ClaimedAt
	if err := s.MarkOutcomeUnknown(t.Context(), entry.Claim, "remote-1", time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := s.MarkRetry(t.Context(), entry.Claim, "did not arrive", time.Time{}); err != nil {
		t.Fatal(err)
	}
	again := claimAll(t, s, 1)[0]
	if again.Attempt != 2 || !again.LastAttemptAt.Equal(claimed) || again.RemoteRef != "remote-1" || string(again.Raw) != string(raw) || again.IdempotencyKey != entry.IdempotencyKey {
		t.Errorf("claimed again %+v", again.summary())
	}
}

func TestWorkerNames(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	for _, test := range []struct{ name, worker, want string }{
		{"a plain one", "w1", "w1"},
		{"the end of a long one", strings.Repeat("h", 100) + "-pod-7", strings.Repeat("h", 58) + "-pod-7"},
		{"NUL", "a\x00b", "a\uFFFDb"},
		{"not UTF-8", "a\xffb", "a\uFFFDb"},
		{"a long one is cut between characters", strings.Repeat("é", 40), strings.Repeat("é", 32)},
		{"a long one that is cut within a character", strings.Repeat("漢", 40), strings.Repeat("漢", 21)},
		{"a long one of NUL", strings.Repeat("\x00", 100), strings.Repeat("\uFFFD", 21)},
	} {
		t.Run(test.name, func(t *testing.T) {
			enqueueAll(t, pool, testMessage(DestinationMailer))
			entries, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: test.worker, Limits: map[Destination]int{DestinationMailer: 1}})
			if err != nil || len(entries) != 1 {
				t.Fatalf("claimed %v, %v", entries, err)
			}
			if got := getRecord(t, s, entries[0].ID).Worker; got != test.want {
				t.Errorf("the worker is stored as %q, want %q", got, test.want)
			}
		})
	}
}

// TestTextsOfAnySort settles with texts that Postgres does not take as they are.
func TestTextsOfAnySort(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	for _, test := range []struct{ name, text, want string }{
		{"plain", "refused", "refused"},
		{"SQL and quotes", `'; DROP TABLE outbox_queue; -- "\`, `'; DROP TABLE outbox_queue; -- "\`},
		{"NUL", "a\x00b", "a\uFFFDb"},
		{"not UTF-8", "a\xff\xfe\x80b", "a\uFFFDb"},
		{"five megabytes", strings.Repeat("x", 5<<20), strings.Repeat("x", maxText)},
		{"five megabytes, cut within a character", strings.Repeat("漢", 5<<20/3), strings.Repeat("漢", maxText/3)},
		{"five megabytes of NUL", strings.Repeat("\x00", 5<<20), strings.Repeat("\uFFFD", maxText/3)},
		{"five megabytes that are not UTF-8", strings.Repeat("\xff", 5<<20), "\uFFFD"},
	} {
		t.Run(test.name, func(t *testing.T) {
			entry := claimOne(t, pool, testMessage(DestinationPayments))
			if err := s.MarkRetry(t.Context(), entry.Claim, test.text, someDay); err != nil {
				t.Error(err)
			}
			claim := claimAgain(t, s, entry.ID)
			if err := s.MarkOutcomeUnknown(t.Context(), claim, test.text, someDay); err != nil {
				t.Error(err)
			}
			if err := s.MarkFailed(t.Context(), claim, test.text); err != nil {
				t.Error(err)
			}
			if record := getRecord(t, s, entry.ID); record.LastFailure != test.want || record.RemoteRef != test.want {
				t.Errorf("stored %.40q (%d bytes) and %.40q (%d bytes), want %.40q (%d bytes)",
					record.LastFailure, len(record.LastFailure), record.RemoteRef, len(record.RemoteRef), test.want, len(test.want))
			}
			if err := s.Requeue(t.Context(), entry.ID, test.text); err != nil {
				t.Error(err)
			}
			if err := s.Cancel(t.Context(), entry.ID, test.text); err != nil {
				t.Error(err)
			}
		})
	}
}

// claimAgain claims the row, whenever it is due.
func claimAgain(t *testing.T, s *Store, id OutboxID) Claim {
	t.Helper()
	entries, err := s.ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationPayments: 10}, At: laterDay})
	if err != nil || len(entries) != 1 || entries[0].ID != id {
		t.Fatalf("claimed %v, %v", entries, err)
	}
	return entries[0].Claim
}

func FuzzCleanText(f *testing.F) {
	for _, s := range []string{"", "plain", "\x00\x00\x00\x00", "漢字漢字", "a\xe6\xbc", "\xff\x00\xff\x00"} {
		f.Add(s, 8)
	}
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 8 || limit > 1<<16 {
			t.Skip()
		}
		got := cleanText(s, limit)
		if len(got) > limit || !storableText(got) {
			t.Errorf("cleanText(%q, %d) = %q", s, limit, got)
		}
		if len(s) <= limit && storableText(s) && got != s {
			t.Errorf("cleanText(%q, %d) = %q, but nothing was wrong with it", s, limit, got)
		}
		if s != "" && got == "" && !utf8.RuneStart(s[0]) {
			t.Errorf("nothing is left of %q", s)
		}
		if name := workerName(s); s != "" && name == "" || len(name) > maxWorker || !storableText(name) {
			t.Errorf("workerName(%q) = %q", s, name)
		}
	})
}

// TestClaimDuePassesOverLockedRows fails by the lock timeout when a claim waits.
func TestClaimDuePassesOverLockedRows(t *testing.T) {
	pool := testPool(t)
	for name, at := range map[string]time.Time{"ready rows": {}, "rows that have come due": someDay} {
		t.Run(name, func(t *testing.T) {
			removeRows(t, pool)
			ids := enqueueAll(t, pool, testMessage(DestinationMailer).At(at), testMessage(DestinationMailer).At(at), testMessage(DestinationMailer).At(at))
			locker, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer locker.Rollback(context.WithoutCancel(t.Context()))
			execSQL(t, locker, "SELECT 1 FROM outbox_queue WHERE outbox_id = $1 FOR UPDATE", ids[0].String())
			claimer := impatientConn(t, pool.Config().ConnConfig)
			entries, err := New(claimer, Options{}).ClaimDue(t.Context(), ClaimRequest{WorkerID: "w", Limits: map[Destination]int{DestinationMailer: 2}, At: laterDay})
			if err != nil {
				t.Fatal(err)
			}
			wantIDs(t, entryIDs(entries), ids[1], ids[2])
		})
	}
}

// impatientConn is a connection whose statements fail where they wait for a
// lock that nobody is about to release.
func impatientConn(t *testing.T, config *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	config = config.Copy()
	config.RuntimeParams["lock_timeout"] = "2s"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// TestTheClockRunsWithinACallersTransaction tells the present from now(), which
// is the time that the transaction began at.
func TestTheClockRunsWithinACallersTransaction(t *testing.T) {
	pool := testPool(t)
	inTx(t, pool, Options{}, func(tx pgx.Tx, box *Tx) {
		begun := queryOne[time.Time](t, tx, "SELECT now()")
		placed := mustEnqueue(t, box, testMessage(DestinationMetrics), testMessage(DestinationPayments), testMessage(DestinationMailer))
		entries := claimAll(t, box.Store, 1)
		if err := errors.Join(
			box.MarkFailed(t.Context(), entries[0].Claim, ""),
			box.MarkOutcomeUnknown(t.Context(), entries[1].Claim, "", time.Time{}),
		); err != nil {
			t.Fatal(err)
		}
		metrics, payments, mailer := getRecord(t, box.Store, placed[0].ID), getRecord(t, box.Store, placed[1].ID), getRecord(t, box.Store, placed[2].ID)
		for name, at := range map[string]time.Time{
			"the expiry":        metrics.ExpiresAt.Add(-metricsPolicy.expires),
			"the end":           metrics.CompletedAt,
			"the claim":         mailer.ClaimedAt,
			"the unknown":       payments.UnknownSince,
			"the next question": payments.NextAttemptAt,
		} {
			if !at.After(begun) {
				t.Errorf("%s has the time that the transaction began at", name)
			}
		}
	})
}

// claimCallFor is a claim of everything that is due.
func claimCallFor(t *testing.T, limit int) claimCall {
	t.Helper()
	limits := make(map[Destination]int)
	for _, d := range allDestinations() {
		limits[d] = limit
	}
	call, err := ClaimRequest{WorkerID: "w", Limits: limits}.call()
	if err != nil {
		t.Fatal(err)
	}
	return call
}

func claimCalled(t *testing.T, s *Store, call claimCall) []OutboxID {
	t.Helper()
	rows, err := s.backend.claimDue(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	return entryIDs(decoded(inOrder(rows)))
}

// TestClaimBehindAMark leaves ready rows up to the mark, and takes those that have
// come due wherever they stand.
func TestClaimBehindAMark(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := enqueueAll(t, pool, testMessage(DestinationMailer), testMessage(DestinationMailer), testMessage(DestinationMailer), testMessage(DestinationLedger))
	execSQL(t, pool, "UPDATE outbox_queue SET next_attempt_at = $2 WHERE outbox_id = $1", ids[0].String(), longAgo)
	call := claimCallFor(t, 10)
	call.marks[slices.Index(call.destinations, string(DestinationMailer))] = ids[1]
	wantIDs(t, claimCalled(t, s, call), ids[0], ids[2], ids[3])
	wantIDs(t, claimCalled(t, s, claimCallFor(t, 10)), ids[1])
}

// TestClaimLeavesLimitKeysOut has rows of one meter that are not to be claimed.
func TestClaimLeavesLimitKeysOut(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := enqueueAll(t, pool, testMessage(DestinationMetrics), testMessage(DestinationMetrics), testMessage(DestinationMetrics), testMessage(DestinationMailer), change("a", 1))
	for i, key := range []string{"x", "y", "x"} {
		execSQL(t, pool, "UPDATE outbox_queue SET limit_key = $2 WHERE outbox_id = $1", ids[i].String(), key)
	}
	execSQL(t, pool, "UPDATE outbox_queue SET next_attempt_at = $2 WHERE outbox_id = $1", ids[2].String(), longAgo)
	execSQL(t, pool, "UPDATE outbox_queue SET limit_key = 'x' WHERE outbox_id = ANY ($1)", idArray(ids[3:]))
	call := claimCallFor(t, 10)
	call.leftOut = []string{"metrics/x", "stock/x"}
	wantIDs(t, claimCalled(t, s, call), ids[1], ids[3])
	wantIDs(t, claimCalled(t, s, claimCallFor(t, 10)), ids[0], ids[2], ids[4])
}

// TestClaimLeavesRowsWithoutALimitKeyOut has rows from before there were limit keys,
// each by the lane in which it stands. An empty value has a key that is not empty.
func TestClaimLeavesRowsWithoutALimitKeyOut(t *testing.T) {
	pool := testPool(t)
	s := New(pool, Options{})
	ids := enqueueAll(t, pool, testMessage(DestinationMetrics), testMessage(DestinationMetrics), ToMetrics(UsageSample{}), change("a", 1), change("b", 1), change("b", 2))
	execSQL(t, pool, "UPDATE outbox_queue SET limit_key = NULL WHERE outbox_id = ANY ($1)", idArray(ids[:2]))
	execSQL(t, pool, "UPDATE outbox_queue SET next_attempt_at = $2 WHERE outbox_id = $1", ids[1].String(), longAgo)
	execSQL(t, pool, "UPDATE outbox_queue SET limit_key = 'x' WHERE outbox_id = $1", ids[4].String())
	call := claimCallFor(t, 10)
	call.leftOut = []string{"metrics/", "stock/"}
	wantIDs(t, claimCalled(t, s, call), ids[2], ids[4])
	wantIDs(t, claimCalled(t, s, claimCallFor(t, 10)), ids[0], ids[1], ids[3])
}
