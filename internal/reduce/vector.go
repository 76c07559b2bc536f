//go:build (amd64 || (arm64 && go1.27)) && !purego && !race

package reduce

import "github.com/gollective/gollective/dtype"

// callBytes is how much of the result one assembly call makes: assembly cannot be
// preempted.
const callBytes = 64 << 10

// combineVectors stores a ⊕ b in the leading elements of dst and returns how many
// bytes that is: none where there is no kernel for that. The rest, less than a vector,
// is left to the Go routines where they are quick.
func combineVectors(r routine, dst, a, b []byte) int {
	if !useVectors {
		return 0
	}
	a, b = a[:len(dst)], b[:len(dst)] // the assembly checks nothing
	whole := len(dst) &^ (vectorBytes - 1)
	for at := 0; at < whole; at += callBytes {
		n := min(whole-at, callBytes)
		if !combineBlock(r, &dst[at], &a[at], &b[at], n/vectorBytes) {
			return 0
		}
	}
	if len(dst)-whole <= fewBytes || !crawls(r) {
		return whole
	}
	var result, x, y [vectorBytes]byte
	copy(x[:], a[whole:])
	copy(y[:], b[whole:])
	if !combineBlock(r, &result[0], &x[0], &y[0], 1) {
		return whole
	}
	copy(dst[whole:], result[:])
	return len(dst)
}

// pairVectors is combineVectors with a second result, also, as long as dst.
func pairVectors(r routine, dst, also, a, b []byte) int {
	if !useVectors {
		return 0
	}
	also, a, b = also[:len(dst)], a[:len(dst)], b[:len(dst)]
	whole := len(dst) &^ (vectorBytes - 1)
	for at := 0; at < whole; at += callBytes {
		n := min(whole-at, callBytes)
		if !pairBlock(r, &dst[at], &also[at], &a[at], &b[at], n/vectorBytes) {
			return 0
		}
	}
	return whole
}

// crawls reports whether the Go routine takes several nanoseconds for an element,
// of which there are up to a vector's after the last whole vector: longer than it takes to
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
	if !useVectors {
		return 0
	}
	src = src[:len(dst)]
	whole := len(dst) &^ (vectorBytes - 1)
	for at := 0; at < whole; at += callBytes {
		n := min(whole-at, callBytes)
		if !scaleBlock(t, &dst[at], &src[at], factor, n/vectorBytes) {
			return 0
		}
	}
	if len(dst)-whole <= fewBytes || !t.Float() || t.Size() > 2 {
		return whole
	}
	var result, x [vectorBytes]byte
	copy(x[:], src[whole:])
	if !scaleBlock(t, &result[0], &x[0], factor, 1) {
		return whole
	}
	copy(dst[whole:], result[:])
	return len(dst)
}

// widenVectors stores the leading elements of src in dst, as many as fill whole
// vectors, and returns their number. No more than a block of a fold comes at a time.
func widenVectors(t dtype.Type, dst []float32, src []byte) int {
	whole := len(dst) &^ 7
	if !useVectors || whole == 0 {
		return 0
	}
	out, in := floatBytes(dst[:whole]), src[:whole*t.Size()]
	if !widenBlock(t, &out[0], &in[0], whole/8) {
		return 0
	}
	return whole
}

// narrowVectors is widenVectors the other way round.
func narrowVectors(t dtype.Type, dst []byte, src []float32) int {
	whole := len(src) &^ 7
	if !useVectors || whole == 0 {
		return 0
	}
	out, in := dst[:whole*t.Size()], floatBytes(src[:whole])
	if !narrowBlock(t, &out[0], &in[0], whole/8) {
		return 0
	}
	return whole
}
