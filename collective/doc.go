// Package collective is NCCL's collectives for CPUs: the package that programs
// import.
//
// A communicator is a fixed set of ranks that call collectives together. Its
// ranks are goroutines of one process ([Run], [InitAll]), processes of one host or
// several ([Init]), or both ([InitLocal]). A rank's handle is a [Comm].
//
//	err := collective.Run(4, func(c *collective.Comm) error {
//		x := []float32{float32(c.Rank())}
//		return collective.AllReduce(ctx, c, x, x, collective.Sum) // [6] on every rank
//	})
//
// The operations come in three forms: functions over slices of a [Number]
// ([AllReduce] and its kin), the same issued without waiting ([AllReduceAsync], …,
// which return a [Handle]), and the untyped [Call] of bytes and an element type
// ([Comm.Do], [Comm.Start]). A [Group] launches several calls as one.
//
// All ranks make the same calls in the same order. Where they do not, where a rank
// is missing, dead or closed, where a context or a deadline ends: the call fails
// on every rank with an error that names the culprit (ErrMismatch and the other
// errors). After such a failure a communicator is of no use any more;
// [Comm.Shrink] makes one of the survivors.
//
// Buffers are any slices; those of processes that share a host may also come from
// [Comm.MemAlloc], which says when that pays.
//
// Inside, a call is cut into parts, one per channel, which blocks move in loops of
// chunks along a ring or a tree, or, where ranks share memory, combine in place: each
// reads what the others have. See docs/architecture.md for the words and the way, and
// package plan to look at schedules.
package collective
