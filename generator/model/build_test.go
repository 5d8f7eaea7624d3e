package model_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/schema"
)

// decode reads a specification whose first line is the fourth of the file.
func decode(t *testing.T, body string) *schema.Spec {
	t.Helper()
	spec, faults := schema.Decode("outbox.yaml", []byte("version: 1\npackage: shop\nout: shop\n"+body))
	if faults.HasErrors() {
		t.Fatalf("the specification has faults of its own:\n%s", faults)
	}
	return spec
}

func build(t *testing.T, body string) *model.Model {
	t.Helper()
	m, faults := model.Build(decode(t, body))
	if faults.HasErrors() {
		t.Fatalf("unexpected faults:\n%s", faults)
	}
	return m
}

// sends routes the payloads to one destination.
func sends(payloads string) string {
	return "\ndestinations:\n  mailer: {accepts: [" + payloads + "], idempotent: true}\n"
}

func TestFaultsOfNames(t *testing.T) {
	tests := []struct {
		behaviour string
		spec      string
		want      string
	}{
		{
			"two payloads give one name",
			"payloads:\n  order.placed: {fields: {}}\n  order_placed: {fields: {}}" + sends("order.placed, order_placed"),
			`outbox.yaml:6:3: error OBX2002: payload "order_placed" gives the Go name OrderPlaced, which payload "order.placed" gives too
    hint: set go_name, such as go_name: OrderPlacedMessage
    outbox.yaml:5:3: payload "order.placed" is here`,
		},
		{
			"a proposal is free itself",
			"payloads:\n  order.placed: {fields: {}}\n  order_placed: {fields: {}}\n  order_placed_message: {fields: {}}" +
				sends("order.placed, order_placed, order_placed_message"),
			`outbox.yaml:6:3: error OBX2002: payload "order_placed" gives the Go name OrderPlaced, which payload "order.placed" gives too
    hint: set go_name, such as go_name: MessageOrderPlaced
    outbox.yaml:5:3: payload "order.placed" is here`,
		},
		{
			"two faults get two proposals",
			"payloads:\n  order.placed: {fields: {}}\n  order_placed: {fields: {}}\n  orderPlaced: {fields: {}}" +
				sends("order.placed, order_placed, orderPlaced"),
			`outbox.yaml:6:3: error OBX2002: payload "order_placed" gives the Go name OrderPlaced, which payload "order.placed" gives too
    hint: set go_name, such as go_name: OrderPlacedMessage
    outbox.yaml:5:3: payload "order.placed" is here
outbox.yaml:7:3: error OBX2002: payload "orderPlaced" gives the Go name OrderPlaced, which payload "order.placed" gives too
    hint: set go_name, such as go_name: MessageOrderPlaced
    outbox.yaml:5:3: payload "order.placed" is here`,
		},
		{
			"a clash is shown at the go_name that makes it",
			"payloads:\n  a: {fields: {}}\n  b: {go_name: A, fields: {}}" + sends("a, b"),
			`outbox.yaml:6:16: error OBX2002: payload "b" gives the Go name A, which payload "a" gives too
    hint: set go_name, such as go_name: AMessage
    outbox.yaml:5:3: payload "a" is here`,
		},
		{
			"a type and a payload give one name",
			"payloads:\n  money: {fields: {amount: money}}\ntypes:\n  money: {fields: {}}" + sends("money"),
			`outbox.yaml:7:3: error OBX2002: type "money" gives the Go name Money, which payload "money" gives too
    hint: set go_name, such as go_name: MoneyType
    outbox.yaml:5:3: payload "money" is here`,
		},
		{
			"a payload called as the package's own store",
			"payloads: {store: {fields: {}}}" + sends("store"),
			`outbox.yaml:4:12: error OBX2003: payload "store" gives the Go name Store, which the package keeps for itself
    hint: set go_name, such as go_name: StoreMessage`,
		},
		{
			"a payload called as an exported name of a fixed file only",
			"payloads: {parse_outbox_id: {fields: {}}}" + sends("parse_outbox_id"),
			`outbox.yaml:4:12: error OBX2003: payload "parse_outbox_id" gives the Go name ParseOutboxID, which the package keeps for itself
    hint: set go_name, such as go_name: ParseOutboxIDMessage`,
		},
		{
			"a payload called as a part that is not built yet",
			"payloads: {outcome: {fields: {}}}" + sends("outcome"),
			`outbox.yaml:4:12: error OBX2003: payload "outcome" gives the Go name Outcome, which the package keeps for itself
    hint: set go_name, such as go_name: OutcomeMessage`,
		},
		{
			"a payload called as functions that begin with With",
			"payloads: {with_tax: {fields: {}}}" + sends("with_tax"),
			`outbox.yaml:4:12: error OBX2003: payload "with_tax" gives the Go name WithTax, which the package keeps for itself
    hint: set go_name, such as go_name: MessageWithTax`,
		},
		{
			"a payload called as an earlier version of another",
			"payloads:\n  order_v1: {fields: {}}\n  order: {fields: {}}" + sends("order, order_v1"),
			`outbox.yaml:5:3: error OBX2003: payload "order_v1" gives the Go name OrderV1, which is kept for an earlier version of payload "order"
    hint: set go_name, such as go_name: OrderV1Message
    outbox.yaml:6:3: payload "order" is here`,
		},
		{
			"a payload called as the handler of a destination",
			"payloads: {mailer_handler: {fields: {}}}" + sends("mailer_handler"),
			`outbox.yaml:6:3: error OBX2002: destination "mailer" gives the Go name MailerHandler, which payload "mailer_handler" gives too
    hint: set go_name, such as go_name: MailerTarget
    outbox.yaml:4:12: payload "mailer_handler" is here`,
		},
		{
			"a payload called as the question about another of the same destination",
			"payloads:\n  refund: {fields: {}}\n  reconcile_refund: {fields: {}}\n" +
				"destinations:\n  bank: {accepts: [reconcile_refund, refund], idempotent: false}\n",
			`outbox.yaml:6:3: error OBX2002: payload "reconcile_refund" gives the method BankHandler.ReconcileRefund, which payload "refund" gives too
    hint: set go_name, such as go_name: ReconcileRefundMessage
    outbox.yaml:5:3: payload "refund" is here`,
		},
		{
			"a payload called as the question about another, by its go_name, in two destinations",
			"payloads:\n  refund: {fields: {}, go_name: ReconcilePayout}\n  payout: {fields: {}}\n" +
				"destinations:\n  a: {accepts: [refund, payout], idempotent: false}\n  b: {accepts: [refund, payout], idempotent: false}\n",
			`outbox.yaml:6:3: error OBX2002: payload "payout" gives the method AHandler.ReconcilePayout, which payload "refund" gives too
    hint: set go_name, such as go_name: PayoutMessage
    outbox.yaml:5:33: payload "refund" is here`,
		},
		{
			"a payload called as a method that go vet knows",
			"payloads: {read_byte: {fields: {}}}" + sends("read_byte"),
			`outbox.yaml:4:12: error OBX2004: payload "read_byte" gives the method MailerHandler.ReadByte, which go vet wants in the form of the standard library
    hint: set go_name, such as go_name: ReadByteMessage`,
		},
		{
			"a destination whose constant is the package's own",
			"payloads: {a: {fields: {}}}\ndestinations:\n  stats: {accepts: [a], idempotent: true}\n",
			`outbox.yaml:6:3: error OBX2003: destination "stats" gives the Go name DestinationStats, which the package keeps for itself
    hint: set go_name, such as go_name: StatsTarget`,
		},
		{
			"two destinations that differ in capitals have one policy",
			"payloads: {a: {fields: {}}}\ndestinations:\n" +
				"  x: {accepts: [a], idempotent: true, go_name: SMSGate}\n  y: {accepts: [a], idempotent: true, go_name: SmsGate}\n",
			`outbox.yaml:7:48: error OBX2002: destination "y" gives the Go name smsGatePolicy, which destination "x" gives too
    hint: set go_name, such as go_name: SmsGateTarget
    outbox.yaml:6:48: destination "x" is here`,
		},
		{
			"values of an enum that give no identifier",
			"types:\n  grade: {enum: ['A+', 'A-', '*', '', 'A']}\npayloads: {a: {fields: {g: grade}}}" + sends("a"),
			`outbox.yaml:5:18: error OBX2001: value "A+" gives no Go identifier
    hint: write it as {value: "A+", go_name: APlus}
outbox.yaml:5:24: error OBX2001: value "A-" gives no Go identifier
    hint: write it as {value: "A-", go_name: AMinus}
outbox.yaml:5:30: error OBX2001: value "*" gives no Go identifier
    hint: write it as {value: "*", go_name: Star}
outbox.yaml:5:35: error OBX2001: value "" gives no Go identifier
    hint: write it as {value: "", go_name: Empty}`,
		},
		{
			"a value of an enum that nothing can be spelled of",
			"types:\n  grade: {enum: ['☺']}\npayloads: {a: {fields: {g: grade}}}" + sends("a"),
			`outbox.yaml:5:18: error OBX2001: value "☺" gives no Go identifier
    hint: write it as {value: "☺", go_name: Value}`,
		},
		{
			"two values of an enum give one name",
			"types:\n  state: {enum: [in_use, inUse]}\npayloads: {a: {fields: {s: state}}}" + sends("a"),
			`outbox.yaml:5:26: error OBX2002: value "inUse" gives the Go name StateInUse, which value "in_use" gives too
    hint: write it as {value: "inUse", go_name: InUseValue}
    outbox.yaml:5:18: value "in_use" is here`,
		},
		{
			"values of two enums give one name",
			"types:\n  level: {enum: ['11']}\n  level1: {enum: ['1']}\npayloads: {a: {fields: {x: level, y: level1}}}" + sends("a"),
			`outbox.yaml:6:19: error OBX2002: value "1" gives the Go name Level11, which value "11" gives too
    hint: write it as {value: "1", go_name: 1Value}
    outbox.yaml:5:18: value "11" is here`,
		},
		{
			"an enum called as the package's own is one fault, not one for each value",
			"types:\n  status: {enum: [pending, failed]}\npayloads: {a: {fields: {s: status}}}" + sends("a"),
			`outbox.yaml:5:3: error OBX2003: type "status" gives the Go name Status, which the package keeps for itself
    hint: set go_name, such as go_name: StatusType`,
		},
		{
			"fields called as methods",
			"payloads:\n  a:\n    fields:\n      validate: string\n      string: string\n      log_value: string" + sends("a"),
			`outbox.yaml:7:7: error OBX2004: field "validate" gives the Go name Validate, which is a method of the struct
    hint: set go_name, such as go_name: ValidateValue
outbox.yaml:8:7: error OBX2004: field "string" gives the Go name String, which is a method of the struct
    hint: set go_name, such as go_name: StringValue
outbox.yaml:9:7: error OBX2004: field "log_value" gives the Go name LogValue, which is a method of the struct
    hint: set go_name, such as go_name: LogValueValue`,
		},
		{
			"two fields give one name",
			"types:\n  line:\n    fields:\n      unit_price: int64\n      unitPrice: int64\npayloads: {a: {fields: {line: line}}}" + sends("a"),
			`outbox.yaml:8:7: error OBX2002: field "unitPrice" gives the Go name UnitPrice, which field "unit_price" gives too
    hint: set go_name, such as go_name: UnitPriceValue
    outbox.yaml:7:7: field "unit_price" is here`,
		},
		{
			"a column that gives no identifier",
			"store: {columns: {unit price: {type: text}, 1st: {type: text}}}\npayloads: {a: {fields: {}}}" + sends("a"),
			`outbox.yaml:4:19: error OBX2001: column "unit price" gives no Go identifier
    hint: set go_name, such as go_name: UnitPrice
outbox.yaml:4:45: error OBX2001: column "1st" gives no Go identifier
    hint: set go_name, such as go_name: Column1st`,
		},
		{
			"two columns give one name",
			"store: {columns: {tenant_id: {type: uuid}, tenantID: {type: uuid}}}\npayloads: {a: {fields: {}}}" + sends("a"),
			`outbox.yaml:4:44: error OBX2002: column "tenantID" gives the Go name TenantID, which column "tenant_id" gives too
    hint: set go_name, such as go_name: TenantIDColumn
    outbox.yaml:4:19: column "tenant_id" is here`,
		},
		{
			"an initialism to remove that is not there",
			"initialisms: {remove: [SKU]}\npayloads: {a: {fields: {}}}" + sends("a"),
			`outbox.yaml:4:24: error OBX2005: "SKU" is not in the table of initialisms
    hint: leave it out`,
		},
	}
	for _, test := range tests {
		t.Run(test.behaviour, func(t *testing.T) {
			m, faults := model.Build(decode(t, test.spec))
			if diff := cmp.Diff(test.want, faults.String()); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if m != nil {
				t.Error("there is a model in spite of faults")
			}
		})
	}
}

func TestNamesThatOnlyLookDangerous(t *testing.T) {
	m := build(t, `
types:
  error: {fields: {type: string, range: string, ctx: string, err: string, json: json}}
  level: {enum: ["1", {value: "A+", go_name: APlus}]}
payloads:
  type: {fields: {e: error, l: level}}
  select: {fields: {}}
  string: {fields: {}}
  ctx: {fields: {}}
  uuid: {fields: {id: uuid}}
  time: {fields: {at: time}}
  withholding: {fields: {}}
  order: {fields: {}}
  order_version: {fields: {}}
  order_v: {fields: {}}
destinations:
  pgx: {accepts: [type, select, string, ctx, uuid, time, withholding, order, order_version, order_v], idempotent: true}
`)
	var names []string
	for _, p := range m.Payloads {
		names = append(names, p.GoName)
	}
	want := []string{"Ctx", "Order", "OrderV", "OrderVersion", "Select", "String", "Time", "Type", "UUID", "Withholding"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("payloads (-want +got):\n%s", diff)
	}
	var values []string
	for _, v := range m.Types[1].Values {
		values = append(values, v.GoName)
	}
	if diff := cmp.Diff([]string{"Level1", "LevelAPlus"}, values); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

func TestEverythingIsSortedByWireName(t *testing.T) {
	m := build(t, `
types: {b: {fields: {z: string, a: string}}, a: {fields: {}}}
payloads: {d: {fields: {k: string}}, c: {fields: {b: b, k: string}}}
destinations:
  z: {accepts: [d, c], idempotent: true, idempotency_key: k}
  y: {accepts: [d], idempotent: true}
`)
	name := func(p *model.Payload) string { return p.Name }
	got := map[string][]string{
		"types":             collect(m.Types, func(t *model.Type) string { return t.Name }),
		"fields":            collect(m.Types[1].Fields, func(f *model.Field) string { return f.Name }),
		"payloads":          collect(m.Payloads, name),
		"destinations":      collect(m.Destinations, func(d *model.Destination) string { return d.Name }),
		"accepted by z":     collect(m.Destinations[1].Accepts, name),
		"keys of z":         collect(m.Destinations[1].IdempotencyKey, func(p model.PayloadPaths) string { return p.Payload.Name }),
		"destinations of d": collect(m.Payloads[1].Routes, func(d *model.Destination) string { return d.Name }),
	}
	want := map[string][]string{
		"types":             {"a", "b"},
		"fields":            {"z", "a"}, // as the author wrote them
		"payloads":          {"c", "d"},
		"destinations":      {"y", "z"},
		"accepted by z":     {"c", "d"},
		"keys of z":         {"c", "d"},
		"destinations of d": {"y", "z"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func collect[T any](all []T, name func(T) string) []string {
	var names []string
	for _, one := range all {
		names = append(names, name(one))
	}
	return names
}

func TestSensitiveIsSeenThroughEveryNesting(t *testing.T) {
	m := build(t, `
types:
  secret: {fields: {pin: {type: string, sensitive: true}}}
  in_list: {fields: {s: {list: secret}}}
  in_map: {fields: {s: {map: {list: in_list}}}}
  circle: {fields: {next: optional circle, m: optional in_map}}
  plain: {fields: {next: optional plain, kind: kind}}
  kind: {enum: [a]}
payloads:
  deep: {fields: {c: circle}}
  direct: {fields: {pin: {type: string, sensitive: true}}}
  open: {fields: {p: plain}}
destinations:
  mailer: {accepts: [deep, direct, open], idempotent: true}
`)
	var sensitive []string
	for _, one := range m.Types {
		if one.Sensitive {
			sensitive = append(sensitive, one.Name)
		}
	}
	for _, one := range m.Payloads {
		if one.Sensitive {
			sensitive = append(sensitive, one.Name)
		}
	}
	if want := []string{"circle", "in_list", "in_map", "secret", "deep", "direct"}; !slices.Equal(sensitive, want) {
		t.Errorf("sensitive: %v, want %v", sensitive, want)
	}
}

func TestQuestionsThatNobodyAsksTakeNoName(t *testing.T) {
	build(t, `
payloads: {refund: {fields: {}}, reconcile_refund: {fields: {}}}
destinations:
  idempotent: {accepts: [refund, reconcile_refund], idempotent: true}
  nobody_asked: {accepts: [refund, reconcile_refund], idempotent: false, reconcile: none}
  apart: {accepts: [refund], idempotent: false}
  from_each_other: {accepts: [reconcile_refund], idempotent: false}
`)
}

func TestArgumentsOfColumns(t *testing.T) {
	tests := []struct {
		behaviour string
		columns   string
		want      []string
	}{
		{"the column's words", "tenant_id: {type: uuid}, region: {type: text}", []string{"tenantID", "region"}},
		{"a keyword", "type: {type: text}", []string{"typeValue"}},
		{"a predeclared name", "string: {type: text}", []string{"stringValue"}},
		{"an imported package", "uuid: {type: uuid}, time: {type: date}", []string{"uuidValue", "timeValue"}},
		{"the command's id", "id: {type: uuid}", []string{"idValue"}},
		{"the receiver", "c: {type: text}", []string{"cValue"}},
		{"another column in other capitals", "a: {type: text, go_name: SMSCode}, b: {type: text, go_name: SmsCode}",
			[]string{"smsCode", "smsCodeValue"}},
	}
	for _, test := range tests {
		t.Run(test.behaviour, func(t *testing.T) {
			m := build(t, "store: {columns: {"+test.columns+"}}\npayloads: {a: {fields: {}}}"+sends("a"))
			got := collect(m.Store.Columns, func(c *model.Column) string { return c.GoArg })
			if !slices.Equal(got, test.want) {
				t.Errorf("arguments: %v, want %v", got, test.want)
			}
		})
	}
}

func TestArgumentsOfAllHandlers(t *testing.T) {
	m := build(t, `
payloads: {a: {fields: {}}}
destinations:
  mailer: {accepts: [a], idempotent: true}
  sms_gate: {accepts: [a], idempotent: true}
  type: {accepts: [a], idempotent: true}
  type_route: {accepts: [a], idempotent: true}
  len: {accepts: [a], idempotent: true}
`)
	got := collect(m.Destinations, func(d *model.Destination) string { return d.GoArg })
	want := []string{"lenRoute", "mailer", "smsGate", "typeRoute", "typeRouteRoute"}
	if !slices.Equal(got, want) {
		t.Errorf("arguments: %v, want %v", got, want)
	}
}

func TestReservedNamesAreExportedSortedAndUnique(t *testing.T) {
	names := model.ReservedNames()
	if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("not sorted, or a name twice: %v", names)
	}
	for _, name := range names {
		if strings.ToUpper(name[:1]) != name[:1] {
			t.Errorf("%s is not exported", name)
		}
	}
	// One of a fixed file, one that is emitted, and one for later.
	for _, name := range []string{"ParseOutboxID", "NewCommand", "Dispatcher"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestReservedNamesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/language.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, name := range model.ReservedNames() {
		names = append(names, "`"+name+"`")
	}
	if list := "\n" + strings.Join(names, ", ") + "\n"; !strings.Contains(string(page), list) {
		t.Errorf("docs/language.md does not list the reserved names, which are:\n%s", list)
	}
}
