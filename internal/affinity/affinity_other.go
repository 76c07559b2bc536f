//go:build !linux

package affinity

import "runtime"

// Own returns as many processors as the Go runtime has found: this system does
// not say which.
func Own() Mask {
	m := make(Mask, (runtime.NumCPU()+63)/64)
	for p := range runtime.NumCPU() {
		m[p/64] |= 1 << (p % 64)
	}
	return m
}
