//go:build unix

package pgtest

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// unprivileged is the user and group id of a Postgres that root starts. It is
// of the few below 65534 that neither Debian nor systemd hands out, so that it
// owns nothing, and small enough for the id mapping of a rootless container.
const unprivileged = 65527

// identity is who a process of Postgres runs as; nil is the current user.
type identity struct{ uid, gid uint32 }

// serverIdentity is who the server runs as.
func serverIdentity() *identity {
	if os.Geteuid() != 0 {
		return nil
	}
	return &identity{unprivileged, unprivileged}
}

// accountIdentity is the server's id if it has an account, else the first of
// names that has one, else nil.
//
// initdb, and the postgres in single-user mode that it runs, look up the name
// of their user id and give up without one (of 15, 16, 17 and 18 alike; the
// option -U changes nothing). The server itself never looks. So an account is
// borrowed for initdb alone, and the files given to the server's user id
// afterwards.
func accountIdentity(names []string) *identity {
	if _, err := user.LookupId(strconv.Itoa(unprivileged)); err == nil {
		return serverIdentity()
	}
	for _, name := range names {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(account.Uid, 10, 32)
		if err != nil || uid == 0 {
			continue
		}
		gid, err := strconv.ParseUint(account.Gid, 10, 32)
		if err != nil {
			continue
		}
		return &identity{uint32(uid), uint32(gid)}
	}
	return nil
}

// apply makes cmd run as id, in a session of its own: Ctrl-C in a terminal, or
// a signal to the group of the owner, must not reach it before the watcher acts.
func (id *identity) apply(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if id != nil {
		// Without Groups the child has no supplementary groups.
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: id.uid, Gid: id.gid}
	}
}
