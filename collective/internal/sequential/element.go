package sequential

import (
	"encoding/binary"
	"math"

	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// format is an element type by its numbers. An element is its bit pattern in the
// low bits of a uint64.
type format struct {
	bits     int
	float    bool
	signed   bool // of integers
	fraction int  // of floats: stored bits of the mantissa
	bias     int
	finite   bool // no infinities: the largest pattern is the only NaN
}

func formatOf(t dtype.Type) format {
	switch t {
	case dtype.Int8:
		return format{bits: 8, signed: true}
	case dtype.Uint8:
		return format{bits: 8}
	case dtype.Int32:
		return format{bits: 32, signed: true}
	case dtype.Uint32:
		return format{bits: 32}
	case dtype.Int64:
		return format{bits: 64, signed: true}
	case dtype.Uint64:
		return format{bits: 64}
	case dtype.Half:
		return format{bits: 16, float: true, fraction: 10, bias: 15}
	case dtype.Bfloat:
		return format{bits: 16, float: true, fraction: 7, bias: 127}
	case dtype.Float32:
		return format{bits: 32, float: true, fraction: 23, bias: 127}
	case dtype.Float64:
		return format{bits: 64, float: true, fraction: 52, bias: 1023}
	case dtype.F8E4M3:
		return format{bits: 8, float: true, fraction: 3, bias: 7, finite: true}
	case dtype.F8E5M2:
		return format{bits: 8, float: true, fraction: 2, bias: 15}
	}
	panic("sequential: unknown type")
}

// combine is one step of a reduction. Scaling has been applied before, so that
// Avg and PreMulSum are sums.
func (f format) combine(op reduce.Op, a, b uint64) uint64 {
	switch {
	case f.float && (op == reduce.Min || op == reduce.Max):
		return f.pick(op, a, b)
	case f.float && op == reduce.Prod:
		return f.round(f.value(a) * f.value(b))
	case f.float:
		return f.round(f.value(a) + f.value(b))
	case op == reduce.Prod:
		return f.cut(a * b)
	case op == reduce.Min && f.less(b, a), op == reduce.Max && f.less(a, b):
		return b
	case op == reduce.Min || op == reduce.Max:
		return a
	default:
		return f.cut(a + b)
	}
}

// cut drops what does not fit an integer: it wraps.
func (f format) cut(a uint64) uint64 { return a << (64 - f.bits) >> (64 - f.bits) }

func (f format) extend(a uint64) int64 { return int64(a<<(64-f.bits)) >> (64 - f.bits) }

func (f format) less(a, b uint64) bool {
	if f.signed {
		return f.extend(a) < f.extend(b)
	}
	return a < b
}

// quotient divides an integer, toward zero.
func (f format) quotient(a uint64, n int) uint64 {
	if f.signed {
		return f.cut(uint64(f.extend(a) / int64(n)))
	}
	return a / uint64(n)
}

// pick is Min or Max of floats: NaN wins, and -0 is less than +0.
func (f format) pick(op reduce.Op, a, b uint64) uint64 {
	x, y := f.value(a), f.value(b)
	switch {
	case math.IsNaN(x) || math.IsNaN(y):
		return f.nan()
	case x == y:
		x, y = 1, 1
		if f.negative(a) {
			x = -1
		}
		if f.negative(b) {
			y = -1
		}
	}
	if (x < y) == (op == reduce.Min) {
		return a
	}
	return b
}

func (f format) negative(a uint64) bool { return a>>(f.bits-1) == 1 }

// nan is the quiet NaN without a sign.
func (f format) nan() uint64 {
	exponent := uint64(1<<(f.bits-1-f.fraction)-1) << f.fraction
	if f.finite {
		return exponent | (1<<f.fraction - 1)
	}
	return exponent | 1<<(f.fraction-1)
}

// value decodes a float.
func (f format) value(a uint64) float64 {
	switch f.bits {
	case 64:
		return math.Float64frombits(a)
	case 32:
		return float64(math.Float32frombits(uint32(a)))
	}
	top := 1<<(f.bits-1-f.fraction) - 1
	exponent, fraction := int(a>>f.fraction)&top, a&(1<<f.fraction-1)
	var x float64
	switch {
	case f.finite && exponent == top && fraction == 1<<f.fraction-1:
		return math.NaN()
	case !f.finite && exponent == top && fraction != 0:
		return math.NaN()
	case !f.finite && exponent == top:
		x = math.Inf(1)
	case exponent == 0:
		x = math.Ldexp(float64(fraction), 1-f.bias-f.fraction)
	default:
		x = math.Ldexp(float64(fraction|1<<f.fraction), exponent-f.bias-f.fraction)
	}
	if f.negative(a) {
		return -x
	}
	return x
}

// round encodes a float, to the nearest, ties to even. A sum or product of two
// elements of at most 24 bits, rounded to float64 first, gives no other result
// than rounding once: 53 >= 2*24+2. Numbers beyond the range are not for these
// tests.
func (f format) round(x float64) uint64 {
	switch {
	case f.bits == 64:
		return math.Float64bits(x)
	case f.bits == 32:
		return uint64(math.Float32bits(float32(x)))
	case math.IsNaN(x) || math.IsInf(x, 0):
		panic("sequential: no finite number")
	}
	sign := uint64(0)
	if math.Signbit(x) {
		sign, x = 1<<(f.bits-1), -x
	}
	if x == 0 {
		return sign
	}
	_, exponent := math.Frexp(x) // x is in [1/2,1) times 2^exponent
	weight := max(exponent-1, 1-f.bias) - f.fraction
	mantissa := uint64(math.RoundToEven(math.Ldexp(x, -weight)))
	// The stored exponent of weight w is w+fraction+bias; a mantissa below
	// 2^fraction is subnormal, one of 2^(fraction+1) carries into the exponent.
	stored := uint64(weight + f.fraction + f.bias - 1)
	pattern := stored<<f.fraction + mantissa
	if pattern > f.largest() {
		panic("sequential: out of range")
	}
	return sign | pattern
}

// largest is the pattern of the largest finite number.
func (f format) largest() uint64 {
	if f.finite {
		return f.nan() - 1
	}
	return (1<<(f.bits-1-f.fraction)-1)<<f.fraction - 1
}

func get(b []byte, size int) uint64 {
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	}
	return binary.NativeEndian.Uint64(b)
}

func put(b []byte, size int, bits uint64) {
	switch size {
	case 1:
		b[0] = byte(bits)
	case 2:
		binary.NativeEndian.PutUint16(b, uint16(bits))
	case 4:
		binary.NativeEndian.PutUint32(b, uint32(bits))
	default:
		binary.NativeEndian.PutUint64(b, bits)
	}
}
