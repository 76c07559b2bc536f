package reduce

import "github.com/gollective/gollective/dtype"

// routine names one loop over two operands. It is a number and not a func value
// because direct calls let the compiler see that operands do not escape: scratch
// blocks and callers' short slices of slices stay on the stack.
type routine uint8

const (
	_ routine = iota // the zero Kernel has none

	add8
	add32
	add64
	addHalf
	addFloat32
	addFloat64
	addBfloat
	addE4M3
	addE5M2

	mul8
	mul32
	mul64
	mulHalf
	mulFloat32
	mulFloat64
	mulBfloat
	mulE4M3
	mulE5M2

	maxInt8
	maxUint8
	maxInt32
	maxUint32
	maxInt64
	maxUint64
	maxHalf
	maxFloat32
	maxFloat64
	maxBfloat
	maxE4M3
	maxE5M2

	minInt8
	minUint8
	minInt32
	minUint32
	minInt64
	minUint64
	minHalf
	minFloat32
	minFloat64
	minBfloat
	minE4M3
	minE5M2
)

// routines is indexed by type and op. Sums and products wrap, so that signed and
// unsigned integers share theirs. Avg and PreMulSum sum what Pre has scaled.
var routines = [...][opsCount]routine{
	dtype.Int8:    {add8, mul8, maxInt8, minInt8, add8, add8},
	dtype.Uint8:   {add8, mul8, maxUint8, minUint8, add8, add8},
	dtype.Int32:   {add32, mul32, maxInt32, minInt32, add32, add32},
	dtype.Uint32:  {add32, mul32, maxUint32, minUint32, add32, add32},
	dtype.Int64:   {add64, mul64, maxInt64, minInt64, add64, add64},
	dtype.Uint64:  {add64, mul64, maxUint64, minUint64, add64, add64},
	dtype.Half:    {addHalf, mulHalf, maxHalf, minHalf, addHalf, addHalf},
	dtype.Float32: {addFloat32, mulFloat32, maxFloat32, minFloat32, addFloat32, addFloat32},
	dtype.Float64: {addFloat64, mulFloat64, maxFloat64, minFloat64, addFloat64, addFloat64},
	dtype.Bfloat:  {addBfloat, mulBfloat, maxBfloat, minBfloat, addBfloat, addBfloat},
	dtype.F8E4M3:  {addE4M3, mulE4M3, maxE4M3, minE4M3, addE4M3, addE4M3},
	dtype.F8E5M2:  {addE5M2, mulE5M2, maxE5M2, minE5M2, addE5M2, addE5M2},
}

// fewBytes are combined element by element before anything else could be tried.
const fewBytes = 8

// combine stores a ⊕ b in dst; equal lengths, dst may be a or b.
func combine(r routine, dst, a, b []byte) {
	if len(dst) > fewBytes {
		done := combineVectors(r, dst, a, b)
		if done == len(dst) {
			return
		}
		dst, a, b = dst[done:], a[done:], b[done:]
	}
	switch {
	case r <= mulE5M2:
		combineArithmetic(r, dst, a, b)
	default:
		combineOrder(r, dst, a, b)
	}
}

// combinePair stores a ⊕ b in dst and in also; equal lengths, either may be a or b.
func combinePair(r routine, dst, also, a, b []byte) {
	if len(dst) <= fewBytes {
		combine(r, dst, a, b)
		copy(also, dst)
		return
	}
	for done := pairVectors(r, dst, also, a, b); done < len(dst); done += passBytes {
		to := min(done+passBytes, len(dst))
		combine(r, dst[done:to], a[done:to], b[done:to])
		copy(also[done:to], dst[done:to])
	}
}

func combineArithmetic(r routine, dst, a, b []byte) {
	switch r {
	case add8:
		addBytes(dst, a, b)
	case add32:
		add(views[uint32](dst, a, b))
	case add64:
		add(views[uint64](dst, a, b))
	case addHalf:
		addFloat16(views[dtype.Float16](dst, a, b))
	case addFloat32:
		add(views[float32](dst, a, b))
	case addFloat64:
		add(views[float64](dst, a, b))
	case addBfloat:
		addBFloat16(views[dtype.BFloat16](dst, a, b))
	case addE4M3:
		addFloat8E4M3(views[dtype.Float8E4M3](dst, a, b))
	case addE5M2:
		addFloat8E5M2(views[dtype.Float8E5M2](dst, a, b))
	case mul8:
		mul(views[uint8](dst, a, b))
	case mul32:
		mul(views[uint32](dst, a, b))
	case mul64:
		mul(views[uint64](dst, a, b))
	case mulHalf:
		mulFloat16(views[dtype.Float16](dst, a, b))
	case mulFloat32:
		mul(views[float32](dst, a, b))
	case mulFloat64:
		mul(views[float64](dst, a, b))
	case mulBfloat:
		mulBFloat16(views[dtype.BFloat16](dst, a, b))
	case mulE4M3:
		mulFloat8E4M3(views[dtype.Float8E4M3](dst, a, b))
	case mulE5M2:
		mulFloat8E5M2(views[dtype.Float8E5M2](dst, a, b))
	default:
		panic("reduce: a Kernel that For did not make")
	}
}

func combineOrder(r routine, dst, a, b []byte) {
	switch r {
	case maxInt8:
		maxInt(views[int8](dst, a, b))
	case maxUint8:
		maxInt(views[uint8](dst, a, b))
	case maxInt32:
		maxInt(views[int32](dst, a, b))
	case maxUint32:
		maxInt(views[uint32](dst, a, b))
	case maxInt64:
		maxInt(views[int64](dst, a, b))
	case maxUint64:
		maxInt(views[uint64](dst, a, b))
	case maxHalf:
		maxFloat(half, dst, a, b)
	case maxFloat32:
		maxFloat(single, dst, a, b)
	case maxFloat64:
		maxFloat(double, dst, a, b)
	case maxBfloat:
		maxFloat(bfloat, dst, a, b)
	case maxE4M3:
		maxFloat(e4m3, dst, a, b)
	case maxE5M2:
		maxFloat(e5m2, dst, a, b)
	case minInt8:
		minInt(views[int8](dst, a, b))
	case minUint8:
		minInt(views[uint8](dst, a, b))
	case minInt32:
		minInt(views[int32](dst, a, b))
	case minUint32:
		minInt(views[uint32](dst, a, b))
	case minInt64:
		minInt(views[int64](dst, a, b))
	case minUint64:
		minInt(views[uint64](dst, a, b))
	case minHalf:
		minFloat(half, dst, a, b)
	case minFloat32:
		minFloat(single, dst, a, b)
	case minFloat64:
		minFloat(double, dst, a, b)
	case minBfloat:
		minFloat(bfloat, dst, a, b)
	case minE4M3:
		minFloat(e4m3, dst, a, b)
	case minE5M2:
		minFloat(e5m2, dst, a, b)
	}
}
