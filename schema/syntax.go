package schema

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// syntaxFault is what the YAML parser refused, with the place where it did.
type syntaxFault struct {
	code    Code
	at      int // offset of a character
	opener  int // offset of what was left open, -1 when nothing was
	message string
	hint    string
}

const (
	depthMessage  = "exceeded max depth of 10000"
	noEndMessage  = "found unexpected end of stream"
	noNodeMessage = "did not find expected node content"
	noColon       = "could not find expected ':'"
	noKey         = "did not find expected key"
	noDash        = "did not find expected '-' indicator"
)

var (
	flowMessage  = regexp.MustCompile(`^did not find expected ',' or '[\]}]'$`)
	aliasMessage = regexp.MustCompile(`^unknown anchor '.*' referenced$`)
)

// locateSyntax finds the place of a fault that parse reports for text by the
// given message. parse returns its message, "" when there is no fault, and how
// far it has read, since it stops at the first fault.
func locateSyntax(text, message string, parse func(text string) (message string, read int)) syntaxFault {
	if message == depthMessage || message == noEndMessage || message == noNodeMessage || flowMessage.MatchString(message) {
		if found, ok := scanFlow(text); ok {
			return found
		}
	}
	_, end := parse(text)
	if message == depthMessage {
		return syntaxFault{code: CodeNesting, at: runeStart(text, end-1), opener: -1, message: tooDeep}
	}
	at := shortestFailing(text, end, func(prefix string) bool {
		got, _ := parse(prefix)
		if got == noColon && message != noColon {
			got, _ = parse(prefix + ":") // cut within a key, which hides what is before it
		}
		return got == message
	})
	line := strings.LastIndexByte(text[:at], '\n') + 1
	switch {
	case aliasMessage.MatchString(message):
		return syntaxFault{
			code: CodeAlias, at: line + max(0, strings.LastIndexByte(text[line:at+1], '*')), opener: -1,
			message: "an alias cannot stand in a specification", hint: aliasHint,
		}
	case message == "did not find expected <document start>":
		return syntaxFault{code: CodeDocuments, at: at, opener: -1, message: secondDocument, hint: secondDocumentHint}
	case strings.Contains(message, "directive"):
		at = line
	case strings.Contains(message, "tag") && !strings.HasPrefix(message, "found a tab"):
		at = line + strings.LastIndexAny(text[line:at], " \t[{,") + 1
		return syntaxFault{code: CodeTag, at: at, opener: -1, message: "a tag cannot stand in a specification", hint: tagHint}
	}
	fault := syntaxFault{code: CodeSyntax, at: at, opener: -1}
	fault.message, fault.hint = explain(message, text[line:at], text[at:])
	return fault
}

// shortestFailing looks for the shortest prefix of text that fails, knowing
// that text[:end] does and that the fault is not far from its end. It returns
// the offset of the character that completes the prefix.
func shortestFailing(text string, end int, fails func(prefix string) bool) int {
	good, bad := 0, end
	for step := 1; step < end; step *= 2 {
		back := runeStart(text, end-step)
		if !fails(text[:back]) {
			good = back
			break
		}
		bad = back
	}
	for {
		middle := runeStart(text, (good+bad)/2)
		if middle <= good {
			break
		}
		if fails(text[:middle]) {
			bad = middle
		} else {
			good = middle
		}
	}
	at := good
	if bad > 0 && (text[bad-1] == '"' || text[bad-1] == '\'') {
		// The fault is the whole quoted text that ends here.
		line := text[strings.LastIndexByte(text[:bad-1], '\n')+1 : bad-1]
		if start := strings.LastIndexByte(line, text[bad-1]); start >= 0 {
			at = bad - 1 - len(line) + start
		}
	}
	return at
}

// runeStart is the start of the character that the byte at offset belongs to.
func runeStart(text string, offset int) int {
	for offset > 0 && offset < len(text) && !utf8.RuneStart(text[offset]) {
		offset--
	}
	return offset
}

// explain puts a message of yaml.v3 into the words of somebody who sees the line
// up to the fault and what stands there.
func explain(message, line, rest string) (string, string) {
	const inQuotes = "a text that begins so stands in quotes"
	first, _ := utf8.DecodeRuneInString(rest)
	switch {
	case first == '\t' || strings.HasPrefix(message, "found a tab"):
		return "a tab indents this line", "indent with spaces: YAML allows no tabs there"
	case strings.ContainsRune("@`%*&?!|>{}[]", first) && rest != "":
		return "the character " + quote(string(first)) + " has a meaning of its own in YAML and cannot stand here", inQuotes
	case message == "mapping values are not allowed in this context":
		return "a colon cannot stand here", "check the indentation of this line and the one above; a text with a colon and a space in it stands in quotes"
	case message == noKey && strings.TrimSpace(line) != "":
		return "nothing can stand here, behind the value", "a quote within single quotes is written twice; within double quotes it stands behind a backslash"
	case message == noKey:
		return "a key of the mapping above is expected here", "check the indentation"
	case message == noDash:
		return "an item of a list is expected here", "check the indentation; items begin with a dash and a space"
	case message == "block sequence entries are not allowed in this context":
		return "an item of a list cannot stand here", "put the list on lines of its own; " + inQuotes
	case message == noColon:
		return "this key has no colon behind it", "write `key: value`"
	case message == "did not find expected comment or line break":
		return "nothing but a comment can stand here, behind | or >", "the text begins on the next line; a text that begins with | or > stands in quotes"
	case message == "found unknown escape character":
		return "an unknown escape in a text in double quotes", "write a backslash as \\\\, or use single quotes"
	default:
		return "YAML: " + message, ""
	}
}

// flowLevel is an open bracket.
type flowLevel struct {
	at    int
	open  byte
	plain bool // the last word was a text without quotes, which may go on
	item  bool // an item stands since the last comma or colon
	colon bool // a colon stands since the last comma
}

// flowScanner walks over a text as far as it takes to know its brackets and its
// quotes. It takes every text that YAML takes, and some more.
type flowScanner struct {
	text   string
	at     int
	levels []flowLevel
	column int  // that block texts stand deeper than: of the key, or of the last dash
	keyed  bool // the line has a word behind its dashes
	start  bool // a value may begin here
	goesOn bool // the text before the line break goes on where a deeper line follows

	lineStart int // of the line that searched lies in
	searched  int // up to where line breaks were looked for
}

// scanFlow finds the first thing that cannot stand within brackets, a bracket
// or quote that is never closed, or a bracket that is nested too deep.
func scanFlow(text string) (syntaxFault, bool) {
	s := &flowScanner{text: text, start: true}
	for s.at < len(text) {
		if fault, bad := s.next(); bad {
			return fault, true
		}
	}
	if len(s.levels) > 0 {
		return s.unexpected("the end of the file"), true
	}
	return syntaxFault{}, false
}

func (s *flowScanner) top() *flowLevel {
	if len(s.levels) == 0 {
		return nil
	}
	return &s.levels[len(s.levels)-1]
}

// unexpected is the fault that what stands here cannot stand within the
// innermost bracket.
func (s *flowScanner) unexpected(what string) syntaxFault {
	top := s.top()
	closer := map[byte]string{'[': "]", '{': "}"}[top.open]
	at := min(s.at, runeStart(s.text, len(s.text)-1))
	return syntaxFault{
		code: CodeSyntax, at: at, opener: top.at,
		message: "a comma or " + closer + " is expected before " + what,
		hint:    "close the " + string(top.open) + ", or put a comma between its items; a text with signs in it stands in quotes",
	}
}

// item notes that an item begins here; false when none can.
func (s *flowScanner) item(plain bool) bool {
	top := s.top()
	if top == nil {
		return true
	}
	if top.item && !(plain && top.plain) {
		return false
	}
	top.item, top.plain = true, plain
	return true
}

// next reads one word.
func (s *flowScanner) next() (syntaxFault, bool) {
	c := s.text[s.at]
	inFlow := len(s.levels) > 0
	switch {
	case c == '\n':
		s.start, s.keyed = true, false
		s.at++
		return syntaxFault{}, false
	case c == ' ' || c == '\t' || c == '\r':
		s.at++
		return syntaxFault{}, false
	case c == '#':
		s.skipLine()
		s.goesOn = false
		return syntaxFault{}, false
	case !s.keyed && s.goesOn && s.columnHere() > s.column:
		s.plainWord()
		return syntaxFault{}, false
	case !inFlow && (c == '-' || c == '?' || c == ':') && s.blankAt(s.at+1):
		if !s.keyed {
			s.column = s.columnHere()
		}
		s.start, s.goesOn = true, false
		s.at++
		return syntaxFault{}, false
	}
	if !s.keyed && c != '|' && c != '>' {
		s.column = s.columnHere()
		s.keyed = true
	}
	s.goesOn = false
	switch {
	case !inFlow && !s.start:
		s.plainWord()
	case c == '"' || c == '\'':
		return s.quoted(c)
	case c == '[' || c == '{':
		if !s.item(false) {
			return s.unexpected(quote(string(c))), true
		}
		if len(s.levels) == maxNesting {
			return syntaxFault{code: CodeNesting, at: s.at, opener: -1, message: tooDeep}, true
		}
		s.levels = append(s.levels, flowLevel{at: s.at, open: c})
		s.at++
	case inFlow && (c == ']' || c == '}'):
		if top := s.top(); (c == ']') != (top.open == '[') {
			return s.unexpected(quote(string(c))), true
		}
		s.levels = s.levels[:len(s.levels)-1]
		s.at++
		s.start = false
	case inFlow && (c == '&' || c == '!'): // stands before an item
		for s.at++; !s.endsFlowWord(s.at); s.at++ {
		}
	case inFlow && c == '?' && (s.at+1 == len(s.text) || strings.IndexByte(",]}", s.text[s.at+1]) >= 0):
		fault := syntaxFault{code: CodeSyntax, at: s.at, opener: -1}
		fault.message, fault.hint = explain("", "", s.text[s.at:])
		return fault, true
	case inFlow && c == ',':
		top := s.top()
		if !top.item && !top.colon {
			fault := s.unexpected("")
			fault.message, fault.hint = "a value is expected before this comma", ""
			return fault, true
		}
		*top = flowLevel{at: top.at, open: top.open}
		s.at++
	case inFlow && c == ':' && (s.endsFlowWord(s.at+1) || s.top().item && !s.top().plain):
		top := s.top()
		if top.colon {
			return s.unexpected("this colon"), true
		}
		top.colon, top.item, top.plain = true, false, false
		s.at++
	case !inFlow && (c == '|' || c == '>'):
		s.blockText()
	default:
		if !s.item(true) {
			return s.unexpected("this text"), true
		}
		s.plainWord()
	}
	return syntaxFault{}, false
}

func (s *flowScanner) columnHere() int {
	if i := strings.LastIndexByte(s.text[s.searched:s.at], '\n'); i >= 0 {
		s.lineStart = s.searched + i + 1
	}
	s.searched = s.at
	return s.at - s.lineStart
}

// blankAt tells whether a word has ended before offset.
func (s *flowScanner) blankAt(offset int) bool {
	return offset >= len(s.text) || strings.IndexByte(" \t\r\n", s.text[offset]) >= 0
}

// endsFlowWord tells whether a word within brackets has ended before offset.
func (s *flowScanner) endsFlowWord(offset int) bool {
	return s.blankAt(offset) || strings.IndexByte(",[]{}", s.text[offset]) >= 0
}

func (s *flowScanner) skipLine() {
	for s.at < len(s.text) && s.text[s.at] != '\n' {
		s.at++
	}
}

// quoted reads a text in quotes.
func (s *flowScanner) quoted(mark byte) (syntaxFault, bool) {
	start := s.at
	if !s.item(false) {
		return s.unexpected("this text"), true
	}
	for s.at++; s.at < len(s.text); s.at++ {
		switch {
		case mark == '"' && s.text[s.at] == '\\':
			s.at++
		case s.text[s.at] != mark:
		case mark == '\'' && strings.HasPrefix(s.text[s.at:], "''"):
			s.at++
		default:
			s.at++
			s.start = false
			return syntaxFault{}, false
		}
	}
	return syntaxFault{
		code: CodeSyntax, at: start, opener: -1,
		message: "this quote is never closed",
		hint:    "end the text with the same quote; within single quotes a quote is written twice",
	}, true
}

// plainWord reads a text without quotes, up to where a colon, a comment, a
// bracket or the line ends it.
func (s *flowScanner) plainWord() {
	inFlow := len(s.levels) > 0
	s.start = false
	s.goesOn = false
	for first := s.at; s.at < len(s.text); s.at++ {
		c := s.text[s.at]
		switch {
		case c == '\n':
			s.goesOn = !inFlow
			return
		case c == '#' && s.at > first && s.blankAt(s.at-1),
			inFlow && strings.IndexByte(",[]{}", c) >= 0,
			c == ':' && s.at > first && (s.blankAt(s.at+1) || inFlow && s.endsFlowWord(s.at+1)):
			return
		}
	}
}

// blockText reads a text that stands on lines of its own, all of them deeper
// than the key.
func (s *flowScanner) blockText() {
	for s.skipLine(); s.at < len(s.text); s.skipLine() {
		rest := s.text[s.at+1:]
		line, _, _ := strings.Cut(rest, "\n")
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if strings.TrimSpace(line) != "" && indent <= s.column {
			return
		}
		s.at++
	}
}
