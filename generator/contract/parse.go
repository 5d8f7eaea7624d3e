package contract

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/schema"
)

const restore = "restore the file from version control"

// Parse reads a lock. The file's name is for diagnostics. A lock that anybody
// but outboxgen has changed is refused: what it forgets, a migration would
// later miss.
func Parse(file string, data []byte) (*Lock, schema.Diagnostics) {
	p := parser{file: file, lock: &Lock{}, seen: map[string]int{}, types: map[string]int{}, payloads: map[string]int{}, destinations: map[string]int{}}
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")

	for i, line := range lines {
		if isConflictMark(line) {
			p.fault(i+1, CodeConflict, "a merge left its conflict marks in the lock",
				"take either side as a whole (git checkout --ours or --theirs, then the file's name) and run outboxgen generate")
			return nil, p.faults
		}
	}
	for i, line := range lines {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		p.line = i + 1
		words, ok := split(line)
		if !ok {
			p.damaged("the line is not made of words and quoted texts")
			continue
		}
		p.read(words)
		if p.newer {
			return nil, p.faults
		}
	}
	p.line = len(lines)
	p.complete()
	if len(p.faults) > 0 {
		return nil, p.faults
	}
	return p.lock, nil
}

func isConflictMark(line string) bool {
	for _, mark := range []string{"<<<<<<<", "|||||||", "=======", ">>>>>>>"} {
		if strings.HasPrefix(line, mark) {
			return true
		}
	}
	return false
}

// split cuts a line into its words; false when it has another form.
func split(line string) ([]string, bool) {
	var words []string
	for rest := line; ; {
		word := rest
		if strings.HasPrefix(rest, `"`) {
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return nil, false
			}
			word = quoted
		} else if end := strings.IndexByte(rest, ' '); end >= 0 {
			word = rest[:end]
		}
		rest = rest[len(word):]
		text := word
		if strings.HasPrefix(word, `"`) {
			var err error
			if text, err = strconv.Unquote(word); err != nil {
				return nil, false
			}
		}
		// One spelling for each word: quoted only where it must be.
		if quote(text) != word {
			return nil, false
		}
		words = append(words, text)
		if rest == "" {
			return words, true
		}
		if rest[0] != ' ' {
			return nil, false
		}
		rest = rest[1:]
	}
}

type parser struct {
	file   string
	line   int
	lock   *Lock
	newer  bool
	faults schema.Diagnostics

	seen                          map[string]int // the line of each fact, by what it is about
	types, payloads, destinations map[string]int // indexes in lock
}

func (p *parser) fault(line int, code schema.Code, message, hint string) {
	p.faults = append(p.faults, schema.Diagnostic{
		Code: code, Pos: schema.Pos{File: p.file, Line: line, Column: 1}, Message: message, Hint: hint,
	})
}

func (p *parser) damaged(format string, args ...any) {
	p.fault(p.line, CodeDamaged, "the lock is damaged: "+fmt.Sprintf(format, args...), restore)
}

// key tells subjects apart whatever their words hold.
func key(subject []string) string { return fmt.Sprintf("%q", subject) }

// once tells whether this is the first fact about subject.
func (p *parser) once(subject ...string) bool {
	fact := key(subject)
	if first, ok := p.seen[fact]; ok {
		p.damaged("line %d speaks of %s too", first, strings.Join(subject, " "))
		return false
	}
	p.seen[fact] = p.line
	return true
}

// A reader reads the facts of one kind: words are those behind the first. It
// answers false when they have another form.
var readers = map[string]func(p *parser, words []string) bool{
	"format":      (*parser).format,
	"layout":      (*parser).layout,
	"schema":      (*parser).schema,
	"table":       (*parser).table,
	"command":     (*parser).command,
	"column":      (*parser).column,
	"destination": (*parser).destination,
	"payload":     (*parser).payload,
	"type":        (*parser).typ,
	"file":        (*parser).ownedFile,
	"migration":   (*parser).migration,
}

func (p *parser) read(words []string) {
	read, ok := readers[words[0]]
	if !ok {
		p.damaged("%q is not a word of the lock", words[0])
		return
	}
	if !read(p, words[1:]) {
		p.damaged("a fact about %s has another form", words[0])
	}
}

func (p *parser) format(words []string) bool { return p.version("format", Format, words) }
func (p *parser) layout(words []string) bool { return p.version("layout", Layout, words) }

func (p *parser) version(what string, known int, words []string) bool {
	if len(words) != 1 {
		return false
	}
	n, err := strconv.Atoi(words[0])
	if err != nil || n < 1 || strconv.Itoa(n) != words[0] {
		return false
	}
	if n > known {
		p.newer = true
		p.fault(p.line, CodeNewer, fmt.Sprintf("the lock was written by a newer outboxgen: its %s is %d, and this one knows %s %d", what, n, what, known),
			"use the outboxgen that wrote it, or a later one: go get -tool github.com/outboxgen/outboxgen/cmd/outboxgen@latest")
		return true
	}
	p.once(what)
	return true
}

func (p *parser) schema(words []string) bool {
	if len(words) != 1 || words[0] == "" {
		return false
	}
	if p.once("schema") {
		p.lock.Tables.Schema = words[0]
	}
	return true
}

func (p *parser) table(words []string) bool {
	if len(words) != 1 || words[0] == "" {
		return false
	}
	if p.once("table") {
		p.lock.Tables.Table, p.lock.Tables.Line = words[0], p.line
	}
	return true
}

func (p *parser) command(words []string) bool {
	if len(words) != 2 || words[0] == "" {
		return false
	}
	if p.once("command") {
		p.lock.Tables.Command = Column{Name: words[0], Type: schema.ColumnType(words[1]), Line: p.line}
	}
	return true
}

func (p *parser) column(words []string) bool {
	if len(words) < 3 || words[0] == "" {
		return false
	}
	optional, ok := isOptional(words[2])
	if !ok {
		return false
	}
	c := Column{Name: words[0], Type: schema.ColumnType(words[1]), Optional: optional, Line: p.line}
	rest := words[3:]
	if len(rest) > 0 && rest[0] == "index" {
		c.Index, rest = true, rest[1:]
	}
	if len(rest) == 2 && rest[0] == "default" {
		c.Default, c.HasDefault, rest = rest[1], true, nil
	}
	if len(rest) > 0 {
		return false
	}
	if p.once("column", c.Name) {
		p.lock.Tables.Columns = append(p.lock.Tables.Columns, c)
	}
	return true
}

func isOptional(word string) (optional, ok bool) {
	return word == "optional", word == "optional" || word == "required"
}

func (p *parser) destination(words []string) bool {
	switch {
	case len(words) == 1:
		if p.once("destination", words[0]) {
			p.destinations[words[0]] = len(p.lock.Destinations)
			p.lock.Destinations = append(p.lock.Destinations, Destination{Name: words[0]})
		}
		return true
	case len(words) == 3 && words[1] == "accepts":
		at, ok := p.destinations[words[0]]
		if !ok {
			p.damaged("the line of destination %s is missing before this one", words[0])
			return true
		}
		if p.once("destination", words[0], "accepts", words[2]) {
			d := &p.lock.Destinations[at]
			d.Accepts = append(d.Accepts, words[2])
		}
		return true
	}
	return false
}

func (p *parser) payload(words []string) bool {
	if len(words) == 0 {
		return false
	}
	if len(words) > 1 {
		at, ok := p.payloads[words[0]]
		if !ok {
			p.damaged("the line of payload %s is missing before this one", words[0])
			return true
		}
		return p.field(&p.lock.Payloads[at].Fields, "payload", words)
	}
	at := strings.LastIndexByte(words[0], '@')
	if at < 1 {
		return false
	}
	shape := Payload{Name: words[0][:at]}
	var err error
	if shape.Version, err = strconv.Atoi(words[0][at+1:]); err != nil || shape.Version < 1 || shape.kind() != words[0] {
		return false
	}
	if p.once("payload", words[0]) {
		p.payloads[words[0]] = len(p.lock.Payloads)
		p.lock.Payloads = append(p.lock.Payloads, shape)
	}
	return true
}

func (p *parser) typ(words []string) bool {
	if len(words) < 2 {
		return false
	}
	if len(words) == 2 {
		if words[1] != "enum" && words[1] != "object" {
			return false
		}
		if p.once("type", words[0]) {
			p.types[words[0]] = len(p.lock.Types)
			p.lock.Types = append(p.lock.Types, Type{Name: words[0], Enum: words[1] == "enum"})
		}
		return true
	}
	at, ok := p.types[words[0]]
	if !ok {
		p.damaged("the line of type %s is missing before this one", words[0])
		return true
	}
	t := &p.lock.Types[at]
	if !t.Enum {
		return p.field(&t.Fields, "type", words)
	}
	if len(words) != 3 || words[1] != "value" {
		return false
	}
	if p.once("type", words[0], "value", words[2]) {
		t.Values = append(t.Values, words[2])
	}
	return true
}

// field reads a field of the payload or type that words begin with.
func (p *parser) field(fields *[]Field, owner string, words []string) bool {
	if len(words) != 5 || words[1] != "field" || !isWireType(words[3]) {
		return false
	}
	optional, ok := isOptional(words[4])
	if !ok {
		return false
	}
	if p.once(owner, words[0], "field", words[2]) {
		*fields = append(*fields, Field{Name: words[2], Type: words[3], Optional: optional})
	}
	return true
}

var wireTypePattern = regexp.MustCompile(`^((list|map)<)*(quoted<[a-z0-9]+>|[A-Za-z][A-Za-z0-9_.-]*)>*$`)

func isWireType(word string) bool {
	return wireTypePattern.MatchString(word) && strings.Count(word, "<") == strings.Count(word, ">")
}

func (p *parser) ownedFile(words []string) bool {
	if len(words) != 1 || words[0] == "" {
		return false
	}
	if p.once("file", words[0]) {
		p.lock.Files = append(p.lock.Files, words[0])
	}
	return true
}

var hashPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (p *parser) migration(words []string) bool {
	if len(words) != 4 || words[1] == "" || strings.ContainsAny(words[1], `/\`) || !hashPattern.MatchString(words[2]) || !hashPattern.MatchString(words[3]) {
		return false
	}
	m := Migration{Format: schema.MigrationFormat(words[0]), Name: words[1], Hash: words[2], Chain: words[3], Line: p.line}
	if !p.once("migration", m.Name) {
		return true
	}
	previous := ""
	if n := len(p.lock.Migrations); n > 0 {
		previous = p.lock.Migrations[n-1].Chain
	}
	if m.link(previous) != m.Chain {
		p.fault(p.line, CodeChain, fmt.Sprintf("migration %s does not follow the one before it: the list was edited, or merged line by line", m.Name),
			"take the lock of one branch as a whole and run outboxgen generate")
	}
	p.lock.Migrations = append(p.lock.Migrations, m)
	return true
}

// complete reports what no lock is without.
func (p *parser) complete() {
	for _, what := range []string{"format", "layout", "table", "command"} {
		if _, ok := p.seen[key([]string{what})]; !ok {
			p.damaged("it ends without a fact about %s", what)
		}
	}
	if len(p.lock.Migrations) == 0 {
		p.damaged("it ends without a migration")
	}
}
