// Package templates holds what emitted packages have in common: the Go files
// that do not depend on a specification, and the templates of the SQL.
package templates

import (
	"embed"
	"strings"
)

// SQL holds the templates of the statements and of the tables, in its
// directory sql.
//
//go:embed sql/*.tmpl
var SQL embed.FS

//go:embed outbox/*.go
var outbox embed.FS

//go:embed outboxtest/*.go
var outboxtest embed.FS

// TestKitImport is the path by which the files of [TestKit] import the package
// that they are for.
const TestKitImport = "github.com/outboxgen/outboxgen/templates/outbox"

// File is a Go file of one of the packages.
type File struct {
	Name   string // base name
	Source []byte
}

// Runtime returns the files that an emitted package shares with every other, by
// name. The package's tests, and the files that are themselves generated, from
// the specification beside them, are not among them.
func Runtime() []File { return files(outbox, "outbox") }

// TestKit returns the files of the package that helps to test what uses an
// emitted package, by name.
func TestKit() []File { return files(outboxtest, "outboxtest") }

func files(from embed.FS, dir string) []File {
	entries, err := from.ReadDir(dir)
	if err != nil {
		panic(err) // what is embedded can be read
	}
	var files []File
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".gen.go") {
			continue
		}
		source, err := from.ReadFile(dir + "/" + name)
		if err != nil {
			panic(err)
		}
		files = append(files, File{Name: name, Source: source})
	}
	return files
}
