//go:build !linux

package cpuclock

import "time"

// Supported reports whether this system has clocks of threads.
const Supported = false

// Thread fails with ErrUnsupported.
func Thread() (time.Duration, error) { return 0, ErrUnsupported }

// Current is 0.
func Current() int { return 0 }

// Of fails with ErrUnsupported.
func Of(int) (time.Duration, error) { return 0, ErrUnsupported }
