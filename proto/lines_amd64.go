//go:build !purego && !race

package proto

import "github.com/klauspost/cpuid/v2"

// hasAVX2 chooses between the assembly and its Go twins; tests set it.
var hasAVX2 = cpuid.CPU.Supports(cpuid.AVX2)

// blockLines is how many lines one assembly call handles: no more than 64 KiB.
// Assembly cannot be preempted; what stays a real call around it can.
const (
	blockLinesLL    = 64 << 10 / 16
	blockLinesLL128 = 64 << 10 / ll128Line
)

// n is positive; see lines_amd64.s.

//go:noescape
func packLLAVX2(lines, src *byte, n int, flag uint64) // twin: packLLGo

//go:noescape
func unpackLLAVX2(dst, lines *byte, n int, flag uint64) (taken int) // twin: unpackLLGo

//go:noescape
func packLL128AVX2(lines, src *byte, n int, flag uint64) // twin: packLL128Go

//go:noescape
func unpackLL128AVX2(dst, lines *byte, n int, flag uint64) (taken int) // twin: unpackLL128Go

// storeFlag ends a line of LL128 whose data Go has copied: the compiler leaves
// memory accesses on the side of an assembly call on which they were written.
//
//go:noescape
func storeFlag(line *byte, flag uint64)

func packLL(lines, src []byte, flag uint64) {
	if !hasAVX2 {
		packLLGo(lines, src, flag)
		return
	}
	for len(src) >= 8 {
		n := min(len(src)/8, blockLinesLL)
		packLLBlock(lines[:16*n], src[:8*n], flag)
		lines, src = lines[16*n:], src[8*n:]
	}
	if len(src) > 0 {
		var padded [8]byte
		copy(padded[:], src)
		packLLBlock(lines[:16], padded[:], flag)
	}
}

//go:noinline
func packLLBlock(lines, src []byte, flag uint64) {
	packLLAVX2(&lines[0], &src[0], len(src)/8, flag)
}

func unpackLL(dst, lines []byte, flag uint64) int {
	if !hasAVX2 {
		return unpackLLGo(dst, lines, flag)
	}
	done := 0
	for len(dst)-done >= 8*8 { // fewer lines are read as soon by the twin: loads cost it nothing
		n := min((len(dst)-done)/8, blockLinesLL)
		taken := unpackLLBlock(dst[done:done+8*n], lines[:16*n], flag)
		done += 8 * taken
		if taken < n {
			return done
		}
		lines = lines[16*n:]
	}
	if done == len(dst) {
		return done
	}
	return done + unpackLLGo(dst[done:], lines, flag)
}

//go:noinline
func unpackLLBlock(dst, lines []byte, flag uint64) int {
	return unpackLLAVX2(&dst[0], &lines[0], len(dst)/8, flag)
}

func packLL128(lines, src []byte, flag uint64) {
	if !hasAVX2 {
		packLL128Go(lines, src, flag)
		return
	}
	for len(src) >= ll128Data {
		n := min(len(src)/ll128Data, blockLinesLL128)
		packLL128Block(lines[:ll128Line*n], src[:ll128Data*n], flag)
		lines, src = lines[ll128Line*n:], src[ll128Data*n:]
	}
	if len(src) > 0 {
		line := lines[:ll128Line]
		copy(line, src)
		storeFlag(&line[0], flag)
	}
}

//go:noinline
func packLL128Block(lines, src []byte, flag uint64) {
	packLL128AVX2(&lines[0], &src[0], len(src)/ll128Data, flag)
}

func unpackLL128(dst, lines []byte, flag uint64) int {
	if !hasAVX2 {
		return unpackLL128Go(dst, lines, flag)
	}
	done := 0
	for len(dst)-done >= ll128Data {
		n := min((len(dst)-done)/ll128Data, blockLinesLL128)
		taken := unpackLL128Block(dst[done:done+ll128Data*n], lines[:ll128Line*n], flag)
		done += ll128Data * taken
		if taken < n {
			return done
		}
		lines = lines[ll128Line*n:]
	}
	if done == len(dst) {
		return done
	}
	return done + unpackLL128Go(dst[done:], lines, flag)
}

//go:noinline
func unpackLL128Block(dst, lines []byte, flag uint64) int {
	return unpackLL128AVX2(&dst[0], &lines[0], len(dst)/ll128Data, flag)
}
