package outbox

import (
	"slices"
	"strings"
)

// sumStats adds up counts that come sorted by destination and kind.
func sumStats(rows []statsRow) Stats {
	known := make(map[string]bool)
	byName := make(map[Destination]*DestinationStats)
	var stats Stats
	for _, p := range policies {
		for _, kind := range p.kinds {
			known[kind] = true
		}
		byName[p.destination] = &DestinationStats{Destination: p.destination}
	}
	for _, row := range rows {
		d := byName[row.destination]
		if d == nil {
			d = &DestinationStats{Destination: row.destination}
			byName[row.destination] = d
		}
		enqueued := row.oldest.createdAt()
		switch row.status {
		case StatusPending:
			d.Pending += row.rows
			d.Due += row.due
			if d.OldestPending.IsZero() || enqueued.Before(d.OldestPending) {
				d.OldestPending = enqueued
			}
		case StatusDispatching:
			d.Dispatching += row.rows
		case StatusOutcomeUnknown:
			d.OutcomeUnknown += row.rows
			if d.OldestUnknown.IsZero() || enqueued.Before(d.OldestUnknown) {
				d.OldestUnknown = enqueued
			}
		case StatusFailed:
			d.Failed += row.rows
			continue
		case statusHolding:
			d.HeldKeys += row.rows
			continue
		case statusPaused:
			d.Paused = true
			continue
		}
		if known[row.kind] {
			continue
		}
		if n := len(stats.Unclaimed); n > 0 && stats.Unclaimed[n-1].Kind == row.kind {
			stats.Unclaimed[n-1].Rows += row.rows
		} else {
			stats.Unclaimed = append(stats.Unclaimed, KindStats{Kind: row.kind, Rows: row.rows})
		}
	}
	for _, d := range byName {
		stats.Destinations = append(stats.Destinations, *d)
	}
	slices.SortFunc(stats.Destinations, func(a, b DestinationStats) int { return strings.Compare(string(a.Destination), string(b.Destination)) })
	return stats
}
