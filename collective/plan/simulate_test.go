package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/collective/topo"
)

// A symbolic machine for plans. It runs the plans of all ranks, one slice at a
// time in a seeded random order, over FIFOs of 8 steps with NCCL's credits, and
// moves symbols instead of numbers: a symbol knows whose contributions it holds
// and which element it is. A contribution that is lost, doubled, or combined with
// another element is therefore seen where it happens, and so is a state in which
// nothing can move.

const fifoSteps = 8

// value stands for one element.
type value struct {
	from  uint64 // the ranks whose contributions it holds, a bit each
	at    uint32 // element of the contributing call's send buffer
	call  uint16 // the call it belongs to
	final uint8  // how often Kernel.Post would have been applied
}

// simCall is one launch that all ranks take part in.
type simCall struct {
	spec    plan.Spec
	force   plan.Choice
	vectors func(rank int) plan.Vectors   // AlltoAllv
	group   func(rank int) []plan.Message // instead of spec: a group of messages
	bytes   int                           // of a group's buffers
}

// simWorld is what the ranks of a simulation share.
type simWorld struct {
	size, perNode int
	hosts         []int // by rank; nil = one host
	payload       int   // bytes of a FIFO step
	calls         []simCall
	seed          uint64
	mutate        func(rank, call int, p *plan.Plan) // breaks plans on purpose
	noRounding    bool                               // leaves out a rule on purpose
}

type fifoKey struct {
	from, to, channel int
	protocol          plan.Protocol
	messages          bool // point-to-point connections are separate
}

// fifo is a connection. The sender owns tail, the receiver head; what a slice
// holds is kept at its first step.
type fifo struct {
	key        fifoKey
	head, tail int
	slots      [fifoSteps][]value
	total      [fifoSteps]int // header of a message: bytes of the whole
}

// buffers are a rank's for one call.
type buffers struct {
	send, recv    []value
	input, output []value // what they were before the call
}

type simulation struct {
	simWorld
	rng     *rand.Rand
	fifos   map[fifoKey]*fifo
	blocks  []*block
	buffers [][]buffers // by rank and call
	fault   error       // the first rule that was broken

	sends, recvs, sentElems []int // by rank: primitives with a send, with a receive; elements sent
}

// block runs what its channel has to do, call after call.
type block struct {
	rank, channel int
	queue         []*work
	patience      int // it is visited once in so many turns
}

// work is a channel's part of one call.
type work struct {
	tasks      []task
	concurrent bool
}

// task moves one slice when it can. done is looked at before each try.
type task interface {
	done() bool
	try(s *simulation) bool
}

// simulate runs the calls and checks every rank's result.
func simulate(w simWorld) (*simulation, error) {
	s := &simulation{
		simWorld: w, rng: rand.New(rand.NewPCG(w.seed, 1)), fifos: map[fifoKey]*fifo{},
		sends: make([]int, w.size), recvs: make([]int, w.size), sentElems: make([]int, w.size),
	}
	for rank := range w.size {
		s.buffers = append(s.buffers, make([]buffers, len(w.calls)))
		blocks := map[int]*block{}
		for i := range w.calls {
			if err := s.load(rank, i, blocks); err != nil {
				return s, err
			}
		}
	}
	slices.SortFunc(s.blocks, func(a, b *block) int { return (a.rank-b.rank)*1000 + a.channel - b.channel })
	for _, b := range s.blocks {
		b.patience = 1 + s.rng.IntN(4)*s.rng.IntN(4)
	}
	if err := s.run(); err != nil {
		return s, err
	}
	return s, s.check()
}

func (s *simulation) world(rank int, force plan.Choice) plan.World {
	w := plan.World{
		Rank: rank, Size: s.size, RanksPerNode: s.perNode, MaxChannels: 4, OrderedStores: true, Force: force,
		Payload:    [4]int{0, s.payload, s.payload, s.payload},
		P2PPayload: [4]int{0, s.payload, s.payload, 0},
	}
	if s.hosts != nil {
		w.Hosts = topo.HostsOf(s.hosts)
	}
	return w
}

// load builds a rank's plan of a call and gives its parts to the rank's blocks.
func (s *simulation) load(rank, i int, blocks map[int]*block) error {
	call := s.calls[i]
	w := s.world(rank, call.force)
	var p *plan.Plan
	var err error
	switch {
	case call.group != nil:
		p, err = w.PointToPoint(call.group(rank))
	case call.vectors != nil:
		p, err = plan.BuildAlltoAllv(call.spec, w, call.vectors(rank))
	default:
		p, err = plan.Build(call.spec, w)
	}
	if err != nil {
		return err
	}
	if s.mutate != nil {
		s.mutate(rank, i, p)
	}
	s.buffers[rank][i] = s.allocate(rank, i)
	buf := &s.buffers[rank][i]
	if len(p.Channels) == 0 && s.size == 1 {
		copy(buf.recv, buf.send) // the caller's copy
	}
	for c := range p.Channels {
		ch := &p.Channels[c]
		b := blocks[ch.ID]
		if b == nil {
			b = &block{rank: rank, channel: ch.ID}
			blocks[ch.ID] = b
			s.blocks = append(s.blocks, b)
		}
		b.queue = append(b.queue, s.channelWork(rank, p, ch, buf))
	}
	return nil
}

func (s *simulation) channelWork(rank int, p *plan.Plan, ch *plan.Channel, buf *buffers) *work {
	wk := &work{concurrent: ch.Concurrent || len(ch.Transfers) > 0}
	for i := range ch.Threads {
		t := &ch.Threads[i]
		pl := &pipeline{rank: rank, t: t, buf: buf, elem: p.Spec.Type.Size(), loops: t.Loops()}
		for _, peer := range t.From {
			pl.ins = append(pl.ins, s.fifo(fifoKey{peer, rank, ch.ID, p.Choice.Protocol, false}))
		}
		for _, peer := range t.To {
			pl.outs = append(pl.outs, s.fifo(fifoKey{rank, peer, ch.ID, p.Choice.Protocol, false}))
		}
		wk.tasks = append(wk.tasks, pl)
	}
	for _, c := range ch.Copies {
		copy(buf.recv[c.ToOffset:c.ToOffset+c.Bytes], buf.send[c.FromOffset:c.FromOffset+c.Bytes])
	}
	type stream struct {
		peer int
		send bool
	}
	last := map[stream]*transfer{}
	for i := range ch.Transfers {
		tr := &transfer{rank: rank, Transfer: ch.Transfers[i], buf: buf}
		st := stream{tr.Peer, tr.Send}
		tr.before, last[st] = last[st], tr
		key := fifoKey{tr.Peer, rank, ch.ID, tr.Protocol, true}
		if tr.Send {
			key.from, key.to = rank, tr.Peer
		}
		tr.fifo = s.fifo(key)
		wk.tasks = append(wk.tasks, tr)
	}
	return wk
}

// fifo is the connection of key. Connections have been used before: they start
// at some step, the same at both ends.
func (s *simulation) fifo(key fifoKey) *fifo {
	f := s.fifos[key]
	if f == nil {
		f = &fifo{key: key}
		f.head = s.rng.IntN(2 * fifoSteps)
		f.tail = f.head
		s.fifos[key] = f
	}
	return f
}

// run visits blocks in random order until all are done or none can move.
func (s *simulation) run() error {
	active := slices.Clone(s.blocks)
	for turn := 0; len(active) > 0; turn++ {
		s.rng.Shuffle(len(active), func(i, j int) { active[i], active[j] = active[j], active[i] })
		moved := s.visit(active, func(b *block) bool { return turn%b.patience == 0 })
		if !moved && s.fault == nil {
			moved = s.visit(active, func(*block) bool { return true })
		}
		active = slices.DeleteFunc(active, func(b *block) bool { return len(b.queue) == 0 })
		if s.fault != nil {
			return s.fault
		}
		if !moved && len(active) > 0 {
			b := active[0]
			return fmt.Errorf("deadlock: %d blocks wait, among them rank %d channel %d", len(active), b.rank, b.channel)
		}
	}
	return nil
}

// visit lets blocks move a random number of slices each.
func (s *simulation) visit(blocks []*block, chosen func(*block) bool) bool {
	moved := false
	for _, b := range blocks {
		if !chosen(b) {
			continue
		}
		for range 1 + s.rng.IntN(3)*s.rng.IntN(20) {
			if s.fault != nil || !b.step(s) {
				break
			}
			moved = true
		}
	}
	return moved
}

// step moves one slice of the block's current call, if any can move.
func (b *block) step(s *simulation) bool {
	for len(b.queue) > 0 {
		wk := b.queue[0]
		wk.tasks = slices.DeleteFunc(wk.tasks, task.done)
		if len(wk.tasks) == 0 {
			b.queue = b.queue[1:]
			continue
		}
		if !wk.concurrent {
			return wk.tasks[0].try(s)
		}
		first := s.rng.IntN(len(wk.tasks))
		for i := range wk.tasks {
			if wk.tasks[(first+i)%len(wk.tasks)].try(s) {
				return true
			}
		}
		return false
	}
	return false
}

// fail keeps the first broken rule.
func (s *simulation) fail(format string, args ...any) {
	if s.fault == nil {
		s.fault = fmt.Errorf(format, args...)
	}
}

// pipeline runs a plan.Thread.
type pipeline struct {
	rank              int
	t                 *plan.Thread
	buf               *buffers
	elem              int // bytes
	loops             int
	ins, outs         []*fifo
	recvStep          []int // next step of each of ins
	sendStep          []int // next step of each of outs
	loop, step, slice int
}

func (p *pipeline) done() bool { return p.loop == p.loops }

// start rounds the persistent steps up to a whole chunk, so that operations with
// chunks of different lengths can share a FIFO; the receiver returns the credit of
// the steps it skips (src/device/prims_simple.h).
func (p *pipeline) start(s *simulation) {
	unit := p.t.ChunkSteps
	if s.noRounding {
		unit = 1
	}
	for _, f := range p.ins {
		f.head = (f.head + unit - 1) / unit * unit
		p.recvStep = append(p.recvStep, f.head)
	}
	for _, f := range p.outs {
		p.sendStep = append(p.sendStep, (f.tail+unit-1)/unit*unit)
	}
	if p.recvStep == nil {
		p.recvStep = []int{}
	}
}

func (p *pipeline) try(s *simulation) bool {
	if p.recvStep == nil {
		p.start(s)
	}
	st, unit := p.t.Steps[p.step], p.t.SliceSteps
	recvs, sends := verbs(st.Action)
	if recvs {
		for i, f := range p.ins {
			if f.tail < p.recvStep[i]+unit {
				return false
			}
		}
	}
	if sends {
		for i, f := range p.outs {
			if f.head+fifoSteps < p.sendStep[i]+unit {
				return false
			}
		}
	}
	p.move(s, st, recvs, sends)
	p.advance(s, recvs, sends)
	return true
}

func verbs(a plan.Action) (recvs, sends bool) {
	switch a {
	case plan.DoSend, plan.DoSendFromOutput, plan.DoCopySend:
		return false, true
	case plan.DoRecv, plan.DoRecvReduceCopy:
		return true, false
	}
	return true, true
}

// piece is the current slice of a block: NCCL's slice size, which never splits
// below 16 elements or 1/32 of a slice's room, limited to that room.
func (p *pipeline) piece(s *simulation, block int) (offset, count int) {
	offset, count = p.t.Range(p.loop, block)
	slicesPerChunk := p.t.ChunkSteps / p.t.SliceSteps
	room := p.t.SliceSteps * s.payload / p.elem
	size := (count + 16*slicesPerChunk - 1) / (16 * slicesPerChunk) * 16
	size = min(max(size, room/32, 1), room)
	begin := min(p.slice*size, count)
	end := min(begin+size, count)
	if p.slice == slicesPerChunk-1 && end != count {
		s.fail("rank %d: a chunk of %d elements does not fit %d slices of %d", p.rank, count, slicesPerChunk, size)
	}
	return offset + begin, end - begin
}

// move executes a primitive on the current slice.
func (p *pipeline) move(s *simulation, st plan.Step, recvs, sends bool) {
	block := st.Out
	if block == plan.None {
		block = st.In
	}
	at, count := p.piece(s, block)
	data := make([]value, count)
	if st.In != plan.None {
		in, n := p.piece(s, st.In)
		if n != count {
			s.fail("rank %d: %v of %d elements to %d", p.rank, st.Action, n, count)
			return
		}
		copy(data, p.buf.send[in:in+n])
	}
	if recvs {
		for i, f := range p.ins {
			got := f.slots[p.recvStep[i]%fifoSteps]
			if len(got) != count {
				s.fail("rank %d: %v of %d elements, but rank %d sent %d", p.rank, st.Action, count, f.key.from, len(got))
				return
			}
			p.combine(s, st, data, got)
		}
	}
	if st.Action == plan.DoRecvReduceCopy || st.Action == plan.DoRecvReduceCopySend {
		for i := range data {
			data[i].final++
		}
	}
	if st.Out != plan.None {
		copy(p.buf.recv[at:at+count], data)
	}
	if sends {
		for i, f := range p.outs {
			slot := p.sendStep[i] % fifoSteps
			if slot+p.t.SliceSteps > fifoSteps {
				s.fail("rank %d: a slice crosses the end of the FIFO to %d", p.rank, f.key.to)
			}
			f.slots[slot] = data
		}
		s.sentElems[p.rank] += count * len(p.outs)
	}
}

// combine adds what was received to the own input, or takes it as it is.
func (p *pipeline) combine(s *simulation, st plan.Step, data, got []value) {
	if st.In == plan.None {
		copy(data, got)
		return
	}
	for i, g := range got {
		d := &data[i]
		if d.at != g.at || d.call != g.call || d.from&g.from != 0 || d.final+g.final != 0 {
			s.fail("rank %d: %v combines %+v with %+v", p.rank, st.Action, *d, g)
		}
		d.from |= g.from
	}
}

// advance posts the slice's steps and goes on to the next.
func (p *pipeline) advance(s *simulation, recvs, sends bool) {
	if recvs {
		for i, f := range p.ins {
			f.slots[p.recvStep[i]%fifoSteps] = nil
			p.recvStep[i] += p.t.SliceSteps
			f.head = p.recvStep[i]
		}
	}
	if sends {
		for i, f := range p.outs {
			p.sendStep[i] += p.t.SliceSteps
			f.tail = p.sendStep[i]
		}
	}
	if p.slice++; p.slice < p.t.ChunkSteps/p.t.SliceSteps {
		return
	}
	if recvs {
		s.recvs[p.rank]++
	}
	if sends {
		s.sends[p.rank]++
	}
	p.slice = 0
	if p.step++; p.step == len(p.t.Steps) {
		p.step = 0
		p.loop++
	}
}

// transfer runs a plan.Transfer, one chunk and one step at a time.
type transfer struct {
	plan.Transfer
	rank    int
	buf     *buffers
	fifo    *fifo
	before  *transfer // of the same peer and direction on the channel
	moved   int
	touched bool
}

func (tr *transfer) done() bool { return tr.touched && tr.moved == tr.Bytes }

func (tr *transfer) try(s *simulation) bool {
	if tr.before != nil && !tr.before.done() {
		return false
	}
	f := tr.fifo
	at, count := tr.Offset+tr.moved, min(tr.Chunk, tr.Bytes-tr.moved)
	if tr.Send {
		if f.head+fifoSteps < f.tail+1 {
			return false
		}
		f.slots[f.tail%fifoSteps] = slices.Clone(tr.buf.send[at : at+count])
		f.total[f.tail%fifoSteps] = tr.Total
		f.tail++
	} else {
		if f.tail < f.head+1 {
			return false
		}
		got := f.slots[f.head%fifoSteps]
		if len(got) != count || f.total[f.head%fifoSteps] != tr.Total {
			s.fail("rank %d: %d of %d bytes received from %d, who sent %d of %d",
				tr.rank, count, tr.Total, tr.Peer, len(got), f.total[f.head%fifoSteps])
			return false
		}
		copy(tr.buf.recv[at:at+count], got)
		f.slots[f.head%fifoSteps] = nil
		f.head++
	}
	tr.moved += count
	tr.touched = true
	return true
}
