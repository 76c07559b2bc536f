package topo

import (
	"bytes"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDoubleTreesEqualNCCLs(t *testing.T) {
	want, err := os.ReadFile("testdata/double_binary_trees.csv")
	require.NoError(t, err)
	header, rows, _ := strings.Cut(string(want), "\n")
	var got strings.Builder
	for n := 1; n <= 33; n++ {
		var one bytes.Buffer
		require.NoError(t, WriteDoubleTree(&one, n))
		h, r, _ := strings.Cut(one.String(), "\n")
		require.Equal(t, strings.TrimSpace(header), h)
		got.WriteString(r)
	}
	require.Equal(t, strings.ReplaceAll(rows, "\r", ""), got.String())
}

func TestWriteDoubleTreeRejectsNoRanks(t *testing.T) {
	require.ErrorContains(t, WriteDoubleTree(&bytes.Buffer{}, 0), "at least 1 rank")
}

type failingWriter struct{ left int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.left--; w.left < 0 {
		return 0, fmt.Errorf("full")
	}
	return len(p), nil
}

func TestWriteDoubleTreeReportsWriteErrors(t *testing.T) {
	for writes := range 3 {
		require.ErrorContains(t, WriteDoubleTree(&failingWriter{left: writes}, 2), "full")
	}
}

func TestDoubleTreeProperties(t *testing.T) {
	for n := 1; n <= 300; n++ {
		inner := make([]int, n) // in how many trees a node has children
		for which := range 2 {
			links := make([]Links, n)
			for x := range n {
				links[x] = DoubleTree(n, x)[which]
			}
			roots := 0
			for x, l := range links {
				if l.Up == None {
					roots++
				} else {
					require.Equal(t, x, links[l.Up].Down[l.Slot], "n=%d tree %d: child %d of %d", n, which, x, l.Up)
				}
				if l.Down != [2]int{None, None} {
					inner[x]++
				}
				require.LessOrEqual(t, depth(t, links, x), bits.Len(uint(n-1)), "n=%d tree %d node %d", n, which, x)
			}
			require.Equal(t, 1, roots, "n=%d tree %d", n, which)
		}
		both := 0
		for _, k := range inner {
			if k == 2 {
				both++
			}
		}
		if n%2 == 0 {
			require.Zero(t, both, "n=%d: nodes inner in both trees", n)
		} else {
			require.LessOrEqual(t, both, 1+bits.Len(uint(n)), "n=%d: nodes inner in both trees", n)
		}
	}
}

// depth counts the hops to the root and fails on a cycle.
func depth(t *testing.T, links []Links, x int) int {
	hops := 0
	for ; links[x].Up != None; x = links[x].Up {
		hops++
		require.LessOrEqual(t, hops, len(links), "cycle")
	}
	return hops
}

func TestTreeOverRanks(t *testing.T) {
	for size := 1; size <= 40; size++ {
		for per := 0; per <= size+1; per++ {
			l := Layout{Size: size, RanksPerNode: per}
			for which := range 2 {
				checkRankTree(t, l, which)
			}
		}
	}
}

func TestTreeOverRanksOfHosts(t *testing.T) {
	everyHosts(t, func(l Layout) {
		for which := range 2 {
			checkRankTree(t, l, which)
		}
	})
}

func checkRankTree(t *testing.T, l Layout, which int) {
	where := fmt.Sprintf("%s tree %d", name(l), which)
	nodes := nodesOf(l)
	longest, roots, edges, between, cables := 0, 0, 0, 0, 0
	for _, ranks := range nodes {
		longest = max(longest, len(ranks))
	}
	for r := range l.Size {
		tree := l.Tree(which, r)
		require.LessOrEqual(t, len(tree.Down), 2, where)
		edges += len(tree.Down)
		for _, c := range tree.Down {
			require.Equal(t, r, l.Tree(which, c).Up, "%s: child %d of %d", where, c, r)
		}
		if tree.Up == None {
			roots++
			continue
		}
		require.Contains(t, l.Tree(which, tree.Up).Down, r, where)
		if l.Node(r) != l.Node(tree.Up) {
			between++
			require.Equal(t, nodes[l.Node(r)][0], r, "%s: link to the parent node", where)
		}
		if l.Hosts.Of(r) != l.Hosts.Of(tree.Up) {
			cables++
		}
	}
	// One root and Size-1 edges whose ends agree: connected and free of cycles
	// once every rank reaches the root.
	require.Equal(t, 1, roots, where)
	require.Equal(t, l.Size-1, edges, where)
	require.Equal(t, len(nodes)-1, between, where)
	if len(nodes) == l.Hosts.Count() {
		require.Equal(t, len(nodes)-1, cables, where)
	}
	// Up the own chain, then through at most one rank besides the top of each
	// node on the way: only the first two of a chain have links to children.
	bound := longest - 1 + 2*bits.Len(uint(len(nodes)-1))
	for r := range l.Size {
		hops := 0
		for x := r; l.Tree(which, x).Up != None; x = l.Tree(which, x).Up {
			hops++
			require.Less(t, hops, l.Size, where)
		}
		require.LessOrEqual(t, hops, bound, where)
	}
}

func TestTreeWithOneRankPerNodeIsTheDoubleTree(t *testing.T) {
	for n := 1; n <= 64; n++ {
		l := Layout{Size: n, RanksPerNode: 1}
		for x := range n {
			for which, links := range DoubleTree(n, x) {
				var down []int
				for _, c := range links.Down {
					if c != None {
						down = append(down, c)
					}
				}
				require.Equal(t, Tree{Up: links.Up, Down: down}, l.Tree(which, x))
			}
		}
	}
}

func TestTreeOnOneNodeIsAChain(t *testing.T) {
	l := Layout{Size: 4}
	for which := range 2 {
		require.Equal(t, Tree{Up: None, Down: []int{1}}, l.Tree(which, 0))
		require.Equal(t, Tree{Up: 1, Down: []int{3}}, l.Tree(which, 2))
		require.Equal(t, Tree{Up: 2}, l.Tree(which, 3))
	}
}

func TestBalancedPatternHoldsTheChildrenOnTwoRanks(t *testing.T) {
	// Four nodes of two ranks. Tree 0 over nodes: 0-2, 2-1, 2-3.
	l := Layout{Size: 8, RanksPerNode: 2}
	require.Equal(t, Tree{Up: 0, Down: []int{5, 6}}, l.Tree(0, 4))
	require.Equal(t, Tree{Up: 4, Down: []int{2}}, l.Tree(0, 5))
	require.Equal(t, Tree{Up: 5, Down: []int{3}}, l.Tree(0, 2))
}

func TestRingPassesThroughEachNodeOnce(t *testing.T) {
	for size := 1; size <= 20; size++ {
		for per := 0; per <= size; per++ {
			l := Layout{Size: size, RanksPerNode: per}
			for hop, rank := range checkRing(t, l) {
				require.Equal(t, hop, rank, "one host's ring is rank order")
			}
		}
	}
}

func TestRingPassesThroughEachHostOnce(t *testing.T) {
	everyHosts(t, func(l Layout) {
		var want []int
		for _, ranks := range nodesOf(l) {
			want = append(want, ranks...)
		}
		require.Equal(t, want, checkRing(t, l), name(l))
	})
}

// checkRing goes around the ring and returns the ranks met.
func checkRing(t *testing.T, l Layout) []int {
	var met []int
	crossings, cables, at := 0, 0, 0
	for hop := range l.Size {
		ring := l.Ring(at)
		require.Equal(t, hop, ring.Index)
		require.Equal(t, hop, l.Place(at))
		require.Equal(t, at, l.Ring(ring.Next).Prev)
		require.Equal(t, at, l.Ring(0).Downstream(hop))
		require.Equal(t, 0, ring.Downstream((l.Size-hop)%l.Size))
		met = append(met, at)
		if l.Node(at) != l.Node(ring.Next) {
			crossings++
		}
		if l.Hosts.Of(at) != l.Hosts.Of(ring.Next) {
			cables++
		}
		at = ring.Next
	}
	require.Equal(t, 0, at, "the ring closes after size hops")
	if l.Nodes() > 1 {
		require.Equal(t, l.Nodes(), crossings, name(l))
	}
	if l.Hosts.Count() > 1 {
		require.Equal(t, l.Hosts.Count(), cables, name(l))
	}
	return met
}

func TestLayoutLastNodeMayBeSmaller(t *testing.T) {
	l := Layout{Size: 7, RanksPerNode: 3}
	require.Equal(t, 3, l.Nodes())
	require.Equal(t, []int{3, 3, 1}, slices.Collect(l.Sizes))
	require.Equal(t, 2, l.Node(6))
}
