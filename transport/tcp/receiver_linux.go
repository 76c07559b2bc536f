package tcp

import (
	"fmt"

	"github.com/gollective/gollective/transport"
)

// receiver brings what another process sends to a block of this one. A step goes
// through NCCL's states: posted (there is room for it: the block has freed the slots,
// or wants it in its own memory), received (some of it has come), done (all of it is
// there: tail moves, and the block may read).
//
// NCCL: recvProxyProgress in src/transport/net.cc.
//
// The station's lock guards everything here.
type receiver struct {
	link    transport.Link
	haul    *transport.Haul
	in      *transport.Inbound
	bundle  *bundle // nil until the producer's process has connected
	failure error   // why nothing more will come

	// staged[begin:end] has been read before its place was known: heads, small
	// payloads, and the beginning of large ones.
	staged     [4096]byte
	begin, end int

	// The frame under way.
	frame   frame
	reading bool
	into    []byte
	user    bool // into is the user's memory
	got     int
	striped bool

	buffers [2][]byte
	bytes   uint64 // payload received so far
}

// wants reports whether bytes from the network would be of use: ahead says that
// slots are filled before the block asks for them.
func (r *receiver) wants(ahead bool) bool {
	if r.failure != nil || r.bundle == nil {
		return false
	}
	return r.reading || r.in.Wanted() || ahead && r.in.Room(r.in.Step(), 1)
}

// progress receives what it can without waiting, and reports whether that was
// anything.
func (r *receiver) progress(ahead bool) (moved bool) {
	for range most {
		if !r.wants(ahead) {
			return moved
		}
		if !r.reading {
			if r.end-r.begin < frameBytes {
				if !r.read(nil) {
					return moved
				}
				moved = true
				if r.end-r.begin < frameBytes {
					continue
				}
			}
			if !r.start(ahead) {
				return moved
			}
		}
		did, done := r.receive()
		moved = moved || did
		if !done {
			return moved
		}
		r.reading = false
		r.bytes += uint64(r.frame.length)
		r.in.Arrived(r.frame.step, r.frame.slots, r.frame.length, r.frame.header, r.user)
		moved = true
	}
	return moved
}

// start takes up the frame whose head is staged, if there is room for it.
func (r *receiver) start(ahead bool) bool {
	f, err := decodeFrame(r.staged[r.begin:r.end], r.in.Step(), r.in.SlotBytes())
	if err != nil {
		r.failure = fmt.Errorf("rank %d sent %w", r.link.From, err)
		return false
	}
	if !r.in.Room(f.step, f.slots) || !ahead && !r.in.Asked(f.step) {
		return false
	}
	r.begin += frameBytes
	r.frame, r.reading, r.got = f, true, 0
	r.into, r.user = r.in.Place(f.step, f.slots, f.length, f.header)
	r.striped = r.bundle.stripes() && f.length > inlineBytes
	if r.striped {
		r.bundle.beginRead(r.into)
		return true
	}
	r.got = copy(r.into, r.staged[r.begin:r.end])
	r.begin += r.got
	return true
}

// receive moves the frame under way on.
func (r *receiver) receive() (moved, done bool) {
	if r.striped {
		finished, err := r.bundle.advanceRead()
		if err != nil {
			r.failure = err
		}
		return finished, finished && err == nil
	}
	for r.got < len(r.into) {
		if !r.read(r.into[r.got:]) {
			return moved, false
		}
		moved = true
	}
	return moved, true
}

// read receives into rest of the frame under way, and what comes behind it into
// staged, which must be empty unless rest is.
func (r *receiver) read(rest []byte) bool {
	if r.begin == r.end {
		r.begin, r.end = 0, 0
	} else if r.begin > 0 {
		r.end = copy(r.staged[:], r.staged[r.begin:r.end])
		r.begin = 0
	}
	buffers := r.buffers[:0]
	if len(rest) > 0 {
		buffers = append(buffers, rest)
	}
	// Behind a payload on other sockets comes a head at any time; it is small.
	buffers = append(buffers, r.staged[r.end:])
	n, err := r.bundle.main.read(buffers)
	if err != nil {
		r.failure = err
		return false
	}
	direct := min(n, len(rest))
	r.got += direct
	r.end += n - direct
	return n > 0
}
