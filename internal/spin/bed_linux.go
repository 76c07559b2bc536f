package spin

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file holds the package's only unsafe code: the address of a Bed's word,
// which is aligned and stays mapped as long as the Bed is in use, is handed to
// the kernel.

const (
	futexWait = 0 // FUTEX_WAIT, without FUTEX_PRIVATE_FLAG: between processes
	futexWake = 1 // FUTEX_WAKE
)

func (b *Bed) wake() {
	b.word.Add(1)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&b.word)), futexWake, 1, 0, 0, 0)
}

// sleep returns when the word is no longer token (true), or after atMost.
func (b *Bed) sleep(token uint32, atMost time.Duration) bool {
	deadline := time.Now().Add(atMost)
	for b.word.Load() == token {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		timeout := unix.NsecToTimespec(int64(left))
		// EINTR, EAGAIN (the word has changed) and ETIMEDOUT are all answered
		// by looking again.
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&b.word)), futexWait,
			uintptr(token), uintptr(unsafe.Pointer(&timeout)), 0, 0)
	}
	return true
}

// yieldProcessor lets another process run, if one waits for this processor.
func yieldProcessor() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
