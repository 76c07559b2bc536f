package topo

import (
	"fmt"
	"io"
	"math/bits"
)

// Links are a node's neighbours in a binary tree over nodes; None where there is
// no neighbour.
type Links struct {
	Up   int
	Down [2]int
	// Slot is which child of Up the node is: an index of Up's Down. It is 0
	// for the root.
	Slot int
}

// BinaryTree is the place of node x in NCCL's B-tree over nodes 0..n-1: odd
// nodes are leaves, a node whose lowest set bit is 2^k lies k levels above them,
// and node 0 sits on top with a single child, in slot 1.
//
// NCCL: ncclGetBtree in src/graph/trees.cc.
func BinaryTree(n, x int) Links {
	if x == 0 {
		return Links{Up: None, Down: [2]int{None, halfOfPowerAbove(n)}}
	}
	level := bits.TrailingZeros(uint(x))
	below := x &^ (1 << level)
	up := below | 2<<level
	if up >= n {
		up = below
	}
	l := Links{Up: up, Down: [2]int{None, None}}
	if x > up {
		l.Slot = 1
	}
	if level > 0 {
		l.Down[0] = x - 1<<(level-1)
	}
	// The natural second child may lie beyond the last node; the subtree then
	// hangs from its highest node that exists.
	for h := level - 1; h >= 0; h-- {
		if x+1<<h < n {
			l.Down[1] = x + 1<<h
			break
		}
	}
	return l
}

// halfOfPowerAbove is half of the smallest power of two that is at least n, or
// None when n is 1.
func halfOfPowerAbove(n int) int {
	if n <= 1 {
		return None
	}
	return 1 << (bits.Len(uint(n-1)) - 1)
}

// DoubleTree is the place of node x in both trees of the double binary tree.
// The first is the B-tree. The second is its mirror image when n is even, and
// the same tree moved by one node when n is odd, so that the inner nodes of one
// are (nearly all) leaves of the other and both carry half of the data.
//
// NCCL: ncclGetDtree in src/graph/trees.cc.
func DoubleTree(n, x int) [2]Links {
	first := BinaryTree(n, x)
	if n%2 == 0 {
		return [2]Links{first, BinaryTree(n, n-1-x).renamed(func(y int) int { return n - 1 - y })}
	}
	return [2]Links{first, BinaryTree(n, (x+n-1)%n).renamed(func(y int) int { return (y + 1) % n })}
}

// renamed gives every neighbour that exists its new number.
func (l Links) renamed(name func(int) int) Links {
	for _, p := range []*int{&l.Up, &l.Down[0], &l.Down[1]} {
		if *p != None {
			*p = name(*p)
		}
	}
	return l
}

// Tree is a rank's place in a tree over ranks: Up is None at the root, and Down
// lists the children in order of reduction, the node's own chain first.
type Tree struct {
	Up   int
	Down []int
}

// Tree is the place of rank in tree which, 0 or 1, of the double binary tree
// over nodes. Inside a node the ranks form a chain, lowest rank (chain index 0)
// on top; with a single node the tree is that chain. Nodes may differ in size: a
// chain is as long as its node.
//
// The links between nodes follow NCCL's balanced pattern: chain index 0 holds the
// link to the parent node and to the second child, chain index 1 the link to the
// first child (index 0 again where a node has one rank). Of NCCL's three patterns
// it is the one in which no rank has more than two children, so no rank combines
// three streams while its neighbours wait.
//
// NCCL: connectTrees in src/graph/connect.cc, NCCL_TOPO_PATTERN_BALANCED_TREE.
func (l Layout) Tree(which, rank int) Tree {
	node, place := l.Node(rank), l.Place(rank)
	first, end := l.span(node)
	links := DoubleTree(l.Nodes(), node)[which]
	t := Tree{Up: None}
	if place > first {
		t.Up = l.at(place - 1)
	} else if links.Up != None {
		t.Up = l.at(l.holder(links.Up, links.Slot))
	}
	if place+1 < end {
		t.Down = append(t.Down, l.at(place+1))
	}
	for slot, child := range links.Down {
		if child != None && l.holder(node, slot) == place {
			top, _ := l.span(child)
			t.Down = append(t.Down, l.at(top))
		}
	}
	return t
}

// holder is the place of the rank that holds node's link to its child slot.
func (l Layout) holder(node, slot int) int {
	first, end := l.span(node)
	if slot == 0 && first+1 < end {
		return first + 1
	}
	return first
}

// WriteDoubleTree writes the double binary tree of n nodes as CSV: a header,
// then for each node its parent and children in both trees, -1 where there is
// none. n must be at least 1.
func WriteDoubleTree(w io.Writer, n int) error {
	if n < 1 {
		return fmt.Errorf("a tree needs at least 1 rank, not %d", n)
	}
	if _, err := fmt.Fprintln(w, "nranks,rank,up0,down0a,down0b,up1,down1a,down1b"); err != nil {
		return err
	}
	for x := range n {
		t := DoubleTree(n, x)
		_, err := fmt.Fprintf(w, "%d,%d,%d,%d,%d,%d,%d,%d\n", n, x,
			t[0].Up, t[0].Down[0], t[0].Down[1], t[1].Up, t[1].Down[0], t[1].Down[1])
		if err != nil {
			return err
		}
	}
	return nil
}
