// Package affinity says on which processors this process may run.
package affinity

import "math/bits"

// Mask is a set of processors, 64 per word: processor p is bit p%64 of word p/64.
type Mask []uint64

// Union returns the processors that are in m, or in other, or in both.
func (m Mask) Union(other Mask) Mask {
	if len(m) < len(other) {
		m, other = other, m
	}
	union := append(Mask(nil), m...)
	for i, word := range other {
		union[i] |= word
	}
	return union
}

// Count is the number of processors in m.
func (m Mask) Count() int {
	n := 0
	for _, word := range m {
		n += bits.OnesCount64(word)
	}
	return n
}
