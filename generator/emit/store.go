package emit

import (
	"strconv"
	"strings"
	"time"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/schema"
)

// Outbox is the source of outbox.gen.go: the package's documentation, the
// command and its columns, and the functions by which the store's fixed code
// passes and reads these.
func Outbox(m *model.Model) ([]byte, error) {
	f := newFile(m.Package)
	f.PackageComment(docLines(packageDoc(m)...))
	commandID(f, m.Store.Command)
	command(f, m.Store)
	columns(f, m.Store)
	columnsStored(f, m.Store)
	columnsFilter(f, m.Store)
	commandCheck(f, m.Store)
	commandArgs(f, m.Store)
	storedCommand(f, m.Store)
	return source(f)
}

// packageDoc begins as Go wants it; the user's text stands alone when it does
// so itself.
func packageDoc(m *model.Model) []string {
	if strings.HasPrefix(m.Doc, "Package "+m.Package+" ") {
		return []string{m.Doc}
	}
	return []string{
		"Package " + m.Package + " is a transactional outbox: messages are stored in the\n" +
			"transaction of the change that they tell of, and delivered from the database.",
		m.Doc,
	}
}

func commandID(f *jen.File, column model.Column) {
	declare(f, []string{"CommandID is what a row is traced back to: the caller's own id of the unit of\n" +
		"work that enqueued it, in the column " + oneLine(column.Name) + "."},
		jen.Type().Id("CommandID").Add(columnGoType(column.Type)))
	receiver := jen.Id("id").Id("CommandID")
	plain := plainID(column.Type, jen.Id("id"))
	text := plain
	switch column.Type {
	case schema.ColumnUUID:
		text = plain.Clone().Dot("String").Call()
	case schema.ColumnBigint:
		text = jen.Qual(pathStrconv, "FormatInt").Call(plain, jen.Lit(10))
	}
	declare(f, nil, jen.Func().Params(receiver).Id("String").Params().String().Add(inline(jen.Return(text))))
	if column.Type != schema.ColumnUUID {
		return
	}
	declare(f, []string{"MarshalText writes the id as String does."},
		jen.Func().Params(receiver).Id("MarshalText").Params().Params(jen.Index().Byte(), jen.Error()).
			Add(inline(jen.Return(plain.Clone().Dot("MarshalText").Call()))))
	declare(f, []string{"UnmarshalText reads what MarshalText writes."},
		jen.Func().Params(jen.Id("id").Op("*").Id("CommandID")).Id("UnmarshalText").Params(jen.Id("text").Index().Byte()).Error().
			Add(inline(jen.Return(jen.Parens(jen.Op("*").Add(columnGoType(column.Type))).Call(jen.Id("id")).Dot("UnmarshalText").Call(jen.Id("text"))))))
}

func command(f *jen.File, store model.Store) {
	declare(f, []string{"Command is what rows are enqueued for. [NewCommand] makes it."}, jen.Type().Id("Command").Struct(
		jen.Id("id").Id("CommandID"),
		jen.Id("columns").Id("Columns"),
	))

	params := []jen.Code{jen.Id("id").Id("CommandID")}
	var values []jen.Code
	for _, c := range store.Columns {
		if !c.Optional {
			params = append(params, jen.Id(c.GoArg).Add(columnGoType(c.Type)))
			values = append(values, jen.Id(c.GoName).Op(":").Id(c.GoArg))
		}
	}
	members := []jen.Code{jen.Id("id").Op(":").Id("id")}
	if len(values) > 0 {
		members = append(members, jen.Id("columns").Op(":").Id("Columns").Add(elements(values)))
	}
	declare(f, []string{"NewCommand returns the command of an id, with the columns that every row has."},
		jen.Func().Id("NewCommand").Params(params...).Id("Command").Block(
			jen.Return(jen.Id("Command").Values(members...)),
		))

	for _, c := range store.Columns {
		if !c.Optional {
			continue
		}
		doc := "With" + c.GoName + " returns a copy of the command with the column " + oneLine(c.Name) + " set"
		if c.HasDefault {
			doc += "; without it the\ncolumn has its default"
		}
		declare(f, []string{doc + "."}, jen.Func().Params(jen.Id("c").Id("Command")).Id("With"+c.GoName).
			Params(jen.Id(c.GoArg).Add(columnGoType(c.Type))).Id("Command").Block(
			jen.Id("c").Dot("columns").Dot(c.GoName).Op("=").Op("&").Id(c.GoArg),
			jen.Return(jen.Id("c")),
		))
	}
}

func columns(f *jen.File, store model.Store) {
	var members []jen.Code
	for _, c := range store.Columns {
		doc := orElse(c.Doc, c.GoName+" is the column "+oneLine(c.Name)+".")
		if c.Optional {
			doc = strings.TrimRight(doc, "\n") + "\nIt is nil where the row has none."
		}
		members = append(members, jen.Comment(docLines(doc)), jen.Id(c.GoName).Add(columnType(c)))
	}
	declare(f, []string{"Columns are the further columns of a row."}, jen.Type().Id("Columns").Struct(members...))
}

// columnsFilter declares what rows are listed by.
func columnsFilter(f *jen.File, store model.Store) {
	var members, values []jen.Code
	var body []jen.Code
	for _, c := range store.Columns {
		field := jen.Id("f").Dot(c.GoName)
		members = append(members, jen.Id(c.GoName).Op("*").Add(columnGoType(c.Type)))
		values = append(values, field)
		if c.Type == schema.ColumnText {
			body = append(body, jen.If(field.Clone().Op("!=").Nil().Op("&&").Op("!").Id("storableText").Call(jen.Op("*").Add(field))).Block(
				jen.Return(jen.Qual(pathErrors, "New").Call(jen.Lit("the column "+oneLine(c.Name)+" holds NUL or is not UTF-8"))),
			))
		}
	}
	declare(f, []string{"ColumnsFilter says which columns the rows of a [Filter] have; nil leaves a column\nout of account."},
		jen.Type().Id("ColumnsFilter").Struct(members...))
	if len(body) == 0 {
		declare(f, nil, jen.Func().Params(jen.Id("ColumnsFilter")).Id("check").Params().Error().Add(inline(jen.Return(jen.Nil()))))
	} else {
		declare(f, nil, jen.Func().Params(jen.Id("f").Id("ColumnsFilter")).Id("check").Params().Error().
			Block(append(body, jen.Return(jen.Nil()))...))
	}
	columnsMatch(f, store)
	receiver := jen.Id("f").Id("ColumnsFilter")
	if len(values) == 0 {
		receiver = jen.Id("ColumnsFilter")
	}
	declare(f, nil, jen.Func().Params(receiver).Id("args").Params().Index().Any().Block(
		jen.Return(jen.Index().Any().Add(elements(values))),
	))
}

// columnsMatch declares the filter's test, which the store in memory makes where
// Postgres is asked otherwise.
func columnsMatch(f *jen.File, store model.Store) {
	const doc = "match tells whether a row with these columns passes the filter."
	if len(store.Columns) == 0 {
		declare(f, []string{doc}, jen.Func().Params(jen.Id("ColumnsFilter")).Id("match").Params(jen.Id("Columns")).Bool().
			Add(inline(jen.Return(jen.True()))))
		return
	}
	var body []jen.Code
	for _, c := range store.Columns {
		wanted, got := jen.Id("f").Dot(c.GoName), jen.Id("c").Dot(c.GoName)
		value := got
		differs := jen.Null()
		if c.Optional {
			value = jen.Op("*").Add(got)
			differs = got.Clone().Op("==").Nil().Op("||")
		}
		if c.Type == schema.ColumnTimestamptz {
			differs.Op("!").Add(got.Clone()).Dot("Equal").Call(jen.Id("stamp").Call(jen.Op("*").Add(wanted)))
		} else {
			differs.Add(value).Op("!=").Op("*").Add(wanted)
		}
		if c.Optional {
			differs = jen.Parens(differs)
		}
		body = append(body, jen.If(wanted.Clone().Op("!=").Nil().Op("&&").Add(differs)).Block(jen.Return(jen.False())))
	}
	declare(f, []string{doc}, jen.Func().Params(jen.Id("f").Id("ColumnsFilter")).Id("match").Params(jen.Id("c").Id("Columns")).Bool().
		Block(append(body, jen.Return(jen.True()))...))
}

// columnsStored declares what a column holds once it is stored: a default in the
// place of nil, and times to the microsecond.
func columnsStored(f *jen.File, store model.Store) {
	var body []jen.Code
	for _, c := range store.Columns {
		field := jen.Id("c").Dot(c.GoName)
		if c.Optional && c.HasDefault {
			body = append(body, jen.If(field.Clone().Op("==").Nil()).Block(
				jen.Id("value").Op(":=").Add(columnLiteral(c)),
				field.Clone().Op("=").Op("&").Id("value"),
			))
		}
		if c.Type == schema.ColumnTimestamptz {
			if c.Optional {
				body = append(body, jen.If(field.Clone().Op("!=").Nil()).Block(
					jen.Id("value").Op(":=").Id("stamp").Call(jen.Op("*").Add(field)),
					field.Clone().Op("=").Op("&").Id("value"),
				))
			} else {
				body = append(body, field.Clone().Op("=").Id("stamp").Call(field))
			}
		}
	}
	doc := []string{"stored is what a row holds of the columns."}
	declare(f, doc, jen.Func().Params(jen.Id("c").Id("Columns")).Id("stored").Params().Id("Columns").
		Block(append(body, jen.Return(jen.Id("c")))...))
}

// columnLiteral is the default of a column as a Go value of its type.
func columnLiteral(c *model.Column) jen.Code {
	switch c.Type {
	case schema.ColumnBigint:
		return jen.Int64().Call(jen.Op(c.Default))
	case schema.ColumnInteger:
		return jen.Int32().Call(jen.Op(c.Default))
	case schema.ColumnBoolean:
		return jen.Op(c.Default)
	case schema.ColumnUUID:
		return jen.Qual(pathUUID, "MustParse").Call(jen.Lit(c.Default))
	case schema.ColumnDate:
		day, _ := time.Parse(time.DateOnly, c.Default) // canonical
		return jen.Id("Date").Values(jen.Op(strconv.Itoa(day.Year())), jen.Qual(pathTime, day.Month().String()), jen.Op(strconv.Itoa(day.Day())))
	case schema.ColumnTimestamptz:
		instant, _ := time.Parse(time.RFC3339Nano, c.Default) // canonical
		return jen.Qual(pathTime, "UnixMicro").Call(jen.Op(strconv.FormatInt(instant.UnixMicro(), 10)))
	default:
		return jen.Lit(c.Default)
	}
}

// commandCheck declares the check of what Postgres would refuse, which would
// end the caller's transaction.
func commandCheck(f *jen.File, store model.Store) {
	var body []jen.Code
	refuse := func(condition jen.Code, message string) {
		body = append(body, jen.If(condition).Block(
			jen.Return(jen.Qual(pathErrors, "New").Call(jen.Lit(message)))))
	}
	const (
		badText = " holds NUL or is not UTF-8"
		badTime = " must lie within the years 1 to 9999"
		badDate = " is no date of the years 1 to 9999"
		tooLong = " is longer than 1024 bytes"
	)
	if store.Command.Type == schema.ColumnText {
		id := jen.Id("c").Dot("id")
		refuse(id.Clone().Op("==").Lit(""), "the command has no id")
		refuse(jen.Len(id).Op(">").Id("maxKey"), "the command's id"+tooLong)
		refuse(jen.Op("!").Id("storableText").Call(jen.String().Call(id)), "the command's id"+badText)
	}
	for _, c := range store.Columns {
		field := jen.Id("c").Dot("columns").Dot(c.GoName)
		value := field
		present := func(condition *jen.Statement) jen.Code { return condition }
		if c.Optional {
			value = jen.Op("*").Add(field)
			present = func(condition *jen.Statement) jen.Code {
				return field.Clone().Op("!=").Nil().Op("&&").Add(condition)
			}
		}
		name := "the column " + oneLine(c.Name)
		switch c.Type {
		case schema.ColumnText:
			if c.Index {
				refuse(present(jen.Len(value).Op(">").Id("maxKey")), name+tooLong)
			}
			refuse(present(jen.Op("!").Id("storableText").Call(value)), name+badText)
		case schema.ColumnTimestamptz:
			refuse(present(jen.Op("!").Id("storable").Call(value)), name+badTime)
		case schema.ColumnDate:
			refuse(present(jen.Op("!").Add(field).Dot("Valid").Call()), name+badDate)
		}
	}
	doc := []string{"check refuses what the columns cannot hold, before it is sent: afterwards the\n" +
		"caller's transaction could not be used any more."}
	if len(body) == 0 {
		declare(f, doc, jen.Func().Params(jen.Id("Command")).Id("check").Params().Error().Add(inline(jen.Return(jen.Nil()))))
		return
	}
	declare(f, doc, jen.Func().Params(jen.Id("c").Id("Command")).Id("check").Params().Error().
		Block(append(body, jen.Return(jen.Nil()))...))
}

func commandArgs(f *jen.File, store model.Store) {
	values := []jen.Code{plainID(store.Command.Type, jen.Id("c").Dot("id"))}
	for _, c := range store.Columns {
		values = append(values, jen.Id("c").Dot("columns").Dot(c.GoName))
	}
	declare(f, []string{"args are the parameters of the statements that store the command."},
		jen.Func().Params(jen.Id("c").Id("Command")).Id("args").Params().Index().Any().Block(
			jen.Return(jen.Index().Any().Add(elements(values))),
		))
}

func storedCommand(f *jen.File, store model.Store) {
	declare(f, []string{"storedCommand is a command as it is read from a row."}, jen.Type().Id("storedCommand").Struct(
		jen.Id("id").Id("CommandID"),
		jen.Id("columns").Id("Columns"),
	))
	targets := []jen.Code{jen.Id("list"), jen.Parens(jen.Op("*").Add(scannedType(store.Command.Type))).Call(jen.Op("&").Id("c").Dot("id"))}
	for _, c := range store.Columns {
		target := jen.Op("&").Id("c").Dot("columns").Dot(c.GoName)
		if c.Type == schema.ColumnUUID && !c.Optional {
			target = jen.Parens(jen.Op("*").Add(scannedType(c.Type))).Call(target)
		}
		targets = append(targets, target)
	}
	declare(f, []string{"targets adds what the columns of the command are scanned into."},
		jen.Func().Params(jen.Id("c").Op("*").Id("storedCommand")).Id("targets").Params(jen.Id("list").Index().Any()).Index().Any().Block(
			jen.Return(jen.Append(targets...)),
		))
}

// scannedType is the type that a column is scanned as: pgx goes by way of the text
// of a uuid.UUID, but not of its bytes.
func scannedType(t schema.ColumnType) *jen.Statement {
	if t == schema.ColumnUUID {
		return jen.Index(jen.Lit(16)).Byte()
	}
	return columnGoType(t)
}

// plainID is a command's id in the type that CommandID is defined on.
func plainID(t schema.ColumnType, id jen.Code) *jen.Statement { return columnGoType(t).Call(id) }

// columnType is the type of a column's field.
func columnType(c *model.Column) *jen.Statement {
	if c.Optional {
		return jen.Op("*").Add(columnGoType(c.Type))
	}
	return columnGoType(c.Type)
}

// columnGoType is the Go type of the values of a column.
func columnGoType(t schema.ColumnType) *jen.Statement {
	switch t {
	case schema.ColumnUUID:
		return jen.Qual(pathUUID, "UUID")
	case schema.ColumnBigint:
		return jen.Int64()
	case schema.ColumnInteger:
		return jen.Int32()
	case schema.ColumnBoolean:
		return jen.Bool()
	case schema.ColumnTimestamptz:
		return jen.Qual(pathTime, "Time")
	case schema.ColumnDate:
		return jen.Id("Date")
	default:
		return jen.String()
	}
}
