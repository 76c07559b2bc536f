// Package topo is index arithmetic: who is next to whom in the rings and trees
// that the collectives' schedules are laid over. It knows numbers only, neither
// buffers nor connections, and keeps no state.
package topo

// None is the number of a neighbour that does not exist.
const None = -1

// Layout says how ranks are spread over nodes: consecutive ranks fill a node,
// RanksPerNode at a time, and the last node may be smaller. RanksPerNode <= 0
// means that all ranks share one node.
type Layout struct {
	Size, RanksPerNode int
}

// perNode is RanksPerNode with its default and limit applied, at least 1.
func (l Layout) perNode() int {
	if l.RanksPerNode <= 0 || l.RanksPerNode > l.Size {
		return max(l.Size, 1)
	}
	return l.RanksPerNode
}

// Nodes is the number of nodes, at least 1.
func (l Layout) Nodes() int {
	return max(1, (l.Size+l.perNode()-1)/l.perNode())
}

// Node is the node that rank lives on.
func (l Layout) Node(rank int) int { return rank / l.perNode() }

// Ranks is the half-open range of ranks that live on node.
func (l Layout) Ranks(node int) (first, end int) {
	first = node * l.perNode()
	return first, min(first+l.perNode(), l.Size)
}
