package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// startWithAccount starts cmd so that it, and nobody else, sees an account for
// uid: in a mount namespace of its own whose /etc/passwd is another file, made
// in dir. It needs CAP_SYS_ADMIN, which root in a container may lack.
func startWithAccount(cmd *exec.Cmd, uid uint32, dir string) error {
	passwd := filepath.Join(dir, "passwd")
	line := fmt.Sprintf("pgtest:x:%d:%d::/:/bin/false\n", uid, uid)
	if err := os.WriteFile(passwd, []byte(line), 0o644); err != nil {
		return err
	}
	result := make(chan error)
	go func() {
		// A new process gets the namespaces of the thread that forks it. The
		// thread is never unlocked: it ends with the goroutine, and with it its
		// namespace.
		runtime.LockOSThread()
		result <- func() error {
			if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
			if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("make mounts private: %w", err)
			}
			if err := syscall.Mount(passwd, "/etc/passwd", "", syscall.MS_BIND, ""); err != nil {
				return fmt.Errorf("mount on /etc/passwd: %w", err)
			}
			return cmd.Start()
		}()
	}()
	return <-result
}
