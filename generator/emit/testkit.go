package emit

import (
	"bytes"
	"strconv"
	"strings"

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
	var files []File
	for _, file := range templates.TestKit() {
		file.Source = bytes.Replace(file.Source, []byte(strconv.Quote(templates.TestKitImport)), []byte(imported), 1)
		file.Source = bytes.Replace(file.Source, []byte("// Package outboxtest "), []byte("// Package "+name+" "), 1)
		content, err := runtimeFile(name, file)
		if err != nil {
			return nil, err
		}
		files = append(files, File{Path: name + "/" + strings.TrimSuffix(file.Name, ".go") + ".gen.go", Content: content})
	}
	return files, nil
}
