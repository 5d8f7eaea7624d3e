package emit

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/templates"
)

// TestKit returns the files of the package that helps to test what uses the
// emitted package, whose import path is given. It lies in a directory of its own
// below, so that no program has it in it that only delivers.
func TestKit(m *model.Model, importPath string) ([]File, error) {
	name := m.Package + "test"
	imported := strconv.Quote(importPath)
	if m.Package != "outbox" { // which the files call it
		imported = "outbox " + imported
	}
	policies, err := kitPolicies(m, name)
	if err != nil {
		return nil, err
	}
	files := []File{{Path: "policies.gen.go", Content: policies, Specific: true}}
	for _, file := range templates.TestKit() {
		file.Source = bytes.Replace(file.Source, []byte("// Package outboxtest "), []byte("// Package "+name+" "), 1)
		content, err := runtimeFile(name, file)
		if err != nil {
			return nil, err
		}
		files = append(files, File{Path: strings.TrimSuffix(file.Name, ".go") + ".gen.go", Content: content})
	}
	for i := range files {
		files[i].Path = name + "/" + files[i].Path
		files[i].Content = bytes.Replace(files[i].Content, []byte(strconv.Quote(templates.TestKitImport)), []byte(imported), 1)
	}
	return files, nil
}

// kitPolicies is the source of policies.gen.go of the test kit: what the
// conformance suite has to know of the specification, and the package keeps to
// itself.
func kitPolicies(m *model.Model, name string) ([]byte, error) {
	f := newFile(name)
	f.ImportName(templates.TestKitImport, "outbox")
	declare(f, []string{"tableSchema is the schema that the specification names; empty = the search path\ndecides."},
		jen.Const().Id("tableSchema").Op("=").Lit(m.Store.Schema))
	var policies []jen.Code
	for _, d := range m.Destinations {
		if !d.Retired { // nothing can be enqueued for it
			policies = append(policies, kitPolicy(d))
		}
	}
	declare(f, []string{"policies has every destination that takes messages, by name."},
		jen.Var().Id("policies").Op("=").Index().Id("policy").Add(lines(policies)))
	return source(f)
}

func kitPolicy(d *model.Destination) jen.Code {
	var values []jen.Code
	set := func(field string, value jen.Code) { values = append(values, jen.Id(field).Op(":").Add(value)) }

	set("destination", jen.Qual(templates.TestKitImport, constantOf(d)))
	set("idempotent", jen.Lit(d.Idempotent))
	if len(d.OrderBy) > 0 {
		set("ordered", jen.True())
	}
	if len(d.IdempotencyKey) > 0 {
		set("keyed", jen.True())
	}
	set("lease", duration(d.Lease))
	set("maxAttempts", jen.Lit(d.Retry.MaxAttempts))
	switch {
	case d.Asked():
		set("firstQuestion", duration(d.Reconcile.First))
		if d.Reconcile.GiveUp != 0 {
			set("giveUp", duration(d.Reconcile.GiveUp))
		}
	case !d.Idempotent:
		set("byHand", jen.True())
	}
	set("keepCompleted", keep(d.KeepCompleted))
	set("keepFailed", keep(d.KeepFailed))
	if d.Expires != 0 {
		set("expires", duration(d.Expires))
	}
	return lines(values)
}
