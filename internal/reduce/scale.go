package reduce

import (
	"math"

	"github.com/gollective/gollective/dtype"
)

// scale stores src times the element with bits scalar in dst, which may be src.
// Integers wrap; small floats are multiplied in float32 and rounded.
func scale(t dtype.Type, dst, src []byte, scalar uint64) {
	done := scaleVectors(t, dst, src, factorBits(t, scalar))
	dst, src = dst[done:], src[done:]
	switch t {
	case dtype.Int8, dtype.Uint8:
		mulBy(dst, src, uint8(scalar))
	case dtype.Int32, dtype.Uint32:
		mulBy(view[uint32](dst), view[uint32](src), uint32(scalar))
	case dtype.Int64, dtype.Uint64:
		mulBy(view[uint64](dst), view[uint64](src), scalar)
	case dtype.Float32:
		mulBy(view[float32](dst), view[float32](src), math.Float32frombits(uint32(scalar)))
	case dtype.Float64:
		mulBy(view[float64](dst), view[float64](src), math.Float64frombits(scalar))
	case dtype.Half:
		scaleFloat16(view[dtype.Float16](dst), view[dtype.Float16](src), dtype.Float16(scalar))
	case dtype.Bfloat:
		scaleBFloat16(view[dtype.BFloat16](dst), view[dtype.BFloat16](src), dtype.BFloat16(scalar))
	case dtype.F8E4M3:
		scaleFloat8E4M3(view[dtype.Float8E4M3](dst), view[dtype.Float8E4M3](src), dtype.Float8E4M3(scalar))
	case dtype.F8E5M2:
		scaleFloat8E5M2(view[dtype.Float8E5M2](dst), view[dtype.Float8E5M2](src), dtype.Float8E5M2(scalar))
	}
}

// factorBits is what a small float is multiplied by, a float32; of other types the
// scalar itself.
func factorBits(t dtype.Type, scalar uint64) uint64 {
	var factor float32
	switch t {
	case dtype.Half:
		factor = dtype.Float16(scalar).Float32()
	case dtype.Bfloat:
		factor = dtype.BFloat16(scalar).Float32()
	case dtype.F8E4M3:
		factor = dtype.Float8E4M3(scalar).Float32()
	case dtype.F8E5M2:
		factor = dtype.Float8E5M2(scalar).Float32()
	default:
		return scalar
	}
	return uint64(math.Float32bits(factor))
}

func mulBy[T integer | float32 | float64](dst, src []T, factor T) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = src[i] * factor
	}
}

func scaleFloat16(dst, src []dtype.Float16, scalar dtype.Float16) {
	src = src[:len(dst)]
	factor := scalar.Float32()
	for i := range dst {
		dst[i] = dtype.ToFloat16(src[i].Float32() * factor)
	}
}

func scaleBFloat16(dst, src []dtype.BFloat16, scalar dtype.BFloat16) {
	src = src[:len(dst)]
	factor := scalar.Float32()
	for i := range dst {
		dst[i] = dtype.ToBFloat16(upper(src[i]) * factor)
	}
}

func scaleFloat8E4M3(dst, src []dtype.Float8E4M3, scalar dtype.Float8E4M3) {
	src = src[:len(dst)]
	factor := scalar.Float32()
	for i := range dst {
		dst[i] = dtype.ToFloat8E4M3(src[i].Float32() * factor)
	}
}

func scaleFloat8E5M2(dst, src []dtype.Float8E5M2, scalar dtype.Float8E5M2) {
	src = src[:len(dst)]
	factor := scalar.Float32()
	for i := range dst {
		dst[i] = dtype.ToFloat8E5M2(src[i].Float32() * factor)
	}
}

// divide divides the integers of dst by ranks, toward zero. ranks fits an int32.
//
// NCCL: FuncSumPostDiv in src/device/reduce_kernel.h.
func divide(t dtype.Type, dst []byte, ranks uint32) {
	switch t {
	case dtype.Int8:
		divideAs(view[int8](dst), int32(ranks))
	case dtype.Uint8:
		divideAs(dst, ranks)
	case dtype.Int32:
		divideAs(view[int32](dst), int32(ranks))
	case dtype.Uint32:
		divideAs(view[uint32](dst), ranks)
	case dtype.Int64:
		divideAs(view[int64](dst), int64(ranks))
	case dtype.Uint64:
		divideAs(view[uint64](dst), uint64(ranks))
	}
}

// divideAs divides in D, of T's signedness and wide enough for the divisor, which
// T may not be.
func divideAs[T integer, D int32 | uint32 | int64 | uint64](dst []T, divisor D) {
	for i, value := range dst {
		dst[i] = T(D(value) / divisor)
	}
}
