package plan

import "github.com/gollective/gollective/collective/topo"

// treeChannels lays the double binary tree over the call's channels: the first
// half of them use the first tree, the other half the second, so each tree
// carries half of the data. A call that fits one channel uses the first tree only.
func treeChannels(s Spec, w World, c Choice) []Channel {
	parts := s.splitEven(w, c)
	trees := [2][]Thread{treeThreads(w.layout().Tree(0, w.Rank))}
	if len(parts) > 1 {
		trees[1] = treeThreads(w.layout().Tree(1, w.Rank))
	}
	firstHalf := max(1, len(parts)/2)
	channels := make([]Channel, len(parts))
	for id, p := range parts {
		which := 0
		if id >= firstHalf {
			which = 1
		}
		k := s.chunk(w, c, p.end-p.begin)
		ch := Channel{ID: id}
		for _, t := range trees[which] {
			ch.Threads = append(ch.Threads, t.over(s, p, k))
		}
		// With one chunk the broadcast half cannot begin before the reduce half
		// is over. With more, the root stops taking chunks when nobody takes
		// its results, so the halves need each other's progress.
		ch.Concurrent = len(ch.Threads) > 1 && ch.Threads[0].Loops() > 1
		channels[id] = ch
	}
	return channels
}

// treeThreads are the pipelines of a rank in the tree of an AllReduce: values
// go up and are combined on the way, results come down. The root does both at
// once, for a chunk is complete there as soon as it has arrived.
//
// NCCL: runTreeSplit in src/device/all_reduce.h.
func treeThreads(tree topo.Tree) []Thread {
	if tree.Up == topo.None {
		return []Thread{{
			Name: "root", From: tree.Down, To: tree.Down, Chunks: 1,
			Steps: []Step{{DoRecvReduceCopySend, 0, 0}},
		}}
	}
	up := []int{tree.Up}
	reduce := Thread{Name: "reduce", From: tree.Down, To: up, Chunks: 1}
	broadcast := Thread{Name: "broadcast", From: up, To: tree.Down, Chunks: 1}
	if len(tree.Down) == 0 {
		reduce.Steps = []Step{{DoSend, 0, None}}
		broadcast.Steps = []Step{{DoRecv, None, 0}}
	} else {
		reduce.Steps = []Step{{DoRecvReduceSend, 0, None}}
		broadcast.Steps = []Step{{DoRecvCopySend, None, 0}}
	}
	return []Thread{reduce, broadcast}
}
