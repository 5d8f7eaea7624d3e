package outbox

import (
	"context"
	"encoding/hex"
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
	keys     *orderKeys
	notifier *notifier
	lockTime time.Duration // see boundLocks; 0 = as the database is set
}

func newPostgres(db DB, keys *orderKeys, n *notifier) *postgres {
	_, callerTx := db.(pgx.Tx)
	return &postgres{db: db, callerTx: callerTx, keys: keys, notifier: n}
}

func (p *postgres) within(tx pgx.Tx) backend { return newPostgres(tx, p.keys, p.notifier) }

// boundLocks returns a backend whose settles and renewals wait for no lock for
// longer than d, and then fail with lock_not_available.
func (p *postgres) boundLocks(d time.Duration) backend {
	bounded := *p
	bounded.lockTime = d
	return &bounded
}

// lockTimeout are the settings that bound the wait for a lock.
func (p *postgres) lockTimeout() []string {
	if p.lockTime == 0 {
		return nil
	}
	return []string{fmt.Sprintf("SET LOCAL lock_timeout = %d", p.lockTime.Milliseconds())}
}

// orderKeys is what claims have seen of destinations with ordered rows. It only
// spreads the work: whatever it says, a walk that is over has been everywhere.
type orderKeys struct {
	mu   sync.Mutex
	seen map[string]*seenKeys
}

type seenKeys struct {
	cursor  string // the next claim goes on behind this key
	ordered bool   // there were ordered rows
	loose   bool   // there were rows that no order binds
	turns   int
}

func (k *orderKeys) of(destination string) *seenKeys {
	if k.seen[destination] == nil {
		if k.seen == nil {
			k.seen = make(map[string]*seenKeys)
		}
		k.seen[destination] = &seenKeys{}
	}
	return k.seen[destination]
}

func (k *orderKeys) get(destination string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.of(destination).cursor
}

func (k *orderKeys) set(destination, cursor string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.of(destination).cursor = cursor
}

func (k *orderKeys) saw(destination string, ordered, loose bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen := k.of(destination)
	seen.ordered, seen.loose = ordered, loose
}

// looseTurn is how often a claim looks first for rows that no order binds where
// only ordered ones were seen.
const looseTurn = 16

// first tells whether a claim is to begin with the ordered rows. Where there are
// both, since order_by was added or removed, they take turns, so that none waits
// for the end of the other.
func (k *orderKeys) first(destination string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen := k.of(destination)
	seen.turns++
	if seen.loose {
		return seen.ordered && seen.turns%2 == 0
	}
	return seen.ordered && seen.turns%looseTurn != 0
}

// send runs statements in one round trip. Outside a transaction of the caller's
// they are a transaction of their own, read committed whatever the database's
// default is, and under the settings given besides jit = off: the limits of a
// claim are planned as a tenth of the table, and compiling would take longer
// than the claim.
func (p *postgres) send(ctx context.Context, statements *pgx.Batch, settings ...string) error {
	return p.sendThen(ctx, statements, nil, settings...)
}

// sendThen is send with more statements in the same transaction, which follow
// from what the first have answered: one round trip more, unless then is nil or
// returns nil.
func (p *postgres) sendThen(ctx context.Context, statements *pgx.Batch, then func() *pgx.Batch, settings ...string) error {
	if p.callerTx {
		return sendBoth(ctx, p.db, statements, then)
	}
	var conn *pgx.Conn
	switch db := p.db.(type) {
	case *pgxpool.Pool:
		acquired, err := db.Acquire(ctx)
		if err != nil {
			return err
		}
		defer acquired.Release()
		conn = acquired.Conn()
	case *pgxpool.Conn:
		conn = db.Conn()
	case *pgx.Conn:
		conn = db
	default:
		return untilNoDeadlock(func() error {
			return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
				// Not within a batch: pgx may have it prepared first, after which
				// the level stands.
				if _, err := tx.Exec(ctx, sqlReadCommitted); err != nil {
					return err
				}
				batch := &pgx.Batch{}
				addSettings(batch, settings)
				addAll(batch, statements)
				return sendBoth(ctx, tx, batch, then)
			})
		})
	}
	if conn.PgConn().TxStatus() != 'I' {
		// The caller has begun a transaction on the connection itself.
		return sendBoth(ctx, conn, statements, then)
	}
	return untilNoDeadlock(func() error {
		batch := &pgx.Batch{}
		batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
		addSettings(batch, settings)
		addAll(batch, statements)
		if then != nil {
			if err := conn.SendBatch(ctx, batch).Close(); err != nil {
				return endTx(ctx, conn, err)
			}
			batch = &pgx.Batch{}
			if more := then(); more != nil {
				addAll(batch, more)
			}
		}
		batch.Queue("COMMIT")
		return endTx(ctx, conn, conn.SendBatch(ctx, batch).Close())
	})
}

// sendBoth is sendThen within a transaction.
func sendBoth(ctx context.Context, db interface {
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}, statements *pgx.Batch, then func() *pgx.Batch) error {
	if err := db.SendBatch(ctx, statements).Close(); err != nil || then == nil {
		return err
	}
	if more := then(); more != nil {
		return db.SendBatch(ctx, more).Close()
	}
	return nil
}

const (
	// sqlReadCommitted makes a transaction that has just begun one of the store's own.
	sqlReadCommitted = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE"
	sqlNoJIT         = "SET LOCAL jit = off"
)

func addSettings(batch *pgx.Batch, settings []string) {
	batch.Queue(sqlNoJIT)
	for _, setting := range settings {
		batch.Queue(setting)
	}
}

// endTx leaves no transaction open after a failure.
func endTx(ctx context.Context, conn *pgx.Conn, err error) error {
	if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		if _, rollback := conn.Exec(ctx, "ROLLBACK"); rollback != nil {
			// Left open, it would pass for one on which the caller has begun.
			err = errors.Join(err, rollback, conn.Close(ctx))
		}
	}
	return err
}

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

// addAll adds the statements of a batch. They are copied, since pgx notes in one
// that was sent what it has prepared it as, which holds only for that sending.
func addAll(batch, statements *pgx.Batch) {
	for _, q := range statements.QueuedQueries {
		batch.QueuedQueries = append(batch.QueuedQueries, &pgx.QueuedQuery{SQL: q.SQL, Arguments: q.Arguments, Fn: q.Fn})
	}
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

// scanID takes the id as bytes: into any other type pgx goes by way of its text.
func scanID(row pgx.CollectableRow) (id OutboxID, err error) {
	err = row.Scan((*[16]byte)(&id))
	return id, err
}

// idArray is an array of ids as Postgres writes it. A list of texts would do, but
// pgx tries each in the binary format first, and writes of what it was refused.
func idArray(ids []OutboxID) string {
	text := make([]byte, 0, 2+33*len(ids))
	text = append(text, '{')
	for i, id := range ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = hex.AppendEncode(text, id[:])
	}
	return string(append(text, '}'))
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
		var ids []OutboxID
		batch := &pgx.Batch{}
		query(batch, &ids, scanID, sql, args...)
		if p.notifies(rows) {
			batch.Queue(sqlNotify)
		}
		if err := p.send(ctx, batch); err != nil {
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
			_, err := one(ctx, p, scanID, sqlEnqueueUndo, idArray(inserted))
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
	if p.notifies(rows) {
		batch.Queue(sqlNotify)
	}
	sql, args = sqlEnqueueAnswer, []any{destinations, keys, types, versions, payloads}
	if len(rows) == 1 {
		sql, args = sqlEnqueueAnswerOne, []any{destinations[0], keys[0], types[0], versions[0], payloads[0]}
	}
	batch.Queue(sql, args...).Query(func(result pgx.Rows) error {
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

// claimDue claims what no order binds and what does, each where there is any. They
// are transactions of their own, under tokens of their own: when one fails, it is
// known what the others have claimed.
func (p *postgres) claimDue(ctx context.Context, c claimCall) ([]*claimedRow, error) {
	var before, after []int
	for i, d := range c.destinations {
		if p.keys.first(d) {
			before = append(before, i)
		}
	}
	rows, err := p.claimOrdered(ctx, c, before)
	if err != nil && p.inTx() {
		return nil, err // nothing is claimed, since the transaction has failed
	}
	c = c.less(rows)
	loose, ordered, looseErr := p.claimLoose(ctx, c)
	if looseErr != nil && p.inTx() {
		return nil, looseErr
	}
	c = c.less(loose)
	for i, d := range c.destinations {
		switch {
		case slices.Contains(before, i):
		case ordered[d]:
			after = append(after, i)
		default:
			*c.walks[i] = walk{}
		}
	}
	more, moreErr := p.claimOrdered(ctx, c, after)
	if moreErr != nil && p.inTx() {
		return nil, moreErr
	}
	return slices.Concat(rows, loose, more), errors.Join(err, looseErr, moreErr)
}

// inTx tells whether a transaction of the caller's is under way.
func (p *postgres) inTx() bool {
	switch db := p.db.(type) {
	case *pgxpool.Conn:
		return db.Conn().PgConn().TxStatus() != 'I'
	case *pgx.Conn:
		return db.PgConn().TxStatus() != 'I'
	}
	return p.callerTx
}

// claimLoose claims rows that no order binds. It answers also which destinations
// have ordered rows.
func (p *postgres) claimLoose(ctx context.Context, c claimCall) ([]*claimedRow, map[string]bool, error) {
	if !slices.ContainsFunc(c.limits, func(n int32) bool { return n > 0 }) {
		return nil, nil, nil
	}
	var rows []*claimedRow
	var names []string
	batch := &pgx.Batch{}
	query(batch, &rows, scanClaimed(c.token), sqlClaimDue, c.destinations, c.limits, idArray(c.marks), c.kinds, c.token, c.worker, nullTime(c.at), c.leftOut)
	query(batch, &names, pgx.RowTo[string], sqlOrdered, c.destinations)
	if err := p.send(ctx, batch, onePlan...); err != nil {
		return nil, nil, &claimError{c.token, err}
	}
	ordered := make(map[string]bool)
	for _, name := range names {
		ordered[name] = true
	}
	found := make(map[string]bool)
	for _, row := range rows {
		found[string(row.Destination)] = true
	}
	for i, d := range c.destinations {
		if c.limits[i] > 0 {
			p.keys.saw(d, ordered[d], found[d])
		}
	}
	return rows, ordered, nil
}

// onePlan is for claims and settles: to plan them takes longer than to carry
// them out, and one plan serves every call as long as it goes by the indexes, also
// where it was made for empty tables.
var onePlan = []string{"SET LOCAL plan_cache_mode = force_generic_plan", "SET LOCAL enable_seqscan = off"}

// walk is where claims stand among the order keys of a destination: it goes round
// them once, in one claim or in several. The zero walk has not begun.
type walk struct {
	begun bool
	first string // the key that it began behind
	start string // the keys behind it are next
	round bool   // the last key has been passed
	over  bool   // no key is left to look at
}

// begin begins the walk behind a key, unless it is under way.
func (w *walk) begin(cursor string) {
	if !w.unfinished() {
		*w = walk{begun: true, first: cursor, start: cursor}
	}
}

func (w *walk) unfinished() bool { return w.begun && !w.over }

// advance moves the walk on to the keys behind goOn, which is empty when the last
// key has been looked at.
func (w *walk) advance(goOn string) {
	w.start = goOn
	if goOn == "" && !w.round && w.first != "" {
		w.round = true
		return
	}
	w.over = goOn == "" || w.round && goOn >= w.first
}

// claimOrdered claims rows of ordered keys, of some of the destinations. It looks
// at no more than keysLook keys at a time. When these give nothing, since all of
// them are held or wait, it goes on with the next until it has been round, or has
// looked as often as the call allows.
func (p *postgres) claimOrdered(ctx context.Context, c claimCall, which []int) ([]*claimedRow, error) {
	var walking []int // of the destinations
	for _, i := range which {
		if c.limits[i] > 0 {
			c.walks[i].begin(p.keys.get(c.destinations[i]))
			walking = append(walking, i)
		}
	}
	for looks := 1; len(walking) > 0; looks++ {
		n := len(walking)
		names, limits, runs, starts := make([]string, n), make([]int32, n), make([]int32, n), make([]string, n)
		limitOf, runOf := make(map[string]int32), make(map[string]int32)
		for k, i := range walking {
			names[k], limits[k], runs[k], starts[k] = c.destinations[i], c.limits[i], c.runs[i], c.walks[i].start
			limitOf[names[k]], runOf[names[k]] = limits[k], runs[k]
		}
		var heads []head
		var rows []*claimedRow
		batch := &pgx.Batch{}
		query(batch, &heads, scanHead, sqlLockHeads, names, limits, starts, c.kinds, runs, keysLook, nullTime(c.at), c.leftOut)
		goOn := make(map[string]string)
		err := p.sendThen(ctx, batch, func() *pgx.Batch {
			rows = nil // of a try that was rolled back
			var ids, destinations, keys []string
			var limits, runs []int32
			for _, h := range heads {
				if h.id == nil {
					goOn[h.destination] = h.key
					continue
				}
				ids, destinations, keys = append(ids, h.id.String()), append(destinations, h.destination), append(keys, h.key)
				limits, runs = append(limits, limitOf[h.destination]), append(runs, runOf[h.destination])
			}
			if len(ids) == 0 {
				return nil
			}
			batch := &pgx.Batch{}
			query(batch, &rows, scanClaimed(c.token), sqlTakeRuns, ids, destinations, keys, c.kinds, c.token, c.worker, nullTime(c.at), c.leftOut,
				limits, runs, runLook)
			return batch
		}, onePlan...)
		if err != nil {
			return nil, &claimError{c.token, err}
		}
		for destination, key := range goOn {
			p.keys.set(destination, key)
		}
		walking = slices.DeleteFunc(walking, func(i int) bool {
			w := c.walks[i]
			if key, going := goOn[c.destinations[i]]; going {
				w.advance(key)
			} else {
				w.over = true
			}
			return w.over
		})
		if len(rows) > 0 || looks == c.looks {
			return rows, nil
		}
	}
	return nil, nil
}

// head is a row of lockHeads: the head of a key or, without an id, the key from
// which the next claim of the destination goes on.
type head struct {
	destination, key string
	id               *uuid.UUID
}

func scanHead(row pgx.CollectableRow) (h head, err error) {
	err = row.Scan(&h.destination, &h.key, &h.id)
	return h, err
}

func (p *postgres) claimUnknown(ctx context.Context, c claimCall) ([]*claimedRow, error) {
	rows, err := one(ctx, p, scanClaimed(c.token), sqlClaimUnknown, c.destinations, c.limits, c.giveUp, c.kinds, c.token, c.worker, nullTime(c.at), c.leftOut)
	if err != nil {
		return nil, &claimError{c.token, err}
	}
	return rows, nil
}

func (p *postgres) recall(ctx context.Context, tokens []int64) ([]OutboxID, error) {
	return one(ctx, p, scanID, sqlRecall, tokens)
}

// stored is a row as the statements return it.
type stored struct {
	id        OutboxID
	command   storedCommand
	version   int32
	attempt   int32
	headers   *string
	expires   *time.Time
	orderKey  *string
	limitKey  *string
	attempted *time.Time
	ref       *string
}

// targets are what the columns of a row are scanned into, in a list that may have
// been used before.
func (s *stored) targets(list []any, e *Entry) []any {
	list = s.command.targets(append(list[:0], (*[16]byte)(&s.id)))
	return append(list, (*string)(&e.Destination), &e.PayloadType, &s.version, &e.IdempotencyKey, &e.Raw, &s.headers, &e.EnqueuedAt, &s.expires, &s.orderKey, &s.limitKey)
}

func (s *stored) finish(e *Entry) {
	e.ID, e.Claim.ID = s.id, s.id
	e.CommandID, e.Columns = s.command.id, s.command.columns
	e.PayloadVersion, e.Attempt = int(s.version), int(s.attempt)
	e.ExpiresAt, e.LastAttemptAt = value(s.expires), value(s.attempted)
	e.RemoteRef, e.OrderKey, e.LimitKey = value(s.ref), value(s.orderKey), value(s.limitKey)
	e.decodeHeaders(value(s.headers))
}

// value is what a pointer points to, or the zero value.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// scanClaimed scans rows that are claimed under a token. What the rows have no need
// of afterwards is used again for each.
func scanClaimed(token int64) pgx.RowToFunc[*claimedRow] {
	var s stored
	var targets []any
	return func(row pgx.CollectableRow) (*claimedRow, error) {
		r := &claimedRow{}
		targets = append(s.targets(targets, &r.Entry), &s.attempt, &s.attempted, &s.ref, &r.seq)
		if err := row.Scan(targets...); err != nil {
			return nil, err
		}
		s.finish(&r.Entry)
		r.Claim.Token = token
		return r, nil
	}
}

func scanRecord(row pgx.CollectableRow) (Record, error) {
	var r Record
	var s stored
	var next, claimed, since, completed *time.Time
	var worker, failure *string
	err := row.Scan(append(s.targets(nil, &r.Entry), (*string)(&r.Status), &next, &s.attempt, &r.Claim.Token,
		&worker, &claimed, &s.attempted, &since, &failure, &s.ref, &completed, &r.Holding)...)
	if err != nil {
		return Record{}, err
	}
	r.NextAttemptAt, r.ClaimedAt, r.UnknownSince, r.CompletedAt = value(next), value(claimed), value(since), value(completed)
	r.Worker, r.LastFailure = value(worker), value(failure)
	s.finish(&r.Entry)
	r.decodePayload()
	return r, nil
}

// alike are settlements of one statement. Its parameters are their columns.
type alike []*settlement

func column[T any](list alike, of func(*settlement) T) []T {
	values := make([]T, len(list))
	for i, s := range list {
		values[i] = of(s)
	}
	return values
}

// columnOrNull is column, or nothing if all of it is null: no statement then looks up
// the value of every row.
func columnOrNull[T any](list alike, of func(*settlement) *T) []*T {
	values := column(list, of)
	if slices.ContainsFunc(values, func(p *T) bool { return p != nil }) {
		return values
	}
	return nil
}

func (l alike) ids() string {
	return idArray(column(l, func(s *settlement) OutboxID { return s.claim.ID }))
}

func (l alike) tokens() []int64 {
	return column(l, func(s *settlement) int64 { return s.claim.Token })
}

func (l alike) reasons() []string {
	return column(l, func(s *settlement) string { return s.reason })
}

// newReasons are the reasons, and null where the last one stays.
func (l alike) newReasons() []*string {
	return columnOrNull(l, func(s *settlement) *string { return null(s.reason) })
}

func (l alike) refs() []*string {
	return columnOrNull(l, func(s *settlement) *string { return null(s.ref) })
}

func (l alike) times() []*time.Time {
	return columnOrNull(l, func(s *settlement) *time.Time { return nullTime(s.at) })
}

// delays are in microseconds.
func (l alike) delays() []int64 {
	return column(l, func(s *settlement) int64 { return s.delay.Microseconds() })
}

// narrow tells of opPostpone and opKeepUnknown, which ask more of the row.
func (l alike) narrow() []bool {
	return column(l, func(s *settlement) bool { return s.op == opPostpone || s.op == opKeepUnknown })
}

func (p *postgres) settle(ctx context.Context, list []settlement) ([]OutboxID, error) {
	var completed, failed, pending, unknown, never, back alike
	for i := range list {
		switch s := &list[i]; s.op {
		case opCompleted:
			completed = append(completed, s)
		case opFailed:
			failed = append(failed, s)
		case opRetry, opPostpone:
			pending = append(pending, s)
		case opUnknown, opKeepUnknown:
			unknown = append(unknown, s)
		case opNeverArrived:
			never = append(never, s)
		case opGiveBack:
			back = append(back, s)
		}
	}
	names, attempts, giveUp := make([]string, len(policies)), make([]*int32, len(policies)), make([]*int64, len(policies))
	for i, policy := range policies {
		names[i], attempts[i], giveUp[i] = string(policy.destination), policy.attemptsToFail(), policy.giveUpAfter()
	}
	batch := &pgx.Batch{}
	var results [6][]OutboxID
	if len(completed) > 0 {
		query(batch, &results[0], scanID, sqlSettleCompleted, completed.ids(), completed.tokens(), completed.refs(), nil, keepNoCompleted())
	}
	if len(failed) > 0 {
		query(batch, &results[1], scanID, sqlSettleFailed, failed.ids(), failed.tokens(), failed.reasons(), nil)
	}
	if len(pending) > 0 {
		query(batch, &results[2], scanID, sqlSettlePending, pending.ids(), pending.tokens(), pending.newReasons(), pending.times(), pending.narrow(), pending.delays())
	}
	if len(unknown) > 0 {
		query(batch, &results[3], scanID, sqlSettleUnknown, unknown.ids(), unknown.tokens(), unknown.refs(), unknown.times(), unknown.narrow(),
			names, giveUp, unknown.delays(), unknown.newReasons())
	}
	if len(never) > 0 {
		query(batch, &results[4], scanID, sqlSettleNeverArrived, never.ids(), never.tokens(), never.reasons(), names, attempts)
	}
	if len(back) > 0 {
		query(batch, &results[5], scanID, sqlSettleBack, back.ids(), back.tokens())
	}
	if err := p.send(ctx, batch, slices.Concat(onePlan, p.lockTimeout())...); err != nil {
		return nil, err
	}
	return slices.Concat(results[:]...), nil
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
	}, sqlExplain, idArray(ids))
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
	ids, tokens := make([]OutboxID, len(claims)), make([]int64, len(claims))
	for i, c := range claims {
		ids[i], tokens[i] = c.ID, c.Token
	}
	var extended []OutboxID
	batch := &pgx.Batch{}
	query(batch, &extended, scanID, sqlExtendClaims, idArray(ids), tokens, nullTime(at))
	if err := p.send(ctx, batch, p.lockTimeout()...); err != nil {
		return nil, err
	}
	return set(extended), nil
}

func (p *postgres) releaseExpired(ctx context.Context, destinations []Destination, limit int, at time.Time) ([]OutboxID, error) {
	n := len(destinations)
	names, leases, idempotent := make([]string, n), make([]*int64, n), make([]bool, n)
	attempts, questions := make([]*int32, n), make([]*int64, n)
	for i, d := range destinations {
		policy := policyOf(d)
		names[i], leases[i], idempotent[i] = string(d), microseconds(policy.lease), policy.idempotent
		questions[i], attempts[i] = microseconds(policy.firstQuestion), policy.attemptsToFail()
	}
	return one(ctx, p, scanID, sqlReleaseExpired, names, leases, idempotent, attempts, questions, limit, nullTime(at))
}

func (p *postgres) expireDue(ctx context.Context, destinations []Destination, limit int, at time.Time) ([]OutboxID, error) {
	var names []string
	for _, d := range destinations {
		names = append(names, string(d))
	}
	return one(ctx, p, scanID, sqlExpireDue, names, limit, nullTime(at))
}

func (p *postgres) cancel(ctx context.Context, id OutboxID, reason string) (bool, error) {
	ids, err := one(ctx, p, scanID, sqlCancel, id.String(), reason)
	return len(ids) > 0, err
}

func (p *postgres) requeue(ctx context.Context, ids []OutboxID, reason string) ([]OutboxID, error) {
	return one(ctx, p, scanID, sqlRequeue, idArray(ids), reason)
}

func (p *postgres) skip(ctx context.Context, destination Destination, key string) ([]OutboxID, error) {
	return one(ctx, p, scanID, sqlSkip, string(destination), key)
}

func (p *postgres) pause(ctx context.Context, destination Destination, paused bool) error {
	sql := sqlResume
	if paused {
		sql = sqlPause
	}
	_, err := one(ctx, p, scanID, sql, string(destination))
	return err
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
