package collective_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
)

// A random program is a seed. All ranks draw the same operations from it, and each
// rank draws for itself when it sleeps, which calls it makes asynchronously and when
// it looks at the results. The inputs are a function of seed, operation, rank and
// element, so every rank can compute what it must receive without any other.

// TestRandomProgramsGiveWhatAModelGives runs random programs on random
// communicators until its time is up.
func TestRandomProgramsGiveWhatAModelGives(t *testing.T) {
	limit := 15 * time.Second
	if underRace {
		limit = 5 * time.Second
	}
	end := time.Now().Add(durationOf(t, "GOLLECTIVE_TEST_PROPERTY", limit))
	seed := seedOf(t)
	rounds, operations := 0, 0
	for ; time.Now().Before(end); rounds++ {
		n, err := randomProgram(t, seed+uint64(rounds))
		operations += n
		if err != nil {
			t.Fatalf("GOLLECTIVE_TEST_SEED=%d: %v", seed+uint64(rounds), err)
		}
	}
	t.Logf("%d programs, %d operations", rounds, operations)
}

// randomProgram runs the program of a seed and returns its number of operations.
func randomProgram(t *testing.T, seed uint64) (operations int, err error) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	n := 1 + r.IntN(6)
	config := randomConfig(r)
	comms, err := collective.InitAllConfig(n, config)
	if err != nil {
		return 0, fmt.Errorf("%+v: %w", config, err)
	}
	counts := make([]int, n)
	length := 5 + r.IntN(40)
	errs := onRanks(t, comms, func(c *collective.Comm) error {
		a := newActor(c, seed, "world")
		err := a.run(length, 3)
		if err != nil {
			c.Abort() // the others wait for this rank
		}
		counts[c.Rank()] = a.operations
		return errors.Join(err, c.Close())
	})
	var first error
	for rank, err := range errs {
		if err != nil && (first == nil || errors.Is(first, collective.ErrAborted)) {
			first = fmt.Errorf("rank %d of %d, %+v: %w", rank, n, config, err)
		}
		operations += counts[rank]
	}
	return operations, first
}

func randomConfig(r *rand.Rand) collective.Config {
	c := collective.Config{
		Algorithm: plan.Algorithms()[r.IntN(5)],
		Protocol:  []plan.Protocol{plan.AutoProtocol, plan.AutoProtocol, plan.Simple, plan.LL, plan.LL128, plan.Direct}[r.IntN(6)],
		Wait:      []spin.Policy{spin.Adaptive, spin.Adaptive, spin.Block, spin.Yield, spin.Spin}[r.IntN(5)],
		Channels:  r.IntN(5),
	}
	if c.Wait == spin.Spin && underRace {
		c.Wait = spin.Yield // many that spin on few processors are slow enough without
	}
	if r.IntN(2) == 0 {
		c.RanksPerNode = 1 + r.IntN(3)
	}
	if r.IntN(2) == 0 { // tiny FIFOs reach the many-loop paths
		c.BuffSize, c.LLBuffSize = 512<<r.IntN(8), 512<<r.IntN(8)
		c.LL128BuffSize, c.P2PChunkSize = 1024<<r.IntN(8), 64<<r.IntN(8)
	}
	if r.IntN(4) == 0 {
		c.MaxChannels = 1 + r.IntN(6)
		c.MinChannels = 1 + r.IntN(c.MaxChannels)
	}
	return c
}

func overSockets(a plan.Algorithm, p plan.Protocol) (plan.Algorithm, plan.Protocol) {
	if a == plan.TwoShot {
		a = plan.AutoAlgorithm
	}
	if p == plan.Direct {
		p = plan.AutoProtocol
	}
	return a, p
}

// operation is a call as all ranks know it.
type operation struct {
	seed  uint64
	kind  plan.Kind
	typ   dtype.Type
	op    string // sum, prod, …
	count int
	root  int
	from  int     // of a message that ranks root and from exchange
	table [][]int // of an alltoallv: elements from rank to rank
	// layout is the table that offsets follow, if that is another one.
	layout [][]int
	// in place, where the kind can be
	inPlace bool
}

// elements that move are kept small enough to be exact in every type and operation.
func (o *operation) input(rank, i int) float64 {
	h := (o.seed+uint64(rank)*0x9e3779b97f4a7c15+uint64(i))*0xbf58476d1ce4e5b9 ^ uint64(i)>>7
	h ^= h >> 29
	if o.op == "prod" {
		return float64(h % 3)
	}
	return float64(h % 8)
}

func (o *operation) scalar(rank int) float64 { return float64((uint64(rank) + o.seed) % 3) }

// reduced is the model of a reduction.
func (o *operation) reduced(n, i int) float64 {
	result := o.input(0, i)
	if o.op == "mulsum" {
		result *= o.scalar(0)
	}
	for rank := 1; rank < n; rank++ {
		x := o.input(rank, i)
		switch o.op {
		case "sum", "avg":
			result += x
		case "prod":
			result *= x
		case "min":
			result = min(result, x)
		case "max":
			result = max(result, x)
		case "mulsum":
			result += o.scalar(rank) * x
		}
	}
	if o.op == "avg" {
		result /= float64(n)
		if o.typ.Integer() {
			result = math.Trunc(result)
		}
	}
	return result
}

// encode appends the element x of type t to b; integers wrap around.
func encode(b []byte, t dtype.Type, x float64) []byte {
	switch t {
	case dtype.Float32:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
	case dtype.Float64:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	case dtype.Half:
		return binary.LittleEndian.AppendUint16(b, uint16(dtype.ToFloat16(float32(x))))
	case dtype.Bfloat:
		return binary.LittleEndian.AppendUint16(b, uint16(dtype.ToBFloat16(float32(x))))
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(int64(x)))
	return b[:len(b)-8+t.Size()]
}

// fill is count elements of a rank's input from element first on.
func (o *operation) fill(rank, first, count int) []byte {
	b := make([]byte, 0, count*o.typ.Size()+8)
	for i := range count {
		b = encode(b, o.typ, o.input(rank, first+i))
	}
	return b
}

// piece is a part of a receive buffer, from element at on.
type piece struct {
	at   int
	data []byte
}

// result is what rank must find in its receive buffer: pieces by element offset,
// the rest must be as before.
func (o *operation) result(n, rank int) (pieces []piece) {
	reduced := func(first, count int) (b []byte) {
		for i := range count {
			b = encode(b, o.typ, o.reduced(n, first+i))
		}
		return b
	}
	put := func(at int, data []byte) { pieces = append(pieces, piece{at, data}) }
	switch o.kind {
	case plan.AllReduce:
		put(0, reduced(0, o.count))
	case plan.Reduce:
		if rank == o.root {
			put(0, reduced(0, o.count))
		}
	case plan.ReduceScatter:
		put(0, reduced(rank*o.count, o.count))
	case plan.Broadcast:
		put(0, o.fill(o.root, 0, o.count))
	case plan.Scatter:
		put(0, o.fill(o.root, rank*o.count, o.count))
	case plan.AllGather, plan.Gather:
		for p := range n {
			if o.kind == plan.AllGather || rank == o.root {
				put(p*o.count, o.fill(p, 0, o.count))
			}
		}
	case plan.AlltoAll:
		for p := range n {
			put(p*o.count, o.fill(p, rank*o.count, o.count))
		}
	case plan.AlltoAllv:
		at := o.offsets(n, rank, false)
		for p := range n {
			put(at[p], o.fill(p, o.offsets(n, p, true)[rank], o.table[p][rank]))
		}
	case plan.Send:
		if rank == o.root {
			put(0, o.fill(o.from, 0, o.count))
		}
	}
	return pieces
}

// offsets lays the blocks of an alltoallv one behind the other, from the last rank
// to the first, with gaps.
func (o *operation) offsets(n, rank int, send bool) []int {
	laid := *o
	if o.layout != nil {
		laid.table = o.layout
	}
	at, offsets := int(o.seed%3), make([]int, n)
	for p := n - 1; p >= 0; p-- {
		offsets[p] = at
		at += laid.block(rank, p, send) + p%2
	}
	return offsets
}

func (o *operation) block(rank, peer int, send bool) int {
	if send {
		return o.table[rank][peer]
	}
	return o.table[peer][rank]
}

// pending is an operation of a rank that has been issued, with what to expect.
type pending struct {
	operation
	name         string
	handle       *collective.Handle // nil when it is over
	call         collective.Call
	memory, want []byte // receive buffer and its surroundings
	kept         []byte // copy of the send buffer, nil in place
	allocated    [][]byte
}

const margin = 24 // bytes around a receive buffer that must stay as they are

// heap makes a buffer that nobody else knows of.
func heap(bytes int) ([]byte, error) { return make([]byte, bytes), nil }

// prepare lays out the buffers of o at one rank, in memory that alloc makes.
func (o *operation) prepare(n, rank int, r *rand.Rand, alloc func(bytes int) ([]byte, error)) (*pending, error) {
	p := &pending{operation: *o}
	size := o.typ.Size()
	sendCount, recvCount := o.count, o.count
	switch o.kind {
	case plan.AllGather, plan.Gather:
		recvCount *= n
	case plan.ReduceScatter, plan.Scatter:
		sendCount *= n
	case plan.AlltoAll:
		sendCount, recvCount = n*o.count, n*o.count
	case plan.AlltoAllv:
		sendCount = (o.count+41)*n + 3 // with the gaps
		recvCount = sendCount
	}
	shift := r.IntN(9) // any address will do
	memory, err := alloc(shift + 2*margin + (recvCount+sendCount)*size)
	if err != nil {
		return nil, err
	}
	p.memory = memory[shift:]
	for i := range p.memory {
		p.memory[i] = byte(0xa5 ^ i)
	}
	p.call = collective.Call{Kind: o.kind, Type: o.typ, Count: o.count, Root: o.root}
	send := o.fill(rank, 0, sendCount)
	if memory, err = alloc(shift + 1 + len(send)); err != nil {
		return nil, err
	}
	p.call.Send = memory[shift:][:copy(memory[shift:], send)]
	p.call.Recv = p.memory[margin : margin+recvCount*size]
	if o.inPlace {
		o.merge(p, rank, size)
	} else {
		p.kept = bytes.Clone(p.call.Send)
	}
	p.want = bytes.Clone(p.memory)
	for _, piece := range o.result(n, rank) {
		at := margin + piece.at*size
		if o.inPlace && (o.kind == plan.ReduceScatter || o.kind == plan.Scatter && rank == o.root) {
			at += rank * o.count * size
		}
		copy(p.want[at:], piece.data)
	}
	if o.kind == plan.AlltoAllv {
		for peer := range n {
			p.call.SendCounts = append(p.call.SendCounts, o.block(rank, peer, true))
			p.call.RecvCounts = append(p.call.RecvCounts, o.block(rank, peer, false))
		}
		p.call.SendOffsets, p.call.RecvOffsets = o.offsets(n, rank, true), o.offsets(n, rank, false)
	}
	switch o.op {
	case "":
	case "mulsum":
		bits := append(encode(nil, o.typ, o.scalar(rank)), make([]byte, 8)...)
		p.call.Op = collective.OpOf(reduce.PreMulSum, reduce.Scalar{Type: o.typ, Bits: binary.LittleEndian.Uint64(bits)})
	default:
		p.call.Op, _ = collective.ParseOp(o.op)
	}
	if o.kind == plan.Send {
		if p.call.Root = o.root; rank == o.root {
			p.call.Kind, p.call.Root = plan.Recv, o.from
		}
	}
	return p, nil
}

// merge makes p's buffers one, in the in-place form of its kind.
func (o *operation) merge(p *pending, rank, size int) {
	send := p.call.Send
	block := o.count * size
	switch o.kind {
	case plan.AllReduce:
		copy(p.call.Recv, send)
		p.call.Send = p.call.Recv
	case plan.Reduce, plan.Broadcast:
		if rank == o.root {
			copy(p.call.Recv, send)
			p.call.Send = p.call.Recv
		}
	case plan.AllGather, plan.Gather:
		if o.kind == plan.AllGather || rank == o.root {
			mine := p.call.Recv[rank*block:][:block]
			copy(mine, send)
			p.call.Send = mine
		}
	case plan.ReduceScatter, plan.Scatter:
		if o.kind == plan.ReduceScatter || rank == o.root {
			whole := p.memory[margin:][:len(send)]
			copy(whole, send)
			p.call.Send, p.call.Recv = whole, whole[rank*block:][:block]
		}
	}
}

// check compares what the operation has left with the model.
func (p *pending) check() error {
	if !bytes.Equal(p.memory, p.want) {
		for i := range p.want {
			if p.memory[i] != p.want[i] {
				return fmt.Errorf("%s: byte %d of the receive buffer (%d bytes, an element has %d) is %#x, want %#x",
					p.name, i-margin, len(p.call.Recv), p.typ.Size(), p.memory[i], p.want[i])
			}
		}
	}
	if p.kept != nil && !bytes.Equal(p.call.Send, p.kept) {
		return fmt.Errorf("%s: the send buffer has changed", p.name)
	}
	return nil
}

// actor is one rank's part of a program on one communicator.
type actor struct {
	c          *collective.Comm
	size       int
	name       string
	shared     *rand.Rand // draws the same on all ranks of the communicator
	own        *rand.Rand
	pending    []*pending
	allocated  [][]byte // by MemAlloc, for use in later operations
	lends      bool     // mostly large collectives of registered memory
	operations int
	children   sync.WaitGroup
	mu         sync.Mutex // guards failed
	failed     error
}

func newActor(c *collective.Comm, seed uint64, name string) *actor {
	return &actor{
		c: c, size: c.Size(), name: name,
		shared: rand.New(rand.NewPCG(seed, 1)),
		own:    rand.New(rand.NewPCG(seed, uint64(2+c.Rank()))),
	}
}

// run executes length operations; depth is how many levels of splits are left.
func (a *actor) run(length, depth int) (err error) {
	defer func() {
		a.children.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		err = errors.Join(err, a.failed)
	}()
	for range length {
		a.dawdle()
		switch a.shared.IntN(12) {
		case 0:
			if depth > 0 {
				if err := a.split(depth - 1); err != nil {
					return err
				}
			}
		case 1, 2, 3:
			if err := a.group(); err != nil {
				return err
			}
		case 4:
			if err := a.blockingMessage(); err != nil {
				return err
			}
		default:
			if err := a.single(); err != nil {
				return err
			}
		}
		if a.own.IntN(3) == 0 {
			if err := a.collect(a.own.IntN(len(a.pending) + 1)); err != nil {
				return err
			}
		}
	}
	return a.collect(len(a.pending))
}

// dawdle sleeps, yields, or neither.
func (a *actor) dawdle() {
	switch a.own.IntN(30) {
	case 0:
		time.Sleep(time.Duration(a.own.IntN(2000)) * time.Microsecond)
	case 1, 2:
		runtime.Gosched()
	}
}

// draw is the next operation, the same on all ranks.
func (a *actor) draw() *operation {
	r, n := a.shared, a.size
	kinds := []plan.Kind{
		plan.AllReduce, plan.AllReduce, plan.Reduce, plan.Broadcast, plan.AllGather, plan.ReduceScatter,
		plan.AlltoAll, plan.AlltoAllv, plan.Gather, plan.Scatter, plan.Barrier,
	}
	types := []dtype.Type{
		dtype.Int8, dtype.Uint8, dtype.Int32, dtype.Uint32, dtype.Int64, dtype.Uint64,
		dtype.Half, dtype.Bfloat, dtype.Float32, dtype.Float64,
	}
	o := &operation{seed: r.Uint64(), kind: kinds[r.IntN(len(kinds))], typ: types[r.IntN(len(types))], root: r.IntN(n)}
	o.count = randomCount(r)
	if a.lends {
		o.kind = kinds[r.IntN(6)]
		o.count *= 1 + r.IntN(8)
	}
	switch o.kind {
	case plan.AllReduce, plan.Reduce, plan.ReduceScatter:
		ops := []string{"sum", "prod", "min", "max", "mulsum", "avg"}
		if n&(n-1) != 0 && o.typ.Float() {
			ops = ops[:5] // 1/n is not exact
		}
		o.op = ops[r.IntN(len(ops))]
	case plan.AlltoAllv:
		o.count = min(o.count, 2000)
		for range n {
			row := make([]int, n)
			for p := range row {
				if r.IntN(3) > 0 {
					row[p] = r.IntN(o.count + 40)
				}
			}
			o.table = append(o.table, row)
		}
	}
	switch o.kind {
	case plan.AlltoAll, plan.AlltoAllv, plan.Barrier:
	default:
		o.inPlace = r.IntN(3) == 0
	}
	return o
}

func randomCount(r *rand.Rand) int {
	if r.IntN(20) == 0 {
		return r.IntN(60_000)
	}
	return r.IntN(1<<r.IntN(12)) + r.IntN(2)
}

// registers draws whether an operation's memory is registered with the communicator: on
// all ranks, on some, or on none.
func (a *actor) registers(o *operation) bool {
	mode := o.seed % 4
	return mode > 1 || a.lends && mode == 0 || mode == 1 && a.own.IntN(2) == 0
}

// register returns memory of MemAlloc's, which may have served before.
func (a *actor) register(bytes int) ([]byte, error) {
	for i, b := range a.allocated {
		if len(b) >= bytes && a.own.IntN(2) == 0 {
			a.allocated = slices.Delete(a.allocated, i, i+1)
			return b[:bytes], nil
		}
	}
	b, err := a.c.MemAlloc(bytes + a.own.IntN(bytes))
	if err != nil {
		return nil, err
	}
	return b[:bytes], nil
}

// release gives up an operation's memory, some of it for good.
func (a *actor) release(p *pending) error {
	var errs []error
	for _, b := range p.allocated {
		if b = b[:cap(b)]; a.own.IntN(2) == 0 {
			a.allocated = append(a.allocated, b)
		} else {
			errs = append(errs, a.c.MemFree(b))
		}
	}
	p.allocated = nil
	return errors.Join(errs...)
}

func (a *actor) prepare(o *operation) (*pending, error) {
	a.operations++
	var allocated [][]byte
	alloc := heap
	if o.seed%5 == 0 && o.kind <= plan.ReduceScatter { // each as it likes
		mine := *o
		mine.inPlace = a.own.IntN(2) == 0
		o = &mine
	}
	if a.registers(o) {
		alloc = func(bytes int) ([]byte, error) {
			b, err := a.register(bytes)
			if err == nil {
				allocated = append(allocated, b)
			}
			return b, err
		}
	}
	p, err := o.prepare(a.c.Size(), a.c.Rank(), a.own, alloc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.name, err)
	}
	p.allocated = allocated
	p.name = fmt.Sprintf("%s, rank %d of %d, operation %d: %v(count %d, %v, %s, root %d, in place %t)",
		a.name, a.c.Rank(), a.c.Size(), a.operations, o.kind, o.count, o.typ, o.op, o.root, o.inPlace)
	return p, nil
}

// single makes one call, blocking or not as this rank likes.
func (a *actor) single() error {
	p, err := a.prepare(a.draw())
	if err != nil {
		return err
	}
	return a.issue(p, a.own.IntN(2) == 0)
}

func (a *actor) issue(p *pending, blocking bool) error {
	var err error
	if blocking {
		if err = a.c.Do(context.Background(), p.call); err == nil {
			err = errors.Join(p.check(), a.release(p))
		}
	} else if p.handle, err = a.c.Start(context.Background(), p.call); err == nil {
		a.pending = append(a.pending, p)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// blockingMessage has one rank send to another.
func (a *actor) blockingMessage() error {
	n := a.c.Size()
	o := &operation{seed: a.shared.Uint64(), kind: plan.Send, typ: dtype.Int32, root: a.shared.IntN(n), from: a.shared.IntN(n), count: randomCount(a.shared)}
	if o.root == o.from || a.c.Rank() != o.root && a.c.Rank() != o.from {
		return nil
	}
	p, err := a.prepare(o)
	if err != nil {
		return err
	}
	return a.issue(p, a.own.IntN(2) == 0)
}

// group fuses several operations and messages.
func (a *actor) group() error {
	g := collective.NewGroup()
	var fused []*pending
	add := func(o *operation) error {
		p, err := a.prepare(o)
		fused = append(fused, p)
		return err
	}
	for range a.shared.IntN(5) {
		if err := add(a.draw()); err != nil {
			return err
		}
	}
	n, me := a.c.Size(), a.c.Rank()
	for range a.shared.IntN(2 * n) {
		o := &operation{seed: a.shared.Uint64(), kind: plan.Send, typ: dtype.Uint32, root: a.shared.IntN(n), from: a.shared.IntN(n), count: randomCount(a.shared)}
		if me == o.from {
			if err := add(o); err != nil {
				return err
			}
			if me == o.root { // both ends: this one is the sender's
				p := fused[len(fused)-1]
				p.call.Kind, p.call.Root = plan.Send, o.root
				p.want = bytes.Clone(p.memory)
			}
		}
		if me == o.root {
			if err := add(o); err != nil {
				return err
			}
		}
	}
	for _, p := range fused {
		if err := g.Add(a.c, p.call); err != nil {
			return fmt.Errorf("%s in a group: %w", p.name, err)
		}
	}
	h, err := g.Start(context.Background())
	if err == nil && a.own.IntN(2) == 0 {
		err = h.Wait(context.Background())
	}
	if err != nil {
		var names []string
		for _, p := range fused {
			names = append(names, p.name)
		}
		return fmt.Errorf("group of %s: %w", strings.Join(names, "; "), err)
	}
	for _, p := range fused {
		p.handle = h
		a.pending = append(a.pending, p)
	}
	return nil
}

// collect waits for the first k pending operations and checks them.
func (a *actor) collect(k int) error {
	for _, p := range a.pending[:k] {
		if err := p.handle.Wait(context.Background()); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := errors.Join(p.check(), a.release(p)); err != nil {
			return err
		}
	}
	a.pending = a.pending[k:]
	return nil
}

// split makes communicators of some ranks, which run a program of their own: now,
// or while this one goes on.
func (a *actor) split(depth int) error {
	colors, seed := 1+a.shared.IntN(3), a.shared.Uint64()
	mine, key := 0, 0
	for rank := range a.c.Size() {
		color, k := a.shared.IntN(colors+1)-1, a.shared.IntN(5)-2
		if rank == a.c.Rank() {
			mine, key = color, k
		}
	}
	concurrent, length := a.shared.IntN(2) == 0, 1+a.shared.IntN(10)
	child, err := a.c.Split(context.Background(), mine, key)
	if err != nil {
		return fmt.Errorf("%s: split: %w", a.name, err)
	}
	if child == nil {
		if mine != collective.NoColor {
			return fmt.Errorf("%s: split with color %d gives no communicator", a.name, mine)
		}
		return nil
	}
	actor := newActor(child, seed+uint64(mine), fmt.Sprintf("%s/%d", a.name, mine))
	actor.lends = a.lends
	run := func() error {
		err := actor.run(length, depth)
		if err != nil {
			child.Abort()
		}
		return errors.Join(err, child.Close())
	}
	if !concurrent {
		err := run()
		a.operations += actor.operations
		return err
	}
	a.children.Go(func() {
		if err := run(); err != nil {
			a.mu.Lock()
			a.failed = errors.Join(a.failed, err)
			a.mu.Unlock()
			a.c.Abort()
		}
	})
	return nil
}
