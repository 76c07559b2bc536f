package reduce

import "unsafe"

// Bytes seen as elements. The invariants:
//
//   - a view covers only whole elements inside its bytes and lives no longer than
//     the call that made it;
//   - the element types hold no pointers, so the collector does not care;
//   - an address need not be a multiple of the element size where misalignedAccess
//     says that loads and stores do not mind. Elsewhere Kernel copies misaligned
//     operands to a block first.

// element lists what bytes are viewed as.
type element interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~float32 | ~float64
}

func view[T element](b []byte) []T {
	var zero T
	if len(b) < int(unsafe.Sizeof(zero)) {
		return nil // where b is the end of an allocation, a *T would reach beyond it
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(zero)))
}

func views[T element](dst, a, b []byte) (d, x, y []T) {
	return view[T](dst), view[T](a), view[T](b)
}

// floatBytes is the memory of f.
func floatBytes(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}

// aligned reports whether every slice begins at a multiple of size.
func aligned(size int, slices ...[]byte) bool {
	for _, s := range slices {
		if uintptr(unsafe.Pointer(unsafe.SliceData(s)))%uintptr(size) != 0 {
			return false
		}
	}
	return true
}

// wholeLines is the part of b that streaming kernels can store: it begins at a line
// and is a whole number of turns. It is empty where there are no such kernels.
func wholeLines(b []byte) (from, to int) {
	from = int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) % lineBytes)
	to = from + (len(b)-from)&^(turnBytes-1)
	if !canStream() || to <= from {
		return 0, 0
	}
	return from, to
}

// holds reports whether one of slices begins where s does.
func holds(slices [][]byte, s []byte) bool {
	for _, other := range slices {
		if unsafe.SliceData(other) == unsafe.SliceData(s) {
			return true
		}
	}
	return false
}

// blockBytes is how much of each operand is combined before the next operand's
// turn: partial results stay in the first-level cache, and what is on the stack
// is cleared in some 20 ns. A multiple of every element size.
const blockBytes = 2048

// block is aligned scratch on a stack.
type block [blockBytes / 8]uint64

func (b *block) bytes() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(b)), blockBytes) }
