package perf

import (
	"math"
	"strings"

	"github.com/gollective/gollective/collective/plan"
)

// test is one collective as the tool measures it.
type test struct {
	name    string
	kind    plan.Kind
	reduces bool // takes an operator
	rooted  bool // takes a root
	apart   bool // send and receive buffer must not overlap

	// layout cuts the size asked for into what the ranks send and receive.
	layout func(elements, elemBytes, ranks int) layout
	// bus is the factor from algbw to busbw.
	bus func(ranks int) float64
}

// layout is the shape of one call, in elements.
type layout struct {
	send, recv int // sizes of the buffers, the same on all ranks
	count      int // the count argument of the call
	moved      int // what algbw is computed from

	// In place, rank r's send buffer begins sendShift*r and its receive buffer
	// recvShift*r elements into the common buffer.
	sendShift, recvShift int
}

// tests is what nccl-tests offers, in the order of its documentation.
var tests = []test{
	{name: "all_reduce", kind: plan.AllReduce, reduces: true, layout: whole,
		bus: func(n int) float64 { return 2 * float64(n-1) / float64(n) }},
	{name: "all_gather", kind: plan.AllGather, layout: gathered, bus: others},
	{name: "reduce_scatter", kind: plan.ReduceScatter, reduces: true, layout: scattered, bus: others},
	{name: "broadcast", kind: plan.Broadcast, rooted: true, layout: whole, bus: one},
	{name: "reduce", kind: plan.Reduce, reduces: true, rooted: true, layout: whole, bus: one},
	{name: "alltoall", kind: plan.AlltoAll, apart: true, layout: exchanged, bus: others},
	{name: "alltoallv", kind: plan.AlltoAllv, apart: true, layout: exchanged, bus: others},
	{name: "gather", kind: plan.Gather, rooted: true, layout: gathered, bus: others},
	{name: "scatter", kind: plan.Scatter, rooted: true, layout: scattered, bus: others},
	{name: "sendrecv", kind: plan.Send, apart: true, layout: whole, bus: one},
}

// Collectives lists the names that [Run] accepts.
func Collectives() []string {
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = t.name
	}
	return names
}

// testNamed returns nil for a name that is not one of Collectives.
func testNamed(name string) *test {
	for i := range tests {
		if tests[i].name == name {
			return &tests[i]
		}
	}
	return nil
}

// one: every byte crosses the slowest link once.
func one(int) float64 { return 1 }

// others: of the bytes counted, a rank's own n-th does not travel.
func others(n int) float64 { return float64(n-1) / float64(n) }

func whole(elements, _, _ int) layout {
	return layout{send: elements, recv: elements, count: elements, moved: elements}
}

func gathered(elements, elemBytes, ranks int) layout {
	block := perRank(elements, elemBytes, ranks)
	return layout{send: block, recv: block * ranks, count: block, moved: block * ranks, sendShift: block}
}

func scattered(elements, elemBytes, ranks int) layout {
	block := perRank(elements, elemBytes, ranks)
	return layout{send: block * ranks, recv: block, count: block, moved: block * ranks, recvShift: block}
}

func exchanged(elements, elemBytes, ranks int) layout {
	block := perRank(elements, elemBytes, ranks)
	return layout{send: block * ranks, recv: block * ranks, count: block, moved: block * ranks}
}

// perRank is a rank's share of the elements, rounded down to 16 bytes: sizes below
// 16 bytes per rank give empty operations, as in nccl-tests.
func perRank(elements, elemBytes, ranks int) int {
	return elements / ranks &^ (16/elemBytes - 1)
}

// uneven is the traffic of alltoallv: how many elements each rank sends to each
// other one.
type uneven struct {
	ranks  int
	counts []int // by distance in the ring: from rank r to rank r+d
}

// newUneven spreads a rank's total over the distances 0…ranks-1 in proportion to
// the distance (spread 1), evenly (spread 0) or in between, in multiples of 16
// bytes. All ranks send and receive the same amount.
func newUneven(total, elemBytes, ranks int, spread float64) uneven {
	u := uneven{ranks: ranks, counts: make([]int, ranks)}
	distances := float64(ranks*(ranks-1)) / 2
	for d := range u.counts {
		weight := 1 / float64(ranks)
		if ranks > 1 {
			weight = spread*float64(d)/distances + (1-spread)*weight
		}
		u.counts[d] = int(math.Floor(float64(total)*weight)) &^ (16/elemBytes - 1)
	}
	return u
}

// total is what every rank sends, and receives, in elements.
func (u uneven) total() int {
	sum := 0
	for _, c := range u.counts {
		sum += c
	}
	return sum
}

// between is what rank from sends to rank to.
func (u uneven) between(from, to int) int { return u.counts[(to-from+u.ranks)%u.ranks] }

// sent returns the counts and offsets of what rank sends, by receiver.
func (u uneven) sent(rank int) (counts, offsets []int) {
	return u.lay(func(peer int) int { return u.between(rank, peer) })
}

// received returns the counts and offsets of what rank receives, by sender.
func (u uneven) received(rank int) (counts, offsets []int) {
	return u.lay(func(peer int) int { return u.between(peer, rank) })
}

func (u uneven) lay(count func(peer int) int) (counts, offsets []int) {
	at := 0
	for peer := range u.ranks {
		counts, offsets = append(counts, count(peer)), append(offsets, at)
		at += count(peer)
	}
	return counts, offsets
}

// Shape is how a collective divides a size among its ranks. Count is the call's, in
// elements; SendBytes and RecvBytes are a rank's buffers (of the root, where only
// the root has one); Moved is what algbw counts, in bytes; busbw is BusFactor
// times algbw.
type Shape struct {
	Kind                 plan.Kind
	Count                int
	SendBytes, RecvBytes int
	Moved                int
	BusFactor            float64
}

// ShapeOf returns the shape of a collective of size bytes, of elements of
// elemBytes, over ranks ranks, as nccl-tests cuts it.
func ShapeOf(collective string, size, elemBytes, ranks int) (Shape, error) {
	t := testNamed(collective)
	if t == nil {
		return Shape{}, usagef("unknown collective %q; accepted: %s", collective, strings.Join(Collectives(), ", "))
	}
	l := t.layout(size/elemBytes, elemBytes, ranks)
	return Shape{
		Kind: t.kind, Count: l.count,
		SendBytes: l.send * elemBytes, RecvBytes: l.recv * elemBytes,
		Moved: l.moved * elemBytes, BusFactor: t.bus(ranks),
	}, nil
}
