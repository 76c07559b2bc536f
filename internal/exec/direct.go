package exec

import (
	"fmt"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/proto"
	"github.com/gollective/gollective/transport"
)

// This file is the algorithms that need no FIFOs: ranks look at each other's posts,
// and use the memory that those show. See plan.Sharing and proto.Direct.

// meeting is where the ranks of a communicator meet on one channel, for one of them.
type meeting struct {
	*proto.Direct
	// mapped is, by rank, the memory of others that this rank has mapped.
	mapped []mapped
	// inputs and outputs are, by rank, the buffers of the call in progress.
	inputs, outputs [][]byte
}

// mapped are segments of one rank.
type mapped struct {
	segments []segment
	freed    uint64 // how many the rank had freed when these were mapped
}

type segment struct {
	number uint64
	memory []byte
}

// meeting returns that of a channel, for which it finds all ranks' desks.
func (e *Engine) meeting(channel int) (*meeting, error) {
	if m, ok := e.meetings[channel]; ok {
		return m, nil
	}
	desks := make([]*transport.Desk, e.size)
	for i := range desks {
		rank := (e.rank + i) % e.size // the own first: others may look for it
		spot := transport.Spot{Rank: rank, Channel: channel, Slot: e.world.DeskPayload}
		var err error
		if desks[rank], err = reach(e, e.connecting, rank, func() (*transport.Desk, error) { return e.seer.Desk(spot) }); err != nil {
			return nil, err
		}
	}
	m := &meeting{Direct: proto.NewDirect(e.rank, desks), mapped: make([]mapped, e.size),
		inputs: make([][]byte, e.size), outputs: make([][]byte, e.size)}
	e.meetings[channel] = m
	return m, nil
}

// runDirect executes a channel's work without FIFOs.
func (w *worker) runDirect(work *Work, c *channel) error {
	c.meeting.Begin(proto.Operation{Waiter: w.waiter, Kernel: work.kernel, Header: work.header})
	if c.Direct.Shares == nil {
		err := w.oneShot(work, c.meeting)
		c.meeting.Ring()
		return err
	}
	if w.engine.world.Sight == plan.SeesSome {
		return w.twoShotInSight(work, c)
	}
	return w.twoShot(work, c)
}

// oneShot shows the input to all, and takes what it needs of all inputs.
func (w *worker) oneShot(work *Work, m *meeting) error {
	rank, spec := w.engine.rank, &work.Program.Plan.Spec
	root := rank == spec.Root
	input := work.Send
	if spec.Kind == plan.Broadcast && !root {
		input = nil // looked at by nobody
	}
	if err := m.Show(input); err != nil {
		return err
	}
	return w.takePosts(work, m)
}

// takePosts is what oneShot does after the post.
func (w *worker) takePosts(work *Work, m *meeting) error {
	rank, spec := w.engine.rank, &work.Program.Plan.Spec
	root := rank == spec.Root
	input := work.Send
	switch spec.Kind {
	case plan.Broadcast:
		if root {
			copy(work.Recv, work.Send)
			return nil
		}
		if err := m.See(spec.Root); err != nil {
			return err
		}
		copy(work.Recv, m.Payload(spec.Root, len(work.Recv)))
		return nil
	case plan.Reduce:
		if !root {
			return nil
		}
	}
	if err := m.SeeAll(); err != nil {
		return err
	}
	size := len(work.Recv)
	switch spec.Kind {
	case plan.AllGather:
		for r := range m.Sources {
			copy(work.Recv[r*len(input):], m.Payload(r, len(input)))
		}
		return nil
	case plan.ReduceScatter:
		for r := range m.Sources {
			m.Sources[r] = m.Payload(r, len(input))[rank*size : (rank+1)*size]
		}
	default:
		for r := range m.Sources {
			m.Sources[r] = m.Payload(r, size)
		}
	}
	if !work.kernel.HasPre() { // the own post's lines are elsewhere by now
		m.Sources[rank] = input
		if spec.Kind == plan.ReduceScatter {
			m.Sources[rank] = input[rank*size : (rank+1)*size]
		}
	}
	w.combine(work, work.Recv, m.Sources)
	m.Claim(len(input))
	return nil
}

// twoShot lends the buffers to ranks of this process, and uses theirs.
func (w *worker) twoShot(work *Work, c *channel) error {
	m := c.meeting
	scales := work.kernel.HasPre() && work.Program.Plan.Spec.Kind == plan.AllReduce
	loan := transport.Loan{Send: work.Send, Recv: work.Recv}
	if scales {
		loan.Send = work.Recv
	}
	if err := m.Lend(loan, [transport.PostWords]uint64{}); err != nil {
		return err // nothing has been lent
	}
	err := m.SeeAll()
	if err == nil && scales {
		part := w.span(work, c)
		work.kernel.Pre(part.of(work.Recv), part.of(work.Send))
		err = m.Scaled()
	}
	if err == nil {
		m.Work()
		err = w.Failed()
	}
	if err == nil {
		w.useLoans(work, c)
		m.Done()
		err = w.awaitUsers(work, m)
	}
	if err != nil {
		err = w.engine.fail(w, err)
		m.Withdraw()
		return err
	}
	m.Return()
	return nil
}

// awaitUsers waits until nobody uses this rank's memory any more.
func (w *worker) awaitUsers(work *Work, m *meeting) error {
	if spec := &work.Program.Plan.Spec; spec.Kind == plan.Broadcast && w.engine.rank != spec.Root {
		return m.Valid(spec.Root) // only the root's was used
	}
	return m.AwaitDone()
}

// useLoans does this rank's share, of and in the buffers that others have lent.
func (w *worker) useLoans(work *Work, c *channel) {
	m, spec := c.meeting, &work.Program.Plan.Spec
	mine := w.share(work, c, w.engine.rank)
	switch spec.Kind {
	case plan.AllGather, plan.Broadcast:
		w.fetch(work, c, func(rank int) []byte { return m.Lent(rank).Send })
	case plan.ReduceScatter:
		for r := range m.Sources {
			m.Sources[r] = mine.block(w.engine.rank, work, m.Lent(r).Send)
		}
		w.combine(work, mine.of(work.Recv), m.Sources)
	case plan.Reduce:
		for r := range m.Sources {
			m.Sources[r] = mine.of(m.Lent(r).Send)
		}
		w.combine(work, mine.of(m.Lent(spec.Root).Recv), m.Sources)
	default:
		for r := range m.Sources {
			loan := m.Lent(r)
			m.Sources[r], m.Destinations[r] = mine.of(loan.Send), mine.of(loan.Recv)
		}
		kernel := work.kernel.Streaming(w.resultBytes(work))
		kernel.ReduceTo(m.Destinations, m.Sources)
		if work.kernel.HasPost() {
			for _, dst := range m.Destinations {
				work.kernel.Post(dst)
			}
		}
		clear(m.Destinations)
	}
	clear(m.Sources)
}

// resultBytes is how large the results of a call are on all ranks together: whether
// they stay in caches.
func (w *worker) resultBytes(work *Work) int { return len(work.Recv) * w.engine.size }

// combine stores the final value of sources in dst.
func (w *worker) combine(work *Work, dst []byte, sources [][]byte) {
	work.kernel.Reduce(dst, sources)
	if work.kernel.HasPost() {
		work.kernel.Post(dst)
	}
}

// fetch copies what other ranks have: all blocks of an AllGather, or the root's
// buffer.
func (w *worker) fetch(work *Work, c *channel, from func(rank int) []byte) {
	spec := &work.Program.Plan.Spec
	if spec.Kind == plan.Broadcast {
		if w.engine.rank != spec.Root || !spec.InPlace {
			mine := w.share(work, c, w.engine.rank)
			reduce.Copy(mine.of(work.Recv), mine.of(from(spec.Root)), w.resultBytes(work))
		}
		return
	}
	for i := range w.engine.size {
		rank := (w.engine.rank + i) % w.engine.size // not all from one at a time
		if rank == w.engine.rank && spec.InPlace {
			continue
		}
		theirs := w.share(work, c, rank)
		reduce.Copy(theirs.block(rank, work, work.Recv), theirs.of(from(rank)), w.resultBytes(work))
	}
}

// span is a range of bytes of a block.
type span struct{ begin, end int }

func (s span) of(buffer []byte) []byte { return buffer[s.begin:s.end:s.end] }

// block is the span in the block of a rank, where a buffer has one for each.
func (s span) block(rank int, work *Work, buffer []byte) []byte {
	at := rank * work.Program.Plan.Spec.Count * work.Program.Plan.Spec.Type.Size()
	return buffer[at+s.begin : at+s.end : at+s.end]
}

// share is a rank's share of a channel's part, in bytes.
func (w *worker) share(work *Work, c *channel, rank int) span {
	share, size := c.Direct.Shares[rank], work.Program.Plan.Spec.Type.Size()
	return span{share.Begin * size, share.End * size}
}

// span is the channel's part, in bytes.
func (w *worker) span(work *Work, c *channel) span {
	return span{w.share(work, c, 0).begin, w.share(work, c, w.engine.size-1).end}
}

// Words of a post that tells other processes where buffers are.
const (
	sendSegment = iota
	sendOffset
	recvSegment
	recvOffset
	inSight // sighted if everything that others need is registered, and whether in place
	freed   // how many segments the rank has freed
)

// twoShotInSight is twoShot between processes, of which each only reads others'
// memory: shares are combined in rounds, which the others fetch. Where a rank's
// buffers are out of sight, all go round the ring instead.
func (w *worker) twoShotInSight(work *Work, c *channel) error {
	m, spec := c.meeting, &work.Program.Plan.Spec
	e := w.engine
	send, recv := e.seer.Refer(e.rank, work.Send), e.seer.Refer(e.rank, work.Recv)
	words := [transport.PostWords]uint64{sendSegment: send.Segment, sendOffset: send.Offset, recvSegment: recv.Segment, recvOffset: recv.Offset, freed: e.seer.Freed(e.rank)}
	shows, collects := e.shows(spec)
	if (!shows || send.Segment > 0) && (!collects || recv.Segment > 0) {
		words[inSight] = sighted
		if spec.InPlace {
			words[inSight] = sightedInPlace
		}
	}
	if err := m.Lend(transport.Loan{}, words); err != nil {
		return err
	}
	err := m.SeeAll()
	if err == nil {
		all, whole := m.allInSight(c.Direct.Whole)
		if !all || !whole && c.Direct.Whole && w.resultBytes(work) < roundsPay {
			m.Done()
			return w.runThreads(work, c)
		}
		err = w.useSegments(work, c, whole)
	}
	if err != nil {
		err = e.fail(w, err)
		m.Withdraw()
	}
	return err
}

// roundsPay is how large results must be, on both of two ranks together, for rounds to be
// quicker than the ring where a buffer is in place: below, each waits for the other's
// only round or two (16 KiB to 1 MiB each: 1.4 to 2.3 times the ring's time; 4 MiB: 0.9).
const roundsPay = 4 << 20

// allInSight reports whether what every rank has lent can be found, and whether all can
// combine everything, if the plan has it so: nobody's input may change meanwhile.
func (m *meeting) allInSight(planned bool) (all, whole bool) {
	whole = planned
	for rank := range m.mapped {
		switch m.Words(rank)[inSight] {
		case sighted:
		case sightedInPlace:
			whole = false
		default:
			return false, false
		}
	}
	return true, whole
}

// Values of the word inSight.
const (
	sighted        = 1
	sightedInPlace = 2
)

// shows and collects say whether others use a rank's input, and its output.
func (e *Engine) shows(spec *plan.Spec) (shows, collects bool) {
	switch spec.Kind {
	case plan.AllReduce:
		return true, true
	case plan.Broadcast:
		return e.rank == spec.Root, false
	}
	return true, false
}

// roundBytes is how much of its share a rank combines before others fetch it: little
// enough to be in a cache still.
const roundBytes = 128 << 10

// useSegments does this rank's share of what others have registered, and fetches
// theirs.
func (w *worker) useSegments(work *Work, c *channel, whole bool) error {
	m, spec, e := c.meeting, &work.Program.Plan.Spec, w.engine
	if work.kernel.HasPre() && spec.Kind == plan.AllReduce {
		part := w.span(work, c)
		work.kernel.Pre(part.of(work.Recv), part.of(work.Send))
		if err := m.Scaled(); err != nil {
			return err
		}
	}
	m.Work()
	if err := w.Failed(); err != nil {
		return err
	}
	defer m.forget()
	if err := w.lookUp(work, m); err != nil {
		return err
	}
	mine := w.share(work, c, e.rank)
	switch spec.Kind {
	case plan.AllGather, plan.Broadcast:
		w.fetch(work, c, func(rank int) []byte { return m.inputs[rank] })
	case plan.AllReduce:
		if whole {
			part := w.span(work, c)
			for r := range m.Sources {
				m.Sources[r] = part.of(m.inputs[r])
			}
			w.combine(work, part.of(work.Recv), m.Sources)
		} else if err := w.rounds(work, c); err != nil {
			return err
		}
	case plan.ReduceScatter:
		for r := range m.Sources {
			m.Sources[r] = mine.block(e.rank, work, m.inputs[r])
		}
		w.combine(work, mine.of(work.Recv), m.Sources)
	case plan.Reduce:
		if e.rank == spec.Root {
			for r := range m.Sources {
				m.Sources[r] = mine.of(m.inputs[r])
			}
			w.combine(work, mine.of(work.Recv), m.Sources)
		}
	}
	m.Done()
	return w.awaitUsers(work, m)
}

// rounds is an AllReduce: a rank's share is combined round by round, and what others
// have combined is fetched a round later, out of their caches.
func (w *worker) rounds(work *Work, c *channel) error {
	m, e := c.meeting, w.engine
	mine := w.share(work, c, e.rank)
	count := w.share(work, c, 0).rounds() // nobody's share is longer
	for k := 0; k <= count; k++ {
		if piece := mine.round(k); k < count {
			for r := range m.Sources {
				m.Sources[r] = piece.of(m.inputs[r])
			}
			w.combine(work, piece.of(work.Recv), m.Sources)
			m.Combined(k)
		}
		for i := 1; i < e.size && k > 0; i++ {
			rank := (e.rank + i) % e.size
			piece := w.share(work, c, rank).round(k - 1)
			if piece.begin == piece.end {
				continue
			}
			if err := m.AwaitCombined(rank, k-1); err != nil {
				return err
			}
			reduce.Copy(piece.of(work.Recv), piece.of(m.outputs[rank]), w.resultBytes(work))
		}
	}
	return nil
}

func (s span) rounds() int { return (s.end - s.begin + roundBytes - 1) / roundBytes }

// round is the k-th piece of s, empty behind its end.
func (s span) round(k int) span {
	begin := min(s.begin+k*roundBytes, s.end)
	return span{begin, min(begin+roundBytes, s.end)}
}

// uses reports whether this rank looks at another's buffers.
func (e *Engine) uses(spec *plan.Spec, rank int) bool {
	switch spec.Kind {
	case plan.Broadcast:
		return rank == spec.Root
	case plan.Reduce:
		return e.rank == spec.Root
	}
	return true
}

// lookUp finds the buffers that this rank looks at in this process's memory.
func (w *worker) lookUp(work *Work, m *meeting) error {
	e, spec := w.engine, &work.Program.Plan.Spec
	for rank := range e.size {
		if rank == e.rank {
			m.inputs[rank], m.outputs[rank] = work.Send, work.Recv
		} else if e.uses(spec, rank) {
			words := m.Words(rank)
			m.mapped[rank].sweep(e, rank, words[freed])
			var err error
			if m.inputs[rank], err = w.find(m, rank, words[sendSegment], words[sendOffset], w.inputBytes(work)); err != nil {
				return err
			}
			if spec.Kind != plan.AllReduce {
				continue
			}
			if m.outputs[rank], err = w.find(m, rank, words[recvSegment], words[recvOffset], len(work.Recv)); err != nil {
				return err
			}
		}
		if work.kernel.HasPre() && spec.Kind == plan.AllReduce {
			m.inputs[rank] = m.outputs[rank] // the scaled ones
		}
	}
	return nil
}

// inputBytes is how long the inputs of others are.
func (w *worker) inputBytes(work *Work) int {
	if work.Program.Plan.Spec.Kind == plan.Broadcast {
		return len(work.Recv)
	}
	return len(work.Send)
}

// find returns bytes of a rank's segment. What the words say comes from another
// process and is checked.
func (w *worker) find(m *meeting, rank int, number, offset uint64, bytes int) ([]byte, error) {
	memory, err := w.segment(m, rank, number)
	if err != nil {
		return nil, err
	}
	if offset > uint64(len(memory)) || uint64(bytes) > uint64(len(memory))-offset {
		return nil, &fault.PeerLost{Rank: rank, Cause: fmt.Errorf(
			"it says that %d bytes are at offset %d of a segment of %d bytes", bytes, offset, len(memory))}
	}
	return memory[offset : offset+uint64(bytes) : offset+uint64(bytes)], nil
}

// segment returns a rank's segment, which is mapped at the first look.
func (w *worker) segment(m *meeting, rank int, number uint64) ([]byte, error) {
	for _, s := range m.mapped[rank].segments {
		if s.number == number {
			return s.memory, nil
		}
	}
	e := w.engine
	call := errand{w.launch.ctx, w.callSpec()}
	memory, err := reach(e, call, rank, func() ([]byte, error) { return e.seer.Segment(rank, number) })
	if err != nil {
		return nil, err
	}
	m.mapped[rank].segments = append(m.mapped[rank].segments, segment{number, memory})
	return memory, nil
}

// sweep gives up what a rank may have freed: all, if it has freed anything. What it has
// not is found again.
func (s *mapped) sweep(e *Engine, rank int, freed uint64) {
	if s.freed == freed {
		return
	}
	for _, old := range s.segments {
		e.seer.Forget(rank, old.number)
	}
	s.segments, s.freed = nil, freed
}

// forget lets go of the call's buffers.
func (m *meeting) forget() {
	clear(m.inputs)
	clear(m.outputs)
	clear(m.Sources)
}
