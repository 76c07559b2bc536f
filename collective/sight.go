package collective

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/transport"
)

// This file is what the processes of a communicator see of each other's memory:
// desks, and what MemAlloc has registered.

var _ transport.Seer = (*process)(nil)

// sightOf is how much of each other's memory the ranks on t see.
func sightOf(t transport.Transport) plan.Sight {
	seer, ok := t.(transport.Seer)
	if !ok {
		return plan.SeesNothing
	}
	return plan.Sight(seer.Sees())
}

// Sees implements transport.Seer.
func (p *process) Sees() transport.Sight {
	switch {
	case p.remote != nil:
		return transport.Nothing
	case p.alone():
		return transport.Everything
	}
	return transport.Some
}

// alone reports whether all ranks live in this process.
func (p *process) alone() bool {
	return !slices.ContainsFunc(p.ranks, func(number int) bool { return number != p.job.self })
}

// Desk implements transport.Seer.
func (p *process) Desk(s transport.Spot) (*transport.Desk, error) {
	if p.alone() {
		return p.hub.Desk(s)
	}
	return p.fifos.Desk(s)
}

// region is memory that a rank has registered.
type region struct {
	segment uint64
	memory  []byte
}

// regions are those of one rank: replaced by its owner as a whole, read by its calls.
type regions struct {
	now   atomic.Pointer[[]region] // stored by MemAlloc and MemFree, which exclude each other
	freed atomic.Uint64            // grows in MemFree, before the region leaves now
}

func (r *regions) change(with func([]region) []region) {
	var all []region
	if old := r.now.Load(); old != nil {
		all = slices.Clone(*old)
	}
	all = with(all)
	r.now.Store(&all)
}

// refer finds b among them.
func (r *regions) refer(b []byte) transport.Reference {
	all := r.now.Load()
	if all == nil || len(b) == 0 {
		return transport.Reference{}
	}
	for i := range *all {
		r := &(*all)[i]
		if at := distance(r.memory, b); at >= 0 && at <= len(r.memory)-len(b) {
			return transport.Reference{Segment: r.segment, Offset: uint64(at)}
		}
	}
	return transport.Reference{}
}

// Refer implements transport.Seer.
func (p *process) Refer(rank int, b []byte) transport.Reference { return p.registered[rank].refer(b) }

// Freed implements transport.Seer.
func (p *process) Freed(rank int) uint64 { return p.registered[rank].freed.Load() }

// Segment implements transport.Seer.
func (p *process) Segment(rank int, segment uint64) ([]byte, error) {
	if p.ranks[rank] == p.job.self {
		if all := p.registered[rank].now.Load(); all != nil {
			for _, r := range *all {
				if r.segment == segment {
					return r.memory, nil
				}
			}
		}
		return nil, fmt.Errorf("rank %d has freed segment %d", rank, segment)
	}
	name := p.memoryName(rank, int(segment-1))
	p.views.take(name)
	memory, err := p.mapMemory(p.ctx, rank, name)
	if err != nil {
		p.views.give(name, p.unmap)
	}
	return memory, err
}

// Forget implements transport.Seer.
func (p *process) Forget(rank int, segment uint64) {
	if p.ranks[rank] != p.job.self {
		p.views.give(p.memoryName(rank, int(segment-1)), p.unmap)
	}
}

func (p *process) unmap(name string) {
	p.job.depot.Drop(func(other string) bool { return other == name })
}

// views counts who looks at segments of other processes: channels of ranks of this one,
// all through the same mapping.
type views struct {
	mu    sync.Mutex
	count map[string]int
}

// take is to be called before the segment is mapped, so that it is not unmapped between.
func (v *views) take(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.count == nil {
		v.count = make(map[string]int)
	}
	v.count[name]++
}

// give takes back a take, and calls unmap when it was the last.
func (v *views) give(name string, unmap func(name string)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.count[name]--; v.count[name] <= 0 {
		delete(v.count, name)
		unmap(name)
	}
}
