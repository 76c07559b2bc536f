package plan_test

import (
	"math/bits"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

func TestSpecString(t *testing.T) {
	for want, s := range map[string]plan.Spec{
		"AllReduce(count 1024, float, sum)":      {Type: dtype.Float32, Count: 1024},
		"Broadcast(count 5, int8, root 2)":       {Kind: plan.Broadcast, Count: 5, Root: 2},
		"Reduce(count 5, half, mulsum, root 0)":  {Kind: plan.Reduce, Type: dtype.Half, Op: reduce.PreMulSum, Count: 5},
		"Send(count 3, half, to 1)":              {Kind: plan.Send, Type: dtype.Half, Count: 3, Root: 1},
		"Recv(count 3, half, from 1)":            {Kind: plan.Recv, Type: dtype.Half, Count: 3, Root: 1},
		"AllGather(count 3, double)":             {Kind: plan.AllGather, Type: dtype.Float64, Count: 3},
		"ReduceScatter(count 3, uint64, max)":    {Kind: plan.ReduceScatter, Type: dtype.Uint64, Op: reduce.Max, Count: 3},
		"AlltoAllv(bfloat16)":                    {Kind: plan.AlltoAllv, Type: dtype.Bfloat},
		"Scatter(count 1, f8e4m3, root 0)":       {Kind: plan.Scatter, Type: dtype.F8E4M3, Count: 1},
		"Barrier()":                              {Kind: plan.Barrier},
		"Kind(99)(count 0, int8)":                {Kind: 99},
		"AllReduce(count -1, dtype(77), op(66))": {Type: 77, Op: 66, Count: -1},
		"Gather(count 9, f8e5m2, root -4)":       {Kind: plan.Gather, Type: dtype.F8E5M2, Count: 9, Root: -4},
		"AlltoAll(count 1099511627776, int32)":   {Kind: plan.AlltoAll, Type: dtype.Int32, Count: 1 << 40},
	} {
		require.Equal(t, want, s.String())
	}
}

func TestNamesParseBack(t *testing.T) {
	for _, k := range allKinds {
		got, err := plan.ParseKind(k.String())
		require.NoError(t, err)
		require.Equal(t, k, got)
	}
	for name, want := range map[string]plan.Kind{
		"all_reduce": plan.AllReduce, "all_gather": plan.AllGather, "reduce_scatter": plan.ReduceScatter,
		"broadcast": plan.Broadcast, "reduce": plan.Reduce, "alltoall": plan.AlltoAll,
		"alltoallv": plan.AlltoAllv, "gather": plan.Gather, "scatter": plan.Scatter, "barrier": plan.Barrier,
	} {
		got, err := plan.ParseKind(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for a := plan.AutoAlgorithm; a <= plan.PointToPoint; a++ {
		got, err := plan.ParseAlgorithm(strings.ToUpper(a.String()))
		require.NoError(t, err)
		require.Equal(t, a, got)
	}
	for p := plan.AutoProtocol; p <= plan.LL128; p++ {
		got, err := plan.ParseProtocol(strings.ToUpper(p.String()))
		require.NoError(t, err)
		require.Equal(t, p, got)
	}
	_, err := plan.ParseKind("sendrecv")
	require.ErrorContains(t, err, `unknown collective "sendrecv"`)
	_, err = plan.ParseAlgorithm("oneway")
	require.ErrorContains(t, err, "want one of auto, ring, tree, p2p")
	_, err = plan.ParseProtocol("")
	require.ErrorContains(t, err, "want one of auto, simple, ll, ll128")
	require.Equal(t, "Action(99) Algorithm(99) Protocol(99)", strings.Join([]string{
		plan.Action(99).String(), plan.Algorithm(99).String(), plan.Protocol(99).String()}, " "))
}

func TestFingerprintsTellCallsApart(t *testing.T) {
	seen := make(map[uint64]plan.Spec)
	add := func(s plan.Spec) {
		f := s.Fingerprint()
		require.NotZero(t, f)
		if other, ok := seen[f]; ok {
			require.Equal(t, other, s, "same fingerprint")
		}
		seen[f] = s
		s.InPlace = true
		require.Equal(t, f, s.Fingerprint(), "InPlace may differ between ranks")
	}
	for _, kind := range allKinds[:11] {
		for _, dt := range dtype.All() {
			for op := reduce.Sum; op <= reduce.PreMulSum; op++ {
				for _, count := range []int{0, 1, 2, 3, 255, 256, 1 << 16, 1 << 32, 1<<32 + 1} {
					for root := range 4 {
						add(plan.Spec{Kind: kind, Type: dt, Op: op, Count: count, Root: root})
					}
				}
			}
		}
	}
	add(plan.Spec{Kind: plan.Barrier})
	require.Equal(t, plan.Spec{Kind: plan.Barrier}.Fingerprint(),
		plan.Spec{Kind: plan.Barrier, Type: dtype.Uint8, Count: 1}.Fingerprint(), "as Build returns it")
}

// Any bit of any field changes about half of the bits, so a few bits serve as
// well as all.
func TestFingerprintBitsAreMixed(t *testing.T) {
	base := plan.Spec{Type: dtype.Float32, Count: 1000, Root: 3}
	for bit := range 48 {
		for _, other := range []plan.Spec{
			{Type: base.Type, Count: base.Count ^ 1<<bit, Root: base.Root},
			{Type: base.Type, Count: base.Count, Root: base.Root ^ 1<<bit},
		} {
			changed := bits.OnesCount64(base.Fingerprint() ^ other.Fingerprint())
			require.InDelta(t, 32, changed, 16, "%v", other)
		}
	}
}
