package verify

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

var (
	allOps = []reduce.Op{reduce.Sum, reduce.Prod, reduce.Max, reduce.Min, reduce.Avg, reduce.PreMulSum}
	floats = []dtype.Type{dtype.Half, dtype.Float32, dtype.Float64, dtype.Bfloat, dtype.F8E4M3, dtype.F8E5M2}
)

// decode reads the element formats as their standards define them, apart from the
// code under test.
func decode(t dtype.Type, b uint64) float64 {
	small := func(fraction, bias int) float64 {
		width := 8*t.Size() - 1
		exp, frac := int(b>>fraction)&(1<<(width-fraction)-1), float64(b&(1<<fraction-1))
		v := math.Pow(2, float64(1-bias)) * frac / float64(int(1)<<fraction)
		if exp > 0 {
			v = math.Pow(2, float64(exp-bias)) * (1 + frac/float64(int(1)<<fraction))
		}
		if b>>width != 0 {
			return -v
		}
		return v
	}
	switch t {
	case dtype.Float32:
		return float64(math.Float32frombits(uint32(b)))
	case dtype.Float64:
		return math.Float64frombits(b)
	case dtype.Bfloat:
		return float64(math.Float32frombits(uint32(b) << 16))
	case dtype.Half:
		return small(10, 15)
	case dtype.F8E4M3:
		return small(3, 7)
	default:
		return small(2, 15)
	}
}

// limits of the float types as their standards give them: significant bits,
// smallest normal, largest finite value.
var limits = map[dtype.Type]struct {
	precision       uint
	normal, largest float64
}{
	dtype.Half:    {11, 0x1p-14, 65504},
	dtype.Bfloat:  {8, 0x1p-126, 0x1.fep127},
	dtype.Float32: {24, 0x1p-126, math.MaxFloat32},
	dtype.Float64: {53, 0x1p-1022, math.MaxFloat64},
	dtype.F8E4M3:  {4, 0x1p-6, 448},
	dtype.F8E5M2:  {3, 0x1p-14, 57344},
}

// enough bits for any product of float64's normal numbers that is one, too.
const enough = 2200

// exact holds any number that the tests come across without rounding it.
func exact(x float64) *big.Float { return new(big.Float).SetPrec(enough).SetFloat64(x) }

// requireRepresentable checks that x is zero or a normal number of type t.
func requireRepresentable(t require.TestingT, typ dtype.Type, x *big.Float) {
	if x.Sign() == 0 {
		return
	}
	l := limits[typ]
	require.LessOrEqual(t, x.MinPrec(), l.precision, "%v needs more bits than %v has", x, typ)
	mag := new(big.Float).Abs(x)
	require.True(t, mag.Cmp(exact(l.normal)) >= 0 && mag.Cmp(exact(l.largest)) <= 0, "%v is out of the normal range of %v", x, typ)
}

// column returns all ranks' inputs and the result at one index.
func column(r Reduction, index int) (in []uint64, result uint64) {
	size := r.Type.Size()
	buf := make([]byte, size)
	for rank := range r.Ranks {
		r.Input(buf, rank, index)
		in = append(in, bitsOf(buf))
	}
	r.Result(buf, index)
	return in, bitsOf(buf)
}

func bitsOf(b []byte) uint64 {
	var word [8]byte
	copy(word[:], b)
	return binary.LittleEndian.Uint64(word[:])
}

// combine is one step of a reduction in exact arithmetic.
func combine(op reduce.Op, a, b *big.Float) *big.Float {
	switch op {
	case reduce.Prod:
		return new(big.Float).SetPrec(enough).Mul(a, b)
	case reduce.Min:
		if a.Cmp(b) < 0 {
			return a
		}
		return b
	case reduce.Max:
		if a.Cmp(b) > 0 {
			return a
		}
		return b
	default:
		return new(big.Float).SetPrec(enough).Add(a, b)
	}
}

// Whatever is combined with whatever first, no step rounds: partial results of
// random subsets, merged as random trees, are values of the type, and the whole
// is the promised result.
func TestFloatsAreExactInAnyOrder(t *testing.T) {
	for _, typ := range floats {
		for _, op := range allOps {
			if op == reduce.Avg {
				continue // rounds by definition: TestFloatAverage
			}
			t.Run(fmt.Sprintf("%v %v", typ, op), func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					r := Reduction{typ, op, rapid.IntRange(1, samples(130)).Draw(t, "ranks"), rapid.Uint64().Draw(t, "seed")}
					index := rapid.IntRange(0, 1<<40).Draw(t, "index")
					rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0))

					in, result := column(r, index)
					parts := make([]*big.Float, r.Ranks)
					for rank, b := range in {
						requireRepresentable(t, typ, exact(decode(typ, b)))
						parts[rank] = exact(decode(typ, b))
						if op == reduce.PreMulSum {
							parts[rank].Mul(parts[rank], exact(decode(typ, r.Scalar(rank).Bits)))
							requireRepresentable(t, typ, parts[rank])
						}
					}
					for len(parts) > 1 {
						i := rng.IntN(len(parts))
						a := parts[i]
						parts[i] = parts[len(parts)-1]
						parts = parts[:len(parts)-1]
						j := rng.IntN(len(parts))
						parts[j] = combine(op, a, parts[j])
						requireRepresentable(t, typ, parts[j])
					}
					require.Zero(t, parts[0].Cmp(exact(decode(typ, result))), "want %v, promised %v", parts[0], decode(typ, result))
					if parts[0].Sign() == 0 {
						require.Zero(t, result, "a sum of zero is positive")
					}
				})
			})
		}
	}
}

// samples is n, or a tenth of it in a short run.
func samples(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

// Every subset, not only those that a random merge happens to form.
func TestEverySubsetIsExact(t *testing.T) {
	for _, typ := range floats {
		for _, op := range []reduce.Op{reduce.Sum, reduce.Prod, reduce.PreMulSum} {
			r := Reduction{typ, op, 9, 7}
			for index := range samples(40) {
				in, _ := column(r, index)
				for subset := 1; subset < 1<<r.Ranks; subset++ {
					var total *big.Float
					for rank, b := range in {
						if subset>>rank&1 == 0 {
							continue
						}
						x := exact(decode(typ, b))
						if op == reduce.PreMulSum {
							x.Mul(x, exact(decode(typ, r.Scalar(rank).Bits)))
						}
						if total == nil {
							total = x
						} else {
							total = combine(op, total, x)
						}
					}
					requireRepresentable(t, typ, total)
				}
			}
		}
	}
}

// The definition of Avg step by step in exact arithmetic with explicit rounding.
func TestFloatAverage(t *testing.T) {
	for _, typ := range floats {
		rounded := func(x *big.Float) *big.Float { return nearest(typ, x) }
		for ranks := 1; ranks <= 66; ranks++ {
			r := Reduction{typ, reduce.Avg, ranks, uint64(ranks)}
			scale := rounded(new(big.Float).SetPrec(enough).Quo(exact(1), exact(float64(ranks))))
			for index := range samples(50) {
				in, result := column(r, index)
				sum, contributors := exact(0), 0
				for _, b := range in {
					x := exact(decode(typ, b))
					requireRepresentable(t, typ, x)
					if x.Sign() != 0 {
						contributors++
					}
					sum = rounded(new(big.Float).SetPrec(enough).Add(sum, rounded(x.Mul(x, scale))))
				}
				require.Equal(t, min(2, ranks), contributors)
				require.Zero(t, sum.Cmp(exact(decode(typ, result))), "%v ranks %d index %d: want %v, promised %v", typ, ranks, index, sum, decode(typ, result))
			}
		}
	}
}

// nearest rounds to the type, ties to even, subnormals included.
func nearest(typ dtype.Type, x *big.Float) *big.Float {
	if x.Sign() == 0 {
		return exact(0)
	}
	l := limits[typ]
	prec := int(l.precision)
	if below := exact(l.normal).MantExp(nil) - x.MantExp(nil); below > 0 {
		prec -= below
	}
	if prec > 0 {
		return new(big.Float).SetPrec(enough).Set(new(big.Float).SetPrec(uint(prec)).Set(x))
	}
	// Less than the smallest subnormal: all of it, or nothing.
	smallest := exact(l.normal)
	smallest.SetMantExp(smallest, 1-int(l.precision))
	half := new(big.Float).SetPrec(enough).Quo(smallest, exact(2))
	if new(big.Float).Abs(x).Cmp(half) <= 0 {
		return exact(0)
	}
	if x.Sign() < 0 {
		smallest.Neg(smallest)
	}
	return smallest
}

func TestIntegersAgainstBigArithmetic(t *testing.T) {
	for _, typ := range dtype.All() {
		if !typ.Integer() {
			continue
		}
		for _, op := range allOps {
			for _, ranks := range []int{1, 2, 3, 4, 7, 8, 17, 64} {
				r := Reduction{typ, op, ranks, 3}
				for index := range 30 {
					in, result := column(r, index)
					require.Equal(t, wantInteger(r, in).Uint64(), result, "%v %v ranks %d index %d", typ, op, ranks, index)
				}
			}
		}
	}
}

// wantInteger reduces without wrapping and wraps at the end. Its bits are those of
// the stored element, zero-extended.
func wantInteger(r Reduction, in []uint64) *big.Int {
	modulus := new(big.Int).Lsh(big.NewInt(1), uint(8*r.Type.Size()))
	number := func(x *big.Int) *big.Int { // x wrapped into the type's range
		x = new(big.Int).Mod(x, modulus)
		isSigned := r.Type == dtype.Int8 || r.Type == dtype.Int32 || r.Type == dtype.Int64
		if isSigned && new(big.Int).Lsh(x, 1).Cmp(modulus) >= 0 {
			x.Sub(x, modulus)
		}
		return x
	}
	var total *big.Int
	for rank, b := range in {
		x := number(new(big.Int).SetUint64(b))
		if r.Op == reduce.PreMulSum {
			x.Mul(x, number(new(big.Int).SetUint64(r.Scalar(rank).Bits)))
		}
		switch {
		case total == nil:
			total = x
		case r.Op == reduce.Prod:
			total.Mul(total, x)
		case r.Op == reduce.Min && x.Cmp(total) < 0, r.Op == reduce.Max && x.Cmp(total) > 0:
			total = x
		case r.Op == reduce.Min, r.Op == reduce.Max:
		default:
			total.Add(total, x)
		}
	}
	if r.Op == reduce.Avg {
		total = new(big.Int).Quo(number(total), big.NewInt(int64(r.Ranks)))
	}
	return new(big.Int).Mod(total, modulus)
}

// A rank's contribution that is lost must show in a buffer of moderate size.
func TestLostContributionShows(t *testing.T) {
	const elements = 4096
	for _, typ := range dtype.All() {
		for _, op := range allOps {
			for _, ranks := range []int{2, 3, 8, 33} {
				r := Reduction{typ, op, ranks, 11}
				buf := make([]byte, elements*typ.Size())
				for rank := range ranks {
					r.Input(buf, rank, 0)
					matters := 0
					for i := range elements {
						in, result := column(r, i)
						if neutral(typ, op, in, rank, result) {
							continue
						}
						matters++
						break
					}
					assert.NotZero(t, matters, "%v %v: rank %d of %d never matters", typ, op, rank, ranks)
				}
			}
		}
	}
}

// neutral reports whether leaving rank's input away would not change the result.
func neutral(typ dtype.Type, op reduce.Op, in []uint64, rank int, result uint64) bool {
	switch op {
	case reduce.Min, reduce.Max:
		for other, b := range in {
			if other != rank && b == result {
				return true
			}
		}
		return in[rank] != result
	case reduce.Prod:
		return in[rank] == 1 || typ.Float() && decode(typ, in[rank]) == 1
	default:
		return in[rank] == 0
	}
}

// Values must not repeat so often that a shifted or swapped element goes unseen.
func TestResultsVary(t *testing.T) {
	const elements = 1024
	for _, typ := range dtype.All() {
		for _, op := range allOps {
			for _, ranks := range []int{1, 4, 64} {
				r := Reduction{typ, op, ranks, 5}
				size := typ.Size()
				got, shifted := make([]byte, elements*size), make([]byte, elements*size)
				r.Result(got, 0)
				r.Result(shifted, 1)
				assert.Greater(t, r.Wrong(shifted, got), elements/2, "%v %v %d", typ, op, ranks)
			}
		}
	}
}

func TestPartsFitTogether(t *testing.T) {
	for _, typ := range dtype.All() {
		r := Reduction{typ, reduce.Sum, 5, 9}
		size := typ.Size()
		whole, parts := make([]byte, 100*size), make([]byte, 100*size)
		r.Input(whole, 3, 1000)
		r.Input(parts[:37*size], 3, 1000)
		r.Input(parts[37*size:], 3, 1037)
		assert.Equal(t, whole, parts)
		r.Result(whole, 1000)
		r.Result(parts[:1*size], 1000)
		r.Result(parts[1*size:], 1001)
		assert.Equal(t, whole, parts)
	}
	whole := make([]byte, 200)
	Pattern{4}.Fill(whole, 0)
	for from := range 40 {
		for to := from; to < len(whole); to += 7 {
			part := make([]byte, to-from)
			Pattern{4}.Fill(part, from)
			require.Equal(t, whole[from:to], part)
		}
	}
}

func TestWrongCountsElements(t *testing.T) {
	for _, typ := range dtype.All() {
		r := Reduction{typ, reduce.Sum, 4, 1}
		size := typ.Size()
		want := make([]byte, 100*size)
		r.Result(want, 0)
		got := append([]byte(nil), want...)
		assert.Zero(t, r.Wrong(got, want))
		got[0] ^= 1
		got[17*size+size-1] ^= 0x80
		got[99*size] ^= 2
		assert.Equal(t, 3, r.Wrong(got, want))
	}
}

func TestPoisonIsWrong(t *testing.T) {
	const elements = 4096
	for _, typ := range dtype.All() {
		for _, op := range allOps {
			r := Reduction{typ, op, 4, 1}
			want := make([]byte, elements*typ.Size())
			r.Result(want, 0)
			got := make([]byte, len(want))
			Poison(got)
			if wrong := r.Wrong(got, want); typ.Float() {
				assert.Equal(t, elements, wrong, "%v %v", typ, op)
			} else {
				assert.Greater(t, wrong, elements*9/10, "%v %v", typ, op)
			}
		}
	}
}

func TestAverageForgivesTwoUnits(t *testing.T) {
	for _, typ := range floats {
		r := Reduction{typ, reduce.Avg, 4, 1}
		want := make([]byte, typ.Size())
		r.Result(want, 0)
		for units, wrong := range map[int]int{-3: 1, -2: 0, -1: 0, 0: 0, 1: 0, 2: 0, 3: 1} {
			got := make([]byte, typ.Size())
			put(got, typ.Size(), bitsOf(want)+uint64(units))
			assert.Equal(t, wrong, r.Wrong(got, want), "%v %d units off", typ, units)
		}
	}
	// Around zero, positive and negative numbers are neighbours.
	f := formatOf(dtype.Half)
	assert.Zero(t, wrongFloats(f, []byte{1, 0x80}, []byte{1, 0}, 2))
	assert.Equal(t, 1, wrongFloats(f, []byte{2, 0x80}, []byte{1, 0}, 2))
}

func TestFormatsRoundTrip(t *testing.T) {
	for _, typ := range floats {
		f := formatOf(typ)
		rng := rand.New(rand.NewPCG(1, uint64(typ)))
		for i := range 1 << 16 {
			b := uint64(i)
			if f.size > 2 {
				b = rng.Uint64() >> (64 - 8*f.size)
			}
			b &= 1<<(8*f.size) - 1
			x := decode(typ, b)
			if math.IsNaN(x) || math.Abs(x) > limits[typ].largest || x == 0 {
				continue
			}
			require.Equal(t, x, f.value(b), "%v %#x", typ, b)
			require.Equal(t, b, f.round(x), "%v %v", typ, x)
		}
	}
}

func BenchmarkGenerator(b *testing.B) {
	for _, typ := range []dtype.Type{dtype.Int8, dtype.Float32, dtype.Bfloat} {
		for _, op := range []reduce.Op{reduce.Sum, reduce.Avg} {
			r := Reduction{typ, op, 4, 1}
			buf := make([]byte, 1<<16)
			b.Run(fmt.Sprintf("make=input/type=%v/op=%v", typ, op), func(b *testing.B) {
				b.SetBytes(int64(len(buf)))
				for b.Loop() {
					r.Input(buf, 1, 0)
				}
			})
			b.Run(fmt.Sprintf("make=result/type=%v/op=%v", typ, op), func(b *testing.B) {
				b.SetBytes(int64(len(buf)))
				for b.Loop() {
					r.Result(buf, 0)
				}
			})
		}
	}
}
