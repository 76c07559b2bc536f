package collective

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/exec"
	"github.com/gollective/gollective/internal/fault"
)

// Call is the untyped form of every operation: bytes and an element type, for
// programs that hold tensors that way. The generic functions make Calls, too.
//
// Count is in elements and has NCCL's meaning. n is the number of ranks; buffers
// may be longer than stated, the rest is not touched; "-" means not looked at.
//
//	Kind           Send          Recv         in place
//	AllReduce      Count         Count        same memory
//	Reduce         Count         Count @root  same memory at the root
//	Broadcast      Count @root   Count        same memory at the root
//	AllGather      Count         n·Count      Send is block rank of Recv
//	ReduceScatter  n·Count       Count        Recv is block rank of Send
//	AlltoAll       n·Count       n·Count      not possible
//	AlltoAllv      by counts     by counts    not possible
//	Gather         Count         n·Count @root  at the root: Send is block root of Recv
//	Scatter        n·Count @root Count        at the root: Recv is block root of Send
//	Send           Count         -
//	Recv           -             Count
//	Barrier        -             -
//
// Any other overlap of Send and Recv is ErrAlias.
type Call struct {
	Kind  plan.Kind
	Type  dtype.Type
	Op    Op  // of a reduction
	Count int // elements; not used by AlltoAllv and Barrier
	Root  int // the root, or the peer of Send and Recv

	Send, Recv []byte

	// Of an AlltoAllv, in elements, one per rank: what is sent to rank p are
	// SendCounts[p] elements from SendOffsets[p] of Send on, what comes from p
	// goes to RecvOffsets[p] of Recv on. The receive ranges must not overlap.
	SendCounts, SendOffsets []int
	RecvCounts, RecvOffsets []int
}

// prepare checks c for the given rank and cuts its buffers to what is needed.
func (s *state) prepare(c *Call) (exec.Call, error) {
	call := exec.Call{Spec: plan.Spec{Kind: c.Kind, Type: c.Type, Count: c.Count}}
	spec := &call.Spec
	if c.Count == disagree {
		return call, lengths(c)
	}
	switch c.Kind {
	case plan.AllReduce, plan.Reduce, plan.ReduceScatter:
		spec.Op = c.Op.code
		call.Scalar = c.Op.scalar
	case plan.Barrier:
		*spec = plan.Spec{Kind: plan.Barrier, Type: dtype.Uint8, Count: 1}
		call.Send, call.Recv = s.barrier[:1], s.barrier[1:]
		return call, nil
	case plan.AlltoAllv:
		return s.prepareVectors(c, call)
	}
	switch c.Kind {
	case plan.Reduce, plan.Broadcast, plan.Gather, plan.Scatter, plan.Send, plan.Recv:
		spec.Root = c.Root
	}
	if err := spec.Validate(s.size); err != nil {
		return call, &fault.Argument{Call: spec.String(), Reason: reason(spec, err), Err: ErrInvalid}
	}
	if spec.Op.NeedsScalar() && call.Scalar.Type != spec.Type {
		return call, invalid(spec, "the scalar of the reduction is %v", call.Scalar.Type)
	}

	sendBlocks, recvBlocks := s.blocks(spec)
	var err error
	if call.Send, err = cut(spec, "send", c.Send, sendBlocks); err != nil {
		return call, err
	}
	if call.Recv, err = cut(spec, "receive", c.Recv, recvBlocks); err != nil {
		return call, err
	}
	if !overlap(call.Send, call.Recv) {
		return call, nil
	}
	// Where the one buffer must begin in the other, in blocks of Count.
	at, possible := s.inPlace(spec)
	if !possible || distance(call.Send, call.Recv) != at*spec.Count*spec.Type.Size() {
		return call, &fault.Argument{
			Call: spec.String(), Err: ErrAlias,
			Reason: "only the collective's in-place form may share memory",
		}
	}
	spec.InPlace = true
	return call, nil
}

// blocks is how many blocks of Count elements this rank's buffers have.
func (s *state) blocks(spec *plan.Spec) (send, recv int) {
	send, recv = 1, 1
	root := s.rank == spec.Root
	switch spec.Kind {
	case plan.Reduce:
		recv = at(root, 1)
	case plan.Broadcast:
		send = at(root, 1)
	case plan.AllGather:
		recv = s.size
	case plan.ReduceScatter:
		send = s.size
	case plan.AlltoAll:
		send, recv = s.size, s.size
	case plan.Gather:
		recv = at(root, s.size)
	case plan.Scatter:
		send = at(root, s.size)
	case plan.Send:
		recv = 0
	case plan.Recv:
		send = 0
	}
	return send, recv
}

// at is blocks if here, else 0.
func at(here bool, blocks int) int {
	if here {
		return blocks
	}
	return 0
}

// inPlace returns the block of the send buffer at which the receive buffer begins
// in the collective's in-place form (negative: the other way round).
func (s *state) inPlace(spec *plan.Spec) (block int, possible bool) {
	switch spec.Kind {
	case plan.AllReduce, plan.Reduce, plan.Broadcast:
		return 0, true
	case plan.AllGather, plan.Gather:
		return -s.rank, true
	case plan.ReduceScatter, plan.Scatter:
		return s.rank, true
	}
	return 0, false
}

// cut returns the part of buffer that blocks blocks of spec.Count elements take.
func cut(spec *plan.Spec, name string, buffer []byte, blocks int) ([]byte, error) {
	need := blocks * spec.Count * spec.Type.Size() // Validate has excluded overflow
	if len(buffer) < need {
		return nil, invalid(spec, "the %s buffer has %d bytes, %d are needed", name, len(buffer), need)
	}
	return buffer[:need:need], nil
}

// prepareVectors is prepare for AlltoAllv.
func (s *state) prepareVectors(c *Call, call exec.Call) (exec.Call, error) {
	spec := &call.Spec
	spec.Count = 0 // counts differ between ranks
	if err := spec.Validate(s.size); err != nil {
		return call, &fault.Argument{Call: spec.String(), Reason: reason(spec, err), Err: ErrInvalid}
	}
	for _, side := range []struct {
		name            string
		buffer          []byte
		counts, offsets []int
	}{{"send", c.Send, c.SendCounts, c.SendOffsets}, {"receive", c.Recv, c.RecvCounts, c.RecvOffsets}} {
		if len(side.counts) != s.size || len(side.offsets) != s.size {
			return call, invalid(spec, "%d %s counts and %d offsets for %d ranks",
				len(side.counts), side.name, len(side.offsets), s.size)
		}
		elements := len(side.buffer) / spec.Type.Size()
		for peer, count := range side.counts {
			offset := side.offsets[peer]
			if count < 0 || offset < 0 || count > elements || offset > elements-count {
				return call, invalid(spec, "%d elements at offset %d for rank %d are not in the %s buffer of %d",
					count, offset, peer, side.name, elements)
			}
		}
	}
	if c.SendCounts[s.rank] != c.RecvCounts[s.rank] {
		return call, invalid(spec, "rank %d sends itself %d elements and receives %d",
			s.rank, c.SendCounts[s.rank], c.RecvCounts[s.rank])
	}
	if overlap(c.Send, c.Recv) {
		return call, &fault.Argument{Call: spec.String(), Err: ErrAlias, Reason: "it has no in-place form"}
	}
	if err := disjoint(spec, c.RecvCounts, c.RecvOffsets); err != nil {
		return call, err
	}
	call.Send, call.Recv = c.Send[:len(c.Send):len(c.Send)], c.Recv[:len(c.Recv):len(c.Recv)]
	call.Vectors = &plan.Vectors{
		SendCounts: c.SendCounts, SendOffsets: c.SendOffsets,
		RecvCounts: c.RecvCounts, RecvOffsets: c.RecvOffsets,
	}
	return call, nil
}

// reason is the text of an error of package plan without the call, which the error
// made of it names.
func reason(spec *plan.Spec, err error) string {
	text := strings.TrimPrefix(err.Error(), plan.ErrSpec.Error()+": ")
	return strings.TrimPrefix(text, spec.String()+": ")
}

// invalid is an error about an argument of a call.
func invalid(spec *plan.Spec, format string, args ...any) error {
	return &fault.Argument{Call: spec.String(), Reason: fmt.Sprintf(format, args...), Err: ErrInvalid}
}

// disjoint checks that no two of the ranges share an element: two ranks' data
// would be written to the same place in no certain order.
func disjoint(spec *plan.Spec, counts, offsets []int) error {
	order := make([]int, 0, len(counts))
	for p, count := range counts {
		if count > 0 {
			order = append(order, p)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(offsets[a], offsets[b]) })
	for i := 1; i < len(order); i++ {
		p, q := order[i-1], order[i]
		if offsets[p]+counts[p] > offsets[q] {
			return invalid(spec, "what is received from rank %d and from rank %d overlaps", p, q)
		}
	}
	return nil
}
