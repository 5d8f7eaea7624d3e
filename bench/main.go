// Bench measures what the tables and statements of a generated package cost,
// and prints the figures as tables. It is a module of its own, so that what it
// compares with is no requirement of outboxgen.
//
// It starts a Postgres of its own with fsync and synchronous_commit on. The
// contenders of an experiment run alternately, for several rounds, so that what
// else the machine does meets all of them: a ratio within one run means
// something, a figure by itself little. Every table gives the median over the
// rounds, the smallest and the largest; a ratio is the median of the ratios
// within the rounds.
//
// The experiments, as -only names them:
//
//	claim     a claim of 100 rows beside a large history, against an empty one
//	enqueue   an enqueue in the caller's transaction, against one plain INSERT and the peers
//	queue     one in the caller's batch, against one in a transaction
//	wal       the write-ahead log for one message, against one classical table
//	drain     claiming and settling in a bare loop, against one classical table
//	ordered   the same where messages have an order, against where they have none
//	dispatch  delivering to a handler, against the bare loop and the peers
//	latency   from a commit to the handler, against the peers
//	snapshot  draining while another connection holds a snapshot open
//	list      pages and counts beside a large history, against the view
//
// The classical table is in classic.go: one row for a message, with a status,
// claimed with SKIP LOCKED and settled in batches. The peers are River,
// watermill-sql and gue, each in a file of its own that says how it is set up: as
// its documentation has it for throughput. They get the same messages in the same
// Postgres, through the same pool.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

//go:generate go run -C .. ./cmd/outboxgen generate -f bench/outbox.yaml

func main() {
	rounds := flag.Int("rounds", 0, "the number of rounds (default 7, with -quick 3)")
	only := flag.String("only", "", "the experiments to run, separated by commas (default all: "+strings.Join(names(), ",")+")")
	quick := flag.Bool("quick", false, "a tenth of the size, to see that it works")
	flag.Parse()

	s := full
	if *quick {
		s = small
	}
	if *rounds > 0 {
		s.rounds = *rounds
	}
	chosen, err := choose(*only)
	if err == nil && flag.NArg() > 0 {
		err = fmt.Errorf("unexpected arguments: %s", strings.Join(flag.Args(), " "))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := bench(ctx, os.Stdout, chosen, s); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A scale says how much is done.
type scale struct {
	rounds        int
	history       int // messages that stand beside those to be claimed
	calls         int // of a claim, or of a read, in a round
	transactions  int // of all producers in a round
	messages      int // to be drained in a round
	trickle       int // messages that come one by one in a round
	underSnapshot int // messages to be drained in a round while a snapshot is open
}

var (
	full  = scale{rounds: 7, history: 1_000_000, calls: 200, transactions: 4_000, messages: 20_000, trickle: 250, underSnapshot: 100_000}
	small = scale{rounds: 3, history: 100_000, calls: 20, transactions: 400, messages: 2_000, trickle: 50, underSnapshot: 10_000}
)

// An experiment gives the tables of one question. database makes an empty
// database, which lives until the experiment has ended.
type experiment struct {
	name string
	run  func(ctx context.Context, database databaseMaker, s scale) ([]table, error)
}

type databaseMaker func(context.Context) (*pgxpool.Pool, error)

var experiments = []experiment{
	{"claim", measureClaim},
	{"enqueue", measureEnqueue},
	{"queue", measureQueue},
	{"wal", measureWAL},
	{"drain", measureDrain},
	{"ordered", measureOrdered},
	{"dispatch", measureDispatch},
	{"latency", measureLatency},
	{"snapshot", measureSnapshot},
	{"list", measureList},
}

func names() []string {
	var all []string
	for _, e := range experiments {
		all = append(all, e.name)
	}
	return all
}

// choose finds the experiments of a list of names; an empty one means all.
func choose(list string) ([]experiment, error) {
	if list == "" {
		return experiments, nil
	}
	var chosen []experiment
	for _, name := range strings.Split(list, ",") {
		i := slices.IndexFunc(experiments, func(e experiment) bool { return e.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no experiment %q: there are %s", name, strings.Join(names(), ", "))
		}
		chosen = append(chosen, experiments[i])
	}
	return chosen, nil
}

// bench runs experiments on a Postgres that it starts.
func bench(ctx context.Context, out io.Writer, chosen []experiment, s scale) (err error) {
	server, err := pgtest.Start(ctx, pgtest.Durable(),
		// The history stays in memory, and no checkpoint falls into a round
		// of one contender and not of another.
		pgtest.Setting("shared_buffers", "1GB"),
		pgtest.Setting("max_wal_size", "16GB"),
		pgtest.Setting("checkpoint_timeout", "1h"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	for _, e := range chosen {
		tables, err := onServer(ctx, server, e, s)
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		for _, t := range tables {
			if _, err := fmt.Fprintln(out, t.String()); err != nil {
				return err
			}
		}
	}
	return nil
}

// onServer runs one experiment and drops the databases that it has asked for.
func onServer(ctx context.Context, server *pgtest.Server, e experiment, s scale) (tables []table, err error) {
	var opened []*pgxpool.Pool
	defer func() {
		for _, db := range opened {
			db.Close()
			err = errors.Join(err, server.DropDatabase(context.WithoutCancel(ctx), db.Config().ConnString()))
		}
	}()
	return e.run(ctx, func(ctx context.Context) (*pgxpool.Pool, error) {
		url, err := server.CreateDatabase(ctx)
		if err != nil {
			return nil, err
		}
		db, err := pgxpool.New(ctx, url)
		if err != nil {
			return nil, err
		}
		opened = append(opened, db)
		return db, nil
	}, s)
}
