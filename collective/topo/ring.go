package topo

// Ring is a rank's place in the ring. Data flows from Prev to Next.
type Ring struct {
	Index      int // hops downstream of rank 0
	Prev, Next int
	size       int
}

// Ring is the place of rank in the ring that every channel uses: rank order,
// which enters and leaves each node once because a node's ranks are consecutive.
//
// NCCL: ncclBuildRings in src/graph/rings.cc, where the order comes from a search
// over links of different speed; between goroutines all links are the same.
func (l Layout) Ring(rank int) Ring {
	return Ring{
		Index: rank,
		Prev:  (rank + l.Size - 1) % l.Size,
		Next:  (rank + 1) % l.Size,
		size:  l.Size,
	}
}

// Downstream is the rank found hops hops after this one (NCCL's userRanks);
// hops is in [0, Size).
func (r Ring) Downstream(hops int) int { return (r.Index + hops) % r.size }
