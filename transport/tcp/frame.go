package tcp

import (
	"encoding/binary"
	"fmt"

	"github.com/gollective/gollective/transport"
)

// A frame is one post on the wire: a head, then the bytes that were posted. Ahead of
// more than smallBytes of them the head is padded to paddedBytes. All integers are
// little-endian.
//
//	0  length   4 bytes  of what was posted
//	4  slots    2        that the post takes
//	6  kind     2        frameKind, or lastFrameKind
//	8  step     8        the first of its slots
//	16 header   8        the operation; the block compares it with its own
const frameBytes = 24

// paddedBytes keeps a large payload in step with the cache lines of the memory that
// the system copies it through: where it is not, each copy takes a tenth longer.
const paddedBytes = 64

// smallBytes is the largest payload that is copied behind its head: one piece of memory
// costs the system less than two.
const smallBytes = 1000

// frameKind marks a frame. A connection that has lost its place in the stream will
// hardly find it in the right place.
const (
	frameKind = 0x6c67
	// lastFrameKind marks a frame behind which the link goes on over the connection
	// of its twin.
	lastFrameKind = 0x6c74
)

type frame struct {
	length int
	slots  int
	step   uint64
	header uint64
	last   bool
}

func frameOf(p *transport.Post) frame {
	return frame{length: len(p.Memory), slots: p.Slots, step: p.Step, header: p.Header}
}

// headBytes is where the payload begins.
func (f frame) headBytes() int {
	if f.length > smallBytes {
		return paddedBytes
	}
	return frameBytes
}

func (f frame) encode(b *[frameBytes]byte) {
	binary.LittleEndian.PutUint32(b[0:], uint32(f.length))
	binary.LittleEndian.PutUint16(b[4:], uint16(f.slots))
	kind := uint16(frameKind)
	if f.last {
		kind = lastFrameKind
	}
	binary.LittleEndian.PutUint16(b[6:], kind)
	binary.LittleEndian.PutUint64(b[8:], f.step)
	binary.LittleEndian.PutUint64(b[16:], f.header)
}

// decodeFrame reads the head at the beginning of b, which a consumer expects that
// has received everything before step next into slots of slot bytes.
func decodeFrame(b []byte, next uint64, slot int) (frame, error) {
	f := frame{
		length: int(binary.LittleEndian.Uint32(b[0:])),
		slots:  int(binary.LittleEndian.Uint16(b[4:])),
		step:   binary.LittleEndian.Uint64(b[8:]),
		header: binary.LittleEndian.Uint64(b[16:]),
	}
	kind := binary.LittleEndian.Uint16(b[6:])
	f.last = kind == lastFrameKind
	switch {
	case kind != frameKind && kind != lastFrameKind:
		return f, fmt.Errorf("a frame of kind %#x", kind)
	case f.slots < 1, f.step%transport.Slots+uint64(f.slots) > transport.Slots:
		return f, fmt.Errorf("a frame of %d slots from step %d on", f.slots, f.step)
	case f.step-next >= transport.Slots: // also where it is behind
		return f, fmt.Errorf("a frame of step %d, expected %d", f.step, next)
	case f.length > f.slots*slot:
		return f, fmt.Errorf("a frame of %d bytes for %d slots of %d", f.length, f.slots, slot)
	}
	return f, nil
}

// inlineBytes is the largest payload that always goes with its head, over the main
// socket.
//
// NCCL: NCCL_SOCKET_INLINE in src/transport/net_socket.cc.
const inlineBytes = 128
