package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// A table holds what an experiment has found.
type table struct {
	title string
	unit  string
	rows  []row
}

// A row is one figure of one contender, a value for each round.
type row struct {
	name    string
	values  []float64
	against *row // what the ratio is to; nil = no ratio
	target  target
}

// A target bounds a ratio; the zero target bounds nothing.
type target struct {
	bound   float64
	atLeast bool // else at most
}

func atLeast(bound float64) target { return target{bound, true} }
func atMost(bound float64) target  { return target{bound, false} }

func (t target) String() string {
	if t.atLeast {
		return fmt.Sprintf("at least %.2f", t.bound)
	}
	return fmt.Sprintf("at most %.2f", t.bound)
}

func (t target) verdict(ratio float64) string {
	if t.atLeast && ratio < t.bound || !t.atLeast && ratio > t.bound {
		return "missed"
	}
	return "reached"
}

// ratios are those of the rounds.
func (r row) ratios() []float64 {
	if r.against == nil {
		return nil
	}
	ratios := make([]float64, len(r.values))
	for i, v := range r.values {
		ratios[i] = v / r.against.values[i]
	}
	return ratios
}

// compared gives the first row once for each of the others, with its ratio to that,
// and the others behind it. targets are those of the ratios, as far as there are
// any.
func compared(rows []row, targets []target) []row {
	var all []row
	for i := range rows[1:] {
		first := row{name: rows[0].name, values: rows[0].values, against: &rows[i+1]}
		if i < len(targets) {
			first.target = targets[i]
		}
		all = append(all, first)
	}
	return append(all, rows[1:]...)
}

// String gives the table as aligned text.
func (t table) String() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tmedian\tmin..max\tratio\tmin..max\tof\ttarget")
	for _, r := range t.rows {
		var ratio, ratioSpread, against, reached string
		if ratios := r.ratios(); ratios != nil {
			ratio, ratioSpread, against = figure(median(ratios)), spread(ratios), r.against.name
			if r.target != (target{}) {
				reached = r.target.String() + ": " + r.target.verdict(median(ratios))
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.name, figure(median(r.values)), spread(r.values), ratio, ratioSpread, against, reached)
	}
	w.Flush() // a strings.Builder takes everything
	lines := fmt.Sprintf("%s, %s\n", t.title, t.unit)
	for line := range strings.Lines(text.String()) {
		lines += "  " + strings.TrimRight(line, " \n") + "\n"
	}
	return lines
}

func spread(values []float64) string {
	return figure(slices.Min(values)) + ".." + figure(slices.Max(values))
}

// figure writes a number with three digits that count, and never fewer digits
// than stand before the point.
func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

func median(values []float64) float64 {
	return quantile(values, 0.5)
}

// quantile is the value below which the share q of the values lies, between two
// of them in proportion.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	place := q * float64(len(sorted)-1)
	below := int(math.Floor(place))
	above := int(math.Ceil(place))
	return sorted[below] + (place-float64(below))*(sorted[above]-sorted[below])
}
