//go:build !linux || race

package hostmem

// Under the race detector the memory is the heap's: the detector does not see
// accesses to other memory.
const page = 4096

// Allocate returns size zeroed bytes, which Free gives back.
func Allocate(size int) ([]byte, error) { return aligned(size), nil }

// Free gives back what Allocate returned. Nobody may use it any more.
func Free([]byte) {}

// Unlocked reports whether some memory could not be locked; here none is.
func Unlocked() bool { return false }
