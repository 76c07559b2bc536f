package spin

import (
	"fmt"
	"unsafe"
)

// BedBytes is the memory that a Bed takes.
const BedBytes = int(unsafe.Sizeof(Bed{}))

// BedsIn views memory, which processes share and which starts on a multiple of
// BedBytes, as beds. A Bed is one word and padding: any bytes are a valid one.
func BedsIn(memory []byte) ([]Bed, error) {
	if len(memory) < BedBytes || uintptr(unsafe.Pointer(&memory[0]))%uintptr(BedBytes) != 0 {
		return nil, fmt.Errorf("spin: no beds in %d bytes that begin anywhere", len(memory))
	}
	return unsafe.Slice((*Bed)(unsafe.Pointer(&memory[0])), len(memory)/BedBytes), nil
}
