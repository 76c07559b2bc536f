package transport

import (
	"sync/atomic"
	"unsafe"
)

// This file holds the package's only unsafe code. FIFO memory is used in two
// ways: as bytes that are plainly copied, and as 64-bit words that two ranks
// read and write atomically. A word is never accessed plainly while the other
// side may access it.

// Line is the distance that keeps two words from sharing a cache line, or a
// pair of lines that the processor fetches together.
const Line = 128

// Words views b as 64-bit words. b must start on a multiple of 8 bytes and its
// length must be one; every slot does (see allocate).
func Words(b []byte) []atomic.Uint64 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&b[0])), len(b)/8)
}

// allocate returns size zeroed bytes on the Go heap that start on a multiple of
// Line. The collector does not move heap memory, so they stay there.
func allocate(size int) []byte {
	raw := make([]byte, size+Line)
	skip := -int(uintptr(unsafe.Pointer(&raw[0]))) & (Line - 1)
	return raw[skip : skip+size : skip+size]
}

// overlay views the beginning of memory, which starts on a multiple of Line and
// has at least sharedStart bytes, as a sharedHead.
func overlay(memory []byte) *sharedHead {
	_ = memory[sharedStart-1]
	return (*sharedHead)(unsafe.Pointer(&memory[0]))
}

// overlayDesk views the beginning of memory, which starts on a multiple of Line and
// has at least deskStart bytes, as a deskHead.
func overlayDesk(memory []byte) *deskHead {
	_ = memory[deskStart-1]
	return (*deskHead)(unsafe.Pointer(&memory[0]))
}

// overlayPlace views memory, which starts on a multiple of Line, as a post and what
// comes behind it. The post's words are plain ones, used as words or as bytes by one
// side at a time, as its sequence says.
func overlayPlace(memory []byte) place {
	p := (*post)(unsafe.Pointer(&memory[:postBytes][0]))
	return place{
		post:  p,
		line:  memory[:postBytes:postBytes],
		small: memory[postBytes-8*PostWords : postBytes : postBytes],
		slot:  memory[postBytes:len(memory):len(memory)],
	}
}
