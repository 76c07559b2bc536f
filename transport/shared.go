package transport

import (
	"fmt"
	"sync/atomic"

	"github.com/gollective/gollective/internal/spin"
)

// sharedHead is what precedes the slots of a FIFO in memory that two processes
// map: an ABI between them.
type sharedHead struct {
	mark [4]uint64 // sharedMark, sharedVersion, bytes per slot, reserved
	_    [Line - 32]byte
	control
	// Numbers of the beds in which the consumer and the producer sleep, each
	// written by the one that sleeps.
	consumer atomic.Uint32
	_        [Line - 4]byte
	producer atomic.Uint32
	_        [Line - 4]byte
}

const (
	sharedMark    = 0x4f464946_4c4c4f47 // "GOLLFIFO"
	sharedVersion = 1
	sharedStart   = 4096 // where the slots begin: they are whole pages
)

// SharedBytes is the memory that a FIFO of slots of slot bytes takes.
func SharedBytes(slot int) int { return sharedStart + Slots*slot }

// ShareConn returns the FIFO in memory, which both ends' processes map and which
// must begin on a multiple of Line and, at first, be zero. producer and consumer
// are the beds of the processes at the two ends.
func ShareConn(memory []byte, slot int, producer, consumer []spin.Bed) (*Conn, error) {
	if slot <= 0 || slot%Line != 0 {
		return nil, fmt.Errorf("transport: a slot of %d bytes is not a positive multiple of %d", slot, Line)
	}
	if len(memory) < SharedBytes(slot) {
		return nil, fmt.Errorf("transport: a FIFO with slots of %d bytes needs %d bytes, there are %d",
			slot, SharedBytes(slot), len(memory))
	}
	h := overlay(memory)
	c := &Conn{
		control: &h.control,
		memory:  memory[sharedStart:SharedBytes(slot):SharedBytes(slot)],
		slot:    slot,
	}
	c.filled.Share(&spin.SharedBell{Sleeper: &h.consumer, Beds: consumer})
	c.freed.Share(&spin.SharedBell{Sleeper: &h.producer, Beds: producer})
	return c, nil
}

// MarkShared writes the mark of a FIFO into zeroed memory, before any other
// process sees it.
func MarkShared(memory []byte, slot int) {
	overlay(memory).mark = [4]uint64{sharedMark, sharedVersion, uint64(slot), 0}
}

// CheckShared reports whether memory carries the mark of a FIFO like this one.
func CheckShared(memory []byte, slot int) error {
	if len(memory) < SharedBytes(slot) {
		return fmt.Errorf("transport: shared FIFO of %d bytes, expected %d", len(memory), SharedBytes(slot))
	}
	want := [4]uint64{sharedMark, sharedVersion, uint64(slot), 0}
	if got := overlay(memory).mark; got != want {
		return fmt.Errorf("transport: shared FIFO is marked %x, expected %x", got, want)
	}
	return nil
}
