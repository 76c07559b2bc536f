package transport

import (
	"fmt"
	"sync/atomic"

	"github.com/gollective/gollective/internal/spin"
)

// Desk is what one rank shows to all others that share memory with it, instead of
// sending it to each: FIFOs have one reader, a desk has as many as there are ranks.
// A rank posts at its own desk and looks at the others'; every word has one writer,
// the owner. One thing looks like an exception: where there is a single peer, it may
// store back in the lines of a post what it has read there (Claim). It does so after it
// has seen the post and before it makes its next one, which the owner waits for before
// it writes to that place again, so no store of the owner's is ever overwritten.
//
// Posts are numbered from 1 on, by all ranks alike. Post s lies in place s mod 2: a
// rank may post s when it has seen post s-1 of all others, which says that they have
// done with s-2 (see proto.Direct, which keeps that rule).
type Desk struct {
	head   *deskHead
	places [2]place

	// lent is what the owner's posts lend to goroutines of its own process: plain
	// words, published with the post.
	lent [2]Loan

	// waiter is rung by everybody who posts or moves on: the owner may wait for it.
	waiter spin.Bell

	here bool
}

// Loan is a caller's memory that other ranks may use until its call ends.
type Loan struct{ Send, Recv []byte }

// deskHead lies in memory that all ranks see; for processes it is an ABI.
type deskHead struct {
	mark [4]uint64 // deskMark, deskVersion, bytes per slot, reserved; written before anybody looks
	_    [Line - 32]byte

	// phase says how far the owner has got with what it does with others' memory; see
	// proto.Direct. Written by the owner, with a fence, behind all that it tells of;
	// polled by all others.
	phase atomic.Uint64
	_     [Line - 8]byte

	// sleeper is the number of the bed in which the owner sleeps, 0 when it does not.
	// Written by the owner; whoever has posted or moved reads it, behind a fence.
	sleeper atomic.Uint32
	_       [Line - 4]byte
}

// place is where one of two posts lies.
type place struct {
	*post
	line  []byte // the post
	small []byte // its own bytes
	slot  []byte // what comes behind it
}

// post is a cache line, of which a payload of few bytes takes the rest: it comes with
// what publishes it.
type post struct {
	// sequence is written last, by the owner: it publishes the rest, and what is in the
	// slot. Polled by all others, who look at the rest only then.
	sequence atomic.Uint64
	header   uint64
	words    [PostWords]uint64
}

// PostWords is how many words go with a post that has no payload.
const PostWords = 6

const postBytes = 16 + 8*PostWords

const (
	deskMark    = 0x4b534544_4c4c4f47 // "GOLLDESK"
	deskVersion = 1
	deskStart   = 512 // where the places begin
)

// DeskBytes is the memory that a desk with slots of slot bytes takes.
func DeskBytes(slot int) int { return deskStart + 2*(slot+Line) }

// Spot names a desk of a communicator.
type Spot struct {
	Rank    int // its owner
	Channel int
	Slot    int // bytes of each of its two slots, a positive multiple of Line
}

// Check reports what makes s no spot.
func (s Spot) Check() error {
	if s.Slot <= 0 || s.Slot%Line != 0 {
		return fmt.Errorf("transport: a desk with slots of %d bytes, not a positive multiple of %d", s.Slot, Line)
	}
	return nil
}

// Seer is a Transport all of whose ranks see each other's desks.
type Seer interface {
	Transport
	// Sees is how much of each other's memory ranks see.
	Sees() Sight
	// Desk returns the desk at spot, making it at the first call of anybody.
	Desk(spot Spot) (*Desk, error)
	// Refer says how other ranks find b, memory of rank; Segment 0 if they can't. It
	// costs nanoseconds.
	Refer(rank int, b []byte) Reference
	// Freed is how many segments of a rank can't be referred to any more.
	Freed(rank int) uint64
	// Segment maps a segment of a rank, which may take a while. It may be called several
	// times, by different goroutines.
	Segment(rank int, segment uint64) ([]byte, error)
	// Forget takes back one call of Segment. With the last one the memory is unmapped.
	Forget(rank int, segment uint64)
}

// Reference is a place in memory that a rank has registered. Segments are numbered
// from 1 on, and never anew.
type Reference struct{ Segment, Offset uint64 }

// Sight is how much of each other's memory the ranks of a communicator see.
type Sight uint8

const (
	Nothing Sight = iota // some ranks share no memory
	Some                 // desks, and what Reference finds
	Everything
)

// NewDesk returns a desk on the Go heap, for ranks of one process.
func NewDesk(slot int) (*Desk, error) {
	memory := allocate(DeskBytes(slot))
	MarkDesk(memory, slot)
	d, err := deskOver(memory, slot)
	if err != nil {
		return nil, err
	}
	d.here = true
	return d, nil
}

// ShareDesk returns the desk in memory that several processes map, and that MarkDesk
// has marked; beds are those of its owner's process, and here says that it is this one.
func ShareDesk(memory []byte, slot int, beds []spin.Bed, here bool) (*Desk, error) {
	d, err := deskOver(memory, slot)
	if err != nil {
		return nil, err
	}
	d.here = here
	d.waiter.Share(&spin.SharedBell{Sleeper: &d.head.sleeper, Beds: beds})
	return d, nil
}

func deskOver(memory []byte, slot int) (*Desk, error) {
	if err := (Spot{Slot: slot}).Check(); err != nil {
		return nil, err
	}
	if len(memory) < DeskBytes(slot) {
		return nil, fmt.Errorf("transport: a desk with slots of %d bytes needs %d, there are %d", slot, DeskBytes(slot), len(memory))
	}
	head := overlayDesk(memory)
	if want := [4]uint64{deskMark, deskVersion, uint64(slot), 0}; head.mark != want {
		return nil, fmt.Errorf("transport: the desk is marked %x, expected %x", head.mark, want)
	}
	d := &Desk{head: head}
	for i := range d.places {
		d.places[i] = overlayPlace(memory[deskStart+i*(slot+Line):][:slot+postBytes])
	}
	return d, nil
}

// MarkDesk writes the mark of a desk into zeroed memory.
func MarkDesk(memory []byte, slot int) {
	overlayDesk(memory).mark = [4]uint64{deskMark, deskVersion, uint64(slot), 0}
}

// Here reports whether the owner is a goroutine of this process.
func (d *Desk) Here() bool { return d.here }

// Payload is where bytes of payload of post s lie. Only its owner writes them, before
// Post.
func (d *Desk) Payload(s uint64, bytes int) []byte {
	p := &d.places[s%2]
	if bytes <= len(p.small) {
		return p.small[:bytes]
	}
	return p.slot[:bytes]
}

// Claim has claim look at the lines of post s with a payload of so many bytes. Their
// owner does not until it posts s+2.
func (d *Desk) Claim(s uint64, bytes int, claim func([]byte)) {
	p := &d.places[s%2]
	claim(p.line)
	if bytes > len(p.small) {
		claim(p.slot[:bytes])
	}
}

// Words are what goes with post s instead of a payload. Only its owner writes them,
// before Post.
func (d *Desk) Words(s uint64) *[PostWords]uint64 { return &d.places[s%2].words }

// Lent is what post s lends. Only its owner writes it, before Post or when nobody
// can look any more.
func (d *Desk) Lent(s uint64) *Loan { return &d.lent[s%2] }

// Label prepares post s of the owner, whose payload, words and loan are in place. It
// is published by storing s in the word that is returned, as a release at least.
func (d *Desk) Label(s, header uint64) *atomic.Uint64 {
	p := &d.places[s%2]
	p.header = header
	return &p.sequence
}

// Post publishes post s of the owner, with a fence.
func (d *Desk) Post(s, header uint64) { d.Label(s, header).Store(s) }

// Posted reports whether post s is there, or a later one.
func (d *Desk) Posted(s uint64) bool { return d.places[s%2].sequence.Load() >= s }

// Header is that of post s, which is there.
func (d *Desk) Header(s uint64) uint64 { return d.places[s%2].header }

// Phase is how far the owner has got.
func (d *Desk) Phase() uint64 { return d.head.phase.Load() }

// Move is the owner's next phase. What it has read and written before is done with
// whatever looks at the phase afterwards.
func (d *Desk) Move(phase uint64) { d.head.phase.Swap(phase) }

// Waiter is the bell of the goroutine that waits on behalf of the owner.
func (d *Desk) Waiter() *spin.Bell { return &d.waiter }
