package emit

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxgen/outboxgen/templates"
)

func TestPrune(t *testing.T) {
	const caller = "package p\n\nfunc Caller() { first() }\n"
	tests := map[string]struct {
		caller string // a file that is never pruned
		before string // of decode.gen.go
		after  string // empty = the file is gone
	}{
		"everything is used": {
			"package p\n\nfunc Caller() { first(); second() }\n",
			"package p\n\nfunc first() {}\n\nfunc second() {}\n",
			"package p\n\nfunc first() {}\n\nfunc second() {}\n",
		},
		"nothing is used": {
			"package p\n",
			"package p\n\n// first is exported for nobody.\nfunc first() { second() }\n\nfunc second() { first() }\n\ntype Third int\n",
			"",
		},
		"what is used by what is used stays": {
			caller,
			"package p\n\nfunc first() { second() }\n\nfunc second() { third() }\n\nfunc third() {}\n",
			"package p\n\nfunc first() { second() }\n\nfunc second() { third() }\n\nfunc third() {}\n",
		},
		"comments go with what they stand at": {
			caller,
			"package p\n\n// What follows.\n\n// first stays.\nfunc first() {} // here\n\n// second goes.\n//\n//nolint\nfunc second() {\n\t// inside\n}\n\n// The end.\n",
			"package p\n\n// What follows.\n\n// first stays.\nfunc first() {} // here\n\n// The end.\n",
		},
		"a local name is no use": {
			"package p\n\nfunc Caller(second int) int { first(); return second }\n",
			"package p\n\nfunc first() {}\n\nfunc second() {}\n",
			"package p\n\nfunc first() {}\n",
		},
		"a field or a method of the name is no use": {
			"package p\n\ntype t struct{ second int }\n\nfunc (t t) third() { first(); _ = t.second; t.third(); _ = t{second: 1} }\n",
			"package p\n\nfunc first() {}\n\nfunc second() {}\n\nfunc third() {}\n",
			"package p\n\nfunc first() {}\n",
		},
		"of methods the exported stay with their type": {
			"package p\n\nvar V t\n",
			"package p\n\ntype t int\n\nfunc (t) Exported() { t(0).called() }\n\nfunc (t) called() {}\n\nfunc (t) idle() {}\n\ntype u int\n\nfunc (u) Exported() {}\n",
			"package p\n\ntype t int\n\nfunc (t) Exported() { t(0).called() }\n\nfunc (t) called() {}\n",
		},
		"generic functions and types": {
			"package p\n\nvar V = first[int](func(x pair[int, string]) int { return 0 })\n",
			"package p\n\ntype pair[K, V any] struct{}\n\nfunc (p pair[K, V]) called() {}\n\nfunc (p pair[K, V]) idle() {}\n\nfunc first[T any](f func(pair[T, string]) T) T {\n\tpair[T, string]{}.called()\n\treturn f(pair[T, string]{})\n}\n\nfunc second[T any]() {}\n",
			"package p\n\ntype pair[K, V any] struct{}\n\nfunc (p pair[K, V]) called() {}\n\nfunc first[T any](f func(pair[T, string]) T) T {\n\tpair[T, string]{}.called()\n\treturn f(pair[T, string]{})\n}\n",
		},
		"in a group of constants those that are not used go": {
			"package p\n\nconst C = b\n",
			"package p\n\n// The constants.\nconst (\n\taaaaaa = 1 // goes\n\t// stays\n\tb = 2\n\tcc = 3\n)\n\nconst (\n\td = 4\n)\n",
			"package p\n\n// The constants.\nconst (\n\t// stays\n\tb = 2\n)\n",
		},
		"imports that are no longer used go": {
			caller,
			"package p\n\nimport (\n\t\"fmt\"\n\t\"os\"\n\n\t\"example.com/x/uuid\"\n)\n\nfunc first() { fmt.Println() }\n\nfunc second(uuid.UUID) { os.Exit(1) }\n",
			"package p\n\nimport (\n\t\"fmt\"\n)\n\nfunc first() { fmt.Println() }\n",
		},
		"the last import goes": {
			caller,
			"package p\n\nimport \"os\"\n\nfunc first() {}\n\nfunc second() { os.Exit(1) }\n",
			"package p\n\nfunc first() {}\n",
		},
		"what is handed to a package that is not here is used": {
			"package p\n\nimport \"example.com/x/uuid\"\n\nvar V = uuid.Make(first, func() { second() })\n",
			"package p\n\nfunc first() {}\n\nfunc second() {}\n",
			"package p\n\nfunc first() {}\n\nfunc second() {}\n",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			files := []File{{Path: "caller.gen.go", Content: []byte(test.caller)}, {Path: "decode.gen.go", Content: []byte(test.before)}}
			for range 2 { // what is pruned is not pruned further
				var err error
				if files, err = prune(files); err != nil {
					t.Fatal(err)
				}
				got := map[string]string{}
				for _, file := range files {
					got[file.Path] = string(file.Content)
				}
				want := map[string]string{"caller.gen.go": test.caller}
				if test.after != "" {
					want["decode.gen.go"] = test.after
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestPrunedFilesExist(t *testing.T) {
	var names []string
	for _, file := range templates.Runtime() {
		names = append(names, strings.TrimSuffix(file.Name, ".go")+".gen.go")
	}
	for _, name := range prunedFiles {
		if !slices.Contains(names, name) {
			t.Errorf("there is no %s to prune", name)
		}
	}
}
