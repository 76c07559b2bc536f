package reduce

import (
	"math"

	"github.com/gollective/gollective/dtype"
)

// ScalarOf is the element of type t nearest to f, ties to even. Integers saturate,
// and take NaN for 0; floats overflow as dtype's conversions do. The Scalar of an
// invalid type has no bits.
func ScalarOf(t dtype.Type, f float64) Scalar {
	s := Scalar{Type: t}
	switch t {
	case dtype.Int8:
		s.Bits = uint64(uint8(toSigned(f, 8)))
	case dtype.Int32:
		s.Bits = uint64(uint32(toSigned(f, 32)))
	case dtype.Int64:
		s.Bits = uint64(toSigned(f, 64))
	case dtype.Uint8:
		s.Bits = toUnsigned(f, 8)
	case dtype.Uint32:
		s.Bits = toUnsigned(f, 32)
	case dtype.Uint64:
		s.Bits = toUnsigned(f, 64)
	case dtype.Half:
		s.Bits = uint64(dtype.Float64ToFloat16(f))
	case dtype.Float32:
		s.Bits = uint64(math.Float32bits(float32(f)))
	case dtype.Float64:
		s.Bits = math.Float64bits(f)
	case dtype.Bfloat:
		s.Bits = uint64(dtype.Float64ToBFloat16(f))
	case dtype.F8E4M3:
		s.Bits = uint64(dtype.Float64ToFloat8E4M3(f))
	case dtype.F8E5M2:
		s.Bits = uint64(dtype.Float64ToFloat8E5M2(f))
	}
	return s
}

func toSigned(f float64, bits int) int64 {
	f = math.RoundToEven(f)
	limit := math.Ldexp(1, bits-1)
	switch {
	case f >= limit:
		return 1<<(bits-1) - 1
	case f < -limit:
		return -1 << (bits - 1)
	case f != f:
		return 0
	}
	return int64(f)
}

func toUnsigned(f float64, bits int) uint64 {
	f = math.RoundToEven(f)
	switch {
	case f >= math.Ldexp(1, bits):
		return math.MaxUint64 >> (64 - bits)
	case f > 0:
		return uint64(f)
	}
	return 0
}
