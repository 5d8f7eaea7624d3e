// Package emit turns a model into the bytes of Go files and of SQL. What
// depends on the model is written statement by statement; what does not is the
// package in templates, under the name of the emitted one.
package emit

import (
	"cmp"
	"slices"
	"sync"

	"github.com/outboxgen/outboxgen/generator/model"
)

// File is a Go file of the emitted package, or of its test kit.
type File struct {
	Path    string // slash-separated, relative to the package's directory
	Content []byte
	// Specific tells files that are written from the specification from those
	// that every package has, less what it does not need.
	Specific bool
}

// Files returns every Go file of the package, by path.
func Files(m *model.Model) ([]File, error) {
	specific := []struct {
		name string
		emit func(*model.Model) ([]byte, error)
	}{
		{"outbox.gen.go", Outbox},
		{"payloads.gen.go", Payloads},
		{"destinations.gen.go", Destinations},
		{"handlers.gen.go", HandlerInterfaces},
		{"sql.gen.go", SQL},
	}
	files := make([]File, len(specific))
	err := inParallel(len(specific), func(i int) error {
		content, err := specific[i].emit(m)
		files[i] = File{Path: specific[i].name, Content: content, Specific: true}
		return err
	})
	if err != nil {
		return nil, err
	}
	fixed, err := runtimeFiles(m)
	if err != nil {
		return nil, err
	}
	files = append(files, fixed...)
	slices.SortFunc(files, func(x, y File) int { return cmp.Compare(x.Path, y.Path) })
	return prune(files)
}

// inParallel calls do for 0 to n-1, all at once, and returns the error of the
// first that failed in that order. To format is most of the work of a run.
func inParallel(n int, do func(int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = do(i)
		}()
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
