// Package trial makes one collective call over all ranks of a communicator, for
// tests: it fills the buffers, issues the call in one of the forms of the API, and
// compares every byte of memory with what package sequential says.
package trial

import (
	"context"
	"fmt"
	"sync"

	"github.com/gollective/gollective/bench/perf/verify"
	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/internal/sequential"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// Case describes a call and its buffers.
type Case struct {
	Kind    plan.Kind // Send is a group in which every rank sends and receives
	Type    dtype.Type
	Op      reduce.Op
	Count   int
	Root    int // as in sequential.Call
	InPlace bool

	// SendOffset and RecvOffset move the buffers by so many bytes from a
	// multiple of 16.
	SendOffset, RecvOffset int

	// Arbitrary takes any bits for data: floats round, and NaNs and infinities
	// occur. There is no expectation then; ranks must only agree.
	Arbitrary bool
	Seed      uint64
}

// Memory provides a buffer of so many bytes, offset bytes behind a multiple of 16.
// What it returns begins and ends with the buffer's surroundings, which must not
// change; before tells how many bytes are in front.
type Memory func(bytes, offset int) (around []byte, before int)

// margin is what Heap puts on either side of a buffer.
const margin = 160

// Heap is ordinary memory with a margin on either side.
func Heap(bytes, offset int) ([]byte, int) {
	return From(func(bytes int) []byte { return make([]byte, bytes) })(bytes, offset)
}

// From is the same in memory that alloc makes.
func From(alloc func(bytes int) []byte) Memory {
	return func(bytes, offset int) ([]byte, int) {
		around := alloc(16 + margin + 16 + bytes + margin)
		return around, align(around) + margin + offset
	}
}

// buffer is one rank's memory for sending or receiving.
type buffer struct {
	around []byte
	used   []byte // part of around
	before []byte // what around held before the call
}

func (m Memory) buffer(bytes, offset int, seed uint64) *buffer {
	around, before := m(bytes, offset)
	verify.Pattern{Seed: seed}.Fill(around, 0)
	return &buffer{around: around, used: around[before : before+bytes : before+bytes]}
}

// Trial is a Case with its memory, ready to be issued any number of times.
type Trial struct {
	Case
	n      int
	call   sequential.Call
	send   []*buffer // by rank; nil where the call has none
	recv   []*buffer // in place, one of a pair is part of the other
	inputs [][]byte  // copies of the ranks' data
}

// New makes the buffers of a case for n ranks and fills them.
func New(c Case, n int, memory Memory) *Trial {
	t := &Trial{
		Case: c, n: n,
		call: sequential.Call{Kind: c.Kind, Type: c.Type, Op: c.Op, Count: c.Count, Root: c.Root},
		send: make([]*buffer, n), recv: make([]*buffer, n),
	}
	if c.Kind == plan.AlltoAllv {
		t.spread()
	}
	data := verify.Reduction{Type: c.Type, Op: c.Op, Ranks: n, Seed: c.Seed}
	for rank := range n {
		if c.Op == reduce.PreMulSum {
			t.call.Scalars = append(t.call.Scalars, data.Scalar(rank).Bits)
		}
		t.allocate(rank, memory)
		if s := t.send[rank]; s != nil {
			if t.reduces() && !c.Arbitrary {
				data.Input(s.used, rank, 0)
			} else {
				verify.Pattern{Seed: c.Seed + uint64(rank)}.Fill(s.used, 0)
			}
		}
		for _, b := range []*buffer{t.send[rank], t.recv[rank]} {
			if b != nil {
				b.before = append([]byte(nil), b.around...)
			}
		}
		var input []byte
		if s := t.send[rank]; s != nil {
			input = append(input, s.used...)
		}
		t.inputs = append(t.inputs, input)
	}
	return t
}

func (t *Trial) reduces() bool {
	return t.Kind == plan.AllReduce || t.Kind == plan.Reduce || t.Kind == plan.ReduceScatter
}

// allocate makes rank's buffers. In place, the smaller one is cut out of the
// larger.
func (t *Trial) allocate(rank int, memory Memory) {
	sendBytes, recvBytes := t.call.SendBytes(rank, t.n), t.call.RecvBytes(rank, t.n)
	sends := t.Kind != plan.Barrier && (rank == t.Root || t.Kind != plan.Broadcast && t.Kind != plan.Scatter)
	receives := t.Kind != plan.Barrier && (rank == t.Root || t.Kind != plan.Reduce && t.Kind != plan.Gather)
	if t.InPlace && sends && receives {
		whole := memory.buffer(max(sendBytes, recvBytes), t.SendOffset, t.Seed+uint64(2*rank)+1000)
		part := func(bytes int) *buffer {
			begin := 0
			if bytes < len(whole.used) {
				begin = rank * bytes
			}
			return &buffer{around: whole.around, used: whole.used[begin : begin+bytes : begin+bytes]}
		}
		t.send[rank], t.recv[rank] = part(sendBytes), part(recvBytes)
		return
	}
	if sends {
		t.send[rank] = memory.buffer(sendBytes, t.SendOffset, t.Seed+uint64(2*rank)+1000)
	}
	if receives {
		t.recv[rank] = memory.buffer(recvBytes, t.RecvOffset, t.Seed+uint64(2*rank)+1001)
	}
}

// spread makes the counts of an AlltoAllv: between 0 and 2·Count, ranges in
// another order than ranks, with gaps.
func (t *Trial) spread() {
	grid := func() [][]int {
		g := make([][]int, t.n)
		for p := range g {
			g[p] = make([]int, t.n)
		}
		return g
	}
	t.call.Counts, t.call.SendOffsets, t.call.RecvOffsets = grid(), grid(), grid()
	h := t.Seed
	next := func(below int) int {
		h = h*6364136223846793005 + 1442695040888963407
		return int(h >> 33 % uint64(below))
	}
	for p := range t.n {
		for q := range t.n {
			t.call.Counts[p][q] = next(2*t.Count + 1)
		}
	}
	for p := range t.n {
		lay := func(counts, offsets []int) {
			at, first := next(3), next(t.n)
			for i := range t.n {
				q := (first + i*(t.n-1)) % t.n
				offsets[q] = at
				at += counts[q] + next(3)
			}
		}
		lay(t.call.Counts[p], t.call.SendOffsets[p])
		lay(t.call.CountsTo(p), t.call.RecvOffsets[p])
	}
}

// Calls are what rank issues: two for Send, one otherwise.
func (t *Trial) Calls(rank int) []collective.Call {
	call := collective.Call{Kind: t.Kind, Type: t.Type, Count: t.Count, Root: t.Root}
	if t.reduces() {
		scalar := reduce.Scalar{}
		if t.Op == reduce.PreMulSum {
			scalar = reduce.Scalar{Type: t.Type, Bits: t.call.Scalars[rank]}
		}
		call.Op = collective.OpOf(t.Op, scalar)
	}
	if s := t.send[rank]; s != nil {
		call.Send = s.used
	}
	if r := t.recv[rank]; r != nil {
		call.Recv = r.used
	}
	switch t.Kind {
	case plan.AlltoAllv:
		call.SendCounts, call.SendOffsets = t.call.Counts[rank], t.call.SendOffsets[rank]
		call.RecvCounts, call.RecvOffsets = t.call.CountsTo(rank), t.call.RecvOffsets[rank]
	case plan.Send:
		receive := call
		receive.Kind, receive.Send = plan.Recv, nil
		receive.Root = (rank - t.Root%t.n + t.n) % t.n
		call.Recv, call.Root = nil, (rank+t.Root)%t.n
		return []collective.Call{call, receive}
	}
	return []collective.Call{call}
}

// Form is a way of issuing a call.
type Form uint8

const (
	Blocking     Form = iota // Comm.Do
	Async                    // Comm.Start; all calls are queued, then waited for
	Grouped                  // a Group of one call
	Fused                    // one Group of all of a rank's calls, see Run
	OneGoroutine             // one Group of all ranks
	FormsCount
)

func (f Form) String() string {
	return [...]string{"blocking", "async", "grouped", "fused", "one goroutine"}[f]
}

// Run issues the trials one after the other on comms, which are all ranks or those
// of one process of several that do the same, a rank per goroutine but for
// OneGoroutine. Fused puts as many trials into a group as its order allows:
// messages come last.
func Run(comms []*collective.Comm, form Form, trials ...*Trial) error {
	if form == OneGoroutine {
		for i, t := range trials {
			g := collective.NewGroup()
			for _, c := range comms {
				if err := record(g, c, t.Calls(c.Rank())); err != nil {
					return fmt.Errorf("call %d (%+v), rank %d: %w", i, t.Case, c.Rank(), err)
				}
			}
			if err := g.Run(context.Background()); err != nil {
				return fmt.Errorf("call %d (%+v): %w", i, t.Case, err)
			}
		}
		return nil
	}
	errs := make([]error, len(comms))
	var ranks sync.WaitGroup
	for i, c := range comms {
		ranks.Go(func() {
			if errs[i] = issue(c, c.Rank(), form, trials); errs[i] != nil {
				c.Abort()
			}
		})
	}
	ranks.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("rank %d, %v: %w", comms[i].Rank(), form, err)
		}
	}
	return nil
}

func record(g *collective.Group, c *collective.Comm, calls []collective.Call) error {
	for _, call := range calls {
		if err := g.Add(c, call); err != nil {
			return err
		}
	}
	return nil
}

// issue is one rank's part of Run.
func issue(c *collective.Comm, rank int, form Form, trials []*Trial) error {
	ctx := context.Background()
	var handles []*collective.Handle
	g, messages := collective.NewGroup(), false
	flush := func() error {
		h, err := g.Start(ctx)
		handles = append(handles, h)
		messages = false
		return err
	}
	for i, t := range trials {
		calls := t.Calls(rank)
		var err error
		switch {
		case form == Fused && messages && !t.message():
			if err = flush(); err == nil {
				err = record(g, c, calls)
			}
		case form == Fused:
			messages = messages || t.message()
			err = record(g, c, calls)
		case form == Grouped || len(calls) > 1:
			if err = record(g, c, calls); err == nil {
				err = g.Run(ctx)
			}
		case form == Async:
			var h *collective.Handle
			if h, err = c.Start(ctx, calls[0]); err == nil {
				handles = append(handles, h)
			}
		default:
			err = c.Do(ctx, calls[0])
		}
		if err != nil {
			return fmt.Errorf("call %d (%+v): %w", i, t.Case, err)
		}
	}
	if form == Fused {
		if err := flush(); err != nil {
			return err
		}
	}
	for _, h := range handles {
		<-h.Done()
		if err := h.Err(); err != nil {
			return err
		}
	}
	return nil
}

// message reports whether the call is made of messages.
func (t *Trial) message() bool { return t.Kind >= plan.AlltoAll && t.Kind <= plan.Recv }
