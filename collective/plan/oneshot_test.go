package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// Whoever combines inputs combines all of them, in the order of the ranks.
func TestOneShotCombinesInTheOrderOfRanks(t *testing.T) {
	for _, kind := range []plan.Kind{plan.AllReduce, plan.Reduce} {
		for size := 2; size <= 17; size++ {
			for root := range size {
				for rank := range size {
					w := world(rank, size)
					w.Force = plan.Choice{Algorithm: plan.OneShot, Protocol: plan.LL}
					p := build(t, plan.Spec{Kind: kind, Type: dtype.Float32, Count: 100, Root: root}, w)
					th := p.Channels[0].Threads[0]
					if kind == plan.Reduce && rank != root {
						require.Empty(t, th.From)
						continue
					}
					operands := append(append(append([]int(nil), th.From[:th.Own]...), rank), th.From[th.Own:]...)
					for i, operand := range operands {
						require.Equal(t, i, operand, "%v: rank %d of %d combines %v", kind, rank, size, operands)
					}
					require.Len(t, operands, size)
				}
			}
		}
	}
}

// Each input crosses each link it is needed behind once, in one primitive per loop.
func TestOneShotTraffic(t *testing.T) {
	const loops, payload = 3, 64 // bytes, also elements
	for n := 2; n <= 17; n++ {
		for _, tc := range []struct {
			kind                plan.Kind
			sends, recvs, bytes int // of a loop, summed over ranks
		}{
			{plan.AllReduce, n, n, n * (n - 1)},
			{plan.Reduce, n - 1, 1, n - 1},
			{plan.Broadcast, 1, n - 1, n - 1},
		} {
			s, err := simulate(simWorld{size: n, payload: payload, seed: *seedFlag, calls: []simCall{{
				spec:  plan.Spec{Kind: tc.kind, Type: dtype.Uint8, Count: loops * payload, Root: n / 2},
				force: plan.Choice{Algorithm: plan.OneShot, Protocol: plan.LL, Channels: 1},
			}}})
			require.NoError(t, err)
			sends, recvs, bytes := 0, 0, 0
			for rank := range n {
				sends, recvs, bytes = sends+s.sends[rank], recvs+s.recvs[rank], bytes+s.sentElems[rank]
			}
			require.Equal(t, [3]int{loops * tc.sends, loops * tc.recvs, loops * payload * tc.bytes},
				[3]int{sends, recvs, bytes}, "%v n=%d", tc.kind, n)
		}
	}
}

// Only what depends on the order is restricted, and it is never served by anything
// that combines in another.
func TestReproducibleReductionsAreOneShot(t *testing.T) {
	for _, kind := range []plan.Kind{plan.AllReduce, plan.Reduce, plan.ReduceScatter, plan.AllGather, plan.Broadcast, plan.Barrier} {
		for _, typ := range []dtype.Type{dtype.Float32, dtype.Half, dtype.Int32} {
			for _, op := range []reduce.Op{reduce.Sum, reduce.Prod, reduce.Avg, reduce.Max} {
				for _, size := range []int{1, 2, 5, 40} {
					ordered := (kind == plan.AllReduce || kind == plan.Reduce || kind == plan.ReduceScatter) &&
						typ != dtype.Int32 && op != reduce.Max && size > 1
					w := world(0, size)
					s := plan.Spec{Kind: kind, Type: typ, Op: op, Count: 1 << 22}
					free := choose(t, s, w)
					if kind != plan.Barrier {
						require.NotEqual(t, plan.OneShot, free.Algorithm, "too large")
					}
					w.Reproducible = true
					if !ordered {
						require.Equal(t, free, choose(t, s, w))
						continue
					}
					require.Equal(t, plan.OneShot, choose(t, s, w).Algorithm)
					w.Force.Algorithm = plan.Ring
					_, err := plan.Build(s, w)
					require.ErrorIs(t, err, plan.ErrOrder)
					w.Force.Algorithm = plan.AutoAlgorithm
					require.NoError(t, w.Allowed.ParseAlgorithms("^oneshot"))
					_, err = plan.Build(s, w)
					require.ErrorIs(t, err, plan.ErrOrder)
				}
			}
		}
	}
}
