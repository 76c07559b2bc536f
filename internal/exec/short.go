package exec

import (
	"context"
	"runtime/trace"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/proto"
)

// This file is the short path: a blocking call whose plan is at hand, that needs no
// FIFO, on the caller's goroutine, with nothing queued before it. What a launch does in
// general is done here with what such a call needs of it: no lock, no look at anything
// that only waiting needs to know.

// How a goroutine is inside the engine, the values of Engine.running.
const (
	outside     = iota
	insideRun   // in Run, which takes mu
	insideShort // in Short, which does not
)

// Key is a Spec as the short path compares it: words that are made in registers, where
// a struct of narrow fields would be stored and loaded again at once, which takes longer
// than all else that is done with it.
type Key struct{ Call, Count, Root uint64 }

// KeyOf returns the key of a Spec with the given fields.
func KeyOf(kind plan.Kind, t dtype.Type, op reduce.Op, count, root int, inPlace bool) Key {
	call := uint64(kind) | uint64(t)<<8 | uint64(op)<<16
	if inPlace {
		call |= 1 << 24
	}
	return Key{call, uint64(count), uint64(root)}
}

// short is what the short path keeps of a program that can take it.
type short struct {
	suits      bool
	key        Key
	send, recv int // bytes of the buffers
	asks       bool
	launch     launch
	works      [1]Work // of launch
}

// prepareShort fills in p.short. A rank's buffers have as many bytes in every such call.
func (e *Engine) prepareShort(p *Program, send, recv int) {
	s := &p.short
	spec := &p.Plan.Spec
	if s.suits {
		*e.programs.place(s.key) = p // where another may have taken its place
		return
	}
	if len(p.channels) != 1 || p.channels[0].Direct == nil || spec.Op == reduce.PreMulSum ||
		e.config.Account || e.labels != nil {
		return
	}
	work := &s.works[0]
	work.Program, work.kernel = p, &p.kernel
	work.entries = append(work.entries[:0], p.entry)
	s.launch.works = s.works[:]
	s.asks = !hearsOfAll(*spec)
	s.key = KeyOf(spec.Kind, spec.Type, spec.Op, spec.Count, spec.Root, spec.InPlace)
	s.send, s.recv, s.suits = send, recv, true
	*e.programs.place(s.key) = p
}

// Short executes a call if it can take the short path, and reports whether it has. The
// caller has checked nothing but that the buffers don't overlap, or are in place.
func (e *Engine) Short(ctx context.Context, key Key, send, recv []byte) (done bool, err error) {
	if !e.running.CompareAndSwap(outside, insideShort) {
		return false, nil
	}
	p := e.programs.short(key, len(send), len(recv))
	if p == nil || e.shut.Load() || e.ledger.Failure() != nil || ctx.Err() != nil || trace.IsEnabled() {
		e.leaveShort()
		return false, nil
	}
	err = e.runShort(ctx, p, send, recv)
	e.leaveShort()
	return true, err
}

// short returns a program that can take the short path.
func (p *programs) short(key Key, send, recv int) *Program {
	program := *p.place(key)
	if program == nil || program.short.key != key || program.short.send != send || program.short.recv != recv {
		return nil
	}
	return program
}

// shortPrograms is how many programs can have places among those of the short path.
const (
	shortBits     = 6
	shortPrograms = 1 << shortBits
)

// place is where the program of key is, if it is there. Calls that differ by their sizes
// only have places of their own more often than not.
func (p *programs) place(key Key) **Program {
	h := (key.Call + key.Count + key.Root<<16) * 0x9e3779b97f4a7c15
	return &p.shortcuts[h>>(64-shortBits)]
}

// leaveShort lets others in.
func (e *Engine) leaveShort() {
	e.running.Store(outside)
	if e.shut.Load() { // somebody waits for that
		e.mu.Lock()
		e.queued.Broadcast()
		e.mu.Unlock()
	}
}

// shutShort keeps calls from the short path, and waits for the one that is in it. The
// caller holds mu.
func (e *Engine) shutShort() {
	for e.shortGoesOn() {
		e.queued.Wait()
	}
}

// shortGoesOn shuts the short path, and reports whether a call is in it, which then
// broadcasts queued when it leaves. It is to be asked again after every wait: who held
// mu meanwhile may have opened the path.
func (e *Engine) shortGoesOn() bool {
	e.shut.Store(true)
	return e.running.Load() == insideShort
}

// openShort permits the short path again, if nothing is queued. The caller holds mu.
func (e *Engine) openShort() {
	if e.outstanding == 0 && !e.closed {
		e.shut.Store(false)
	}
}

// runShort is a launch of one call.
func (e *Engine) runShort(ctx context.Context, p *Program, send, recv []byte) error {
	l, w, c := &p.short.launch, e.main, &p.channels[0]
	work := &l.works[0]
	work.Send, work.Recv = send, recv
	e.history = mix(e.history, p.entry.Fingerprint)
	work.header = mix(p.identity, e.history)
	// What is posted is on its way while the rest is prepared, of which only waiting
	// needs something.
	posted := false
	if c.Direct.Shares == nil && !p.short.asks {
		c.meeting.Begin(proto.Operation{Waiter: w.waiter, Kernel: work.kernel, Header: work.header})
		posted = c.meeting.ShowAtOnce(send)
	}
	work.sequence = e.ledger.Enter(e.rank, p.entry)
	e.launches++
	l.number, l.ctx = e.launches, ctx
	var err error
	if p.short.asks {
		err = e.ledger.Compare(e.rank, work.sequence, p.entry)
	}
	w.bind(l, work, c, c.ID)
	switch {
	case err != nil:
	case posted:
		err = w.takePosts(work, c.meeting)
		c.meeting.Ring()
	case c.Direct.Shares == nil && !p.short.asks: // begun
		err = w.oneShot(work, c.meeting)
		c.meeting.Ring()
	default:
		err = w.runDirect(work, c)
	}
	w.stopWaiting()
	if err != nil {
		err = e.fail(w, err)
	}
	work.Send, work.Recv, l.ctx = nil, nil, nil // user memory is not retained
	return err
}
