// Package transport is the memory between two ranks. A Conn is one FIFO in one
// direction: eight slots, a tail, a head. It knows no algorithm and no protocol;
// what is in a slot is the protocol's business.
//
// A transport makes Conns. Once made, a Conn is plain memory: no call goes
// through an interface while data moves.
package transport

import "fmt"

// Link names one FIFO of a communicator. Both of its ends ask for it with the
// same Link and get the same memory.
type Link struct {
	From, To int // ranks: producer, consumer
	Channel  int
	Use      Use
	Lane     uint8 // one FIFO per protocol; the protocol numbers them
	Slot     int   // bytes per slot
}

// Check reports what makes l no link.
func (l Link) Check() error {
	if l.Slot <= 0 || l.Slot%Line != 0 {
		return fmt.Errorf("transport: a slot of %d bytes is not a positive multiple of %d", l.Slot, Line)
	}
	return nil
}

// Use keeps the FIFOs of collectives and of point-to-point messages apart, as
// NCCL's connection index does (src/include/comm.h), so that the one never waits
// behind the other.
type Use uint8

const (
	Collective Use = iota
	PointToPoint
)

// Transport connects ranks.
type Transport interface {
	// Name is what the user calls it: inproc, shm, tcp.
	Name() string
	// OrderedStores reports whether the consumer of a Conn sees the stores to
	// its slots in the order in which the producer made them. LL and LL128
	// are refused otherwise.
	OrderedStores() bool
	// Connect returns the FIFO of link to the rank at one of its ends, making
	// it at the first call of either.
	Connect(link Link, end End) (*Conn, error)
}

// End is a side of a Link.
type End uint8

const (
	Producer End = iota // rank From
	Consumer            // rank To
)

// Carrier is implemented by a Transport whose two ends are not the same memory:
// what one rank has posted may be under way for any length of time before the
// other can see it, so that a peer which has sent everything, and a peer which
// never will, look alike. Nothing is concluded from their waiting then.
type Carrier interface {
	Transport
	Carries() bool
	// Broken is why something that rank waits for will not move between it and
	// peer any more, for the waiting rank to look at now and then; nil while it
	// may. That peer has left the communicator, Leave included, says that what has
	// no connection so far will have none.
	Broken(rank, peer int, left bool) error
	// Leave is the end of rank's part: it waits until what rank has posted is on
	// its way, can't be any more, or failed is closed, and has its peers find the
	// end behind it.
	Leave(rank int, failed <-chan struct{})
	// Abandon ends what goes on for rank after a failure: no buffer that its
	// calls lent is looked at any more when it returns.
	Abandon(rank int)
}
