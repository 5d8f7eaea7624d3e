package model

import (
	"testing"

	"github.com/outboxgen/outboxgen/schema"
)

func TestExportedNames(t *testing.T) {
	tests := []struct {
		behaviour string
		name      string
		want      string
	}{
		{"one word", "order", "Order"},
		{"underscore separates", "order_placed", "OrderPlaced"},
		{"dot separates", "order.placed", "OrderPlaced"},
		{"dash separates", "order-placed", "OrderPlaced"},
		{"camel case is kept", "orderPlaced", "OrderPlaced"},
		{"capitals within a word are kept", "HTTPServer", "HTTPServer"},
		{"several separators are one", "order__placed", "OrderPlaced"},
		{"separator at the end", "order_", "Order"},
		{"digits stay with their word", "line2_total", "Line2Total"},
		{"digit before a capital", "line2Total", "Line2Total"},
		{"initialism", "order_id", "OrderID"},
		{"initialism in front", "id", "ID"},
		{"initialism in camel case", "orderId", "OrderID"},
		{"initialism with a digit", "utf8_text", "UTF8Text"},
		{"initialism that is a prefix of another", "https_url", "HTTPSURL"},
		{"plural of an initialism", "order_ids", "OrderIDs"},
		{"plural of an initialism, written in Go's way", "orderIDs", "OrderIDs"},
		{"plural of an initialism at the front", "urls", "URLs"},
		{"word that only begins like an initialism", "idle", "Idle"},
		{"word in capitals is kept", "EUR", "EUR"},
		{"words in capitals are read in lower case", "IN_PROGRESS", "InProgress"},
		{"initialism among words in capitals", "USER_ID", "UserID"},
		{"digits only", "1", "1"},
		{"letters beyond ASCII", "größe", "Größe"},
		{"empty", "", ""},
		{"star", "*", ""},
		{"plus", "A+", ""},
		{"dash at the end is a sign", "A-", ""},
		{"dash in front is a sign", "-1", ""},
		{"space", "in progress", ""},
		{"slash", "text/plain", ""},
		{"separator alone", "_", ""},
	}
	for _, test := range tests {
		t.Run(test.behaviour, func(t *testing.T) {
			if got := newNamer().exported(test.name); got != test.want {
				t.Errorf("exported(%q) = %q, want %q", test.name, got, test.want)
			}
		})
	}
}

func TestUnexportedNames(t *testing.T) {
	tests := []struct {
		behaviour string
		goName    string
		want      string
	}{
		{"one word", "Mailer", "mailer"},
		{"two words", "TenantID", "tenantID"},
		{"initialism alone", "ID", "id"},
		{"plural of an initialism", "IDs", "ids"},
		{"initialism in front", "SMTPRelay", "smtpRelay"},
		{"longest initialism in front", "HTTPSPort", "httpsPort"},
		{"capitals that are no initialism", "ABCReport", "abcReport"},
		{"capitals alone", "EUR", "eur"},
		{"one capital", "X", "x"},
		{"one capital in front of a word", "AReport", "aReport"},
		{"initialism that another word begins with", "IDle", "iDle"},
		{"letters beyond ASCII", "Öl", "öl"},
	}
	for _, test := range tests {
		t.Run(test.behaviour, func(t *testing.T) {
			if got := newNamer().unexported(test.goName); got != test.want {
				t.Errorf("unexported(%q) = %q, want %q", test.goName, got, test.want)
			}
		})
	}
}

func TestProposalsForNamesWithoutIdentifier(t *testing.T) {
	tests := []struct {
		behaviour string
		name      string
		want      string
	}{
		{"symbol at the end is spelled", "A+", "APlus"},
		{"separator at the end is a sign", "A-", "AMinus"},
		{"separator in front is a sign", "-1", "Minus1"},
		{"symbols alone", "<=", "LessEqual"},
		{"space separates", "in progress", "InProgress"},
		{"slash within separates", "text/plain", "TextPlain"},
		{"initialisms are kept", "user id", "UserID"},
		{"nothing", "", "Empty"},
		{"unknown symbols are left out", "5 €", "5"},
		{"unknown symbols alone", "€", ""},
	}
	for _, test := range tests {
		t.Run(test.behaviour, func(t *testing.T) {
			if got := newNamer().spelled(test.name); got != test.want {
				t.Errorf("spelled(%q) = %q, want %q", test.name, got, test.want)
			}
		})
	}
}

func TestInitialismsOfTheSpecification(t *testing.T) {
	tests := []struct {
		behaviour   string
		add, remove []string
		name        string
		want        string
		faults      int
	}{
		{"added word is in capitals", []string{"SKU"}, nil, "sku_code", "SKUCode", 0},
		{"added word has a plural", []string{"SKU"}, nil, "skus", "SKUs", 0},
		{"added word is written as it was added", []string{"OAuth"}, nil, "oauth_token", "OAuthToken", 0},
		{"added word replaces the one of the table", []string{"Id"}, nil, "user_id", "UserId", 0},
		{"removed word is a word like any other", nil, []string{"DB"}, "db_name", "DbName", 0},
		{"removed word has no plural", nil, []string{"DB"}, "dbs", "Dbs", 0},
		{"removing ignores case", nil, []string{"Db"}, "db_name", "DbName", 0},
		{"removing a word that is not there", nil, []string{"SKU"}, "sku", "Sku", 1},
	}
	for _, test := range tests {
		t.Run(test.behaviour, func(t *testing.T) {
			n := newNamer()
			var faults schema.Diagnostics
			n.adapt(schema.Initialisms{Add: texts(test.add), Remove: texts(test.remove)},
				func(d schema.Diagnostic) { faults = append(faults, d) })
			if got := n.exported(test.name); got != test.want {
				t.Errorf("exported(%q) = %q, want %q", test.name, got, test.want)
			}
			if len(faults) != test.faults {
				t.Errorf("faults: %v, want %d", faults, test.faults)
			}
			for _, fault := range faults {
				if fault.Code != CodeInitialism || fault.Pos.Line != 1 {
					t.Errorf("fault %v, want %s on line 1", fault, CodeInitialism)
				}
			}
		})
	}
}

func texts(words []string) []schema.Text {
	var all []schema.Text
	for _, word := range words {
		all = append(all, schema.Text{Value: word, Pos: schema.Pos{Line: 1, Column: 1}})
	}
	return all
}
