//go:build !unix

package pgtest

import (
	"context"
	"fmt"
	"runtime"
)

// bouncer is not there, as cluster is not.
type bouncer struct{ url string }

func startBouncer(context.Context, string) (*bouncer, error) {
	return nil, fmt.Errorf("%w: it is not supported on %s", errNoBouncer, runtime.GOOS)
}

func (b *bouncer) stop() error { return nil }
