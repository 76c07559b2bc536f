package plan

import "github.com/gollective/gollective/collective/topo"

// ringChannels lays the call's ring over its channels. All channels use the same
// ring, so they share their steps and differ in their parts only.
func ringChannels(s Spec, w World, c Choice) []Channel {
	t := ringThread(s, w.layout().Ring(w.Rank), w.Size)
	parts := s.split(w, c)
	channels := make([]Channel, len(parts))
	for id, p := range parts {
		channels[id] = Channel{ID: id, Threads: []Thread{t.over(s, p, s.chunk(w, c, p.end-p.begin))}}
	}
	return channels
}

// ringThread is the pipeline of a rank in the ring of a call.
func ringThread(s Spec, ring topo.Ring, n int) Thread {
	t := Thread{Name: "ring", From: []int{ring.Prev}, To: []int{ring.Next}, Chunks: 1}
	switch s.Kind {
	case AllReduce, Barrier:
		t.Chunks = n
		t.Steps = ringAllReduce(ring.Index, n)
	case AllGather:
		t.Stride = s.Count
		t.Steps = ringAllGather(ring, n, s.InPlace)
	case ReduceScatter:
		t.Stride = s.Count
		t.Steps = ringReduceScatter(ring, n)
	case Broadcast:
		t.Steps = ringBroadcast(ring, &t, s.Root, s.InPlace)
	case Reduce:
		t.Steps = ringReduce(ring, &t, s.Root)
	}
	return t
}

// ringAllReduce is a reduce-scatter followed by an all-gather of the same
// chunks, for the rank at position i of the ring. Chunks are numbered by
// position in the ring, not by rank.
//
// NCCL: runRing in src/device/all_reduce.h.
func ringAllReduce(i, n int) []Step {
	chunk := func(hops int) int { return (i + hops + n) % n }
	steps := make([]Step, 0, 2*n-1)

	// Push the chunk that ends its reduction n-1 hops downstream.
	steps = append(steps, Step{DoSend, chunk(-1), None})
	// Combine with the own input and pass on.
	for j := 2; j < n; j++ {
		steps = append(steps, Step{DoRecvReduceSend, chunk(-j), None})
	}
	// The own chunk is complete here: keep it and start its way around.
	steps = append(steps, Step{DoRecvReduceCopySend, chunk(0), chunk(0)})
	// Keep and pass on complete chunks.
	for j := 1; j < n-1; j++ {
		steps = append(steps, Step{DoRecvCopySend, None, chunk(-j)})
	}
	// The last one is what the next rank completed: nobody else needs it.
	return append(steps, Step{DoRecv, None, chunk(1)})
}

// ringAllGather passes every rank's block once around. The send buffer is one
// block, the receive buffer has a block per rank; blocks are numbered by rank.
//
// NCCL: runRing in src/device/all_gather.h.
func ringAllGather(ring topo.Ring, n int, inPlace bool) []Step {
	steps := make([]Step, 0, n)
	if inPlace {
		steps = append(steps, Step{DoSend, 0, None})
	} else {
		steps = append(steps, Step{DoCopySend, 0, ring.Downstream(0)})
	}
	for j := 1; j < n-1; j++ {
		steps = append(steps, Step{DoRecvCopySend, None, ring.Downstream(n - j)})
	}
	return append(steps, Step{DoRecv, None, ring.Downstream(1)})
}

// ringReduceScatter is the first half of ringAllReduce with blocks numbered by
// rank. The send buffer has a block per rank, the receive buffer is one block.
//
// NCCL: runRing in src/device/reduce_scatter.h.
func ringReduceScatter(ring topo.Ring, n int) []Step {
	steps := make([]Step, 0, n)
	steps = append(steps, Step{DoSend, ring.Downstream(n - 1), None})
	for j := 2; j < n; j++ {
		steps = append(steps, Step{DoRecvReduceSend, ring.Downstream(n - j), None})
	}
	return append(steps, Step{DoRecvReduceCopy, ring.Downstream(0), 0})
}

// ringBroadcast is a pipeline that starts at root and ends before it; t loses
// the link that closes the ring.
//
// NCCL: runRing in src/device/broadcast.h.
func ringBroadcast(ring topo.Ring, t *Thread, root int, inPlace bool) []Step {
	switch root {
	case ring.Downstream(0):
		t.From = nil
		if inPlace {
			return []Step{{DoSend, 0, None}}
		}
		return []Step{{DoCopySend, 0, 0}}
	case ring.Next:
		t.To = nil
		return []Step{{DoRecv, None, 0}}
	}
	return []Step{{DoRecvCopySend, None, 0}}
}

// ringReduce is a pipeline that starts after root and ends at it; t loses the
// link that closes the ring. Only root has an output.
//
// NCCL: runRing in src/device/reduce.h.
func ringReduce(ring topo.Ring, t *Thread, root int) []Step {
	switch root {
	case ring.Prev:
		t.From = nil
		return []Step{{DoSend, 0, None}}
	case ring.Downstream(0):
		t.To = nil
		return []Step{{DoRecvReduceCopy, 0, 0}}
	}
	return []Step{{DoRecvReduceSend, 0, None}}
}
