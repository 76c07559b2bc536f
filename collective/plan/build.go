package plan

import (
	"errors"
	"fmt"
	"math"

	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// Build makes the plan of one rank for one call. The plan depends on its
// arguments only, so callers may keep it for the next equal call; building costs
// time in proportion to what is returned.
//
// For one rank the plan has no channels: the caller copies, as NCCL does. A
// count of 0 gives a plan that moves nothing, but for Send and Recv, where an
// empty message is a message.
//
// Errors: ErrSpec for arguments that no plan can serve, ErrUnordered and
// ErrNoRoom for a forced protocol that cannot run, ErrOrder for reproducible results
// that what is allowed can't give. AlltoAllv needs counts and is
// built by BuildAlltoAllv.
func Build(s Spec, w World) (*Plan, error) {
	s = s.normal()
	if err := s.validate(w); err != nil {
		return nil, err
	}
	if s.Kind.pointToPoint() {
		msgs, err := s.Messages(w, 0)
		if err != nil {
			return nil, err
		}
		if w.Size == 1 && s.Kind.perRank() {
			msgs = nil
		}
		return s.pointToPointPlan(w, msgs)
	}
	c, err := Choose(s, w)
	if err != nil {
		return nil, err
	}
	p := &Plan{Spec: s, Choice: c, Rank: w.Rank, Size: w.Size, Hosts: w.severalHosts()}
	if w.Size == 1 || s.Count == 0 {
		return p, nil
	}
	switch {
	case c.Protocol == Direct:
		p.Channels = directChannels(s, w, c)
		p.instead = s.ringProtocol(w)
	case c.Algorithm == Tree:
		p.Channels = treeChannels(s, w, c)
	case c.Algorithm == OneShot:
		p.Channels = oneShotChannels(s, w, c)
	default:
		p.Channels = ringChannels(s, w, c)
	}
	return p, nil
}

// ErrSpec is wrapped by every error about a call's arguments.
var ErrSpec = errors.New("invalid call")

// normal fills in what a Kind fixes: a Barrier is an AllReduce of one byte.
func (s Spec) normal() Spec {
	if s.Kind == Barrier {
		return Spec{Kind: Barrier, Type: dtype.Uint8, Op: reduce.Sum, Count: 1, InPlace: s.InPlace}
	}
	return s
}

// validate checks what can be checked without buffers.
func (s Spec) validate(w World) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%w: %v: %s", ErrSpec, s, fmt.Sprintf(format, args...))
	}
	switch {
	case s.Kind >= kindsCount:
		return fail("unknown operation")
	case !s.Type.Valid():
		return fail("unknown element type")
	case s.Kind.reduces() && !s.Op.Valid():
		return fail("unknown reduction")
	case w.wrong() != "":
		return fail("%s", w.wrong())
	case s.Count < 0:
		return fail("negative count")
	case s.Kind.rooted() && (s.Root < 0 || s.Root >= w.Size):
		return fail("%s %d is not in [0,%d)", s.Kind.rootName(), s.Root, w.Size)
	case (s.Kind == AlltoAll || s.Kind == AlltoAllv) && s.InPlace:
		return fail("has no in-place form: a block would be overwritten before it is sent")
	case s.Count > s.maxCount(w.Size):
		return fail("the buffer of %d ranks has more bytes than an int can count", w.Size)
	}
	return nil
}

// wrong says what no world can have, "" if it is fine.
func (w World) wrong() string {
	switch {
	case w.Size < 1:
		return fmt.Sprintf("a world of %d ranks", w.Size)
	case w.Rank < 0 || w.Rank >= w.Size:
		return fmt.Sprintf("rank %d is not in [0,%d)", w.Rank, w.Size)
	case w.Hosts != nil && w.Hosts.Size() != w.Size:
		return fmt.Sprintf("%d ranks, but hosts of %d", w.Size, w.Hosts.Size())
	}
	return ""
}

// maxCount is the largest count whose buffers' sizes in bytes fit an int.
func (s Spec) maxCount(size int) int {
	blocks := 1
	if s.Kind.perRank() {
		blocks = size
	}
	return math.MaxInt / s.Type.Size() / blocks
}

// bytes is the size of what Spec.Count counts.
func (s Spec) bytes() int { return s.Count * s.Type.Size() }

// pointToPoint reports whether a Kind is made of messages.
func (k Kind) pointToPoint() bool { return k >= AlltoAll && k <= Recv }

// reduces reports whether Spec.Op has a meaning.
func (k Kind) reduces() bool {
	return k == AllReduce || k == Reduce || k == ReduceScatter || k == Barrier
}

// rooted reports whether Spec.Root has a meaning.
func (k Kind) rooted() bool {
	switch k {
	case Reduce, Broadcast, Gather, Scatter, Send, Recv:
		return true
	}
	return false
}

// rootName is what Spec.Root is called.
func (k Kind) rootName() string {
	if k == Send || k == Recv {
		return "peer"
	}
	return "root"
}

// perRank reports whether a buffer has a block of Count elements for each rank.
func (k Kind) perRank() bool {
	switch k {
	case AllGather, ReduceScatter, AlltoAll, Gather, Scatter:
		return true
	}
	return false
}

// layout is how the world's ranks are spread over nodes.
func (w World) layout() topo.Layout {
	return topo.Layout{Size: w.Size, RanksPerNode: w.RanksPerNode, Hosts: w.Hosts}
}

// severalHosts is Hosts, nil if there is but one.
func (w World) severalHosts() *topo.Hosts {
	if w.Hosts.Count() == 1 {
		return nil
	}
	return w.Hosts
}

// Loops is how often the thread's Steps are executed.
func (t *Thread) Loops() int {
	if t.End <= t.Begin {
		return 0
	}
	return (t.End-t.Begin-1)/(t.Chunk*t.Chunks) + 1
}

// Range is the piece of a buffer, in elements, that block block means in loop
// loop, which is in [0, Loops()). The count may be 0, where a chunk lies wholly
// behind the end of the channel's part; it is never negative. Such an empty
// chunk is sent and received like any other, so that the number of FIFO steps
// depends on sizes only.
func (t *Thread) Range(loop, block int) (offset, count int) {
	start := t.Begin + loop*t.Chunk*t.Chunks
	left := t.End - start
	chunk := t.Chunk
	if left <= t.Chunk*t.Chunks {
		chunk = t.Last
	}
	ahead := 0
	if t.Stride == 0 {
		ahead = block * chunk
	} else {
		start += block * t.Stride
	}
	ahead = min(ahead, left)
	return start + ahead, min(chunk, left-ahead)
}
