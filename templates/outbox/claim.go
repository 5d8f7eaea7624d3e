package outbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"
)

// ClaimRequest says who claims, and how many rows of which destinations.
type ClaimRequest struct {
	// WorkerID names the worker in the rows that it holds, for people to read;
	// it may be anything but empty and is cut to its last 64 bytes. It gives no
	// right to a row: the claim's token does.
	WorkerID string
	// Limits are the largest numbers of rows to claim of each destination.
	// Destinations that are not named are left alone.
	Limits map[Destination]int
	// At is the time that rows must be due at; zero means the database's present.
	At time.Time
}

// ClaimDue claims rows that are due, the oldest of each destination first, and
// returns them sorted by id. Rows that another worker is claiming at the same
// instant are passed over, so nobody waits and no row is claimed twice. Every
// claim counts as an attempt.
//
// Of a key of an ordered destination the rows are returned in the key's order,
// at the place of the oldest of them, and no other worker gets any of that key
// until all of them are settled. They are to be sent one after the other: when
// one does not complete, give back those behind it.
//
// A claim holds for the lease of the row's destination: then
// [Store.ReleaseExpiredClaims] may take it away. Rows whose payload or version
// this package does not know are not claimed.
//
// A call that returns nothing has looked at all that is due. Where a part of the
// claim fails, what the other parts have claimed is returned without the error,
// which the next call meets again if it lasts. A call that has lost
// its connection may have claimed rows: they wait for their lease to run out.
func (s *Store) ClaimDue(ctx context.Context, request ClaimRequest) ([]Entry, error) {
	call, err := request.call()
	if err != nil {
		return nil, fmt.Errorf("outbox: ClaimDue: %w", err)
	}
	if len(call.destinations) == 0 {
		return nil, nil
	}
	rows, err := s.backend.claimDue(ctx, call)
	if err != nil && len(rows) == 0 {
		return nil, fmt.Errorf("outbox: ClaimDue: %w", err)
	}
	return decoded(inOrder(rows)), nil
}

// ClaimUnknown holds rows whose outcome is unknown and whose next question is
// due, so that one worker alone asks the remote about them. It counts as no
// attempt: nothing is to be sent. Settle them with MarkCompleted, MarkFailed,
// MarkNeverArrived or KeepUnknown.
func (s *Store) ClaimUnknown(ctx context.Context, request ClaimRequest) ([]Entry, error) {
	call, err := request.call()
	if err != nil {
		return nil, fmt.Errorf("outbox: ClaimUnknown: %w", err)
	}
	if len(call.destinations) == 0 {
		return nil, nil
	}
	rows, err := s.backend.claimUnknown(ctx, call)
	if err != nil {
		return nil, fmt.Errorf("outbox: ClaimUnknown: %w", err)
	}
	slices.SortFunc(rows, byID)
	return decoded(rows), nil
}

// decoded are the rows with their payloads.
func decoded(rows []*claimedRow) []Entry {
	entries := make([]Entry, len(rows))
	for i, row := range rows {
		row.decodePayload()
		entries[i] = row.Entry
	}
	return entries
}

func byID(a, b *claimedRow) int { return compareIDs(a.ID, b.ID) }

// inOrder puts rows in the order of their ids, and those of one key, in the key's
// order, at the place of the first.
func inOrder(rows []*claimedRow) []*claimedRow {
	type key struct {
		destination Destination
		key         string
	}
	heads := make(map[key]*claimedRow)
	for _, row := range rows {
		if row.OrderKey == "" {
			continue
		}
		k := key{row.Destination, row.OrderKey}
		if head, found := heads[k]; !found || row.seq < head.seq {
			heads[k] = row
		}
	}
	place := func(row *claimedRow) OutboxID {
		if row.OrderKey == "" {
			return row.ID
		}
		return heads[key{row.Destination, row.OrderKey}].ID
	}
	slices.SortFunc(rows, func(a, b *claimedRow) int {
		return cmp.Or(compareIDs(place(a), place(b)), cmp.Compare(a.seq, b.seq))
	})
	return rows
}

// maxClaim bounds the rows of one destination that a call claims, so that it
// ends within any lease.
const maxClaim = 100_000

func (r ClaimRequest) call() (claimCall, error) {
	if r.WorkerID == "" {
		return claimCall{}, errors.New("the worker has no name")
	}
	if err := checkTime(r.At); err != nil {
		return claimCall{}, err
	}
	c := claimCall{token: newToken(), worker: workerName(r.WorkerID), at: r.At}
	for _, p := range policies {
		limit, named := r.Limits[p.destination]
		if !named || limit <= 0 {
			continue
		}
		c.destinations = append(c.destinations, string(p.destination))
		c.limits = append(c.limits, int32(min(limit, maxClaim)))
		c.marks = append(c.marks, OutboxID{})
		c.runs = append(c.runs, p.longestRun())
		c.walks = append(c.walks, &walk{})
		c.giveUp = append(c.giveUp, p.giveUpAfter())
		c.kinds = append(c.kinds, p.kinds...)
	}
	for d := range r.Limits {
		if !slices.ContainsFunc(policies, func(p *policy) bool { return p.destination == d }) {
			return claimCall{}, fmt.Errorf("there is no destination %q", d)
		}
	}
	return c, nil
}

// workerName is a name as it is stored: the end of a long one, where names of
// hosts and pods differ.
func workerName(name string) string {
	if start := len(name) - maxWorker; start > 0 {
		for range utf8.UTFMax - 1 {
			if !utf8.RuneStart(name[start]) {
				start++
			}
		}
		name = name[start:]
	}
	return cleanText(name, maxWorker)
}

// newToken draws the token of a claim; 0 is kept for rows never claimed.
func newToken() int64 {
	var random [8]byte
	for {
		rand.Read(random[:]) // never fails, as crypto/rand says
		if token := int64(binary.BigEndian.Uint64(random[:])); token != 0 {
			return token
		}
	}
}

// ExtendClaims makes claims new again as of at, and returns those that are still
// held: the row is being dispatched, or held for a question, under that claim.
func (s *Store) ExtendClaims(ctx context.Context, at time.Time, claims ...Claim) ([]Claim, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	if err := checkTime(at); err != nil {
		return nil, fmt.Errorf("outbox: ExtendClaims: %w", err)
	}
	// One call may name a row twice, under an old claim and the current one.
	var held []Claim
	for rest := claims; len(rest) > 0; {
		var round []Claim
		round, rest = firstOfEach(rest, func(c Claim) OutboxID { return c.ID })
		extended, err := s.backend.extendClaims(ctx, round, at)
		if err != nil {
			return held, fmt.Errorf("outbox: ExtendClaims: %w", err)
		}
		for _, c := range round {
			if extended[c.ID] {
				held = append(held, c)
			}
		}
	}
	return held, nil
}

// firstOfEach splits a list into the first element of each row and the rest, so
// that a statement never names a row twice. The rows come sorted by id: two
// calls that share rows lock them in the same order.
func firstOfEach[T any](list []T, id func(T) OutboxID) (first, rest []T) {
	sorted := slices.Clone(list)
	slices.SortStableFunc(sorted, func(a, b T) int { return compareIDs(id(a), id(b)) })
	first = sorted[:0]
	for _, element := range sorted {
		if n := len(first); n > 0 && id(first[n-1]) == id(element) {
			rest = append(rest, element)
			continue
		}
		first = append(first, element)
	}
	return first, rest
}

// sweepStep is the number of rows that one statement of a sweep takes, so that
// no transaction is long.
const sweepStep = 1000

// ReleaseExpiredClaims ends the claims that are older than the lease of their
// destination, and returns the ids of the rows, sorted. Rows of an idempotent
// destination are due again at once, or fail when they have used up their
// attempts; where a repetition could do harm they become unknown. Rows held for
// a question are let go.
func (s *Store) ReleaseExpiredClaims(ctx context.Context, at time.Time) ([]OutboxID, error) {
	if err := checkTime(at); err != nil {
		return nil, fmt.Errorf("outbox: ReleaseExpiredClaims: %w", err)
	}
	all, err := s.releaseExpired(ctx, allDestinations(), at)
	if err != nil {
		err = fmt.Errorf("outbox: ReleaseExpiredClaims: %w", err)
	}
	return all, err
}

func (s *Store) releaseExpired(ctx context.Context, destinations []Destination, at time.Time) ([]OutboxID, error) {
	var all []OutboxID
	for {
		ids, err := s.backend.releaseExpired(ctx, destinations, sweepStep, at)
		all = append(all, ids...)
		if err != nil {
			return all, err
		}
		if len(ids) < sweepStep {
			slices.SortFunc(all, compareIDs)
			return all, nil
		}
	}
}
