package reduce

import "github.com/gollective/gollective/dtype"

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
		dst[i] = dtype.ToBFloat16(a[i].Float32() + b[i].Float32())
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
		dst[i] = dtype.ToBFloat16(a[i].Float32() * b[i].Float32())
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
