package doctest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBlocks(t *testing.T) {
	got, err := blocks("# Title\n```sh clone\nmake demo\n\nmake test\n```\nprose\n```\nplain\n```\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []block{
		{line: 2, language: "sh", about: "clone", lines: []string{"make demo", "", "make test"}},
		{line: 8, lines: []string{"plain"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(block{})); diff != "" {
		t.Error(diff)
	}
}

func TestBlocksThatWouldBeMissedAreRefused(t *testing.T) {
	for name, document := range map[string]string{
		"not closed":           "```sh\nmake\n",
		"indented":             "- item\n  ```sh\n  make\n  ```\n",
		"fenced with tildes":   "~~~sh\nmake\n~~~\n",
		"closed by a language": "```sh\nmake\n```sh\n",
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := blocks(document); err == nil {
				t.Errorf("no error, but %v", got)
			}
		})
	}
}

func TestQuoted(t *testing.T) {
	const source = "a\nb\n\tc\nd\ne\n"
	for _, c := range []struct {
		name  string
		lines string
		want  bool
	}{
		{"lines that follow each other", "b\n\tc", true},
		{"lines that are left out", "a\n// ...\nd", true},
		{"lines that are left out of YAML", "a\n  # ...\nd", true},
		{"a gap at either end", "// ...\nb\n// ...", true},
		{"a line that is not there", "a\nx", false},
		{"a gap that is not shown", "a\n\tc", false},
		{"other white space", "b\nc", false},
		{"another order", "d\n// ...\na", false},
		{"a part of a line", "a\nb\n\t", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := quoted(strings.Split(c.lines, "\n"), source); (err == nil) != c.want {
				t.Errorf("quoted gives %v", err)
			}
		})
	}
}

func TestSteps(t *testing.T) {
	got, err := steps([]string{"$ one", "1", "", "$ two", "$ three", "3"})
	if err != nil {
		t.Fatal(err)
	}
	want := []step{{"one", []string{"1", ""}}, {"two", nil}, {"three", []string{"3"}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(step{})); diff != "" {
		t.Error(diff)
	}
	if got, err := steps([]string{"1", "$ one"}); err == nil {
		t.Errorf("output before the first command gives no error, but %v", got)
	}
}

func TestPrints(t *testing.T) {
	for _, c := range []struct {
		name, shown, got string
		want             bool
	}{
		{"the same", "a\nb", "a\nb\n", true},
		{"nothing", "", "", true},
		{"any lines", "a\n...\nb", "a\n1\n2\nb\n", true},
		{"no lines where any may be", "a\n...\nb", "a\nb\n", true},
		{"any lines at both ends", "...\na\n...", "1\na\n2\n", true},
		{"blanks at the end of a line", "a", "a  \n", true},
		{"another line", "a", "b\n", false},
		{"a line more", "a", "a\nb\n", false},
		{"a line less", "a\nb", "a\n", false},
		{"output where none is shown", "", "a\n", false},
		{"a line that is longer", "...\na", "xa\n", false},
		{"what would be a pattern", "a.c", "abc\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var shown []string
			if c.shown != "" {
				shown = strings.Split(c.shown, "\n")
			}
			if got := prints(shown, c.got); got != c.want {
				t.Errorf("prints gives %t", got)
			}
		})
	}
}

func TestAlternatives(t *testing.T) {
	for _, c := range []struct {
		name, lines string
		want        []string
	}{
		{"one", "a: 1\nb:\n  a: 2\n", []string{"a: 1\nb:\n  a: 2\n\n"}},
		{"a key twice", "a: 1\na:\n  b: 2\n  b: 3", []string{"a: 1\n", "a:\n  b: 2\n  b: 3\n"}},
		{"two keys twice", "a: 1\nb: 1\na: 2\nb: 2", []string{"a: 1\nb: 1\n", "a: 2\nb: 2\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := alternatives(strings.Split(c.lines, "\n")); !slices.Equal(got, c.want) {
				t.Errorf("alternatives gives %q", got)
			}
		})
	}
}

func TestTestsThatAreNamed(t *testing.T) {
	const document = "`TestA` and `FuzzB_2`, by `Test`, `TestdataDir`, `a.TestC` and TestD.\n```go\n// `TestE`\n```\n"
	if got, want := tests(document), []string{"TestA", "FuzzB_2"}; !slices.Equal(got, want) {
		t.Errorf("tests gives %q, want %q", got, want)
	}
}

func TestLinksAndAnchors(t *testing.T) {
	const document = "# The `lock`, again\nSee [here](docs/a.md#b) and [there](#c).\n```sh\n# no heading\necho [x](no)\n```\n## ErrKeyReused_2\n"
	if got, want := links(document), []string{"docs/a.md#b", "#c"}; !slices.Equal(got, want) {
		t.Errorf("links gives %q", got)
	}
	want := map[string]bool{"the-lock-again": true, "errkeyreused_2": true}
	if diff := cmp.Diff(want, anchors(document)); diff != "" {
		t.Error(diff)
	}
}
