package tcp

import (
	"errors"
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

	twin   *sender // of the way back, in the same station; nil if there is none
	turned bool    // frames come over the twin's connection

	// staged[begin:end] has been read before its place was known: heads, small
	// payloads, and the beginning of large ones.
	staged     [4096]byte
	begin, end int

	// The frame under way, or the last one.
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
	if r.failure != nil || r.wire() == nil {
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
		if r.frame.last {
			r.turn()
		}
	}
	return moved
}

// wire is the connection that frames come over, nil if it is not there yet.
func (r *receiver) wire() *bundle {
	if r.turned {
		return r.twin.bundle
	}
	return r.bundle
}

// turn goes on at the twin's connection.
func (r *receiver) turn() {
	r.turned = true
	switch {
	case r.begin < r.end:
		r.failure = fmt.Errorf("rank %d sent %d bytes behind its last frame", r.link.From, r.end-r.begin)
	case r.twin.bundle == nil:
		r.failure = r.twin.failure // nil while the connection is being made
	}
}

// start takes up the frame whose head is staged, if there is room for it.
func (r *receiver) start(ahead bool) bool {
	f, err := decodeFrame(r.staged[r.begin:r.end], r.in.Step(), r.in.SlotBytes())
	if err == nil && f.last && !r.mayTurn() {
		err = errors.New("a last frame where the link can't go on")
	}
	if err != nil {
		r.failure = fmt.Errorf("rank %d sent %w", r.link.From, err)
		return false
	}
	if !r.in.Room(f.step, f.slots) || !ahead && !r.in.Asked(f.step) {
		return false
	}
	for r.end-r.begin < f.headBytes() {
		if !r.read(nil) {
			return false
		}
	}
	r.begin += f.headBytes()
	r.frame, r.reading, r.got = f, true, 0
	r.into, r.user = r.in.Place(f.step, f.slots, f.length, f.header)
	r.striped = r.wire().stripes() && f.length > inlineBytes
	if r.striped {
		r.wire().beginRead(r.into)
		return true
	}
	r.got = copy(r.into, r.staged[r.begin:r.end])
	r.begin += r.got
	return true
}

// mayTurn reports whether a producer may go on over the twin's connection.
func (r *receiver) mayTurn() bool {
	return !r.turned && r.twin != nil && turnable(r.link) && r.bundle.twoWay() && (r.twin.bundle == nil || r.twin.bundle.twoWay())
}

// receive moves the frame under way on.
func (r *receiver) receive() (moved, done bool) {
	if r.striped {
		finished, err := r.wire().advanceRead()
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
	// Behind a payload on other sockets comes a head at any time; it is small. What
	// follows a large payload may be another: that is received where it belongs.
	most := len(r.staged)
	if r.frame.length > smallBytes {
		most = max(r.end, paddedBytes)
	}
	if r.end < most {
		buffers = append(buffers, r.staged[r.end:most])
	}
	n, err := r.wire().main.read(buffers)
	if err != nil {
		r.failure = err
		return false
	}
	direct := min(n, len(rest))
	r.got += direct
	r.end += n - direct
	return n > 0
}
