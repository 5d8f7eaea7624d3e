package generator_test

import (
	"context"
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/shopspring/decimal"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	names "github.com/outboxgen/outboxgen/testdata/golden/names/want"
	types "github.com/outboxgen/outboxgen/testdata/golden/types/want"
)

var queryModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

func connect(t *testing.T, url string, mode pgx.QueryExecMode) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The context of a test is over when its cleanups run.
		if err := conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// samplePayloads has one of every payload of the theme types that is not
// deprecated, with a value in every field that is not.
func samplePayloads() []types.ArchivePayload {
	id := uuid.MustParse("0193a3c8-7d2e-7cc0-8b1e-6f2f7f3c9a01")
	at := time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC)
	date := types.Date{Year: 2026, Month: time.February, Day: 28}
	length := types.Duration(90 * time.Second)
	price := decimal.RequireFromString("1234567890123456789.01")
	huge, _ := new(big.Int).SetString("-170141183460469231731687303715884105728", 10)
	raw := json.RawMessage(`{"a":[1.10,"<é>"]}`)
	text, yes, i32, i64, u64, float := "a \"b\" é", true, int32(-7), int64(math.MinInt64), uint64(math.MaxUint64), 0.1
	green, part := types.ColourDarkGreen, types.SecretPart{Pin: "1234", Plain: 1}
	leaf := types.Tree{Label: "leaf"}
	return []types.ArchivePayload{
		types.Scalars{
			AString: text, ABool: yes, AInt32: i32, AInt64: i64, AUint64: u64, AFloat64: float, AUUID: id, ATime: at,
			ADate: date, ADuration: length, ADecimal: price, ABigint: huge, ABytes: []byte{0, 255}, AJSON: raw,
		},
		types.Optionals{
			AnString: &text, AnBool: &yes, AnInt32: &i32, AnInt64: &i64, AnUint64: &u64, AnFloat64: &float, AnUUID: &id,
			AnTime: &at, AnDate: &date, AnDuration: &length, AnDecimal: &price, AnBigint: huge, AnBytes: []byte{}, AnJSON: raw,
			AColour: &green, APart: &part, AList: []string{}, AMap: map[string]string{},
		},
		types.Optionals{},
		types.Lists{
			OfString: []string{text}, OfBool: []bool{yes}, OfInt32: []int32{i32}, OfInt64: []int64{i64}, OfUint64: []uint64{u64},
			OfFloat64: []float64{float}, OfUUID: []uuid.UUID{id}, OfTime: []time.Time{at}, OfDate: []types.Date{date},
			OfDuration: []types.Duration{length}, OfDecimal: []decimal.Decimal{price}, OfBigint: []*big.Int{huge},
			OfBytes: [][]byte{{1}, {}}, OfJSON: []json.RawMessage{raw},
		},
		types.Maps{
			OfString: map[string]string{"": text}, OfBool: map[string]bool{"k": yes}, OfInt32: map[string]int32{"k": i32},
			OfInt64: map[string]int64{"k": i64}, OfUint64: map[string]uint64{"k": u64}, OfFloat64: map[string]float64{"k": float},
			OfUUID: map[string]uuid.UUID{"k": id}, OfTime: map[string]time.Time{"k": at}, OfDate: map[string]types.Date{"k": date},
			OfDuration: map[string]types.Duration{"k": length}, OfDecimal: map[string]decimal.Decimal{"k": price},
			OfBigint: map[string]*big.Int{"k": huge}, OfBytes: map[string][]byte{"k": {1}}, OfJSON: map[string]json.RawMessage{"k": raw},
		},
		types.Nested{
			Colour:  types.ColourWhite,
			Colours: types.ColourSet{All: []types.Colour{types.ColourRed}, Named: map[string]types.Colour{"k": green}},
			Tree:    types.Tree{Label: "root", Children: []types.Tree{leaf}, Twin: &leaf, ByName: map[string]types.Tree{"k": leaf}},
			Matrix:  [][]float64{{1, 0.5}, {}},
			Groups:  map[string][]map[string]types.Tree{"k": {{"k": leaf}}},
			Parts:   []types.SecretPart{part},
		},
		types.Quoted{Small: i32, Large: 9007199254740993, Unsigned: u64, Ratio: float, Maybe: &i64, Many: []uint64{u64}},
		types.Checked{
			Name: "ab", Code: "AB`1", Count: 10, Total: -5, Serial: u64, Share: 0.5, Owner: id, At: at,
			Price: decimal.RequireFromString("0.01"), Huge: big.NewInt(1), Blob: []byte{1}, Tags: []string{"x"},
			Labels: map[string]string{"k": "v"}, Limit: &[]int32{1}[0],
		},
		types.Secrets{
			Token: text, Spare: &text, Keys: [][]byte{{1}}, ByName: map[string]string{"k": text}, Part: part,
			Parts: map[string][]types.SecretPart{"k": {part}}, Open: text,
		},
		types.GivenName{New: text},
	}
}

func TestEveryTypeOnPostgres(t *testing.T) {
	url := pgtest.Database(t)
	if err := types.Migrate(t.Context(), connect(t, url, pgx.QueryExecModeCacheStatement)); err != nil {
		t.Fatal(err)
	}
	for _, mode := range queryModes {
		t.Run(mode.String(), func(t *testing.T) {
			conn := connect(t, url, mode)
			box := types.New(conn, types.Options{})
			tenant := uuid.New()
			seen := time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC)
			id := types.CommandID("command in mode " + mode.String())
			full := types.NewCommand(id, tenant, "it's", math.MinInt64, math.MinInt32, true, seen, types.Date{Year: 9999, Month: 12, Day: 31}).
				WithParentID(tenant).WithNote("").WithContract(0).WithPriority(0).WithArchived(true).WithSeenAt(seen).
				WithDueOn(types.Date{Year: 1, Month: 1, Day: 1})
			sparse := types.NewCommand(id, uuid.Nil, "", 0, 0, false, seen, types.Date{Year: 2026, Month: 1, Day: 1})

			payloads := samplePayloads()
			var messages []types.Message
			for _, payload := range payloads {
				messages = append(messages, types.ToArchive(payload))
			}
			err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				if _, err := box.With(tx).Enqueue(t.Context(), full, messages...); err != nil {
					return err
				}
				_, err := box.With(tx).Enqueue(t.Context(), sparse, types.ToArchive(types.GivenName{New: "sparse"}))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			records, err := box.ListForCommand(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if len(records) != len(payloads)+1 {
				t.Fatalf("%d rows, want %d", len(records), len(payloads)+1)
			}

			yes, none, low, zero := true, "", int32(0), int64(0)
			first := types.Date{Year: 1, Month: 1, Day: 1}
			wantFull := types.Columns{
				TenantID: tenant, Region: "it's", Account: math.MinInt64, Shard: math.MinInt32, Urgent: true, BookedAt: seen,
				BookedOn: types.Date{Year: 9999, Month: 12, Day: 31}, ParentID: &tenant, Note: &none, Contract: &zero,
				Priority: &low, Archived: &yes, SeenAt: &seen, DueOn: &first,
			}
			no, note, priority := false, "none", int32(3)
			due := types.Date{Year: 2026, Month: 1, Day: 31}
			wantSparse := types.Columns{
				BookedAt: seen, BookedOn: types.Date{Year: 2026, Month: 1, Day: 1},
				Note: &note, Priority: &priority, Archived: &no, DueOn: &due, // the defaults
			}
			for i, record := range records {
				if i == len(payloads) {
					if diff := cmp.Diff(wantSparse, record.Columns); diff != "" {
						t.Errorf("columns of the sparse command (-want +got):\n%s", diff)
					}
					continue
				}
				if diff := cmp.Diff(wantFull, record.Columns); diff != "" {
					t.Errorf("columns (-want +got):\n%s", diff)
				}
				if record.CommandID != id || record.DecodeErr != nil {
					t.Errorf("command %q, undecodable: %v", record.CommandID, record.DecodeErr)
					continue
				}
				stored, err := payloads[i].MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				read, err := record.Payload.MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				if string(record.Raw) != string(stored) || string(read) != string(stored) {
					t.Errorf("%T was enqueued as %s, is stored as %s and read as %s", payloads[i], stored, record.Raw, read)
				}
			}
		})
	}
}

func TestColumnsThatPostgresWouldRefuse(t *testing.T) {
	url := pgtest.Database(t)
	conn := connect(t, url, pgx.QueryExecModeCacheStatement)
	if err := types.Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	var (
		now   = time.Now()
		date  = types.Date{Year: 2026, Month: 1, Day: 1}
		late  = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
		wrong = types.Date{Year: 2026, Month: 2, Day: 29}
		fine  = types.NewCommand("c", uuid.Nil, "", 0, 0, false, now, date)
	)
	with := func(id types.CommandID, region string, at time.Time, on types.Date) types.Command {
		return types.NewCommand(id, uuid.Nil, region, 0, 0, false, at, on)
	}
	tests := []struct {
		behaviour string
		command   types.Command
		want      string
	}{
		{"a command without an id", with("", "", now, date), "the command has no id"},
		{"an id with NUL", with("a\x00", "", now, date), "the command's id holds NUL"},
		{"an id that no index takes", with(types.CommandID(strings.Repeat("a", 1025)), "", now, date), "the command's id is longer than 1024 bytes"},
		{"a text that is not UTF-8", with("a", "\xff", now, date), "the column region holds NUL or is not UTF-8"},
		{"a text that no index takes", with("a", strings.Repeat("a", 1025), now, date), "the column region is longer than 1024 bytes"},
		{"a time after the last year", with("a", "", late, date), "the column booked_at must lie within"},
		{"a date that does not exist", with("a", "", now, wrong), "the column booked_on is no date"},
		{"an optional text with NUL", fine.WithNote("\x00"), "the column note holds NUL"},
		{"an optional time after the last year", fine.WithSeenAt(late), "the column seen_at must lie within"},
		{"an optional date that does not exist", fine.WithDueOn(wrong), "the column due_on is no date"},
	}
	for _, test := range tests {
		t.Run(test.behaviour, func(t *testing.T) {
			err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				box := types.New(conn, types.Options{}).With(tx)
				_, err := box.Enqueue(t.Context(), test.command, types.ToArchive(types.GivenName{}))
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %q in it", err, test.want)
				}
				// The transaction can be used further.
				_, err = tx.Exec(t.Context(), "SELECT 1")
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNamesThatBiteOnPostgres(t *testing.T) {
	conn := connect(t, pgtest.Database(t), pgx.QueryExecModeCacheStatement)
	if _, err := conn.Exec(t.Context(), `CREATE SCHEMA "Üser"`); err != nil {
		t.Fatal(err)
	}
	if err := names.Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	box := names.New(conn, names.Options{})
	id := names.CommandID(uuid.New())
	want := names.Columns{Type: "t", ID: 1, Time: time.UnixMicro(1), Case: names.Date{Year: 2026, Month: 1, Day: 1}}
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		_, err := box.With(tx).Enqueue(t.Context(), names.NewCommand(id, want.Type, want.ID, want.Time, want.Case),
			names.ToSMSGate(names.Select{W: "w", True: true}))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := box.ClaimDue(t.Context(), names.ClaimRequest{
		WorkerID: "w", Limits: map[names.Destination]int{names.DestinationSMSGate: 1},
	})
	if err != nil || len(entries) != 1 {
		t.Fatalf("claimed %v, %v", entries, err)
	}
	quote := "it's \\ `raw`" // the default
	want.Quote = &quote
	if diff := cmp.Diff(want, entries[0].Columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	if entries[0].CommandID != id || entries[0].IdempotencyKey != "select:w:true" {
		t.Errorf("command %s, key %s", entries[0].CommandID, entries[0].IdempotencyKey)
	}
	if err := box.MarkCompleted(t.Context(), entries[0].Claim, ""); err != nil {
		t.Error(err)
	}
	if check, err := box.CheckRows(t.Context()); err != nil || check != (names.RowCheck{}) {
		t.Errorf("rows: %+v, %v", check, err)
	}
}
