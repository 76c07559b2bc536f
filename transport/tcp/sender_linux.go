package tcp

import (
	"github.com/gollective/gollective/transport"
)

// sender takes what a block of this process posts to another. A post goes through
// NCCL's states: posted (by the block, which moves tail), transmitted (some of it is
// under way), done (the system has all of it: head moves, and the block may use the
// slots, or its own memory, again).
//
// NCCL: sendProxyProgress in src/transport/net.cc.
//
// The station's lock guards everything here.
type sender struct {
	transport *Transport
	link      transport.Link
	haul      *transport.Haul
	out       *transport.Outbound
	bundle    *bundle // nil until connected
	failure   error   // why nothing more will go out

	twin   *receiver // of the way back, in the same station; nil if there is none
	turned bool      // frames go over the twin's connection

	// The post under way.
	post    *transport.Post
	head    [frameBytes + smallBytes]byte // and a small payload behind it
	ahead   int                           // bytes of head, and of padding
	small   bool
	last    bool // turned, when it is done
	sent    int  // bytes of head and payload that the main socket has taken
	striped bool
	blocked bool // the socket took less than there was

	buffers [2][]byte
	bytes   uint64 // payload sent so far
}

// most is how many frames one pass takes before the other links get their turn.
const most = 4

// fail ends the link.
func (s *sender) fail(err error) {
	if s.failure == nil {
		pending := s.pending()
		if s.failure = err; pending {
			s.transport.lost(s.link, err)
		}
	}
}

// pending reports whether the block has posted something that is not done.
func (s *sender) pending() bool {
	if s.failure != nil {
		return false
	}
	if s.post != nil {
		return true
	}
	_, posted := s.out.Next(s.out.Step())
	return posted
}

// progress sends what it can without waiting, and reports whether that was
// anything.
func (s *sender) progress() (moved bool) {
	if s.bundle == nil || s.failure != nil {
		return false
	}
	for range most {
		if s.post == nil && !s.begin() {
			return moved
		}
		did, done := s.transmit()
		moved = moved || did
		if !done {
			return moved
		}
		s.bytes += uint64(len(s.post.Memory))
		s.out.Taken(s.post)
		s.post = nil
		s.turned = s.turned || s.last
	}
	return moved
}

// wire is the connection that frames go over.
func (s *sender) wire() *bundle {
	if s.turned {
		return s.twin.bundle
	}
	return s.bundle
}

// turns reports whether the next frame is to be the last over the link's own
// connection.
func (s *sender) turns() bool {
	return !s.turned && s.twin != nil && turnable(s.link) && s.bundle.twoWay() && s.twin.bundle != nil && s.twin.bundle.twoWay()
}

// begin takes up the next post.
func (s *sender) begin() bool {
	post, ok := s.out.Next(s.out.Step())
	if !ok {
		s.out.Skip()
		return false
	}
	s.post, s.sent = post, 0
	s.last = s.turns()
	f := frameOf(post)
	f.last = s.last
	f.encode((*[frameBytes]byte)(s.head[:]))
	s.ahead = f.headBytes()
	if s.small = len(post.Memory) <= smallBytes; s.small {
		copy(s.head[frameBytes:], post.Memory)
	} else {
		clear(s.head[frameBytes:paddedBytes])
	}
	s.striped = s.wire().stripes() && len(post.Memory) > inlineBytes
	if s.striped {
		s.wire().beginWrite(post.Memory)
	}
	return true
}

// transmit moves the post under way on.
func (s *sender) transmit() (moved, done bool) {
	s.blocked = false
	payload := s.post.Memory
	if s.striped {
		payload = nil
	}
	for total := s.ahead + len(payload); s.sent < total; {
		n, err := s.wire().main.write(s.rest(payload))
		if err != nil {
			s.fail(err)
			return moved, false
		}
		s.blocked = n == 0
		if n == 0 {
			return moved, false
		}
		s.sent += n
		moved = true
	}
	if s.striped {
		finished, err := s.wire().advanceWrite()
		if err != nil {
			s.fail(err)
		}
		return moved || finished, finished && err == nil
	}
	return moved, true
}

// rest is what the main socket has not taken of head and payload.
func (s *sender) rest(payload []byte) [][]byte {
	switch {
	case s.small:
		s.buffers[0] = s.head[s.sent : frameBytes+len(payload)]
		return s.buffers[:1]
	case s.sent >= s.ahead:
		s.buffers[0] = payload[s.sent-s.ahead:]
		return s.buffers[:1]
	}
	s.buffers[0] = s.head[s.sent:s.ahead]
	if len(payload) == 0 { // it goes over other sockets
		return s.buffers[:1]
	}
	s.buffers[1] = payload
	return s.buffers[:2]
}
