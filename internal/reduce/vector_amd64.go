//go:build !purego && !race

package reduce

import (
	"github.com/klauspost/cpuid/v2"

	"github.com/gollective/gollective/dtype"
)

// useAVX2 chooses between the assembly and its Go twins; tests set it.
var useAVX2 = cpuid.CPU.Supports(cpuid.AVX2, cpuid.F16C)

const (
	vectorBytes = 32
	// callBytes is how much of the result one assembly call makes: assembly cannot
	// be preempted.
	callBytes = 64 << 10
)

// combineVectors stores a ⊕ b in the leading elements of dst and returns how many
// bytes that is: none where the processor lacks the instructions. The rest, less
// than a vector, is left to the Go routines where they are quick.
func combineVectors(r routine, dst, a, b []byte) int {
	if !useAVX2 {
		return 0
	}
	a, b = a[:len(dst)], b[:len(dst)] // the assembly checks nothing
	whole := len(dst) &^ (vectorBytes - 1)
	for at := 0; at < whole; at += callBytes {
		n := min(whole-at, callBytes)
		combineBlock(r, &dst[at], &a[at], &b[at], n/vectorBytes)
	}
	if len(dst)-whole <= fewBytes || !crawls(r) {
		return whole
	}
	var result, x, y [vectorBytes]byte
	copy(x[:], a[whole:])
	copy(y[:], b[whole:])
	combineBlock(r, &result[0], &x[0], &y[0], 1)
	copy(dst[whole:], result[:])
	return len(dst)
}

// pairVectors is combineVectors with a second result, also, as long as dst.
func pairVectors(r routine, dst, also, a, b []byte) int {
	if !useAVX2 {
		return 0
	}
	also, a, b = also[:len(dst)], a[:len(dst)], b[:len(dst)]
	whole := len(dst) &^ (vectorBytes - 1)
	for at := 0; at < whole; at += callBytes {
		n := min(whole-at, callBytes)
		pairBlock(r, &dst[at], &also[at], &a[at], &b[at], n/vectorBytes)
	}
	return whole
}

// canStream is whether there are kernels that store past the caches.
func canStream() bool { return useAVX2 }

// combineStream stores a ⊕ b in dst past the caches. dst begins at a line of the
// cache; all lengths are the same multiple of turnBytes.
func combineStream(r routine, dst, a, b []byte) {
	a, b = a[:len(dst)], b[:len(dst)]
	for at := 0; at < len(dst); at += callBytes {
		n := min(len(dst)-at, callBytes)
		combineStreamBlock(r, &dst[at], &a[at], &b[at], n/vectorBytes)
	}
}

// pairStream is combineStream with a second result.
func pairStream(r routine, dst, also, a, b []byte) {
	also, a, b = also[:len(dst)], a[:len(dst)], b[:len(dst)]
	for at := 0; at < len(dst); at += callBytes {
		n := min(len(dst)-at, callBytes)
		pairStreamBlock(r, &dst[at], &also[at], &a[at], &b[at], n/vectorBytes)
	}
}

// copyStream is combineStream for a single operand.
func copyStream(dst, src []byte) {
	src = src[:len(dst)]
	for at := 0; at < len(dst); at += callBytes {
		n := min(len(dst)-at, callBytes)
		copyStreamBlock(&dst[at], &src[at], n/vectorBytes)
	}
}

// crawls reports whether the Go routine takes several nanoseconds for an element,
// of which there are up to 31 after the last whole vector: longer than it takes to
// make a vector of them.
func crawls(r routine) bool {
	switch r {
	case addHalf, addBfloat, addE4M3, addE5M2, mulHalf, mulBfloat, mulE4M3, mulE5M2,
		maxHalf, maxBfloat, maxE4M3, maxE5M2, minHalf, minBfloat, minE4M3, minE5M2:
		return true
	}
	return false
}

// scaleVectors is combineVectors for scale.
func scaleVectors(t dtype.Type, dst, src []byte, factor uint64) int {
	if !useAVX2 {
		return 0
	}
	src = src[:len(dst)]
	whole := len(dst) &^ (vectorBytes - 1)
	for at := 0; at < whole; at += callBytes {
		n := min(whole-at, callBytes)
		scaleBlock(t, &dst[at], &src[at], factor, n/vectorBytes)
	}
	if len(dst)-whole <= fewBytes || !t.Float() || t.Size() > 2 {
		return whole
	}
	var result, x [vectorBytes]byte
	copy(x[:], src[whole:])
	scaleBlock(t, &result[0], &x[0], factor, 1)
	copy(dst[whole:], result[:])
	return len(dst)
}

// widenVectors stores the leading elements of src in dst, as many as fill whole
// vectors, and returns their number. No more than a block of a fold comes at a time.
func widenVectors(t dtype.Type, dst []float32, src []byte) int {
	whole := len(dst) &^ 7
	if !useAVX2 || whole == 0 {
		return 0
	}
	out, in := floatBytes(dst[:whole]), src[:whole*t.Size()]
	widenBlock(t, &out[0], &in[0], whole/8)
	return whole
}

// narrowVectors is widenVectors the other way round.
func narrowVectors(t dtype.Type, dst []byte, src []float32) int {
	whole := len(src) &^ 7
	if !useAVX2 || whole == 0 {
		return 0
	}
	out, in := dst[:whole*t.Size()], floatBytes(src[:whole])
	narrowBlock(t, &out[0], &in[0], whole/8)
	return whole
}
