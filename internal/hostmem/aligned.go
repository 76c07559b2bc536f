//go:build !linux || race

package hostmem

import "unsafe"

// aligned returns size bytes of the heap that begin on a page. The collector does
// not move heap memory, so they stay there.
func aligned(size int) []byte {
	raw := make([]byte, size+page)
	skip := -int(uintptr(unsafe.Pointer(&raw[0]))) & (page - 1)
	return raw[skip : skip+size : skip+size]
}
