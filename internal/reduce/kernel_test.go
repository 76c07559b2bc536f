package reduce

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/dtype"
)

const (
	guardBytes = 32
	guardByte  = 0xa5
)

// buffer is size bytes that begin align bytes after a multiple of 64, between guards.
type buffer struct {
	all, body []byte
}

func newBuffer(size, align int) buffer {
	all := bytes.Repeat([]byte{guardByte}, size+align+2*guardBytes+64)
	start := guardBytes
	for !aligned(64, all[start:]) {
		start++
	}
	start += align
	return buffer{all[:start+size+guardBytes], all[start : start+size]}
}

func (b buffer) guardsIntact() bool {
	start := len(b.all) - guardBytes - len(b.body)
	for _, guard := range [][]byte{b.all[:start], b.all[start+len(b.body):]} {
		for _, v := range guard {
			if v != guardByte {
				return false
			}
		}
	}
	return true
}

// data is inputs of one type with the model's results over the first n of them.
type data struct {
	typ    dtype.Type
	inputs [][]uint64        // operand, element
	raw    [][]byte          // the same
	want   [opsCount][6]owed // by number of operands
}

// owed is as many results as have been asked for.
type owed struct {
	elements []uint64
	raw      []byte
}

func newData(rng *rand.Rand, t dtype.Type, elements int) data {
	d := data{typ: t}
	list := specials(t)
	for range 5 {
		xs, raw := make([]uint64, elements), make([]byte, elements*t.Size())
		for i := range xs {
			xs[i] = draw(rng, t, list)
			store(t, raw, i, xs[i])
		}
		d.inputs, d.raw = append(d.inputs, xs), append(d.raw, raw)
	}
	return d
}

// results is what the model makes of the first elements of so many operands.
func (d *data) results(op Op, operands, elements int) owed {
	w := &d.want[op][operands]
	for i := len(w.elements); i < elements; i++ {
		w.elements = append(w.elements, modelReduce(d.typ, op, d.column(operands, i)))
		w.raw = append(w.raw, make([]byte, d.typ.Size())...)
		store(d.typ, w.raw, i, w.elements[i])
	}
	return *w
}

func (d *data) column(operands, i int) []uint64 {
	xs := make([]uint64, operands)
	for s := range xs {
		xs[s] = d.inputs[s][i]
	}
	return xs
}

// shape is one call: elements, operands, which operand is dst (or -1), which ones
// further results are, and the misalignment of results and of each operand. Without
// further results the call is Reduce.
type shape struct {
	elements, operands, inPlace int
	also                        []int
	alignDst                    int
	alignSrc                    [5]int
	staged                      bool
	streams                     bool // results are misaligned alike
}

// check runs one call on fresh buffers and compares result, guards and inputs.
func (d *data) check(t *testing.T, op Op, s shape) {
	t.Helper()
	k := mustKernel(t, d.typ, op, 3)
	k.stages = k.stages || s.staged
	apart := 5
	if s.streams {
		k, apart = k.Streaming(streamBytes), 0
	}
	size := s.elements * d.typ.Size()
	srcs, bufs := make([][]byte, s.operands), make([]buffer, s.operands)
	for i := range srcs {
		bufs[i] = newBuffer(size, s.alignSrc[i])
		srcs[i] = bufs[i].body
		copy(srcs[i], d.raw[i])
	}
	var dsts [][]byte
	var results []buffer
	overwritten := map[int]bool{}
	for i, operand := range append([]int{s.inPlace}, s.also...) {
		dst := newBuffer(size, (s.alignDst+apart*i)%64)
		if operand >= 0 {
			dst, overwritten[operand] = bufs[operand], true
		}
		dsts, results = append(dsts, dst.body), append(results, dst)
	}
	if len(dsts) == 1 {
		k.Reduce(dsts[0], srcs)
	} else {
		k.ReduceTo(dsts, srcs)
	}

	want := d.results(op, s.operands, s.elements)
	exact := op == Max || op == Min || s.operands == 1
	for _, dst := range results {
		for e := range s.elements {
			if e == 0 && bytes.Equal(dst.body, want.raw[:size]) {
				break // the same bits, NaNs included
			}
			if got := load(d.typ, dst.body, e); !same(d.typ, exact, got, want.elements[e]) {
				require.Failf(t, "wrong element", "%v %v %+v: element %d of %#x is %#x, want %#x", d.typ, op, s, e, d.column(s.operands, e), got, want.elements[e])
			}
		}
		if !bytes.Equal(dst.body, dsts[0]) {
			require.Failf(t, "results differ", "%v %v %+v", d.typ, op, s)
		}
		if !dst.guardsIntact() {
			require.Failf(t, "wrote outside a result", "%v %v %+v", d.typ, op, s)
		}
	}
	for i, src := range srcs {
		if !bufs[i].guardsIntact() || !overwritten[i] && !bytes.Equal(src, d.raw[i][:size]) {
			require.Failf(t, "operand changed", "%v %v %+v: operand %d", d.typ, op, s, i)
		}
	}
}

// requireSame compares elements.
func requireSame(t *testing.T, typ dtype.Type, exact bool, got, want []byte) {
	t.Helper()
	for e := range len(want) / typ.Size() {
		if g, w := load(typ, got, e), load(typ, want, e); !same(typ, exact, g, w) {
			require.Failf(t, "wrong element", "%v: element %d of %d is %#x, want %#x", typ, e, len(want)/typ.Size(), g, w)
		}
	}
}

func mustKernel(t testing.TB, typ dtype.Type, op Op, ranks int) Kernel {
	k, err := For(typ, op, ranks, ScalarOf(typ, 1))
	require.NoError(t, err)
	return k
}

func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// each runs body for every type, every op.
func each(t *testing.T, elements int, body func(t *testing.T, rng *rand.Rand, d *data, op Op)) {
	rng := seeded(t)
	for _, typ := range dtype.All() {
		d := newData(rng, typ, elements)
		for op := range Op(opsCount) {
			t.Run(fmt.Sprintf("%v/%v", typ, op), func(t *testing.T) { body(t, rng, &d, op) })
		}
	}
}

func TestEveryLength(t *testing.T) {
	each(t, 257, func(t *testing.T, rng *rand.Rand, d *data, op Op) {
		for n := 0; n <= 257; n++ {
			d.check(t, op, shape{elements: n, operands: 2, inPlace: n%3 - 1})
			operands := 1 + n%5
			s := shape{elements: n, operands: operands, inPlace: rng.IntN(operands+1) - 1, alignDst: rng.IntN(16)}
			for i := range s.alignSrc {
				s.alignSrc[i] = rng.IntN(16)
			}
			d.check(t, op, s)
		}
	})
}

// further draws the operands that further results are, all different from inPlace
// and from each other, or -1.
func further(rng *rand.Rand, results, operands, inPlace int) []int {
	var list []int
	for _, operand := range rng.Perm(operands) {
		if operand != inPlace && rng.IntN(2) == 0 {
			list = append(list, operand)
		}
	}
	for len(list) < results {
		list = append(list, -1)
	}
	list = list[:results]
	rng.Shuffle(results, func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

func TestSeveralResultsOfEveryLength(t *testing.T) {
	each(t, 257, func(t *testing.T, rng *rand.Rand, d *data, op Op) {
		for n := 0; n <= 257; n++ {
			for _, operands := range []int{2, 1 + rng.IntN(5)} {
				s := shape{elements: n, operands: operands, inPlace: rng.IntN(operands+1) - 1, alignDst: rng.IntN(16)}
				s.also = further(rng, 1+n%4, operands, s.inPlace)
				for i := range s.alignSrc {
					s.alignSrc[i] = rng.IntN(16)
				}
				d.check(t, op, s)
			}
		}
	})
}

func TestSeveralResultsAcrossBlocks(t *testing.T) {
	each(t, 2*passBytes+3, func(t *testing.T, rng *rand.Rand, d *data, op Op) {
		for operands := 1; operands <= 5; operands++ {
			for results := 2; results <= 4; results++ {
				if testing.Short() && rng.IntN(4) > 0 {
					continue
				}
				n := []int{blockBytes, passBytes, 2 * passBytes}[rng.IntN(3)]/d.typ.Size() - 2 + rng.IntN(5)
				s := shape{elements: n, operands: operands, inPlace: rng.IntN(operands+1) - 1, alignDst: rng.IntN(16), staged: rng.IntN(3) == 0}
				s.also = further(rng, results-1, operands, s.inPlace)
				s.alignSrc[rng.IntN(operands)] = rng.IntN(16)
				d.check(t, op, s)
			}
		}
	})
}

// Results that go past the caches: of every length, at every place of a line.
func TestStreamedResults(t *testing.T) {
	const most = 2*blockBytes + 3*turnBytes
	each(t, most, func(t *testing.T, rng *rand.Rand, d *data, op Op) {
		size := d.typ.Size()
		streamed := 0
		for n := range 2*(lineBytes+turnBytes)/size + 60 {
			if n >= 2*(lineBytes+turnBytes)/size { // some that take several blocks
				n = blockBytes/size + rng.IntN((most-blockBytes)/size)
			}
			operands := 1 + rng.IntN(4)
			s := shape{elements: n, operands: operands, inPlace: -1, also: further(rng, rng.IntN(4), 0, -1), streams: true}
			if rng.IntN(8) == 0 {
				s.inPlace = rng.IntN(operands)
			}
			s.alignDst = n % (lineBytes / size) * size
			for i := range s.alignSrc {
				s.alignSrc[i] = rng.IntN(64)
			}
			d.check(t, op, s)
			k := mustKernel(t, d.typ, op, 3)
			dst := newBuffer(n*size, s.alignDst).body
			if from, to := k.streamable([][]byte{dst}, nil); from < to {
				streamed++
			}
		}
		require.Equal(t, canStream(), streamed > 0)
	})
}

// Whether a result is stored past the caches depends on where it begins, and on
// whether it is an operand.
func TestWhatIsStreamed(t *testing.T) {
	if !canStream() {
		t.Skip("no kernels that stream")
	}
	at := func(align int) []byte { return newBuffer(1000, align).body }
	k := mustKernel(t, dtype.Float32, Sum, 2)
	for _, tc := range []struct {
		name     string
		dsts     [][]byte
		from, to int
	}{
		{"at a line", [][]byte{at(0), at(0)}, 0, 896},
		{"behind a line", [][]byte{at(4), at(4)}, 60, 956},
		{"at different places", [][]byte{at(0), at(4)}, 0, 0},
		{"between elements", [][]byte{at(2), at(2)}, 0, 0},
		{"less than a turn", [][]byte{at(4)[:187]}, 0, 0},
		{"just a turn", [][]byte{at(4)[:188]}, 60, 188},
		{"empty", [][]byte{at(4)[:0]}, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			from, to := k.streamable(tc.dsts, [][]byte{at(0)})
			require.Equal(t, [2]int{tc.from, tc.to}, [2]int{from, to})
			from, to = k.streamable(tc.dsts, [][]byte{at(0), tc.dsts[0]})
			require.Equal(t, [2]int{0, 0}, [2]int{from, to}, "in place")
		})
	}
	require.False(t, k.Streaming(streamBytes-1).streams)
	require.True(t, k.Streaming(streamBytes).streams)
}

func TestCopy(t *testing.T) {
	rng := seeded(t)
	for n := range 700 {
		for _, resultBytes := range []int{n, streamBytes} {
			src, dst := newBuffer(n, rng.IntN(64)), newBuffer(n, rng.IntN(64))
			for i := range src.body {
				src.body[i] = byte(rng.Uint32())
			}
			Copy(dst.body, src.body, resultBytes)
			require.True(t, bytes.Equal(src.body, dst.body) && dst.guardsIntact())
			Copy(dst.body, dst.body, resultBytes)
			require.True(t, bytes.Equal(src.body, dst.body) && dst.guardsIntact())
		}
	}
}

func TestEveryAlignment(t *testing.T) {
	each(t, 76, func(t *testing.T, rng *rand.Rand, d *data, op Op) {
		for align := range 64 {
			for which := range 4 {
				s := shape{elements: 33 + which + align%40, operands: 2 + which/3, inPlace: -1}
				if which == 0 {
					s.alignDst = align
				} else {
					s.alignSrc[which-1] = align
				}
				d.check(t, op, s)
				s.also = []int{-1}
				d.check(t, op, s)
			}
		}
	})
}

// Lengths around the blocks that a fold works in, with dst at every place.
func TestFoldsAcrossBlocks(t *testing.T) {
	each(t, passBytes+3, func(t *testing.T, rng *rand.Rand, d *data, op Op) {
		for operands := 1; operands <= 5; operands++ {
			for inPlace := -1; inPlace < operands; inPlace++ {
				perBlock, perPass := blockBytes/d.typ.Size(), passBytes/d.typ.Size()
				n := []int{
					perBlock - 1, perBlock, perBlock + 1, 2*perBlock + 3, 256, 257,
					perPass - 1, perPass, perPass + 1, perPass + 3,
				}[rng.IntN(10)]
				d.check(t, op, shape{elements: n, operands: operands, inPlace: inPlace, alignDst: 1})
			}
		}
	})
}

// The path of processors that trap on misaligned accesses, taken on any.
func TestStagedOperands(t *testing.T) {
	each(t, blockBytes+9, func(t *testing.T, rng *rand.Rand, d *data, op Op) {
		for operands := 1; operands <= 5; operands++ {
			for inPlace := -1; inPlace < operands; inPlace++ {
				s := shape{elements: 1 + rng.IntN(blockBytes+9), operands: operands, inPlace: inPlace, staged: true, alignDst: rng.IntN(16)}
				s.alignSrc[rng.IntN(operands)] = 1 + 2*rng.IntN(8)
				d.check(t, op, s)
			}
		}
	})
}

// Where misaligned accesses work, results cannot tell whether they were avoided.
func TestOnlyMisalignedOperandsAreStaged(t *testing.T) {
	for _, typ := range dtype.All() {
		k := mustKernel(t, typ, Sum, 2)
		require.Equal(t, !misalignedAccess, k.stages)
		k.stages = true
		even := newBuffer(64, 0).body
		for align := range 16 {
			odd := newBuffer(64, align).body
			want := align%typ.Size() != 0
			require.Equal(t, want, k.traps(odd), "%v at %d", typ, align)
			require.Equal(t, want, k.traps(even, even, odd), "%v operand at %d", typ, align)
			require.Equal(t, want, k.traps(odd, even, even), "%v result at %d", typ, align)
		}
		k.stages = false
		require.False(t, k.traps(newBuffer(64, 1).body))
	}
}

// All pairs of special values; of 8-bit types, all pairs of values.
func TestEveryPairOfSpecialValues(t *testing.T) {
	for _, typ := range dtype.All() {
		list := specials(typ)
		if typ.Size() == 1 {
			list = list[:0]
			for p := range uint64(256) {
				list = append(list, p)
			}
		}
		n := len(list) * len(list)
		a, b, dst := make([]byte, n*typ.Size()), make([]byte, n*typ.Size()), make([]byte, n*typ.Size())
		for i := range n {
			store(typ, a, i, list[i/len(list)])
			store(typ, b, i, list[i%len(list)])
		}
		for op := range Op(opsCount) {
			k := mustKernel(t, typ, op, 2)
			k.Reduce(dst, [][]byte{a, b})
			for _, resultBytes := range []int{0, streamBytes} {
				first, second := newBuffer(len(dst), 0).body, newBuffer(len(dst), 0).body
				further := k.Streaming(resultBytes)
				further.ReduceTo([][]byte{first, second}, [][]byte{a, b})
				requireSame(t, typ, op == Max || op == Min, first, dst)
				require.True(t, bytes.Equal(first, second))
			}
			for i := range n {
				x, y := list[i/len(list)], list[i%len(list)]
				got, want := load(typ, dst, i), modelReduce(typ, op, []uint64{x, y})
				if !same(typ, op == Max || op == Min, got, want) {
					t.Fatalf("%v %v of %#x and %#x is %#x, want %#x", typ, op, x, y, got, want)
				}
			}
		}
	}
}

// A NaN anywhere gives the same bits whatever the order and the grouping.
func TestMaxAndMinDoNotDependOnOrder(t *testing.T) {
	rng := seeded(t)
	for _, typ := range dtype.All() {
		list := specials(typ)
		for _, op := range []Op{Max, Min} {
			k := mustKernel(t, typ, op, 4)
			for range 300 {
				srcs := make([][]byte, 4)
				for i := range srcs {
					srcs[i] = make([]byte, typ.Size())
					store(typ, srcs[i], 0, list[rng.IntN(len(list))])
				}
				one, two, left, right := make([]byte, 8)[:typ.Size()], make([]byte, typ.Size()), make([]byte, typ.Size()), make([]byte, typ.Size())
				k.Reduce(one, srcs)
				k.Reduce(left, [][]byte{srcs[3], srcs[1]})
				k.Reduce(right, [][]byte{srcs[2], srcs[0]})
				k.Reduce(two, [][]byte{right, left})
				require.Equal(t, one, two, "%v %v of %x", typ, op, srcs)
			}
		}
	}
}

// Small floats keep what a rounding after every operand would lose.
func TestSmallFloatsRoundOncePerCall(t *testing.T) {
	for _, typ := range []dtype.Type{dtype.Half, dtype.Bfloat, dtype.F8E4M3, dtype.F8E5M2} {
		f := formats[typ]
		ulp := math.Ldexp(1, -f.fraction) // of 1
		one, half, dst := make([]byte, typ.Size()), make([]byte, typ.Size()), make([]byte, typ.Size())
		store(typ, one, 0, f.encode(1))
		store(typ, half, 0, f.encode(ulp/2))
		k := mustKernel(t, typ, Sum, 3)
		k.Reduce(dst, [][]byte{one, half, half})
		require.Equal(t, f.encode(1+ulp), load(typ, dst, 0), "%v: 1 + ulp/2 + ulp/2", typ)
		k.Reduce(dst, [][]byte{one, half})
		k.Reduce(dst, [][]byte{dst, half})
		require.Equal(t, f.encode(1), load(typ, dst, 0), "%v: in two calls", typ)
	}
}

func TestPreMultipliesByTheScalar(t *testing.T) {
	rng := seeded(t)
	for _, typ := range dtype.All() {
		list := specials(typ)
		for round := range 60 {
			scalar := Scalar{typ, draw(rng, typ, list)}
			k, err := For(typ, PreMulSum, 2, Scalar{typ, scalar.Bits | ^(uint64(math.MaxUint64) >> (64 - 8*typ.Size()))})
			require.NoError(t, err)
			require.True(t, k.HasPre())
			require.False(t, k.HasPost())
			checkPre(t, rng, k, scalar.Bits, round)
		}
	}
}

func TestAvgOfFloatsPreMultiplies(t *testing.T) {
	rng := seeded(t)
	for _, typ := range dtype.All() {
		if typ.Integer() {
			continue
		}
		for i, ranks := range []int{1, 2, 3, 5, 7, 17, 1000, 1025, 65537} {
			k := mustKernel(t, typ, Avg, ranks)
			require.True(t, k.HasPre())
			require.False(t, k.HasPost())
			requireNearestQuotient(t, typ, k.scalar, ranks)
			checkPre(t, rng, k, k.scalar, i)
		}
	}
}

// requireNearestQuotient compares 1/ranks with bits and both its neighbours, exactly.
func requireNearestQuotient(t *testing.T, typ dtype.Type, bits uint64, ranks int) {
	t.Helper()
	distance := func(p uint64) *big.Rat {
		v := new(big.Rat).SetFloat64(formats[typ].decode(p))
		return v.Abs(v.Sub(v, big.NewRat(1, int64(ranks))))
	}
	d := distance(bits)
	require.LessOrEqual(t, d.Cmp(distance(bits+1)), 0, "%v: 1/%d", typ, ranks)
	if bits > 0 {
		require.LessOrEqual(t, d.Cmp(distance(bits-1)), 0, "%v: 1/%d", typ, ranks)
	}
}

func checkPre(t *testing.T, rng *rand.Rand, k Kernel, scalar uint64, round int) {
	t.Helper()
	k.stages = round%4 == 3
	n := []int{0, 1, 7, 100, blockBytes + 5}[rng.IntN(5)]
	xs, list := make([]uint64, n), specials(k.typ)
	src, dst := newBuffer(n*k.size, rng.IntN(16)), newBuffer(n*k.size, rng.IntN(16))
	for i := range xs {
		xs[i] = draw(rng, k.typ, list)
		store(k.typ, src.body, i, xs[i])
	}
	if round%2 == 1 {
		dst = src
	}
	k.Pre(dst.body, src.body)
	require.True(t, src.guardsIntact() && dst.guardsIntact())
	for i, x := range xs {
		if got, want := load(k.typ, dst.body, i), modelScale(k.typ, x, scalar); !same(k.typ, false, got, want) {
			t.Fatalf("%v: %#x times %#x is %#x, want %#x", k.typ, x, scalar, got, want)
		}
		if round%2 == 0 {
			if load(k.typ, src.body, i) != x {
				t.Fatalf("%v: Pre changed its source", k.typ)
			}
		}
	}
}

func TestAvgOfIntegersDividesTowardZero(t *testing.T) {
	rng := seeded(t)
	for _, typ := range dtype.All() {
		if !typ.Integer() {
			continue
		}
		list := specials(typ)
		for i, ranks := range []int{1, 2, 3, 7, 127, 128, 200, 256, 300, 65536, math.MaxInt32} {
			k := mustKernel(t, typ, Avg, ranks)
			require.False(t, k.HasPre())
			require.True(t, k.HasPost())
			k.stages = i%2 == 1
			const n = 300
			xs, buf := make([]uint64, n), newBuffer(n*k.size, rng.IntN(16))
			for e := range xs {
				xs[e] = draw(rng, typ, list)
				store(typ, buf.body, e, xs[e])
			}
			k.Post(buf.body)
			require.True(t, buf.guardsIntact())
			for e, x := range xs {
				require.Equal(t, modelDivide(typ, x, ranks), load(typ, buf.body, e), "%v: %#x over %d", typ, x, ranks)
			}
		}
	}
}

func TestWithoutPreAndPostTheBytesPass(t *testing.T) {
	for _, typ := range dtype.All() {
		for _, op := range []Op{Sum, Prod, Max, Min} {
			k := mustKernel(t, typ, op, 5)
			require.False(t, k.HasPre() || k.HasPost())
			src := []byte("sixteen bytes!!!")
			dst := make([]byte, len(src))
			k.Pre(dst, src)
			k.Post(dst)
			require.Equal(t, src, dst)
		}
	}
}

func TestForRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		typ    dtype.Type
		op     Op
		ranks  int
		scalar Scalar
		says   string
	}{
		{"a type that does not exist", 12, Sum, 2, Scalar{}, "dtype(12)"},
		{"an op that does not exist", dtype.Int8, 6, 2, Scalar{}, "op(6)"},
		{"no ranks", dtype.Int8, Sum, 0, Scalar{}, "0 ranks"},
		{"negative ranks", dtype.Int8, Avg, -1, Scalar{}, "-1 ranks"},
		{"a scalar of another type", dtype.Float32, PreMulSum, 2, Scalar{Type: dtype.Float64}, "double"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := For(tc.typ, tc.op, tc.ranks, tc.scalar)
			require.ErrorContains(t, err, tc.says)
		})
	}
	_, err := For(dtype.Float32, Sum, 1, Scalar{Type: dtype.Int8, Bits: 1})
	require.NoError(t, err, "only PreMulSum looks at the scalar")
}

func TestScalarOf(t *testing.T) {
	inf := math.Inf(1)
	for _, tc := range []struct {
		typ  dtype.Type
		f    float64
		want uint64
	}{
		{dtype.Int8, 2.5, 2}, {dtype.Int8, 3.5, 4}, {dtype.Int8, -1, 0xff}, {dtype.Int8, 1e9, 0x7f},
		{dtype.Int8, -1e9, 0x80}, {dtype.Int8, math.NaN(), 0}, {dtype.Uint8, 255.4, 255}, {dtype.Uint8, inf, 255},
		{dtype.Uint8, -3, 0}, {dtype.Uint8, math.NaN(), 0}, {dtype.Int32, -0x1p31, 1 << 31}, {dtype.Int32, 0x1p31, 1<<31 - 1},
		{dtype.Uint32, 0x1p32, 1<<32 - 1}, {dtype.Int64, 0x1p63, 1<<63 - 1}, {dtype.Int64, -inf, 1 << 63},
		{dtype.Int64, -0x1p62, 3 << 62}, {dtype.Uint64, 0x1p63, 1 << 63}, {dtype.Uint64, 0x1p64, math.MaxUint64},
		{dtype.Float32, 1.5, 0x3fc00000}, {dtype.Float64, -2, 0xc000000000000000},
		{dtype.Half, 1 + 0x1p-11 + 0x1p-40, 0x3c01}, {dtype.Bfloat, 1 + 0x1p-8 + 0x1p-40, 0x3f81},
		{dtype.F8E4M3, inf, 0x7e}, {dtype.F8E5M2, -0.5, 0xb8},
	} {
		require.Equal(t, Scalar{tc.typ, tc.want}, ScalarOf(tc.typ, tc.f), "%v of %g", tc.typ, tc.f)
	}
}

func TestNothingAllocates(t *testing.T) {
	for _, typ := range dtype.All() {
		for op := range Op(opsCount) {
			k := mustKernel(t, typ, op, 3)
			a, b, c, d := make([]byte, 4096), make([]byte, 4096), make([]byte, 4096), make([]byte, 4096)
			staged := k
			staged.stages = true
			require.Zero(t, testing.AllocsPerRun(10, func() {
				k.Reduce(a, [][]byte{a, b})
				k.Reduce(a, [][]byte{b, c, d})
				k.Reduce(a, [][]byte{d, c, b, a})
				k.ReduceTo([][]byte{a, b}, [][]byte{a, b})
				k.ReduceTo([][]byte{d, a, b}, [][]byte{a, b, c, d})
				streaming := k.Streaming(streamBytes)
				streaming.ReduceTo([][]byte{a, b}, [][]byte{c, d})
				streaming.ReduceTo([][]byte{d}, [][]byte{a, b, c})
				Copy(a, b, streamBytes)
				k.Pre(a, b)
				k.Post(a)
				staged.ReduceTo([][]byte{a[1:4089], d[:4088]}, [][]byte{b[:4088], c[:4088]})
				staged.Reduce(a[1:4089], [][]byte{b[:4088], c[:4088]})
				staged.Pre(a[1:4089], b[:4088])
				staged.Post(a[1:4089])
			}), "%v %v", typ, op)
		}
	}
}

func FuzzReduce(f *testing.F) {
	f.Add([]byte("\x00\x00\xc0\x7f\x01\x00\x80\x7f\x00\x00\x00\x80"), uint8(7), uint8(2), uint8(2), uint8(0), uint8(1), false)
	f.Add(bytes.Repeat([]byte{0xff, 0x7c, 0x80}, 400), uint8(6), uint8(0), uint8(4), uint8(3), uint8(3), true)
	f.Fuzz(func(t *testing.T, raw []byte, typ, op, operands, inPlace, align uint8, staged bool) {
		dt, o, n := dtype.Type(typ%12), Op(op%opsCount), 1+int(operands%5)
		k := mustKernel(t, dt, o, n)
		k.stages = k.stages || staged
		elements := len(raw) / n / k.size
		srcs := make([][]byte, n)
		for i := range srcs {
			b := newBuffer(elements*k.size, int(align+uint8(i))%16)
			copy(b.body, raw[i*elements*k.size:])
			srcs[i] = b.body
		}
		want := make([]uint64, elements)
		for e := range want {
			xs := make([]uint64, n)
			for i := range xs {
				xs[i] = load(dt, srcs[i], e)
			}
			want[e] = modelReduce(dt, o, xs)
		}
		dst := newBuffer(elements*k.size, int(align>>4)).body
		if at := int(inPlace) % (n + 1); at < n {
			dst = srcs[at]
		}
		k.Reduce(dst, srcs)
		for e := range want {
			if got := load(dt, dst, e); !same(dt, o == Max || o == Min || n == 1, got, want[e]) {
				t.Fatalf("%v %v: element %d is %#x, want %#x", dt, o, e, got, want[e])
			}
		}
	})
}
