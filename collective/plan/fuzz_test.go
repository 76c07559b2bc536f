package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// Whatever a caller asks for, Build answers with an error or with a plan whose
// every piece lies inside the buffers.
func FuzzBuild(f *testing.F) {
	f.Add(uint8(0), uint8(7), uint8(0), 1000, 0, 4, 1, 0, 64, uint8(1), uint8(2), 3, true, uint64(0))
	f.Add(uint8(3), uint8(8), uint8(0), 1<<40, 0, 33, 2, 4, 16, uint8(0), uint8(0), 0, true, uint64(0x123456789abcdef1))
	f.Add(uint8(5), uint8(1), uint8(9), 0, -1, 1, 0, 0, 0, uint8(2), uint8(9), -5, false, uint64(7))
	f.Add(uint8(4), uint8(0), uint8(2), 1<<62, 0, 2, 0, 0, 1<<20, uint8(1), uint8(1), 64, true, uint64(2))
	f.Fuzz(func(t *testing.T, kind, typ, op uint8, count, root, size, rank, perNode, payload int,
		alg, proto uint8, channels int, ordered bool, hosts uint64) {
		if size > 1<<10 || channels > 1<<10 || payload > 1<<30 {
			t.Skip("memory for the plan itself")
		}
		w := plan.World{
			Rank: rank, Size: size, RanksPerNode: perNode, OrderedStores: ordered,
			Payload:    [4]int{0, payload, payload, payload},
			P2PPayload: [4]int{0, payload, payload, 0},
			Force:      plan.Choice{Algorithm: plan.Algorithm(alg), Protocol: plan.Protocol(proto), Channels: channels},
		}
		if hosts != 0 {
			w.Hosts, w.Carried = topo.HostsOf(fuzzedHosts(hosts, size)), hosts%2 == 0
			w.Cores, w.Sharers = int(hosts>>60), int(hosts>>56&15)
		}
		s := plan.Spec{Kind: plan.Kind(kind), Type: dtype.Type(typ), Op: reduce.Op(op), Count: count, Root: root}
		p, err := plan.Build(s, w)
		if err != nil {
			return
		}
		for _, ch := range p.Channels {
			for _, tr := range ch.Transfers {
				require.True(t, tr.Offset >= 0 && tr.Bytes >= 0 && tr.Offset+tr.Bytes >= tr.Offset && tr.Chunk > 0)
			}
			for i := range ch.Threads {
				checkPieces(t, p, &ch.Threads[i])
			}
		}
		require.NotEmpty(t, p.String())
	})
}

// fuzzedHosts gives each rank one of up to 16 hosts, and sometimes leaves one out.
func fuzzedHosts(hosts uint64, size int) []uint64 {
	keys := make([]uint64, 0, max(size, 0))
	for rank := hosts % 16 / 15; rank < uint64(max(size, 0)); rank++ {
		keys = append(keys, hosts>>(4*rank%64)&15)
	}
	return keys
}

// checkPieces looks at the first, a middle and the last loop of a thread.
func checkPieces(t *testing.T, p *plan.Plan, th *plan.Thread) {
	loops := th.Loops()
	require.Positive(t, loops)
	for _, loop := range []int{0, loops / 2, loops - 1} {
		for _, st := range th.Steps {
			for _, block := range []int{st.In, st.Out} {
				if block == plan.None {
					continue
				}
				offset, n := th.Range(loop, block)
				end := th.End + block*th.Stride
				require.True(t, n >= 0 && n <= th.Chunk && offset >= th.Begin && offset+n <= end,
					"%v: [%d,+%d) in a part [%d,%d)", p.Spec, offset, n, th.Begin, th.End)
			}
		}
	}
}
