package plan

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/gollective/gollective/internal/reduce"
)

// ErrUnordered is returned when LL or LL128 is forced over memory in which
// stores may be seen out of order: their flags would arrive before their data.
var ErrUnordered = errors.New("the protocol needs memory that shows stores in the order they were made")

// ErrNoRoom is returned when a FIFO step of the protocol does not hold an
// element.
var ErrNoRoom = errors.New("a FIFO step does not hold an element")

// ErrOrder is returned when results must be reproducible, and no algorithm that is
// allowed combines the inputs in the order of the ranks.
var ErrOrder = errors.New("only oneshot and twoshot combine in the order of the ranks, which reproducible results need")

// hopCost is what one hop of a protocol costs.
type hopCost struct {
	micros    float64 // latency of a hop with a handful of bytes, in us
	bandwidth float64 // user bytes that one block moves through a FIFO, in GB/s
}

// medium is what a hop goes through.
type medium uint8

const (
	memory medium = iota // a FIFO that both ranks see
	wire                 // a FIFO at each end and a TCP connection between them
)

// The model's constants, the only ones: choose.go measures nothing.
var (
	// These and those below are fitted to what gollective tune has measured on a virtual
	// machine with two cores of an AMD EPYC: two and four goroutine ranks, and two
	// processes over shared memory and over TCP on the loopback interface, from 4 B to
	// 64 MiB. The fit weighs by how much a wrong choice costs, more than by times.
	// What it gives for bandwidths is that of buffers in the cache: larger ones are
	// slower in all schedules.
	hopCosts = [...][LL128 + 1]hopCost{
		memory: {
			Simple: {micros: 0.40, bandwidth: 7.3},
			LL:     {micros: 0.34, bandwidth: 4.5},
			LL128:  {micros: 0.37, bandwidth: 6.2},
		},
		wire: {
			Simple: {micros: 8.7, bandwidth: 2.9},
			LL:     {micros: 6.3, bandwidth: 1.1},
			LL128:  {micros: 6.4, bandwidth: 2.4},
		},
	}

	// switchMicros is added to a hop for each rank that shares a core with the one
	// that waits, in us: it must give its core to the one it waits for, and others
	// may be given it first.
	switchMicros = 1.0

	// peerMicros is what a rank spends on each peer of a one-shot schedule, in us,
	// by what lies between them: over the wire a peer takes a system call or two.
	peerMicros = [...]float64{memory: 0.15, wire: 1.5}

	// A one-shot schedule that makes a rank receive more than oneShotBytes keeps
	// only oneShotSpill of the bandwidth: the slots that it uses do not stay in
	// the cache.
	oneShotBytes = [...]float64{memory: 56 << 10, wire: 640 << 10}
	oneShotSpill = 0.95

	// mostOneShotRanks bounds the worlds in which one-shot schedules are chosen
	// unasked: they need FIFOs between all ranks.
	mostOneShotRanks = 16
	// mostDirectRanks is the same for two-shot schedules, in which every rank looks at
	// every other.
	mostDirectRanks = 64

	// What Direct costs: a look at each other and what each further rank adds to it,
	// in us; bytes that are read where they were posted, and bytes that are read and
	// written where the callers have them, in GB/s.
	directMicros         = 0.25
	directPeerMicros     = 0.01
	directShownBandwidth = 10.0
	directLentBandwidth  = 30.0

	// directRooted is how much longer a look takes in collectives with a root: through
	// FIFOs who only sends runs ahead of the others, here it waits for them.
	directRooted = 1.4

	// directLentShare is how many of the calls between processes bring memory that all
	// of them see, as a guess: a plan is made before that is known.
	directLentShare = 0.5

	// treeEfficiency is how much of the bandwidth a tree keeps, whose inner
	// ranks combine more streams than its leaves; NCCL's factor.
	treeEfficiency = 0.92
)

// hop is the cost of a hop through m. On the wire too the blocks at both ends work
// on FIFOs in memory, so it is never wider than memory.
func (m medium) hop(p Protocol) hopCost {
	cost := hopCosts[m][p]
	cost.bandwidth = min(cost.bandwidth, hopCosts[memory][p].bandwidth)
	return cost
}

// blockBytes is how many bytes make a further channel worth while, by algorithm
// and protocol: NCCL's threads of a block times its bytes per thread. A ring in LL
// multiplies it by the number of ranks.
//
// NCCL: topoGetAlgoInfo in src/enqueue.cc, thread thresholds in src/graph/tuning.cc.
var blockBytes = [...]float64{Simple: 512 * 64, LL: 512 * 8, LL128: 640 * 8, Direct: 256 << 10}

// Choose picks algorithm, protocol and number of channels for a call: the
// combination for which latency + bytes/bandwidth is least, ties to the lower
// numbers. It looks at nothing that differs between ranks. A rule of World.Tuning
// that fits decides instead, where it can run.
//
// World.Force overrides it field by field. A forced algorithm, or for
// point-to-point traffic a forced protocol, that the operation does not have is
// ignored: the returned Choice then differs from Force, which callers may tell
// the user. A forced protocol that cannot run here is an error, and so is any
// algorithm but OneShot and TwoShot where World.Reproducible asks for that.
//
// NCCL: topoGetAlgoInfo in src/enqueue.cc, ncclTopoGetAlgoTime in src/graph/tuning.cc.
func Choose(s Spec, w World) (Choice, error) {
	s = s.normal()
	if err := s.validate(w); err != nil {
		return Choice{}, err
	}
	if s.Kind.pointToPoint() {
		return s.choosePointToPoint(w)
	}
	if c, ok := s.tuned(w); ok {
		return c, nil
	}
	var err error
	if w.Force, err = s.force(w); err != nil {
		return Choice{}, err
	}
	if p := w.Force.Protocol; p != AutoProtocol && p != Direct {
		if err := w.runs(p, w.Payload[:], s.Type.Size()); err != nil {
			return Choice{}, err
		}
	}
	candidates := s.candidates(w)
	if len(candidates) == 0 {
		return Choice{}, fmt.Errorf("%v: %w", s.Kind, ErrOrder)
	}
	allowed := w.Allowed.protocols[s.Kind]
	if allowed == 1<<Direct && !slices.ContainsFunc(candidates, func(a Algorithm) bool { return s.sees(w, a) }) {
		allowed = 0
	}
	best, least := Choice{}, math.Inf(1)
	for _, a := range candidates {
		for p := Simple; p <= Direct; p++ {
			if w.Force.Protocol != AutoProtocol && w.Force.Protocol != p {
				continue
			}
			if w.Force.Protocol != p && !allowed.has(int(p)) {
				continue
			}
			if !s.can(w, a, p) {
				continue
			}
			if t := s.micros(w, a, p); t < least || best.Algorithm == AutoAlgorithm {
				best, least = Choice{Algorithm: a, Protocol: p}, t
			}
		}
	}
	if best.Algorithm == AutoAlgorithm {
		return Choice{}, fmt.Errorf("%w: no protocol that is allowed has room for one of %d bytes", ErrNoRoom, s.Type.Size())
	}
	best.Channels = s.channels(w, best)
	return best, nil
}

// force is World.Force without what this call does not have: TwoShot has no protocol but
// Direct, which others don't have, and calls can be too large, or reduce what must be
// scaled first.
func (s Spec) force(w World) (Choice, error) {
	f := w.Force
	if f.Algorithm != TwoShot && f.Protocol != Direct {
		return f, nil
	}
	if w.Size == 1 {
		return Choice{Channels: f.Channels}, nil
	}
	if w.Sight == SeesNothing {
		return f, ErrSight
	}
	if f.Algorithm == TwoShot {
		if f.Protocol = Direct; !s.sees(w, TwoShot) {
			f.Algorithm = AutoAlgorithm
		}
	}
	if !slices.ContainsFunc(s.Kind.algorithms(f.Algorithm), func(a Algorithm) bool { return s.sees(w, a) }) {
		f.Protocol = AutoProtocol
	}
	return f, nil
}

// can reports whether algorithm a of this call runs with protocol p.
func (s Spec) can(w World, a Algorithm, p Protocol) bool {
	if p == Direct {
		return s.sees(w, a)
	}
	return a != TwoShot && w.runs(p, w.Payload[:], s.Type.Size()) == nil
}

// candidates are the algorithms to choose from: the forced one, or those that are
// allowed; none if results must be reproducible and none of them sees to that.
func (s Spec) candidates(w World) []Algorithm {
	all := s.Kind.algorithms(w.Force.Algorithm)
	forced := w.Force.Algorithm == all[0]
	if !forced {
		all = slices.DeleteFunc(all, func(a Algorithm) bool { return a == TwoShot && !(s.sees(w, a) && w.allowsDirect(s.Kind)) })
		allowed := func(a Algorithm) bool { return w.Allowed.algorithms[s.Kind].has(int(a)) }
		if slices.ContainsFunc(all, allowed) {
			all = slices.DeleteFunc(all, func(a Algorithm) bool { return !allowed(a) })
		}
	}
	if w.Reproducible && w.Size > 1 && s.ordered() {
		all = slices.DeleteFunc(all, func(a Algorithm) bool { return a != OneShot && a != TwoShot })
	}
	if (w.Size > mostOneShotRanks && w.Force.Protocol != Direct || w.Size == 1) && len(all) > 1 {
		all = slices.DeleteFunc(all, func(a Algorithm) bool { return a == OneShot || a == TwoShot && w.Size > mostDirectRanks })
	}
	return all
}

// allowsDirect reports whether Direct is neither excluded nor forced away.
func (w World) allowsDirect(k Kind) bool {
	if p := w.Force.Protocol; p != AutoProtocol {
		return p == Direct
	}
	return w.Allowed.protocols[k].has(int(Direct))
}

// ordered reports whether the order in which inputs are combined shows in the
// result: not in integers, nor in the least or the greatest.
func (s Spec) ordered() bool {
	return s.Kind.reduces() && s.Type.Float() && s.Op != reduce.Min && s.Op != reduce.Max
}

// algorithms lists what a collective can use: the forced one alone if it is
// among them.
func (k Kind) algorithms(forced Algorithm) []Algorithm {
	all := []Algorithm{Ring, OneShot, TwoShot}
	switch k {
	case AllReduce:
		all = []Algorithm{Ring, Tree, OneShot, TwoShot}
	case Barrier:
		all = []Algorithm{Ring, Tree, OneShot}
	}
	for _, a := range all {
		if a == forced {
			return []Algorithm{a}
		}
	}
	return all
}

// runs reports whether protocol p can carry elements of size bytes through FIFOs
// with the given payloads.
func (w World) runs(p Protocol, payload []int, size int) error {
	if p < Simple || p > LL128 {
		return fmt.Errorf("unknown protocol %d", p)
	}
	if p != Simple && !w.OrderedStores {
		return fmt.Errorf("%v: %w", p, ErrUnordered)
	}
	if payload[p] < size {
		return fmt.Errorf("%v: %w: it has %d bytes, an element %d", p, ErrNoRoom, payload[p], size)
	}
	return nil
}

// micros is the model's time for a call, in us: the latency of all hops that
// follow each other, and the bytes at the pace of the slowest link.
func (s Spec) micros(w World, a Algorithm, p Protocol) float64 {
	if p == Direct {
		return s.directMicros(w, a)
	}
	bandwidth := w.bandwidth(p, a)
	bytes := float64(s.bytes())
	if s.Kind == AllGather || s.Kind == ReduceScatter {
		bytes *= float64(w.Size)
	}
	var latency float64
	switch a {
	case Tree:
		bandwidth *= treeEfficiency / 2
		latency = w.treeLatency(p)
	case OneShot:
		return w.oneShotLatency(p) + s.oneShotBytes(w)/(1000*bandwidth)
	default:
		steps := s.ringSteps(w.Size)
		bandwidth *= float64(w.Size) / max(steps, 1)
		latency = s.ringLatency(w, p)
	}
	return latency + bytes/(1000*bandwidth)
}

// bandwidth is that of a channel's narrowest link times the channels that move
// bytes at once.
func (w World) bandwidth(p Protocol, a Algorithm) float64 {
	most := w.inside().hop(p).bandwidth * w.lanes(w.sharers())
	switch {
	case w.Hosts.Count() <= 1:
	case a == OneShot:
		most = min(most, wire.hop(p).bandwidth*w.lanes(w.sharers()))
	default:
		// Of all ranks of a host, one sends a channel's bytes to another host.
		most = min(most, wire.hop(p).bandwidth*w.lanes(1))
	}
	return most
}

// hops are the latencies of a hop inside a host and of one between hosts, in us.
func (w World) hops(p Protocol) (inside, between float64) {
	inside, between = w.inside().hop(p).micros, wire.hop(p).micros
	turns := switchMicros * (w.crowd() - 1)
	return inside + turns, between + turns
}

// ringLatency is the way once, or twice, around the ring. Each time it leaves
// every host but one.
//
// NCCL: the latencies of ncclTopoTuneModel in src/graph/tuning.cc.
func (s Spec) ringLatency(w World, p Protocol) float64 {
	inside, between := w.hops(p)
	hops := max(s.ringSteps(w.Size), float64(w.Size-1))
	cables := float64(w.Hosts.Count() - 1)
	if s.Kind == AllReduce || s.Kind == Barrier {
		cables *= 2
	}
	// Every rank works in every step of a ring, so ranks that share a core take
	// turns; in a tree only those on the chunk's way do. What makes a hop
	// between hosts long is not this core's work.
	turns := w.inside().hop(p).micros * (w.crowd() - 1)
	return (inside+turns)*hops + (between-inside)*cables
}

// ringSteps is how often a block's worth of data is forwarded in NCCL's sense:
// the ring moves bytes*ringSteps/n through each rank's FIFO.
func (s Spec) ringSteps(n int) float64 {
	switch s.Kind {
	case AllReduce, Barrier:
		return float64(2 * (n - 1))
	case AllGather, ReduceScatter:
		return float64(n - 1)
	}
	return float64(n)
}

// treeLatency is the way up and down the tree: the chain of a node and the tree
// over nodes, of which as many hops are between hosts as a tree over hosts has.
func (w World) treeLatency(p Protocol) float64 {
	inside, between := w.hops(p)
	layout := w.layout()
	nodes := layout.Nodes()
	chain := w.Size/nodes - 1
	if hosts := w.severalHosts(); hosts != nil {
		for ranks := range layout.Sizes {
			chain = max(chain, ranks-1)
		}
	}
	levels, cables := log2(nodes), log2(w.Hosts.Count())
	return inside*float64(2*(chain+levels-cables)) + between*float64(2*cables)
}

// widest is what the longest hops of the world go through.
func (w World) widest() medium {
	if w.Hosts.Count() > 1 {
		return wire
	}
	return w.inside()
}

// oneShotLatency is one hop, the longest, and the work for each peer. Ranks that
// share a core have done theirs one after the other.
func (w World) oneShotLatency(p Protocol) float64 {
	inside, between := w.hops(p)
	if w.widest() == memory {
		between = inside
	}
	latency := between + peerMicros[w.widest()]*float64(w.Size-1)
	if w.crowd() > 1 {
		latency += inside * float64(w.sharers()-2)
	}
	return latency
}

// oneShotBytes is what the rank that receives most of a one-shot schedule receives,
// or sends if that is more; weighted, where it is too much for the cache.
func (s Spec) oneShotBytes(w World) float64 {
	bytes := float64(s.bytes()) * float64(w.Size-1)
	if bytes > oneShotBytes[w.widest()] {
		return bytes / oneShotSpill
	}
	return bytes
}

// log2 is the logarithm to base 2 of x >= 1, rounded down.
func log2(x int) int { return bits.Len(uint(x)) - 1 }

// inside is what hops between ranks of one host go through.
func (w World) inside() medium {
	if w.Carried {
		return wire
	}
	return memory
}

// between is what lies between two ranks.
func (w World) between(a, b int) medium {
	if w.Hosts.Of(a) != w.Hosts.Of(b) {
		return wire
	}
	return w.inside()
}

// media lists what lies between any two ranks of the world.
func (w World) media() []medium {
	switch {
	case w.Carried || w.Hosts.Count() == w.Size && w.Size > 1:
		return []medium{wire}
	case w.Hosts.Count() > 1:
		return []medium{memory, wire}
	}
	return []medium{memory}
}

// sharers is Sharers with its default.
func (w World) sharers() int {
	switch {
	case w.Sharers > 0:
		return w.Sharers
	case w.Hosts != nil:
		return w.Hosts.Largest()
	}
	return w.Size
}

// crowd is how many ranks share a core, at least 1.
func (w World) crowd() float64 {
	if w.Cores <= 0 || w.sharers() <= w.Cores {
		return 1
	}
	return float64(w.sharers()) / float64(w.Cores)
}

// lanes is how many blocks of each of so many ranks of a host move bytes at once:
// its channels, as far as there are cores for them.
func (w World) lanes(ranks int) float64 {
	most := float64(w.wideChannels())
	if w.Cores <= 0 {
		return most
	}
	return min(most, float64(w.Cores)/float64(ranks))
}

// maxChannels is MaxChannels with its default: what MinChannels asks for, or 1.
func (w World) maxChannels() int {
	if w.MaxChannels <= 0 {
		return max(1, w.MinChannels, w.Force.Channels)
	}
	return w.MaxChannels
}

// wideChannels is how many channels a large call uses. More than the cores can
// run would only be switched between, unless MinChannels asks for them; on a GPU,
// where blocks are many and always resident, NCCL has no such limit.
func (w World) wideChannels() int {
	most := w.maxChannels()
	if w.Force.Channels > 0 {
		return min(w.Force.Channels, most)
	}
	if w.Cores > 0 {
		most = min(most, max(1, w.Cores/w.sharers(), w.MinChannels))
	}
	return most
}

// channels is how many channels take part in a call of a collective: fewer for
// small calls.
func (s Spec) channels(w World, c Choice) int {
	if c.Algorithm == OneShot && c.Protocol == Direct {
		return 1
	}
	c.Channels = w.wideChannels()
	if w.Force.Channels == 0 {
		bytes := float64(s.bytes())
		if s.Kind == AllGather || s.Kind == ReduceScatter {
			bytes *= float64(w.Size)
		}
		least := blockBytes[c.Protocol]
		if c.Algorithm == Ring && c.Protocol == LL {
			least *= float64(w.Size)
		}
		c.Channels = max(1, min(c.Channels, int(min(bytes/least, 1<<16))))
	}
	if c.Algorithm == Tree {
		return max(1, len(s.splitEven(w, c)))
	}
	return max(1, len(s.split(w, c)))
}
