package reduce

import "github.com/klauspost/cpuid/v2"

// Stores past the caches. A result that is larger than the caches is not there any
// more when somebody reads it; stored in the usual way each of its lines is first
// read from memory, only to be overwritten, and pushes out something else.
//
// Sums of float32, two operands and two results, by two processors that do a half
// each, a third-level cache of 32 MiB (Zen 4), usual stores and these: 1 MiB each
// 25.0 and 23.6 us, but then results are not where their reader would have found
// them; 4 MiB 165 and 96 us; 16 MiB 1750 and 820 us; 1 MiB in turn from 16 sets of
// buffers 100 and 41 us. Results that are operands, 1 MiB: 12.7 and 83 us.
// Copies of 16 MiB in pieces of 64 KiB: 850 and 410 us. Making a block of the result
// in the first-level cache and copying that past the caches takes a fifth to a
// quarter longer than a loop that does both.

// streamBytes is how large results must be, all together, to be stored past the caches:
// half of the last one, which operands share with them. Two ranks' sums of 4 MiB, in
// the same buffers again and again, took 300 us past a cache of 32 MiB and 110 us in it.
var streamBytes = max(4<<20, cpuid.CPU.Cache.L3/2)

const (
	// lineBytes is what caches keep and what goes past them as a whole.
	lineBytes = 64
	// turnBytes is what a streaming kernel stores a turn.
	turnBytes = 128
)

// Streaming returns k for an operation whose results are so many bytes, added up over all
// processors that share caches: ReduceTo stores them past the caches if they are
// large, if every dst begins at the same place of a cache line, and if the processor
// can. Bits do not depend on it. Reduce, whose result somebody is about to read, does not
// look at it.
func (k Kernel) Streaming(resultBytes int) Kernel {
	k.streams = resultBytes >= streamBytes
	return k
}

// Copy stores src in dst, as long, past the caches where the operation's results are
// large, as Streaming does. dst may be src; no other overlap is allowed. The
// built-in copy does that from 1 MiB, whatever the size of the whole.
func Copy(dst, src []byte, resultBytes int) {
	from, to := 0, 0
	if resultBytes >= streamBytes {
		from, to = wholeLines(dst)
	}
	if from < to {
		copy(dst[:from], src)
		copyStream(dst[from:to], src[from:to])
		streamFence()
	}
	copy(dst[to:], src[to:])
}

// streamable is the range of results that goes past the caches; it is empty where
// they do not begin alike or are operands themselves: their lines are in the caches
// then, and have to be written back in any case.
func (k *Kernel) streamable(dsts, srcs [][]byte) (from, to int) {
	from, to = wholeLines(dsts[0])
	if from%k.size != 0 {
		return 0, 0
	}
	for _, dst := range dsts {
		if begin, _ := wholeLines(dst); begin != from || holds(srcs, dst) {
			return 0, 0
		}
	}
	return from, to
}

// streamRange is reduceRange with stores past the caches, for a range that
// streamable has given.
func (k *Kernel) streamRange(dsts, srcs [][]byte, at, end int) {
	switch {
	case len(srcs) == 1:
		for _, dst := range dsts {
			copyStream(dst[at:end], srcs[0][at:end])
		}
	case len(srcs) == 2 && len(dsts) <= 2:
		k.spreadStream(dsts, at, end, srcs[0][at:end], srcs[1][at:end])
	case len(srcs) > 2 && k.widens:
		k.foldWidenedStream(dsts, srcs, at, end)
	default:
		k.foldStream(dsts, srcs, at, end)
	}
	streamFence()
}

// foldStream makes a block aside and stores it in all dsts. For two of them the last
// operand is combined on the way.
func (k *Kernel) foldStream(dsts, srcs [][]byte, at, end int) {
	var aside block
	last := len(srcs) - 1
	for ; at < end; at += blockBytes {
		to := min(at+blockBytes, end)
		if len(dsts) <= 2 {
			acc := k.fold(aside.bytes(), srcs[:last], at, to)
			k.spreadStream(dsts, at, to, acc, srcs[last][at:to])
			continue
		}
		acc := k.fold(aside.bytes(), srcs, at, to)
		for _, dst := range dsts {
			copyStream(dst[at:to], acc)
		}
	}
}

// foldWidenedStream is foldStream in float32.
func (k *Kernel) foldWidenedStream(dsts, srcs [][]byte, at, end int) {
	var wide widened
	var aside block
	step := len(wide.acc) * k.size
	for ; at < end; at += step {
		to := min(at+step, end)
		wide.fold(k, srcs, at, to)
		acc := aside.bytes()[:to-at]
		wide.finish(k, acc)
		for _, dst := range dsts {
			copyStream(dst[at:to], acc)
		}
	}
}

// spreadStream is spread for one or two dsts, past the caches.
func (k *Kernel) spreadStream(dsts [][]byte, at, to int, a, b []byte) {
	if len(dsts) == 1 {
		combineStream(k.routine, dsts[0][at:to], a, b)
		return
	}
	pairStream(k.routine, dsts[0][at:to], dsts[1][at:to], a, b)
}
