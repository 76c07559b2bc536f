package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/gollective/gollective/transport"
)

// Transport makes the FIFOs of one communicator between this process and its
// neighbours.
type Transport struct {
	depot     *Depot
	name      string // of the communicator
	self      int
	processOf func(rank int) int
	process   func(number int) Neighbour

	ctx    context.Context // ends with the communicator
	cancel context.CancelFunc

	// Somebody may have given up waiting for a Connect that goes on: Close waits
	// for it before it takes the memory away.
	mu         sync.Mutex
	closed     bool
	connecting sync.WaitGroup
	desks      map[transport.Spot]*transport.Desk // those that Desk has returned
}

var _ transport.Transport = (*Transport)(nil)

// NewTransport returns the transport of the communicator called name, which must
// be the same in all processes and contain neither space nor slash. processOf
// says in which process a rank lives, process where that is; self is this one's
// number.
func NewTransport(d *Depot, name string, self int, processOf func(rank int) int, process func(number int) Neighbour) *Transport {
	t := &Transport{depot: d, name: name, self: self, processOf: processOf, process: process}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// Name implements transport.Transport.
func (*Transport) Name() string { return "shm" }

// OrderedStores implements transport.Transport: both sides are processors of one
// coherent machine, and use atomics where order matters.
func (*Transport) OrderedStores() bool { return true }

// mostSlot bounds the slots that peers may ask for.
const mostSlot = 1 << 30

// Connect implements transport.Transport. The receiver's process owns the memory,
// and makes it when either end asks for it first.
func (t *Transport) Connect(l transport.Link, _ transport.End) (*transport.Conn, error) {
	if err := l.Check(); err != nil {
		return nil, fmt.Errorf("rank %d to rank %d, channel %d: %w", l.From, l.To, l.Channel, err)
	}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, net.ErrClosed
	}
	t.connecting.Add(1)
	t.mu.Unlock()
	defer t.connecting.Done()
	from, to := t.processOf(l.From), t.processOf(l.To)
	name, size := t.linkName(l), transport.SharedBytes(l.Slot)
	var memory []byte
	var err error
	if to == t.self {
		memory, err = t.depot.Create(name, size, func(m []byte) { transport.MarkShared(m, l.Slot) })
	} else {
		owner := t.process(to)
		memory, err = t.depot.Fetch(t.ctx, owner.Address, owner.Secret, name)
	}
	if err == nil {
		err = transport.CheckShared(memory, l.Slot)
	}
	if err != nil {
		return nil, fmt.Errorf("rank %d to rank %d, channel %d: %w", l.From, l.To, l.Channel, err)
	}
	return transport.ShareConn(memory, l.Slot, t.process(from).Beds, t.process(to).Beds)
}

// linkName names the segment of a FIFO.
func (t *Transport) linkName(l transport.Link) string {
	return fmt.Sprintf("%s/link/%d/%d/%d/%d/%d/%d", t.name, l.From, l.To, l.Channel, l.Use, l.Lane, l.Slot)
}

// Desk returns a rank's desk. The rank's process owns the memory.
func (t *Transport) Desk(s transport.Spot) (*transport.Desk, error) {
	fail := func(err error) (*transport.Desk, error) {
		return nil, fmt.Errorf("desk of rank %d, channel %d: %w", s.Rank, s.Channel, err)
	}
	if err := s.Check(); err != nil {
		return fail(err)
	}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, net.ErrClosed
	}
	t.connecting.Add(1)
	t.mu.Unlock()
	defer t.connecting.Done()
	owner := t.processOf(s.Rank)
	var memory []byte
	var err error
	if owner == t.self {
		memory, err = t.depot.Create(t.deskName(s), transport.DeskBytes(s.Slot), func(m []byte) { transport.MarkDesk(m, s.Slot) })
	} else {
		at := t.process(owner)
		memory, err = t.depot.Fetch(t.ctx, at.Address, at.Secret, t.deskName(s))
	}
	if err != nil {
		return fail(err)
	}
	desk, err := transport.ShareDesk(memory, s.Slot, t.process(owner).Beds, owner == t.self)
	if err != nil {
		return fail(err)
	}
	t.mu.Lock()
	if t.desks == nil {
		t.desks = make(map[transport.Spot]*transport.Desk)
	}
	t.desks[s] = desk
	t.mu.Unlock()
	return desk, nil
}

// Unseen reports whether a desk of this process shows what a rank of another may still
// come to look at: it has not posted on that channel, which it does not before it has
// mapped the desks of all, and has not left.
func (t *Transport) Unseen(left func(rank int) bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for mine, d := range t.desks {
		if t.processOf(mine.Rank) != t.self || !d.Posted(1) {
			continue
		}
		for s, other := range t.desks {
			if s.Channel == mine.Channel && s.Slot == mine.Slot && t.processOf(s.Rank) != t.self && !other.Posted(1) && !left(s.Rank) {
				return true
			}
		}
	}
	return false
}

// deskName names the segment of a desk.
func (t *Transport) deskName(s transport.Spot) string {
	return fmt.Sprintf("%s/desk/%d/%d/%d", t.name, s.Rank, s.Channel, s.Slot)
}

// provideDesk is Provide for the desk of a rank of this process.
func (t *Transport) provideDesk(name, rest string) (size int, prepare func([]byte), err error) {
	var s transport.Spot
	if _, err := fmt.Sscanf(rest, "%d/%d/%d", &s.Rank, &s.Channel, &s.Slot); err != nil {
		return 0, nil, ErrUnknown
	}
	switch {
	case t.deskName(s) != name, s.Check() != nil, s.Slot > mostSlot:
		return 0, nil, ErrUnknown
	case t.processOf(s.Rank) != t.self:
		return 0, nil, errors.New("a desk that is none of this process's")
	}
	return transport.DeskBytes(s.Slot), func(m []byte) { transport.MarkDesk(m, s.Slot) }, nil
}

// Provide makes the segment of a FIFO to this process whose other end asks for it
// first, or a desk that is asked for before its owner needs it. It is the part of a
// Depot's Provider that belongs to t.
func (t *Transport) Provide(name string) (size int, prepare func([]byte), err error) {
	if rest, ok := strings.CutPrefix(name, t.name+"/desk/"); ok {
		return t.provideDesk(name, rest)
	}
	rest, ok := strings.CutPrefix(name, t.name+"/link/")
	if !ok {
		return 0, nil, ErrUnknown
	}
	var l transport.Link
	if _, err := fmt.Sscanf(rest, "%d/%d/%d/%d/%d/%d", &l.From, &l.To, &l.Channel, &l.Use, &l.Lane, &l.Slot); err != nil {
		return 0, nil, ErrUnknown
	}
	switch {
	case t.linkName(l) != name, l.Slot <= 0, l.Slot > mostSlot, l.Slot%transport.Line != 0:
		return 0, nil, ErrUnknown
	case t.processOf(l.From) < 0, t.processOf(l.To) != t.self:
		return 0, nil, errors.New("a FIFO that is none of this process's")
	}
	return transport.SharedBytes(l.Slot), func(m []byte) { transport.MarkShared(m, l.Slot) }, nil
}

// Close unmaps the communicator's FIFOs. Nobody may use them any more.
func (t *Transport) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.connecting.Wait()
	t.depot.Drop(func(name string) bool { return strings.HasPrefix(name, t.name+"/") })
}
