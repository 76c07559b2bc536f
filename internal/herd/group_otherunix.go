//go:build unix && !linux

package herd

import (
	"errors"
	"os"
	"sync"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// collect waits for p. Between its collection and the lock its number, and its
// group's, can be a stranger's; numbers are given out in turn, so that moment is
// short enough.
func collect(p *os.Process, mu *sync.Mutex, running *bool) (*os.ProcessState, error) {
	state, err := p.Wait()
	mu.Lock()
	defer mu.Unlock()
	*running = false
	return state, err
}

func leftover(pgid int) bool { return !errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH) }
