package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Filter says which rows to list. Its zero value lists all; each field that is
// set leaves some out, and an empty list is one that is not set.
type Filter struct {
	Statuses       []Status
	Destinations   []Destination
	Kinds          []string // destination/payload@version, as in Stats
	CommandID      *CommandID
	Columns        ColumnsFilter
	EnqueuedFrom   time.Time // by the clocks of the hosts that enqueued, to the millisecond
	EnqueuedBefore time.Time
	LastFailure    string // a part of the text
	Holding        bool   // only failed rows that hold the key of an ordered destination
}

// maxPage is the largest number of rows that one call lists or requeues.
const maxPage = 10_000

// List returns rows in the order of their creation, at most limit and those
// behind the row after: pass the id of the last row to get the next page, and
// the zero id for the first. Limit is 1 to 10,000.
func (s *Store) List(ctx context.Context, filter Filter, after OutboxID, limit int) ([]Record, error) {
	records, err := s.list(ctx, filter, after, limit)
	if err != nil {
		return nil, fmt.Errorf("outbox: List: %w", err)
	}
	return records, nil
}

func (s *Store) list(ctx context.Context, filter Filter, after OutboxID, limit int) ([]Record, error) {
	if limit < 1 || limit > maxPage {
		return nil, fmt.Errorf("the limit is %d, and must be from 1 to %d", limit, maxPage)
	}
	if err := filter.check(); err != nil {
		return nil, err
	}
	before := OutboxID{0: 0xff, 1: 0xff, 2: 0xff, 3: 0xff, 4: 0xff, 5: 0xff} // behind every UUIDv7
	if from := firstID(filter.EnqueuedFrom); compareIDs(after, from) < 0 {
		after = from
	}
	if !filter.EnqueuedBefore.IsZero() {
		before = firstID(filter.EnqueuedBefore)
	}
	return s.backend.list(ctx, filter, after, before, limit)
}

func (f Filter) check() error {
	for _, status := range f.Statuses {
		switch status {
		case StatusPending, StatusDispatching, StatusCompleted, StatusFailed, StatusOutcomeUnknown:
		default:
			return fmt.Errorf("there is no status %q", status)
		}
	}
	for _, t := range []time.Time{f.EnqueuedFrom, f.EnqueuedBefore} {
		if !t.IsZero() && (!storable(t) || t.Before(time.UnixMilli(0))) {
			return errors.New("a time must lie within the years 1970 to 9999")
		}
	}
	for _, d := range f.Destinations {
		if !storableText(string(d)) {
			return fmt.Errorf("the destination %q holds NUL or is not UTF-8", string(d))
		}
	}
	for _, kind := range f.Kinds {
		if !storableText(kind) {
			return fmt.Errorf("the kind %q holds NUL or is not UTF-8", kind)
		}
	}
	if !storableText(f.LastFailure) {
		return errors.New("the part of the last failure holds NUL or is not UTF-8")
	}
	if f.CommandID != nil {
		if err := (Command{id: *f.CommandID}).check(); err != nil {
			return err
		}
	}
	return f.Columns.check()
}

// has tells whether rows of the status are asked for.
func (f Filter) has(status Status) bool {
	if f.Holding && status != StatusFailed {
		return false
	}
	return len(f.Statuses) == 0 || slices.Contains(f.Statuses, status)
}

// firstID is the least id of an instant: no row has it, and every row of that
// instant or later is behind it.
func firstID(t time.Time) OutboxID {
	var id OutboxID
	if t.IsZero() {
		return id
	}
	ms := uint64(t.UnixMilli())
	if t.After(time.UnixMilli(int64(ms))) {
		ms++ // ids are cut to milliseconds
	}
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	return id
}

// RequeueMatching requeues failed rows, at most limit and the oldest first, and
// returns the ids of those that it has requeued. Limit is 1 to 10,000; whatever
// statuses the filter names, only failed rows are taken.
func (s *Store) RequeueMatching(ctx context.Context, filter Filter, limit int, reason string) ([]OutboxID, error) {
	filter.Statuses = []Status{StatusFailed}
	records, err := s.list(ctx, filter, OutboxID{}, limit)
	if err != nil {
		return nil, fmt.Errorf("outbox: RequeueMatching: %w", err)
	}
	if len(records) == 0 {
		return nil, nil
	}
	ids := make([]OutboxID, len(records))
	for i, r := range records {
		ids[i] = r.ID
	}
	requeued, err := s.backend.requeue(ctx, ids, cleanText(reason, maxText))
	if err != nil {
		return nil, fmt.Errorf("outbox: RequeueMatching: %w", err)
	}
	return requeued, nil
}
