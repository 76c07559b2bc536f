package exec

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
	"github.com/gollective/gollective/transport/inproc"
)

// registry is a transport whose ranks see what they have registered only, as those of
// several processes do, on memory that the race detector follows.
type registry struct {
	*inproc.Hub
	mu       sync.Mutex
	segments map[int][][]byte // by rank; freed ones are nil
	freed    map[int]uint64
	held     map[[2]uint64]int // how often Segment was called for rank and segment
}

var _ transport.Seer = (*registry)(nil)

func newRegistry() *registry {
	return &registry{Hub: inproc.NewHub(), segments: make(map[int][][]byte), freed: make(map[int]uint64), held: make(map[[2]uint64]int)}
}

func (*registry) Sees() transport.Sight { return transport.Some }

func (r *registry) alloc(rank, bytes int) []byte {
	b := make([]byte, bytes)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.segments[rank] = append(r.segments[rank], b)
	return b
}

func (r *registry) free(rank int, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range r.segments[rank] {
		if len(s) > 0 && &s[0] == &b[0] {
			r.segments[rank][i] = nil
			r.freed[rank]++
		}
	}
}

func (r *registry) Refer(rank int, b []byte) transport.Reference {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range r.segments[rank] {
		// Slices that end where their memory does tell where they begin.
		if at := cap(s) - cap(b); len(b) > 0 && at >= 0 && at < len(s) && &s[at] == &b[0] {
			return transport.Reference{Segment: uint64(i + 1), Offset: uint64(at)}
		}
	}
	return transport.Reference{}
}

func (r *registry) Freed(rank int) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.freed[rank]
}

func (r *registry) Segment(rank int, segment uint64) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if all := r.segments[rank]; segment-1 >= uint64(len(all)) || all[segment-1] == nil {
		return nil, fmt.Errorf("no segment %d of rank %d", segment, rank)
	}
	r.held[[2]uint64{uint64(rank), segment}]++
	return r.segments[rank][segment-1], nil
}

func (r *registry) Forget(rank int, segment uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[[2]uint64{uint64(rank), segment}]--
}

// directWorld has desks, and channels of small parts.
func directWorld(channels int, a plan.Algorithm) plan.World {
	w := smallWorld(channels)
	w.DeskPayload = 4 << 10
	w.Force.Algorithm, w.Force.Protocol = a, plan.Direct
	return w
}

// shape is how many blocks of a call's count a rank's buffers have.
func shape(s plan.Spec, rank, n int) (send, recv int) {
	send, recv = 1, 1
	switch {
	case s.Kind == plan.AllGather:
		recv = n
	case s.Kind == plan.ReduceScatter:
		send = n
	case s.Kind == plan.Reduce && rank != s.Root:
		recv = 0
	case s.Kind == plan.Broadcast && rank != s.Root:
		send = 0
	}
	return send, recv
}

// directCase is a call that all ranks make.
type directCase struct {
	spec    plan.Spec
	inPlace []bool // by rank
}

var directKinds = []plan.Kind{plan.AllReduce, plan.Reduce, plan.Broadcast, plan.AllGather, plan.ReduceScatter}

func drawCase(r *rand.Rand, n, most int) directCase {
	c := directCase{spec: plan.Spec{Kind: directKinds[r.IntN(len(directKinds))], Type: dtype.Int32, Count: 1 + r.IntN(most)}}
	switch c.spec.Kind {
	case plan.AllReduce:
		c.spec.Op = []reduce.Op{reduce.Sum, reduce.Avg}[r.IntN(2)]
		if c.spec.Op == reduce.Avg { // scaled beforehand
			c.spec.Type = dtype.Float32
		}
	case plan.Reduce, plan.ReduceScatter:
		c.spec.Op = reduce.Sum
	}
	if c.spec.Kind == plan.Reduce || c.spec.Kind == plan.Broadcast {
		c.spec.Root = r.IntN(n)
	}
	for range n {
		c.inPlace = append(c.inPlace, r.IntN(3) == 0)
	}
	return c
}

// value is element i of a rank's input: small, so that sums are exact, and a multiple of
// the number of ranks, so that averages are.
func value(seed uint64, rank, n, i int) int { return n * (int(seed%97) + rank*3 + i%89) }

// buffers lays a rank's call out in memory, which alloc makes.
func (c *directCase) buffers(rank, n int, seed uint64, alloc func(bytes int) []byte) Call {
	s, size := c.spec, c.spec.Type.Size()
	send, recv := shape(s, rank, n)
	block := s.Count * size
	s.InPlace = c.inPlace[rank] && send > 0 && recv > 0
	call := Call{Spec: s}
	if s.InPlace {
		whole := alloc(max(send, recv) * block)
		call.Send, call.Recv = whole, whole
		if s.Kind == plan.AllGather {
			call.Send = whole[rank*block : (rank+1)*block]
		}
		if s.Kind == plan.ReduceScatter {
			call.Recv = whole[rank*block : (rank+1)*block]
		}
	} else {
		if send > 0 {
			call.Send = alloc(send * block)
		}
		if recv > 0 {
			call.Recv = alloc(recv * block)
		}
	}
	for i := range len(call.Send) / size {
		put(call.Send[i*size:], s.Type, value(seed, rank, n, i))
	}
	return call
}

func put(b []byte, t dtype.Type, x int) {
	bits := uint32(x)
	if t == dtype.Float32 {
		bits = math.Float32bits(float32(x))
	}
	binary.LittleEndian.PutUint32(b, bits)
}

// check compares what a rank has received with a loop over ranks.
func (c *directCase) check(call *Call, rank, n int, seed uint64) error {
	s, size := c.spec, c.spec.Type.Size()
	want := make([]byte, len(call.Recv))
	for i := range len(want) / size {
		x := 0
		switch s.Kind {
		case plan.AllGather:
			x = value(seed, i/s.Count, n, i%s.Count)
		case plan.Broadcast:
			x = value(seed, s.Root, n, i)
		default:
			at := i
			if s.Kind == plan.ReduceScatter {
				at += rank * s.Count
			}
			for r := range n {
				x += value(seed, r, n, at)
			}
			if s.Op == reduce.Avg {
				x /= n
			}
		}
		put(want[i*size:], s.Type, x)
	}
	if !bytes.Equal(want, call.Recv) {
		at := 0
		for want[at] == call.Recv[at] {
			at++
		}
		return fmt.Errorf("%v, in place %v: element %d of %d differs", s, c.inPlace, at/size, len(want)/size)
	}
	return nil
}

// All kinds with memory of any kind: lent between goroutines, registered, registered on
// some ranks only; and on several channels at once, while segments come and go.
func TestMemoryOfAllKindsGivesWhatALoopGives(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range 24 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		n, channels := 2+r.IntN(4), 1+r.IntN(3)
		hub := newRegistry()
		connect := func(int) transport.Transport { return hub }
		if round%3 == 0 {
			connect = inOneHub()
		}
		all := engines(t, n, directWorld(channels, plan.TwoShot), spin.Adaptive, connect)
		cases := make([]directCase, 15)
		for i := range cases {
			cases[i] = drawCase(r, n, []int{3, 700, 9000}[r.IntN(3)])
		}
		requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
			own := rand.New(rand.NewPCG(seed, uint64(1000*round+rank)))
			for i := range cases {
				var mine [][]byte
				registers := own.IntN(8) > 0
				alloc := func(bytes int) []byte {
					shift := own.IntN(5)
					if !registers {
						return make([]byte, bytes+shift)[shift:]
					}
					mine = append(mine, hub.alloc(rank, bytes+shift))
					return mine[len(mine)-1][shift:]
				}
				call := cases[i].buffers(rank, n, seed+uint64(i), alloc)
				if err := e.Run(ctx, &call); err != nil {
					return fmt.Errorf("call %d, %v: %w", i, call.Spec, err)
				}
				if err := cases[i].check(&call, rank, n, seed+uint64(i)); err != nil {
					return fmt.Errorf("call %d: %w", i, err)
				}
				for _, b := range mine {
					if own.IntN(2) == 0 {
						clear(b)
						hub.free(rank, b)
					}
				}
			}
			return nil
		}))
		for key, held := range hub.held {
			require.GreaterOrEqual(t, held, 0, "rank and segment %v", key)
			require.LessOrEqual(t, held, (n-1)*channels, "rank and segment %v", key)
		}
	}
}

// When a call has failed, its buffers are its caller's: nobody reads or writes them any
// more, which the race detector and their content show.
func TestNobodyTouchesBuffersOfAFailedCall(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	failed := 0
	for round := range 150 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		n := 2 + r.IntN(3)
		hub := newRegistry()
		connect := func(int) transport.Transport { return hub }
		if round%2 == 0 {
			connect = inOneHub()
		}
		all := engines(t, n, directWorld(1+r.IntN(2), plan.TwoShot), spin.Adaptive, connect)
		c := drawCase(r, n, 1+r.IntN(200_000))
		calls := make([]Call, n)
		for rank := range calls {
			calls[rank] = c.buffers(rank, n, seed, func(bytes int) []byte { return hub.alloc(rank, bytes) })
		}
		victim, after := r.IntN(n), time.Duration(r.IntN(1<<(4+r.IntN(10))))*time.Microsecond
		cause := errors.New("on purpose")
		late := r.IntN(n)
		errs := onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			var aborting sync.WaitGroup
			defer aborting.Wait()
			if rank == victim {
				aborting.Go(func() {
					spinFor(after)
					if round%3 == 0 {
						cancel(cause)
					} else {
						e.ledger.Fail(&fault.Abort{Rank: rank, Cause: cause})
					}
				})
			}
			if rank == late {
				spinFor(after / 2)
			}
			for range 3 {
				if err := e.Run(ctx, &calls[rank]); err != nil {
					scribble(calls[rank].Send, calls[rank].Recv)
					return err
				}
			}
			return nil
		})
		for rank, err := range errs {
			if err == nil {
				continue
			}
			failed++
			require.ErrorIs(t, err, fault.ErrAborted)
			for _, b := range [][]byte{calls[rank].Send, calls[rank].Recv} {
				require.Equal(t, -1, slices.IndexFunc(b, func(x byte) bool { return x != scribbled }),
					"round %d: the buffers of rank %d were written after its call", round, rank)
			}
		}
	}
	require.Positive(t, failed, "nothing was provoked")
	t.Logf("%d calls failed", failed)
}

const scribbled = 0xee

func scribble(buffers ...[]byte) {
	for _, b := range buffers {
		for i := range b {
			b[i] = scribbled
		}
	}
}

func spinFor(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
	}
}

// What a peer says about its memory is checked.
func TestReferencesBehindTheEndOfASegmentAreRefused(t *testing.T) {
	all := engines(t, 2, directWorld(1, plan.TwoShot), spin.Adaptive, func(int) transport.Transport { return newRegistry() })
	w := all[0].main
	m := &meeting{mapped: make([]mapped, 2)}
	m.mapped[1].segments = []segment{{number: 1, memory: make([]byte, 100)}}
	for _, tc := range []struct {
		offset uint64
		bytes  int
		fits   bool
	}{
		{0, 100, true}, {100, 0, true}, {40, 60, true}, {99, 1, true},
		{0, 101, false}, {101, 0, false}, {100, 1, false}, {1 << 63, 1, false}, {^uint64(0), 2, false}, {^uint64(0) - 40, 60, false},
	} {
		b, err := w.find(m, 1, 1, tc.offset, tc.bytes)
		if tc.fits {
			require.NoError(t, err)
			require.Len(t, b, tc.bytes)
			continue
		}
		require.ErrorIs(t, err, fault.ErrPeerLost, "%+v", tc)
	}
}
