package pgtest

import (
	"os"
	"slices"
	"strings"
)

type config struct {
	finder   finder
	accounts []string // that initdb may borrow when root starts it
	settings []setting
}

// accountNames are the accounts that initdb may borrow, the least privileged first.
var accountNames = []string{"nobody", "postgres", "daemon", "bin"}

type setting struct{ name, value string }

func newConfig() *config {
	c := &config{finder: finder{
		binDir:     os.Getenv(EnvBinDir),
		binDirFrom: EnvBinDir,
		path:       os.Getenv("PATH"),
		usual:      usualDirs,
		repository: os.Getenv(EnvRepository),
	}, accounts: accountNames}
	for _, s := range []setting{
		{"max_connections", "200"},
		// Each test binary has a cluster of its own, and several run at a time.
		{"shared_buffers", "64MB"},
		// synchronous_commit stays on: with it a commit is in the kernel before
		// it is reported, so that Crash loses none even without fsync.
		{"fsync", "off"},
		{"full_page_writes", "off"},
		// What a test sees must not depend on the machine's zone.
		{"timezone", "UTC"},
		{"log_timezone", "UTC"},
	} {
		c.set(s.name, s.value)
	}
	return c
}

// set keeps the name's first place, so that a file made of the settings has
// each name once.
func (c *config) set(name, value string) {
	name = strings.ToLower(name)
	i := slices.IndexFunc(c.settings, func(s setting) bool { return s.name == name })
	if i < 0 {
		c.settings = append(c.settings, setting{name, value})
		return
	}
	c.settings[i].value = value
}
