package emit

import (
	"bytes"
	"go/parser"
	"go/token"
	"strings"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/templates"
)

// runtimeFile is a fixed file as it is emitted: under the package's own name,
// with the header of what is generated, and otherwise as it is written.
func runtimeFile(packageName string, file templates.File) ([]byte, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file.Name, file.Source, parser.PackageClauseOnly)
	if err != nil {
		return nil, err
	}
	name := files.Position(parsed.Name.Pos()).Offset
	var out bytes.Buffer
	out.WriteString(Header + "\n\n")
	out.Write(file.Source[:name])
	out.WriteString(packageName)
	out.Write(file.Source[name+len(parsed.Name.Name):])
	return out.Bytes(), nil
}

// otelFile is the fixed file that only packages have that ask for it: it imports
// modules that the others do not need.
const otelFile = "otel.go"

// runtimeFiles are the fixed files of a package.
func runtimeFiles(m *model.Model) ([]File, error) {
	var files []File
	for _, file := range templates.Runtime() {
		if file.Name == otelFile && !m.OTel {
			continue
		}
		content, err := runtimeFile(m.Package, file)
		if err != nil {
			return nil, err
		}
		files = append(files, File{Path: strings.TrimSuffix(file.Name, ".go") + ".gen.go", Content: content})
	}
	return files, nil
}
