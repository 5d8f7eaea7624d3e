package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// postgres is the backend that the package exists for.
//
// Parameters are given in forms that every mode of pgx encodes: ids as text,
// JSON as text, and each with its cast in the statement.
type postgres struct {
	db       DB
	callerTx bool // db is a transaction of the caller's
	cursors  *cursors
}

func newPostgres(db DB, c *cursors) *postgres {
	_, callerTx := db.(pgx.Tx)
	return &postgres{db: db, callerTx: callerTx, cursors: c}
}

func (p *postgres) within(tx pgx.Tx) backend { return newPostgres(tx, p.cursors) }

// cursors are the order keys behind which the next claims of destinations go
// on. They only spread the work: whatever they are, a claim that finds nothing
// has looked at every key.
type cursors struct {
	mu   sync.Mutex
	keys map[string]string
}

func (c *cursors) get(destination string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys[destination]
}

func (c *cursors) set(destination, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keys == nil {
		c.keys = make(map[string]string)
	}
	c.keys[destination] = key
}

// send runs statements in one round trip. Outside a transaction of the caller's
// they are a transaction of their own, read committed whatever the database's
// default is, and under the settings given besides jit = off: the limits of a
// claim are planned as a tenth of the table, and compiling would take longer
// than the claim.
func (p *postgres) send(ctx context.Context, statements *pgx.Batch, settings ...string) error {
	if p.callerTx {
		return p.db.SendBatch(ctx, statements).Close()
	}
	own := &pgx.Batch{}
	own.Queue("SET LOCAL jit = off")
	for _, setting := range settings {
		own.Queue(setting)
	}
	own.QueuedQueries = append(own.QueuedQueries, statements.QueuedQueries...)
	switch db := p.db.(type) {
	case *pgxpool.Pool:
		conn, err := db.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		return sendInTx(ctx, conn.Conn(), own)
	case *pgxpool.Conn:
		return p.sendOver(ctx, db.Conn(), own, statements)
	case *pgx.Conn:
		return p.sendOver(ctx, db, own, statements)
	}
	return untilNoDeadlock(func() error {
		return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
			// Not within the batch: pgx may have it prepared first, after which
			// the level stands.
			if _, err := tx.Exec(ctx, sqlReadCommitted); err != nil {
				return err
			}
			batch := &pgx.Batch{}
			addAll(batch, own)
			return tx.SendBatch(ctx, batch).Close()
		})
	})
}

// sqlReadCommitted makes a transaction that has just begun one of the store's own.
const sqlReadCommitted = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE"

// deadlockTries bounds how often a transaction is tried that deadlocks.
const deadlockTries = 3

// untilNoDeadlock repeats a transaction of the package's own that was the victim
// of a deadlock: a call that settles rows in several ways locks them in another
// order than one that extends their claims, or than somebody's own transaction.
func untilNoDeadlock(transaction func() error) error {
	for try := 1; ; try++ {
		err := transaction()
		var failure *pgconn.PgError
		if try == deadlockTries || !errors.As(err, &failure) || failure.Code != "40P01" {
			return err
		}
	}
}

// sendOver takes care of a connection on which the caller has begun a
// transaction without telling pgx.
func (p *postgres) sendOver(ctx context.Context, conn *pgx.Conn, own, statements *pgx.Batch) error {
	if conn.PgConn().TxStatus() != 'I' {
		return conn.SendBatch(ctx, statements).Close()
	}
	return sendInTx(ctx, conn, own)
}

// addAll adds the statements of a batch. They are copied, since pgx notes in one
// that was sent what it has prepared it as, which holds only for that sending.
func addAll(batch, statements *pgx.Batch) {
	for _, q := range statements.QueuedQueries {
		batch.QueuedQueries = append(batch.QueuedQueries, &pgx.QueuedQuery{SQL: q.SQL, Arguments: q.Arguments, Fn: q.Fn})
	}
}

func sendInTx(ctx context.Context, conn *pgx.Conn, statements *pgx.Batch) error {
	return untilNoDeadlock(func() error {
		batch := &pgx.Batch{}
		batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
		addAll(batch, statements)
		batch.Queue("COMMIT")
		err := conn.SendBatch(ctx, batch).Close()
		if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
			if _, rollback := conn.Exec(ctx, "ROLLBACK"); rollback != nil {
				// Left open, it would pass for one on which the caller has begun.
				err = errors.Join(err, rollback, conn.Close(ctx))
			}
		}
		return err
	})
}

// query adds a statement whose rows are collected by scan.
func query[T any](batch *pgx.Batch, into *[]T, scan pgx.RowToFunc[T], sql string, args ...any) {
	batch.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		collected, err := pgx.CollectRows(rows, scan)
		*into = collected
		return err
	})
}

// one runs a single statement.
func one[T any](ctx context.Context, p *postgres, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	var rows []T
	batch := &pgx.Batch{}
	query(batch, &rows, scan, sql, args...)
	if err := p.send(ctx, batch); err != nil {
		return nil, err
	}
	return rows, nil
}

func scanID(row pgx.CollectableRow) (OutboxID, error) {
	var id uuid.UUID
	err := row.Scan(&id)
	return OutboxID(id), err
}

func texts(ids []OutboxID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out
}

func fences(claims []Claim) (ids []string, tokens []int64) {
	for _, c := range claims {
		ids = append(ids, c.ID.String())
		tokens = append(tokens, c.Token)
	}
	return ids, tokens
}

func set(ids []OutboxID) map[OutboxID]bool {
	m := make(map[OutboxID]bool, len(ids))
	for _, id := range ids {
		m[id] = true
	}
	return m
}

// null is the pointer that stands for SQL's NULL where a text is empty.
func null(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// nullTime is the pointer that stands for SQL's NULL where a time is zero.
func nullTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// microseconds is a length of time as the statements take it; a negative one,
// such as keepForever, is NULL.
func microseconds(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	n := d.Microseconds()
	return &n
}

// enqueueTries bounds how often a message is tried whose key was taken when it
// was inserted, and free when that was looked at.
const enqueueTries = 10

func (p *postgres) enqueue(ctx context.Context, command Command, rows []newRow) ([]placed, error) {
	places := make([]placed, len(rows))
	open := make([]int, len(rows))
	for i := range rows {
		places[i].id = rows[i].id
		open[i] = i
	}
	var inserted []OutboxID
	for range enqueueTries {
		sql, args := enqueueStatement(command, rows, open)
		ids, err := one(ctx, p, scanID, sql, args...)
		if err != nil {
			return nil, err
		}
		inserted = append(inserted, ids...)
		here := set(ids)
		open = slices.DeleteFunc(open, func(i int) bool { return here[rows[i].id] })
		if len(open) == 0 {
			return places, nil
		}
		found, reused, err := p.look(ctx, rows, open)
		if err != nil {
			return nil, err
		}
		if reused >= 0 {
			places[reused] = found[reused]
			if slices.Contains(inserted, places[reused].id) {
				places[reused].id = OutboxID{} // a row that is taken back
			}
			_, err := one(ctx, p, scanID, sqlEnqueueUndo, texts(inserted))
			return places, err
		}
		for i, place := range found {
			places[i] = place
		}
		open = slices.DeleteFunc(open, func(i int) bool { _, ok := found[i]; return ok })
		if len(open) == 0 {
			return places, nil
		}
	}
	return nil, errors.New("other transactions keep taking and freeing the idempotency key")
}

// look finds the rows that have the keys of messages which were not inserted.
// reused is the first message whose key belongs to another one, or -1.
func (p *postgres) look(ctx context.Context, rows []newRow, open []int) (found map[int]placed, reused int, err error) {
	type other struct {
		id      *uuid.UUID
		kind    *string
		version *int32
		same    *bool
	}
	var destinations, keys, payloads []string
	for _, i := range open {
		destinations = append(destinations, string(rows[i].destination))
		keys = append(keys, rows[i].key)
		payloads = append(payloads, rows[i].payload)
	}
	others, err := one(ctx, p, func(row pgx.CollectableRow) (o other, err error) {
		err = row.Scan(&o.id, &o.kind, &o.version, &o.same)
		return o, err
	}, sqlEnqueueLook, destinations, keys, payloads)
	if err != nil {
		return nil, -1, err
	}
	found = make(map[int]placed)
	for n, o := range others {
		if o.id == nil {
			continue
		}
		i := open[n]
		found[i] = placed{id: OutboxID(*o.id), duplicate: true}
		if *o.kind != rows[i].payloadType || *o.version == rows[i].version && !*o.same {
			found[i] = placed{id: OutboxID(*o.id), reused: true}
			return found, i, nil
		}
	}
	return found, -1, nil
}

func (p *postgres) queueEnqueue(batch *pgx.Batch, command Command, rows []newRow, answer func([]placed, error) error) {
	all := make([]int, len(rows))
	ids, destinations, keys := make([]string, len(rows)), make([]string, len(rows)), make([]string, len(rows))
	types, versions, payloads := make([]string, len(rows)), make([]int32, len(rows)), make([]string, len(rows))
	for i, row := range rows {
		all[i], ids[i], destinations[i], keys[i] = i, row.id.String(), string(row.destination), row.key
		types[i], versions[i], payloads[i] = row.payloadType, row.version, row.payload
	}
	sql, args := enqueueStatement(command, rows, all)
	batch.Queue(sql, args...)
	batch.Queue(sqlEnqueueAnswer, ids, destinations, keys, types, versions, payloads).Query(func(result pgx.Rows) error {
		found, err := pgx.CollectRows(result, scanID)
		places := make([]placed, len(found))
		for i, id := range found {
			places[i] = placed{id: id, duplicate: id != rows[i].id}
		}
		if i, id, taken := takenKey(err); taken {
			if id == (OutboxID{}) {
				return answer(nil, fmt.Errorf("message %d: the row with its idempotency key was removed meanwhile: send the batch again", i))
			}
			if slices.Contains(ids, id.String()) {
				id = OutboxID{} // a row that goes with the batch
			}
			places = make([]placed, len(rows))
			places[i], err = placed{id: id, reused: true}, nil
		}
		return answer(places, err)
	})
}

// takenKey reads the error that enqueueAnswer raises: the message, counted from 0,
// whose key was taken, and the row that has it for another message, or the zero
// id where that row has gone meanwhile.
func takenKey(err error) (message int, id OutboxID, ok bool) {
	var failure *pgconn.PgError
	if !errors.As(err, &failure) {
		return 0, id, false
	}
	_, text, ok := strings.Cut(failure.Message, "outbox: idempotency key taken: ")
	if !ok {
		return 0, id, false
	}
	position, rest, _ := strings.Cut(text, " ")
	n, err := strconv.Atoi(position)
	if err != nil {
		return 0, id, false
	}
	if len(rest) >= 36 {
		id, _ = ParseOutboxID(rest[:36])
	}
	return n - 1, id, true
}

// enqueueStatement inserts some of the rows. A single message is the usual case
// and has a statement of its own.
func enqueueStatement(command Command, rows []newRow, which []int) (sql string, args []any) {
	if len(which) == 1 {
		row := rows[which[0]]
		args = []any{
			row.id.String(), row.id.createdAt(), nullTime(row.expires), lifetime(row), nullTime(row.due), row.version, string(row.destination),
			row.payloadType, row.key, null(row.orderKey), null(row.limitKey), null(row.headers), row.payload,
		}
		return sqlEnqueueOne, append(args, command.args()...)
	}
	n := len(which)
	var (
		ids, destinations, types, keys, payloads = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		orderKeys, limitKeys, headers            = make([]*string, n), make([]*string, n), make([]*string, n)
		created                                  = make([]time.Time, n)
		expires, due                             = make([]*time.Time, n), make([]*time.Time, n)
		lifetimes                                = make([]*int64, n)
		versions                                 = make([]int32, n)
	)
	for k, i := range which {
		row := rows[i]
		ids[k], created[k] = row.id.String(), row.id.createdAt()
		destinations[k], types[k], versions[k] = string(row.destination), row.payloadType, row.version
		keys[k], orderKeys[k], limitKeys[k] = row.key, null(row.orderKey), null(row.limitKey)
		headers[k], payloads[k] = null(row.headers), row.payload
		due[k], expires[k], lifetimes[k] = nullTime(row.due), nullTime(row.expires), lifetime(row)
	}
	args = []any{ids, created, expires, lifetimes, due, versions, destinations, types, keys, orderKeys, limitKeys, headers, payloads}
	return sqlEnqueue, append(args, command.args()...)
}

// lifetime is the age in microseconds at which the row expires, or nil.
func lifetime(row newRow) *int64 {
	if row.lifetime == 0 {
		return nil
	}
	return microseconds(row.lifetime)
}

// lane is where a claim stands among the order keys of a destination.
type lane struct {
	destination string
	limit       int32
	first       string // the cursor that the claim began with
	start       string // the keys behind it are next
	round       bool   // the last key has been passed
}

// advance moves the lane on to the keys behind goOn, which is empty when the last
// key has been looked at. It tells whether keys are left to look at.
func (l *lane) advance(goOn string) bool {
	l.start = goOn
	if goOn == "" && !l.round && l.first != "" {
		l.round = true
		return true
	}
	return goOn != "" && !(l.round && goOn >= l.first)
}

// walk carries out a claim, which looks at no more than keysLook keys of a
// destination in a round. When a round gives nothing, since all its keys are
// held or wait, the next goes on behind them, until every key was looked at.
// Besides the rows a round returns where the next of a destination goes on,
// which is empty for the first key; one that has no keys is missing there.
func (c *cursors) walk(call claimCall, round func([]*lane) ([]placedEntry, map[string]string, error)) ([]placedEntry, error) {
	lanes := make([]*lane, len(call.destinations))
	for i, d := range call.destinations {
		key := c.get(d)
		lanes[i] = &lane{destination: d, limit: call.limits[i], first: key, start: key}
	}
	for len(lanes) > 0 {
		entries, goOn, err := round(lanes)
		if err != nil {
			return nil, err
		}
		for destination, key := range goOn {
			c.set(destination, key)
		}
		if len(entries) > 0 {
			return entries, nil
		}
		lanes = slices.DeleteFunc(lanes, func(l *lane) bool {
			key, ordered := goOn[l.destination]
			return !ordered || !l.advance(key)
		})
	}
	return nil, nil
}

func (p *postgres) claimDue(ctx context.Context, c claimCall) ([]placedEntry, error) {
	return p.cursors.walk(c, func(lanes []*lane) ([]placedEntry, map[string]string, error) {
		n := len(lanes)
		names, limits, marks, starts := make([]string, n), make([]int32, n), make([]string, n), make([]string, n)
		for i, l := range lanes {
			names[i], limits[i], marks[i], starts[i] = l.destination, l.limit, uuid.Nil.String(), l.start
		}
		var rows []claimed
		batch := &pgx.Batch{}
		query(batch, &rows, scanClaimed, sqlClaimDue, names, limits, marks, c.kinds, c.token, c.worker, nullTime(c.at),
			starts, keysLook, runRows, runLook)
		// To plan the statement takes longer than to carry it out, and one plan serves every
		// claim as long as it goes by the indexes, also where it was made for empty tables.
		if err := p.send(ctx, batch, "SET LOCAL plan_cache_mode = force_generic_plan", "SET LOCAL enable_seqscan = off"); err != nil {
			return nil, nil, err
		}
		var entries []placedEntry
		goOn := make(map[string]string)
		for _, row := range rows {
			if row.keysOf != "" {
				goOn[row.keysOf] = row.goOn
				continue
			}
			row.Claim.Token = c.token
			entries = append(entries, row.placedEntry)
		}
		return entries, goOn, nil
	})
}

func (p *postgres) claimUnknown(ctx context.Context, c claimCall) ([]Entry, error) {
	entries, err := one(ctx, p, scanEntry, sqlClaimUnknown, c.destinations, c.limits, c.kinds, c.token, c.worker, nullTime(c.at), c.giveUp)
	for i := range entries {
		entries[i].Claim.Token = c.token
	}
	return entries, err
}

// stored is a row as the statements return it.
type stored struct {
	id        uuid.UUID
	command   storedCommand
	version   int32
	attempt   int32
	payload   string
	headers   *string
	expires   *time.Time
	orderKey  *string
	attempted *time.Time
	ref       *string
}

func (s *stored) targets(e *Entry) []any {
	targets := append([]any{&s.id}, s.command.targets()...)
	return append(targets, (*string)(&e.Destination), &e.PayloadType, &s.version, &e.IdempotencyKey, &s.payload, &s.headers, &e.EnqueuedAt, &s.expires, &s.orderKey)
}

func (s *stored) finish(e *Entry) {
	e.ID, e.Claim.ID = OutboxID(s.id), OutboxID(s.id)
	e.CommandID, e.Columns = s.command.id, s.command.columns
	e.PayloadVersion, e.Attempt = int(s.version), int(s.attempt)
	e.Raw = []byte(s.payload)
	e.ExpiresAt, e.LastAttemptAt = value(s.expires), value(s.attempted)
	e.RemoteRef, e.OrderKey = value(s.ref), value(s.orderKey)
	e.decode(value(s.headers))
}

// value is what a pointer points to, or the zero value.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func scanEntry(row pgx.CollectableRow) (Entry, error) {
	var e Entry
	var s stored
	if err := row.Scan(append(s.targets(&e), &s.attempt, &s.attempted, &s.ref)...); err != nil {
		return Entry{}, err
	}
	s.finish(&e)
	return e, nil
}

// claimed is a row of claimDue: one that was claimed, or the key from which the
// next claim of a destination goes on.
type claimed struct {
	placedEntry
	keysOf string // empty = a row that was claimed
	goOn   string // empty = from the first
}

func scanClaimed(row pgx.CollectableRow) (c claimed, err error) {
	if row.RawValues()[0] == nil {
		targets := make([]any, len(row.RawValues()))
		targets[len(targets)-2], targets[len(targets)-1] = &c.keysOf, &c.goOn
		return c, row.Scan(targets...)
	}
	var s stored
	if err := row.Scan(append(s.targets(&c.Entry), &s.attempt, &s.attempted, &s.ref, &c.seq, nil, nil)...); err != nil {
		return c, err
	}
	s.finish(&c.Entry)
	return c, nil
}

func scanRecord(row pgx.CollectableRow) (Record, error) {
	var r Record
	var s stored
	var next, claimed, since, completed *time.Time
	var worker, failure *string
	err := row.Scan(append(s.targets(&r.Entry), (*string)(&r.Status), &next, &s.attempt, &r.Claim.Token,
		&worker, &claimed, &s.attempted, &since, &failure, &s.ref, &completed, &r.Holding)...)
	if err != nil {
		return Record{}, err
	}
	r.NextAttemptAt, r.ClaimedAt, r.UnknownSince, r.CompletedAt = value(next), value(claimed), value(since), value(completed)
	r.Worker, r.LastFailure = value(worker), value(failure)
	s.finish(&r.Entry)
	return r, nil
}

// settleArgs are settlements of one statement, a column for each parameter.
type settleArgs struct {
	ids     []string
	tokens  []int64
	reasons []string
	refs    []*string
	at      []*time.Time
	narrow  []bool // of opPostpone and opKeepUnknown, which ask more of the row
}

func (a *settleArgs) add(s settlement) {
	a.ids = append(a.ids, s.claim.ID.String())
	a.tokens = append(a.tokens, s.claim.Token)
	a.reasons = append(a.reasons, s.reason)
	a.refs = append(a.refs, null(s.ref))
	a.at = append(a.at, nullTime(s.at))
	a.narrow = append(a.narrow, s.op == opPostpone || s.op == opKeepUnknown)
}

func (p *postgres) settle(ctx context.Context, settlements []settlement) (map[OutboxID]bool, error) {
	var completed, failed, pending, unknown, never, back settleArgs
	for _, s := range settlements {
		switch s.op {
		case opCompleted:
			completed.add(s)
		case opFailed:
			failed.add(s)
		case opRetry, opPostpone:
			pending.add(s)
		case opUnknown, opKeepUnknown:
			unknown.add(s)
		case opNeverArrived:
			never.add(s)
		case opGiveBack:
			back.add(s)
		}
	}
	names, attempts, giveUp := make([]string, len(policies)), make([]*int32, len(policies)), make([]*int64, len(policies))
	for i, policy := range policies {
		names[i], attempts[i], giveUp[i] = string(policy.destination), policy.attemptsToFail(), policy.giveUpAfter()
	}
	var results [6][]OutboxID
	batch := &pgx.Batch{}
	if len(completed.ids) > 0 {
		query(batch, &results[0], scanID, sqlSettleCompleted, completed.ids, completed.tokens, completed.refs, nil, keepNoCompleted())
	}
	if len(failed.ids) > 0 {
		query(batch, &results[1], scanID, sqlSettleFailed, failed.ids, failed.tokens, failed.reasons, nil)
	}
	if len(pending.ids) > 0 {
		reasons := make([]*string, len(pending.reasons))
		for i, reason := range pending.reasons {
			reasons[i] = null(reason)
		}
		query(batch, &results[2], scanID, sqlSettlePending, pending.ids, pending.tokens, reasons, pending.at, pending.narrow)
	}
	if len(unknown.ids) > 0 {
		query(batch, &results[3], scanID, sqlSettleUnknown, unknown.ids, unknown.tokens, unknown.refs, unknown.at, unknown.narrow,
			names, giveUp)
	}
	if len(never.ids) > 0 {
		query(batch, &results[5], scanID, sqlSettleNeverArrived, never.ids, never.tokens, never.reasons, names, attempts)
	}
	if len(back.ids) > 0 {
		query(batch, &results[4], scanID, sqlSettleBack, back.ids, back.tokens)
	}
	if err := p.send(ctx, batch); err != nil {
		return nil, err
	}
	changed := make(map[OutboxID]bool, len(settlements))
	for _, ids := range results {
		for _, id := range ids {
			changed[id] = true
		}
	}
	return changed, nil
}

// keepNoCompleted are the destinations whose rows are removed as they complete.
func keepNoCompleted() []string {
	names := []string{}
	for _, p := range policies {
		if p.keepCompleted == 0 {
			names = append(names, string(p.destination))
		}
	}
	return names
}

func (p *postgres) states(ctx context.Context, ids []OutboxID) (map[OutboxID]rowState, error) {
	type found struct {
		id uuid.UUID
		rowState
	}
	rows, err := one(ctx, p, func(row pgx.CollectableRow) (f found, err error) {
		err = row.Scan(&f.id, (*string)(&f.destination), (*string)(&f.status), &f.token, &f.held)
		return f, err
	}, sqlExplain, texts(ids))
	if err != nil {
		return nil, err
	}
	states := make(map[OutboxID]rowState, len(rows))
	for _, f := range rows {
		states[OutboxID(f.id)] = f.rowState
	}
	return states, nil
}

func (p *postgres) extendClaims(ctx context.Context, claims []Claim, at time.Time) (map[OutboxID]bool, error) {
	ids, tokens := fences(claims)
	extended, err := one(ctx, p, scanID, sqlExtendClaims, ids, tokens, nullTime(at))
	return set(extended), err
}

func (p *postgres) releaseExpired(ctx context.Context, limit int, at time.Time) ([]OutboxID, error) {
	n := len(policies)
	names, leases, idempotent := make([]string, n), make([]*int64, n), make([]bool, n)
	attempts, questions := make([]*int32, n), make([]*int64, n)
	for i, policy := range policies {
		names[i], leases[i], idempotent[i] = string(policy.destination), microseconds(policy.lease), policy.idempotent
		questions[i], attempts[i] = microseconds(policy.firstQuestion), policy.attemptsToFail()
	}
	return one(ctx, p, scanID, sqlReleaseExpired, names, leases, idempotent, attempts, questions, limit, nullTime(at))
}

func (p *postgres) expireDue(ctx context.Context, limit int, at time.Time) ([]OutboxID, error) {
	var names []string
	for _, policy := range policies {
		names = append(names, string(policy.destination))
	}
	return one(ctx, p, scanID, sqlExpireDue, names, limit, nullTime(at))
}

func (p *postgres) cancel(ctx context.Context, id OutboxID, reason string) (bool, error) {
	ids, err := one(ctx, p, scanID, sqlCancel, id.String(), reason)
	return len(ids) > 0, err
}

func (p *postgres) requeue(ctx context.Context, ids []OutboxID, reason string) ([]OutboxID, error) {
	return one(ctx, p, scanID, sqlRequeue, texts(ids), reason)
}

func (p *postgres) skip(ctx context.Context, destination Destination, key string) ([]OutboxID, error) {
	return one(ctx, p, scanID, sqlSkip, string(destination), key)
}

func (p *postgres) purge(ctx context.Context, start OutboxID, limit int, at time.Time) ([]OutboxID, error) {
	n := len(policies)
	names, completed, failed := make([]string, n), make([]*int64, n), make([]*int64, n)
	for i, policy := range policies {
		names[i] = string(policy.destination)
		completed[i], failed[i] = microseconds(policy.keepCompleted), microseconds(policy.keepFailed)
	}
	return one(ctx, p, scanID, sqlPurge, names, completed, failed,
		keepCompletedDefault.Microseconds(), keepFailedDefault.Microseconds(), limit, start.String(), nullTime(at))
}

func (p *postgres) get(ctx context.Context, id OutboxID) ([]Record, error) {
	return one(ctx, p, scanRecord, sqlGet, id.String())
}

func (p *postgres) listForCommand(ctx context.Context, id CommandID) ([]Record, error) {
	return one(ctx, p, scanRecord, sqlListForCommand, Command{id: id}.args()[0])
}

func (p *postgres) list(ctx context.Context, f Filter, after, before OutboxID, limit int) ([]Record, error) {
	var destinations []string // nil = all of them, as with the kinds
	for _, d := range f.Destinations {
		destinations = append(destinations, string(d))
	}
	var command any
	if f.CommandID != nil {
		command = Command{id: *f.CommandID}.args()[0]
	}
	args := []any{
		after.String(), limit, f.has(StatusPending), f.has(StatusDispatching), f.has(StatusOutcomeUnknown), f.has(StatusFailed), f.has(StatusCompleted),
		destinations, append([]string(nil), f.Kinds...), before.String(), null(f.LastFailure), f.Holding, command,
	}
	args = append(args, f.Columns.args()...)
	if tx, callerTx := p.db.(pgx.Tx); callerTx && tx.Conn().Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// A statement that is kept may get a plan for all filters, which uses
		// the index of none.
		rows, err := tx.Query(ctx, sqlList, append([]any{pgx.QueryExecModeCacheDescribe}, args...)...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, scanRecord)
	}
	var records []Record
	batch := &pgx.Batch{}
	query(batch, &records, scanRecord, sqlList, args...)
	return records, p.send(ctx, batch, "SET LOCAL plan_cache_mode = force_custom_plan")
}

func (p *postgres) stats(ctx context.Context) ([]statsRow, error) {
	return one(ctx, p, func(row pgx.CollectableRow) (s statsRow, err error) {
		var oldest string
		if err = row.Scan((*string)(&s.destination), &s.kind, (*string)(&s.status), &s.rows, &s.due, &oldest); err != nil {
			return s, err
		}
		s.oldest, err = ParseOutboxID(oldest)
		return s, err
	}, sqlStats)
}

func (p *postgres) checkRows(ctx context.Context) (RowCheck, error) {
	checks, err := one(ctx, p, func(row pgx.CollectableRow) (c RowCheck, err error) {
		err = row.Scan(&c.Both, &c.Neither, &c.Orphans)
		return c, err
	}, sqlCheckRows)
	if err != nil {
		return RowCheck{}, err
	}
	return checks[0], nil
}
