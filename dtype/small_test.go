package dtype

import (
	"math"
	"math/rand/v2"
	"os"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
)

// layout describes a small format by its fields, as its standard does, and the
// functions under test. Everything expected is computed from the fields.
type layout struct {
	name               string
	bits               int
	exponent, fraction int
	bias               int
	infinities         bool // all-ones exponents are infinity and NaNs; otherwise only S.1…1 is NaN
	saturates          bool
	nan                uint32

	from   func(float32) uint32
	from64 func(float64) uint32
	value  func(uint32) float32
	text   func(uint32) string
}

var layouts = []layout{
	{
		name: "float16", bits: 16, exponent: 5, fraction: 10, bias: 15, infinities: true, nan: 0x7e00,
		from:   func(f float32) uint32 { return uint32(ToFloat16(f)) },
		from64: func(f float64) uint32 { return uint32(Float64ToFloat16(f)) },
		value:  func(b uint32) float32 { return Float16(b).Float32() },
		text:   func(b uint32) string { return Float16(b).String() },
	},
	{
		name: "bfloat16", bits: 16, exponent: 8, fraction: 7, bias: 127, infinities: true, nan: 0x7fc0,
		from:   func(f float32) uint32 { return uint32(ToBFloat16(f)) },
		from64: func(f float64) uint32 { return uint32(Float64ToBFloat16(f)) },
		value:  func(b uint32) float32 { return BFloat16(b).Float32() },
		text:   func(b uint32) string { return BFloat16(b).String() },
	},
	{
		name: "e4m3", bits: 8, exponent: 4, fraction: 3, bias: 7, saturates: true, nan: 0x7f,
		from:   func(f float32) uint32 { return uint32(ToFloat8E4M3(f)) },
		from64: func(f float64) uint32 { return uint32(Float64ToFloat8E4M3(f)) },
		value:  func(b uint32) float32 { return Float8E4M3(b).Float32() },
		text:   func(b uint32) string { return Float8E4M3(b).String() },
	},
	{
		name: "e5m2", bits: 8, exponent: 5, fraction: 2, bias: 15, infinities: true, saturates: true, nan: 0x7e,
		from:   func(f float32) uint32 { return uint32(ToFloat8E5M2(f)) },
		from64: func(f float64) uint32 { return uint32(Float64ToFloat8E5M2(f)) },
		value:  func(b uint32) float32 { return Float8E5M2(b).Float32() },
		text:   func(b uint32) string { return Float8E5M2(b).String() },
	},
}

// decode is the value of a pattern by the definition of its fields.
func (l *layout) decode(pattern uint32) float64 {
	ones := uint32(1)<<l.exponent - 1
	sign := pattern >> (l.bits - 1)
	e := pattern >> l.fraction & ones
	m := pattern & (1<<l.fraction - 1)
	var v float64
	switch {
	case l.infinities && e == ones && m == 0:
		v = math.Inf(1)
	case l.infinities && e == ones, !l.infinities && e == ones && m == 1<<l.fraction-1:
		return math.NaN()
	case e == 0:
		v = math.Ldexp(float64(m), 1-l.bias-l.fraction)
	default:
		v = math.Ldexp(float64(uint32(1)<<l.fraction+m), int(e)-l.bias-l.fraction)
	}
	if sign == 1 {
		v = math.Copysign(v, -1)
	}
	return v
}

// finite lists the magnitudes in ascending order; index and pattern agree.
func (l *layout) finite() []float64 {
	var values []float64
	for p := uint32(0); ; p++ {
		v := l.decode(p)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return values
		}
		values = append(values, v)
	}
}

// nearest is the slow model of rounding: search all values. Midpoints of
// neighbours are exact in float64, so the comparisons are too.
func (l *layout) nearest(values []float64, f float64) uint32 {
	if math.IsNaN(f) {
		return l.nan
	}
	sign := uint32(0)
	if math.Signbit(f) {
		sign, f = 1<<(l.bits-1), -f
	}
	last := len(values) - 1
	up := sort.SearchFloat64s(values, f) // first value >= f
	switch {
	case up > last && l.saturates:
		return sign | uint32(last)
	case up > last: // the value after the last one would be a step further on
		tie := values[last] + (values[last]-values[last-1])/2
		if f < tie {
			return sign | uint32(last)
		}
		return sign | uint32(last+1) // infinity; the tie is even there
	case values[up] == f:
		return sign | uint32(up)
	}
	tie := (values[up-1] + values[up]) / 2
	if f < tie || f == tie && (up-1)%2 == 0 {
		return sign | uint32(up-1)
	}
	return sign | uint32(up)
}

func TestEveryPatternHasItsValueAndComesBack(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			for p := range uint32(1) << l.bits {
				want, got := l.decode(p), l.value(p)
				if math.IsNaN(want) {
					require.Equal(t, uint32(0x7fc00000), math.Float32bits(got), "pattern %#x", p)
					require.Equal(t, l.nan, l.from(got), "pattern %#x", p)
					continue
				}
				require.Equal(t, math.Float32bits(float32(want)), math.Float32bits(got), "pattern %#x", p)
				back := p
				if math.IsInf(want, 0) && l.saturates {
					back-- // the largest finite number
				}
				require.Equal(t, back, l.from(got), "pattern %#x", p)
				require.Equal(t, back, l.from64(want), "pattern %#x", p)
			}
		})
	}
}

func TestFloat32RoundsToNearestEven(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			values := l.finite()
			for _, v := range edges(values) {
				around := math.Float32bits(float32(v))
				for _, bits := range []uint32{around - 1, around, around + 1} {
					for _, sign := range []uint32{0, 1 << 31} {
						f := math.Float32frombits(bits | sign)
						require.Equal(t, l.nearest(values, float64(f)), l.from(f), "%g (%#x)", f, bits|sign)
					}
				}
			}
		})
	}
}

func TestFloat64RoundsOnce(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			values := l.finite()
			for _, v := range edges(values) {
				around := math.Float64bits(v)
				for _, bits := range []uint64{around - 1, around, around + 1, around | 1<<20} {
					for _, sign := range []uint64{0, 1 << 63} {
						f := math.Float64frombits(bits | sign)
						require.Equal(t, l.nearest(values, f), l.from64(f), "%g (%#x)", f, bits|sign)
					}
				}
			}
		})
	}
}

// edges lists the positive numbers at which a rounding can change or that are
// special: every value, every midpoint, the ends of float32. None is zero, so that
// a pattern less one is still a neighbour; zero has a test of its own.
func edges(values []float64) []float64 {
	last := len(values) - 1
	list := []float64{
		math.SmallestNonzeroFloat32, 0x1p-126, math.MaxFloat32, math.Inf(1),
		values[last] + (values[last]-values[last-1])/2, 2 * values[last], 1e10,
	}
	for i := 1; i < len(values); i++ {
		list = append(list, values[i], (values[i-1]+values[i])/2)
	}
	return list
}

func TestZerosKeepTheirSign(t *testing.T) {
	for _, l := range layouts {
		negative := uint32(1) << (l.bits - 1)
		for _, tiny := range []float64{0, math.SmallestNonzeroFloat64, 0x1p-150} {
			require.Zero(t, l.from64(tiny), l.name)
			require.Equal(t, negative, l.from64(math.Copysign(tiny, -1)), l.name)
		}
		require.Zero(t, l.from(0), l.name)
		require.Equal(t, negative, l.from(float32(math.Copysign(0, -1))), l.name)
	}
}

func TestNaNsBecomeTheCanonicalOne(t *testing.T) {
	for _, l := range layouts {
		for _, bits := range []uint32{0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffc00000, 0xffffffff} {
			require.Equal(t, l.nan, l.from(math.Float32frombits(bits)), "%s %#x", l.name, bits)
		}
		for _, bits := range []uint64{0x7ff0000000000001, 0x7ff8000000000001, 0xffffffffffffffff} {
			require.Equal(t, l.nan, l.from64(math.Float64frombits(bits)), "%s %#x", l.name, bits)
		}
	}
}

func TestRandomNumbersRoundAsTheModelDoes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, l := range layouts {
		values := l.finite()
		for range 100_000 {
			f := math.Float32frombits(rng.Uint32())
			require.Equal(t, l.nearest(values, float64(f)), l.from(f), "%s %x", l.name, f)
			d := math.Float64frombits(rng.Uint64())
			require.Equal(t, l.nearest(values, d), l.from64(d), "%s %x", l.name, d)
		}
	}
}

// Every float32 there is. Rounding is monotone, so the model needs only the
// pattern at which each value begins.
func TestEveryFloat32(t *testing.T) {
	if os.Getenv("GOLLECTIVE_TEST_EXHAUSTIVE") == "" {
		t.Skip("half a minute; set GOLLECTIVE_TEST_EXHAUSTIVE=1")
	}
	for _, l := range layouts {
		values := l.finite()
		want, next := uint32(0), math.Float32bits(float32(values[1]/2))
		for bits := uint32(0); bits <= 0x7f800000; bits++ {
			for bits >= next {
				want = l.nearest(values, float64(math.Float32frombits(bits)))
				next = bits + 1
				if int(want) < len(values)-1 { // nothing changes before the next midpoint
					next = max(next, math.Float32bits(float32((values[want]+values[want+1])/2)))
				}
			}
			f := math.Float32frombits(bits)
			if got := l.from(f); got != want {
				t.Fatalf("%s: %x gives %#x, want %#x", l.name, f, got, want)
			}
			if got := l.from(-f); got != want|1<<(l.bits-1) {
				t.Fatalf("%s: %x gives %#x, want the negative of %#x", l.name, -f, got, want)
			}
		}
	}
}

func TestString(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{ToFloat16(1.5).String(), "1.5"},
		{ToFloat16(0.1).String(), "0.099975586"},
		{ToFloat16(float32(math.Inf(-1))).String(), "-Inf"},
		{ToBFloat16(-3).String(), "-3"},
		{BFloat16(0x7fff).String(), "NaN"},
		{ToFloat8E4M3(1000).String(), "448"},
		{ToFloat8E5M2(-1e9).String(), "-57344"},
		{Float8E5M2(0x7c).String(), "+Inf"},
		{Float8E4M3(0x80).String(), "-0"},
	} {
		require.Equal(t, tc.want, tc.got)
	}
}

func TestBulkConversionsAreTheSingleOnes(t *testing.T) {
	for _, n := range []int{0, 1, 7, 256} {
		wide := make([]float32, n)
		for i := range wide {
			wide[i] = float32(i*i)*0.37 - 50
		}
		back := make([]float32, n)
		h, b, e4, e5 := make([]Float16, n), make([]BFloat16, n), make([]Float8E4M3, n), make([]Float8E5M2, n)

		NarrowFloat16(h, wide)
		WidenFloat16(back, h)
		for i, f := range wide {
			require.Equal(t, ToFloat16(f), h[i])
			require.Equal(t, h[i].Float32(), back[i])
		}
		NarrowBFloat16(b, wide)
		WidenBFloat16(back, b)
		for i, f := range wide {
			require.Equal(t, ToBFloat16(f), b[i])
			require.Equal(t, b[i].Float32(), back[i])
		}
		NarrowFloat8E4M3(e4, wide)
		WidenFloat8E4M3(back, e4)
		for i, f := range wide {
			require.Equal(t, ToFloat8E4M3(f), e4[i])
			require.Equal(t, e4[i].Float32(), back[i])
		}
		NarrowFloat8E5M2(e5, wide)
		WidenFloat8E5M2(back, e5)
		for i, f := range wide {
			require.Equal(t, ToFloat8E5M2(f), e5[i])
			require.Equal(t, e5[i].Float32(), back[i])
		}
	}
}
