package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/outboxgen/outboxgen/schema"
)

// Temporary files carry the process in their names, so that two runs at the
// same time never write to one.
const (
	tempPrefix = ".outboxgen-"
	tempSuffix = ".tmp"
)

// Commit makes the changes of the plan. Every file appears whole or not at all,
// and the last one when all others are there. Two commits at the same time end
// in the state that one of them wanted, or at least one of them reports it.
func (pl *Plan) Commit(ctx context.Context) schema.Diagnostics {
	if faults := pl.sweep(); len(faults) > 0 {
		return faults
	}
	for _, change := range pl.Changes {
		if err := ctx.Err(); err != nil {
			return fault(CodeUnwritable, pl.place.Shown(change.Path), "not written: "+err.Error())
		}
		if err := pl.apply(change); err != nil {
			return schema.Diagnostics{{
				Code: CodeUnwritable, Pos: schema.Pos{File: pl.place.Shown(change.Path)},
				Message: reason(err), Hint: "what was written before stays; the next run completes it",
			}}
		}
	}
	if len(pl.Changes) == 0 {
		return nil
	}
	// Whoever writes last looks last, and sees what is left on the disk.
	left, faults := pl.place.Plan(pl.wanted)
	for _, change := range left.Changes {
		faults = append(faults, schema.Diagnostic{
			Code: CodeOvertaken, Pos: schema.Pos{File: pl.place.Shown(change.Path)},
			Message: "the file was changed while outboxgen wrote: another run may be at work", Hint: "run outboxgen generate again",
		})
	}
	return faults
}

// sweep removes the temporary files of a run that was killed.
func (pl *Plan) sweep() schema.Diagnostics {
	swept := map[string]bool{}
	for _, f := range pl.wanted.all() {
		dir := path.Dir(f.Path)
		if swept[dir] {
			continue
		}
		swept[dir] = true
		names, faults := pl.place.List(dir)
		if len(faults) > 0 {
			return faults
		}
		for _, name := range names {
			if !strings.HasPrefix(name, tempPrefix) || !strings.HasSuffix(name, tempSuffix) {
				continue
			}
			pl.step("sweep")
			name = path.Join(dir, name)
			if err := os.Remove(pl.place.abs(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fault(CodeUnwritable, pl.place.Shown(name), reason(err))
			}
		}
	}
	return nil
}

func (pl *Plan) apply(c Change) error {
	target := pl.place.abs(c.Path)
	if c.Kind == Remove {
		pl.step("remove")
		if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	pl.step("mkdir")
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(target), pl.temp)
	pl.step("create")
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, c.mode)
	if err != nil {
		return err
	}
	if err := pl.fill(f, c); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	pl.step("rename")
	if err := os.Rename(temp, target); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// fill writes a file, brings it to the disk and closes it.
func (pl *Plan) fill(f *os.File, c Change) error {
	pl.step("write")
	_, err := f.Write(c.content)
	if err == nil && c.Kind == Update {
		err = f.Chmod(c.mode) // as it was, whatever the umask is now
	}
	pl.step("sync")
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
