package perf

import (
	"os"
	"sync"

	"github.com/gollective/gollective/bench/perf/verify"
	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// memory are one rank's buffers, for the largest size of the run. The in-place
// form works in recv alone.
type memory struct{ send, recv []byte }

// job is what one measurement runs: a call of every rank.
type job struct {
	test    *test
	typ     dtype.Type
	op      reduce.Op
	root    int // -1 for a collective without
	inPlace bool
	ranks   int
	layout
	uneven uneven // of alltoallv
}

func (o *Options) job(t *test, size int, typ dtype.Type, op reduce.Op, root, ranks int, spread float64) job {
	elements := size / typ.Size()
	j := job{test: t, typ: typ, op: op, root: root, ranks: ranks}
	j.layout = t.layout(elements, typ.Size(), j.ranks)
	if t.kind == plan.AlltoAllv {
		j.uneven = newUneven(elements, typ.Size(), j.ranks, spread)
		j.send, j.recv, j.moved = j.uneven.total(), j.uneven.total(), j.uneven.total()
	}
	return j
}

// bytes is the size of the larger of a rank's buffers: the size column.
func (j *job) bytes() int { return max(j.send, j.recv) * j.typ.Size() }

func (j *job) sendBytes() int { return j.send * j.typ.Size() }
func (j *job) recvBytes() int { return j.recv * j.typ.Size() }

// windows cuts rank's send and receive buffer out of its memory, shift bytes from
// the start.
func (j *job) windows(m memory, rank, shift int) (send, recv []byte) {
	if !j.inPlace {
		return m.send[shift:][:j.sendBytes()], m.recv[shift:][:j.recvBytes()]
	}
	both := m.recv[shift:]
	size := j.typ.Size()
	return both[rank*j.sendShift*size:][:j.sendBytes()], both[rank*j.recvShift*size:][:j.recvBytes()]
}

// caller makes one rank's calls.
type caller struct {
	*job
	rank   int
	mem    memory
	calls  []collective.Call // two of a sendrecv, else one
	shift  int               // bytes to the next iteration's windows
	shifts int               // how many windows there are
}

// newCaller prepares the calls. The windows of all iterations lie within the first
// total bytes of each buffer.
func newCaller(j *job, rank int, mem memory, total int) *caller {
	c := &caller{job: j, rank: rank, mem: mem, shift: j.bytes(), shifts: 1}
	if c.shift > 0 {
		c.shifts = max(1, total/c.shift)
	}
	call := collective.Call{Kind: j.test.kind, Type: j.typ, Count: j.count, Root: max(0, j.root)}
	if j.test.reduces {
		call.Op = collective.OpOf(j.op, j.inputs(0).Scalar(rank))
	}
	switch j.test.kind {
	case plan.AlltoAllv:
		call.Count = 0
		call.SendCounts, call.SendOffsets = j.uneven.sent(rank)
		call.RecvCounts, call.RecvOffsets = j.uneven.received(rank)
	case plan.Send:
		// Everybody sends to the next rank and receives from the previous one.
		call.Root = (rank + 1) % j.ranks
		back := call
		back.Kind, back.Root = plan.Recv, (rank-1+j.ranks)%j.ranks
		c.calls = append(c.calls, call, back)
		return c
	}
	c.calls = append(c.calls, call)
	return c
}

// at points the calls at the windows of an iteration.
func (c *caller) at(iteration int) []collective.Call {
	send, recv := c.windows(c.mem, c.rank, c.shift*(iteration%c.shifts))
	for i := range c.calls {
		c.calls[i].Send, c.calls[i].Recv = send, recv
	}
	return c.calls
}

// inputs are the test data of a reduction.
func (j *job) inputs(seed uint64) verify.Reduction {
	return verify.Reduction{Type: j.typ, Op: j.op, Ranks: j.ranks, Seed: seed}
}

// pattern is the test data that rank brings to an operation without reduction.
func pattern(seed uint64, rank int) verify.Pattern {
	return verify.Pattern{Seed: 1<<20*seed + uint64(rank)}
}

// fill puts rank's test data into the first send window, after the receive window
// has been filled with bytes that are wrong: in place, the two overlap.
func (j *job) fill(m memory, rank int, seed uint64) {
	send, recv := j.windows(m, rank, 0)
	verify.Poison(recv)
	if j.test.reduces {
		j.inputs(seed).Input(send, rank, 0)
	} else {
		pattern(seed, rank).Fill(send, 0)
	}
}

// piece is a part of what must be in a rank's receive buffer: bytes from rank's
// send buffer, or of the reduction where rank is -1.
type piece struct {
	at, bytes  int // in the receive buffer
	rank, from int // from: byte offset there
}

// expected lists the pieces of rank's receive buffer; nothing where the operation
// leaves it alone.
func (j *job) expected(rank int) []piece {
	block := j.count * j.typ.Size()
	switch j.test.kind {
	case plan.AllReduce:
		return []piece{{0, block, -1, 0}}
	case plan.ReduceScatter:
		return []piece{{0, block, -1, rank * block}}
	case plan.Reduce:
		if rank == j.root {
			return []piece{{0, block, -1, 0}}
		}
		return nil
	case plan.Broadcast:
		return []piece{{0, block, j.root, 0}}
	case plan.Scatter:
		return []piece{{0, block, j.root, rank * block}}
	case plan.Send:
		return []piece{{0, block, (rank - 1 + j.ranks) % j.ranks, 0}}
	case plan.Gather:
		if rank != j.root {
			return nil
		}
	}
	var pieces []piece // one of every rank: AllGather, Gather, AlltoAll, AlltoAllv
	for from := range j.ranks {
		p := piece{from * block, block, from, 0}
		switch j.test.kind {
		case plan.AlltoAll:
			p.from = rank * block
		case plan.AlltoAllv:
			counts, offsets := j.uneven.received(rank)
			_, sentAt := j.uneven.sent(from)
			size := j.typ.Size()
			p = piece{offsets[from] * size, counts[from] * size, from, sentAt[rank] * size}
		}
		pieces = append(pieces, p)
	}
	return pieces
}

// expect stores in dst what the beginning of p must be.
func (j *job) expect(dst []byte, p piece, seed uint64) {
	if p.rank < 0 {
		j.inputs(seed).Result(dst, p.from/j.typ.Size())
	} else {
		pattern(seed, p.rank).Fill(dst, p.from)
	}
}

// checkBytes is how much of a buffer is checked at a time: the expectation stays
// in cache, and no rank needs a third buffer.
const checkBytes = 64 << 10

// wrong counts the elements that are not what fill's data must give, in the
// receive buffers of the ranks from first on.
func (j *job) wrong(mem []memory, first int, seed uint64) int {
	counts := make([]int, len(mem))
	var ranks sync.WaitGroup
	for local := range mem {
		ranks.Go(func() {
			rank := first + local
			_, recv := j.windows(mem[local], rank, 0)
			want := make([]byte, checkBytes)
			for _, p := range j.expected(rank) {
				for p.bytes > 0 {
					n := min(p.bytes, checkBytes)
					j.expect(want[:n], p, seed)
					counts[local] += j.differ(recv[p.at:p.at+n], want[:n])
					p.at, p.from, p.bytes = p.at+n, p.from+n, p.bytes-n
				}
			}
		})
	}
	ranks.Wait()
	sum := 0
	for _, c := range counts {
		sum += c
	}
	return sum
}

func (j *job) differ(got, want []byte) int {
	if j.test.reduces {
		return j.inputs(0).Wrong(got, want)
	}
	return verify.Wrong(got, want, j.typ.Size())
}

// settle fills what iterations will touch of a rank's memory. In place, results
// become inputs again and again: those are zero, or floats would run into
// infinities and subnormals, which processors may treat a hundred times slower.
func (j *job) settle(m memory, rank, iterations int) {
	c := newCaller(j, rank, m, len(m.recv))
	touched := j.bytes() * min(iterations, c.shifts)
	clear(m.send[:touched])
	clear(m.recv[:touched])
	if j.test.reduces && !j.inPlace {
		j.inputs(seedOfTiming).Input(m.send[:touched], rank, 0)
	}
}

// seedOfTiming is nccl-tests'.
const seedOfTiming = 99

// Calls returns what rank calls for one operation of o.MinBytes, out of place, with
// buffers that hold zeros: two calls for a sendrecv, else one. Type, operator and
// root must be single ones.
func (o *Options) Calls(rank int) ([]collective.Call, error) {
	spread, err := alltoallvSpread(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	j := o.job(testNamed(o.Collective), o.MinBytes, o.types()[0], o.ops()[0], o.Root, o.Ranks(), spread)
	return newCaller(&j, rank, memory{make([]byte, j.bytes()), make([]byte, j.bytes())}, j.bytes()).at(0), nil
}
