package verify

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/gollective/gollective/dtype"
)

// format describes a binary floating point type by its numbers alone.
type format struct {
	size     int // bytes
	fraction int // stored mantissa bits
	minExp   int // exponent of the smallest normal number
	maxExp   int // the largest power of two that is finite
	noInf    bool
}

// precision is the number of significant bits: every integer up to 2^precision is
// exact.
func (f format) precision() int { return f.fraction + 1 }

// formatOf returns the format of a floating point type.
func formatOf(t dtype.Type) format {
	switch t {
	case dtype.Half:
		return format{size: 2, fraction: 10, minExp: -14, maxExp: 15}
	case dtype.Bfloat:
		return format{size: 2, fraction: 7, minExp: -126, maxExp: 127}
	case dtype.Float32:
		return format{size: 4, fraction: 23, minExp: -126, maxExp: 127}
	case dtype.Float64:
		return format{size: 8, fraction: 52, minExp: -1022, maxExp: 1023}
	case dtype.F8E4M3: // no infinities: the top exponent holds numbers, and one NaN
		return format{size: 1, fraction: 3, minExp: -6, maxExp: 8, noInf: true}
	case dtype.F8E5M2:
		return format{size: 1, fraction: 2, minExp: -14, maxExp: 15}
	}
	return format{}
}

// encode returns the bits of k·2^e, which must be a finite value of the format.
func (f format) encode(k int64, e int) uint64 {
	if k == 0 {
		return 0
	}
	sign, mag := uint64(0), uint64(k)
	if k < 0 {
		sign, mag = 1, -uint64(k)
	}
	sign <<= 8*f.size - 1
	exp := e + bits.Len64(mag) - 1 // of the leading bit
	if exp < f.minExp {            // subnormal: the stored fraction counts 2^(minExp-fraction)
		return sign | shift(mag, e-(f.minExp-f.fraction))
	}
	fraction := shift(mag, e-(exp-f.fraction)) &^ (1 << f.fraction)
	return sign | uint64(exp-f.minExp+1)<<f.fraction | fraction
}

// shift is x·2^n.
func shift(x uint64, n int) uint64 {
	if n < 0 {
		return x >> -n
	}
	return x << n
}

// round returns the bits of the value nearest to x, ties to even; x must be
// finite and within the format's range.
func (f format) round(x float64) uint64 {
	_, exp := math.Frexp(x)
	lsb := max(exp-1, f.minExp) - f.fraction // the weight of the last place
	return f.encode(int64(math.RoundToEven(math.Ldexp(x, -lsb))), lsb)
}

// value is the inverse of encode for finite numbers.
func (f format) value(b uint64) float64 {
	fraction := b & (1<<f.fraction - 1)
	code := int(b>>f.fraction) & (1<<(8*f.size-1-f.fraction) - 1)
	x := math.Ldexp(float64(fraction), f.minExp-f.fraction)
	if code > 0 {
		x = math.Ldexp(float64(fraction|1<<f.fraction), code-1+f.minExp-f.fraction)
	}
	if f.negative(b) {
		return -x
	}
	return x
}

func (f format) negative(b uint64) bool { return b>>(8*f.size-1) != 0 }

// key orders bit patterns as the numbers they stand for, one step per
// representable value.
func (f format) key(b uint64) int64 {
	mag := int64(b &^ (1 << (8*f.size - 1)))
	if f.negative(b) {
		return -mag
	}
	return mag
}

// put stores an element of size bytes at the start of dst; memory order is the
// machine's, little-endian on every platform the project builds for.
func put(dst []byte, size int, b uint64) {
	switch size {
	case 1:
		dst[0] = byte(b)
	case 2:
		binary.NativeEndian.PutUint16(dst, uint16(b))
	case 4:
		binary.NativeEndian.PutUint32(dst, uint32(b))
	default:
		binary.NativeEndian.PutUint64(dst, b)
	}
}

// get is the inverse of put.
func get(src []byte, size int) uint64 {
	switch size {
	case 1:
		return uint64(src[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(src))
	case 4:
		return uint64(binary.NativeEndian.Uint32(src))
	default:
		return binary.NativeEndian.Uint64(src)
	}
}
