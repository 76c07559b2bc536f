package transport

import (
	"sync/atomic"

	"github.com/gollective/gollective/internal/spin"
)

// Haul is what a FIFO has besides its memory when its other end is not in this
// memory: a proxy takes away what the producer posts, or brings what the consumer
// reads. Block and proxy are the two ends of it.
//
//	producer's process                    consumer's process
//	block ─▶ FIFO ─▶ proxy ─▶ network ─▶ proxy ─▶ FIFO ─▶ block
//	SendEnd   Outbound                   Inbound   RecvEnd
//
// The words that both look at are in control, as in every FIFO, and here. A step comes
// to the consumer in three moves: the block's look at Filled or FilledInto says what it
// waits for (asked, wants); the proxy finds the place for what comes (Place) and
// publishes it (Arrived: landed, tail); the block asks where it is (Landed).
type Haul struct {
	// Service is the proxy where the waiting block does its work; nil where the
	// proxy has a thread of its own.
	Service spin.Service

	// users counts the primitives that are between Open and Close: the FIFO is
	// looked at by the proxy only while there are any, or posts to take away.
	// Written by the block, read by the proxy.
	users atomic.Int32
	// called is rung by the block when it opens the FIFO, armed by the proxy.
	called spin.Bell

	// posts say what is in the slots of a producer's FIFO, at step mod Slots.
	// Plain words, written by the block and published by tail, read by the proxy
	// and taken back with head.
	posts [Slots]Post

	// asked is the step before which the consumer wants everything. Written by
	// the block, after wants; read by the proxy before it.
	asked atomic.Uint64
	// wants say where in the user's memory steps are wanted, if their end is
	// there. Plain words, published by asked, free again when tail has passed.
	wants [Slots]want
	// landed says of the steps in a consumer's FIFO where they are. Plain words,
	// written by the proxy and published by tail.
	landed [Slots]landing
}

// Post is what a producer has put into the slots that begin with Step.
type Post struct {
	Step   uint64
	Slots  int
	Header uint64
	Memory []byte // in the slots, or the user's
}

type want struct {
	step, header uint64
	user         []byte
}

type landing struct {
	bytes int
	user  bool // in the memory that was wanted, not in the slots
}

// NewHauledConn returns a FIFO in memory, which holds Slots slots and begins on a
// multiple of Line, whose other end a proxy stands for. Between them the steps must
// begin at 0.
func NewHauledConn(memory []byte, haul *Haul) *Conn {
	return &Conn{control: new(control), memory: memory, slot: len(memory) / Slots, haul: haul}
}

// Haul is what the FIFO has besides its memory; nil where both ends are in it.
func (c *Conn) Haul() *Haul { return c.haul }

// InUse reports whether the block is in an operation that uses the FIFO.
func (h *Haul) InUse() bool { return h.users.Load() > 0 }

// ArmCalled has p woken when the block begins to use the FIFO; nil withdraws it.
func (h *Haul) ArmCalled(p *spin.Parker) { h.called.Arm(p) }

func (h *Haul) open() {
	if h.users.Add(1) == 1 {
		h.called.Ring()
	}
}

// Outbound is the proxy's end of a producer's FIFO. One goroutine at a time uses it.
type Outbound struct {
	conn *Conn
	step uint64 // everything before it is taken away
}

// NewOutbound returns the proxy's end of c.
func NewOutbound(c *Conn) *Outbound { return &Outbound{conn: c} }

// Next returns what has been posted at or after step from, if anything has.
func (o *Outbound) Next(from uint64) (*Post, bool) {
	tail := o.conn.control.tail.Load() // acquire: the posts and the bytes are visible
	for ; from < tail; from++ {
		// Steps that an operation skipped to begin at a multiple have no post.
		if p := &o.conn.haul.posts[from%Slots]; p.Step == from && p.Slots > 0 {
			return p, true
		}
	}
	return nil, false
}

// Skip gives back the steps that the producer has skipped, when all that it posted
// is taken away.
func (o *Outbound) Skip() {
	if tail := o.conn.control.tail.Load(); tail > o.step {
		if _, posted := o.Next(o.step); !posted {
			o.step = tail
			o.conn.control.head.Store(tail)
			o.conn.freed.Ring()
		}
	}
}

// Taken gives the slots of p, which has left this process, back to the producer.
func (o *Outbound) Taken(p *Post) {
	o.step = p.Step + uint64(p.Slots)
	o.conn.control.head.Store(o.step) // release: the bytes are read
	o.conn.freed.Ring()
}

// Step is the first step that has not been taken away.
func (o *Outbound) Step() uint64 { return o.step }

// Arm has p woken by the next post; nil withdraws it.
func (o *Outbound) Arm(p *spin.Parker) { o.conn.filled.Arm(p) }

// Inbound is the proxy's end of a consumer's FIFO. One goroutine at a time uses it.
type Inbound struct {
	conn *Conn
	step uint64 // everything before it has arrived
}

// NewInbound returns the proxy's end of c.
func NewInbound(c *Conn) *Inbound { return &Inbound{conn: c} }

// Step is the first step that has not arrived.
func (i *Inbound) Step() uint64 { return i.step }

// Asked reports whether the block waits for step.
func (i *Inbound) Asked(step uint64) bool { return i.conn.haul.asked.Load() > step }

// Wanted reports whether the block waits for something that has not arrived.
func (i *Inbound) Wanted() bool { return i.Asked(i.step) }

// Room reports whether the block has freed the slots that n steps from step on
// take.
func (i *Inbound) Room(step uint64, n int) bool {
	return int64(i.conn.control.head.Load()-(step+uint64(n)-Slots)) >= 0 // acquire: its loads are done
}

// Place returns where size bytes for the n slots from step on are to be put: in the
// user's memory if just that many bytes of the operation are wanted there.
func (i *Inbound) Place(step uint64, n, size int, header uint64) (memory []byte, user bool) {
	if w := &i.conn.haul.wants[step%Slots]; i.Asked(step) && w.step == step && w.header == header && w.user != nil && len(w.user) == size {
		return w.user, true
	}
	return i.conn.slots(step, n)[:size:size], false
}

// Arrived publishes the n slots from step on, whose size bytes are where Place
// said.
func (i *Inbound) Arrived(step uint64, n, size int, header uint64, user bool) {
	i.conn.haul.landed[step%Slots] = landing{size, user}
	i.conn.control.headers[step%Slots] = header
	i.step = step + uint64(n)
	i.conn.control.tail.Store(i.step) // release: publishes the bytes and where they are
	i.conn.filled.Ring()
}

// SlotBytes is the size of one slot.
func (i *Inbound) SlotBytes() int { return i.conn.slot }

// Arm has p woken when the block frees slots; nil withdraws it.
func (i *Inbound) Arm(p *spin.Parker) { i.conn.freed.Arm(p) }

// Carried reports whether a proxy takes away what is posted here: then PostFrom
// works, and Flushed must be waited for at the end of an operation.
func (e *SendEnd) Carried() bool { return e.conn.haul != nil }

// Open says that an operation begins to use the FIFO, and must be followed by
// Close.
func (e *SendEnd) Open() {
	if h := e.conn.haul; h != nil {
		h.open()
	}
}

// Close ends what Open began.
func (e *SendEnd) Close() {
	if h := e.conn.haul; h != nil {
		h.users.Add(-1)
	}
}

// PostFrom is Post for bytes that are in the user's memory, which must not change
// before Flushed is ready. The FIFO must be carried.
func (e *SendEnd) PostFrom(n int, header uint64, user []byte) {
	e.post(n, header, user)
	e.lent = e.step
}

func (e *SendEnd) post(n int, header uint64, memory []byte) {
	e.conn.haul.posts[e.step%Slots] = Post{Step: e.step, Slots: n, Header: header, Memory: memory}
	e.step += uint64(n)
	e.posted = e.step
	e.conn.control.tail.Store(e.step) // release: publishes the bytes and the post
	e.conn.filled.Ring()
}

// Flushed makes Ready mean: what must have left this process before the operation
// may end has. That is what was posted from the user's memory, and everything where
// nobody but waiting blocks drives the proxy.
func (e *SendEnd) Flushed() *SendEnd {
	e.need = e.lent
	if e.conn.haul.Service != nil {
		e.need = e.posted
	}
	return e
}

// Carried reports whether a proxy brings what arrives here: then all of a slot is
// there when Filled says so, also of LL and LL128, and nothing before.
func (e *RecvEnd) Carried() bool { return e.conn.haul != nil }

// Open says that an operation begins to use the FIFO, and must be followed by
// Close.
func (e *RecvEnd) Open() {
	if h := e.conn.haul; h != nil {
		h.open()
	}
}

// Close ends what Open began.
func (e *RecvEnd) Close() {
	if h := e.conn.haul; h != nil {
		h.users.Add(-1)
	}
}

// FilledInto is Filled where the bytes of the next n steps, if they belong to the
// operation header, are wanted in the user's memory. Landed says whether they got
// there. The FIFO must be carried.
func (e *RecvEnd) FilledInto(n int, header uint64, user []byte) *RecvEnd {
	if h := e.conn.haul; h.asked.Load() <= e.step {
		h.wants[e.step%Slots] = want{e.step, header, user}
	}
	return e.Filled(n)
}

// Landed reports whether the next step's bytes are in the memory that FilledInto
// was given, and how many there are. Only valid when it is filled.
func (e *RecvEnd) Landed() (user bool, size int) {
	h := e.conn.haul
	h.wants[e.step%Slots].user = nil // user memory is not retained
	l := h.landed[e.step%Slots]
	return l.user, l.bytes
}

// ask tells the proxy what the block waits for.
func (e *RecvEnd) ask(h *Haul) {
	if h.asked.Load() < e.need {
		h.asked.Store(e.need) // release: publishes wants
	}
}

// Service is what must be driven for the FIFO to move, by those who wait at this end;
// nil for nothing.
func (e *SendEnd) Service() spin.Service { return e.conn.service() }

// Service is as SendEnd.Service.
func (e *RecvEnd) Service() spin.Service { return e.conn.service() }

func (c *Conn) service() spin.Service {
	if c.haul == nil {
		return nil
	}
	return c.haul.Service
}
