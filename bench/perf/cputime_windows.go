package perf

import (
	"syscall"
	"time"
)

// CPUTime is the processor time that the process has used so far, on all its
// threads, in user and kernel mode. The second result is false where the platform
// does not tell.
func CPUTime() (time.Duration, bool) {
	self, err := syscall.GetCurrentProcess()
	if err != nil {
		return 0, false
	}
	var created, exited, kernel, user syscall.Filetime
	if err := syscall.GetProcessTimes(self, &created, &exited, &kernel, &user); err != nil {
		return 0, false
	}
	ticks := func(f syscall.Filetime) time.Duration { // of 100 ns
		return time.Duration(int64(f.HighDateTime)<<32|int64(f.LowDateTime)) * 100
	}
	return ticks(kernel) + ticks(user), true
}
