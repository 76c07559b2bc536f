package plan

// fifoDepth is how many steps a FIFO holds (NCCL_STEPS).
const fifoDepth = 8

// oneShotChannels lays a schedule of a single hop over the call's channels: every
// rank sends what it has straight to all that need it, and each that needs a result
// combines all inputs by itself. It takes one latency for any number of ranks, and
// for an AllReduce n-1 times the bytes of the call.
//
// Inputs are combined in the order of the ranks, on every rank: the result is, bit
// for bit, that of a loop over ranks, whatever the sizes, the protocol and the
// channels.
func oneShotChannels(s Spec, w World, c Choice) []Channel {
	parts := s.split(w, c)
	channels := make([]Channel, len(parts))
	for id, p := range parts {
		k := s.chunk(w, c, p.end-p.begin)
		for _, t := range oneShotThreads(s, w, ceilDiv(p.end-p.begin, k.elems)*k.chunkSteps) {
			channels[id].Threads = append(channels[id].Threads, t.over(s, p, k))
		}
		channels[id].ID = id
	}
	return channels
}

// oneShotThreads are the pipelines of a rank, one after the other, each of so many
// FIFO steps. An AllGather is a Broadcast of every rank, a ReduceScatter a Reduce to
// every rank.
func oneShotThreads(s Spec, w World, steps int) []Thread {
	if s.Kind != AllGather && s.Kind != ReduceScatter {
		return []Thread{oneShotThread(s, w)}
	}
	// What fits the FIFOs is sent before anything is waited for. Else all ranks
	// take the roots in one order, so that a root for whom others wait is never
	// behind them.
	var first, last []Thread
	for root := range w.Size {
		t := oneShotThread(s.toward(root), w)
		t.Stride = s.Count
		for i := range t.Steps {
			t.Steps[i] = t.Steps[i].ofBlock(s.Kind, root)
		}
		if steps <= fifoDepth && len(t.To) == 0 {
			last = append(last, t)
		} else {
			first = append(first, t)
		}
	}
	return append(first, last...)
}

// toward is the call of which s is one for each root.
func (s Spec) toward(root int) Spec {
	s.Root = root
	if s.Kind == AllGather {
		s.Kind = Broadcast
	} else {
		s.Kind = Reduce
	}
	return s
}

// ofBlock is st, of a Broadcast or Reduce, where the larger one of the buffers has
// a block for each root.
func (st Step) ofBlock(k Kind, root int) Step {
	if k == AllGather && st.Out != None {
		st.Out = root
	}
	if k == ReduceScatter && st.In != None {
		st.In = root
	}
	return st
}

// oneShotThread is the pipeline of a rank in an AllReduce, a Reduce or a Broadcast.
//
// In an AllReduce nobody falls behind by more than a loop, for nobody ends one
// before it has everybody's chunk: the sends at the beginning of a loop find free
// slots.
func oneShotThread(s Spec, w World) Thread {
	t := Thread{Name: "oneshot", Chunks: 1}
	others := make([]int, 0, w.Size-1)
	for rank := range w.Size {
		if rank != w.Rank {
			others = append(others, rank)
		}
	}
	root := w.Rank == s.Root
	switch {
	case s.Kind == AllReduce || s.Kind == Barrier:
		t.From, t.To, t.Own = others, others, w.Rank
		t.Overwrites = s.InPlace
		t.Steps = []Step{{DoSend, 0, None}, {DoRecvReduceCopy, 0, 0}}
	case s.Kind == Reduce && root:
		t.From, t.Own = others, w.Rank
		t.Steps = []Step{{DoRecvReduceCopy, 0, 0}}
	case s.Kind == Reduce:
		t.To = []int{s.Root}
		t.Steps = []Step{{DoSend, 0, None}}
	case root && s.InPlace:
		t.To = others
		t.Steps = []Step{{DoSend, 0, None}}
	case root:
		t.To = others
		t.Steps = []Step{{DoCopySend, 0, 0}}
	default:
		t.From = []int{s.Root}
		t.Steps = []Step{{DoRecv, None, 0}}
	}
	return t
}
