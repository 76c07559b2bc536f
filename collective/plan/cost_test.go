package plan_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/dtype"
)

// hosts is a world of ranks that are dealt out to hosts cyclically, with a core
// for each block.
func hosts(ranks, count int) plan.World {
	w := world(0, ranks)
	w.MaxChannels = 1
	w.Hosts = topo.HostsOf(dealt(ranks, count))
	return w
}

// NCCL: ncclTopoTuneModel in src/graph/tuning.cc. The hops of each kind, counted
// by hand.
func TestLatencyIsTheSumOfItsHops(t *testing.T) {
	carried := hosts(8, 2)
	carried.Carried = true
	ragged := world(0, 8)
	ragged.Hosts = topo.HostsOf([]int{0, 0, 0, 0, 0, 0, 1, 2})
	virtual := hosts(16, 2)
	virtual.RanksPerNode = 2
	for _, tc := range []struct {
		name            string
		kind            plan.Kind
		alg             plan.Algorithm
		world           plan.World
		inside, between float64 // hops
	}{
		{"oneshot", plan.AllReduce, plan.OneShot, hosts(8, 1), 1, 0},
		{"oneshot AllGather", plan.AllGather, plan.OneShot, hosts(8, 1), 1, 0},
		{"oneshot between hosts", plan.Reduce, plan.OneShot, hosts(8, 2), 0, 1},
		{"oneshot over the wire", plan.AllReduce, plan.OneShot, carried, 0, 1},
		{"ring AllReduce", plan.AllReduce, plan.Ring, hosts(8, 2), 14 - 2, 2},
		{"ring AllReduce of hosts of one rank", plan.AllReduce, plan.Ring, hosts(4, 4), 0, 6},
		{"ring AllGather", plan.AllGather, plan.Ring, hosts(8, 4), 7 - 3, 3},
		{"ring ReduceScatter", plan.ReduceScatter, plan.Ring, hosts(8, 2), 7 - 1, 1},
		{"ring Broadcast", plan.Broadcast, plan.Ring, hosts(8, 2), 8 - 1, 1},
		{"ring over the wire", plan.AllReduce, plan.Ring, carried, 0, 14},
		{"ring, one host", plan.AllReduce, plan.Ring, hosts(8, 1), 14, 0},
		{"tree", plan.AllReduce, plan.Tree, hosts(8, 2), 2 * 3, 2 * 1},
		{"tree of hosts of one rank", plan.AllReduce, plan.Tree, hosts(8, 8), 0, 2 * 3},
		{"tree over the wire", plan.AllReduce, plan.Tree, carried, 0, 2 * 4},
		{"tree, one host", plan.AllReduce, plan.Tree, hosts(8, 1), 2 * 7, 0},
		{"tree, the longest chain counts", plan.AllReduce, plan.Tree, ragged, 2 * 5, 2 * 1},
		// 8 nodes of two ranks on two hosts.
		{"tree of virtual nodes", plan.AllReduce, plan.Tree, virtual, 2 * (1 + 2), 2 * 1},
	} {
		for _, p := range protocols {
			inside, _ := plan.MemoryHop(p)
			between, _ := plan.WireHop(p)
			got := plan.Spec{Kind: tc.kind, Type: dtype.Uint8}.Micros(tc.world, tc.alg, p)
			if tc.alg == plan.OneShot {
				memory, wire := plan.PeerMicros()
				got -= 7 * (tc.inside*memory + tc.between*wire)
			}
			require.InDelta(t, tc.inside*inside+tc.between*between, got, 1e-9, "%s, %v", tc.name, p)
		}
	}
}

// Ranks that share a core take turns in the steps of a ring; the wire's latency is
// not their work.
func TestCrowdedHosts(t *testing.T) {
	s := plan.Spec{Type: dtype.Uint8}
	w := hosts(8, 2)
	w.Cores = 1
	four := world(0, 4)
	four.Cores = 1
	sixteen := world(0, 16)
	sixteen.Cores, sixteen.Sharers = 1, 4
	for _, p := range protocols {
		inside, _ := plan.MemoryHop(p)
		between, _ := plan.WireHop(p)
		// 6 steps with 4 ranks on the core each.
		turn := s.Micros(four, plan.Ring, p) / 6
		require.Greater(t, turn, 4*inside)
		require.InDelta(t, 14*turn+2*(between-inside), s.Micros(w, plan.Ring, p), 1e-9)
		require.InDelta(t, 30*turn, s.Micros(sixteen, plan.Ring, p), 1e-9, "as many as share")
	}
}

// A channel's bytes pass at the pace of its slowest link, as often as its ring or
// tree makes them.
func TestTheSlowestLinkPacesTheBytes(t *testing.T) {
	const bytes = 1 << 30
	s := plan.Spec{Type: dtype.Uint8, Count: bytes}
	for _, p := range protocols {
		_, in := plan.MemoryHop(p)
		_, out := plan.WireHop(p)
		require.LessOrEqual(t, out, in)
		empty := plan.Spec{Type: dtype.Uint8}
		pace := func(w plan.World, a plan.Algorithm) float64 {
			return bytes / 1000 / (s.Micros(w, a, p) - empty.Micros(w, a, p)) // GB/s
		}
		carried := world(0, 8)
		carried.Carried, carried.MaxChannels = true, 1
		require.InEpsilon(t, in*8/14, pace(hosts(8, 1), plan.Ring), 1e-6)
		require.InEpsilon(t, out*8/14, pace(hosts(8, 2), plan.Ring), 1e-6)
		require.InEpsilon(t, out*8/14, pace(carried, plan.Ring), 1e-6)
		require.InEpsilon(t, out*0.92/2, pace(hosts(8, 2), plan.Tree), 1e-6)
		// 4 ranks of a host on 2 cores run half a block each. The one that sends
		// to the other host can have a core when it needs it.
		crowded := hosts(8, 2)
		crowded.Cores = 2
		require.InEpsilon(t, min(in/2, out)*8/14, pace(crowded, plan.Ring), 1e-6)
		crowded.Carried = true
		require.InEpsilon(t, out/2*8/14, pace(crowded, plan.Ring), 1e-6)
	}
}

// Taking ranks from a host to another, or memory away, never makes a call faster.
func TestTheWireIsNeverFaster(t *testing.T) {
	t.Logf("seed %d", *seedFlag)
	rng := rand.New(rand.NewPCG(*seedFlag, 5))
	for range 500 {
		size := 2 + rng.IntN(32)
		w := world(0, size)
		s := plan.Spec{Kind: plan.Kind(rng.IntN(5)), Type: dtype.Uint8, Count: rng.IntN(1 << rng.IntN(30))}
		one, several, carried := w, w, w
		several.Hosts = topo.HostsOf(dealt(size, 2+rng.IntN(size-1)))
		carried.Carried = true
		for _, p := range protocols {
			fast, mixed, slow := s.Micros(one, plan.Ring, p), s.Micros(several, plan.Ring, p), s.Micros(carried, plan.Ring, p)
			require.LessOrEqual(t, fast, mixed, "%v %+v", s, several)
			require.LessOrEqual(t, mixed, slow*(1+1e-9), "%v %+v", s, several)
		}
	}
}
