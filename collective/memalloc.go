package collective

import (
	"context"
	"fmt"
	"slices"

	"github.com/gollective/gollective/internal/fault"
)

// MemAlloc returns zeroed memory for buffers that the other processes of this
// host can map. Any buffer works in any call; data in this one need not pass
// through a FIFO where all ranks' buffers of a call are MemAlloc's and the
// algorithm is two-shot. It begins on a page and is valid until MemFree or Close;
// using it afterwards is a fault that Go can't recover from.
//
// It pays for calls from some 16 or 32 KiB on, between two or a few ranks that
// have a core each. Smaller calls are posted or sent as they are, whatever memory
// they are in, and so are calls of two ranks in place below 2 MiB: a ring is quicker
// there. Where more ranks are in place, or ranks outnumber processors, ordinary slices,
// which go through slots that stay in the caches, can be as fast or faster. Measure
// both where it matters.
//
// Where all ranks are goroutines of this process, every slice is within their
// reach, and MemAlloc returns an ordinary one.
//
// NCCL: ncclMemAlloc and ncclCommRegister.
func (c *Comm) MemAlloc(bytes int) ([]byte, error) {
	if !c.valid() {
		return nil, &fault.Argument{Call: "MemAlloc", Reason: "the communicator is nil", Err: ErrInvalid}
	}
	const most = 1 << 40 // more than any machine that Go runs on can give at once
	if bytes <= 0 || bytes > most {
		return nil, &fault.Argument{Call: "MemAlloc", Reason: fmt.Sprintf("%d bytes", bytes), Err: ErrInvalid}
	}
	if c.closed.Load() {
		return nil, ErrClosed
	}
	p := c.world.process
	if p == nil {
		return make([]byte, bytes), nil
	}
	c.memory.Lock()
	defer c.memory.Unlock()
	name := p.memoryName(c.rank, c.memory.next)
	b, err := p.job.depot.Create(name, bytes, nil)
	if err != nil {
		return nil, err
	}
	c.memory.next++
	if c.memory.names == nil {
		c.memory.names = make(map[*byte]string)
	}
	c.memory.names[&b[0]] = name
	segment := uint64(c.memory.next) // the number of the name, from 1 on
	p.registered[c.rank].change(func(all []region) []region { return append(all, region{segment, b}) })
	return b, nil
}

// MemFree gives back what MemAlloc returned. No call that uses it may be under
// way.
func (c *Comm) MemFree(b []byte) error {
	if !c.valid() {
		return &fault.Argument{Call: "MemFree", Reason: "the communicator is nil", Err: ErrInvalid}
	}
	p := c.world.process
	if p == nil || len(b) == 0 {
		return nil
	}
	c.memory.Lock()
	defer c.memory.Unlock()
	name, ok := c.memory.names[&b[0]]
	if !ok {
		return &fault.Argument{Call: "MemFree", Reason: "this memory is not MemAlloc's, or no longer", Err: ErrInvalid}
	}
	delete(c.memory.names, &b[0])
	p.registered[c.rank].freed.Add(1)
	p.registered[c.rank].change(func(all []region) []region {
		return slices.DeleteFunc(all, func(r region) bool { return &r.memory[0] == &b[0] })
	})
	p.job.depot.Drop(func(other string) bool { return other == name })
	return nil
}

// memoryName names the k-th segment that a rank has allocated.
func (p *process) memoryName(rank, k int) string {
	return fmt.Sprintf("%s/memory/%d/%d", p.name, rank, k)
}

// mapMemory maps a segment that rank, of another process, has allocated.
func (p *process) mapMemory(ctx context.Context, rank int, name string) ([]byte, error) {
	d := &p.job.processes[p.ranks[rank]]
	return p.job.depot.Fetch(ctx, d.Depot, d.Mark, name)
}
