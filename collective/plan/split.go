package plan

// Sizes that NCCL fixes (src/include/comm.h, src/enqueue.cc). A grain is what
// chunk sizes are multiples of; a thread of a block is worth starting only for
// so many bytes, which in NCCL decides how many channels a small call uses.
const (
	simpleGrain = 512  // bytes
	llGrain     = 16   // bytes
	ll128Grain  = 1920 // user bytes that a warp moves at once: 16 lines of 120

	ringChunkSteps = 4 // FIFO steps of a chunk, Simple ring of full bandwidth
	ringSliceSteps = 2 // FIFO steps that are posted at once

	minChannelTraffic = 32 << 10 // bytes over the wire that justify a channel
	cellAlign         = 16       // bytes; parts of channels begin at multiples
)

// part is what one channel takes of a block of the buffers, in elements.
type part struct{ begin, end int }

func roundUp(x, unit int) int { return ceilDiv(x, unit) * unit }

// ceilDiv is x/y rounded up, for x >= 0, without overflow near the largest int.
func ceilDiv(x, y int) int {
	if x == 0 {
		return 0
	}
	return (x-1)/y + 1
}

// trafficPerByte weighs a byte of Spec.Count by how many bytes of FIFO it costs.
//
// NCCL: ncclFuncTrafficPerByte in src/include/collectives.h.
func (s Spec) trafficPerByte(size int, p Protocol) int {
	t := 1
	switch s.Kind {
	case AllReduce, Barrier:
		t = 2
	case AllGather, ReduceScatter:
		t = size
	}
	if p == LL {
		t *= 4
	}
	return t
}

// split divides a block of s.Count elements over at most channels channels. Work
// is dealt in cells, as small as pay for a channel; the first channel ("lo") and
// the middle ones take equally many, the last ("hi") takes the rest, so a small
// call stays on one channel. When the caller forced the number of channels,
// cells shrink until each gets work, if there are 16 bytes for each.
//
// NCCL: scheduleCollTasksToPlan in src/enqueue.cc, for a launch of one call.
func (s Spec) split(w World, c Choice) []part {
	if s.Count == 0 {
		return nil
	}
	cell := roundUp(ceilDiv(minChannelTraffic, s.trafficPerByte(w.Size, c.Protocol)), cellAlign)
	if w.Force.Channels > 0 {
		if fair := ceilDiv(s.bytes(), c.Channels); fair < cell {
			cell = roundUp(fair, cellAlign)
		}
	}
	perCell := cell / s.Type.Size()
	cells := ceilDiv(s.Count, perCell)
	perChannel := ceilDiv(cells, c.Channels)
	if perChannel == cells {
		return []part{{0, s.Count}}
	}
	share := perChannel * perCell
	parts := make([]part, 0, c.Channels)
	for begin := 0; begin < s.Count; {
		end := s.Count
		if share < end-begin {
			end = begin + share
		}
		parts = append(parts, part{begin, end})
		begin = end
	}
	return parts
}

// splitEven is split for a tree, whose channels come in pairs: one for each tree
// of the double tree. A single channel is the exception.
func (s Spec) splitEven(w World, c Choice) []part {
	for {
		if c.Channels > 1 {
			c.Channels &^= 1
		}
		parts := s.split(w, c)
		if len(parts) <= 1 || len(parts)%2 == 0 {
			return parts
		}
		c.Channels = len(parts) - 1
	}
}

// chunking is how a part is cut.
type chunking struct {
	elems                  int // largest chunk, in elements, at least 1
	chunkSteps, sliceSteps int
}

// chunk is the largest chunk that the FIFOs of the choice take, given the
// elements of one channel's part.
//
// NCCL: calcCollChunking in src/enqueue.cc. FIFO steps too small for a grain,
// which tests use to reach many loops cheaply, hold whole elements instead.
func (s Spec) chunk(w World, c Choice, count int) chunking {
	k := chunking{chunkSteps: 1, sliceSteps: 1}
	if c.Algorithm == Ring && c.Protocol == Simple && s.Kind != Broadcast && s.Kind != Reduce {
		k.chunkSteps, k.sliceSteps = ringChunkSteps, ringSliceSteps
		if w.widest() == wire {
			// NCCL cuts chunks for the network in two as well. Here the block itself sends
			// and receives, and gains nothing from a half; a system call for the whole
			// takes a tenth less.
			k.sliceSteps = ringChunkSteps
		}
	}
	payload := w.Payload[c.Protocol]
	bytes := payload * k.chunkSteps
	if c.Algorithm == Tree && c.Protocol == LL128 {
		bytes = treeLL128Chunk(bytes, count*s.Type.Size(), w)
	}
	size := s.Type.Size()
	grain := c.Protocol.grain()
	if bytes >= grain {
		k.elems = bytes / grain * grain / size
		return k
	}
	// A slice never crosses the steps it owns, so elements are counted by slice.
	k.elems = max(1, payload*k.sliceSteps/size) * (k.chunkSteps / k.sliceSteps)
	return k
}

// treeLL128Chunk halves the chunk of a tree until enough of them are in flight
// to fill the tree's depth.
func treeLL128Chunk(chunk, bytes int, w World) int {
	const (
		first, firstFloor   = 64, 128 << 10
		second, secondFloor = 16, 32 << 10
	)
	nodes := w.layout().Nodes()
	perNode := float64(w.Size) / float64(nodes)
	depth := 1 + float64(log2(nodes)) + 0.1*perNode
	for _, stage := range [2]struct {
		chunks float64
		floor  int
	}{{first, firstFloor}, {second, secondFloor}} {
		for float64(bytes/chunk) < depth*stage.chunks/perNode && chunk > stage.floor {
			chunk /= 2
		}
	}
	return chunk
}

// grain is the unit of chunk sizes, in user bytes.
//
// NCCL: ncclProtoGrainSize in src/include/comm.h.
func (p Protocol) grain() int {
	switch p {
	case LL:
		return llGrain
	case LL128:
		return ll128Grain
	}
	return simpleGrain
}

// over gives a thread of an algorithm its channel's part.
func (t Thread) over(s Spec, p part, k chunking) Thread {
	t.Begin, t.End = p.begin, p.end
	t.Chunk = k.elems
	t.ChunkSteps, t.SliceSteps = k.chunkSteps, k.sliceSteps
	rest := (p.end - p.begin - 1) % (t.Chunk * t.Chunks)
	t.Last = lastChunk(rest+1, t.Chunk, t.Chunks, s.Type.Size())
	return t
}

// lastChunk is the chunk of a loop in which rest elements are left for chunks
// chunks. Chunks that lie side by side shrink alike, to multiples of 16 bytes;
// the last of them may then be short or empty. Every rank computes this from the
// channel's part, never from the piece it holds.
//
// NCCL: the tail of the loop in runRing, src/device/all_reduce.h.
func lastChunk(rest, chunk, chunks, size int) int {
	if chunks == 1 {
		return rest
	}
	return min(chunk, roundUp(ceilDiv(rest, chunks), max(1, cellAlign/size)))
}
