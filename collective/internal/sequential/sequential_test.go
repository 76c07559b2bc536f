package sequential

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/bench/perf/verify"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// Two models that were written apart agree on data whose result has no order.
func TestReductionsAgreeWithTheGeneratorsOfTestData(t *testing.T) {
	const count = 300
	for _, typ := range dtype.All() {
		for op := reduce.Sum; op.Valid(); op++ {
			for _, n := range []int{1, 2, 3, 8, 17} {
				data := verify.Reduction{Type: typ, Op: op, Ranks: n, Seed: 9}
				call := Call{Kind: plan.AllReduce, Type: typ, Op: op, Count: count}
				send := make([][]byte, n)
				for rank := range send {
					send[rank] = make([]byte, count*typ.Size())
					data.Input(send[rank], rank, 0)
					call.Scalars = append(call.Scalars, data.Scalar(rank).Bits)
				}
				want := make([]byte, count*typ.Size())
				data.Result(want, 0)
				got := call.Received(0, send)[0].Data
				assert.Zero(t, verify.Wrong(got, want, typ.Size()), "%v %v over %d ranks", typ, op, n)
			}
		}
	}
}

func TestEveryNumberOfASmallFormatSurvivesDecodingAndRounding(t *testing.T) {
	for _, typ := range []dtype.Type{dtype.Half, dtype.Bfloat, dtype.F8E4M3, dtype.F8E5M2} {
		f := formatOf(typ)
		for bits := range uint64(1) << f.bits {
			if x := f.value(bits); !math.IsNaN(x) && !math.IsInf(x, 0) {
				require.Equal(t, bits, f.round(x), "%v %#x is %v", typ, bits, x)
			}
		}
	}
}

func TestMinAndMaxPropagateNaNAndOrderZeros(t *testing.T) {
	for _, typ := range dtype.All() {
		f := formatOf(typ)
		if !f.float {
			continue
		}
		t.Run(fmt.Sprint(typ), func(t *testing.T) {
			minus, one := uint64(1)<<(f.bits-1), f.round(1)
			assert.Equal(t, f.nan(), f.combine(reduce.Max, f.nan()|minus, one))
			assert.Equal(t, f.nan(), f.combine(reduce.Min, one, f.nan()))
			assert.Equal(t, minus, f.combine(reduce.Min, 0, minus))
			assert.Equal(t, minus, f.combine(reduce.Min, minus, 0))
			assert.Equal(t, uint64(0), f.combine(reduce.Max, 0, minus))
			assert.Equal(t, one|minus, f.combine(reduce.Min, one, one|minus))
		})
	}
}

func TestBlocksOfRanksGoWhereTheyBelong(t *testing.T) {
	// Two ranks, blocks of two bytes: rank 0 has 1 2 3 4, rank 1 has 5 6 7 8.
	send := [][]byte{{1, 2, 3, 4}, {5, 6, 7, 8}}
	for _, tc := range []struct {
		call  Call
		ranks [2][]byte
	}{
		{Call{Kind: plan.AllReduce}, [2][]byte{{6, 8}, {6, 8}}},
		{Call{Kind: plan.Reduce, Root: 1}, [2][]byte{nil, {6, 8}}},
		{Call{Kind: plan.Broadcast, Root: 1}, [2][]byte{{5, 6}, {5, 6}}},
		{Call{Kind: plan.AllGather}, [2][]byte{{1, 2, 5, 6}, {1, 2, 5, 6}}},
		{Call{Kind: plan.ReduceScatter}, [2][]byte{{6, 8}, {10, 12}}},
		{Call{Kind: plan.AlltoAll}, [2][]byte{{1, 2, 5, 6}, {3, 4, 7, 8}}},
		{Call{Kind: plan.Gather, Root: 1}, [2][]byte{nil, {1, 2, 5, 6}}},
		{Call{Kind: plan.Scatter, Root: 1}, [2][]byte{{5, 6}, {7, 8}}},
		{Call{Kind: plan.Send, Root: 1}, [2][]byte{{5, 6}, {1, 2}}},
		{Call{Kind: plan.Barrier}, [2][]byte{nil, nil}},
	} {
		tc.call.Type, tc.call.Count = dtype.Uint8, 2
		for rank, want := range tc.ranks {
			var got []byte
			for _, piece := range tc.call.Received(rank, send) {
				assert.Zero(t, piece.Offset)
				got = append(got, piece.Data...)
			}
			assert.Equal(t, want, got, "%v at rank %d", tc.call.Kind, rank)
		}
	}
	vectors := Call{
		Kind: plan.AlltoAllv, Type: dtype.Uint8,
		Counts:      [][]int{{1, 2}, {0, 1}},
		SendOffsets: [][]int{{3, 0}, {0, 2}},
		RecvOffsets: [][]int{{4, 0}, {1, 5}},
	}
	assert.Equal(t, []Piece{{4, []byte{4}}, {0, []byte{}}}, vectors.Received(0, send))
	assert.Equal(t, []Piece{{1, []byte{1, 2}}, {5, []byte{7}}}, vectors.Received(1, send))
	assert.Equal(t, 6, vectors.RecvBytes(1, 2))
	assert.Equal(t, 4, vectors.SendBytes(0, 2))
}
