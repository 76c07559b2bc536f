package trial

import "unsafe"

// align is how many bytes of b precede a multiple of 16.
func align(b []byte) int {
	return -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & 15
}

// index is where part begins in whole, which contains it.
func index(whole, part []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(whole))))
}
