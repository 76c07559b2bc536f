package topo

// Ring is a rank's place in the ring. Data flows from Prev to Next.
type Ring struct {
	Index      int // hops downstream of rank 0
	Prev, Next int
	layout     Layout
}

// Ring is the place of rank in the ring that every channel uses: it enters and
// leaves each node once, and each host once, and passes through their ranks in
// ascending order. It begins with rank 0, which is the lowest of the first host.
//
// NCCL: ncclBuildRings in src/graph/rings.cc, where the order inside a node comes
// from a search over links of different speed, and channels may differ to use
// several network cards; in memory all links are the same.
func (l Layout) Ring(rank int) Ring {
	index := l.Place(rank)
	return Ring{
		Index:  index,
		Prev:   l.at((index + l.Size - 1) % l.Size),
		Next:   l.at((index + 1) % l.Size),
		layout: l,
	}
}

// Downstream is the rank found hops hops after this one (NCCL's userRanks);
// hops is in [0, Size).
func (r Ring) Downstream(hops int) int {
	return r.layout.at((r.Index + hops) % r.layout.Size)
}
