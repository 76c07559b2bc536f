//go:build unix

package perf

import (
	"syscall"
	"time"
)

// CPUTime is the processor time that the process has used so far, on all its
// threads, in user and kernel mode. The second result is false where the platform
// does not tell.
func CPUTime() (time.Duration, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
