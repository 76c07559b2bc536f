// Package reduce combines elements. It is the one place that turns a pair
// (element type, reduction) into machine work: everything above it handles
// bytes.
//
//   - table.go maps (type, op) to a routine and calls routines;
//   - loops.go, float.go and small.go hold the routines: typed loops over two
//     operands, which are also the specification of any faster twin;
//   - vector.go does whole vectors by assembly before a routine takes the rest; _gen
//     writes that assembly, kernels_amd64.s and kernels_arm64.s;
//   - fold.go combines more than two operands block by block with them;
//   - stream.go stores large results past the caches;
//   - scale.go multiplies before and divides after;
//   - view.go is where bytes become elements.
//
// On amd64 vectors are of 256 bits. Twice that was no faster where it was tried, sums of
// float32 on Zen 4: two operands and one result of 64 B, 1 KiB, 4 KiB and 64 KiB took
// 3.8, 13.2, 40 and 1700 ns, by 512 bits 4.2, 13.5, 46 and 1750 ns; two results 4.3, 18.7,
// 71 and 2360 ns, by 512 bits 4.9, 18.7, 71 and 2310 ns. It gained, a quarter, only
// where two results are not aligned to vectors.
package reduce

import (
	"fmt"
	"math"

	"github.com/gollective/gollective/dtype"
)

// Kernel is the reduction of one call: op on elements of one type, over a
// communicator of a known size, with this rank's scalar where the op has one.
// It is a plain value chosen once per call; its methods neither allocate nor
// wait, and may be used by several goroutines at once. A Kernel comes from For;
// the zero value panics.
//
// Integers wrap. Sums and products of float32 and float64 are IEEE's, one
// rounding per operand; that a result is NaN is certain, its sign and payload are
// the hardware's. Types of 16 and 8 bits accumulate in float32 and are rounded once
// per Reduce, to one canonical NaN; 8-bit results saturate (see dtype). Max and Min
// of floats pick one operand without rounding, hold -0 for less than +0, and give
// the type's canonical NaN when any operand is a NaN: their bits depend neither on
// order nor on grouping.
//
// NCCL: hostToDevRedOp in src/enqueue.cc, reduceCopy in src/device/common_kernel.h.
type Kernel struct {
	typ     dtype.Type
	size    int
	routine routine
	widens  bool // accumulates in float32
	pre     bool
	post    bool
	scalar  uint64 // factor of pre: the bits of one element
	ranks   uint32 // divisor of post
	stages  bool   // copies operands to aligned memory where they are not aligned
	streams bool   // ReduceTo stores past the caches
}

// For returns the kernel for op over ranks ranks. The scalar is looked at for
// PreMulSum only, and must then have type t.
func For(t dtype.Type, op Op, ranks int, scalar Scalar) (Kernel, error) {
	switch {
	case !t.Valid():
		return Kernel{}, fmt.Errorf("reduce: unknown element type %v", t)
	case !op.Valid():
		return Kernel{}, fmt.Errorf("reduce: unknown reduction %v", op)
	case ranks < 1 || int64(ranks) > math.MaxInt32:
		return Kernel{}, fmt.Errorf("reduce: %d ranks, want 1 to %d", ranks, math.MaxInt32)
	case op == PreMulSum && scalar.Type != t:
		return Kernel{}, fmt.Errorf("reduce: the scalar has type %v, the elements %v", scalar.Type, t)
	}
	k := Kernel{
		typ:     t,
		size:    t.Size(),
		routine: routines[t][op],
		widens:  t.Float() && t.Size() <= 2 && op != Max && op != Min,
		pre:     op == PreMulSum || op == Avg && t.Float(),
		post:    op == Avg && t.Integer(),
		scalar:  scalar.Bits,
		ranks:   uint32(ranks),
		stages:  !misalignedAccess,
	}
	if op == Avg {
		// The quotient of two integers of 31 bits is never so near to a tie of an
		// element type that float64's own rounding could reach it.
		k.scalar = ScalarOf(t, 1/float64(ranks)).Bits
	}
	return k, nil
}

// Reduce stores srcs[0] ⊕ srcs[1] ⊕ … in dst, combined in that order. All
// slices have the same length, a whole number of elements; any alignment is
// fine; dst may be one of srcs (any of them), and no other overlap is allowed.
// Types of 16 and 8 bits accumulate in float32 and are rounded once. There is at
// least one source; one alone is copied bit for bit.
func (k *Kernel) Reduce(dst []byte, srcs [][]byte) {
	if len(srcs) == 2 && !k.stages { // by far the most frequent
		combine(k.routine, dst, srcs[0], srcs[1])
		return
	}
	k.reduceRange([][]byte{dst}, srcs, 0, len(dst))
}

// ReduceTo stores what Reduce gives in every one of dsts, of which there is at
// least one: the same bits everywhere. Any of dsts may be any one of srcs; no other
// overlap is allowed.
//
// NCCL: reduceCopy in src/device/common_kernel.h.
func (k *Kernel) ReduceTo(dsts, srcs [][]byte) {
	if len(srcs) == 2 && len(dsts) == 2 && !k.stages && !k.streams { // by far the most frequent
		combinePair(k.routine, dsts[0], dsts[1], srcs[0], srcs[1])
		return
	}
	from, to := 0, 0
	if k.streams && !k.stages {
		from, to = k.streamable(dsts, srcs)
	}
	if from < to {
		k.reduceRange(dsts, srcs, 0, from)
		k.streamRange(dsts, srcs, from, to)
	}
	k.reduceRange(dsts, srcs, to, len(dsts[0]))
}

// reduceRange is ReduceTo for the bytes from at to end.
func (k *Kernel) reduceRange(dsts, srcs [][]byte, at, end int) {
	switch {
	case at == end:
	case len(srcs) == 1:
		copyTo(dsts, at, end, srcs[0][at:end])
	case k.trapsAny(dsts, srcs):
		k.foldStaged(dsts, srcs, at, end)
	case len(srcs) == 2 && len(dsts) <= 2:
		k.spread(dsts, at, end, srcs[0][at:end], srcs[1][at:end])
	case len(srcs) > 2 && k.widens:
		k.foldWidened(dsts, srcs, at, end)
	case holds(srcs[2:], dsts[0]):
		k.foldScratch(dsts, srcs, at, end)
	default:
		k.foldInPlace(dsts, srcs, at, end)
	}
}

// trapsAny is traps for several results.
func (k *Kernel) trapsAny(dsts, srcs [][]byte) bool {
	return k.stages && !(aligned(k.size, dsts...) && aligned(k.size, srcs...))
}

// traps reports whether operands must be copied to aligned memory first.
func (k *Kernel) traps(dst []byte, srcs ...[]byte) bool {
	return k.stages && !(aligned(k.size, dst) && aligned(k.size, srcs...))
}

// HasPre reports whether a rank's own input must go through Pre before it is
// combined or sent: PreMulSum, and Avg of floats (times 1/ranks, rounded into
// the element type; float8 e4m3 has no number but zero for that beyond 1024 ranks).
func (k *Kernel) HasPre() bool { return k.pre }

// Pre stores the scaled src in dst; dst may be src. Without HasPre it copies.
func (k *Kernel) Pre(dst, src []byte) {
	switch {
	case !k.pre:
		copy(dst, src)
	case k.traps(dst, src):
		var aside block
		for at := 0; at < len(dst); at += blockBytes {
			to := min(at+blockBytes, len(dst))
			part := aside.bytes()[:to-at]
			copy(part, src[at:to])
			scale(k.typ, part, part, k.scalar)
			copy(dst[at:to], part)
		}
	default:
		scale(k.typ, dst, src, k.scalar)
	}
}

// HasPost reports whether a finished value must go through Post: Avg of
// integers (one truncating division by ranks).
func (k *Kernel) HasPost() bool { return k.post }

// Post finishes the values of dst in place. Without HasPost it does nothing.
func (k *Kernel) Post(dst []byte) {
	switch {
	case !k.post:
	case k.traps(dst):
		var aside block
		for at := 0; at < len(dst); at += blockBytes {
			to := min(at+blockBytes, len(dst))
			part := aside.bytes()[:to-at]
			copy(part, dst[at:to])
			divide(k.typ, part, k.ranks)
			copy(dst[at:to], part)
		}
	default:
		divide(k.typ, dst, k.ranks)
	}
}
