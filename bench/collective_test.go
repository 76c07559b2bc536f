package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/cpuid/v2"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/bench/perf"
	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

var (
	sizesFlag = flag.String("sizes", "8,1K,32K,1M", "sizes of the benchmarked operations, in bytes")
	ranksFlag = flag.String("ranks", "2,4", "numbers of ranks")
	setFlag   = flag.String("working-set", "", "memory that the buffers of all ranks rotate over (default: twice the last-level cache)")
)

// setup is what a benchmark fixes besides the size.
type setup struct {
	collective string
	ranks      int
	algorithm  plan.Algorithm
	protocol   plan.Protocol
}

// setups is the matrix: every algorithm with every protocol that the collective
// has, and the library's own choice.
func setups(ranks []int) []setup {
	var all []setup
	for _, name := range perf.Collectives() {
		shape, err := perf.ShapeOf(name, 8, 4, 2)
		if err != nil {
			panic(err) // of a name that perf has just told
		}
		algorithms, protocols := []plan.Algorithm{plan.Ring}, []plan.Protocol{plan.Simple, plan.LL, plan.LL128}
		switch shape.Kind {
		case plan.AllReduce:
			algorithms = append(algorithms, plan.Tree, plan.OneShot)
		case plan.Broadcast, plan.Reduce, plan.AllGather, plan.ReduceScatter:
			algorithms = append(algorithms, plan.OneShot)
		default: // point to point: no algorithms, no LL128
			algorithms, protocols = []plan.Algorithm{plan.AutoAlgorithm}, []plan.Protocol{plan.Simple, plan.LL}
		}
		for _, n := range ranks {
			all = append(all, setup{name, n, plan.AutoAlgorithm, plan.AutoProtocol})
			for _, a := range algorithms {
				for _, p := range protocols {
					all = append(all, setup{name, n, a, p})
				}
			}
		}
	}
	return all
}

func BenchmarkCollective(b *testing.B) {
	sizes, ranks := list(b, *sizesFlag), list(b, *ranksFlag)
	slab := newSlab(b, ranks, sizes)
	for _, s := range setups(ranks) {
		name := fmt.Sprintf("coll=%s/ranks=%d/algo=%v/proto=%v", s.collective, s.ranks, s.algorithm, s.protocol)
		b.Run(name, func(b *testing.B) {
			team := open(b, s)
			defer team.close()
			for _, size := range sizes {
				shape, err := perf.ShapeOf(s.collective, size, dtype.Float32.Size(), s.ranks)
				require.NoError(b, err)
				if shape.Moved == 0 {
					continue // less than 16 bytes for each rank: an empty operation
				}
				b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) { team.benchmark(b, slab, size) })
			}
		})
	}
}

func list(b testing.TB, text string) []int {
	var all []int
	for item := range strings.SplitSeq(text, ",") {
		n, err := perf.ParseSize(item)
		require.NoError(b, err)
		all = append(all, n)
	}
	return all
}

// newSlab makes each rank's part of the working set, at least one pair of buffers
// of the largest size.
func newSlab(b testing.TB, ranks, sizes []int) [][]byte {
	most, largest := 0, 0
	for _, n := range ranks {
		most = max(most, n)
	}
	for _, size := range sizes {
		largest = max(largest, size)
	}
	total := 2 * max(cpuid.CPU.Cache.L3, 8<<20)
	if *setFlag != "" {
		var err error
		total, err = perf.ParseSize(*setFlag)
		require.NoError(b, err)
	}
	total = min(total, 1<<30)
	slab := make([][]byte, most)
	for rank := range slab {
		slab[rank] = make([]byte, max(total/most, 2*(largest+lineBytes)))
		for i := 0; i < len(slab[rank]); i += 4096 {
			slab[rank][i] = 1 // the page exists
		}
	}
	return slab
}

const lineBytes = 128

// team are the ranks of an open communicator.
type team struct {
	setup
	comms []*collective.Comm
}

func open(b testing.TB, s setup) *team {
	comms, err := collective.InitAllConfig(s.ranks, collective.Config{Algorithm: s.algorithm, Protocol: s.protocol})
	require.NoError(b, err)
	return &team{s, comms}
}

func (t *team) close() {
	for _, c := range t.comms {
		c.Close()
	}
}

// member is one rank of a benchmark.
type member struct {
	comm   *collective.Comm
	shape  perf.Shape
	memory []byte
	calls  []collective.Call
	group  *collective.Group // where there are several calls
	stride int               // bytes of a pair of buffers, in whole lines
	pairs  int
}

func (t *team) member(b testing.TB, rank, size int, memory []byte) *member {
	shape, err := perf.ShapeOf(t.collective, size, dtype.Float32.Size(), t.ranks)
	require.NoError(b, err)
	m := &member{comm: t.comms[rank], shape: shape, memory: memory, group: collective.NewGroup()}
	m.stride = lines(shape.SendBytes) + lines(shape.RecvBytes)
	m.pairs = max(1, len(memory)/max(1, m.stride))
	call := collective.Call{Kind: shape.Kind, Type: dtype.Float32, Op: collective.Sum, Count: shape.Count}
	switch shape.Kind {
	case plan.Send:
		call.Root = (rank + 1) % t.ranks
		back := call
		back.Kind, back.Root = plan.Recv, (rank+t.ranks-1)%t.ranks
		m.calls = append(m.calls, call, back)
		return m
	case plan.AlltoAllv: // as alltoall: what is measured is the call's generality
		counts, offsets := make([]int, t.ranks), make([]int, t.ranks)
		for peer := range counts {
			counts[peer], offsets[peer] = shape.Count, peer*shape.Count
		}
		call.SendCounts, call.SendOffsets, call.RecvCounts, call.RecvOffsets = counts, offsets, counts, offsets
	}
	m.calls = append(m.calls, call)
	return m
}

// lines is bytes rounded up to whole cache lines.
func lines(bytes int) int { return (bytes + lineBytes - 1) / lineBytes * lineBytes }

// do makes the i-th operation, in the i-th pair of buffers.
func (m *member) do(ctx context.Context, i int) error {
	at := i % m.pairs * m.stride
	for c := range m.calls {
		call := &m.calls[c]
		call.Send = m.memory[at:][:m.shape.SendBytes]
		call.Recv = m.memory[at+lines(m.shape.SendBytes):][:m.shape.RecvBytes]
	}
	if len(m.calls) == 1 {
		return m.comm.Do(ctx, m.calls[0])
	}
	for _, call := range m.calls {
		if err := m.group.Add(m.comm, call); err != nil {
			return err
		}
	}
	return m.group.Run(ctx)
}

func (m *member) barrier(ctx context.Context) error {
	return m.comm.Do(ctx, collective.Call{Kind: plan.Barrier})
}

// together runs n operations of every rank. Rank 0 is the caller, which is told
// when all ranks are about to start and when all have ended.
func together(members []*member, n int, started, ended func()) error {
	ctx := context.Background()
	errs := make([]error, len(members))
	body := func(rank int, started, ended func()) error {
		m := members[rank]
		if err := errors.Join(m.do(ctx, 0), m.barrier(ctx)); err != nil {
			return err
		}
		started()
		for i := range n {
			if err := m.do(ctx, i); err != nil {
				return err
			}
		}
		if err := m.barrier(ctx); err != nil {
			return err
		}
		ended()
		return nil
	}
	var others sync.WaitGroup
	for rank := 1; rank < len(members); rank++ {
		others.Go(func() {
			if errs[rank] = body(rank, func() {}, func() {}); errs[rank] != nil {
				members[rank].comm.Abort()
			}
		})
	}
	if errs[0] = body(0, started, ended); errs[0] != nil {
		members[0].comm.Abort()
	}
	others.Wait()
	return errors.Join(errs...)
}

func (t *team) benchmark(b *testing.B, slab [][]byte, size int) {
	members := make([]*member, t.ranks)
	for rank := range members {
		members[rank] = t.member(b, rank, size, slab[rank])
	}
	shape := members[0].shape
	b.SetBytes(int64(shape.Moved))
	b.ReportAllocs()
	cpu, _ := perf.CPUTime()
	before := t.counters()
	err := together(members, b.N, func() {
		cpu, _ = perf.CPUTime()
		before = t.counters()
		b.ResetTimer()
	}, b.StopTimer)
	require.NoError(b, err)
	end, known := perf.CPUTime()
	after := t.counters()

	n := float64(b.N)
	b.ReportMetric(float64(shape.Moved)*n/b.Elapsed().Seconds()/1e9*shape.BusFactor, "busbw-GB/s")
	if known {
		b.ReportMetric((end-cpu).Seconds()/n, "cpu-s/op")
	}
	if turns := float64(after.Turns - before.Turns); turns > 0 {
		b.ReportMetric((turns-float64(after.Found-before.Found))/turns, "spin-share")
	}
	b.ReportMetric(float64(after.Yields-before.Yields)/n, "yields/op")
	b.ReportMetric(float64(after.Parks-before.Parks)/n, "parks/op")
}

// counters are the ranks' waiting so far.
func (t *team) counters() (sum struct{ Turns, Found, Yields, Parks uint64 }) {
	for _, c := range t.comms {
		s := c.Stats().Block
		sum.Turns += s.Turns
		sum.Found += s.Found
		sum.Yields += s.Yields
		sum.Parks += s.Parks
	}
	return sum
}

// The names are benchstat's: key=value but for the first part.
func TestBenchmarkMatrix(t *testing.T) {
	all := setups([]int{2, 4})
	seen := map[setup]bool{}
	for _, s := range all {
		require.False(t, seen[s], "%+v twice", s)
		seen[s] = true
	}
	require.True(t, seen[setup{"all_reduce", 4, plan.Tree, plan.LL128}])
	require.True(t, seen[setup{"sendrecv", 2, plan.AutoAlgorithm, plan.LL}])
	require.False(t, seen[setup{"all_gather", 2, plan.Tree, plan.LL}])
	require.Len(t, all, 2*(10+4*7+5*3), strconv.Itoa(len(all)))
}
