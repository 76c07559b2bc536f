package dtype

import (
	"math"
	"strconv"
)

// The four formats below are stored as their bit patterns and computed with as
// float32, of which every one of their values is a member. Conversions round to
// nearest, ties to even, once. A NaN stays a NaN but loses its sign and payload:
// both directions give one canonical quiet NaN, so that bits never depend on
// which operand of an addition the hardware preferred.
//
// A float64 must not go through float32 on its way (the second rounding could
// see a tie that the first one made); the Float64To functions take it directly.

const (
	signBit32 = 1 << 31
	inf32     = 0xff << 23 // also the smallest pattern without sign that is not finite
	nan32     = 0x7fc00000
)

// quantise rounds the finite magnitude with float32 pattern abs to a format that
// drops the last drop bits of the fraction and whose smallest normal number has
// the float32 pattern least. It returns that format's pattern plus the constant
// drop<<23 + least>>drop, left to the callers because this and they must stay small
// enough to be inlined. abs must not exceed the format's range (one past it is fine
// where that pattern is the infinity).
//
// Adding a power of two of which one unit in the last place is one of the wanted
// format makes the addition do the rounding, for subnormal results too; the sum's
// low bits then hold the significand, whose carry walks into the exponent by itself.
func quantise(abs, least, drop uint32) uint32 {
	exp := max(abs&inf32, least)
	sum := math.Float32frombits(abs) + math.Float32frombits(exp+drop<<23)
	return math.Float32bits(sum) - exp + exp>>drop
}

// toOdd rounds f to float32 such that rounding the result again, to a format at
// least two bits narrower, gives what rounding f directly would: inexact results
// are truncated and made odd, which keeps them off every tie.
func toOdd(f float64) float32 {
	n := float32(f)
	if float64(n) == f || f != f {
		return n
	}
	bits := math.Float32bits(n)
	if math.Abs(float64(n)) > math.Abs(f) {
		bits-- // toward zero; from infinity to the largest finite number
	}
	return math.Float32frombits(bits | 1)
}

// format gives the shortest decimal that reads back as f.
func format(f float32) string { return strconv.FormatFloat(float64(f), 'g', -1, 32) }
