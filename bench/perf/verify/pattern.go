package verify

import "encoding/binary"

// Pattern is an endless string of bytes without repetition, for operations that
// move data unchanged. Give every source of an operation a seed of its own.
type Pattern struct{ Seed uint64 }

// Fill stores the bytes number first, first+1, … in dst.
func (p Pattern) Fill(dst []byte, first int) {
	var word [8]byte
	for len(dst) > 0 {
		index, skip := first/8, first%8
		bits := mix(mix(p.Seed+golden) + uint64(index))
		if skip == 0 && len(dst) >= 8 {
			binary.LittleEndian.PutUint64(dst, bits)
			dst, first = dst[8:], first+8
			continue
		}
		binary.LittleEndian.PutUint64(word[:], bits)
		n := copy(dst, word[skip:])
		dst, first = dst[n:], first+n
	}
}
