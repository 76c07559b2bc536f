package ledger

import (
	"fmt"
	"unsafe"
)

// This file holds the package's only unsafe code: a page laid over memory that
// processes share. A page is words only, so any bytes are a valid one.

// PageBytes is the memory that a rank's page takes; a multiple of 128.
const PageBytes = (int(unsafe.Sizeof(page{})) + 127) / 128 * 128

// Over returns the ledger of a communicator whose ranks' pages lie in the given
// pieces of memory: PageBytes each, which start on a multiple of 128, are zero at
// first and stay mapped as long as the ledger is used. A rank without memory has its
// page on the heap, for Apply.
func Over(memory [][]byte) (*Ledger, error) {
	l := &Ledger{pages: make([]*page, len(memory)), next: make([]int, len(memory)), failed: make(chan struct{})}
	for rank, m := range memory {
		if m == nil {
			l.pages[rank] = new(page)
			continue
		}
		if len(m) < PageBytes || uintptr(unsafe.Pointer(unsafe.SliceData(m)))%128 != 0 {
			return nil, fmt.Errorf("ledger: the page of rank %d has %d bytes at %p, %d on a multiple of 128 are needed",
				rank, len(m), m, PageBytes)
		}
		l.pages[rank] = (*page)(unsafe.Pointer(&m[0]))
	}
	return l, nil
}
