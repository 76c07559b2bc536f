package proto

import (
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// Simple moves a chunk in slices of whole slots. For each slice:
//
//  1. wait until every FIFO received from is filled, and every FIFO sent to free;
//  2. move the bytes, reducing on the way;
//  3. post the slots sent, release the slots received.
//
// NCCL: genericOp in src/device/prims_simple.h.
type Simple struct {
	fan
	element    int  // bytes
	sliceSteps int  // slots a slice takes
	slices     int  // per chunk
	slot       int  // bytes of one slot that carry payload
	copies     bool // what is sent is copied first, whatever its size
}

var _ Primitives = (*Simple)(nil)

// NewSimple returns the primitives between the given ends, for elements of
// element bytes, chunks of chunkSteps slots and slices of sliceSteps. payload is
// the number of bytes used of each slot.
func NewSimple(ends Ends, element, payload, chunkSteps, sliceSteps int) *Simple {
	s := &Simple{
		fan:        newFan(ends),
		copies:     ends.Overwritten,
		element:    element,
		sliceSteps: sliceSteps,
		slices:     chunkSteps / sliceSteps,
		slot:       payload,
	}
	s.claims = true
	for _, e := range ends.From {
		s.claims = s.claims && !e.Carried()
	}
	return s
}

// Begin implements Primitives. Operations with chunks of different sizes share a
// FIFO, so each begins at a multiple of its own chunk.
func (s *Simple) Begin(op Operation) {
	s.begin(op)
	steps := s.slices * s.sliceSteps
	for _, e := range s.from {
		e.RoundUp(steps)
	}
	for _, e := range s.to {
		e.RoundUp(steps)
	}
}

func (s *Simple) Send(in []byte) error                { return s.step(send, in, nil) }
func (s *Simple) SendFromOutput(out []byte) error     { return s.step(sendFromOutput, nil, out) }
func (s *Simple) Recv(out []byte) error               { return s.step(recv, nil, out) }
func (s *Simple) CopySend(in, out []byte) error       { return s.step(copySend, in, out) }
func (s *Simple) RecvCopySend(out []byte) error       { return s.step(recvCopySend, nil, out) }
func (s *Simple) RecvReduceSend(in []byte) error      { return s.step(recvReduceSend, in, nil) }
func (s *Simple) RecvReduceCopy(in, out []byte) error { return s.step(recvReduceCopy, in, out) }
func (s *Simple) RecvReduceCopySend(in, out []byte) error {
	return s.step(recvReduceCopySend, in, out)
}

// Next implements Primitives.
func (s *Simple) Next(chunk []byte) spin.Condition {
	if len(s.to) > 0 {
		return s.to[0].Credit(s.sliceSteps)
	}
	return s.filled(recv, s.from[0], chunk)
}

// filled is the condition that the next slice has come. Where a proxy brings it, and
// nothing is to be combined with it, it is wanted right in the output.
func (s *Simple) filled(v verb, e *transport.RecvEnd, out []byte) *transport.RecvEnd {
	if e.Carried() && !v.has(fromInput) && len(out) > 0 {
		return e.FilledInto(s.sliceSteps, s.op.Header, out)
	}
	return e.Filled(s.sliceSteps)
}

// lendBytes is the size from which a slice is sent from the user's memory, where a
// proxy can: the operation waits for it at its end, which costs as much as copying
// so many bytes.
const lendBytes = 8 << 10

// lent is the user's memory that holds the result of v, if that is to be sent from
// there. It stays as it is to the end of the operation: what is received into it
// later was made of what is sent now. Where that is not so, Ends.Overwritten is set.
func (s *Simple) lent(v verb, in, out []byte) []byte {
	switch {
	case s.copies || !v.has(toFIFO) || max(len(in), len(out)) < lendBytes:
	case v == send && !s.scales():
		return in
	case v == sendFromOutput, v.has(toOutput):
		return out
	}
	return nil
}

// step moves one chunk. Every slice of it is waited for and posted, also the
// empty ones: both ends count the same steps whatever the length.
func (s *Simple) step(v verb, in, out []byte) error {
	total := max(len(in), len(out))
	slice := s.sliceBytes(total)
	for i := range s.slices {
		begin, end := min(i*slice, total), min((i+1)*slice, total)
		if err := s.slice(v, part(in, begin, end), part(out, begin, end)); err != nil {
			return err
		}
	}
	return nil
}

// slice moves one slice.
func (s *Simple) slice(v verb, in, out []byte) error {
	n := max(len(in), len(out))
	lent := s.lent(v, in, out)
	s.slots, s.destinations = s.slots[:0], s.destinations[:0]
	if v.has(toOutput) {
		s.destinations = append(s.destinations, out)
	}
	if err := s.receive(v, out, n); err != nil {
		return err
	}
	if err := s.await(v, lent != nil, n); err != nil {
		return err
	}
	if n > 0 {
		s.move(v, in, out)
	}
	if v.has(toFIFO) {
		for _, e := range s.to {
			if lent != nil && e.Carried() {
				e.PostFrom(s.sliceSteps, s.op.Header, lent)
			} else {
				e.Post(s.sliceSteps, s.op.Header, n)
			}
		}
	}
	if v.has(fromFIFO) {
		for _, e := range s.from {
			e.Release(s.sliceSteps)
		}
	}
	return nil
}

// receive waits for the slots of one slice of n bytes to come, and adds them to
// s.slots.
func (s *Simple) receive(v verb, out []byte, n int) error {
	if !v.has(fromFIFO) {
		return nil
	}
	for _, e := range s.from {
		if err := s.op.Waiter.Until(s.filled(v, e, out)); err != nil {
			return err
		}
		if err := s.check(e.Peer(), e.Header()); err != nil {
			return err
		}
		inPlace, err := s.landed(e, n)
		if err != nil {
			return err
		}
		if inPlace { // the output is not to be written any more
			s.slots, s.destinations = append(s.slots, out), s.destinations[:0]
			continue
		}
		s.slots = append(s.slots, e.Slot(s.sliceSteps)[:n])
	}
	return nil
}

// await waits for the slots that one slice of n bytes is sent through, and adds them
// to s.destinations, but for those that send it from the user's memory.
func (s *Simple) await(v verb, lent bool, n int) error {
	if !v.has(toFIFO) {
		return nil
	}
	for _, e := range s.to {
		if err := s.op.Waiter.Until(e.Credit(s.sliceSteps)); err != nil {
			return err
		}
		if !lent || !e.Carried() {
			s.destinations = append(s.destinations, e.Slot(s.sliceSteps)[:n])
		}
	}
	return nil
}

// sliceBytes is the size of the slices of a chunk of total bytes: an even share
// rounded up to 16 elements, but not so small that a slice is below 1/32 of its
// slots. The last slices may be short or empty.
//
// NCCL: genericOp in src/device/prims_simple.h.
func (s *Simple) sliceBytes(total int) int {
	most := s.sliceSteps * s.slot
	sixteen := 16 * s.element
	even := (total + s.slices*sixteen - 1) / (s.slices * sixteen) * sixteen
	least := most / 32 / s.element * s.element
	return min(max(even, least), most/s.element*s.element)
}

// part is b[begin:end], or nil for a buffer that the primitive does not have.
func part(b []byte, begin, end int) []byte {
	if b == nil {
		return nil
	}
	return b[begin:end]
}
