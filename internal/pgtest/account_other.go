//go:build unix && !linux

package pgtest

import (
	"errors"
	"os/exec"
)

func startWithAccount(*exec.Cmd, uint32, string) error {
	return errors.New("only Linux can give a single process an account")
}
