package cpuclock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Supported reports whether this system has clocks of threads.
const Supported = true

// Thread is the processor time, in user and kernel mode, of the thread on which
// the calling goroutine runs at the moment.
func Thread() (time.Duration, error) { return read(unix.CLOCK_THREAD_CPUTIME_ID) }

// Current is the number of that thread: a goroutine that reads the same one
// before and after has most likely not been elsewhere in between.
func Current() int { return unix.Gettid() }

// Of is the processor time of a thread of this process, by its number. It fails
// when the thread has ended.
func Of(thread int) (time.Duration, error) {
	if thread <= 0 { // would be another kind of clock
		return 0, fmt.Errorf("cpuclock: %d is not a thread", thread)
	}
	// MAKE_THREAD_CPUCLOCK(thread, CPUCLOCK_SCHED) in the kernel's
	// include/linux/posix-timers_types.h.
	const perThread, sched = 4, 2
	return read(^int32(thread)<<3 | perThread | sched)
}

func read(clock int32) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("cpuclock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
