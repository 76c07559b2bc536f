// Package inproc connects ranks that are goroutines of one process. Its FIFOs
// are Go heap memory, so that the race detector sees every access: what runs
// here is what runs in the other transports.
package inproc

import (
	"fmt"
	"sync"

	"github.com/gollective/gollective/transport"
)

// Hub holds the FIFOs of one communicator.
type Hub struct {
	mu    sync.Mutex
	conns map[transport.Link]*transport.Conn
	desks map[transport.Spot]*transport.Desk
	first uint64
}

var _ transport.Seer = (*Hub)(nil)

// NewHub returns a Hub without FIFOs; they are made when an end first asks.
func NewHub() *Hub { return NewHubAt(0) }

// NewHubAt returns a Hub whose FIFOs begin at step first, for tests that reach
// the wrap-around of the flags without 2^31 steps.
func NewHubAt(first uint64) *Hub {
	return &Hub{
		conns: make(map[transport.Link]*transport.Conn),
		desks: make(map[transport.Spot]*transport.Desk),
		first: first,
	}
}

// Later returns a Hub whose FIFOs are those of h, which must be idle and stay so, as
// Conn.Later makes them: for the same tests.
func (h *Hub) Later(first uint64) *Hub {
	h.mu.Lock()
	defer h.mu.Unlock()
	later := NewHubAt(first)
	for link, c := range h.conns {
		later.conns[link] = c.Later(first)
	}
	return later
}

// Name implements transport.Transport.
func (*Hub) Name() string { return "inproc" }

// OrderedStores implements transport.Transport: Go's atomics are sequentially
// consistent, and plain stores are ordered by the atomic ones that follow.
func (*Hub) OrderedStores() bool { return true }

// Connect implements transport.Transport.
func (h *Hub) Connect(link transport.Link, _ transport.End) (*transport.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c, ok := h.conns[link]; ok {
		return c, nil
	}
	c, err := transport.NewConn(link.Slot, h.first)
	if err != nil {
		return nil, fmt.Errorf("inproc: rank %d to rank %d, channel %d: %w", link.From, link.To, link.Channel, err)
	}
	h.conns[link] = c
	return c, nil
}

// Sees implements transport.Seer: all memory is everybody's.
func (*Hub) Sees() transport.Sight { return transport.Everything }

// Desk implements transport.Seer.
func (h *Hub) Desk(spot transport.Spot) (*transport.Desk, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d, ok := h.desks[spot]; ok {
		return d, nil
	}
	d, err := transport.NewDesk(spot.Slot)
	if err != nil {
		return nil, fmt.Errorf("inproc: desk of rank %d, channel %d: %w", spot.Rank, spot.Channel, err)
	}
	h.desks[spot] = d
	return d, nil
}

// Refer implements transport.Seer: loans are slices here.
func (*Hub) Refer(int, []byte) transport.Reference { return transport.Reference{} }

// Freed implements transport.Seer.
func (*Hub) Freed(int) uint64 { return 0 }

// Segment implements transport.Seer.
func (*Hub) Segment(rank int, segment uint64) ([]byte, error) {
	return nil, fmt.Errorf("inproc: rank %d has no segment %d", rank, segment)
}

// Forget implements transport.Seer.
func (*Hub) Forget(int, uint64) {}
