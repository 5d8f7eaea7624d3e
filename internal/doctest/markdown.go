// Package doctest holds the documents of the project to what they show.
//
// Commands are run, in the order of the document: those of sh blocks, and those
// of console blocks, whose output must be the one that is shown. They run in a
// module that a reader might have, or, where the word clone stands behind the
// language, in a clone of this repository. SQL is run on a Postgres that has the
// tables of the outbox. Go is quoted from a file, whose path stands behind the
// language; so may be YAML, which otherwise must be a specification, or a part of
// one.
package doctest

import (
	"fmt"
	"regexp"
	"strings"
)

// block is a fenced block of a document.
type block struct {
	line     int    // of the opening fence, from 1
	language string // the first word behind the fence
	about    string // the rest, which readers do not see
	lines    []string
}

func (b block) text() string { return strings.Join(b.lines, "\n") + "\n" }

// blocks finds the fenced blocks of a document.
func blocks(document string) ([]block, error) {
	var all []block
	var open *block
	for i, line := range strings.Split(document, "\n") {
		trimmed := strings.TrimSpace(line)
		fence := strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~")
		switch {
		case open == nil && fence:
			language, about, _ := strings.Cut(trimmed[len("```"):], " ")
			open = &block{line: i + 1, language: language, about: about}
			if trimmed != line || trimmed[0] == '~' {
				return nil, fmt.Errorf("line %d: a fence is written as ``` at the beginning of the line", i+1)
			}
		case open != nil && line == "```":
			all = append(all, *open)
			open = nil
		case open != nil:
			open.lines = append(open.lines, line)
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block is not closed", open.line)
	}
	return all, nil
}

// quoted reports why the lines are not a quotation of source. A line that holds
// nothing but a comment of three dots stands for lines that are left out; what
// is between two of them must be whole lines of the source, without a gap.
func quoted(lines []string, source string) error {
	rest := strings.Split(source, "\n")
	for len(lines) > 0 {
		n := 0
		for n < len(lines) && !isGap(lines[n]) {
			n++
		}
		at := find(lines[:n], rest)
		if at < 0 {
			return fmt.Errorf("these lines do not stand there, or not behind those before them:\n%s", strings.Join(lines[:n], "\n"))
		}
		rest = rest[at+n:]
		lines = lines[min(n+1, len(lines)):]
	}
	return nil
}

func isGap(line string) bool {
	trimmed := strings.TrimSpace(line)
	return trimmed == "// ..." || trimmed == "# ..."
}

// find is the first place of piece in lines, or -1.
func find(piece, lines []string) int {
	for at := 0; at+len(piece) <= len(lines); at++ {
		found := true
		for i := range piece {
			found = found && piece[i] == lines[at+i]
		}
		if found {
			return at
		}
	}
	return -1
}

// step is a command of a console block, and what it prints.
type step struct {
	command string
	output  []string
}

// steps are the commands of a console block: the lines that begin with a
// prompt, each followed by its output.
func steps(lines []string) ([]step, error) {
	var all []step
	for _, line := range lines {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			all = append(all, step{command: command})
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("output stands before the first command: %s", line)
		}
		last := &all[len(all)-1]
		last.output = append(last.output, line)
	}
	return all, nil
}

// prints tells whether got is the output that a document shows, in which a line
// of three dots stands for any lines.
func prints(shown []string, got string) bool {
	var pattern strings.Builder
	for _, line := range shown {
		if line == "..." {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		pattern.WriteString(regexp.QuoteMeta(strings.TrimRight(line, " ")) + ` *\n`)
	}
	return regexp.MustCompile(`\A` + pattern.String() + `\z`).MatchString(got)
}

// alternatives splits a block of YAML that shows a key more than once, each time
// with another value.
func alternatives(lines []string) []string {
	all := []string{""}
	seen := map[string]bool{}
	for _, line := range lines {
		key, _, ok := strings.Cut(line, ":")
		if isKey := ok && !strings.HasPrefix(line, " "); isKey && seen[key] {
			all = append(all, "")
			seen = map[string]bool{key: true}
		} else if isKey {
			seen[key] = true
		}
		all[len(all)-1] += line + "\n"
	}
	return all
}

var (
	linkPattern    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingPattern = regexp.MustCompile(`^#{1,6} (.+)$`)
	testPattern    = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	notInAnchor    = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// prose is a document without its fenced blocks.
func prose(document string) []string {
	var lines []string
	fenced := false
	for _, line := range strings.Split(document, "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		} else if !fenced {
			lines = append(lines, line)
		}
	}
	return lines
}

// links are the targets of the links of a document.
func links(document string) []string {
	var targets []string
	for _, line := range prose(document) {
		for _, match := range linkPattern.FindAllStringSubmatch(line, -1) {
			targets = append(targets, match[1])
		}
	}
	return targets
}

// tests are the names of the tests that a document points to.
func tests(document string) []string {
	var names []string
	for _, line := range prose(document) {
		for _, match := range testPattern.FindAllStringSubmatch(line, -1) {
			names = append(names, match[1])
		}
	}
	return names
}

// anchors are the names by which the headings of a document can be linked to,
// made as GitHub makes them.
func anchors(document string) map[string]bool {
	names := map[string]bool{}
	for _, line := range prose(document) {
		if match := headingPattern.FindStringSubmatch(line); match != nil {
			name := notInAnchor.ReplaceAllString(strings.ToLower(match[1]), "")
			names[strings.ReplaceAll(name, " ", "-")] = true
		}
	}
	return names
}
