package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gollective/gollective/internal/affinity"
)

// pinned is set in the environment of a process that pin has made.
const pinned = "PEERS_PINNED"

// pin makes sure that this process, with all its threads, runs on the given
// processors. Threads of the Go runtime exist already, and it has counted its
// processors, so pin replaces the process by itself, as taskset would; it returns
// in a process that is pinned.
func pin(cores []int) error {
	own := affinity.Own().List()
	if slices.Equal(own, cores) {
		return nil
	}
	if os.Getenv(pinned) != "" {
		return fmt.Errorf("this process is to run on processors %v and runs on %v", cores, own)
	}
	runtime.LockOSThread() // the calling thread's processors are those after the exec
	var set unix.CPUSet
	for _, core := range cores {
		set.Set(core)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return os.NewSyscallError("sched_setaffinity", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return os.NewSyscallError("execve", syscall.Exec(self, os.Args, append(os.Environ(), pinned+"=1")))
}

// cpuSeconds is the processor time of this process, user and system.
func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
