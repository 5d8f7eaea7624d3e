// Package emit turns a model into the bytes of Go files and of SQL. What
// depends on the model is written statement by statement; what does not is the
// package in templates, under the name of the emitted one.
package emit

import (
	"cmp"
	"slices"

	"github.com/outboxgen/outboxgen/generator/model"
)

// File is a Go file of the emitted package.
type File struct {
	Path    string // base name: the package has one directory
	Content []byte
	// Specific tells files that are written from the specification from those
	// that every package has, less what it does not need.
	Specific bool
}

// Files returns every Go file of the package, by path.
func Files(m *model.Model) ([]File, error) {
	var files []File
	for _, specific := range []struct {
		name string
		emit func(*model.Model) ([]byte, error)
	}{
		{"outbox.gen.go", Outbox},
		{"payloads.gen.go", Payloads},
		{"destinations.gen.go", Destinations},
		{"sql.gen.go", SQL},
	} {
		content, err := specific.emit(m)
		if err != nil {
			return nil, err
		}
		files = append(files, File{Path: specific.name, Content: content, Specific: true})
	}
	fixed, err := runtimeFiles(m)
	if err != nil {
		return nil, err
	}
	files = append(files, fixed...)
	slices.SortFunc(files, func(x, y File) int { return cmp.Compare(x.Path, y.Path) })
	return prune(files)
}
