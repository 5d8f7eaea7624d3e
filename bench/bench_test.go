package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
	"github.com/outboxgen/outboxgen/internal/pgtest"
)

// TestExperiments runs every experiment at a size that tells nothing about
// speed. The experiments themselves fail when a claim gives another number of
// rows than it should or a message is lost.
func TestExperiments(t *testing.T) {
	tiny := scale{rounds: 2, history: 500, calls: 3, transactions: 20, messages: 300, trickle: 5, underSnapshot: 1000}
	for _, e := range experiments {
		t.Run(e.name, func(t *testing.T) {
			tables, err := e.run(t.Context(), func(context.Context) (*pgxpool.Pool, error) { return pgtest.Pool(t), nil }, tiny)
			if err != nil {
				t.Fatal(err)
			}
			if len(tables) == 0 {
				t.Error("no table")
			}
			for _, table := range tables {
				for _, r := range table.rows {
					checkRow(t, r, tiny.rounds)
				}
				t.Log("\n" + table.String())
			}
		})
	}
}

// scripted is an outbox of which each call of deliver is written down.
type scripted struct {
	outbox
	next    func(worker string) (int, error)
	waiting int // messages
}

func (s *scripted) name() string { return "scripted" }

func (s *scripted) deliver(_ context.Context, worker string) (int, error) {
	return s.next(worker)
}

func (s *scripted) left(context.Context) (int, error) { return s.waiting, nil }

func TestDrainAsksAgainWhenAnotherWorkerHasSettled(t *testing.T) {
	var calls atomic.Int32
	var holder string // of the key that both messages have
	last := 1         // messages that are left when the holder has settled
	cameAwayWithNothing := make(chan struct{})
	err := drain(t.Context(), &scripted{next: func(worker string) (int, error) {
		switch calls.Add(1) {
		case 1:
			holder = worker
			<-cameAwayWithNothing
			return 1, nil
		case 2: // by the other
			close(cameAwayWithNothing)
			return 0, nil
		}
		if worker == holder {
			return 0, nil
		}
		n := last
		last = 0
		return n, nil
	}}, 2, 2, nil)
	if err != nil {
		t.Error(err)
	}
}

func TestDrainFails(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name     string
		first    int // messages that the first call gives
		err      error
		waiting  int
		messages int
	}{
		{"when a worker does, though others find nothing", 0, broken, 0, 0},
		{"when a message is lost", 1, nil, 0, 2},
		{"when a message is delivered twice", 2, nil, 0, 1},
		{"when a message is left", 1, nil, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var calls atomic.Int32
			err := drain(t.Context(), &scripted{waiting: c.waiting, next: func(string) (int, error) {
				if calls.Add(1) == 1 {
					return c.first, c.err
				}
				return 0, nil
			}}, c.messages, 4, nil)
			if err == nil || c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestKeyOrder(t *testing.T) {
	entry := func(id byte, key string) benchbox.Entry {
		return benchbox.Entry{ID: benchbox.OutboxID{id}, OrderKey: key}
	}
	for _, c := range []struct {
		name      string
		delivered []benchbox.Entry
		want      int
	}{
		{"in order", []benchbox.Entry{entry(1, "a"), entry(3, "a"), entry(4, "a")}, 0},
		{"keys have no order among them", []benchbox.Entry{entry(4, "a"), entry(1, "b"), entry(2, "b")}, 0},
		{"one came late", []benchbox.Entry{entry(2, "a"), entry(1, "a"), entry(3, "a")}, 1},
		{"two came late", []benchbox.Entry{entry(3, "a"), entry(1, "a"), entry(2, "a")}, 2},
		{"one came twice", []benchbox.Entry{entry(1, "a"), entry(1, "a")}, 1},
		{"one that is not known", []benchbox.Entry{entry(9, "a")}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var order keyOrder
			order.begin(map[benchbox.OutboxID]int64{{1}: 10, {2}: 20, {3}: 30, {4}: 40})
			for _, e := range c.delivered {
				order.watch([]benchbox.Entry{e})
			}
			if order.astray != c.want {
				t.Errorf("%d are out of order, want %d", order.astray, c.want)
			}
		})
	}
}

func checkRow(t *testing.T, r row, rounds int) {
	t.Helper()
	if r.name == "" {
		t.Error("a row has no name")
	}
	if len(r.values) != rounds {
		t.Errorf("%s: %d values in %d rounds", r.name, len(r.values), rounds)
	}
	for _, v := range append(r.ratios(), r.values...) {
		if !(v > 0) || math.IsInf(v, 0) {
			t.Errorf("%s: %v is no figure", r.name, v)
		}
	}
}

func TestTable(t *testing.T) {
	one := row{name: "one", values: []float64{10, 30, 20}}
	table := table{title: "Things", unit: "things/s", rows: []row{
		one,
		{name: "faster", values: []float64{20, 90, 30}, against: &one, target: atLeast(2)},
		{name: "too slow", values: []float64{1, 1.5, 1}, against: &one, target: atLeast(0.9)},
		{name: "small", values: []float64{5, 6, 5}, against: &one, target: atMost(0.25)},
		{name: "without a target", values: []float64{1000, 1000, 1000}, against: &one},
	}}
	want := `Things, things/s
                    median  min..max    ratio  min..max    of   target
  one               20.0    10.0..30.0
  faster            30.0    20.0..90.0  2.00   1.50..3.00  one  at least 2.00: reached
  too slow          1.00    1.00..1.50  0.05   0.05..0.10  one  at least 0.90: missed
  small             5.00    5.00..6.00  0.25   0.20..0.50  one  at most 0.25: reached
  without a target  1000    1000..1000  50.0   33.3..100   one
`
	if got := table.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		q      float64
		want   float64
	}{
		{"of one value", []float64{7}, 0.99, 7},
		{"in the middle of an odd number", []float64{9, 1, 5}, 0.5, 5},
		{"between two values", []float64{4, 1, 3, 2}, 0.5, 2.5},
		{"near the end", []float64{0, 100}, 0.99, 99},
		{"at the end", []float64{3, 2, 1}, 1, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := quantile(c.values, c.q); got != c.want {
				t.Errorf("quantile(%v, %v) = %v, want %v", c.values, c.q, got, c.want)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name string
		list string
		want []string // nil = an error
	}{
		{"all without a list", "", names()},
		{"in the order of the list", "wal,claim", []string{"wal", "claim"}},
		{"none that is not there", "wal,speed", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			chosen, err := choose(c.list)
			if (err == nil) != (c.want != nil) {
				t.Fatalf("choose(%q): %v", c.list, err)
			}
			var got []string
			for _, e := range chosen {
				got = append(got, e.name)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("choose(%q) = %v, want %v", c.list, got, c.want)
			}
		})
	}
}

// scriptedDispatcher is a contender of which the test says how many messages it
// handles.
type scriptedDispatcher struct {
	contender
	handles int   // messages, by the first that runs
	err     error // of that one, once it has handled them
	late    int   // messages that every one handles when it is told to stop
	ends    bool  // by itself
	begun   atomic.Int32
}

func (s *scriptedDispatcher) name() string { return "scripted" }

func (s *scriptedDispatcher) left(context.Context) (int, error) { return 0, nil }

func (s *scriptedDispatcher) run(ctx context.Context, handle func(benchbox.OrderPlaced)) error {
	if s.begun.Add(1) == 1 {
		for range s.handles {
			handle(benchbox.OrderPlaced{})
		}
		if s.err != nil {
			return s.err
		}
	}
	if s.ends {
		return nil
	}
	<-ctx.Done()
	for range s.late {
		handle(benchbox.OrderPlaced{})
	}
	return nil
}

func TestDispatch(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		d     *scriptedDispatcher
		fails bool
		err   error
	}{
		{"ends when all are handled", &scriptedDispatcher{handles: 3}, false, nil},
		{"takes dispatchers that end by themselves", &scriptedDispatcher{handles: 3, ends: true}, false, nil},
		{"fails when they end too soon", &scriptedDispatcher{handles: 2, ends: true}, true, nil},
		{"fails when one dispatcher does, though the others wait", &scriptedDispatcher{handles: 2, err: broken}, true, broken},
		{"fails when a message is handled twice", &scriptedDispatcher{handles: 3, late: 1}, true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := dispatch(t.Context(), c.d, 3, 4, func(benchbox.OrderPlaced) {})
			if (err != nil) != c.fails || c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestTenthsOfBatches(t *testing.T) {
	tenths := &tenths{n: 100, times: []time.Time{time.Now()}}
	for _, c := range []struct{ batch, passed int }{{9, 0}, {1, 1}, {25, 3}, {64, 9}, {1, 10}} {
		tenths.delivered(c.batch)
		if got := len(tenths.times) - 1; got != c.passed {
			t.Errorf("after a batch of %d: %d tenths have passed, want %d", c.batch, got, c.passed)
		}
	}
}

func TestCompared(t *testing.T) {
	rows := []row{{name: "own", values: []float64{30}}, {name: "slow", values: []float64{10}}, {name: "fast", values: []float64{60}}}
	var got []string
	for _, r := range compared(rows, []target{atLeast(2)}) {
		line := r.name
		if r.against != nil {
			line += fmt.Sprintf(" %v of %s", r.ratios(), r.against.name)
		}
		if r.target != (target{}) {
			line += ", " + r.target.String()
		}
		got = append(got, line)
	}
	want := []string{"own [3] of slow, at least 2.00", "own [0.5] of fast", "slow", "fast"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
