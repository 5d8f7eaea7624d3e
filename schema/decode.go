package schema

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Limits of the input. A specification that people maintain stays far below
// both; what lies above was not written by hand, or not meant for this tool.
const (
	maxBytes   = 1 << 20
	maxNesting = 64
)

// What both the parser's faults and the nodes' are reported with.
const (
	aliasHint          = "repeat the value; a text that begins with * stands in quotes"
	tagHint            = "remove it; a text that begins with ! stands in quotes"
	secondDocument     = "a second YAML document begins here"
	secondDocumentHint = "keep one document"
	tooDeep            = "nested more than 64 levels deep"
)

// Decode reads a specification. file is the name that places are given with;
// nothing is opened. The Spec is complete, and fit for use, only when there are
// no diagnostics; these are sorted.
func Decode(file string, data []byte) (*Spec, Diagnostics) {
	d := &decoder{file: file}
	root := d.parse(data)
	if root == nil {
		return nil, d.diags
	}
	spec := d.spec(root)
	d.diags.Sort()
	return spec, d.diags
}

// parse turns the input into nodes that are free of what only YAML knows. It
// returns nil when the input cannot be read at all.
func (d *decoder) parse(data []byte) *node {
	start := Pos{File: d.file, Line: 1, Column: 1}
	if len(data) > maxBytes {
		d.fault(CodeTooLarge, start, "the specification has %d bytes; at most %d are read", len(data), maxBytes)
		return nil
	}
	text := strings.TrimPrefix(string(data), "\uFEFF")
	if !d.readable(text) {
		return nil
	}

	yamlDecoder := yaml.NewDecoder(strings.NewReader(text))
	first, err := nextDocument(yamlDecoder)
	if errors.Is(err, io.EOF) {
		d.fault(CodeEmpty, start, "the specification is empty").
			hint("`outboxgen init` writes one to start from")
		return nil
	}
	var second *yaml.Node
	if err == nil {
		second, err = nextDocument(yamlDecoder)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		d.syntaxFault(text, err)
		return nil
	}
	if second != nil {
		d.fault(CodeDocuments, d.yamlPos(second), secondDocument).hint(secondDocumentHint)
	}
	root := first.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		d.fault(CodeEmpty, start, "the specification is empty").
			hint("`outboxgen init` writes one to start from")
		return nil
	}
	return d.convert(root, "the specification", 1)
}

// readable reports the first character that keeps text from being read.
// Refusing the line breaks that only YAML 1.1 knows keeps its line numbers
// those of every editor.
func (d *decoder) readable(text string) bool {
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"):
			d.fault(CodeEncoding, d.posAt(text, i), "the specification is not valid UTF-8: byte 0x%02X", text[i]).
				hint("save the file as UTF-8")
			return false
		case r == '\r' && !strings.HasPrefix(text[i:], "\r\n"):
			d.fault(CodeCharacter, d.posAt(text, i), "a carriage return without a line feed").
				hint("end lines with LF or CRLF")
			return false
		case r != '\r' && r != '\n' && r != '\t' && unicode.IsControl(r),
			r == '\u2028', r == '\u2029', r == '\uFEFF', r == '\uFFFE', r == '\uFFFF':
			d.fault(CodeCharacter, d.posAt(text, i), "the character %U cannot stand in a specification", r).
				hint("remove it; within a text, write it as an escape in double quotes")
			return false
		}
	}
	return true
}

// nextDocument reads one document. yaml.v3 panics on some malformed inputs that
// it does not expect; for the author these are errors like any other.
func nextDocument(from *yaml.Decoder) (doc *yaml.Node, err error) {
	defer func() {
		if recover() != nil {
			doc, err = nil, errors.New("yaml: the text cannot be parsed")
		}
	}()
	doc = new(yaml.Node)
	if err := from.Decode(doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// syntaxFault reports what yaml.v3 refused. Its errors have no column, and no
// line or a wrong one: the place is found anew.
func (d *decoder) syntaxFault(text string, err error) {
	fault := locateSyntax(text, syntaxMessage(err), parseError)
	r := d.fault(fault.code, d.posAt(text, fault.at), "%s", fault.message)
	if fault.opener >= 0 {
		r.related(d.posAt(text, fault.opener), "it was opened here")
	}
	r.hint(fault.hint)
}

// parseError parses text and returns what yaml.v3 says against it, "" when
// nothing, and how many bytes it had looked at by then.
func parseError(text string) (message string, read int) {
	from := &runeReader{text: text}
	decoder := yaml.NewDecoder(from)
	for {
		_, err := nextDocument(decoder)
		if errors.Is(err, io.EOF) {
			return "", from.read
		}
		if err != nil {
			return syntaxMessage(err), from.read
		}
	}
}

// syntaxMessage is the message of an error of yaml.v3 without its line.
func syntaxMessage(err error) string {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		if _, after, ok := strings.Cut(rest, ": "); ok {
			message = after
		}
	}
	return message
}

// runeReader hands out one character at a time, so that a reader reads no
// further than it needs.
type runeReader struct {
	text string
	read int
}

func (r *runeReader) Read(p []byte) (int, error) {
	if r.read == len(r.text) {
		return 0, io.EOF
	}
	_, size := utf8.DecodeRuneInString(r.text[r.read:])
	n := copy(p, r.text[r.read:r.read+size])
	r.read += n
	return n, nil
}

func (d *decoder) yamlPos(n *yaml.Node) Pos {
	return Pos{File: d.file, Line: n.Line, Column: n.Column}
}

// convert turns n, and what stands in it, into a node. label is what messages
// call it; depth is how deep it stands.
func (d *decoder) convert(n *yaml.Node, label string, depth int) *node {
	pos := d.yamlPos(n)
	out := &node{pos: pos, label: label}
	if n.Kind == yaml.AliasNode {
		d.fault(CodeAlias, pos, "an alias, %s, cannot stand in a specification", quote("*"+n.Value)).
			hint(aliasHint)
		return out
	}
	if n.Anchor != "" {
		d.fault(CodeAlias, pos, "an anchor, %s, cannot stand in a specification", quote("&"+n.Anchor)).
			hint("remove it; a text that begins with & stands in quotes")
	}
	if depth > maxNesting {
		d.fault(CodeNesting, pos, tooDeep)
		return out
	}
	switch n.Kind {
	case yaml.ScalarNode:
		d.convertScalar(n, out)
	case yaml.SequenceNode:
		d.checkTag(n, pos, "!!seq")
		out.kind = list
		for _, item := range n.Content {
			out.items = append(out.items, d.convert(item, "an item of "+label, depth+1))
		}
	case yaml.MappingNode:
		d.checkTag(n, pos, "!!map")
		out.kind = mapping
		d.convertEntries(n, out, depth)
	}
	return out
}

func (d *decoder) convertScalar(n *yaml.Node, out *node) {
	out.value = n.Value
	tag := "!!str"
	if n.Style&^yaml.TaggedStyle == 0 {
		tag = (&yaml.Node{Kind: yaml.ScalarNode, Value: n.Value}).ShortTag()
	}
	if n.Style&yaml.TaggedStyle != 0 && n.Tag == "!!str" {
		tag = "!!str"
	}
	d.checkTag(n, out.pos, tag)
	switch tag {
	case "!!null":
		out.kind = null
	case "!!bool":
		out.kind = boolean
	case "!!int", "!!float":
		out.kind = number
	default: // also what YAML 1.1 took for a time: in YAML 1.2 it is a text
		out.kind = text
	}
}

// checkTag refuses a tag that makes a value into something else than it is
// without the tag.
func (d *decoder) checkTag(n *yaml.Node, pos Pos, own string) {
	if n.Style&yaml.TaggedStyle != 0 && n.Tag != own {
		d.fault(CodeTag, pos, "the tag %s cannot stand in a specification", quote(n.Tag)).
			hint(tagHint)
	}
}

func (d *decoder) convertEntries(n *yaml.Node, out *node, depth int) {
	if len(n.Content) == 2 && n.Content[0].Kind == yaml.MappingNode {
		d.fault(CodeWrongKind, out.pos, "a mapping cannot be a key").
			hint("a text that begins with {{ stands in quotes")
		out.kind = broken
		return
	}
	seen := make(map[string]Pos, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := d.convertKey(n.Content[i])
		label := key.value
		if key.kind != text {
			label = "the value"
		}
		value := d.convert(n.Content[i+1], label, depth+1)
		if key.kind != text {
			continue // reported
		}
		if first, ok := seen[key.value]; ok {
			d.fault(CodeDuplicateKey, key.pos, "the key %s stands here a second time", quote(key.value)).
				related(first, "it stands here first")
			continue
		}
		seen[key.value] = key.pos
		out.entries = append(out.entries, entry{key: key.value, pos: key.pos, value: value})
	}
}

// convertKey reads a key. The result is of kind text, or the fault is reported.
func (d *decoder) convertKey(n *yaml.Node) *node {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!merge" {
		d.fault(CodeMergeKey, d.yamlPos(n), "a merge key, <<, cannot stand in a specification").
			hint("write out the keys that it would bring")
		return &node{pos: d.yamlPos(n)}
	}
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		d.fault(CodeWrongKind, d.yamlPos(n), "a key must be a name").
			hint("a text that begins with { or [ stands in quotes")
		return &node{pos: d.yamlPos(n)}
	}
	key := d.convert(n, "a key", 1)
	if key.kind != text && key.kind != broken {
		f := d.fault(CodeWrongKind, key.pos, "a key must be a name, found %s", key.describe())
		if key.value != "" {
			f.hint(fmt.Sprintf("put it in quotes if it is meant as a text: \"%s\"", key.value))
		}
		key.kind = broken
	}
	return key
}

// posAt is the place of the character at a byte offset of text.
func (d *decoder) posAt(text string, offset int) Pos {
	before := text[:offset]
	lineStart := strings.LastIndexByte(before, '\n') + 1
	return Pos{
		File:   d.file,
		Line:   1 + strings.Count(before, "\n"),
		Column: 1 + utf8.RuneCountInString(before[lineStart:]),
	}
}
