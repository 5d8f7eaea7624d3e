// Package migration turns what has changed about the tables into the files of
// the user's migration tool. A migration that was written once is never written
// anew: a database somewhere may have run it.
package migration

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/generator/contract"
	"github.com/outboxgen/outboxgen/schema"
)

// File is a migration as a file.
type File struct {
	Name    string // base name
	Content []byte
}

// Input is what the migrations follow from.
type Input struct {
	Dir     string // the directory's name in diagnostics
	Format  schema.MigrationFormat
	Tables  contract.Tables
	Up      string         // the SQL that makes the tables
	Down    string         // the SQL that drops them
	Lock    *contract.Lock // nil = there is none
	Present []File         // the directory's files; Content only of those that Reads names
}

// Plan is what the migrations come to.
type Plan struct {
	Files []File               // to be written: none of them is there
	Chain []contract.Migration // every file of a migration, those that were there included
}

// Reads returns whether the content of a file in the directory of the
// migrations matters: the lock knows it, or its name is one that a migration of
// tables would have.
func Reads(tables contract.Tables, lock *contract.Lock) func(name string) bool {
	pattern := namePattern(tables)
	return func(name string) bool { return listed(name, lock) || pattern.MatchString(name) }
}

func listed(name string, lock *contract.Lock) bool {
	if lock != nil {
		for _, m := range lock.Migrations {
			if m.Name == name {
				return true
			}
		}
	}
	return false
}

// Next returns the migrations that are to be written, or why none can be.
func Next(in Input) (Plan, schema.Diagnostics) {
	p := planner{Input: in, ours: map[string]File{}}
	pattern := namePattern(in.Tables)
	for _, f := range in.Present {
		if listed(f.Name, in.Lock) || pattern.MatchString(f.Name) && contract.HasMarker(f.Content) {
			p.ours[f.Name] = f
		}
	}
	var plan Plan
	if in.Lock == nil {
		plan = p.first()
	} else {
		plan = p.restore()
	}
	p.checkNumbers(plan.Chain)
	if len(p.faults) > 0 {
		return Plan{}, p.faults
	}
	return plan, nil
}

type planner struct {
	Input
	ours   map[string]File // the generator's among those present, by name
	faults schema.Diagnostics
}

func (p *planner) fault(code schema.Code, name, hint, format string, args ...any) {
	p.faults = append(p.faults, schema.Diagnostic{
		Code: code, Pos: schema.Pos{File: filepath.Join(p.Dir, name)}, Message: fmt.Sprintf(format, args...), Hint: hint,
	})
}

// first plans the migration that makes the tables. Files of a run that ended
// before it wrote the lock are taken as written; any other migration of these
// tables means that there was a lock.
func (p *planner) first() Plan {
	number := nextNumber(p.Present)
	for _, f := range p.Present {
		if _, ok := p.ours[f.Name]; ok {
			number = numberPattern.FindStringSubmatch(f.Name)[1]
			break
		}
	}
	var plan Plan
	for _, f := range p.render(number) {
		plan.Chain = append(plan.Chain, contract.Link(plan.Chain, p.Format, f.Name, f.Content))
		present, ok := p.ours[f.Name]
		if !ok {
			plan.Files = append(plan.Files, f)
		} else if contract.Hash(present.Content) == contract.Hash(f.Content) {
			delete(p.ours, f.Name)
		}
	}
	for _, f := range p.Present {
		if _, ok := p.ours[f.Name]; ok {
			p.fault(contract.CodeNoLock, f.Name,
				"restore "+contract.FileName+" from version control; where no database has run the migrations, remove them instead; "+
					"if they are another specification's, give this one a migrations.dir of its own",
				"there are migrations of these tables, but no %s that tells what they have made", contract.FileName)
		}
	}
	return plan
}

// restore checks the migrations that the lock knows, and plans those anew that
// are gone.
func (p *planner) restore() Plan {
	plan := Plan{Chain: p.Lock.Migrations}
	for _, m := range p.Lock.Migrations {
		present, ok := p.ours[m.Name]
		delete(p.ours, m.Name)
		if ok && contract.Hash(present.Content) != m.Hash {
			p.fault(contract.CodeEdited, m.Name,
				"restore the file from version control, and make the change in a migration of your own",
				"the migration was edited: databases that ran it before would differ from those that run it now")
		}
		if ok {
			continue
		}
		content, found := p.rendered(m.Hash)
		if !found {
			p.fault(contract.CodeLost, m.Name, "restore the file from version control",
				"the migration is gone, and this outboxgen would write it otherwise than it was")
			continue
		}
		plan.Files = append(plan.Files, File{Name: m.Name, Content: content})
	}
	for _, f := range p.Present {
		if _, ok := p.ours[f.Name]; ok {
			p.fault(contract.CodeUnlisted, f.Name,
				"restore the "+contract.FileName+" that goes with it from version control, or remove the file when no database has run it",
				"the file is a migration of these tables, and %s does not know it", contract.FileName)
		}
	}
	return plan
}

// rendered is the content with the given hash among those that this outboxgen
// writes.
func (p *planner) rendered(hash string) ([]byte, bool) {
	for _, f := range p.render("") {
		if contract.Hash(f.Content) == hash {
			return f.Content, true
		}
	}
	return nil, false
}

// checkNumbers reports a migration of somebody else's under a number of ours,
// where the tool takes that for a fault.
func (p *planner) checkNumbers(chain []contract.Migration) {
	if p.Format != schema.FormatGolangMigrate {
		return
	}
	names, numbers := map[string]bool{}, map[int64]string{}
	for _, m := range chain {
		names[m.Name] = true
		if n, ok := number(m.Name); ok {
			numbers[n] = m.Name
		}
	}
	for _, f := range p.Present {
		n, ok := number(f.Name)
		if ours, taken := numbers[n]; ok && taken && !names[f.Name] && p.ours[f.Name].Name == "" {
			p.fault(contract.CodeNumber, f.Name, "give the one that no database has run another number",
				"the migration has the number of %s, which golang-migrate refuses", ours)
		}
	}
}

// render returns the files that make the tables, under the given number.
func (p *planner) render(number string) []File {
	header := "-- " + contract.Marker + "\n\n"
	name := number + "_" + slug(p.Tables)
	if p.Format == schema.FormatPlain {
		return []File{{Name: name + ".sql", Content: []byte(header + p.Up)}}
	}
	return []File{
		{Name: name + ".up.sql", Content: []byte(header + p.Up)},
		{Name: name + ".down.sql", Content: []byte(header + p.Down)},
	}
}

// numberPattern is the number that a migration's name begins with. Eighteen
// digits are what a bigint holds in any case, and golang-migrate keeps it in one.
var numberPattern = regexp.MustCompile(`^([0-9]{1,18})[^0-9].*\.sql$`)

func number(name string) (int64, bool) {
	match := numberPattern.FindStringSubmatch(name)
	if match == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(match[1], 10, 64)
	return n, err == nil
}

// nextNumber is the number behind the highest in the directory, written as wide
// as that one is. A directory whose numbers are times gets the highest time and
// one: the clock has no say in what is generated.
func nextNumber(present []File) string {
	highest, width := int64(0), 6
	for _, f := range present {
		n, ok := number(f.Name)
		if !ok {
			continue
		}
		digits := len(numberPattern.FindStringSubmatch(f.Name)[1])
		if n > highest || n == highest && digits > width {
			highest, width = n, digits
		}
	}
	return fmt.Sprintf("%0*d", width, highest+1)
}

// namePattern fits the names that migrations of tables have in any format.
func namePattern(tables contract.Tables) *regexp.Regexp {
	return regexp.MustCompile(`^[0-9]{1,18}_` + regexp.QuoteMeta(slug(tables)) + `(\.up|\.down)?\.sql$`)
}

// slug is the part of a file's name that tells the tables: their name, behind
// that of their schema, in what every file system can hold.
func slug(tables contract.Tables) string {
	name := tables.Table
	if tables.Schema != "" {
		name = tables.Schema + "_" + name
	}
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	if len(words) == 0 {
		return "outbox"
	}
	return strings.Join(words, "_")
}
