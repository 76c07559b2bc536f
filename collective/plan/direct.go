package plan

import (
	"errors"

	"github.com/gollective/gollective/internal/reduce"
)

// Where all ranks see each other's memory, data need not pass through FIFOs. A rank
// posts at its desk what it has, or where it is, and the others take it from there.
//
//   - OneShot: every rank posts its input itself, and each that needs a result combines
//     what all have posted. One look at each other, and every input is read by all.
//   - TwoShot: every rank posts where its buffers are, combines its share of all inputs
//     and stores it in all outputs, or lets the others fetch it. Two looks at each
//     other, and every byte moves once.
//
// Both combine in the order of the ranks.

// ErrSight is returned where Direct or TwoShot is forced, and some ranks don't see each
// other's memory.
var ErrSight = errors.New("direct and twoshot need memory that all ranks see")

// Sight is how much of each other's memory ranks see.
type Sight uint8

const (
	SeesNothing    Sight = iota // some ranks are out of others' sight
	SeesSome                    // desks, and memory that was registered
	SeesEverything              // all ranks are goroutines of one process
)

// Sharing is a channel's work without FIFOs.
type Sharing struct {
	// Shares are, by rank, the elements of a block of the buffers that the rank
	// combines. Nil in a one-shot schedule: there all do all.
	Shares []Share
	// Pulls says that nobody writes into another rank's buffers: shares that others
	// have combined are fetched. A rank of another process may be stopped at any
	// moment, and must not wake up to write into what is no longer lent.
	Pulls bool
	// Whole says that each rank rather combines everything by itself, if no buffer is in
	// place: what it writes nobody reads then.
	Whole bool
}

// wholeBytes is how large a call is of which two ranks combine everything each: no more
// goes from cache to cache than in shares, one way and at one time.
const wholeBytes = 4 << 20

// Share is the elements [Begin,End) of a block.
type Share struct{ Begin, End int }

// Count is how many elements the share has.
func (s Share) Count() int { return s.End - s.Begin }

// shareGrain is what shares begin at multiples of, in bytes, so that no two ranks
// write to one cache line of an aligned buffer.
const shareGrain = 128

// directChannels lays a schedule without FIFOs over the call's channels. Where memory
// may turn out not to be in sight, each channel has a ring to use instead.
func directChannels(s Spec, w World, c Choice) []Channel {
	if c.Algorithm == OneShot {
		return []Channel{{Direct: &Sharing{}}}
	}
	parts := s.split(w, c)
	channels := make([]Channel, len(parts))
	if w.Sight == SeesSome {
		instead := ringChannels(s, w, Choice{Algorithm: Ring, Protocol: s.ringProtocol(w), Channels: len(parts)})
		for i := range instead {
			channels[i].Threads = instead[i].Threads
		}
	}
	for id, p := range parts {
		channels[id].ID = id
		channels[id].Direct = &Sharing{Shares: s.shares(w, p), Pulls: w.Sight != SeesEverything || !s.scatters(), Whole: s.whole(w)}
	}
	return channels
}

// whole reports whether Sharing.Whole is the better way. An input that is scaled into
// the output is as good as in place.
func (s Spec) whole(w World) bool {
	return w.Sight == SeesSome && s.Kind == AllReduce && w.Size == 2 && s.bytes() <= wholeBytes &&
		s.Op != reduce.PreMulSum && !(s.Op == reduce.Avg && s.Type.Float())
}

// scatters reports whether results have several places, or another one than the rank
// that makes them.
func (s Spec) scatters() bool { return s.Kind == AllReduce || s.Kind == Barrier || s.Kind == Reduce }

// shares deals a channel's part out to the ranks. Of a Reduce between processes the
// root does all; in the other collectives every rank has one of its own.
func (s Spec) shares(w World, p part) []Share {
	shares := make([]Share, w.Size)
	switch {
	case s.Kind == Reduce && w.Sight != SeesEverything:
		for rank := range shares {
			shares[rank] = Share{p.end, p.end}
		}
		shares[s.Root] = Share{p.begin, p.end}
	case s.scatters():
		grain := max(1, shareGrain/s.Type.Size())
		each := roundUp(ceilDiv(p.end-p.begin, w.Size), grain)
		for rank := range shares {
			begin := min(p.begin+rank*each, p.end)
			shares[rank] = Share{begin, min(begin+each, p.end)}
		}
	default:
		for rank := range shares {
			shares[rank] = Share{p.begin, p.end}
		}
	}
	return shares
}

// Instead is the choice that a TwoShot plan's Threads follow, for ranks whose memory
// turns out not to be in sight.
func (p *Plan) Instead() Protocol { return p.instead }

// ringProtocol is what the ring of a call would use.
func (s Spec) ringProtocol(w World) Protocol {
	best, least := Simple, 0.0
	for p := Simple; p <= LL128; p++ {
		if w.runs(p, w.Payload[:], s.Type.Size()) != nil {
			continue
		}
		if t := s.micros(w, Ring, p); least == 0 || t < least {
			best, least = p, t
		}
	}
	return best
}

// sees reports whether algorithm a of this call can do without FIFOs.
func (s Spec) sees(w World, a Algorithm) bool {
	switch {
	case w.Sight == SeesNothing || s.Kind.pointToPoint():
		return false
	case a == OneShot:
		return s.shown(w) <= w.DeskPayload
	case a != TwoShot:
		return false
	case w.Sight == SeesSome && (w.runs(Simple, w.Payload[:], s.Type.Size()) != nil || w.Reproducible && s.ordered()):
		return false // the ring that it may come to
	case s.Op == reduce.PreMulSum || s.Op == reduce.Avg && s.Type.Float():
		// Inputs are scaled before others may take them, which needs an output of
		// their size.
		return !s.Kind.reduces() || s.Kind == AllReduce
	}
	return true
}

// shown is how many bytes a rank posts in a one-shot schedule.
func (s Spec) shown(w World) int {
	if s.Kind == ReduceScatter {
		return s.bytes() * w.Size
	}
	return s.bytes()
}

// directMicros is the model's time without FIFOs, in us.
func (s Spec) directMicros(w World, a Algorithm) float64 {
	others := float64(w.Size - 1)
	look := directMicros + directPeerMicros*others + switchMicros*(w.crowd()-1)*float64(w.sharers())/2
	if s.Kind.rooted() {
		look *= directRooted
	}
	bytes := float64(s.bytes())
	lanes := w.lanes(w.sharers()) * 1000
	if a == OneShot {
		if s.Kind == Broadcast {
			others = 1
		}
		return look + bytes*(1+others)/(lanes*directShownBandwidth)
	}
	traffic := bytes * 2 // read everybody's share, write everybody's
	switch s.Kind {
	case AllGather, ReduceScatter:
		traffic = bytes * float64(w.Size)
	case Reduce:
		traffic = bytes * (1 + 1/float64(w.Size))
	}
	lent := 2*look + traffic/(lanes*directLentBandwidth)
	if w.Sight != SeesSome {
		return lent
	}
	// Where memory turns out not to be in sight, a ring follows the looks. Its root
	// can't run ahead then.
	ring := s.micros(w, Ring, s.ringProtocol(w))
	if s.Kind.rooted() {
		ring *= 2
	}
	return directLentShare*lent + (1-directLentShare)*(2*look+ring)
}
