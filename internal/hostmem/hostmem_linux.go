//go:build linux && !race

package hostmem

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// refused is set when the system would not lock memory.
var refused atomic.Bool

// Allocate returns size zeroed bytes, which Free gives back.
func Allocate(size int) ([]byte, error) {
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("hostmem: %d bytes: %w", size, err)
	}
	const huge = 2 << 20
	if size >= huge {
		_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // a wish
	}
	if err := unix.Mlock(memory); err != nil {
		refused.Store(true)
	}
	return memory, nil
}

// Free gives back what Allocate returned. Nobody may use it any more.
func Free(memory []byte) { _ = unix.Munmap(memory) }

// Unlocked reports whether some memory could not be locked: RLIMIT_MEMLOCK is too
// small.
func Unlocked() bool { return refused.Load() }
