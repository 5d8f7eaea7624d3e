package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"
)

// The payloads of these tests are in everything_test.go, which the generator
// makes of testdata/everything.yaml.

var (
	anID      = uuid.MustParse("018f4e5a-7b1c-7def-8123-456789abcdef")
	anInstant = time.Date(2026, time.November, 30, 12, 30, 45, 123456789, time.UTC)
	aDate     = Date{2026, time.November, 30}
)

func ptr[T any](v T) *T { return &v }

func bigint(s string) *big.Int {
	i, ok := new(big.Int).SetString(s, 10)
	if !ok {
		panic("not a number: " + s)
	}
	return i
}

// sameValue compares payloads by what they mean: decimals and bigints are
// structs with parts of their own.
var sameValue = cmp.Options{
	cmp.Comparer(func(x, y decimal.Decimal) bool { return x.Equal(y) }),
	cmp.Comparer(func(x, y *big.Int) bool { return x == y || x != nil && y != nil && x.Cmp(y) == 0 }),
}

func someScalars() Scalars {
	return Scalars{
		Text: "text", Bool: true, Int32: 32, Int64: 64, Uint64: 65, Float64: 0.5, UUID: anID, Time: anInstant,
		Date: aDate, Duration: Duration(90 * time.Second), Decimal: decimal.RequireFromString("12.34"),
		Bigint: bigint("123456789012345678901234567890"), Bytes: []byte{0, 255}, Raw: json.RawMessage(`{"a":[1,null]}`),
		Colour: ColourSeaGreen, Span: Span{From: aDate, To: &aDate},
		QuotedInt32: -1, QuotedInt64: -2, QuotedUint64: 3, QuotedFloat64: 4.25,
	}
}

func withScalars(change func(*Scalars)) Scalars {
	s := someScalars()
	change(&s)
	return s
}

// someSecrets holds the word tiger wherever a secret can stand.
func someSecrets() Secrets {
	vault := Vault{Pin: "tiger", Hint: "hint"}
	return Secrets{
		Public: "public", Text: "tiger", Maybe: ptr("tiger"), List: []string{"tiger"},
		Map: map[string]string{"tiger": "tiger"}, Object: Span{From: aDate},
		Vault: vault, Vaults: []Vault{vault}, VaultMap: map[string]Vault{"key": vault}, MaybeVault: &vault,
	}
}

func TestWhatIsWrittenReadsBack(t *testing.T) {
	node := Node{Value: 1, Next: &Node{Value: 2}, Children: []Node{{Value: 3}, {Value: 4, Children: []Node{}}}, Named: map[string]Node{"a b": {Value: 5}}}
	tests := map[string]Payload{
		"scalars": someScalars(),
		"least numbers": withScalars(func(s *Scalars) {
			s.Int32, s.Int64, s.Uint64, s.Float64 = math.MinInt32, math.MinInt64, 0, -math.MaxFloat64
			s.QuotedInt32, s.QuotedInt64, s.QuotedFloat64 = math.MinInt32, math.MinInt64, -math.MaxFloat64
		}),
		"greatest numbers": withScalars(func(s *Scalars) {
			s.Int32, s.Int64, s.Uint64, s.Float64 = math.MaxInt32, math.MaxInt64, math.MaxUint64, math.MaxFloat64
			s.QuotedInt32, s.QuotedInt64, s.QuotedUint64 = math.MaxInt32, math.MaxInt64, math.MaxUint64
		}),
		"the smallest fraction":      withScalars(func(s *Scalars) { s.Float64 = math.SmallestNonzeroFloat64 }),
		"negative zero":              withScalars(func(s *Scalars) { s.Float64 = math.Copysign(0, -1) }),
		"text that JSON escapes":     withScalars(func(s *Scalars) { s.Text = "\x00\x01\b\f\n\r\t\"\\/\u007f" }),
		"text that HTML escapes":     withScalars(func(s *Scalars) { s.Text = "<a href='x'>&\u2028\u2029</a>" }),
		"text beyond ASCII":          withScalars(func(s *Scalars) { s.Text = "žluťoučký 🐎 \U0010FFFF \uFFFD" }),
		"a time in another zone":     withScalars(func(s *Scalars) { s.Time = anInstant.In(time.FixedZone("", 5400)).UTC() }),
		"the first and last year":    withScalars(func(s *Scalars) { s.Time, s.Date = time.Time{}, Date{9999, time.December, 31} }),
		"a negative duration":        withScalars(func(s *Scalars) { s.Duration = math.MinInt64 }),
		"decimals with an exponent":  withScalars(func(s *Scalars) { s.Decimal = decimal.New(-15, 300) }),
		"no bytes":                   withScalars(func(s *Scalars) { s.Bytes = []byte{} }),
		"a JSON null":                withScalars(func(s *Scalars) { s.Raw = nil }),
		"an undeclared colour":       withScalars(func(s *Scalars) { s.Colour = "mauve" }),
		"optionals that are not set": Optionals{},
		"optionals that are zero": Optionals{
			Text: ptr(""), Bool: ptr(false), Int32: ptr(int32(0)), Int64: ptr(int64(0)), Uint64: ptr(uint64(0)), Float64: ptr(0.0),
			UUID: ptr(uuid.Nil), Time: ptr(time.Time{}), Date: &aDate, Duration: ptr(Duration(0)), Decimal: &decimal.Decimal{},
			Bigint: new(big.Int), Bytes: []byte{}, Raw: json.RawMessage(`0`), Colour: ptr(Colour("")), Span: &Span{From: aDate},
			Quoted: ptr(int64(0)), List: []string{}, Map: map[string]string{},
		},
		"lists": Lists{
			Strings: []string{"a", ""}, Bools: []bool{true, false}, Int32s: []int32{1, -1}, UUIDs: []uuid.UUID{anID}, Times: []time.Time{anInstant},
			Dates: []Date{aDate}, Durations: []Duration{1}, Decimals: []decimal.Decimal{decimal.New(1, -2)}, Bigints: []*big.Int{bigint("-7")},
			Blobs: [][]byte{{1}, {}}, JSONs: []json.RawMessage{[]byte(`[]`), nil}, Colours: []Colour{ColourRed}, Spans: []Span{{From: aDate}},
			Quoted: []int64{9, 10}, Grid: [][]float64{{1, 2}, {}, {3}}, Maps: []map[string]int64{{"a": 1}, {}},
		},
		"maps": Maps{
			Strings: map[string]string{"": "empty", "\"": "quote", "z": "z", "a": "a"}, Bools: map[string]bool{"a": true},
			Decimals: map[string]decimal.Decimal{"a": decimal.New(1, 0)}, JSONs: map[string]json.RawMessage{"a": []byte(`"x"`)},
			Colours: map[string]Colour{"a": ColourRed}, Spans: map[string]Span{"a": {From: aDate}},
			Lists: map[string][]string{"a": {"b"}, "b": {}}, Maps: map[string]map[string]bool{"a": {"b": true}, "b": {}},
		},
		"types that refer to themselves": Trees{Root: node},
		"secrets":                        someSecrets(),
		"no fields":                      Empty{},
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			data, err := want.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if !json.Valid(data) {
				t.Fatalf("not JSON: %s", data)
			}
			got, err := readLike(want, data)
			if err != nil {
				t.Fatalf("%v\n%s", err, data)
			}
			if diff := cmp.Diff(want, got, sameValue); diff != "" {
				t.Errorf("what was read differs from what was written (-want +got):\n%s\n%s", diff, data)
			}
			again, err := got.MarshalJSON()
			if err != nil || !bytes.Equal(again, data) {
				t.Errorf("written again: %s, %v\nat first:      %s", again, err, data)
			}
		})
	}
}

// readLike reads data as a payload of the type of p.
func readLike(p Payload, data []byte) (Payload, error) {
	switch p.(type) {
	case Empty:
		return readPayload[Empty](data)
	case Lists:
		return readPayload[Lists](data)
	case Maps:
		return readPayload[Maps](data)
	case Optionals:
		return readPayload[Optionals](data)
	case Rules:
		return readPayload[Rules](data)
	case Scalars:
		return readPayload[Scalars](data)
	case Secrets:
		return readPayload[Secrets](data)
	case Trees:
		return readPayload[Trees](data)
	}
	return nil, errors.New("the test does not know the type of the payload")
}

func TestWireForm(t *testing.T) {
	tests := map[string]struct {
		payload Payload
		want    string
	}{
		"every scalar": {someScalars(), `{"text":"text","bool":true,"int32":32,"int64":64,"uint64":65,"float64":0.5,` +
			`"uuid":"018f4e5a-7b1c-7def-8123-456789abcdef","time":"2026-11-30T12:30:45.123456789Z","date":"2026-11-30","duration":"1m30s",` +
			`"decimal":"12.34","bigint":"123456789012345678901234567890","bytes":"AP8=","json":{"a":[1,null]},"colour":"sea green",` +
			`"span":{"from":"2026-11-30","to":"2026-11-30"},"quoted_int32":"-1","quoted_int64":"-2","quoted_uint64":"3","quoted_float64":"4.25"}`},
		"required values that are nil": {Lists{}, `{"strings":[],"bools":[],"int32s":[],"uuids":[],"times":[],"dates":[],"durations":[],"decimals":[],` +
			`"bigints":[],"blobs":[],"jsons":[],"colours":[],"spans":[],"quoted":[],"grid":[],"maps":[]}`},
		"items that are nil": {Lists{Blobs: [][]byte{nil}, JSONs: []json.RawMessage{nil}, Grid: [][]float64{nil}, Maps: []map[string]int64{nil}},
			`{"strings":[],"bools":[],"int32s":[],"uuids":[],"times":[],"dates":[],"durations":[],"decimals":[],` +
				`"bigints":[],"blobs":[""],"jsons":[null],"colours":[],"spans":[],"quoted":[],"grid":[[]],"maps":[{}]}`},
		"optional values that are nil": {Optionals{}, `{}`},
		"optional values that are empty": {Optionals{Bytes: []byte{}, List: []string{}, Map: map[string]string{}},
			`{"bytes":"","list":[],"map":{}}`},
		"keys in their order": {Optionals{Map: map[string]string{"b": "2", "a": "1", "B": "0", "ä": "3"}},
			`{"map":{"B":"0","a":"1","b":"2","ä":"3"}}`},
		"a time in another zone": {Optionals{Time: ptr(time.Date(2026, 1, 1, 1, 0, 0, 0, time.FixedZone("", 7200)))},
			`{"time":"2025-12-31T23:00:00Z"}`},
		"equal decimals alike": {Lists{Decimals: []decimal.Decimal{decimal.RequireFromString("1.50"), decimal.RequireFromString("15e-1"), decimal.New(2, 3)}},
			`{"strings":[],"bools":[],"int32s":[],"uuids":[],"times":[],"dates":[],"durations":[],"decimals":["1.5","1.5","2000"],` +
				`"bigints":[],"blobs":[],"jsons":[],"colours":[],"spans":[],"quoted":[],"grid":[],"maps":[]}`},
		"JSON compacted and otherwise as it is": {Optionals{Raw: json.RawMessage(" { \"b\" : 1.00e+2 , \"a\":[ \"<&>\u2028\\u003c\" , 12345678901234567890 ] }\n")},
			"{\"json\":{\"b\":1.00e+2,\"a\":[\"<&>\u2028\\u003c\",12345678901234567890]}}"},
		"no escapes but those of JSON": {Optionals{Text: ptr("<&>\u2028/\x7f\x1f\"")}, "{\"text\":\"<&>\u2028/\x7f\\u001f\\\"\"}"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := test.payload.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestFloatsAreWrittenLikeEncodingJSON(t *testing.T) {
	for _, f := range []float64{0, 1, -1, 0.1, 1e-6, 9.99e-7, 1e-9, 1e20, 1e21, 1.5e21, -1e-10, 123456.789, math.MaxFloat64, math.SmallestNonzeroFloat64, math.Copysign(0, -1)} {
		want, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var w jsonWriter
		encodeFloat64(f, &w)
		if string(w.buf) != string(want) {
			t.Errorf("got %s, want %s", w.buf, want)
		}
	}
}

func TestReadingIsLenientWhereOthersWrite(t *testing.T) {
	tests := map[string]struct {
		data string
		want Optionals
	}{
		"unknown fields are passed over":       {`{"new":{"text":"x"},"text":"a","newer":[1]}`, Optionals{Text: ptr("a")}},
		"null is the same as none":             {`{"text":null,"bigint":null,"list":null,"json":null,"span":null}`, Optionals{}},
		"of equal names the last counts":       {`{"text":"a","text":"b"}`, Optionals{Text: ptr("b")}},
		"space between tokens":                 {" {\t\"text\" :\r\n\"a\" , \"list\" : [ \"b\" , \"c\" ] } ", Optionals{Text: ptr("a"), List: []string{"b", "c"}}},
		"escapes in names and texts":           {`{"\u0074ext":"\u00e4\ud83d\ude00\/\"\\\b\f\n\r\t"}`, Optionals{Text: ptr("ä😀/\"\\\b\f\n\r\t")}},
		"names differ in case":                 {`{"TEXT":"a","Text":"b"}`, Optionals{}},
		"a decimal that is a number":           {`{"decimal":1.5e2}`, Optionals{Decimal: ptr(decimal.New(150, 0))}},
		"a bigint that is a number":            {`{"bigint":-12345678901234567890}`, Optionals{Bigint: bigint("-12345678901234567890")}},
		"a time with an offset":                {`{"time":"2026-11-30T13:30:45.123456789+01:00"}`, Optionals{Time: &anInstant}},
		"JSON as it is":                        {`{"json": [ 1.0 ]}`, Optionals{Raw: json.RawMessage(`[ 1.0 ]`)}},
		"a float without a fraction":           {`{"float64":1}`, Optionals{Float64: ptr(1.0)}},
		"a number too small becomes zero":      {`{"float64":1e-400}`, Optionals{Float64: ptr(0.0)}},
		"an entry of equal keys, the last one": {`{"map":{"a":"1","a":"2"}}`, Optionals{Map: map[string]string{"a": "2"}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got Optionals
			if err := got.UnmarshalJSON([]byte(test.data)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, sameValue); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTimesAreReadInUTC(t *testing.T) {
	var got Optionals
	if err := got.UnmarshalJSON([]byte(`{"time":"2026-11-30T13:30:45+01:00"}`)); err != nil {
		t.Fatal(err)
	}
	if location := got.Time.Location(); location != time.UTC {
		t.Errorf("the time is in %s", location)
	}
}

func TestReadErrorsSayWhereAndNeverWhat(t *testing.T) {
	const wide = "must be a whole number from -9223372036854775808 to 9223372036854775807"
	tests := map[string]struct {
		into Payload
		data string
		want string
	}{
		"no text":                       {Optionals{}, ``, "must be well-formed JSON: byte 0"},
		"two texts":                     {Optionals{}, `{} {}`, "must be well-formed JSON: byte 3"},
		"a text that ends early":        {Optionals{}, `{"text":"tiger`, "must be well-formed JSON: byte 14"},
		"a comma too many":              {Optionals{}, `{"text":"tiger",}`, "must be well-formed JSON: byte 16"},
		"bytes that are no UTF-8":       {Optionals{}, "{\"text\":\"tiger\xff\"}", "must be well-formed JSON: byte 16"},
		"no object":                     {Optionals{}, `["tiger"]`, "must be an object"},
		"null":                          {Optionals{}, `null`, "must be an object"},
		"null for no fields":            {Empty{}, `null`, "must be an object"},
		"a missing field":               {Trees{}, `{}`, "root must be present"},
		"a missing field in an object":  {Trees{}, `{"root":{}}`, "root.value must be present"},
		"a required field that is null": {Trees{}, `{"root":{"value":null}}`, "root.value must be present"},
		"an object that is none":        {Trees{}, `{"root":"tiger"}`, "root must be an object"},
		"a place in nested values":      {Trees{}, `{"root":{"value":1,"children":[{"value":1},{"value":2,"named":{"a b":{"value":true}}}]}}`, `root.children[1].named["a b"].value must be a whole number from -2147483648 to 2147483647`},
		"a string that is none":         {Optionals{}, `{"text":1}`, "text must be a string of valid Unicode"},
		"half of a surrogate pair":      {Optionals{}, `{"text":"tiger\ud83d"}`, "text must be a string of valid Unicode"},
		"two first halves":              {Optionals{}, `{"text":"tiger\ud83d\ud83d"}`, "text must be a string of valid Unicode"},
		"a second half alone":           {Optionals{}, `{"text":"tiger\ude00x"}`, "text must be a string of valid Unicode"},
		"a bool that is none":           {Optionals{}, `{"bool":"tiger"}`, "bool must be true or false"},
		"an int32 out of range":         {Optionals{}, `{"int32":2147483648}`, "int32 must be a whole number from -2147483648 to 2147483647"},
		"an int64 out of range":         {Optionals{}, `{"int64":9223372036854775808}`, "int64 " + wide},
		"an int64 with a fraction":      {Optionals{}, `{"int64":1.0}`, "int64 " + wide},
		"an int64 with an exponent":     {Optionals{}, `{"int64":1e3}`, "int64 " + wide},
		"a uint64 below zero":           {Optionals{}, `{"uint64":-1}`, "uint64 must be a whole number from 0 to 18446744073709551615"},
		"a float64 out of range":        {Optionals{}, `{"float64":1e400}`, "float64 must be a number within the range of a float64"},
		"a float64 that is a string":    {Optionals{}, `{"float64":"NaN"}`, "float64 must be a number within the range of a float64"},
		"a uuid that is none":           {Optionals{}, `{"uuid":"tiger"}`, "uuid must be a UUID"},
		"a time that is none":           {Optionals{}, `{"time":"tiger"}`, "time must be a time in RFC 3339 within the years 1 to 9999"},
		"a time after its zone":         {Optionals{}, `{"time":"9999-12-31T23:59:59-01:00"}`, "time must be a time in RFC 3339 within the years 1 to 9999"},
		"a date that does not exist":    {Optionals{}, `{"date":"2026-02-30"}`, "date must be a date such as 2026-11-30, within the years 1 to 9999"},
		"a date of the year 0":          {Optionals{}, `{"date":"0000-01-01"}`, "date " + ruleDate},
		"a duration that is none":       {Optionals{}, `{"duration":"tiger"}`, "duration must be a duration such as 1m30s"},
		"a decimal that is none":        {Optionals{}, `{"decimal":"tiger"}`, "decimal " + ruleDecimal},
		"a decimal with a sign alone":   {Optionals{}, `{"decimal":"-"}`, "decimal " + ruleDecimal},
		"a decimal of a gigabyte":       {Optionals{}, `{"decimal":"1e999999999"}`, "decimal " + ruleDecimal},
		"a decimal beyond its point":    {Optionals{}, `{"decimal":1e-99999}`, "decimal " + ruleDecimal},
		"a decimal of too many digits":  {Optionals{}, `{"decimal":"123e131070"}`, "decimal " + ruleDecimal},
		"a decimal that is true":        {Optionals{}, `{"decimal":true}`, "decimal " + ruleDecimal},
		"a bigint with a fraction":      {Optionals{}, `{"bigint":"1.5"}`, "bigint " + ruleBigint},
		"a bigint with a plus sign":     {Optionals{}, `{"bigint":"+1"}`, "bigint " + ruleBigint},
		"a bigint of too many digits":   {Optionals{}, `{"bigint":"` + strings.Repeat("9", 131073) + `"}`, "bigint " + ruleBigint},
		"bytes that are no base64":      {Optionals{}, `{"bytes":"tiger"}`, "bytes must be a string in base64"},
		"bytes that are a number":       {Optionals{}, `{"bytes":1}`, "bytes must be a string in base64"},
		"an enum that is a number":      {Optionals{}, `{"colour":1}`, "colour must be a string of valid Unicode"},
		"a quoted number unquoted":      {Optionals{}, `{"quoted":1}`, "quoted must be a number written as a string"},
		"a quoted text":                 {Optionals{}, `{"quoted":"tiger"}`, "quoted must be a number written as a string"},
		"a quoted number with a sign":   {Optionals{}, `{"quoted":"+1"}`, "quoted must be a number written as a string"},
		"a quoted fraction":             {Optionals{}, `{"quoted":"1.5"}`, "quoted " + wide},
		"a list that is an object":      {Optionals{}, `{"list":{}}`, "list must be a list"},
		"an item that is null":          {Optionals{}, `{"list":["tiger",null]}`, "list[1] must be a string of valid Unicode"},
		"a map that is a list":          {Optionals{}, `{"map":[]}`, "map must be an object"},
		"an entry of the wrong type":    {Optionals{}, `{"map":{"a":"tiger","b\"":1}}`, `map["b\""] must be a string of valid Unicode`},
		"the first of two errors":       {Optionals{}, `{"int32":"tiger","text":1}`, "text must be a string of valid Unicode"},
		"a key within a secret":         {Secrets{}, `{"public":"","text":"","number":"1","list":[],"map":{"tiger":1}}`, "map must be a string of valid Unicode"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			payload, err := readLike(test.into, []byte(test.data))
			if err == nil {
				t.Fatalf("read %v", payload)
			}
			if err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
			if payload != nil {
				t.Errorf("read %v beside the error", payload)
			}
		})
	}
}

func TestUnmarshalJSONLeavesTheValueOnAnErrorAndOnNull(t *testing.T) {
	for _, data := range []string{`{"text":1}`, `{`, `null`} {
		got := Optionals{Text: ptr("before")}
		err := json.Unmarshal([]byte(data), &got)
		if (err == nil) != (data == "null") {
			t.Errorf("%s: %v", data, err)
		}
		if diff := cmp.Diff(Optionals{Text: ptr("before")}, got, sameValue); diff != "" {
			t.Errorf("%s changed the value (-want +got):\n%s", data, diff)
		}
	}
}

// Callers may marshal payloads, and types of payloads, on their own and within
// structs of theirs.
func TestPayloadsWithinTheCallersJSON(t *testing.T) {
	type envelope struct {
		Payload Scalars
		Vault   *Vault
		Spans   map[string]Span
	}
	want := envelope{someScalars(), &Vault{Pin: "1", Hint: "2"}, map[string]Span{"a": {From: aDate}}}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got envelope
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, sameValue); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatCannotBeWrittenIsAnError(t *testing.T) {
	deep := Node{}
	for range 2 * maxDepth {
		deep = Node{Next: &deep}
	}
	tests := map[string]struct {
		payload Payload
		want    string
	}{
		"text that is no UTF-8":        {Optionals{Text: ptr("a\xff")}, "text must be valid UTF-8"},
		"a key that is no UTF-8":       {Optionals{Map: map[string]string{"a\xff": ""}}, `map["a\xff"] must be valid UTF-8`},
		"an infinite float":            {Optionals{Float64: ptr(math.Inf(-1))}, "float64 must be a finite number"},
		"a float that is no number":    {Lists{Grid: [][]float64{{0}, {0, math.NaN()}}}, "grid[1][1] must be a finite number"},
		"a time after the year 9999":   {Optionals{Time: ptr(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))}, "time must be a time within the years 1 to 9999"},
		"a time before the year 1":     {Optionals{Time: ptr(time.Time{}.Add(-1))}, "time must be a time within the years 1 to 9999"},
		"a date that is not set":       {Maps{Spans: map[string]Span{"a": {}}}, `spans["a"].from ` + ruleDate},
		"a bigint that is nil":         {Lists{Bigints: []*big.Int{nil}}, "bigints[0] " + ruleBigint},
		"a bigint of too many digits":  {Optionals{Bigint: new(big.Int).Lsh(big.NewInt(1), 500_000)}, "bigint " + ruleBigint},
		"a decimal of a gigabyte":      {Optionals{Decimal: ptr(decimal.New(1, 999_999_999))}, "decimal " + ruleDecimal},
		"a decimal beyond its point":   {Optionals{Decimal: ptr(decimal.New(1, -16384))}, "decimal " + ruleDecimal},
		"JSON that is none":            {Optionals{Raw: json.RawMessage(`{"a":}`)}, "json " + ruleJSON},
		"JSON that is empty":           {Optionals{Raw: json.RawMessage{}}, "json " + ruleJSON},
		"JSON that is no UTF-8":        {Optionals{Raw: json.RawMessage("\"\xff\"")}, "json " + ruleJSON},
		"JSON that is nested too deep": {Optionals{Raw: json.RawMessage(strings.Repeat("[", 1001) + strings.Repeat("]", 1001))}, "json " + ruleJSON},
		"a key within a secret":        {Secrets{Map: map[string]string{"tiger": "\xff"}}, "map must be valid UTF-8"},
		"a value that nests too deep":  {Trees{Root: deep}, "root" + strings.Repeat(".next", maxDepth-1) + " " + ruleDepth},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			data, err := test.payload.MarshalJSON()
			if err == nil {
				t.Fatalf("wrote %s", data)
			}
			if err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
			if test.payload.Validate() == nil {
				t.Error("Validate finds nothing wrong with it")
			}
		})
	}
}

// FuzzRead holds reading against hostile bytes, and what is read against being
// written again.
func FuzzRead(f *testing.F) {
	payloads := []Payload{someScalars(), Optionals{}, Lists{}, Maps{}, Trees{}, someSecrets(), Empty{}}
	for _, p := range payloads {
		data, err := p.MarshalJSON()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"map":{"\ud83d\ude00":"a"},"decimal":1e5,"json":[{}],"list":[],"time":"2026-11-30T13:30:45+01:00"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if !wellFormed(data) && json.Valid(data) {
			t.Skip("nested more deeply than is ever written")
		}
		for _, like := range payloads {
			first, err := readLike(like, data)
			if err != nil {
				continue
			}
			written, err := first.MarshalJSON()
			if err != nil {
				t.Fatalf("%T was read and cannot be written: %v", like, err)
			}
			second, err := readLike(like, written)
			if err != nil {
				t.Fatalf("%T was written and cannot be read: %v\n%s", like, err, written)
			}
			again, err := second.MarshalJSON()
			if err != nil || !bytes.Equal(again, written) {
				t.Fatalf("%T changes from one writing to the next: %v\n%s\n%s", like, err, written, again)
			}
		}
	})
}

// FuzzJSON holds the reader of JSON against that of the standard library.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-0.5e+10,true,null,"\u00e4\n"]}`, ` "\ud83d\ude00" `, `[01]`, `[1.]`, `[-]`, `"\x"`, `{"a" 1}`, `nul`, "\"\x1f\"", "\"\xff\"", ``} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, ok := parseText(data, maxReadDepth)
		if want := json.Valid(data) && utf8.Valid(data); ok != want {
			t.Fatalf("well-formed: %v, want %v", ok, want)
		}
		if !ok || text.at(0).kind() != '"' {
			return
		}
		got, ok := text.at(0).content()
		var want string
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatal(err)
		}
		// The standard library reads half of a surrogate pair as U+FFFD.
		if !ok && !strings.ContainsRune(want, utf8.RuneError) || ok && string(got) != want {
			t.Fatalf("got %q, %v, want %q", got, ok, want)
		}
	})
}

// FuzzText writes texts that encoding/json has to read back.
func FuzzText(f *testing.F) {
	for _, seed := range []string{"", "plain", "\"\\\x00\x1f\x7f", "\u2028<>&", "🐎"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		data, err := Optionals{Text: &s}.MarshalJSON()
		if err != nil {
			if utf8.ValidString(s) {
				t.Fatal(err)
			}
			return
		}
		var got struct{ Text string }
		if err := json.Unmarshal(data, &got); err != nil || got.Text != s {
			t.Fatalf("%s reads as %q, %v", data, got.Text, err)
		}
	})
}

func TestDateIsATextAndAColumn(t *testing.T) {
	var scanned Date
	for _, src := range []any{"2026-11-30", time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)} {
		if err := scanned.Scan(src); err != nil || scanned != aDate {
			t.Errorf("scanned %v from %v: %v", scanned, src, err)
		}
	}
	for _, src := range []any{"30.11.2026", nil, 7} {
		if err := scanned.Scan(src); err == nil {
			t.Errorf("scanned %v from %v", scanned, src)
		}
	}
	if value, err := aDate.Value(); err != nil || value != "2026-11-30" {
		t.Errorf("the value is %v, %v", value, err)
	}
	if value, err := (Date{2026, 2, 30}).Value(); err == nil {
		t.Errorf("a date that does not exist has the value %v", value)
	}
}

var sink any

// The figures to hold side by side are those of the payload and of the same
// struct under encoding/json.
func BenchmarkCodec(b *testing.B) {
	type money struct {
		Amount   decimal.Decimal `json:"amount"`
		Currency string          `json:"currency"`
	}
	type line struct {
		SKU      string `json:"sku"`
		Quantity int32  `json:"quantity"`
		Price    money  `json:"price"`
	}
	type confirmation struct {
		OrderID  uuid.UUID         `json:"order_id"`
		Email    string            `json:"email"`
		Lines    []line            `json:"lines"`
		Labels   map[string]string `json:"labels"`
		Note     *string           `json:"note,omitempty"`
		PlacedAt time.Time         `json:"placed_at"`
	}
	payload := OrderConfirmation{OrderID: anID, Email: "someone@example.com", Labels: map[string]string{"channel": "web", "shop": "de"}, PlacedAt: anInstant}
	for range 3 {
		payload.Lines = append(payload.Lines, OrderLine{Sku: "SKU-12345", Quantity: 2, Price: Money{decimal.New(1999, -2), CurrencyEUR}})
	}
	data, err := payload.MarshalJSON()
	if err != nil {
		b.Fatal(err)
	}
	var tagged confirmation
	if err := json.Unmarshal(data, &tagged); err != nil {
		b.Fatal(err)
	}
	again, err := json.Marshal(tagged)
	if err != nil || !cmp.Equal(again, data, cmpopts.EquateEmpty()) {
		b.Fatalf("the two write different bytes: %v\n%s\n%s", err, data, again)
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			sink, _ = payload.MarshalJSON()
		}
	})
	b.Run("encode/encoding-json", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			sink, _ = json.Marshal(tagged)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			sink, _ = readPayload[OrderConfirmation](data)
		}
	})
	b.Run("decode/encoding-json", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			var c confirmation
			_ = json.Unmarshal(data, &c)
			sink = c
		}
	})
	b.Run("validate", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			sink = payload.Validate()
		}
	})
}
