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
	first uint64
}

var _ transport.Transport = (*Hub)(nil)

// NewHub returns a Hub without FIFOs; they are made when an end first asks.
func NewHub() *Hub { return NewHubAt(0) }

// NewHubAt returns a Hub whose FIFOs begin at step first, for tests that reach
// the wrap-around of the flags without 2^31 steps.
func NewHubAt(first uint64) *Hub {
	return &Hub{conns: make(map[transport.Link]*transport.Conn), first: first}
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
