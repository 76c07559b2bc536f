// Package reduce combines elements. It is the one place that turns a pair
// (element type, reduction) into machine work: everything above it handles
// bytes.
package reduce

import "github.com/gollective/gollective/dtype"

// Kernel is the reduction of one call: op on elements of one type, over a
// communicator of a known size, with this rank's scalar where the op has one.
// It is a plain value chosen once per call; its methods neither allocate nor
// wait, and may be used by several goroutines at once.
//
// NCCL: hostToDevRedOp in src/enqueue.cc, reduceCopy in src/device/common_kernel.h.
type Kernel struct {
	// (fields are the implementation's)
}

// For returns the kernel for op over ranks ranks. The scalar is looked at for
// PreMulSum only, and must then have type t.
func For(t dtype.Type, op Op, ranks int, scalar Scalar) (Kernel, error)

// Reduce stores srcs[0] ⊕ srcs[1] ⊕ … in dst, combined in that order. All
// slices have the same length, a whole number of elements; any alignment is
// fine; dst may be one of srcs, and no other overlap is allowed. Types of 16
// and 8 bits accumulate in float32 and are rounded once.
func (k *Kernel) Reduce(dst []byte, srcs [][]byte)

// HasPre reports whether a rank's own input must go through Pre before it is
// combined or sent: PreMulSum, and Avg of floats (times 1/ranks, rounded into
// the element type).
func (k *Kernel) HasPre() bool

// Pre stores the scaled src in dst; dst may be src.
func (k *Kernel) Pre(dst, src []byte)

// HasPost reports whether a finished value must go through Post: Avg of
// integers (one truncating division by ranks).
func (k *Kernel) HasPost() bool

// Post finishes the values of dst in place.
func (k *Kernel) Post(dst []byte)
