package proto

import (
	"fmt"

	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// Primitives are the verbs of a schedule, on one chunk each. "recv" takes the
// chunk from the FIFO of every rank received from, "send" puts it into the FIFO
// of every rank sent to, "copy" keeps it in the output, "reduce" combines it
// with this rank's input:
//
//	Send                in                 → FIFO
//	SendFromOutput      out                → FIFO
//	Recv                FIFO               → out
//	CopySend            in                 → out, FIFO
//	RecvCopySend        FIFO               → out, FIFO
//	RecvReduceSend      in ⊕ FIFO ⊕ …      → FIFO
//	RecvReduceCopy      in ⊕ FIFO ⊕ …      → out         the value is final
//	RecvReduceCopySend  in ⊕ FIFO ⊕ …      → out, FIFO   the value is final
//
// The input is the first operand, or comes behind some of the FIFOs (Ends.Own).
//
// in and out have the same length, a whole number of elements, which may be
// zero: the number of steps that both ends count depends on the call only. All
// verbs wait, for credit or for data; an error means that the wait ended
// otherwise, and leaves the FIFOs unusable.
type Primitives interface {
	// Begin starts an operation; both ends of every FIFO must do so for the
	// same operations in the same order.
	Begin(Operation)
	// End ends it: it waits until the proxies of carried FIFOs need this
	// operation's buffers no longer. After an error of any verb it is not called.
	End() error

	Send(in []byte) error
	SendFromOutput(out []byte) error
	Recv(out []byte) error
	CopySend(in, out []byte) error
	RecvCopySend(out []byte) error
	RecvReduceSend(in []byte) error
	RecvReduceCopy(in, out []byte) error
	RecvReduceCopySend(in, out []byte) error

	// Next is the condition under which the next Send, or Recv, of chunk by
	// primitives with a single peer will not have to wait for that peer to
	// begin.
	Next(chunk []byte) spin.Condition
}

// Operation is what the steps of one call have in common.
type Operation struct {
	Waiter *spin.Waiter
	Kernel *reduce.Kernel // nil where nothing is reduced
	// Header identifies the operation in every slot. Receivers compare it.
	Header uint64
}

// HeaderError is a slot that another operation filled: the peer is in another
// call than this rank.
type HeaderError struct {
	Peer      int
	Want, Got uint64
}

func (e *HeaderError) Error() string {
	return fmt.Sprintf("proto: rank %d sent a slot of operation %#x, expected %#x", e.Peer, e.Got, e.Want)
}

// LengthError is a slot of this operation that does not hold as many bytes as it
// must: what carried it is broken.
type LengthError struct {
	Peer      int
	Want, Got int
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("proto: rank %d sent a slot of %d bytes, expected %d", e.Peer, e.Got, e.Want)
}

// Ends are the FIFOs that primitives work on, and in which order.
type Ends struct {
	From []*transport.RecvEnd // in order of reduction
	To   []*transport.SendEnd

	// Own is how many of From come before this rank's input in a reduction: 0
	// where partial results go from rank to rank, as in a ring or a tree.
	Own int

	// Overwritten says that the memory of what is sent may be received into in
	// the same operation, with something that does not wait for it to have
	// arrived. Such memory is not sent from directly, it is copied first.
	Overwritten bool
}

// verb says where a primitive reads and writes.
type verb uint8

const (
	fromInput  verb = 1 << iota // reads the input; Kernel.Pre applies
	fromOutput                  // reads the output
	fromFIFO
	toOutput
	toFIFO
	final // Kernel.Post applies
)

const (
	send               = fromInput | toFIFO
	sendFromOutput     = fromOutput | toFIFO
	recv               = fromFIFO | toOutput
	copySend           = fromInput | toOutput | toFIFO
	recvCopySend       = fromFIFO | toOutput | toFIFO
	recvReduceSend     = fromFIFO | fromInput | toFIFO
	recvReduceCopy     = fromFIFO | fromInput | toOutput | final
	recvReduceCopySend = fromFIFO | fromInput | toOutput | toFIFO | final
)

func (v verb) has(part verb) bool { return v&part != 0 }

// blockBytes is how much is combined before it is copied to further destinations,
// or claimed: little enough to be still in the first-level cache then.
const blockBytes = 16 << 10

// fan is what the three protocols share: the ends of the FIFOs, the operation
// in progress, and the movement of bytes once there is something to move.
type fan struct {
	from []*transport.RecvEnd
	to   []*transport.SendEnd
	own  int // Ends.Own
	op   Operation

	// Scratch, reused by every step; the byte buffers are made when a step
	// first needs them.
	sources      [][]byte // for Kernel.Reduce
	slots        [][]byte // what was received
	destinations [][]byte // where the result goes
	targets      [][]byte // one block of each destination
	scaled       []byte   // input after Kernel.Pre

	// claims says that slots are those of a FIFO, whose other end will write them
	// next: they are claimed when they have been read.
	claims bool
}

func newFan(ends Ends) fan {
	return fan{
		from:         ends.From,
		to:           ends.To,
		own:          ends.Own,
		sources:      make([][]byte, 0, len(ends.From)+1),
		slots:        make([][]byte, 0, len(ends.From)),
		destinations: make([][]byte, 0, len(ends.To)+1),
		targets:      make([][]byte, 0, len(ends.To)+1),
	}
}

// begin starts op at all ends.
func (f *fan) begin(op Operation) {
	f.op = op
	for _, e := range f.from {
		e.Open()
	}
	for _, e := range f.to {
		e.Open()
	}
}

// End implements Primitives.
func (f *fan) End() error {
	for _, e := range f.to {
		if e.Carried() {
			if err := f.op.Waiter.Until(e.Flushed()); err != nil {
				return err
			}
		}
		e.Close()
	}
	for _, e := range f.from {
		e.Close()
	}
	return nil
}

// landed reports whether what e received is in the memory that was given to
// FilledInto. A carried FIFO must have brought just size bytes.
func (f *fan) landed(e *transport.RecvEnd, size int) (bool, error) {
	if !e.Carried() {
		return false, nil
	}
	user, got := e.Landed()
	if got != size {
		return false, &LengthError{Peer: e.Peer(), Want: size, Got: got}
	}
	return user, nil
}

// move stores what v makes of f.slots, in or out in all f.destinations.
func (f *fan) move(v verb, in, out []byte) {
	switch {
	case v.has(fromFIFO) && v.has(fromInput):
		f.reduce(in, v.has(final))
	case v.has(fromFIFO):
		f.copySlot(f.slots[0])
	case v.has(fromInput):
		f.copyInput(in)
	case v.has(fromOutput):
		for _, dst := range f.destinations {
			copy(dst, out)
		}
	}
}

// copyInput stores the scaled input in all destinations.
func (f *fan) copyInput(in []byte) {
	rest := f.destinations
	if f.scales() {
		f.op.Kernel.Pre(rest[0], in)
		in, rest = rest[0], rest[1:]
	}
	for _, dst := range rest {
		copy(dst, in)
	}
}

// copySlot stores what was received in all destinations.
func (f *fan) copySlot(slot []byte) {
	if !f.claims || len(f.destinations) != 1 {
		for _, dst := range f.destinations {
			copy(dst, slot)
		}
		if f.claims {
			claim(slot)
		}
		return
	}
	copyClaiming(f.destinations[0], slot)
}

// reduce combines in with all slots, of which f.own come first, and stores the
// result in all destinations, block by block, so that later passes find the bytes
// in the cache.
func (f *fan) reduce(in []byte, final bool) {
	k := f.op.Kernel
	for at := 0; at < len(in); at += blockBytes {
		end := min(at+blockBytes, len(in))
		mine := in[at:end]
		if k.HasPre() {
			scaled := scratch(&f.scaled, blockBytes)[:len(mine)]
			k.Pre(scaled, mine)
			mine = scaled
		}
		f.store(f.operands(mine, at, end), at, end, final && k.HasPost())
		if f.claims {
			for _, slot := range f.slots {
				claim(slot[at:end])
			}
		}
	}
}

// operands are mine and the bytes at to end of all slots, in order of reduction.
func (f *fan) operands(mine []byte, at, end int) [][]byte {
	sources := f.sources[:0]
	for i, slot := range f.slots {
		if i == f.own {
			sources = append(sources, mine)
		}
		sources = append(sources, slot[at:end])
	}
	if len(sources) == f.own { // behind all of them
		sources = append(sources, mine)
	}
	return sources
}

// store reduces sources into the bytes at to end of all destinations.
func (f *fan) store(sources [][]byte, at, end int, post bool) {
	k := f.op.Kernel
	if len(f.destinations) > 1 && !post {
		targets := f.targets[:0]
		for _, dst := range f.destinations {
			targets = append(targets, dst[at:end])
		}
		k.ReduceTo(targets, sources)
		return
	}
	result := f.destinations[0][at:end]
	k.Reduce(result, sources)
	if post {
		k.Post(result)
	}
	for _, dst := range f.destinations[1:] {
		copy(dst[at:end], result)
	}
}

// scales reports whether the input is not used as it is.
func (f *fan) scales() bool { return f.op.Kernel != nil && f.op.Kernel.HasPre() }

// check compares a slot's header with the operation's.
func (f *fan) check(peer int, header uint64) error {
	if header != f.op.Header {
		return &HeaderError{Peer: peer, Want: f.op.Header, Got: header}
	}
	return nil
}

// scratch returns *b, making it on first use: many primitives never need theirs.
func scratch(b *[]byte, size int) []byte {
	if *b == nil {
		*b = make([]byte, size)
	}
	return *b
}
