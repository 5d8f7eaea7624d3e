package schema

import (
	"fmt"
	"strings"
)

// The keys of every mapping that has a fixed set, in the order in which the
// documentation tells of them.
var (
	specKeys        = []string{"version", "package", "out", "doc", "store", "migrations", "initialisms", "emit", "types", "payloads", "destinations"}
	storeKeys       = []string{"table", "schema", "command", "columns"}
	commandKeys     = []string{"name", "type"}
	columnKeys      = []string{"type", "optional", "index", "default", "doc", "go_name"}
	migrationsKeys  = []string{"dir", "format"}
	initialismsKeys = []string{"add", "remove"}
	emitKeys        = []string{"otel"}
	typeKeys        = []string{"fields", "enum", "doc", "go_name", "deprecated"}
	enumValueKeys   = []string{"value", "go_name", "doc"}
	payloadKeys     = []string{"fields", "doc", "go_name", "deprecated"}
	destinationKeys = []string{"accepts", "idempotent", "timeout", "lease", "retry", "reconcile", "limits", "order_by", "idempotency_key", "retention", "expires", "retired", "doc", "go_name"}
	retryKeys       = []string{"max_attempts", "initial", "max", "factor", "jitter", "delays"}
	reconcileKeys   = []string{"first", "every", "give_up"}
	limitsKeys      = []string{"concurrency", "rate", "per", "total"}
	retentionKeys   = []string{"completed", "failed"}

	formKeys   = []string{"type", "list", "map"}                                                                              // what a field or an element is
	checkKeys  = []string{"quoted", "min", "max", "min_length", "max_length", "pattern", "min_items", "max_items", "nonzero"} // what its values must be
	optionKeys = []string{"doc", "json", "go_name", "optional", "sensitive", "deprecated"}                                    // on fields only
	fieldKeys  = concat(formKeys, checkKeys, optionKeys)
)

func concat(lists ...[]string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

func (d *decoder) unknownKey(e entry, what string, keys []string) {
	f := d.fault(CodeUnknownKey, e.pos, "%s has no key %s", what, quote(e.key))
	if near := d.nearest(e.key, keys); near != "" {
		f.hint(fmt.Sprintf("did you mean %s?", near))
	} else {
		f.hint("known keys: " + strings.Join(keys, ", "))
	}
}

// maxSuggestions keeps a file with thousands of faults quick: a suggestion
// compares a word with all that are known.
const maxSuggestions = 100

// nearest is the word of known that s was probably meant to be, "" when none is
// near.
func (d *decoder) nearest(s string, known []string) string {
	if d.suggestions >= maxSuggestions || len(s) > maxName {
		return ""
	}
	d.suggestions++
	folded := fold(s)
	best, least := "", 1+max(1, len(folded)/3)
	for _, word := range known {
		if distance := editDistance(folded, fold(word), least); distance < least {
			best, least = word, distance
		}
	}
	return best
}

// fold makes the ways in which languages write a word of several parts equal.
func fold(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "", " ", "").Replace(s))
}

// editDistance is the number of bytes to insert, remove or replace to get from
// a to b, or limit if that is lower.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return min(row[len(b)], limit)
}
