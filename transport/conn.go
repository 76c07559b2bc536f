package transport

import (
	"fmt"
	"sync/atomic"

	"github.com/gollective/gollective/internal/spin"
)

// Slots is the depth of every FIFO (NCCL_STEPS in src/include/device.h).
const Slots = 8

// control is the part of a FIFO that both ends look at. Each line has one
// writer.
//
// Steps count slots from the creation of the FIFO on and are never reset: step s
// lives in slot s mod Slots. At all times head <= tail <= head + Slots, but that
// between two operations head may be ahead by the steps that the second one skips
// (RecvEnd.RoundUp).
type control struct {
	// tail is the number of steps filled. Written by the producer after the
	// slots' bytes and headers, read by the consumer before them. LL and
	// LL128 leave it alone, where both ends are in this memory: their flags travel with
	// the data.
	tail atomic.Uint64
	_    [Line/2 - 8]byte
	// headers belong to the slots: what operation filled them. Plain words,
	// published by tail, taken back with head.
	headers [Slots]uint64

	// head is the number of steps freed. Written by the consumer after its
	// last look at the slots, read by the producer before it fills them again.
	head atomic.Uint64
	_    [Line - 8]byte
}

// Conn is one FIFO. It is shared by a SendEnd and a RecvEnd, which hold what
// only one side knows.
type Conn struct {
	control *control
	memory  []byte
	slot    int

	// filled is rung by the producer and armed by the consumer; freed the
	// other way round.
	filled, freed spin.Bell

	first uint64

	haul *Haul // nil where both ends are in this memory
}

// NewConn returns a FIFO of slots of slot bytes on the Go heap, whose first step
// is first: 0 but in tests that start just below a wrap of the flags. slot must
// be a positive multiple of Line.
func NewConn(slot int, first uint64) (*Conn, error) {
	if slot <= 0 || slot%Line != 0 {
		return nil, fmt.Errorf("transport: a slot of %d bytes is not a positive multiple of %d", slot, Line)
	}
	c := &Conn{control: new(control), memory: allocate(Slots * slot), slot: slot, first: first}
	c.control.tail.Store(first)
	c.control.head.Store(first)
	if first > 0 {
		scribble(c.memory)
	}
	return c, nil
}

// scribble fills the slots of a FIFO that starts late: after so many steps they
// would hold something. Zeroed words would be taken for data where the flags of LL
// wrap to zero.
func scribble(memory []byte) {
	for i := range memory {
		memory[i] = 0xa5
	}
}

// Later returns what c, which must be idle, would be at step first if all steps
// from now on carried so little that they left the slots as they are. For tests of
// the wrap-around: a state that starting late from nothing would not give.
func (c *Conn) Later(first uint64) *Conn {
	later := &Conn{control: new(control), memory: allocate(len(c.memory)), slot: c.slot, first: first}
	copy(later.memory, c.memory)
	later.control.tail.Store(first)
	later.control.head.Store(first)
	return later
}

// SlotBytes is the size of one slot.
func (c *Conn) SlotBytes() int { return c.slot }

// slots returns the memory of steps step to step+n-1, which must not wrap.
func (c *Conn) slots(step uint64, n int) []byte {
	at := int(step%Slots) * c.slot
	return c.memory[at : at+n*c.slot : at+n*c.slot]
}

// SendEnd is the producer's side of a Conn. One goroutine at a time uses it.
type SendEnd struct {
	peer int // the consumer's rank
	conn *Conn

	step uint64 // the next step to fill
	head uint64 // what head was when last read; head only grows
	need uint64 // Ready: head must reach this

	// Of a carried FIFO: the ends of all posts, and of the last one from the
	// user's memory. step may be ahead of both (RoundUp).
	posted, lent uint64
}

// NewSendEnd returns the producer's side of c, whose consumer is rank peer.
func NewSendEnd(c *Conn, peer int) *SendEnd {
	return &SendEnd{peer: peer, conn: c, step: c.first, head: c.first}
}

// Peer is the consumer's rank.
func (e *SendEnd) Peer() int { return e.peer }

// Step is the next step to fill.
func (e *SendEnd) Step() uint64 { return e.step }

// RoundUp skips to the next step that is a multiple of steps, so that chunks of
// several steps never wrap inside the ring of slots. The consumer does the same
// and gives the credit back at once.
//
// NCCL: loadSendConn and loadRecvConn in src/device/prims_simple.h.
func (e *SendEnd) RoundUp(steps int) {
	if rounded := roundUp(e.step, steps); rounded != e.step {
		e.step = rounded
		if e.conn.haul != nil {
			e.conn.control.tail.Store(rounded) // the proxy gives the credit back
		}
	}
}

// Credit makes Ready mean: the next n steps may be filled.
func (e *SendEnd) Credit(n int) *SendEnd {
	e.need = e.step + uint64(n) - Slots
	return e
}

// Ready implements spin.Condition. The cached head is believed as long as it
// suffices, so that in steady state the other side's line is read once for many
// steps.
func (e *SendEnd) Ready() bool {
	// Signed distance: need is "negative" for the first steps.
	if int64(e.head-e.need) >= 0 {
		return true
	}
	e.head = e.conn.control.head.Load() // acquire: the consumer is done with the slots
	return int64(e.head-e.need) >= 0
}

// Arm implements spin.Condition.
func (e *SendEnd) Arm(p *spin.Parker) { e.conn.freed.Arm(p) }

// Disarm implements spin.Condition.
func (e *SendEnd) Disarm() { e.conn.freed.Disarm() }

// Slot is the memory of the next n steps. Only valid with credit for them.
func (e *SendEnd) Slot(n int) []byte { return e.conn.slots(e.step, n) }

// Post publishes the next n steps, of which the operation header has filled the
// first used bytes, to the consumer.
func (e *SendEnd) Post(n int, header uint64, used int) {
	if e.conn.haul != nil {
		e.post(n, header, e.Slot(n)[:used])
		return
	}
	e.conn.control.headers[e.step%Slots] = header
	e.step += uint64(n)
	e.conn.control.tail.Store(e.step) // release: publishes the bytes and the header
	e.conn.filled.Ring()
}

// Advance counts a step that the consumer finds by the flags in its first used
// bytes, and rings for a consumer that sleeps. A sequentially consistent store must
// lie between the last store to the slot and Advance, or the bell could be looked at
// too early. A proxy that takes the step away is told the operation, header.
func (e *SendEnd) Advance(header uint64, used int) {
	if e.conn.haul != nil {
		e.post(1, header, e.Slot(1)[:used])
		return
	}
	e.step++
	e.conn.filled.Ring()
}

// RecvEnd is the consumer's side of a Conn. One goroutine at a time uses it.
type RecvEnd struct {
	peer int // the producer's rank
	conn *Conn

	step uint64 // the next step to read
	tail uint64 // what tail was when last read; tail only grows
	need uint64 // Ready: tail must reach this
}

// NewRecvEnd returns the consumer's side of c, whose producer is rank peer.
func NewRecvEnd(c *Conn, peer int) *RecvEnd {
	return &RecvEnd{peer: peer, conn: c, step: c.first, tail: c.first}
}

// Peer is the producer's rank.
func (e *RecvEnd) Peer() int { return e.peer }

// Step is the next step to read.
func (e *RecvEnd) Step() uint64 { return e.step }

// RoundUp skips to the next step that is a multiple of steps and gives the
// producer credit for what was skipped: it will never fill those slots.
func (e *RecvEnd) RoundUp(steps int) {
	if rounded := roundUp(e.step, steps); rounded != e.step {
		e.step = rounded
		e.conn.control.head.Store(rounded)
		e.conn.freed.Ring()
	}
}

// Filled makes Ready mean: the next n steps may be read.
func (e *RecvEnd) Filled(n int) *RecvEnd {
	e.need = e.step + uint64(n)
	return e
}

// Ready implements spin.Condition.
func (e *RecvEnd) Ready() bool {
	if e.tail >= e.need {
		return true
	}
	if h := e.conn.haul; h != nil {
		e.ask(h)
	}
	e.tail = e.conn.control.tail.Load() // acquire: the bytes and the header are visible
	return e.tail >= e.need
}

// Arm implements spin.Condition.
func (e *RecvEnd) Arm(p *spin.Parker) { e.conn.filled.Arm(p) }

// Disarm implements spin.Condition.
func (e *RecvEnd) Disarm() { e.conn.filled.Disarm() }

// Slot is the memory of the next n steps. Only valid when they are filled.
func (e *RecvEnd) Slot(n int) []byte { return e.conn.slots(e.step, n) }

// Header is what Post was told about the next step. Only valid when it is filled.
func (e *RecvEnd) Header() uint64 { return e.conn.control.headers[e.step%Slots] }

// Release gives the next n steps back to the producer; their memory must not be
// touched afterwards.
func (e *RecvEnd) Release(n int) {
	e.step += uint64(n)
	e.conn.control.head.Store(e.step) // release: this side's loads are done
	e.conn.freed.Ring()
}

func roundUp(step uint64, multiple int) uint64 {
	m := uint64(multiple)
	return (step + m - 1) / m * m
}
