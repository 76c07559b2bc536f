package reduce

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"sort"

	"github.com/gollective/gollective/dtype"
)

// The model computes one element at a time on bit patterns held in uint64. It
// knows each format by its fields, rounds by searching, adds float64 with
// math/big, and calls nothing of what it judges.

// format holds the fields of a float type; of 8- and 16-bit ones also all
// magnitudes that are numbers, in order, so that index and pattern agree.
type format struct {
	bits, fraction, bias int
	ieee                 bool // all-ones exponents are infinity and NaNs
	saturates            bool
	nan                  uint64
	values               []float64
}

var formats = map[dtype.Type]*format{
	dtype.Half:    small(format{bits: 16, fraction: 10, bias: 15, ieee: true, nan: 0x7e00}),
	dtype.Bfloat:  small(format{bits: 16, fraction: 7, bias: 127, ieee: true, nan: 0x7fc0}),
	dtype.F8E4M3:  small(format{bits: 8, fraction: 3, bias: 7, saturates: true, nan: 0x7f}),
	dtype.F8E5M2:  small(format{bits: 8, fraction: 2, bias: 15, ieee: true, saturates: true, nan: 0x7e}),
	dtype.Float32: {bits: 32, ieee: true, nan: 0x7fc00000},
	dtype.Float64: {bits: 64, ieee: true, nan: 0x7ff8000000000000},
}

func small(f format) *format {
	for p := uint64(0); ; p++ {
		v := f.decode(p)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return &f
		}
		f.values = append(f.values, v)
	}
}

// decode gives the value of a pattern; every format's fits a float64.
func (f *format) decode(p uint64) float64 {
	switch f.bits {
	case 64:
		return math.Float64frombits(p)
	case 32:
		return float64(math.Float32frombits(uint32(p)))
	}
	ones := uint64(1)<<(f.bits-1-f.fraction) - 1
	e, m := p>>f.fraction&ones, p&(1<<f.fraction-1)
	v := math.Ldexp(float64(m), 1-f.bias-f.fraction)
	if e > 0 {
		v = math.Ldexp(float64(m+1<<f.fraction), int(e)-f.bias-f.fraction)
	}
	switch {
	case e == ones && f.ieee && m == 0:
		v = math.Inf(1)
	case e == ones && f.ieee, e == ones && m == 1<<f.fraction-1:
		return math.NaN()
	}
	if p>>(f.bits-1) == 1 {
		v = math.Copysign(v, -1)
	}
	return v
}

// encode rounds v, ties to even.
func (f *format) encode(v float64) uint64 {
	switch {
	case v != v:
		return f.nan
	case f.bits == 64:
		return math.Float64bits(v)
	case f.bits == 32:
		return uint64(math.Float32bits(float32(v)))
	}
	sign := uint64(0)
	if math.Signbit(v) {
		sign, v = 1<<(f.bits-1), -v
	}
	last := len(f.values) - 1
	up := sort.SearchFloat64s(f.values, v)
	if up > last {
		if f.saturates || v < f.values[last]+(f.values[last]-f.values[last-1])/2 {
			return sign | uint64(last)
		}
		return sign | uint64(last+1)
	}
	if up > 0 {
		tie := (f.values[up-1] + f.values[up]) / 2
		if v < tie || v == tie && up%2 == 1 {
			up--
		}
	}
	return sign | uint64(up)
}

// modelReduce is what Reduce owes for one element.
func modelReduce(t dtype.Type, op Op, xs []uint64) uint64 {
	if len(xs) == 1 {
		return xs[0]
	}
	if t.Integer() {
		return modelInteger(t, op, xs)
	}
	f := formats[t]
	if op == Max || op == Min {
		return f.modelOrder(op, xs)
	}
	acc := f.decode(xs[0])
	for _, x := range xs[1:] {
		if f.bits == 64 {
			acc = exact64(op, acc, f.decode(x))
			continue
		}
		// float64 has more than twice float32's bits: rounding its sum or product
		// to float32 is rounding the exact one.
		y := f.decode(x)
		if op == Prod {
			acc = float64(float32(acc * y))
		} else {
			acc = float64(float32(acc + y))
		}
	}
	return f.encode(acc)
}

func (f *format) modelOrder(op Op, xs []uint64) uint64 {
	best := xs[0]
	for _, x := range xs {
		v, b := f.decode(x), f.decode(best)
		switch {
		case v != v || b != b:
			return f.nan
		case op == Max && (v > b || v == b && !math.Signbit(v)), op == Min && (v < b || v == b && math.Signbit(v)):
			best = x
		}
	}
	return best
}

// exact64 adds or multiplies without rounding, then rounds once.
func exact64(op Op, x, y float64) float64 {
	special := math.IsNaN(x) || math.IsInf(x, 0) || math.IsNaN(y) || math.IsInf(y, 0)
	if special || op == Prod && (x == 0 || y == 0) || op != Prod && x == 0 && y == 0 {
		if op == Prod { // IEEE's table of special values is the language's
			return x * y
		}
		return x + y
	}
	a, b := new(big.Float).SetPrec(2400).SetFloat64(x), new(big.Float).SetPrec(2400).SetFloat64(y)
	if op == Prod {
		a.Mul(a, b)
	} else {
		a.Add(a, b)
	}
	v, _ := a.Float64()
	if v == 0 && a.Sign() == 0 {
		return 0 // x + -x is +0
	}
	return v
}

func toInteger(t dtype.Type, x uint64) *big.Int {
	bits := uint(8 * t.Size())
	v := new(big.Int).SetUint64(x)
	if signed(t) && x>>(bits-1) == 1 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), bits))
	}
	return v
}

func fromInteger(t dtype.Type, v *big.Int) uint64 {
	modulus := new(big.Int).Lsh(big.NewInt(1), uint(8*t.Size()))
	return new(big.Int).Mod(v, modulus).Uint64() // Mod is never negative
}

func signed(t dtype.Type) bool { return t == dtype.Int8 || t == dtype.Int32 || t == dtype.Int64 }

func modelInteger(t dtype.Type, op Op, xs []uint64) uint64 {
	acc := toInteger(t, xs[0])
	for _, x := range xs[1:] {
		v := toInteger(t, x)
		switch {
		case op == Prod:
			acc.Mul(acc, v)
		case op == Max && v.Cmp(acc) > 0, op == Min && v.Cmp(acc) < 0:
			acc.Set(v)
		case op != Max && op != Min:
			acc.Add(acc, v)
		}
	}
	return fromInteger(t, acc)
}

// modelScale is what Pre owes for one element.
func modelScale(t dtype.Type, x, scalar uint64) uint64 {
	if t.Integer() {
		return fromInteger(t, new(big.Int).Mul(toInteger(t, x), toInteger(t, scalar)))
	}
	f := formats[t]
	if f.bits == 64 {
		return f.encode(exact64(Prod, f.decode(x), f.decode(scalar)))
	}
	return f.encode(float64(float32(f.decode(x) * f.decode(scalar))))
}

// modelDivide is what Post owes for one integer.
func modelDivide(t dtype.Type, x uint64, ranks int) uint64 {
	return fromInteger(t, new(big.Int).Quo(toInteger(t, x), big.NewInt(int64(ranks))))
}

// same compares two patterns. Sums and products of float32 and float64 may give any
// NaN; everything else is exact.
func same(t dtype.Type, exact bool, got, want uint64) bool {
	if got == want {
		return true
	}
	if exact || t != dtype.Float32 && t != dtype.Float64 {
		return false
	}
	f := formats[t]
	return math.IsNaN(f.decode(got)) && math.IsNaN(f.decode(want))
}

func load(t dtype.Type, b []byte, i int) uint64 {
	switch t.Size() {
	case 1:
		return uint64(b[i])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b[2*i:]))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b[4*i:]))
	}
	return binary.NativeEndian.Uint64(b[8*i:])
}

func store(t dtype.Type, b []byte, i int, x uint64) {
	switch t.Size() {
	case 1:
		b[i] = byte(x)
	case 2:
		binary.NativeEndian.PutUint16(b[2*i:], uint16(x))
	case 4:
		binary.NativeEndian.PutUint32(b[4*i:], uint32(x))
	default:
		binary.NativeEndian.PutUint64(b[8*i:], x)
	}
}

// specials lists the patterns of t at which something can go wrong: of floats both
// zeros, the smallest and largest subnormal and normal numbers, one, infinities and
// NaNs of both signs with small and large payloads; of integers the ends.
func specials(t dtype.Type) []uint64 {
	bits := 8 * t.Size()
	top, all := uint64(1)<<(bits-1), uint64(math.MaxUint64)>>(64-bits)
	if t.Integer() {
		return []uint64{0, 1, 2, 3, top - 1, top, top + 1, all - 1, all}
	}
	fraction := map[dtype.Type]int{dtype.Float32: 23, dtype.Float64: 52}[t]
	if fraction == 0 {
		fraction = formats[t].fraction
	}
	least, inf := uint64(1)<<fraction, (top-1)>>fraction<<fraction
	list := []uint64{
		0, 1, least - 1, least, least + 1, formats[t].encode(1), formats[t].encode(1.5),
		inf - 1, inf, inf + 1, inf | least>>1, top - 1, top - 2,
	}
	for _, p := range list {
		list = append(list, p|top)
	}
	return list
}

// draw gives a pattern: a special one, any bits, or a number of ordinary size,
// whose sums round but do not overflow.
func draw(rng *rand.Rand, t dtype.Type, list []uint64) uint64 {
	all := uint64(math.MaxUint64) >> (64 - 8*t.Size())
	switch rng.IntN(4) {
	case 0:
		return list[rng.IntN(len(list))]
	case 1:
		return rng.Uint64() & all
	}
	if t.Float() {
		return formats[t].encode(rng.NormFloat64())
	}
	return rng.Uint64() & all
}
