package main

import (
	"unsafe"

	"github.com/gollective/gollective/collective"
)

// sharedFloats is memory of c that peers can map, as floats. It lives as long as c.
//
// MemAlloc's memory is at least as large as asked for, and begins on a page: every
// float in it is aligned.
func sharedFloats(c *collective.Comm, n int) ([]float32, error) {
	b, err := c.MemAlloc(4 * n)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[:4*n][0])), n), nil
}
