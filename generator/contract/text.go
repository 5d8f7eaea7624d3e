package contract

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/schema"
)

// preamble begins every lock. Its first line marks the file as the generator's.
const preamble = "# " + Marker + `
# The memory of outboxgen: commit it together with the generated files. After a
# merge conflict take either side as a whole and run outboxgen generate again.
`

// Bytes is the text of the lock: sorted, one fact a line, so that two branches
// collide where they touch the same fact, and always where both add a migration.
func (l *Lock) Bytes() []byte {
	w := writer{}
	w.text.WriteString(preamble)
	w.fact("format", strconv.Itoa(Format))
	w.fact("layout", strconv.Itoa(Layout))

	if l.Tables.Schema != "" {
		w.fact("schema", l.Tables.Schema)
	}
	w.fact("table", l.Tables.Table)
	w.fact("command", l.Tables.Command.Name, string(l.Tables.Command.Type))
	for _, c := range l.Tables.Columns {
		words := []string{"column", c.Name, string(c.Type), presence(c.Optional)}
		if c.Index {
			words = append(words, "index")
		}
		if c.HasDefault {
			words = append(words, "default", c.Default)
		}
		w.fact(words...)
	}
	for _, d := range l.Destinations {
		w.fact("destination", d.Name)
		for _, p := range d.Accepts {
			w.fact("destination", d.Name, "accepts", p)
		}
	}
	for _, p := range l.Payloads {
		w.fact("payload", p.kind())
		w.fields(p.Fields, "payload", p.kind())
	}
	for _, t := range l.Types {
		if t.Enum {
			w.fact("type", t.Name, "enum")
			for _, v := range t.Values {
				w.fact("type", t.Name, "value", v)
			}
			continue
		}
		w.fact("type", t.Name, "object")
		w.fields(t.Fields, "type", t.Name)
	}
	for _, f := range l.Files {
		w.fact("file", f)
	}
	for _, m := range l.Migrations {
		w.fact("migration", string(m.Format), m.Name, m.Hash, m.Chain)
	}
	return []byte(w.text.String())
}

type writer struct{ text strings.Builder }

func (w *writer) fact(words ...string) {
	for i, word := range words {
		if i > 0 {
			w.text.WriteByte(' ')
		}
		w.text.WriteString(quote(word))
	}
	w.text.WriteByte('\n')
}

func (w *writer) fields(fields []Field, owner ...string) {
	for _, f := range fields {
		w.fact(append(owner[:len(owner):len(owner)], "field", f.Name, f.Type, presence(f.Optional))...)
	}
}

func presence(optional bool) string {
	if optional {
		return "optional"
	}
	return "required"
}

// quote is the word as the lock writes it: as it is where it is plain, else as
// a Go string in ASCII.
func quote(word string) string {
	for _, r := range word {
		if !isPlain(r) {
			return strconv.QuoteToASCII(word)
		}
	}
	if word == "" {
		return `""`
	}
	return word
}

func isPlain(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_.-/@<>+:", r)
}

// Hash is the SHA-256 of a file's content, in hexadecimal. CRLF counts as LF:
// a checkout may have changed it.
func Hash(content []byte) string {
	return sum(strings.ReplaceAll(string(content), "\r\n", "\n"))
}

func sum(text string) string {
	digest := sha256.Sum256([]byte(text))
	return hex.EncodeToString(digest[:])
}

// Link returns the entry of the next file behind those in before.
func Link(before []Migration, format schema.MigrationFormat, name string, content []byte) Migration {
	m := Migration{Format: format, Name: name, Hash: Hash(content)}
	previous := ""
	if len(before) > 0 {
		previous = before[len(before)-1].Chain
	}
	m.Chain = m.link(previous)
	return m
}

// link is the chain of m behind the file whose chain is previous.
func (m Migration) link(previous string) string {
	return sum(fmt.Sprintf("%s\n%q %s\n", previous, m.Name, m.Hash))
}
