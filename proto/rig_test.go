package proto

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// A rig is one rank in the middle of things: FIFOs from some ranks, which only
// send, and to some ranks, which only receive. All of them execute one program.
// What must come out is computed on slices of float64, in which all the values
// used are exact.

// rig is the shape of a test: who is connected how.
type rig struct {
	in, out int // ranks received from and sent to
	own     int // Ends.Own
	payload int
	first   uint64 // step
	policy  spin.Policy
	flavour flavour
}

func (r rig) String() string {
	return fmt.Sprintf("%s, %d in, %d out, own input at %d, payload %d, first step %#x, %v", r.flavour.name, r.in, r.out, r.own, r.payload, r.first, r.policy)
}

// flavour is a protocol, and the chunks in which it can be used on one FIFO.
type flavour struct {
	name      string
	slotBytes func(payload int) int
	// open makes primitives for elements of element bytes; chunking selects
	// among chunks (steps per chunk, steps per slice).
	open   func(ends Ends, element, payload int, c chunking) Primitives
	chunks []chunking
}

type chunking struct{ chunkSteps, sliceSteps int }

var flavours = []flavour{
	{"simple", SlotBytesSimple, openSimple, []chunking{{1, 1}}},
	{"simple with chunks of 4 steps and of 1", SlotBytesSimple, openSimple, []chunking{{4, 2}, {1, 1}}},
	{"ll", SlotBytesLL, func(ends Ends, _, _ int, _ chunking) Primitives {
		return NewLL(ends)
	}, []chunking{{1, 1}}},
	{"ll128", SlotBytesLL128, func(ends Ends, _, _ int, _ chunking) Primitives {
		return NewLL128(ends)
	}, []chunking{{1, 1}}},
}

func openSimple(ends Ends, element, payload int, c chunking) Primitives {
	return NewSimple(ends, element, payload, c.chunkSteps, c.sliceSteps)
}

// operation is one call: a kernel and some chunks.
type operation struct {
	header uint64
	math   arithmetic
	chunking
	steps []chunk
}

// chunk is one primitive. Values are by element.
type chunk struct {
	verb     verb
	inPlace  bool
	input    []float64
	output   []float64   // what the output holds before
	received [][]float64 // by rank received from
}

func (c *chunk) String() string {
	return fmt.Sprintf("%s of %d elements (in place: %v)", verbNames[c.verb], len(c.input), c.inPlace)
}

var verbNames = map[verb]string{
	send: "send", sendFromOutput: "sendFromOutput", recv: "recv", copySend: "copySend",
	recvCopySend: "recvCopySend", recvReduceSend: "recvReduceSend",
	recvReduceCopy: "recvReduceCopy", recvReduceCopySend: "recvReduceCopySend",
}

var verbs = []verb{send, sendFromOutput, recv, copySend, recvCopySend, recvReduceSend, recvReduceCopy, recvReduceCopySend}

// possible reports whether schedules use v between so many ranks.
func (r rig) possible(v verb) bool {
	if v.has(toFIFO) && r.out == 0 {
		return false
	}
	if v.has(fromFIFO) && !v.has(fromInput) && r.in != 1 {
		return false // what is not combined comes from one rank
	}
	return !v.has(fromFIFO) || r.in > 0
}

// arithmetic is a reduction, and what it means in float64.
type arithmetic struct {
	typ     dtype.Type
	op      reduce.Op
	ranks   int
	scalar  float64 // of PreMulSum
	combine func(a, b float64) float64
}

func plus(a, b float64) float64 { return a + b }

var arithmetics = []arithmetic{
	{dtype.Uint8, reduce.Sum, 4, 0, plus},
	{dtype.Int32, reduce.Sum, 4, 0, plus},
	{dtype.Float64, reduce.Max, 4, 0, math.Max},
	{dtype.Float32, reduce.Avg, 4, 0, plus},
	{dtype.Int32, reduce.Avg, 4, 0, plus},
	{dtype.Uint8, reduce.Avg, 3, 0, plus},
	{dtype.Int32, reduce.PreMulSum, 4, 3, plus},
	{dtype.Float64, reduce.PreMulSum, 4, 0.5, plus},
}

func (a arithmetic) kernel() (*reduce.Kernel, error) {
	var s reduce.Scalar
	if a.op == reduce.PreMulSum {
		s = reduce.ScalarOf(a.typ, a.scalar)
	}
	k, err := reduce.For(a.typ, a.op, a.ranks, s)
	return &k, err
}

// pre is what happens to a rank's own input, post to a finished value.
func (a arithmetic) pre(x float64) float64 {
	switch {
	case a.op == reduce.PreMulSum:
		return x * a.scalar
	case a.op == reduce.Avg && a.typ.Float():
		return x / float64(a.ranks)
	}
	return x
}

func (a arithmetic) post(x float64) float64 {
	if a.op == reduce.Avg && a.typ.Integer() {
		return math.Trunc(x / float64(a.ranks))
	}
	return x
}

// result is the oracle: what c leaves in the output, or sends.
func (c *chunk) result(a arithmetic) []float64 {
	want := make([]float64, len(c.input))
	for i := range want {
		switch c.verb {
		case send, copySend:
			want[i] = a.pre(c.input[i])
		case sendFromOutput:
			want[i] = c.output[i]
		case recv, recvCopySend:
			want[i] = c.received[0][i]
		default:
			want[i] = a.pre(c.input[i])
			for _, r := range c.received {
				want[i] = a.combine(want[i], r[i])
			}
			if c.verb != recvReduceSend {
				want[i] = a.post(want[i])
			}
		}
	}
	return want
}

// encode stores values as elements of t.
func encode(t dtype.Type, values []float64) []byte {
	b := make([]byte, 0, len(values)*t.Size())
	for _, v := range values {
		switch t {
		case dtype.Uint8:
			b = append(b, uint8(v))
		case dtype.Int32:
			b = binary.LittleEndian.AppendUint32(b, uint32(int32(v)))
		case dtype.Float32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
		case dtype.Float64:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		default:
			panic(fmt.Sprintf("no encoding for %v", t))
		}
	}
	return b
}

// program draws operations that r can execute.
func (r rig) program(random *rand.Rand, operations int) []operation {
	var possible []verb
	for _, v := range verbs {
		if r.possible(v) {
			possible = append(possible, v)
		}
	}
	program := make([]operation, operations)
	for i := range program {
		a := arithmetics[random.IntN(len(arithmetics))]
		if a.typ.Size() > r.payload {
			a = arithmetics[0]
		}
		op := operation{header: random.Uint64(), math: a, chunking: r.flavour.chunks[random.IntN(len(r.flavour.chunks))]}
		for range 1 + random.IntN(6) {
			op.steps = append(op.steps, r.chunk(random, possible[random.IntN(len(possible))], &op))
		}
		program[i] = op
	}
	return program
}

// chunk draws one chunk; its length is often at an edge.
func (r rig) chunk(random *rand.Rand, v verb, op *operation) chunk {
	size := op.math.typ.Size()
	slice := r.payload * op.sliceSteps / size
	most := slice * (op.chunkSteps / op.sliceSteps)
	n := random.IntN(most + 1)
	switch random.IntN(6) {
	case 0:
		n = 0
	case 1:
		n = 1
	case 2:
		n = most
	case 3:
		n = max(0, most-1)
	}
	values := func() []float64 {
		s := make([]float64, n)
		for i := range s {
			s[i] = float64(random.IntN(16))
		}
		return s
	}
	c := chunk{verb: v, input: values(), output: values()}
	if v.has(fromInput) && v.has(toOutput) && random.IntN(2) == 0 {
		c.inPlace, c.output = true, c.input
	}
	if v.has(fromFIFO) {
		for range r.in {
			c.received = append(c.received, values())
		}
	}
	return c
}

// onlyContext is a Watch for which nothing fails by itself.
type onlyContext struct{}

func (onlyContext) Failed() error                { return nil }
func (onlyContext) Inspect(spin.Condition) error { return nil }
func (onlyContext) Expired(c spin.Condition, cause error) error {
	return fmt.Errorf("waiting for rank %d: %w", c.Peer(), cause)
}

// run executes program on all ranks of the rig and returns what went wrong.
func (r rig) run(t *testing.T, program []operation) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	newWaiter := func() *spin.Waiter {
		w := spin.NewWaiter(r.policy, 1+r.in+r.out)
		w.Bind(ctx, onlyContext{}, 0)
		return w
	}
	var from []*transport.RecvEnd
	var to []*transport.SendEnd
	var ranks sync.WaitGroup
	errs := make([]error, 1+r.in+r.out)
	for i := range r.in {
		c := newConn(t, r.flavour.slotBytes(r.payload), r.first)
		from = append(from, transport.NewRecvEnd(c, 1+i))
		end := transport.NewSendEnd(c, 0)
		ranks.Go(func() {
			errs[1+i] = r.feed(program, i, end, newWaiter())
			if errs[1+i] != nil {
				cancel()
			}
		})
	}
	for i := range r.out {
		rank := 1 + r.in + i
		c := newConn(t, r.flavour.slotBytes(r.payload), r.first)
		to = append(to, transport.NewSendEnd(c, rank))
		end := transport.NewRecvEnd(c, 0)
		ranks.Go(func() {
			errs[rank] = r.drain(program, end, newWaiter())
			if errs[rank] != nil {
				cancel()
			}
		})
	}
	if errs[0] = r.middle(program, from, to, newWaiter()); errs[0] != nil {
		cancel()
	}
	ranks.Wait()
	return errors.Join(errs...)
}

func newConn(t *testing.T, slot int, first uint64) *transport.Conn {
	t.Helper()
	c, err := transport.NewConn(slot, first)
	require.NoError(t, err)
	return c
}

// feed sends what rank i has for the middle, as it is.
func (r rig) feed(program []operation, i int, to *transport.SendEnd, w *spin.Waiter) error {
	for _, op := range program {
		pipe := r.flavour.open(Ends{To: []*transport.SendEnd{to}}, op.math.typ.Size(), r.payload, op.chunking)
		pipe.Begin(Operation{Waiter: w, Header: op.header})
		for _, c := range op.steps {
			if c.received == nil {
				continue
			}
			if err := pipe.Send(encode(op.math.typ, c.received[i])); err != nil {
				return err
			}
		}
	}
	return nil
}

// drain receives what the middle sends and compares it.
func (r rig) drain(program []operation, from *transport.RecvEnd, w *spin.Waiter) error {
	for n, op := range program {
		pipe := r.flavour.open(Ends{From: []*transport.RecvEnd{from}}, op.math.typ.Size(), r.payload, op.chunking)
		pipe.Begin(Operation{Waiter: w, Header: op.header})
		for k, c := range op.steps {
			if !c.verb.has(toFIFO) {
				continue
			}
			want := encode(op.math.typ, c.result(op.math))
			got := newGuarded(make([]byte, len(want)))
			if err := pipe.Recv(got.bytes); err != nil {
				return err
			}
			if err := got.compare(want); err != nil {
				return fmt.Errorf("operation %d, chunk %d, sent by %v: %w", n, k, &c, err)
			}
		}
	}
	return nil
}

// middle executes the primitives under test.
func (r rig) middle(program []operation, from []*transport.RecvEnd, to []*transport.SendEnd, w *spin.Waiter) error {
	for n, op := range program {
		kernel, err := op.math.kernel()
		if err != nil {
			return err
		}
		pipe := r.flavour.open(Ends{From: from, To: to, Own: r.own}, op.math.typ.Size(), r.payload, op.chunking)
		pipe.Begin(Operation{Waiter: w, Kernel: kernel, Header: op.header})
		for k, c := range op.steps {
			in := newGuarded(encode(op.math.typ, c.input))
			out := newGuarded(encode(op.math.typ, c.output))
			if c.inPlace {
				out = in
			}
			if err := c.do(pipe, in.bytes, out.bytes); err != nil {
				return fmt.Errorf("operation %d, chunk %d, %v: %w", n, k, &c, err)
			}
			want := encode(op.math.typ, c.output)
			if c.verb.has(toOutput) {
				want = encode(op.math.typ, c.result(op.math))
			}
			if err := out.compare(want); err != nil {
				return fmt.Errorf("operation %d, chunk %d, output of %v: %w", n, k, &c, err)
			}
			if c.inPlace {
				continue
			}
			if err := in.compare(encode(op.math.typ, c.input)); err != nil {
				return fmt.Errorf("operation %d, chunk %d, input of %v: %w", n, k, &c, err)
			}
		}
	}
	return nil
}

func (c *chunk) do(pipe Primitives, in, out []byte) error {
	switch c.verb {
	case send:
		return pipe.Send(in)
	case sendFromOutput:
		return pipe.SendFromOutput(out)
	case recv:
		return pipe.Recv(out)
	case copySend:
		return pipe.CopySend(in, out)
	case recvCopySend:
		return pipe.RecvCopySend(out)
	case recvReduceSend:
		return pipe.RecvReduceSend(in)
	case recvReduceCopy:
		return pipe.RecvReduceCopy(in, out)
	default:
		return pipe.RecvReduceCopySend(in, out)
	}
}

// guarded is a buffer between two strips that nobody may write.
type guarded struct{ all, bytes []byte }

const guardBytes, guardByte = 160, 0x5e

func newGuarded(content []byte) guarded {
	all := make([]byte, len(content)+2*guardBytes)
	for i := range all {
		all[i] = guardByte
	}
	copy(all[guardBytes:], content)
	// The capacity reaches into the guard: an append or a reslice must not.
	return guarded{all, all[guardBytes : guardBytes+len(content)]}
}

func (g guarded) compare(want []byte) error {
	for i, b := range g.all {
		at := i - guardBytes
		if at < 0 || at >= len(g.bytes) {
			if b != guardByte {
				return fmt.Errorf("byte %d of a buffer of %d was written", at, len(g.bytes))
			}
		} else if b != want[at] {
			return fmt.Errorf("byte %d of %d is %#x, want %#x", at, len(want), b, want[at])
		}
	}
	return nil
}
