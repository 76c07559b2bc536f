package dtype

import "math"

// Float8E4M3 is OCP's E4M3: 1 sign, 4 exponent and 3 fraction bits, no infinity,
// one NaN per sign (S.1111.111), largest number 448.
type Float8E4M3 uint8

const (
	nanE4M3    = 0x7f
	leastE4M3  = (127 - 6) << 23 // float32 pattern of 2^-6, the smallest normal number
	excessE4M3 = 20<<23 + leastE4M3>>20
	maxE4M3    = (127+8)<<23 | 0x60<<16 // float32 pattern of 448
)

// ToFloat8E4M3 rounds f to the nearest Float8E4M3, ties to even. Magnitudes
// beyond 448, infinity included, become 448.
//
// CUDA: __NV_SATFINITE, the mode of the conversions that NCCL's kernels use.
func ToFloat8E4M3(f float32) Float8E4M3 {
	if f != f {
		return nanE4M3
	}
	b := math.Float32bits(f)
	return Float8E4M3(b>>24&0x80 | (quantise(min(b&^signBit32, maxE4M3), leastE4M3, 20) - excessE4M3))
}

// Float64ToFloat8E4M3 is ToFloat8E4M3 for a float64.
func Float64ToFloat8E4M3(f float64) Float8E4M3 { return ToFloat8E4M3(toOdd(f)) }

// Float32 is the exact value of e.
func (e Float8E4M3) Float32() float32 { return valuesE4M3[e] }

// String is the shortest decimal that gives e's value as a float32.
func (e Float8E4M3) String() string { return format(e.Float32()) }

// Float8E5M2 is OCP's E5M2: 1 sign, 5 exponent and 2 fraction bits, infinities and
// NaNs as in IEEE 754, largest number 57344. It is the upper half of a Float16.
type Float8E5M2 uint8

const (
	nanE5M2    = 0x7e
	leastE5M2  = (127 - 14) << 23 // float32 pattern of 2^-14, the smallest normal number
	excessE5M2 = 21<<23 + leastE5M2>>21
	maxE5M2    = (127+15)<<23 | 0x60<<16 // float32 pattern of 57344
)

// ToFloat8E5M2 rounds f to the nearest Float8E5M2, ties to even. Magnitudes
// beyond 57344, infinity included, become 57344: a conversion never makes an
// infinity.
//
// CUDA: __NV_SATFINITE, the mode of the conversions that NCCL's kernels use.
func ToFloat8E5M2(f float32) Float8E5M2 {
	if f != f {
		return nanE5M2
	}
	b := math.Float32bits(f)
	return Float8E5M2(b>>24&0x80 | (quantise(min(b&^signBit32, maxE5M2), leastE5M2, 21) - excessE5M2))
}

// Float64ToFloat8E5M2 is ToFloat8E5M2 for a float64.
func Float64ToFloat8E5M2(f float64) Float8E5M2 { return ToFloat8E5M2(toOdd(f)) }

// Float32 is the exact value of e.
func (e Float8E5M2) Float32() float32 { return valuesE5M2[e] }

// String is the shortest decimal that gives e's value as a float32.
func (e Float8E5M2) String() string { return format(e.Float32()) }

// The 256 values of each 8-bit format; a load is cheaper than the arithmetic.
var (
	valuesE4M3 = tabulate(widenE4M3)
	valuesE5M2 = tabulate(func(bits uint8) float32 { return Float16(uint16(bits) << 8).Float32() })
)

func tabulate(value func(uint8) float32) (values [256]float32) {
	for i := range values {
		values[i] = value(uint8(i))
	}
	return values
}

func widenE4M3(bits uint8) float32 {
	abs := uint32(bits & 0x7f)
	if abs == nanE4M3 {
		return math.Float32frombits(nan32)
	}
	var magnitude float32
	if abs < 1<<3 {
		magnitude = float32(abs) / (1 << 9) // multiples of 2^-9
	} else {
		magnitude = math.Float32frombits(abs<<20 + 120<<23)
	}
	if bits >= 0x80 {
		return math.Float32frombits(math.Float32bits(magnitude) | signBit32)
	}
	return magnitude
}
