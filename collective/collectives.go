package collective

import (
	"context"
	"fmt"
	"math"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/fault"
)

// This file is the typed form of the operations. Each function turns slices into
// a Call, whose table gives the shapes and the in-place forms; errors are those
// of Comm.Do. No slice is kept after the call. n is the number of ranks, rank the
// caller's.

// AllReduce combines send element by element over all ranks and leaves the same
// result, the same bits, in recv on every rank.
//
// Shape: len(send) == len(recv), equal on all ranks; both may be one slice.
// Cost for S bytes: a ring moves 2·S·(n-1)/n bytes per rank in 2·(n-1) steps, a
// tree about 2·S in steps that grow with the logarithm of the number of nodes.
// Ranks that share memory need one step for few bytes, each reading n·S, and two for
// many, each combining S/n of all inputs; between processes that takes buffers of
// MemAlloc on all ranks.
// The order of a float sum depends on algorithm, protocol, channels, sizes of the
// FIFOs and, between processes, on whether all buffers are MemAlloc's, not on timing;
// Config.Reproducible makes it that of the ranks.
//
// NCCL: ncclAllReduce; runRing and runTreeSplit in src/device/all_reduce.h.
func AllReduce[T Number](ctx context.Context, c *Comm, send, recv []T, op Op) error {
	// The commonest call is not made a Call before the short path has refused it.
	if len(send) == len(recv) {
		done, err := c.short(ctx, plan.AllReduce, typeOf[T](), op.code, len(send), 0, bytesOf(send), bytesOf(recv))
		if done {
			return err
		}
	}
	call := allReduce(send, recv, op)
	return c.long(ctx, &call)
}

func allReduce[T Number](send, recv []T, op Op) Call {
	return Call{
		Kind: plan.AllReduce, Type: typeOf[T](), Op: op,
		Count: same(len(send), len(recv)),
		Send:  bytesOf(send), Recv: bytesOf(recv),
	}
}

// Reduce combines send element by element over all ranks and leaves the result in
// recv at the root. The other ranks' recv is not looked at and may be nil.
//
// Shape: len(send) equal on all ranks; at the root len(recv) == len(send), both
// may be one slice.
//
// NCCL: ncclReduce; src/device/reduce.h.
func Reduce[T Number](ctx context.Context, c *Comm, send, recv []T, op Op, root int) error {
	call := reduceTo(c, send, recv, op, root)
	return c.do(ctx, &call)
}

func reduceTo[T Number](c *Comm, send, recv []T, op Op, root int) Call {
	count := len(send)
	if c.isRank(root) {
		count = same(count, len(recv))
	}
	return Call{
		Kind: plan.Reduce, Type: typeOf[T](), Op: op, Count: count, Root: root,
		Send: bytesOf(send), Recv: bytesOf(recv),
	}
}

// Broadcast copies the root's send to recv on all ranks, the root included. The
// other ranks' send is not looked at and may be nil.
//
// Shape: len(recv) equal on all ranks; at the root len(send) == len(recv), both
// may be one slice.
//
// NCCL: ncclBroadcast; src/device/broadcast.h.
func Broadcast[T Number](ctx context.Context, c *Comm, send, recv []T, root int) error {
	call := broadcast(c, send, recv, root)
	return c.do(ctx, &call)
}

func broadcast[T Number](c *Comm, send, recv []T, root int) Call {
	count := len(recv)
	if c.isRank(root) {
		count = same(count, len(send))
	}
	return Call{
		Kind: plan.Broadcast, Type: typeOf[T](), Count: count, Root: root,
		Send: bytesOf(send), Recv: bytesOf(recv),
	}
}

// AllGather leaves the concatenation of all ranks' send, in rank order, in recv
// on every rank.
//
// Shape: len(send) equal on all ranks, len(recv) == n·len(send); send may be the
// block of recv that it is copied to.
//
// NCCL: ncclAllGather; src/device/all_gather.h.
func AllGather[T Number](ctx context.Context, c *Comm, send, recv []T) error {
	call := allGather(c, send, recv)
	return c.do(ctx, &call)
}

func allGather[T Number](c *Comm, send, recv []T) Call {
	return Call{
		Kind: plan.AllGather, Type: typeOf[T](), Count: c.perRank(len(send), len(recv)),
		Send: bytesOf(send), Recv: bytesOf(recv),
	}
}

// ReduceScatter combines send element by element over all ranks and leaves block
// rank of the result in recv.
//
// Shape: len(recv) equal on all ranks, len(send) == n·len(recv); recv may be
// block rank of send.
//
// NCCL: ncclReduceScatter; src/device/reduce_scatter.h.
func ReduceScatter[T Number](ctx context.Context, c *Comm, send, recv []T, op Op) error {
	call := reduceScatter(c, send, recv, op)
	return c.do(ctx, &call)
}

func reduceScatter[T Number](c *Comm, send, recv []T, op Op) Call {
	return Call{
		Kind: plan.ReduceScatter, Type: typeOf[T](), Op: op, Count: c.perRank(len(recv), len(send)),
		Send: bytesOf(send), Recv: bytesOf(recv),
	}
}

// AlltoAll sends block p of send to rank p and receives block p of recv from
// rank p, for all p.
//
// Shape: len(send) == len(recv), a multiple of n, equal on all ranks; the slices
// must not overlap.
//
// NCCL: ncclAlltoAll.
func AlltoAll[T Number](ctx context.Context, c *Comm, send, recv []T) error {
	call := alltoAll(c, send, recv)
	return c.do(ctx, &call)
}

func alltoAll[T Number](c *Comm, send, recv []T) Call {
	count := same(len(send), len(recv))
	if n := c.ranks(); n > 0 && count >= 0 {
		count = c.perRank(count/n, count)
	}
	return Call{
		Kind: plan.AlltoAll, Type: typeOf[T](), Count: count,
		Send: bytesOf(send), Recv: bytesOf(recv),
	}
}

// AlltoAllv is AlltoAll with blocks of different sizes: sendCounts[p] elements
// from sendOffsets[p] of send on go to rank p, recvCounts[p] elements from rank p
// to recvOffsets[p] of recv on.
//
// Shape: each count that a rank sends equals the one its receiver expects; all
// ranges lie in their slices, those of recv apart from each other; the slices
// must not overlap.
func AlltoAllv[T Number](ctx context.Context, c *Comm, send []T, sendCounts, sendOffsets []int, recv []T, recvCounts, recvOffsets []int) error {
	call := alltoAllv(send, sendCounts, sendOffsets, recv, recvCounts, recvOffsets)
	return c.do(ctx, &call)
}

func alltoAllv[T Number](send []T, sendCounts, sendOffsets []int, recv []T, recvCounts, recvOffsets []int) Call {
	return Call{
		Kind: plan.AlltoAllv, Type: typeOf[T](),
		Send: bytesOf(send), SendCounts: sendCounts, SendOffsets: sendOffsets,
		Recv: bytesOf(recv), RecvCounts: recvCounts, RecvOffsets: recvOffsets,
	}
}

// Gather leaves the concatenation of all ranks' send, in rank order, in recv at
// the root. The other ranks' recv is not looked at and may be nil.
//
// Shape: len(send) equal on all ranks; at the root len(recv) == n·len(send), and
// send may be the block of recv that it is copied to.
//
// NCCL: ncclGather.
func Gather[T Number](ctx context.Context, c *Comm, send, recv []T, root int) error {
	call := gather(c, send, recv, root)
	return c.do(ctx, &call)
}

func gather[T Number](c *Comm, send, recv []T, root int) Call {
	count := len(send)
	if c.isRank(root) {
		count = c.perRank(count, len(recv))
	}
	return Call{
		Kind: plan.Gather, Type: typeOf[T](), Count: count, Root: root,
		Send: bytesOf(send), Recv: bytesOf(recv),
	}
}

// Scatter sends block p of the root's send to recv of rank p, for all p. The
// other ranks' send is not looked at and may be nil.
//
// Shape: len(recv) equal on all ranks; at the root len(send) == n·len(recv), and
// recv may be the block of send that is copied to it.
//
// NCCL: ncclScatter.
func Scatter[T Number](ctx context.Context, c *Comm, send, recv []T, root int) error {
	call := scatter(c, send, recv, root)
	return c.do(ctx, &call)
}

func scatter[T Number](c *Comm, send, recv []T, root int) Call {
	count := len(recv)
	if c.isRank(root) {
		count = c.perRank(count, len(send))
	}
	return Call{
		Kind: plan.Scatter, Type: typeOf[T](), Count: count, Root: root,
		Send: bytesOf(send), Recv: bytesOf(recv),
	}
}

// Send sends a message to rank peer, which must receive one of the same length
// and type. Messages of a pair of ranks match in order. Send returns when data
// may be changed, which can be before the peer receives. An empty message is a
// message.
//
// A rank that sends to itself must do so in a Group that also receives. Ranks
// that both send to each other before they receive depend on the messages being
// small: use a Group.
//
// NCCL: ncclSend.
func Send[T Number](ctx context.Context, c *Comm, data []T, peer int) error {
	call := sendTo(data, peer)
	return c.do(ctx, &call)
}

func sendTo[T Number](data []T, peer int) Call {
	return Call{Kind: plan.Send, Type: typeOf[T](), Count: len(data), Root: peer, Send: bytesOf(data)}
}

// Recv receives the next message of rank peer, whose length must be len(data).
//
// NCCL: ncclRecv.
func Recv[T Number](ctx context.Context, c *Comm, data []T, peer int) error {
	call := recvFrom(data, peer)
	return c.do(ctx, &call)
}

func recvFrom[T Number](data []T, peer int) Call {
	return Call{Kind: plan.Recv, Type: typeOf[T](), Count: len(data), Root: peer, Recv: bytesOf(data)}
}

// Barrier returns when all ranks have entered it.
func Barrier(ctx context.Context, c *Comm) error {
	return c.Do(ctx, Call{Kind: plan.Barrier})
}

// AllReduceAsync is AllReduce issued without waiting.
func AllReduceAsync[T Number](ctx context.Context, c *Comm, send, recv []T, op Op) (*Handle, error) {
	return c.Start(ctx, allReduce(send, recv, op))
}

// ReduceAsync is Reduce issued without waiting.
func ReduceAsync[T Number](ctx context.Context, c *Comm, send, recv []T, op Op, root int) (*Handle, error) {
	return c.Start(ctx, reduceTo(c, send, recv, op, root))
}

// BroadcastAsync is Broadcast issued without waiting.
func BroadcastAsync[T Number](ctx context.Context, c *Comm, send, recv []T, root int) (*Handle, error) {
	return c.Start(ctx, broadcast(c, send, recv, root))
}

// AllGatherAsync is AllGather issued without waiting.
func AllGatherAsync[T Number](ctx context.Context, c *Comm, send, recv []T) (*Handle, error) {
	return c.Start(ctx, allGather(c, send, recv))
}

// ReduceScatterAsync is ReduceScatter issued without waiting.
func ReduceScatterAsync[T Number](ctx context.Context, c *Comm, send, recv []T, op Op) (*Handle, error) {
	return c.Start(ctx, reduceScatter(c, send, recv, op))
}

// AlltoAllAsync is AlltoAll issued without waiting.
func AlltoAllAsync[T Number](ctx context.Context, c *Comm, send, recv []T) (*Handle, error) {
	return c.Start(ctx, alltoAll(c, send, recv))
}

// AlltoAllvAsync is AlltoAllv issued without waiting. The counts and offsets may
// be changed when it returns.
func AlltoAllvAsync[T Number](ctx context.Context, c *Comm, send []T, sendCounts, sendOffsets []int, recv []T, recvCounts, recvOffsets []int) (*Handle, error) {
	return c.Start(ctx, alltoAllv(send, sendCounts, sendOffsets, recv, recvCounts, recvOffsets))
}

// GatherAsync is Gather issued without waiting.
func GatherAsync[T Number](ctx context.Context, c *Comm, send, recv []T, root int) (*Handle, error) {
	return c.Start(ctx, gather(c, send, recv, root))
}

// ScatterAsync is Scatter issued without waiting.
func ScatterAsync[T Number](ctx context.Context, c *Comm, send, recv []T, root int) (*Handle, error) {
	return c.Start(ctx, scatter(c, send, recv, root))
}

// SendAsync is Send issued without waiting.
func SendAsync[T Number](ctx context.Context, c *Comm, data []T, peer int) (*Handle, error) {
	return c.Start(ctx, sendTo(data, peer))
}

// RecvAsync is Recv issued without waiting.
func RecvAsync[T Number](ctx context.Context, c *Comm, data []T, peer int) (*Handle, error) {
	return c.Start(ctx, recvFrom(data, peer))
}

// BarrierAsync is Barrier issued without waiting.
func BarrierAsync(ctx context.Context, c *Comm) (*Handle, error) {
	return c.Start(ctx, Call{Kind: plan.Barrier})
}

// disagree is the Count of a Call whose slices have lengths that don't fit
// together: Comm.prepare refuses it by the lengths of its buffers.
const disagree = math.MinInt

// same is the common length of two slices.
func same(a, b int) int {
	if a != b {
		return disagree
	}
	return a
}

// perRank is count, if total is n times that.
func (c *Comm) perRank(count, total int) int {
	if count*c.ranks() != total {
		return disagree
	}
	return count
}

// ranks is Size, and 0 for a nil Comm, which Do refuses.
func (c *Comm) ranks() int {
	if !c.valid() {
		return 0
	}
	return c.size
}

// isRank reports whether this is the given rank.
func (c *Comm) isRank(rank int) bool { return c.ranks() > 0 && c.rank == rank }

// lengths is the error about a Call with Count disagree.
func lengths(c *Call) error {
	size := max(c.Type.Size(), 1)
	return &fault.Argument{
		Call: c.Kind.String(), Err: ErrInvalid,
		Reason: fmt.Sprintf("lengths don't fit: %d elements to send, %d to receive", len(c.Send)/size, len(c.Recv)/size),
	}
}
