package dtype

import "math"

// Float16 is IEEE 754 binary16: 1 sign, 5 exponent and 10 fraction bits.
type Float16 uint16

const (
	nan16       = 0x7e00
	infinity16  = 0x7c00
	minNormal16 = 0x0400 // 2^-14
	rebias16    = (127 - 15) << 23
	least16     = (127 - 14) << 23 // float32 pattern of 2^-14, the smallest normal number
	excess16    = 13<<23 + least16>>13
	overflow16  = (127 + 16) << 23 // float32 pattern of 2^16, which becomes infinity
)

// ToFloat16 rounds f to the nearest Float16, ties to even. Magnitudes from 65520
// on become infinity.
func ToFloat16(f float32) Float16 {
	if f != f {
		return nan16
	}
	b := math.Float32bits(f)
	return Float16(b>>16&0x8000 | (quantise(min(b&^signBit32, overflow16), least16, 13) - excess16))
}

// Float64ToFloat16 rounds f to the nearest Float16, ties to even.
func Float64ToFloat16(f float64) Float16 { return ToFloat16(toOdd(f)) }

// Float32 is the exact value of h.
func (h Float16) Float32() float32 {
	bits := uint32(int16(h))<<13&0x8fffe000 + rebias16 // the sign, extended, lands on bit 31
	if h&0x7fff-minNormal16 >= infinity16-minNormal16 {
		bits = special16(bits)
	}
	return math.Float32frombits(bits)
}

// special16 corrects the widened bits of the numbers for which moving them is not
// enough: zeros, subnormals, infinities and NaNs.
func special16(bits uint32) uint32 {
	switch abs := bits &^ signBit32; {
	case abs > overflow16:
		return nan32
	case abs == overflow16: // an infinity, whose exponent field is full on either side
		return bits + rebias16
	default: // (1+m)·2^-14 - 2^-14, exact and free of float32 subnormals
		return bits&signBit32 | math.Float32bits(math.Float32frombits(abs+1<<23)-1.0/(1<<14))
	}
}

// String is the shortest decimal that gives h's value as a float32.
func (h Float16) String() string { return format(h.Float32()) }
