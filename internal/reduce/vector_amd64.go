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

// combineVectors stores a ⊕ b in the whole vectors of dst and returns how many
// bytes that is: none where the processor lacks the instructions. The rest is left
// to the Go routines.
func combineVectors(r routine, dst, a, b []byte) int {
	if !useAVX2 {
		return 0
	}
	whole := len(dst) &^ (vectorBytes - 1)
	a, b = a[:whole], b[:whole] // the assembly checks nothing
	for at := 0; at < whole; at += callBytes {
		n := min(whole-at, callBytes)
		combineBlock(r, &dst[at], &a[at], &b[at], n/vectorBytes)
	}
	return whole
}

// scaleVectors is combineVectors for scale.
func scaleVectors(t dtype.Type, dst, src []byte, factor uint64) int {
	if !useAVX2 {
		return 0
	}
	whole := len(dst) &^ (vectorBytes - 1)
	src = src[:whole]
	for at := 0; at < whole; at += callBytes {
		n := min(whole-at, callBytes)
		scaleBlock(t, &dst[at], &src[at], factor, n/vectorBytes)
	}
	return whole
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
