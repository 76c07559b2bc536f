package herd

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes make a process leader of its group; the kernel kills it when the
// thread that starts it ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// collect waits for p. Its number, and its group's, may be a stranger's as soon as
// it is collected, so that happens under the lock under which signals are sent.
func collect(p *os.Process, mu *sync.Mutex, running *bool) (*os.ProcessState, error) {
	for {
		err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	mu.Lock()
	defer mu.Unlock()
	*running = false
	return p.Wait()
}

// leftover reports whether a process of the group lives. The dead that nobody
// collects, as in containers without an init, are members for kill(2); so the
// states have to be looked at.
func leftover(pgid int) bool {
	if err := syscall.Kill(-pgid, 0); errors.Is(err, syscall.ESRCH) {
		return false
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return true // no /proc: take the kernel's word
	}
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // gone
		}
		if state, group, ok := parseStat(stat); ok && group == pgid && state != 'Z' && state != 'X' {
			return true
		}
	}
	return false
}

// parseStat reads the state and the process group from a line of /proc/PID/stat.
// The name before them is in parentheses and may contain anything.
func parseStat(stat []byte) (state byte, pgid int, ok bool) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, 0, false
	}
	fields := bytes.Fields(stat[end+1:])
	if len(fields) < 3 || len(fields[0]) != 1 {
		return 0, 0, false
	}
	pgid, err := strconv.Atoi(string(fields[2]))
	return fields[0][0], pgid, err == nil
}
