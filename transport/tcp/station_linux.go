package tcp

import (
	"errors"
	"slices"
	"sync"

	"github.com/gollective/gollective/internal/spin"
)

// station is where the links of one channel of one rank are served. Whoever drives
// it takes its lock if it is free, and goes away if not: then somebody else is at it.
type station struct {
	transport *Transport
	ahead     bool // slots are filled before the block asks: a thread does it

	mu        sync.Mutex
	senders   []*sender
	receivers []*receiver
	dead      bool // abandoned: nothing moves any more

	// meter is what passes have cost the blocks that drive the station; nil if that
	// is not asked for.
	meter *spin.Meter

	// sleepers are blocks that the network must wake; guarded by sleeping.
	sleeping sync.Mutex
	sleepers []*spin.Parker
}

// drive does what can be done without waiting, and reports whether that was
// anything.
func (s *station) drive() bool {
	if !s.mu.TryLock() {
		return false
	}
	if s.meter != nil {
		s.meter.Begin()
	}
	moved := s.progress()
	if s.meter != nil {
		s.meter.End(moved, 0) // the links count their bytes
	}
	s.mu.Unlock()
	return moved
}

// progress goes round the links once: NCCL's progress function.
//
// NCCL: progressOps in src/proxy.cc.
func (s *station) progress() (moved bool) {
	if s.dead {
		return false
	}
	for _, x := range s.senders {
		moved = x.progress() || moved
	}
	for _, x := range s.receivers {
		if x.haul.InUse() {
			moved = x.progress(s.ahead) || moved
		}
	}
	return moved
}

// busy reports whether any block uses its links, or has left something to send.
func (s *station) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return false
	}
	return slices.ContainsFunc(s.receivers, func(r *receiver) bool { return r.haul.InUse() }) ||
		slices.ContainsFunc(s.senders, func(x *sender) bool { return x.haul.InUse() || x.pending() })
}

// pending reports whether anything is left to send that can still be sent.
func (s *station) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.dead && slices.ContainsFunc(s.senders, (*sender).pending)
}

// look tells interest about every socket that can bring the links on.
func (s *station) look(interest func(fd int, read, write bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.senders {
		if x.bundle != nil {
			read := x.twin != nil && x.twin.turned && s.reads(x.twin)
			x.bundle.look(read, !x.turned && s.writes(x), interest)
		}
	}
	for _, r := range s.receivers {
		if r.bundle != nil {
			write := r.twin != nil && r.twin.turned && s.writes(r.twin)
			r.bundle.look(!r.turned && s.reads(r), write, interest)
		}
	}
}

// reads reports whether bytes for r would be of use, writes whether room for more of
// x would. The caller holds s.mu.
func (s *station) reads(r *receiver) bool { return !s.dead && r.haul.InUse() && r.wants(s.ahead) }
func (s *station) writes(x *sender) bool {
	return !s.dead && x.failure == nil && x.post != nil && (x.blocked || x.striped)
}

// add serves x, or r, too. Links between the same two ranks and for the same are twins.
func (s *station) add(x *sender, r *receiver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x != nil {
		s.senders = append(s.senders, x)
		if at := slices.IndexFunc(s.receivers, func(r *receiver) bool { return r.link == back(x.link) }); at >= 0 {
			pairUp(x, s.receivers[at])
		}
	}
	if r != nil {
		s.receivers = append(s.receivers, r)
		if at := slices.IndexFunc(s.senders, func(x *sender) bool { return x.link == back(r.link) }); at >= 0 {
			pairUp(s.senders[at], r)
		}
	}
}

// accounts is what the station's links have cost: passes by blocks, and helpers.
func (s *station) accounts() (proxy, helper spin.Counters) {
	if s.meter != nil {
		proxy = s.meter.Counters()
	}
	add := func(b *bundle, bytes uint64) {
		proxy.Bytes += bytes
		if b != nil {
			h := b.helpers()
			helper.Add(spin.Counters{CPU: h.CPU, Turns: h.Polls, Found: h.Found, Bytes: h.Bytes, Threads: b.threads()})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.senders {
		add(x.bundle, x.bytes)
	}
	for _, r := range s.receivers {
		add(r.bundle, r.bytes)
	}
	return proxy, helper
}

// errNeverConnected is why nothing comes from a peer that has left.
var errNeverConnected = errors.New("it has left without a connection")

// broken is why something that rank peer is to send, or take, will not move any
// more; nil if it may. If it has left, what has no connection will have none.
func (s *station) broken(peer int, left bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.senders {
		if x.link.To == peer && x.failure != nil && x.haul.InUse() {
			return x.failure
		}
	}
	for _, r := range s.receivers {
		if r.link.From != peer || !r.haul.InUse() || !r.in.Wanted() {
			continue
		}
		if left && r.bundle == nil {
			return errNeverConnected
		}
		if r.failure != nil {
			return r.failure
		}
	}
	return nil
}

// inline is a station as the blocks see that drive it themselves.
type inline struct{ *station }

var _ spin.Service = inline{}

// Drive implements spin.Service.
func (s inline) Drive() { s.drive() }

// Sleep implements spin.Service: the network wakes p.
func (s inline) Sleep(p *spin.Parker) {
	s.sleeping.Lock()
	s.sleepers = append(s.sleepers, p)
	s.sleeping.Unlock()
	s.transport.lookout.watch(s.station)
}

// Rise implements spin.Service.
func (s inline) Rise(p *spin.Parker) {
	s.sleeping.Lock()
	if at := slices.Index(s.sleepers, p); at >= 0 {
		s.sleepers = slices.Delete(s.sleepers, at, at+1)
	}
	s.sleeping.Unlock()
}

// wake wakes the blocks that sleep at the station: something has happened.
func (s *station) wake() {
	s.sleeping.Lock()
	defer s.sleeping.Unlock()
	for _, p := range s.sleepers {
		p.Wake()
	}
}

// leave ends the sending side of all links: peers find the end behind what was sent.
func (s *station) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.senders {
		if x.bundle != nil && x.failure == nil {
			x.failure = errLeft
			x.wire().finish()
		}
	}
}

var errLeft = errors.New("the rank has left the communicator")

// abandon ends everything that goes on: no buffer of a user's is looked at when it
// returns.
func (s *station) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
	for _, x := range s.senders {
		if x.bundle != nil && x.striped && x.post != nil {
			x.bundle.halt() // helpers may be at a payload
		}
	}
	for _, r := range s.receivers {
		if r.bundle != nil && r.striped && r.reading {
			r.bundle.halt()
		}
	}
}
