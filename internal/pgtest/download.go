package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// downloadVersion is the release that is downloaded.
const downloadVersion = embedded.V18

// download gives the directory of programs that were downloaded, now or earlier.
func (f finder) download(ctx context.Context) (string, error) {
	cache := f.cache
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		cache = filepath.Join(user, "outboxgen", "postgres")
	}
	home := filepath.Join(cache, string(downloadVersion))
	if err := usable(ctx, filepath.Join(home, "bin")); err == nil {
		return filepath.Join(home, "bin"), nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	// Unpacked aside and moved into place whole: another process may do the
	// same at this moment, and this one may be killed halfway.
	aside, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return "", err
	}
	done := make(chan error, 1)
	go func() {
		err := f.fetch(aside, home)
		done <- errors.Join(err, os.RemoveAll(aside))
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		// The library cannot be interrupted; what it still unpacks is removed by the goroutine.
		err = ctx.Err()
	}
	if err != nil {
		return "", err
	}
	if err := usable(ctx, filepath.Join(home, "bin")); err != nil {
		return "", fmt.Errorf("what was downloaded to %s cannot be used: %w", home, err)
	}
	return filepath.Join(home, "bin"), nil
}

// fetch downloads and unpacks into aside, then moves the result to home.
func (f finder) fetch(aside, home string) error {
	programs := filepath.Join(aside, "programs")
	config := embedded.DefaultConfig().
		Version(downloadVersion).
		CachePath(filepath.Join(aside, "archive")).
		RuntimePath(filepath.Join(aside, "runtime")).
		BinariesPath(programs).
		// Start of the library downloads, unpacks, clears the data directory,
		// and goes on to run initdb and a server on TCP as the current user,
		// which root cannot. We want the first two steps, which it has no
		// function for. os.RemoveAll refuses a path that ends in a dot, so
		// that with this data directory the third step ends it, before any
		// process is started.
		DataPath(filepath.Join(aside, "runtime") + "/.").
		// The library checks that it could listen on the port; any will do.
		Port(0).
		Logger(io.Discard)
	if f.repository != "" {
		config = config.BinaryRepositoryURL(strings.TrimSuffix(f.repository, "/"))
	}
	err := embedded.NewDatabase(config).Start()
	if err == nil {
		return errors.New("embedded-postgres started a server although it had no data directory")
	}
	if !strings.Contains(err.Error(), "unable to clean up data directory") {
		return err
	}
	if err := os.Rename(programs, home); err != nil {
		if usable(context.Background(), filepath.Join(home, "bin")) == nil {
			return nil // another process was faster
		}
		return err
	}
	return nil
}
