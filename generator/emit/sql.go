package emit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"text/template"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/schema"
	"github.com/outboxgen/outboxgen/templates"
)

// The numbers of parameters of the enqueue and the list statement before the
// user's columns.
const (
	enqueueParams = 14
	listParams    = 13
)

// sqlNames is what the templates of SQL see of a model: names, quoted and
// qualified, and no text of the user's that is not quoted.
type sqlNames struct {
	Message, Queue, Outcome, Hold, View, Migration string
	Command, CommandType                           string
	Channel, ChannelText                           string // for new messages: the name, and the name as a text
	Columns                                        []sqlColumn

	table string
}

type sqlColumn struct {
	Name      string // quoted
	Word      string // in a comment
	Type      string
	Optional  bool
	Default   string // a literal; "" = none
	Index     bool
	IndexName string // quoted
	Param     int    // in the enqueue statement
	Value     string // what the enqueue statement inserts

	FilterParam int // in the list statement
}

// Name is the quoted name of an index or a constraint: it stands in the schema
// of its table and is not qualified.
func (n sqlNames) Name(suffix string) string { return quoteIdent(n.table + suffix) }

func newSQLNames(m *model.Model) sqlNames {
	qualified := func(suffix string) string {
		name := quoteIdent(m.Store.Table + suffix)
		if m.Store.Schema != "" {
			name = quoteIdent(m.Store.Schema) + "." + name
		}
		return name
	}
	names := sqlNames{
		Message: qualified("_message"), Queue: qualified("_queue"), Outcome: qualified("_outcome"),
		Hold: qualified("_hold"), View: qualified(""), Migration: qualified("_migration"),
		Command: quoteIdent(m.Store.Command.Name), CommandType: string(m.Store.Command.Type),
		ChannelText: literal(schema.ColumnText, channel(m.Store)), Channel: quoteIdent(channel(m.Store)),
		table: m.Store.Table,
	}
	for i, c := range m.Store.Columns {
		column := sqlColumn{
			Name: quoteIdent(c.Name), Word: oneLine(c.Name), Type: string(c.Type), Optional: c.Optional, Index: c.Index,
			IndexName: quoteIdent(schema.ColumnIndex(m.Store.Table, c.Name)),
			Param:     enqueueParams + 1 + i, FilterParam: listParams + 1 + i,
		}
		column.Value = fmt.Sprintf("$%d::%s", column.Param, column.Type)
		if c.HasDefault {
			column.Default = literal(c.Type, c.Default)
			if c.Optional {
				column.Value = fmt.Sprintf("coalesce(%s, %s)", column.Value, column.Default)
			}
		}
		names.Columns = append(names.Columns, column)
	}
	return names
}

// maxName is the longest name in bytes that Postgres takes.
const maxName = 63

// channel is the name of the channel on which is told of new messages. One that
// would be too long is told from others by a hash.
func channel(s model.Store) string {
	name := s.Table
	if s.Schema != "" {
		name = s.Schema + "." + name
	}
	if len(name) > maxName {
		hash := sha256.Sum256([]byte(name))
		name = s.Table + "_" + hex.EncodeToString(hash[:4])
	}
	return name
}

// quoteIdent quotes an identifier, so that any name is possible and none is SQL.
func quoteIdent(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// literal is the SQL constant of a canonical text.
func literal(t schema.ColumnType, text string) string {
	switch t {
	case schema.ColumnBigint, schema.ColumnInteger, schema.ColumnBoolean:
		return text
	}
	quoted := "'" + strings.ReplaceAll(text, "'", "''") + "'"
	if strings.Contains(text, `\`) {
		// E'' means the same whatever standard_conforming_strings says.
		quoted = "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	if t == schema.ColumnText {
		return quoted
	}
	return quoted + "::" + string(t)
}

// oneLine is a name as it may stand within a comment.
func oneLine(name string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return '_'
		}
		return r
	}, name)
}

// render executes the template of a whole file.
func render(file string, m *model.Model) (string, error) {
	source, err := templates.SQL.ReadFile("sql/" + file)
	if err != nil {
		return "", err
	}
	t, err := template.New(file).Parse(string(source))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	if err := t.Execute(&out, newSQLNames(m)); err != nil {
		return "", err
	}
	return out.String(), nil
}

// TablesUp is the SQL that makes the tables, without the marker of a file.
func TablesUp(m *model.Model) (string, error) { return render("tables.sql.tmpl", m) }

// TablesDown is the SQL that drops what TablesUp makes.
func TablesDown(m *model.Model) (string, error) { return render("tables_down.sql.tmpl", m) }

// statement is one query of the package: the constant, the comment that goes on
// from its name, and the SQL.
type statement struct {
	name, doc, body string
}

// statements renders the queries. The template is split before it is executed,
// since an identifier of the user's may hold whatever marks a statement.
func statements(m *model.Model) ([]statement, error) {
	source, err := templates.SQL.ReadFile("sql/queries.sql.tmpl")
	if err != nil {
		return nil, err
	}
	shared, rest, _ := strings.Cut(string(source), "\n-- name: ")
	names := newSQLNames(m)
	fill := func(text string) (string, error) {
		t, err := template.New("queries").Parse(shared)
		if err != nil {
			return "", err
		}
		if t, err = t.New("statement").Parse(strings.TrimSpace(text)); err != nil {
			return "", err
		}
		var out strings.Builder
		err = t.Execute(&out, names)
		return out.String(), err
	}
	var all []statement
	for _, part := range strings.Split(rest, "\n-- name: ") {
		name, text, _ := strings.Cut(part, "\n")
		var doc strings.Builder
		for strings.HasPrefix(text, "-- ") {
			var line string
			line, text, _ = strings.Cut(text, "\n")
			doc.WriteString("\n//" + strings.TrimPrefix(line, "--"))
		}
		s := statement{name: "sql" + strings.ToUpper(name[:1]) + name[1:]}
		if s.doc, err = fill(strings.TrimPrefix(doc.String(), "\n// ")); err != nil {
			return nil, err
		}
		if s.body, err = fill(text); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// SQL is the source of sql.gen.go: every statement of the package, and the
// steps by which Migrate makes its tables.
func SQL(m *model.Model) ([]byte, error) {
	queries, err := statements(m)
	if err != nil {
		return nil, err
	}
	up, err := TablesUp(m)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\npackage %s\n", Header, m.Package)
	for _, q := range queries {
		fmt.Fprintf(&b, "\n// %s %s\nconst %s = %s\n", q.name, q.doc, q.name, goText(q.body))
	}
	names := newSQLNames(m)
	fmt.Fprintf(&b, "\n// The names that Migrate looks for, as to_regclass takes them.\nconst (\nmigrationTable = %s\nmessageTable = %s\n)\n",
		strconv.Quote(names.Migration), strconv.Quote(names.Message))
	fmt.Fprintf(&b, "\n// migrationSteps are the steps from no tables to those of this package, in their order.\nvar migrationSteps = []string{sqlStep1}\n")
	fmt.Fprintf(&b, "\n// sqlStep1 makes the tables.\nconst sqlStep1 = %s\n", goText(strings.TrimRight(up, "\n")))
	return format([]byte(b.String()))
}

// goText is a Go string constant of several lines: raw where that is possible,
// so that SQL reads as SQL.
func goText(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r == '`' || r != '\n' && !strconv.IsPrint(r) }) {
		lines := strings.SplitAfter(s, "\n")
		for i, line := range lines {
			lines[i] = strconv.Quote(line)
		}
		return strings.Join(lines, " +\n")
	}
	return "`" + s + "`"
}
