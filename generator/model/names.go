package model

import (
	"go/token"
	"go/types"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outboxgen/outboxgen/schema"
)

// initialisms are the words that Go names write in capitals: those that golint
// and revive (var-naming) know, and those that staticcheck (ST1003) adds, so
// that a name made here satisfies both.
var initialisms = []string{
	"ACL", "AMQP", "API", "ASCII", "CPU", "CSS", "DB", "DNS", "EOF", "GID", "GUID", "HTML", "HTTP",
	"HTTPS", "ID", "IP", "JSON", "LHS", "QPS", "RAM", "RHS", "RPC", "RTP", "SIP", "SLA", "SMTP",
	"SQL", "SSH", "TCP", "TLS", "TS", "TTL", "UDP", "UI", "UID", "URI", "URL", "UTF8", "UUID", "VM",
	"XML", "XMPP", "XSRF", "XSS",
}

// namer makes Go names from the names of a specification.
type namer struct {
	initialisms map[string]string // by the word in lower case: the word as it is written
}

func newNamer() *namer {
	n := &namer{initialisms: make(map[string]string, len(initialisms))}
	for _, word := range initialisms {
		n.initialisms[strings.ToLower(word)] = word
	}
	return n
}

// adapt adds and removes the words that the specification names.
func (n *namer) adapt(words schema.Initialisms, report func(schema.Diagnostic)) {
	for _, word := range words.Remove {
		key := strings.ToLower(word.Value)
		if _, ok := n.initialisms[key]; !ok {
			report(schema.Diagnostic{
				Code:    CodeInitialism,
				Pos:     word.Pos,
				Message: quote(word.Value) + " is not in the table of initialisms",
				Hint:    "leave it out",
			})
		}
		delete(n.initialisms, key)
	}
	for _, word := range words.Add {
		n.initialisms[strings.ToLower(word.Value)] = word.Value
	}
}

// exported is the name in the form of Go: its words, each with a capital in
// front, initialisms in theirs. It is empty where a character of the name has
// no place in an identifier, and it may begin with a digit.
func (n *namer) exported(name string) string {
	var b strings.Builder
	for _, word := range splitWords(name) {
		b.WriteString(n.capitalize(word))
	}
	return b.String()
}

func (n *namer) capitalize(word string) string {
	if written, ok := n.initialisms[strings.ToLower(word)]; ok {
		return written
	}
	if singular, plural := strings.CutSuffix(word, "s"); plural {
		if written, ok := n.initialisms[strings.ToLower(singular)]; ok {
			return written + "s"
		}
	}
	first, size := utf8.DecodeRuneInString(word)
	return string(unicode.ToUpper(first)) + word[size:]
}

// unexported is an exported Go name with its first word in lower case.
func (n *namer) unexported(goName string) string {
	runes := []rune(goName)
	// A word ends where the next one's capital stands. The longest initialism
	// wins: in HTTPSPort it is HTTPS, not HTTP.
	for end := len(runes); end > 0; end-- {
		if end < len(runes) && !unicode.IsUpper(runes[end]) {
			continue
		}
		word := string(runes[:end])
		if n.capitalize(word) != word {
			continue
		}
		_, whole := n.initialisms[strings.ToLower(word)]
		_, plural := n.initialisms[strings.ToLower(strings.TrimSuffix(word, "s"))]
		if whole || plural {
			return strings.ToLower(word) + string(runes[end:])
		}
	}
	// Otherwise the leading capitals but the last, which begins the next word.
	end := 0
	for end < len(runes) && unicode.IsUpper(runes[end]) {
		end++
	}
	if 1 < end && end < len(runes) && unicode.IsLower(runes[end]) {
		end--
	}
	return strings.ToLower(string(runes[:end])) + string(runes[end:])
}

// splitWords splits a name at '_', '.' and '-', and where a lower-case letter
// meets an upper-case one. A name of several words that is all in capitals,
// such as IN_PROGRESS, is read in lower case. The result is empty when the name
// holds anything but letters, digits and these separators, or begins or ends
// with a separator other than '_': "A-" and "-1" are not the words A and 1.
func splitWords(name string) []string {
	if strings.Trim(name, ".-") != name {
		return nil
	}
	var words []string
	start := 0
	var previous rune
	for i, r := range name {
		switch {
		case isSeparator(r):
			if start < i {
				words = append(words, name[start:i])
			}
			start = i + 1
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			return nil
		case unicode.IsLower(previous) && unicode.IsUpper(r):
			words = append(words, name[start:i])
			start = i
		}
		previous = r
	}
	if start < len(name) {
		words = append(words, name[start:])
	}
	if len(words) > 1 && strings.ToUpper(name) == name {
		for i, word := range words {
			words[i] = strings.ToLower(word)
		}
	}
	return words
}

func isSeparator(r rune) bool { return r == '_' || r == '.' || r == '-' }

// symbols are the words for characters that values of enums are known to hold;
// they serve proposals only.
var symbols = map[rune]string{
	'+': "Plus", '-': "Minus", '*': "Star", '/': "Slash", '\\': "Backslash", '%': "Percent", '&': "And",
	'#': "Hash", '!': "Not", '?': "Question", '=': "Equal", '<': "Less", '>': "Greater", '@': "At",
	'$': "Dollar", '|': "Or", '~': "Tilde", '^': "Caret", '.': "Dot", ',': "Comma", ':': "Colon",
}

// spelled is a proposal for a name that gives no identifier: what separates
// words in prose is left out, other symbols are spelled.
func (n *namer) spelled(name string) string {
	var b strings.Builder
	var word []rune
	flush := func() {
		b.WriteString(n.exported(string(word)))
		word = nil
	}
	runes := []rune(name)
	for i, r := range runes {
		inner := 0 < i && i < len(runes)-1
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			word = append(word, r)
		case r == '_' || unicode.IsSpace(r) || inner && strings.ContainsRune(".-/,:", r):
			flush()
		default:
			flush()
			b.WriteString(symbols[r])
		}
	}
	flush()
	if b.Len() == 0 && name == "" {
		return "Empty"
	}
	return b.String()
}

// arguments are the names that an argument of the functions about columns
// cannot have: those functions' own, and those of the packages that the types
// of columns come from.
var arguments = []string{"c", "id", "time", "uuid"}

// nameArguments names the columns as arguments of functions.
func nameArguments(n *namer, columns []*Column) {
	used := map[string]bool{}
	for _, word := range arguments {
		used[word] = true
	}
	for _, column := range columns {
		column.GoArg = nameArgument(n, column.GoName, "Value", used)
	}
}

// nameRoutes names the destinations as arguments of AllHandlers.
func nameRoutes(n *namer, destinations []*Destination) {
	used := map[string]bool{}
	for _, d := range destinations {
		d.GoArg = nameArgument(n, d.GoName, "Route", used)
	}
}

// nameArgument makes the name of an argument and adds it to those that are used.
// Callers do not see it, so one that is not free gets a word behind it.
func nameArgument(n *namer, goName, word string, used map[string]bool) string {
	name := n.unexported(goName)
	for used[name] || token.IsKeyword(name) || types.Universe.Lookup(name) != nil {
		name += word
	}
	used[name] = true
	return name
}
