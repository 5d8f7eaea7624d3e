//go:build !unix

package pgtest

import (
	"context"
	"fmt"
	"runtime"
)

// cluster is not there: the watching process is a shell script, and the socket
// of Postgres a Unix socket.
type cluster struct{}

func newCluster(context.Context, string, *config) (*cluster, error) {
	return nil, fmt.Errorf("a private cluster is not supported on %s: name a server in %s", runtime.GOOS, EnvDatabaseURL)
}

func (c *cluster) url() string                   { return "" }
func (c *cluster) stop() error                   { return nil }
func (c *cluster) crash() error                  { return nil }
func (c *cluster) restart(context.Context) error { return nil }
