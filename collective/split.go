package collective

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/ledger"
)

// NoColor as a color means: this rank joins none of the new communicators.
const NoColor = -1

// childKey names a communicator in the making. One of Split is named by the count
// of Splits and the color. One of Shrink is named by its members: survivors who
// don't know of the same losses yet don't meet, and meet when they do.
type childKey struct {
	shrunk       string // the members, "" for Split
	count, color int
}

// call is the call that makes the communicator.
func (k childKey) call() string {
	if k.shrunk != "" {
		return "Shrink"
	}
	return "Split"
}

// forming is a communicator that some members of this process have not joined
// yet.
type forming struct {
	made    chan struct{} // closed when world and err are set
	world   *world
	err     error
	missing int
	members []int        // ranks of the parent
	joined  map[int]bool // of members
}

// closeAbsent makes known in f's communicator which members have closed the parent
// without joining, and so never will. The parent's mutex is held.
func (f *forming) closeAbsent(parent *ledger.Ledger) {
	if f.world == nil {
		return
	}
	for i, rank := range f.members {
		if !f.joined[rank] && parent.Closed(rank) {
			f.world.ledger.Close(i)
		}
	}
}

// Split makes new communicators: the ranks that pass the same color form one, in
// the order of key and, for equal keys, of rank. All ranks of c must call it. It
// returns nil without an error for NoColor. The new communicator has c's Config;
// both are used and closed independently, but Abort of c ends both.
//
// Errors: ErrInvalid for another negative color, those of AllGather, and those of
// Shrink.
//
// NCCL: ncclCommSplit.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	if !c.valid() {
		return nil, &fault.Argument{Call: "Split", Reason: "the communicator is nil", Err: ErrInvalid}
	}
	if color < NoColor {
		return nil, &fault.Argument{Call: "Split", Reason: fmt.Sprintf("color %d", color), Err: ErrInvalid}
	}
	if c.group != nil {
		return nil, &fault.Argument{Call: "Split", Reason: "not possible in a group", Err: ErrInvalid}
	}
	if !c.dividing.CompareAndSwap(false, true) {
		return nil, ErrConcurrentUse
	}
	defer c.dividing.Store(false)
	mine := []int64{int64(color), int64(key)}
	all := make([]int64, 2*c.size)
	if err := AllGather(ctx, c, mine, all); err != nil {
		c.abandonSplit(err)
		return nil, err
	}
	id := childKey{count: c.splits, color: color}
	c.splits++
	if color == NoColor {
		return nil, nil
	}
	var members []int // ranks of c
	for rank := range c.size {
		if all[2*rank] == int64(color) {
			members = append(members, rank)
		}
	}
	slices.SortStableFunc(members, func(a, b int) int { return cmp.Compare(all[2*a+1], all[2*b+1]) })
	return c.child(ctx, id, members)
}

// abandonSplit is this rank's end of a Split in which c failed. Others may be through
// with it, and would wait in a new communicator for this rank. Which one that is,
// this rank doesn't know: all that come out of this Split end.
func (c *Comm) abandonSplit(err error) {
	w := c.world
	if w.ledger.Failure() == nil {
		return // nothing has happened: the call was refused
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.abandoned == nil {
		w.abandoned = make(map[int]error)
	}
	cause := &fault.Abort{Rank: c.rank, Call: "Split", Cause: err}
	w.abandoned[c.splits] = cause
	for child := range w.children {
		if child.id.count == c.splits {
			child.ledger.Fail(cause)
		}
	}
}

// Shrink makes a communicator of the ranks of c without those in exclude, in the
// same order. It is meant for the time after a rank was lost: c may have failed,
// and only the ranks that stay call Shrink, all with the same exclude. Calls of c
// that are under way must have returned. Where another rank is lost meanwhile, the
// ranks that stay call Shrink again, of c or of what Shrink made, with it in
// exclude.
//
// Errors: ErrInvalid when exclude holds no rank, this rank, or one that c does not
// have; ErrPeerLost and ErrPeerClosed when a rank that should stay does not, and
// ErrTimeout when it does not come before the end of ctx, or JoinTimeout. Ranks in
// these errors are c's.
//
// NCCL: ncclCommShrink.
func (c *Comm) Shrink(ctx context.Context, exclude []int) (*Comm, error) {
	wrong := func(format string, args ...any) error {
		return &fault.Argument{Call: "Shrink", Reason: fmt.Sprintf(format, args...), Err: ErrInvalid}
	}
	if !c.valid() {
		return nil, wrong("the communicator is nil")
	}
	if ctx == nil {
		return nil, wrong("the context is nil")
	}
	if c.group != nil {
		return nil, wrong("not possible in a group")
	}
	if len(exclude) == 0 {
		return nil, wrong("no rank to exclude")
	}
	var members []int
	for rank := range c.size {
		if !slices.Contains(exclude, rank) {
			members = append(members, rank)
		}
	}
	for _, rank := range exclude {
		if rank < 0 || rank >= c.size {
			return nil, wrong("rank %d is not in [0,%d)", rank, c.size)
		}
		if rank == c.rank {
			return nil, wrong("rank %d excludes itself", rank)
		}
	}
	if !c.dividing.CompareAndSwap(false, true) {
		return nil, ErrConcurrentUse
	}
	defer c.dividing.Store(false)
	if c.closed.Load() {
		return nil, ErrClosed
	}
	id := childKey{shrunk: fmt.Sprint(members)}
	if p := c.world.process; p != nil {
		id.shrunk = p.identity(members)
	}
	id.count = c.countShrink(id.shrunk)
	return c.child(ctx, id, members)
}

// countShrink is how often this rank has made a communicator of these members
// out of the same one before.
func (c *Comm) countShrink(members string) int {
	if p := c.world.process; p != nil {
		return p.job.countShrink(p.global[c.rank], members)
	}
	if c.shrinks == nil {
		c.shrinks = make(map[string]int)
	}
	c.shrinks[members]++
	return c.shrinks[members] - 1
}

// child returns this rank's handle of the communicator of the given ranks of c.
func (c *Comm) child(ctx context.Context, id childKey, members []int) (*Comm, error) {
	child, err := c.world.join(ctx, id, members, c.rank)
	if err != nil {
		return nil, err
	}
	return child.comm(slices.Index(members, c.rank)), nil
}

// join returns the world of a new communicator: the first member of this process
// makes it, the last one forgets the name.
func (w *world) join(ctx context.Context, id childKey, members []int, rank int) (*world, error) {
	w.mu.Lock()
	if w.forming == nil {
		w.mu.Unlock()
		return nil, fault.ErrClosed
	}
	f, ok := w.forming[id]
	if !ok {
		here := len(members)
		if w.process != nil {
			here = w.process.membersHere(members)
		}
		f = &forming{made: make(chan struct{}), missing: here, members: members, joined: make(map[int]bool)}
		w.forming[id] = f
	}
	f.joined[rank] = true
	if f.missing--; f.missing == 0 {
		delete(w.forming, id)
	}
	w.mu.Unlock()
	if !ok {
		child, err := w.makeChild(ctx, id, members)
		w.mu.Lock()
		f.world, f.err = child, err
		if w.process == nil {
			f.closeAbsent(w.ledger)
		}
		w.mu.Unlock()
		close(f.made)
	}
	<-f.made
	return f.world, f.err
}

func (w *world) makeChild(ctx context.Context, id childKey, members []int) (*world, error) {
	var child *world
	var err error
	if w.process == nil {
		child, err = newWorld(len(members), w.config, w)
	} else {
		child, err = w.process.makeChild(ctx, w, id, members)
	}
	if err != nil {
		return nil, err
	}
	if id.shrunk != "" {
		return child, nil // Abort of what it comes from is none of its business
	}
	child.parent, child.id = w, id
	w.mu.Lock()
	w.children[child] = struct{}{}
	w.mu.Unlock()
	// An Abort that came before the child was known would have missed it.
	if err := w.ledger.Failure(); errors.Is(err, fault.ErrAborted) {
		child.ledger.Fail(err)
	}
	w.mu.Lock()
	abandoned := w.abandoned[id.count]
	w.mu.Unlock()
	if abandoned != nil {
		child.ledger.Fail(abandoned)
	}
	return child, nil
}
