package reduce

import (
	"math"

	"github.com/gollective/gollective/dtype"
)

// Sums and products of two operands of the small floats, fused: converted,
// combined in float32 and rounded element by element. One generic loop would call
// the conversions through a dictionary, four times slower, so each is written out.

func addFloat16(dst, a, b []dtype.Float16) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = dtype.ToFloat16(a[i].Float32() + b[i].Float32())
	}
}

func addBFloat16(dst, a, b []dtype.BFloat16) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = dtype.ToBFloat16(upper(a[i]) + upper(b[i]))
	}
}

func addFloat8E4M3(dst, a, b []dtype.Float8E4M3) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = dtype.ToFloat8E4M3(a[i].Float32() + b[i].Float32())
	}
}

func addFloat8E5M2(dst, a, b []dtype.Float8E5M2) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = dtype.ToFloat8E5M2(a[i].Float32() + b[i].Float32())
	}
}

func mulFloat16(dst, a, b []dtype.Float16) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = dtype.ToFloat16(a[i].Float32() * b[i].Float32())
	}
}

func mulBFloat16(dst, a, b []dtype.BFloat16) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = dtype.ToBFloat16(upper(a[i]) * upper(b[i]))
	}
}

func mulFloat8E4M3(dst, a, b []dtype.Float8E4M3) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = dtype.ToFloat8E4M3(a[i].Float32() * b[i].Float32())
	}
}

func mulFloat8E5M2(dst, a, b []dtype.Float8E5M2) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = dtype.ToFloat8E5M2(a[i].Float32() * b[i].Float32())
	}
}

// upper is b's value with a NaN left as it is: the rounding that follows makes the
// canonical one anyway, and without the test two operands combine a fifth faster.
func upper(b dtype.BFloat16) float32 { return math.Float32frombits(uint32(b) << 16) }

func widenBFloat16(dst []float32, src []dtype.BFloat16) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = upper(src[i])
	}
}
