package plan

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/gollective/gollective/collective/topo"
)

// Sizes of NCCL's point-to-point traffic (src/enqueue.cc, src/include/channel.h).
const (
	p2pGroup       = 8        // ranks that take neighbouring rounds
	p2pPartAlign   = 4 << 10  // bytes; parts begin at multiples
	p2pLLPart      = 16 << 10 // bytes; the largest part that LL carries
	p2pPerPeer     = 2        // channels of one peer, between ranks that share memory
	p2pMinPartPart = 8        // a part has at least chunk/8 bytes, or the message is not cut
	p2pMinFarPart  = 2        // at least chunk/2 where messages go over the wire
	p2pMaxPart     = 32       // and at most 32 chunks, if there are channels left
)

// schedule orders the rounds in which ranks exchange messages. In each round
// every rank sends to one rank and receives from one, a permutation, so no rank
// is everybody's target at once. Ranks form groups of equal size, none of them
// across nodes; rounds go over the distances between groups and, within, over the
// distances inside a group: the first rounds stay inside a node, in a later one
// a group sends to one other. Ranks are counted node after node.
//
// Distances between groups are taken in the order 0, 1, 3, 6, … x(x+1)/2 modulo
// the next power of two, which spreads neighbouring rounds over the machine.
//
// NCCL: the point-to-point schedule in initTransportsRank, src/init.cc.
type schedule struct {
	layout      topo.Layout
	size, group int
	nodes       int
	order       []int // position of each distance between groups
}

// schedule depends on the layout only, and takes time in proportion to Size.
func (w World) schedule() schedule {
	l := w.layout()
	sc := schedule{layout: l, size: w.Size, group: gcd(p2pGroup, w.Size), nodes: l.Nodes()}
	if sc.nodes > 1 {
		for ranks := range l.Sizes {
			sc.group = gcd(sc.group, ranks)
		}
	}
	groups := w.Size / sc.group
	sc.order = make([]int, groups)
	pow2 := 1 << bits.Len(uint(groups-1))
	position := 0
	for x, delta := 0, 0; x < pow2; x++ {
		delta = (delta + x) % pow2
		if delta < groups {
			sc.order[delta] = position
			position++
		}
	}
	return sc
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// round is the round, in [0, size), in which from sends to to.
func (sc schedule) round(from, to int) int {
	from, to = sc.layout.Place(from), sc.layout.Place(to)
	groups := len(sc.order)
	between := (to/sc.group - from/sc.group + groups) % groups
	within := (to%sc.group - from%sc.group + sc.group) % sc.group
	return sc.order[between]*sc.group + within
}

// base is the channel that carries the first part of a round's messages. It is a
// function of the round alone, so both ends know it before they know each
// other's sizes. Bit reversal keeps the parts of successive rounds apart.
//
// NCCL: ncclP2pChannelBaseForRound in src/include/channel.h.
func (sc schedule) base(round, channels int) int {
	b := round
	if sc.nodes > 1 {
		b = round / sc.group
	}
	width := log2(channels)
	return int(bits.Reverse64(uint64(b)) >> 1 >> (63 - width))
}

// p2pChannels is the number of channels that point-to-point traffic is spread
// over: a power of two.
func (w World) p2pChannels() int { return 1 << log2(w.wideChannels()) }

// cut is how a message of some size travels.
type cut struct {
	parts, partBytes int
	protocol         Protocol
	chunk            int // bytes
}

// cut divides a message that goes through m over channels. Sender and receiver do
// this apart, each from its own idea of the size; what lies between them both know.
//
// NCCL: addP2pToPlan in src/enqueue.cc, which cuts finer on one node than on
// several. There also the largest part is smaller on several nodes, to use many
// channels; here a channel takes a core, wherever the message goes.
func (w World) cut(m medium, bytes int) (cut, error) {
	chunk := w.P2PPayload[Simple]
	channels := w.p2pChannels()
	start, minPart := min(p2pPerPeer, channels), max(1, chunk/p2pMinPartPart)
	if m == wire {
		minPart = max(1, chunk/p2pMinFarPart)
	}
	if w.Force.Channels > 0 {
		start, minPart = channels, p2pPartAlign
	}
	c := cut{protocol: Simple, chunk: chunk}
	c.parts = max(1, min(start, ceilDiv(bytes, minPart)))
	for ceilDiv(bytes, c.parts) > chunk*p2pMaxPart && 2*c.parts <= channels {
		c.parts *= 2
	}
	c.partBytes = bytes
	if c.parts > 1 {
		c.partBytes = roundUp(ceilDiv(bytes, c.parts), p2pPartAlign)
		c.parts = ceilDiv(bytes, c.partBytes)
	}
	allowed := w.Allowed.protocols[Send]
	switch w.Force.Protocol {
	case LL:
		c.protocol = LL
	case AutoProtocol, LL128: // there is no LL128 here
		if !allowed.has(int(Simple)) {
			c.protocol = LL
		} else if allowed.has(int(LL)) && c.partBytes <= m.llPart() && w.runs(LL, w.P2PPayload[:], 1) == nil {
			c.protocol = LL
		}
	}
	c.chunk = w.P2PPayload[c.protocol]
	return c, w.runs(c.protocol, w.P2PPayload[:], 1)
}

// llPart is the largest part of a message, in bytes, that goes in LL: NCCL's
// number in memory; on the wire, where LL doubles what is sent, as long as it is
// faster by the model.
func (m medium) llPart() int {
	if m == memory {
		return p2pLLPart
	}
	ll, simple := m.hop(LL), m.hop(Simple)
	if ll.bandwidth >= simple.bandwidth {
		return p2pLLPart
	}
	sooner := simple.micros - ll.micros
	longer := 1/(1000*ll.bandwidth) - 1/(1000*simple.bandwidth) // us for each byte
	return min(max(0, int(sooner/longer)), p2pLLPart)
}

// choosePointToPoint is Choose for messages. Channels is the number of channels
// that messages are spread over, of which a rank may use some. Protocol is
// AutoProtocol where it depends on the peer.
func (s Spec) choosePointToPoint(w World) (Choice, error) {
	choice := Choice{Algorithm: PointToPoint, Channels: w.p2pChannels()}
	for i, m := range w.media() {
		c, err := w.cut(m, s.bytes())
		if err != nil {
			return choice, err
		}
		if i == 0 {
			choice.Protocol = c.protocol
		} else if choice.Protocol != c.protocol {
			choice.Protocol = AutoProtocol
		}
	}
	return choice, nil
}

// PointToPoint is the plan of one rank for the messages of one launch. Messages of
// one peer and direction are matched in order. Each message that a rank sends to
// itself needs a message of the same size that it receives from itself; the
// pairs become Copies, also in a world of one rank.
//
// The plan's Spec is zero. Its Choice.Protocol is AutoProtocol when messages use
// different protocols, or when there are none.
//
// Errors: ErrSpec for a peer or a size that cannot be, and for messages to self
// without counterpart; ErrUnordered and ErrNoRoom for a forced protocol.
func (w World) PointToPoint(msgs []Message) (*Plan, error) {
	return Spec{}.pointToPointPlan(w, msgs)
}

func (s Spec) pointToPointPlan(w World, msgs []Message) (*Plan, error) {
	if wrong := w.wrong(); wrong != "" {
		return nil, fmt.Errorf("%w: %s", ErrSpec, wrong)
	}
	p := &Plan{Spec: s, Rank: w.Rank, Size: w.Size, Hosts: w.severalHosts()}
	p.Choice = Choice{Algorithm: PointToPoint, Channels: w.p2pChannels()}
	own, others, err := w.sortMessages(msgs)
	if err != nil {
		return nil, err
	}
	channels := make([]Channel, p.Choice.Channels)
	if channels[0].Copies, err = pairOwn(own); err != nil {
		return nil, err
	}
	sc := w.schedule()
	for i, o := range others {
		c, err := w.cut(w.between(w.Rank, o.Peer), o.Bytes)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			p.Choice.Protocol = c.protocol
		} else if p.Choice.Protocol != c.protocol {
			p.Choice.Protocol = AutoProtocol
		}
		base := sc.base(o.round, len(channels))
		for k := range c.parts {
			ch := &channels[(base+k)%len(channels)]
			ch.Transfers = append(ch.Transfers, o.part(k, c))
		}
	}
	for id, ch := range channels {
		if ch.ID = id; len(ch.Transfers)+len(ch.Copies) > 0 {
			p.Channels = append(p.Channels, ch)
		}
	}
	return p, nil
}

// ordered is a message with its place in the launch.
type ordered struct {
	Message
	epoch, round int
}

// part is what one channel moves of the message: the k-th piece.
func (o ordered) part(k int, c cut) Transfer {
	t := Transfer{
		Message: o.Message, Total: o.Bytes, Round: o.round, Epoch: o.epoch,
		First: k == 0, Protocol: c.protocol, Chunk: c.chunk,
	}
	t.Offset += k * c.partBytes
	t.Bytes = min(c.partBytes, o.Bytes-k*c.partBytes)
	return t
}

// sortMessages separates a rank's messages to itself and puts the others in the
// order of the schedule: a second message to the same peer waits for the next
// pass over the rounds.
func (w World) sortMessages(msgs []Message) (own, others []ordered, err error) {
	type stream struct {
		peer int
		send bool
	}
	epochs := make(map[stream]int, len(msgs))
	sc := w.schedule()
	for _, m := range msgs {
		switch {
		case m.Peer < 0 || m.Peer >= w.Size:
			return nil, nil, fmt.Errorf("%w: peer %d is not in [0,%d)", ErrSpec, m.Peer, w.Size)
		case m.Bytes < 0 || m.Offset < 0 || m.Offset+m.Bytes < 0:
			return nil, nil, fmt.Errorf("%w: a message of %d bytes at offset %d", ErrSpec, m.Bytes, m.Offset)
		}
		st := stream{m.Peer, m.Send}
		o := ordered{Message: m, epoch: epochs[st]}
		epochs[st]++
		switch {
		case m.Peer == w.Rank:
			own = append(own, o)
			continue
		case m.Send:
			o.round = sc.round(w.Rank, m.Peer)
		default:
			o.round = sc.round(m.Peer, w.Rank)
		}
		others = append(others, o)
	}
	slices.SortStableFunc(others, func(a, b ordered) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.round, b.round), sendFirst(a.Message, b.Message))
	})
	return own, others, nil
}

func sendFirst(a, b Message) int {
	switch {
	case a.Send == b.Send:
		return 0
	case a.Send:
		return -1
	}
	return 1
}

// pairOwn makes copies of a rank's messages to itself, k-th send to k-th receive.
func pairOwn(own []ordered) ([]Copy, error) {
	var sends, recvs []ordered
	for _, o := range own {
		if o.Send {
			sends = append(sends, o)
		} else {
			recvs = append(recvs, o)
		}
	}
	if len(sends) != len(recvs) {
		return nil, fmt.Errorf("%w: the rank sends %d messages to itself and receives %d in the same group",
			ErrSpec, len(sends), len(recvs))
	}
	var copies []Copy
	for i, s := range sends {
		r := recvs[i]
		if s.Bytes != r.Bytes {
			return nil, fmt.Errorf("%w: the rank sends %d bytes to itself but receives %d", ErrSpec, s.Bytes, r.Bytes)
		}
		copies = append(copies, Copy{From: s.Call, To: r.Call, FromOffset: s.Offset, ToOffset: r.Offset, Bytes: s.Bytes})
	}
	return copies, nil
}

// Messages expands a point-to-point call into the messages of w.Rank; call is
// the call's index in the launch. For AlltoAll, Gather and Scatter a count of 0
// expands to nothing. In place, Gather and Scatter leave out the root's message to
// itself: the data is where it belongs.
//
// NCCL: ncclAlltoAll, ncclGather and ncclScatter in src/collectives.cc, taskAppend
// in src/enqueue.cc.
func (s Spec) Messages(w World, call int) ([]Message, error) {
	if err := s.validate(w); err != nil {
		return nil, err
	}
	bytes := s.bytes()
	send := func(peer, block int) Message {
		return Message{Call: call, Peer: peer, Send: true, Offset: block * bytes, Bytes: bytes}
	}
	recv := func(peer, block int) Message {
		return Message{Call: call, Peer: peer, Offset: block * bytes, Bytes: bytes}
	}
	switch s.Kind {
	case Send:
		return []Message{send(s.Root, 0)}, nil
	case Recv:
		return []Message{recv(s.Root, 0)}, nil
	case AlltoAll, Gather, Scatter:
	case AlltoAllv:
		return nil, fmt.Errorf("%w: %v needs counts", ErrSpec, s)
	default:
		return nil, fmt.Errorf("%w: %v is no point-to-point traffic", ErrSpec, s)
	}
	if s.Count == 0 {
		return nil, nil
	}
	var msgs []Message
	for peer := range w.Size {
		if s.InPlace && peer == w.Rank {
			continue
		}
		if s.Kind == AlltoAll || s.Kind == Scatter && w.Rank == s.Root {
			msgs = append(msgs, send(peer, peer))
		}
		if s.Kind == Gather && peer == s.Root {
			msgs = append(msgs, send(peer, 0))
		}
		if s.Kind == AlltoAll || s.Kind == Gather && w.Rank == s.Root {
			msgs = append(msgs, recv(peer, peer))
		}
		if s.Kind == Scatter && peer == s.Root {
			msgs = append(msgs, recv(peer, 0))
		}
	}
	return msgs, nil
}

// Vectors are the counts and displacements of an AlltoAllv, in elements, one of
// each per peer: what goes to peer p is SendCounts[p] elements from
// SendOffsets[p] of the send buffer on, what comes from p is RecvCounts[p]
// elements to RecvOffsets[p] of the receive buffer on.
type Vectors struct {
	SendCounts, SendOffsets []int
	RecvCounts, RecvOffsets []int
}

// MessagesV expands an AlltoAllv. A pair of ranks that exchanges 0 elements still
// exchanges an empty message, which shows when only one of them thinks so.
// Spec.Count must be 0: ranks' counts differ.
func (s Spec) MessagesV(w World, call int, v Vectors) ([]Message, error) {
	if err := s.validate(w); err != nil {
		return nil, err
	}
	if s.Kind != AlltoAllv || s.Count != 0 {
		return nil, fmt.Errorf("%w: %v with counts for each rank", ErrSpec, s)
	}
	var msgs []Message
	for _, half := range []struct {
		send            bool
		counts, offsets []int
	}{{true, v.SendCounts, v.SendOffsets}, {false, v.RecvCounts, v.RecvOffsets}} {
		if len(half.counts) != w.Size || len(half.offsets) != w.Size {
			return nil, fmt.Errorf("%w: %v has %d counts and %d displacements for %d ranks",
				ErrSpec, s, len(half.counts), len(half.offsets), w.Size)
		}
		for peer, count := range half.counts {
			offset := half.offsets[peer]
			limit := s.maxCount(w.Size)
			if count < 0 || offset < 0 || count > limit || offset > limit-count {
				return nil, fmt.Errorf("%w: %v with %d elements at displacement %d", ErrSpec, s, count, offset)
			}
			size := s.Type.Size()
			msgs = append(msgs, Message{Call: call, Peer: peer, Send: half.send, Offset: offset * size, Bytes: count * size})
		}
	}
	return msgs, nil
}

// BuildAlltoAllv is Build for an AlltoAllv. The plan belongs to these counts and
// not only to the Spec.
func BuildAlltoAllv(s Spec, w World, v Vectors) (*Plan, error) {
	msgs, err := s.MessagesV(w, 0, v)
	if err != nil {
		return nil, err
	}
	return s.pointToPointPlan(w, msgs)
}
