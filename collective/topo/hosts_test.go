package topo

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var seedFlag = flag.Uint64("seed", 1, "seed of the random hosts")

// everyHosts tries ranks that are dealt out in order, cyclically and at random, on
// up to 33 ranks, with and without virtual nodes.
func everyHosts(t *testing.T, try func(Layout)) {
	t.Logf("seed %d", *seedFlag)
	rng := rand.New(rand.NewPCG(*seedFlag, 3))
	for size := 1; size <= 33; size++ {
		for range 2 {
			count := 1 + rng.IntN(size)
			for _, deal := range []func(rank int) int{
				func(rank int) int { return rank * count / size },
				func(rank int) int { return rank % count },
				func(int) int { return rng.IntN(count) },
			} {
				keys := make([]int, size)
				for rank := range keys {
					keys[rank] = deal(rank)
				}
				for _, per := range []int{0, 1, 1 + rng.IntN(size)} {
					try(Layout{Size: size, RanksPerNode: per, Hosts: HostsOf(keys)})
				}
			}
		}
	}
}

func name(l Layout) string {
	if l.Hosts == nil {
		return fmt.Sprintf("%d ranks, %d per node", l.Size, l.RanksPerNode)
	}
	return fmt.Sprintf("hosts %v, %d per node", l.Hosts.host, l.RanksPerNode)
}

// nodesOf lists the ranks of each node, made anew from who shares a host with whom.
func nodesOf(l Layout) [][]int {
	var nodes [][]int
	seen := make(map[int]bool)
	for lowest := range l.Size {
		if seen[lowest] {
			continue
		}
		var here []int
		for rank := lowest; rank < l.Size; rank++ {
			if l.Hosts.Of(rank) == l.Hosts.Of(lowest) {
				seen[rank] = true
				here = append(here, rank)
			}
		}
		per := l.RanksPerNode
		if per <= 0 {
			per = len(here)
		}
		nodes = slices.AppendSeq(nodes, slices.Chunk(here, per))
	}
	return nodes
}

func TestNodesOfHosts(t *testing.T) {
	everyHosts(t, func(l Layout) {
		nodes := nodesOf(l)
		require.Equal(t, len(nodes), l.Nodes(), name(l))
		var sizes []int
		for node, ranks := range nodes {
			sizes = append(sizes, len(ranks))
			for _, rank := range ranks {
				require.Equal(t, node, l.Node(rank), "%s: rank %d", name(l), rank)
			}
		}
		require.Equal(t, sizes, slices.Collect(l.Sizes), name(l))
	})
}

func TestHostsAreNumberedByTheirLowestRank(t *testing.T) {
	h := HostsOf([]string{"b", "c", "b", "a", "c", "b"})
	require.Equal(t, 3, h.Count())
	require.Equal(t, 6, h.Size())
	require.Equal(t, 3, h.Largest())
	for host, want := range [][]int{{0, 2, 5}, {1, 4}, {3}} {
		require.Equal(t, want, h.Ranks(host))
		for _, rank := range want {
			require.Equal(t, host, h.Of(rank))
		}
	}
	require.Equal(t, h, HostsOf([]int{7, 0, 7, 3, 0, 7}), "only who shares a key with whom matters")
}

func TestRanksOfAHostAreTheCallers(t *testing.T) {
	h := HostsOf([]int{0, 0, 1})
	h.Ranks(0)[0] = 9
	require.Equal(t, []int{0, 1}, h.Ranks(0))
}

func TestNoHostsAreOneHost(t *testing.T) {
	for _, h := range []*Hosts{nil, HostsOf[int](nil)} {
		require.Equal(t, 1, h.Count())
		require.Zero(t, h.Size())
		require.Zero(t, h.Largest())
		require.Empty(t, h.Ranks(0))
		require.Zero(t, h.MostCrowded([]int{1}))
	}
	var none *Hosts
	require.Zero(t, none.Of(5))
}

// A world whose ranks all live on one host is laid out as one without hosts.
func TestOneHostIsNoHosts(t *testing.T) {
	for size := 1; size <= 12; size++ {
		for per := range size + 1 {
			one := Layout{Size: size, RanksPerNode: per, Hosts: HostsOf(make([]int, size))}
			none := Layout{Size: size, RanksPerNode: per}
			for rank := range size {
				require.Equal(t, none.Tree(0, rank), one.Tree(0, rank))
				require.Equal(t, none.Tree(1, rank), one.Tree(1, rank))
				require.Equal(t, none.Ring(rank).Prev, one.Ring(rank).Prev)
			}
			require.Equal(t, slices.Collect(none.Sizes), slices.Collect(one.Sizes))
		}
	}
}

func TestMostCrowdedHasTheFewestCoresPerRank(t *testing.T) {
	h := HostsOf([]int{0, 0, 0, 1, 2, 2})
	for _, tc := range []struct {
		cores []int
		want  int
	}{
		{[]int{2, 2, 2}, 0},
		{[]int{64, 2, 2}, 2},
		{[]int{6, 2, 4}, 0}, // all alike
		{[]int{7, 2, 4}, 1},
	} {
		require.Equal(t, tc.want, h.MostCrowded(tc.cores), "%v", tc.cores)
	}
}

// Ranks dealt out cyclically over two hosts, the second of which has fewer.
func TestCyclicRanks(t *testing.T) {
	l := Layout{Size: 5, Hosts: HostsOf([]int{0, 1, 0, 1, 0})}
	require.Equal(t, []int{0, 2, 4, 1, 3}, l.Hosts.order)
	ring := l.Ring(4)
	require.Equal(t, [3]int{2, 2, 1}, [3]int{ring.Index, ring.Prev, ring.Next})
	// Tree 0 over two nodes: 0 above 1, its only child, in slot 1: on chain index 0.
	require.Equal(t, Tree{Up: None, Down: []int{2, 1}}, l.Tree(0, 0))
	require.Equal(t, Tree{Up: 0, Down: []int{3}}, l.Tree(0, 1))
	require.Equal(t, Tree{Up: 2}, l.Tree(0, 4))
	// Tree 1 is its mirror image.
	require.Equal(t, Tree{Up: None, Down: []int{3, 0}}, l.Tree(1, 1))
	require.Equal(t, Tree{Up: 1, Down: []int{2}}, l.Tree(1, 0))
}
