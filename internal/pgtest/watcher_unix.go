//go:build unix

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// watcher is a process that ends the others and removes the directory when
// this process says so or is gone, however it went.
//
// Two pipes tell it what it needs to know without asking twice. Its input is
// a pipe that only this process holds open: the end of input is the end of
// this process. It carries the id of the process to end, an empty line when
// there is none. The second pipe is held open by this process and all
// processes of Postgres: its end says that the last of them is gone.
type watcher struct {
	cmd     *exec.Cmd
	command *os.File // the input of the watcher
	alive   *os.File // what the processes of Postgres hold open
}

const watchScript = `
last=
while read -r pid; do last=$pid; done
if [ -n "$last" ]; then kill -QUIT "$last"; fi
cat <&3 >/dev/null
exec rm -rf -- "$1"
`

// announceScript tells the watcher of the process and becomes it. The process
// itself does so, not its parent: a parent killed in between would leave
// a process that the watcher does not know.
const announceScript = `echo $$ >&4 && exec "$@" 4>&-`

func watch(dir string) (*watcher, error) {
	input, command, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer input.Close()
	ended, alive, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, command.Close())
	}
	defer ended.Close()
	cmd := exec.Command("/bin/sh", "-c", watchScript, "pgtest-watcher", dir)
	cmd.Dir = "/"
	cmd.Stdin = input
	cmd.ExtraFiles = []*os.File{ended}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a shell: %w", err), command.Close(), alive.Close())
	}
	return &watcher{cmd: cmd, command: command, alive: alive}, nil
}

// finish has the watcher do its work and waits for it.
func (w *watcher) finish() error {
	return errors.Join(w.command.Close(), w.alive.Close(), w.cmd.Wait())
}

// process is a program of Postgres that runs, or has ended.
type process struct {
	cmd     *exec.Cmd
	logName string
	done    chan struct{} // closed when it has ended
	err     error         // how it ended, to be read after done
}

// start runs a program as id under the eyes of the watcher, one at a time.
func (w *watcher) start(id *identity, start func(*exec.Cmd) error, logName, program string, args ...string) (*process, error) {
	logFile, err := os.OpenFile(logName, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", announceScript, "pgtest", program}, args...)...)
	// The directory of the caller may be closed to id.
	cmd.Dir = "/"
	// A clean environment: PGOPTIONS, PGPORT and LC_ALL, among others, mean
	// something to the programs. Those that a loader needs stay.
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	for _, name := range []string{"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	// Files, not pipes: go test waits for whoever holds its output open.
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.ExtraFiles = []*os.File{w.alive, w.command}
	id.apply(cmd)
	if err := start(cmd); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, logName: logName, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
		if p.err == nil {
			p.err = errors.New("exit status 0")
		}
		// The id may now become somebody else's. Fails after finish, when the
		// watcher knows already.
		_, _ = w.command.WriteString("\n")
	}()
	return p, nil
}

// wait waits for a program that ends by itself, and ends it when ctx is over.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		return errors.Join(ctx.Err(), p.cmd.Process.Signal(syscall.SIGTERM))
	}
	if p.cmd.ProcessState.Success() {
		return nil
	}
	return p.err
}

// log gives the end of what the program wrote, for an error.
func (p *process) log() string { return tail(p.logName) }
