package main

import (
	"context"
	"errors"
	"net/netip"
	"syscall"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// endpoint is where a customer wants to be told of events.
type endpoint struct {
	url    string
	secret []byte
}

// errNoEndpoint says that there is no such endpoint, or that it is switched off.
var errNoEndpoint = errors.New("there is no such endpoint")

// sqlEndpoints makes the table of the endpoints.
const sqlEndpoints = `CREATE TABLE IF NOT EXISTS endpoint (
  endpoint_id uuid PRIMARY KEY,
  url text NOT NULL,
  secret bytea NOT NULL,
  switched_off boolean NOT NULL DEFAULT false
)`

// table is the table of the endpoints.
type table struct{ db *pgxpool.Pool }

func (t table) find(ctx context.Context, id uuid.UUID) (e endpoint, err error) {
	err = t.db.QueryRow(ctx, "SELECT url, secret FROM endpoint WHERE endpoint_id = $1 AND NOT switched_off", id).Scan(&e.url, &e.secret)
	if errors.Is(err, pgx.ErrNoRows) {
		err = errNoEndpoint
	}
	return e, err
}

func (t table) switchOff(ctx context.Context, id uuid.UUID) error {
	_, err := t.db.Exec(ctx, "UPDATE endpoint SET switched_off = true WHERE endpoint_id = $1", id)
	return err
}

var errPrivateAddress = errors.New("the endpoint has an address that is not a public one")

// publicOnly keeps customers from naming addresses of the service's own network.
// It sees the address that a name has led to, so that no answer of a name server
// gets around it.
func publicOnly(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if ip := to.Addr().Unmap(); !ip.IsGlobalUnicast() || ip.IsPrivate() {
		return errPrivateAddress
	}
	return nil
}
