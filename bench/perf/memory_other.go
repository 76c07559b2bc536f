//go:build !linux

package perf

import "runtime"

// resident is the memory that the Go runtime has obtained from the system, in
// bytes: the nearest portable thing to what the process occupies.
func resident() int {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.Sys)
}
