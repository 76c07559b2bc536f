package plan_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/dtype"
)

var allKinds = []plan.Kind{
	plan.AllReduce, plan.Reduce, plan.Broadcast, plan.AllGather, plan.ReduceScatter,
	plan.AlltoAll, plan.AlltoAllv, plan.Gather, plan.Scatter, plan.Send, plan.Recv, plan.Barrier,
}

// dealt deals ranks out to hosts cyclically.
func dealt(ranks, hosts int) []int {
	keys := make([]int, ranks)
	for rank := range keys {
		keys[rank] = rank % hosts
	}
	return keys
}

func choose(t testing.TB, s plan.Spec, w plan.World) plan.Choice {
	t.Helper()
	c, err := plan.Choose(s, w)
	require.NoError(t, err, "%v %+v", s, w)
	return c
}

// The choice is legal for the call and the same on all ranks, and is what Build
// uses.
func TestRanksChooseAlike(t *testing.T) {
	for _, kind := range allKinds {
		for _, cores := range []int{0, 1, 2, 16, 64} {
			for _, perNode := range []int{0, 1, 4} {
				for bytes := 1; bytes <= 1<<28; bytes *= 16 {
					s := plan.Spec{Kind: kind, Type: dtype.Uint8, Count: bytes}
					if kind == plan.AlltoAllv {
						s.Count = 0
					}
					w := world(0, 12)
					w.Cores, w.RanksPerNode = cores, perNode
					first := choose(t, s, w)
					require.NotEqual(t, plan.AutoAlgorithm, first.Algorithm)
					require.NotEqual(t, plan.AutoProtocol, first.Protocol)
					require.Positive(t, first.Channels)
					require.LessOrEqual(t, first.Channels, 8)
					for rank := range 12 {
						w.Rank = rank
						require.Equal(t, first, choose(t, s, w))
						if kind <= plan.ReduceScatter {
							require.Equal(t, first, build(t, s, w).Choice)
						}
					}
				}
			}
		}
	}
}

// Also where ranks live on hosts of different sizes, and whatever medium lies
// between them.
func TestRanksOfHostsChooseAlike(t *testing.T) {
	t.Logf("seed %d", *seedFlag)
	rng := rand.New(rand.NewPCG(*seedFlag, 4))
	for range 200 {
		size := 1 + rng.IntN(33)
		w := world(0, size)
		if hosts := randomHosts(rng, size); hosts != nil {
			w.Hosts = topo.HostsOf(hosts)
		}
		w.Carried, w.RanksPerNode = rng.IntN(3) == 0, rng.IntN(4)
		w.Cores, w.Sharers = rng.IntN(10), rng.IntN(2)*size
		s := plan.Spec{Kind: pick(allKinds, rng.IntN(100)), Type: dtype.Uint8, Count: 1 << rng.IntN(28)}
		if s.Kind == plan.AlltoAllv {
			s.Count = 0
		}
		first := choose(t, s, w)
		for w.Rank = range size {
			require.Equal(t, first, choose(t, s, w))
			if s.Kind <= plan.ReduceScatter {
				require.Equal(t, first, build(t, s, w).Choice)
			}
		}
	}
}

func TestChoiceFollowsSize(t *testing.T) {
	// The constants may be measured anew; these must hold for any that make
	// sense: LL for the smallest calls, not for the largest; a ring for large
	// calls; a log-depth tree for small calls of many ranks.
	for _, tc := range []struct {
		name    string
		ranks   int
		perNode int
		bytes   int
		check   func(plan.Choice) bool
	}{
		{"tiny", 4, 0, 4, func(c plan.Choice) bool { return c.Protocol == plan.LL && c.Channels == 1 }},
		{"large", 4, 0, 64 << 20, func(c plan.Choice) bool { return c.Protocol != plan.LL && c.Algorithm == plan.Ring }},
		{"tiny of few ranks", 8, 0, 4, func(c plan.Choice) bool { return c.Algorithm == plan.OneShot && c.Channels == 1 }},
		{"large of few ranks", 8, 0, 64 << 20, func(c plan.Choice) bool { return c.Algorithm == plan.Ring }},
		{"tiny on many nodes", 32, 1, 4, func(c plan.Choice) bool { return c.Algorithm == plan.Tree }},
		{"large on many nodes", 32, 1, 1 << 30, func(c plan.Choice) bool { return c.Algorithm == plan.Ring }},
	} {
		w := world(0, tc.ranks)
		w.RanksPerNode, w.Cores = tc.perNode, tc.ranks
		c := choose(t, plan.Spec{Type: dtype.Uint8, Count: tc.bytes}, w)
		require.True(t, tc.check(c), "%s: %+v", tc.name, c)
	}
	// Between hosts too: of 32 hosts a tree, of any for large calls a ring.
	w := world(0, 32)
	w.Hosts = topo.HostsOf(dealt(32, 32))
	require.Equal(t, plan.Tree, choose(t, plan.Spec{Type: dtype.Uint8, Count: 4}, w).Algorithm)
	require.Equal(t, plan.Ring, choose(t, plan.Spec{Type: dtype.Uint8, Count: 1 << 30}, w).Algorithm)
}

func TestChannelsFallForSmallCalls(t *testing.T) {
	// NCCL: topoGetAlgoInfo. A Simple ring of 8 channels wants 512*64 bytes for
	// each; in LL a ring of n ranks wants 512*8*n.
	for _, tc := range []struct {
		proto plan.Protocol
		bytes int
		want  int
	}{
		{plan.Simple, 8 << 20, 8},
		{plan.Simple, 8 * 32 << 10, 8},
		// 7 by size; but 16 cells of 16 KiB, dealt 3 at a time, need 6.
		{plan.Simple, 8*32<<10 - 1, 6},
		{plan.Simple, 3 * 32 << 10, 3},
		{plan.Simple, 1, 1},
		{plan.LL, 8 * 4 * 4096, 8},
		{plan.LL, 3 * 4 * 4096, 3},
	} {
		w := world(0, 4)
		w.Force = plan.Choice{Algorithm: plan.Ring, Protocol: tc.proto}
		require.Equal(t, tc.want, choose(t, plan.Spec{Type: dtype.Uint8, Count: tc.bytes}, w).Channels, "%+v", tc)
	}
}

func TestChannelsAreBounded(t *testing.T) {
	big := plan.Spec{Type: dtype.Uint8, Count: 64 << 20}
	for _, tc := range []struct {
		name                    string
		cores, least, most, set int
		want                    int
	}{
		{"as many as allowed", 0, 1, 8, 0, 8},
		{"no more than cores run", 8, 1, 8, 0, 2},
		{"more when asked for", 8, 5, 8, 0, 5},
		{"fewer cores than ranks", 2, 1, 8, 0, 1},
		{"forced", 2, 1, 8, 3, 3},
		{"forced beyond the limit", 2, 1, 2, 3, 2},
		{"forced without a limit", 2, 0, 0, 3, 3},
		{"nothing said", 0, 0, 0, 0, 1},
		{"only a minimum", 0, 3, 0, 0, 3},
	} {
		w := world(0, 4)
		w.Cores, w.MinChannels, w.MaxChannels = tc.cores, tc.least, tc.most
		w.Force = plan.Choice{Algorithm: plan.Ring, Protocol: plan.Simple, Channels: tc.set}
		require.Equal(t, tc.want, choose(t, big, w).Channels, tc.name)
	}
}

// What bounds channels is the cores of a host for the ranks that share them.
func TestCoresAreAHosts(t *testing.T) {
	big := plan.Spec{Type: dtype.Uint8, Count: 64 << 20}
	for _, tc := range []struct {
		name           string
		hosts          []int
		cores, sharers int
		want           int
	}{
		{"one host", []int{0, 0, 0, 0}, 8, 0, 2},
		{"two hosts", []int{0, 1, 0, 1}, 8, 0, 4},
		{"the largest host counts", []int{0, 0, 1, 0}, 8, 0, 2},
		{"one rank on each", []int{0, 1, 2, 3}, 8, 0, 8},
		{"two hosts on one machine", []int{0, 0, 1, 1}, 8, 4, 2},
		{"a small host with few cores", []int{0, 0, 0, 1}, 1, 1, 1},
		{"a small host with many", []int{0, 0, 0, 1}, 9, 3, 3},
		{"more sharers than cores", []int{0, 1, 2, 3}, 2, 16, 1},
	} {
		w := world(0, 4)
		w.Hosts, w.Cores, w.Sharers = topo.HostsOf(tc.hosts), tc.cores, tc.sharers
		w.Force = plan.Choice{Algorithm: plan.Ring, Protocol: plan.Simple}
		require.Equal(t, tc.want, choose(t, big, w).Channels, tc.name)
	}
}

func TestForceOverrides(t *testing.T) {
	w := world(0, 4)
	for _, a := range []plan.Algorithm{plan.Ring, plan.Tree, plan.OneShot} {
		for _, p := range protocols {
			w.Force = plan.Choice{Algorithm: a, Protocol: p}
			c := choose(t, plan.Spec{Type: dtype.Uint8, Count: 1000}, w)
			require.Equal(t, plan.Choice{Algorithm: a, Protocol: p, Channels: 1}, c)
		}
	}
}

func TestAnAlgorithmThatACollectiveLacksIsIgnored(t *testing.T) {
	for _, tc := range []struct {
		kind   plan.Kind
		forced plan.Algorithm
	}{
		{plan.Broadcast, plan.Tree},
		{plan.AllGather, plan.Tree},
		{plan.AlltoAll, plan.Ring},
		{plan.Gather, plan.OneShot},
		{plan.Send, plan.Tree},
		{plan.AllGather, plan.PointToPoint},
	} {
		w := world(0, 4)
		s := plan.Spec{Kind: tc.kind, Type: dtype.Uint8, Count: 10, Root: 1}
		free := choose(t, s, w)
		w.Force.Algorithm = tc.forced
		c := choose(t, s, w)
		require.Equal(t, free, c)
		require.NotEqual(t, w.Force.Algorithm, c.Algorithm, "callers see it")
	}
}

func TestProtocolsThatCannotRun(t *testing.T) {
	s := plan.Spec{Type: dtype.Float64, Count: 2}
	w := world(0, 4)
	w.OrderedStores = false
	require.Equal(t, plan.Simple, choose(t, s, w).Protocol)
	for _, p := range []plan.Protocol{plan.LL, plan.LL128} {
		w.Force.Protocol = p
		for _, build := range []func() error{
			func() error { _, err := plan.Choose(s, w); return err },
			func() error { _, err := plan.Build(s, w); return err },
		} {
			err := build()
			require.ErrorIs(t, err, plan.ErrUnordered)
			require.ErrorContains(t, err, p.String())
		}
	}

	w = world(0, 4)
	w.Payload[plan.LL] = 4
	require.NotEqual(t, plan.LL, choose(t, s, w).Protocol)
	w.Force.Protocol = plan.LL
	_, err := plan.Choose(s, w)
	require.ErrorIs(t, err, plan.ErrNoRoom)
	w = world(0, 4)
	w.Payload = [4]int{}
	_, err = plan.Choose(s, w)
	require.ErrorIs(t, err, plan.ErrNoRoom)
	w = world(0, 4)
	w.Force.Protocol = 9
	_, err = plan.Choose(s, w)
	require.ErrorContains(t, err, "unknown protocol")
}
