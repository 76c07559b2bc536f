package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/exec"
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// Comm is one rank's handle of a communicator: a fixed set of ranks that call
// collectives together. All ranks must make the same calls in the same order;
// where they don't, all of them get an error. A rank whose part of a call needed
// nobody (a small Send, a Broadcast at its root, any call of no elements) may have
// returned by then: it gets the error from Err and from its next call.
//
// A Comm belongs to one goroutine at a time. A blocking call made while another
// goroutine is inside one fails with ErrConcurrentUse and has no effect; Abort,
// Err, Stats and Close may be called at any time.
type Comm struct {
	*state
	group *Group // where calls are recorded instead of executed, or nil
}

// state is what all views of a rank's communicator share.
type state struct {
	rank, size int
	world      *world
	engine     *exec.Engine
	splits     int            // Splits so far: the same on all ranks
	barrier    [2]byte        // what a Barrier reduces
	shrinks    map[string]int // Shrinks so far, by members, where all ranks live here
	dividing   atomic.Bool    // a Split or Shrink is under way
	closing    sync.Once
	closed     atomic.Bool

	memory struct { // of MemAlloc
		sync.Mutex
		names map[*byte]string
		next  int
	}
}

// InitAll makes a communicator whose n ranks all live in this process and
// returns their handles, by rank. Each is meant for a goroutine of its own; a
// single goroutine that drives several uses a Group.
//
// NCCL: ncclCommInitAll.
func InitAll(n int) ([]*Comm, error) { return InitAllConfig(n, Config{}) }

// InitAllConfig is InitAll with a Config.
func InitAllConfig(n int, c Config) ([]*Comm, error) {
	if n < 1 || n > mostRanks {
		return nil, &fault.Argument{Call: "InitAll", Reason: fmt.Sprintf("%d ranks", n), Err: ErrInvalid}
	}
	c, err := c.resolve()
	if err != nil {
		return nil, err
	}
	if c.Transport == "shm" {
		return nil, &fault.Argument{Call: "InitAll", Reason: "ranks of one process are connected inproc, not by shm", Err: ErrUnsupported}
	}
	return initAll(n, c)
}

// initAll is InitAllConfig with a resolved Config.
func initAll(n int, c Config) ([]*Comm, error) {
	w, err := newWorld(n, c, nil)
	if err != nil {
		return nil, err
	}
	comms := make([]*Comm, n)
	for rank := range comms {
		comms[rank] = w.comm(rank)
	}
	return comms, nil
}

// Run executes body as n ranks, each in a goroutine of its own, and closes the
// communicator when they have returned. If a body returns an error, the calls of
// the others end with ErrAborted, which wraps that error.
func Run(n int, body func(*Comm) error) error { return RunConfig(n, Config{}, body) }

// RunConfig is Run with a Config.
func RunConfig(n int, c Config, body func(*Comm) error) error {
	comms, err := InitAllConfig(n, c)
	if err != nil {
		return err
	}
	errs := make([]error, n)
	var ranks sync.WaitGroup
	for rank, comm := range comms {
		ranks.Go(func() { errs[rank] = runBody(comm, body) })
	}
	ranks.Wait()
	return errors.Join(errs...)
}

// errNoReturn is the cause of an abort by a body that did not return: it panicked
// or ended its goroutine, as the failures of package testing do.
var errNoReturn = errors.New("its body did not return")

// runBody executes one rank of Run. Ranks that wait for it are released when it
// fails, in whichever way, also those that wait in a communicator of Split.
func runBody(c *Comm, body func(*Comm) error) (err error) {
	cause := errNoReturn
	defer func() {
		if cause != nil {
			c.world.abort(&fault.Abort{Rank: c.rank, Cause: cause})
		}
		c.Close()
	}()
	cause = body(c)
	if cause != nil {
		return fmt.Errorf("rank %d: %w", c.rank, cause)
	}
	return nil
}

// valid is false for a nil Comm and one that no function of this package made.
func (c *Comm) valid() bool { return c != nil && c.state != nil }

// Rank is this rank's number, in [0, Size()).
func (c *Comm) Rank() int {
	if !c.valid() {
		return -1
	}
	return c.rank
}

// Size is the number of ranks.
func (c *Comm) Size() int { return c.ranks() }

// Do executes a call and waits for it: on return, Recv holds the result and Send
// may be changed. Other ranks may still be working.
//
// Errors: ErrInvalid, ErrAlias, ErrUnsupported, ErrConcurrentUse and ErrClosed
// before anything is sent; ErrMismatch, ErrTimeout, ErrAborted, ErrPeerLost,
// ErrPeerClosed and, where FIFOs are first needed, ErrSpace
// afterwards. After one of the latter the communicator is of no use any more,
// on any rank, and the contents of Recv are undefined.
//
// When ctx is done before the call, all ranks' calls end with its error.
func (c *Comm) Do(ctx context.Context, call Call) error { return c.do(ctx, &call) }

func (c *Comm) do(ctx context.Context, call *Call) error {
	done, err := c.short(ctx, call.Kind, call.Type, call.Op.code, call.Count, call.Root, call.Send, call.Recv)
	if done {
		return err
	}
	return c.long(ctx, call)
}

// long is do for calls that don't take the short path.
func (c *Comm) long(ctx context.Context, call *Call) error {
	if err := c.check(ctx, call.Kind); err != nil {
		return err
	}
	prepared, err := c.prepare(call)
	if err != nil {
		return err
	}
	if c.group != nil {
		return c.group.add(c.state, prepared)
	}
	return planError(&prepared.Spec, c.engine.Run(ctx, &prepared))
}

// short executes a call that is like one before, if it can take the engine's short
// path: then its arguments have been found right then, and what differs from call to
// call is looked at here.
func (c *Comm) short(ctx context.Context, kind plan.Kind, t dtype.Type, op reduce.Op, count, root int, send, recv []byte) (done bool, err error) {
	if !c.valid() || ctx == nil || c.group != nil {
		return false, nil
	}
	inPlace := false
	if kind == plan.Barrier {
		t, op, count, root = dtype.Uint8, reduce.Sum, 1, 0
		send, recv = c.barrier[:1], c.barrier[1:]
	} else if overlap(send, recv) {
		if kind > plan.Broadcast || distance(send, recv) != 0 {
			return false, nil
		}
		inPlace = true
	}
	return c.engine.Short(ctx, exec.KeyOf(kind, t, op, count, root, inPlace), send, recv)
}

// check refuses what can't be called at all.
func (c *Comm) check(ctx context.Context, kind plan.Kind) error {
	if !c.valid() {
		return &fault.Argument{Call: kind.String(), Reason: "the communicator is nil", Err: ErrInvalid}
	}
	if ctx == nil {
		return &fault.Argument{Call: kind.String(), Reason: "the context is nil", Err: ErrInvalid}
	}
	return nil
}

// planError gives an error of the plan, which is about the call's arguments, its
// place among the communicator's errors.
func planError(spec *plan.Spec, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, plan.ErrSpec):
		return &fault.Argument{Call: spec.String(), Reason: reason(spec, err), Err: ErrInvalid}
	case errors.Is(err, plan.ErrUnordered), errors.Is(err, plan.ErrNoRoom), errors.Is(err, plan.ErrOrder), errors.Is(err, plan.ErrSight):
		return &fault.Argument{Call: spec.String(), Reason: reason(spec, err), Err: ErrUnsupported}
	}
	return err
}

// Plan returns the schedule that this rank would execute for a call. Buffers are
// looked at as in Do.
func (c *Comm) Plan(call Call) (*plan.Plan, error) {
	if err := c.check(context.Background(), call.Kind); err != nil {
		return nil, err
	}
	prepared, err := c.prepare(&call)
	if err != nil {
		return nil, err
	}
	world := c.world.planWorld(c.rank)
	var p *plan.Plan
	if call.Kind == plan.AlltoAllv {
		p, err = plan.BuildAlltoAllv(prepared.Spec, world, *prepared.Vectors)
	} else {
		p, err = plan.Build(prepared.Spec, world)
	}
	return p, planError(&prepared.Spec, err)
}

// Counters tell what work and waiting cost: Waits (for something that was not there at
// the first look), Turns (polls), Found (polls that found it), Yields (times the
// processor was given away) and Parks (sleeps).
//
// With Config.Accounting also Wall, the time from the begin to the end of launches;
// CPU, the processor time used in it; Waiting, the part of CPU that went into polling
// and yielding in vain; and Bytes, the payload sent and received. Useful is the share
// of CPU that was not Waiting. Threads is how many goroutines the sums are of.
// Processor time is measured by the clocks of threads on Linux; elsewhere it is the
// time in which a goroutine has not given its processor away.
type Counters = spin.Counters

// Stats is what a communicator has cost one rank so far, by role.
type Stats struct {
	// Block is the blocks', those that run on the caller's goroutine included. The
	// counts of waiting may lag a few thousand polls behind.
	Block Counters
	// Proxy is that of the threads that move what blocks post over the network, and
	// Helper that of the threads that serve further sockets for them; zero where
	// everybody shares memory. Where blocks do the proxy's work while they wait,
	// Threads is 0 and the time is counted here, not as the blocks' waiting.
	Proxy, Helper Counters
}

// Stats returns this rank's counters.
func (c *Comm) Stats() Stats {
	if !c.valid() {
		return Stats{}
	}
	return stats(c.engine.Counters(), c.world.transport, c.rank)
}

// stats sums up the blocks' counters and those that the transport has of a rank.
func stats(block Counters, t transport.Transport, rank int) Stats {
	s := Stats{Block: block}
	if a, ok := t.(transport.Accountant); ok {
		s.Proxy, s.Helper = a.Accounts(rank)
		if s.Proxy.Threads == 0 {
			s.Block.CPU -= min(s.Block.CPU, s.Proxy.CPU)
			s.Block.Waiting -= min(s.Block.Waiting, s.Proxy.CPU)
		}
	}
	return s
}

// Err returns what has ended the communicator, nil while it is usable.
//
// NCCL: ncclCommGetAsyncError.
func (c *Comm) Err() error {
	if !c.valid() {
		return ErrClosed
	}
	if err := c.world.ledger.Failure(); err != nil {
		return err
	}
	if c.closed.Load() {
		return ErrClosed
	}
	return nil
}

// Abort ends the communicator, and all that were split off it, for all ranks at
// once: pending and later calls return ErrAborted. It needs nothing of the other
// ranks, does not wait, and may be called again. Close is still due.
//
// NCCL: ncclCommAbort.
func (c *Comm) Abort() {
	if c.valid() {
		c.world.abort(&fault.Abort{Rank: c.rank})
	}
}

// Close waits until what this rank has issued is done, and releases what the
// communicator holds. Data that was sent stays available to its receivers. Later
// calls of this rank fail with ErrClosed, and so do, with ErrPeerClosed, calls of
// others that would need this rank. Close may be called again; it returns nil.
//
// Abort and Close of a nil Comm, which Split can return, do nothing.
//
// NCCL: ncclCommFinalize and ncclCommDestroy.
func (c *Comm) Close() error {
	if !c.valid() {
		return nil
	}
	c.closing.Do(func() {
		c.engine.Close()
		c.closed.Store(true)
		if p := c.world.process; p != nil && p.remote != nil {
			p.publishAll(c.world)
		}
		c.world.leave(1)
	})
	return nil
}
