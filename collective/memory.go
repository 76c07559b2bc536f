package collective

import "unsafe"

// This file holds the package's only unsafe code besides typeOf's Sizeof: views
// of the user's slices as bytes, and the question whether two of them overlap.
// The views live as long as the call that makes them.

// bytesOf views s as bytes. Element types have no pointers and no padding.
func bytesOf[T Number](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
}

// bitsOf is the bit pattern of one element, in the low bytes.
func bitsOf[T Number](x T) uint64 {
	p := unsafe.Pointer(&x)
	switch unsafe.Sizeof(x) {
	case 1:
		return uint64(*(*uint8)(p))
	case 2:
		return uint64(*(*uint16)(p))
	case 4:
		return uint64(*(*uint32)(p))
	default:
		return *(*uint64)(p)
	}
}

// distance is the address of b less that of a, when both are not empty.
func distance(a, b []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(a))))
}

// overlap reports whether a and b share a byte.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	d := distance(a, b)
	return d < len(a) && -d < len(b)
}
