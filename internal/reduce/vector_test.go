//go:build (amd64 || (arm64 && go1.27)) && !purego && !race

package reduce

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/dtype"
)

func needVectors(t *testing.T) {
	t.Helper()
	if !useVectors {
		t.Skip("the processor lacks the instructions")
	}
}

// without runs body as processors that lack the instructions do.
func without(body func()) {
	defer func(before bool) { useVectors = before }(useVectors)
	useVectors = false
	body()
}

func TestTheGoRoutinesAlone(t *testing.T) {
	without(func() {
		TestEveryAlignment(t)
		TestEveryPairOfSpecialValues(t)
		if !testing.Short() {
			TestFoldsAcrossBlocks(t)
			TestSeveralResultsAcrossBlocks(t)
		}
	})
}

// fill draws elements.
func fill(rng *rand.Rand, t dtype.Type, b []byte, list []uint64) {
	for i := range len(b) / t.Size() {
		store(t, b, i, draw(rng, t, list))
	}
}

// Every kernel gives what its Go twin gives, whichever operand dst is, at every
// length and where one call of assembly ends and the next begins.
func TestVectorsEqualTheirTwins(t *testing.T) {
	needVectors(t)
	rng := seeded(t)
	for _, typ := range dtype.All() {
		list := specials(typ)
		for op := range Op(opsCount) {
			exact := op == Max || op == Min
			k := mustKernel(t, typ, op, 3)
			lengths := []int{callBytes/typ.Size() + 1, callBytes / typ.Size(), 2*callBytes/typ.Size() + 77}
			if testing.Short() {
				lengths = lengths[:1]
			}
			for n := 0; n <= 300; n++ {
				lengths = append(lengths, n)
				if testing.Short() {
					n += rng.IntN(8)
				}
			}
			for _, n := range lengths {
				operands := 2 + rng.IntN(3)
				inPlace := rng.IntN(operands+1) - 1
				with, twin := make([][]byte, operands), make([][]byte, operands)
				bufs := make([]buffer, operands)
				for i := range with {
					bufs[i] = newBuffer(n*k.size, rng.IntN(16))
					fill(rng, typ, bufs[i].body, list)
					with[i] = bufs[i].body
					twin[i] = append([]byte(nil), bufs[i].body...)
				}
				dst, want := newBuffer(n*k.size, rng.IntN(16)), make([]byte, n*k.size)
				if inPlace >= 0 {
					dst, want = bufs[inPlace], twin[inPlace]
				}
				k.Reduce(dst.body, with)
				without(func() { k.Reduce(want, twin) })
				requireSame(t, typ, exact, dst.body, want)
				require.True(t, dst.guardsIntact(), "%v %v: %d elements", typ, op, n)
				if inPlace < 0 {
					requireSameFurther(t, rng, k, exact, with, dst.body)
				}
			}
		}
	}
}

// requireSameFurther compares results of ReduceTo, by stores of both kinds, with
// Reduce's.
func requireSameFurther(t *testing.T, rng *rand.Rand, k Kernel, exact bool, srcs [][]byte, want []byte) {
	t.Helper()
	for _, resultBytes := range []int{0, streamBytes} {
		bufs, dsts := make([]buffer, 1+rng.IntN(3)), [][]byte{}
		align := rng.IntN(64/k.size) * k.size
		for i := range bufs {
			bufs[i] = newBuffer(len(want), align)
			dsts = append(dsts, bufs[i].body)
		}
		further := k.Streaming(resultBytes)
		further.ReduceTo(dsts, srcs)
		for i := range bufs {
			requireSame(t, k.typ, exact, dsts[i], want)
			require.Equal(t, dsts[0], dsts[i])
			require.True(t, bufs[i].guardsIntact())
		}
	}
}

func TestScaledVectorsEqualTheirTwins(t *testing.T) {
	needVectors(t)
	rng := seeded(t)
	for _, typ := range dtype.All() {
		list := specials(typ)
		lengths := []int{callBytes / typ.Size(), callBytes/typ.Size() + 33}
		for n := range 301 {
			lengths = append(lengths, n)
		}
		for _, n := range lengths {
			k, err := For(typ, PreMulSum, 2, Scalar{typ, draw(rng, typ, list)})
			require.NoError(t, err)
			src, dst := newBuffer(n*k.size, rng.IntN(16)), newBuffer(n*k.size, rng.IntN(16))
			fill(rng, typ, src.body, list)
			want := make([]byte, n*k.size)
			without(func() { k.Pre(want, src.body) })
			if n%2 == 1 {
				dst = src
			}
			k.Pre(dst.body, src.body)
			requireSame(t, typ, false, dst.body, want)
			require.True(t, dst.guardsIntact())
		}
	}
}

// All patterns of every small float are widened, and float32s of all sizes, among
// them the ties, narrowed, as dtype does it.
func TestConvertedVectorsEqualDtype(t *testing.T) {
	needVectors(t)
	rng := seeded(t)
	for _, typ := range []dtype.Type{dtype.Half, dtype.Bfloat, dtype.F8E4M3, dtype.F8E5M2} {
		patterns := 1 << (8 * typ.Size())
		src, values := make([]byte, patterns*typ.Size()), make([]float32, patterns)
		for p := range patterns {
			store(typ, src, p, uint64(p))
		}
		converted := widenVectors(typ, values, src)
		if converted == 0 && runtime.GOARCH == "arm64" && typ != dtype.Bfloat {
			continue
		}
		require.Equal(t, patterns, converted)
		for p, got := range values {
			if want := float32(formats[typ].decode(uint64(p))); got != want && got == got || (got != got) != (want != want) {
				t.Fatalf("%v: %#x is widened to %v, want %v", typ, p, got, want)
			}
		}

		var singles []float32
		for p := range values[:patterns-1] {
			tie := (values[p] + values[p+1]) / 2
			singles = append(singles, values[p], tie, math.Nextafter32(tie, 1e38), math.Nextafter32(tie, -1e38))
		}
		for range 1 << 18 {
			exponent := uint32(rng.IntN(64) + 127 - 36)
			singles = append(singles, math.Float32frombits(rng.Uint32()), math.Float32frombits(rng.Uint32()&0x807fffff|exponent<<23))
		}
		singles = singles[:len(singles)&^7]
		got, want := make([]byte, len(singles)*typ.Size()), make([]byte, len(singles)*typ.Size())
		require.Equal(t, len(singles), narrowVectors(typ, got, singles))
		w := widened{}
		k := mustKernel(t, typ, Sum, 3)
		without(func() {
			for at := 0; at < len(singles); at += len(w.acc) {
				n := copy(w.acc[:], singles[at:])
				w.finish(&k, want[at*k.size:(at+n)*k.size])
			}
		})
		for i, f := range singles {
			if g, w := load(typ, got, i), load(typ, want, i); g != w {
				t.Fatalf("%v: %v (%#x) is narrowed to %#x, want %#x", typ, f, math.Float32bits(f), g, w)
			}
		}
	}
}
