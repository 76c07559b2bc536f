package main

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// kernel is its name and release, after a blank.
func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return " " + unix.ByteSliceToString(u.Release[:])
}

// ownTime is the processor time of this process and of all its descendants that have
// ended.
func ownTime() time.Duration {
	var sum int64
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return 0
		}
		sum += u.Utime.Nano() + u.Stime.Nano()
	}
	return time.Duration(sum)
}

// hostTime is what all processes and other guests of the machine below have used of all
// processors so far; -1 if that is not known. It is counted in ticks of 10 ms.
func hostTime() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return -1
	}
	return busyTime(text)
}

// busyTime sums the columns of /proc/stat's first line that are no idling: user, nice,
// system, irq, softirq, steal. Guests' time is in user's. The unit, USER_HZ, is a
// hundredth of a second on all of Go's architectures.
func busyTime(stat []byte) time.Duration {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return -1
	}
	ticks := 0
	for _, column := range []int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.Atoi(string(fields[column]))
		if err != nil {
			return -1
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
