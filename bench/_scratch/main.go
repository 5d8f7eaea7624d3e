package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/bench/internal/benchbox"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func order() benchbox.OrderPlaced {
	return benchbox.OrderPlaced{OrderID: uuid.New(), Customer: "Ada Lovelace", Email: "ada.lovelace@example.com",
		Lines:    []benchbox.OrderLine{{SKU: "ENGINE-1843-BRASS", Quantity: 1, Cents: 249900}, {SKU: "PUNCHED-CARDS-500", Quantity: 12, Cents: 1995}},
		PlacedAt: time.Now()}
}

func schedstat(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	must(err)
	n, err := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
	must(err)
	return n / 1000
}

func self() float64 {
	var ru syscall.Rusage
	must(syscall.Getrusage(0, &ru))
	return float64(ru.Utime.Sec+ru.Stime.Sec)*1e6 + float64(ru.Utime.Usec+ru.Stime.Usec)
}

func main() {
	ctx := context.Background()
	c, err := pgx.Connect(ctx, "host=/tmp/benchpg user=postgres dbname=enq")
	must(err)
	_, err = c.Exec(ctx, "SET synchronous_commit = off")
	must(err)
	if len(os.Args) > 1 {
		_, err = c.Exec(ctx, "SET plan_cache_mode = "+os.Args[1])
		must(err)
	}
	var pid int
	must(c.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid))
	box := benchbox.New(c, benchbox.Options{})
	sql := map[string]string{}
	files, _ := os.ReadDir("variants")
	var names []string
	for _, f := range files {
		b, _ := os.ReadFile("variants/" + f.Name())
		sql[f.Name()] = string(b)
		names = append(names, f.Name())
	}
	tx := func(f func(tx pgx.Tx, o benchbox.OrderPlaced) error) func() {
		return func() {
			o := order()
			must(pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return f(tx, o) }))
		}
	}
	type contender struct {
		name string
		do   func()
	}
	one := func(o benchbox.OrderPlaced) (id uuid.UUID, payload, key string) {
		b, err := json.Marshal(o)
		must(err)
		id, err = uuid.NewV7()
		must(err)
		return id, string(b), "order_placed:" + o.OrderID.String()
	}
	contenders := []contender{
		{"empty tx", tx(func(tx pgx.Tx, o benchbox.OrderPlaced) error { return nil })},
		{"Store.Enqueue", tx(func(tx pgx.Tx, o benchbox.OrderPlaced) error {
			_, err := box.With(tx).Enqueue(ctx, benchbox.NewCommand(benchbox.CommandID(o.OrderID)), benchbox.ToLedger(o))
			return err
		})},
		{"plain", tx(func(tx pgx.Tx, o benchbox.OrderPlaced) error {
			id, payload, key := one(o)
			_, err := tx.Exec(ctx, `INSERT INTO classic_outbox (outbox_id, command_id, created_at, payload_version, destination, payload_type, idempotency_key, payload, next_attempt_at)
VALUES ($1::uuid, $2::uuid, $3::timestamptz, 1, 'ledger', 'order_placed', $4::text, $5::json, $3::timestamptz)`, id, o.OrderID, time.Now(), key, payload)
			return err
		})},
	}
	for _, n := range names {
		q := sql[n]
		contenders = append(contenders, contender{n, tx(func(tx pgx.Tx, o benchbox.OrderPlaced) error {
			id, payload, key := one(o)
			var err error
			if strings.HasPrefix(n, "scalar") {
				_, err = tx.Exec(ctx, q, id, time.Now(), nil, nil, nil, 1, "ledger", "order_placed", key, nil, nil, nil, payload, o.OrderID)
			} else {
				var no []*string = []*string{nil}
				_, err = tx.Exec(ctx, q, []string{id.String()}, []time.Time{time.Now()}, []*time.Time{nil}, []*int64{nil}, []*time.Time{nil}, []int32{1}, []string{"ledger"}, []string{"order_placed"}, []string{key}, no, no, no, []string{payload}, o.OrderID)
			}
			return err
		})})
	}
	if len(os.Args) > 2 {
		contenders = slices.DeleteFunc(contenders, func(k contender) bool { return !slices.Contains(os.Args[2:], k.name) })
	}
	for _, k := range contenders {
		for range 50 {
			k.do()
		}
	}
	const rounds, n = 60, 60
	server, client := make([][]float64, len(contenders)), make([][]float64, len(contenders))
	for range rounds {
		for i, k := range contenders {
			s, u := schedstat(pid), self()
			for range n {
				k.do()
			}
			server[i] = append(server[i], (schedstat(pid)-s)/n)
			client[i] = append(client[i], (self()-u)/n)
		}
	}
	for i, k := range contenders {
		slices.Sort(server[i])
		slices.Sort(client[i])
		fmt.Printf("%-28s server %7.1f (min %7.1f) µs  client %7.1f (min %7.1f) µs of CPU for one\n", k.name, server[i][rounds/2], server[i][0], client[i][rounds/2], client[i][0])
	}
	rows, _ := c.Query(ctx, "SELECT left(statement, 30), generic_plans, custom_plans FROM pg_prepared_statements")
	for rows.Next() {
		v, _ := rows.Values()
		fmt.Println(v...)
	}
}
