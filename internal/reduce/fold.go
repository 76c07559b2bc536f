package reduce

import (
	"github.com/gollective/gollective/dtype"
)

// passBytes is the block of a fold that needs no scratch: two operands of it fit the
// first-level cache of every processor of interest, and it is long enough for the
// start of a pass not to count. A multiple of every element size.
const passBytes = 8 << 10

// More than two operands are combined block by block: the partial result of a
// block meets one operand after the other before the next block is touched. Results
// are written last, after all operands of the block have been read, so that any
// dst may be any operand.

// foldInPlace keeps the partial result in the first dst, which must not be a later
// operand than the second.
func (k *Kernel) foldInPlace(dsts, srcs [][]byte, at, end int) {
	last := len(srcs) - 1
	dst := dsts[0]
	for ; at < end; at += passBytes {
		to := min(at+passBytes, end)
		acc := srcs[0][at:to]
		for _, src := range srcs[1:last] {
			combine(k.routine, dst[at:to], acc, src[at:to])
			acc = dst[at:to]
		}
		k.spread(dsts, at, to, acc, srcs[last][at:to])
	}
}

// foldScratch keeps the partial result aside: the first dst is an operand whose turn
// comes after a partial result would have replaced it.
func (k *Kernel) foldScratch(dsts, srcs [][]byte, at, end int) {
	var aside block
	last := len(srcs) - 1
	for ; at < end; at += blockBytes {
		to := min(at+blockBytes, end)
		acc := k.fold(aside.bytes(), srcs[:last], at, to)
		k.spread(dsts, at, to, acc, srcs[last][at:to])
	}
}

// fold combines the bytes from at to to of srcs and returns the result, which is in
// aside where there is more than one of srcs.
func (k *Kernel) fold(aside []byte, srcs [][]byte, at, to int) []byte {
	acc := srcs[0][at:to]
	for _, src := range srcs[1:] {
		combine(k.routine, aside[:to-at], acc, src[at:to])
		acc = aside[:to-at]
	}
	return acc
}

// spread stores a ⊕ b in the bytes from at to to of all dsts.
func (k *Kernel) spread(dsts [][]byte, at, to int, a, b []byte) {
	dst := dsts[0][at:to]
	if len(dsts) == 1 {
		combine(k.routine, dst, a, b)
		return
	}
	combinePair(k.routine, dst, dsts[1][at:to], a, b)
	copyTo(dsts[2:], at, to, dst)
}

// copyTo stores src in the bytes from at to to of all dsts.
func copyTo(dsts [][]byte, at, to int, src []byte) {
	for _, dst := range dsts {
		copy(dst[at:to], src)
	}
}

// foldWidened accumulates in float32. It serves small floats, three operands or
// more.
func (k *Kernel) foldWidened(dsts, srcs [][]byte, at, end int) {
	var wide widened
	dst := dsts[0]
	step := len(wide.acc) * k.size
	for ; at < end; at += step {
		to := min(at+step, end)
		wide.fold(k, srcs, at, to)
		wide.finish(k, dst[at:to])
		copyTo(dsts[1:], at, to, dst[at:to])
	}
}

// foldStaged is reduceRange for operands at addresses that the processor cannot load
// from: every block is copied to an aligned one first. Any number of operands.
func (k *Kernel) foldStaged(dsts, srcs [][]byte, at, end int) {
	var wide widened
	var accBlock, inBlock block
	step := blockBytes
	if k.widens {
		step = len(wide.acc) * k.size
	}
	for ; at < end; at += step {
		to := min(at+step, end)
		acc, in := accBlock.bytes()[:to-at], inBlock.bytes()[:to-at]
		copy(acc, srcs[0][at:to])
		if k.widens {
			wide.start(k, acc)
		}
		for _, src := range srcs[1:] {
			copy(in, src[at:to])
			if k.widens {
				wide.take(k, in)
			} else {
				combine(k.routine, acc, acc, in)
			}
		}
		if k.widens {
			wide.finish(k, acc)
		}
		copyTo(dsts, at, to, acc)
	}
}

// widened is a block of small floats on its way through float32.
type widened struct {
	acc, in [256]float32
}

// fold takes the bytes from at to to of srcs.
func (w *widened) fold(k *Kernel, srcs [][]byte, at, to int) {
	w.start(k, srcs[0][at:to])
	for _, src := range srcs[1:] {
		w.take(k, src[at:to])
	}
}

// start takes the first operand; no operand is longer than the block.
func (w *widened) start(k *Kernel, src []byte) {
	widen(k.typ, w.acc[:len(src)/k.size], src)
}

// take combines the next operand, as long as the first.
func (w *widened) take(k *Kernel, src []byte) {
	in := w.in[:len(src)/k.size]
	widen(k.typ, in, src)
	acc := floatBytes(w.acc[:len(in)])
	switch k.routine {
	case addHalf, addBfloat, addE4M3, addE5M2:
		combine(addFloat32, acc, acc, floatBytes(in))
	default:
		combine(mulFloat32, acc, acc, floatBytes(in))
	}
}

// finish rounds the result into dst, as long as the operands.
func (w *widened) finish(k *Kernel, dst []byte) {
	acc := w.acc[:len(dst)/k.size]
	done := narrowVectors(k.typ, dst, acc)
	dst, acc = dst[done*k.size:], acc[done:]
	switch k.typ {
	case dtype.Half:
		dtype.NarrowFloat16(view[dtype.Float16](dst), acc)
	case dtype.Bfloat:
		dtype.NarrowBFloat16(view[dtype.BFloat16](dst), acc)
	case dtype.F8E4M3:
		dtype.NarrowFloat8E4M3(view[dtype.Float8E4M3](dst), acc)
	case dtype.F8E5M2:
		dtype.NarrowFloat8E5M2(view[dtype.Float8E5M2](dst), acc)
	}
}

func widen(t dtype.Type, dst []float32, src []byte) {
	done := widenVectors(t, dst, src)
	dst, src = dst[done:], src[done*t.Size():]
	switch t {
	case dtype.Half:
		dtype.WidenFloat16(dst, view[dtype.Float16](src))
	case dtype.Bfloat:
		widenBFloat16(dst, view[dtype.BFloat16](src))
	case dtype.F8E4M3:
		dtype.WidenFloat8E4M3(dst, view[dtype.Float8E4M3](src))
	case dtype.F8E5M2:
		dtype.WidenFloat8E5M2(dst, view[dtype.Float8E5M2](src))
	}
}
