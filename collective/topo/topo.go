// Package topo is index arithmetic: who is next to whom in the rings and trees
// that the collectives' schedules are laid over. It knows numbers only, neither
// buffers nor connections, and keeps no state.
package topo

// None is the number of a neighbour that does not exist.
const None = -1

// Layout says how ranks are spread over nodes. The ranks of each host, in
// ascending order, fill its nodes RanksPerNode at a time; a host's last node may
// be smaller. RanksPerNode <= 0 makes each host one node, NCCL's case; more nodes
// than hosts are virtual, and give a single machine trees to show. Nodes are
// numbered host by host.
type Layout struct {
	Size, RanksPerNode int
	Hosts              *Hosts // nil or of Size ranks
}

// A place is a rank's index in the order that rings use: host after host, on each
// in ascending order, so that also every node is a range of places. Without Hosts,
// or when they are filled one after the other, it is the rank.

// Place is the place of rank.
func (l Layout) Place(rank int) int {
	if l.Hosts == nil {
		return rank
	}
	return l.Hosts.place[rank]
}

// at is the rank that has a place.
func (l Layout) at(place int) int {
	if l.Hosts == nil {
		return place
	}
	return l.Hosts.order[place]
}

// hostSpan is the half-open range of places of a host.
func (l Layout) hostSpan(host int) (first, end int) {
	if l.Hosts.Size() == 0 {
		return 0, l.Size
	}
	return l.Hosts.first[host], l.Hosts.first[host+1]
}

// perNode is how many ranks a node has on a host of ranks ranks, if it is not the
// last one, at least 1.
func (l Layout) perNode(ranks int) int {
	if l.RanksPerNode <= 0 || l.RanksPerNode > ranks {
		return max(ranks, 1)
	}
	return l.RanksPerNode
}

// nodesOn is the number of nodes of a host, at least 1.
func (l Layout) nodesOn(host int) int {
	first, end := l.hostSpan(host)
	per := l.perNode(end - first)
	return max(1, (end-first+per-1)/per)
}

// Nodes is the number of nodes, at least 1.
func (l Layout) Nodes() int {
	nodes := 0
	for host := range l.Hosts.Count() {
		nodes += l.nodesOn(host)
	}
	return nodes
}

// Node is the node that rank lives on.
func (l Layout) Node(rank int) int {
	host, node := l.Hosts.Of(rank), 0
	for earlier := range host {
		node += l.nodesOn(earlier)
	}
	first, end := l.hostSpan(host)
	return node + (l.Place(rank)-first)/l.perNode(end-first)
}

// span is the half-open range of places of a node.
func (l Layout) span(node int) (first, end int) {
	host := 0
	for ; node >= l.nodesOn(host); host++ {
		node -= l.nodesOn(host)
	}
	first, last := l.hostSpan(host)
	per := l.perNode(last - first)
	first += node * per
	return first, min(first+per, last)
}

// Sizes yields the number of ranks of each node.
func (l Layout) Sizes(yield func(int) bool) {
	for host := range l.Hosts.Count() {
		first, end := l.hostSpan(host)
		per := l.perNode(end - first)
		for ; first < end; first += per {
			if !yield(min(per, end-first)) {
				return
			}
		}
	}
}
