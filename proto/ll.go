package proto

import (
	"encoding/binary"

	"github.com/gollective/gollective/transport"
)

// LL is the low-latency protocol. A line is 16 bytes, two 64-bit words that each
// hold 4 bytes of data (low half) and a 32-bit flag (high half):
//
//	data 0..3 | flag | data 4..7 | flag
//
// Each word is written and read by one atomic access, so a reader that sees the
// flag has the data that belongs to it; nothing else is assumed of the memory.
//
// The flag is the low half of step+1, and slots begin zeroed. A slot is reused
// every 8 steps, but a line near its end only when a message is long enough. It
// would keep its flag for longer than the 2^32 steps in which flags repeat; so
// every 2^31 steps the writer rewrites all the lines of all 8 slots.
//
// NCCL: src/device/prims_ll.h; union ncclLLFifoLine and NCCL_LL_CLEAN_MASK in
// src/include/device.h.
type LL struct{ *lined }

// NewLL returns the LL primitives between the given ends.
func NewLL(ends Ends) *LL {
	return &LL{newLined(llFormat{}, ends)}
}

// SlotBytesLL is the size of a slot for payload bytes of data per step.
func SlotBytesLL(payload int) int { return slotBytes(llFormat{}, payload) }

// llCleanMask selects the 8 successive steps in each 2^31 that clean their slots.
const llCleanMask = 0x7ffffff8

type llFormat struct{}

func (llFormat) lineBytes() int { return 16 }
func (llFormat) payload() int   { return 8 }

func (llFormat) flag(step uint64) uint64 { return uint64(uint32(step+1)) << 32 }

func (llFormat) pack(lines, src []byte, flag uint64) { packLL(lines, src, flag) }

func (llFormat) unpack(dst, lines []byte, flag uint64) int { return unpackLL(dst, lines, flag) }

// packLLGo is lineFormat.pack, and what any faster packLL must equal.
func packLLGo(lines, src []byte, flag uint64) {
	words := transport.Words(lines)
	for len(src) >= 8 {
		words[0].Store(uint64(binary.LittleEndian.Uint32(src)) | flag)
		words[1].Store(uint64(binary.LittleEndian.Uint32(src[4:])) | flag)
		words, src = words[2:], src[8:]
	}
	if len(src) > 0 {
		var padded [8]byte
		copy(padded[:], src)
		words[0].Store(uint64(binary.LittleEndian.Uint32(padded[:])) | flag)
		words[1].Store(uint64(binary.LittleEndian.Uint32(padded[4:])) | flag)
	}
}

// unpackLLGo is lineFormat.unpack, and what any faster unpackLL must equal.
func unpackLLGo(dst, lines []byte, flag uint64) int {
	words := transport.Words(lines)
	const flagHalf = 0xffffffff << 32
	done := 0
	for ; done < len(dst); done += 8 {
		low, high := words[0].Load(), words[1].Load()
		if low&flagHalf != flag || high&flagHalf != flag {
			return done
		}
		if rest := dst[done:]; len(rest) >= 8 {
			binary.LittleEndian.PutUint32(rest, uint32(low))
			binary.LittleEndian.PutUint32(rest[4:], uint32(high))
		} else {
			var padded [8]byte
			binary.LittleEndian.PutUint32(padded[:], uint32(low))
			binary.LittleEndian.PutUint32(padded[4:], uint32(high))
			copy(rest, padded[:])
			return len(dst)
		}
		words = words[2:]
	}
	return done
}

func (llFormat) flagged(line []byte, flag uint64) bool {
	words := transport.Words(line[:16])
	return words[0].Load()>>32 == flag>>32 && words[1].Load()>>32 == flag>>32
}

func (f llFormat) clean(lines []byte, step uint64) {
	if step&llCleanMask != llCleanMask {
		return
	}
	flag := f.flag(step)
	words := transport.Words(lines)
	for i := range words {
		words[i].Store(flag)
	}
}
