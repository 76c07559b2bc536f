package dtype

import "math"

// BFloat16 is the upper half of a float32: 1 sign, 8 exponent and 7 fraction bits.
type BFloat16 uint16

const nanB16 = 0x7fc0

// ToBFloat16 rounds f to the nearest BFloat16, ties to even; beyond the largest
// one that is infinity.
func ToBFloat16(f float32) BFloat16 {
	b := math.Float32bits(f)
	if b&^signBit32 > inf32 {
		return nanB16
	}
	return BFloat16((b + 0x7fff + b>>16&1) >> 16)
}

// Float64ToBFloat16 rounds f to the nearest BFloat16, ties to even.
func Float64ToBFloat16(f float64) BFloat16 { return ToBFloat16(toOdd(f)) }

// Float32 is the exact value of b.
func (b BFloat16) Float32() float32 {
	if b&0x7fff > inf32>>16 {
		return math.Float32frombits(nan32)
	}
	return math.Float32frombits(uint32(b) << 16)
}

// String is the shortest decimal that gives b's value as a float32.
func (b BFloat16) String() string { return format(b.Float32()) }
