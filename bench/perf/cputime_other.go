//go:build !unix && !windows

package perf

import "time"

// CPUTime is the processor time that the process has used so far. The second
// result is false where, as here, the platform does not tell.
func CPUTime() (time.Duration, bool) { return 0, false }
