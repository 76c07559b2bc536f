//go:build !purego && !race

package reduce

import "github.com/klauspost/cpuid/v2"

const vectorBytes = 32

// useVectors chooses between the assembly and its Go twins; tests set it.
var useVectors = cpuid.CPU.Supports(cpuid.AVX2, cpuid.F16C)

// canStream is whether there are kernels that store past the caches.
func canStream() bool { return useVectors }

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
