package perf

import (
	"bytes"
	"os"
	"strconv"
)

// resident is the memory that the process occupies, in bytes, shared and off-heap
// memory included.
func resident() int {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return 0
	}
	return pages * os.Getpagesize()
}
