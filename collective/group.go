package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/exec"
	"github.com/gollective/gollective/internal/fault"
)

// Group fuses calls into one launch, as ncclGroupStart and ncclGroupEnd do. Calls
// made on g.On(c) are checked and recorded; Run or Start launches them. There are
// two reasons to use one:
//
//   - several sends and receives that depend on each other's progress: in a
//     group all of them proceed together;
//   - one goroutine that drives several ranks: it records every rank's call and
//     launches them at once, where a blocking call would wait for ranks that
//     the goroutine has not come to yet.
//
// The calls of a group are concurrent: none may use what another one receives.
// All ranks must record the same collectives in the same order; sends and
// receives follow the collectives. A Group is for one goroutine; it is empty and
// may be used again after Run or Start.
type Group struct {
	calls []recorded // by communicator, in the order of their first calls
}

// recorded are the calls of one communicator.
type recorded struct {
	state *state
	calls []exec.Call
}

// NewGroup returns an empty group.
func NewGroup() *Group { return new(Group) }

// On returns a view of c that records calls in g. The context of a recorded call
// does not matter; that of Run or Start does.
func (g *Group) On(c *Comm) *Comm {
	if g == nil || !c.valid() {
		return nil // which every call refuses
	}
	return &Comm{state: c.state, group: g}
}

// Add records an untyped call. Errors are those of Comm.Do that come before
// anything is sent.
func (g *Group) Add(c *Comm, call Call) error {
	return g.On(c).Do(context.Background(), call)
}

func (g *Group) add(s *state, call exec.Call) error {
	if v := call.Vectors; v != nil {
		// They are used when the group is launched; what was checked must not
		// have changed by then.
		call.Vectors = &plan.Vectors{
			SendCounts: slices.Clone(v.SendCounts), SendOffsets: slices.Clone(v.SendOffsets),
			RecvCounts: slices.Clone(v.RecvCounts), RecvOffsets: slices.Clone(v.RecvOffsets),
		}
	}
	for i := range g.calls {
		if g.calls[i].state == s {
			g.calls[i].calls = append(g.calls[i].calls, call)
			return nil
		}
	}
	g.calls = append(g.calls, recorded{s, []exec.Call{call}})
	return nil
}

// Run launches the recorded calls and waits for them. The errors are those of
// Comm.Do; the first one is returned.
func (g *Group) Run(ctx context.Context) error {
	h, err := g.Start(ctx)
	if err != nil {
		return err
	}
	<-h.Done()
	return h.Err()
}

// Start launches the recorded calls, behind what the communicators have queued
// already, and returns at once. What is wrong with the calls comes out before
// anything is launched.
func (g *Group) Start(ctx context.Context) (*Handle, error) {
	if ctx == nil {
		return nil, &fault.Argument{Call: "Group", Reason: "the context is nil", Err: ErrInvalid}
	}
	if g == nil {
		return nil, &fault.Argument{Call: "Group", Reason: "the group is nil", Err: ErrInvalid}
	}
	recorded := g.calls
	g.calls = nil
	works := make([][]exec.Work, len(recorded))
	for i, r := range recorded {
		var err error
		if works[i], err = r.state.engine.Prepare(ctx, r.calls); err != nil {
			return nil, groupError(r.calls, err)
		}
	}
	h := &Handle{}
	var refused error
	for i, r := range recorded {
		ticket, err := r.state.engine.Start(ctx, works[i])
		if err != nil {
			// This communicator has ended. Ranks whose part is under way end
			// with it if they belong to it, and are none of its business if
			// not: their tickets still have to be waited for.
			refused = err
			continue
		}
		h.tickets = append(h.tickets, ticket)
	}
	h.finish(refused)
	return h, nil
}

// groupError is planError for several calls, where the error may be about how they
// fit together.
func groupError(calls []exec.Call, err error) error {
	err = planError(&calls[0].Spec, err)
	var argument *fault.Argument
	if len(calls) > 1 && errors.As(err, &argument) {
		argument.Call = fmt.Sprintf("Group of %d calls", len(calls))
	}
	return err
}

// Handle is a launch in progress.
type Handle struct {
	tickets []*exec.Ticket
	done    chan struct{}
	refused error
}

// finish makes h's done channel: the ticket's own if there is one only.
func (h *Handle) finish(refused error) {
	h.refused = refused
	if len(h.tickets) == 1 {
		h.done = h.tickets[0].Done
		return
	}
	h.done = make(chan struct{})
	var all sync.WaitGroup
	for _, t := range h.tickets {
		all.Go(func() { <-t.Done })
	}
	go func() {
		all.Wait()
		close(h.done)
	}()
}

// Done is closed when the launch has ended.
func (h *Handle) Done() <-chan struct{} {
	if h == nil {
		return nil
	}
	return h.done
}

// Err is the launch's error; it is only meaningful when Done is closed.
func (h *Handle) Err() error {
	if h == nil {
		return nil
	}
	for _, t := range h.tickets {
		if err := t.Err(); err != nil {
			return err
		}
	}
	return h.refused
}

// Wait returns the launch's error when it has ended, or ctx's error when ctx ends
// first; the launch then goes on. Buffers must not be touched before the end.
func (h *Handle) Wait(ctx context.Context) error {
	if h == nil || h.done == nil {
		return &fault.Argument{Call: "Wait", Reason: "the handle is nil: the call that should have made it failed", Err: ErrInvalid}
	}
	if ctx == nil {
		return &fault.Argument{Call: "Wait", Reason: "the context is nil", Err: ErrInvalid}
	}
	select {
	case <-h.done: // whatever ctx says
		return h.Err()
	default:
	}
	select {
	case <-h.done:
		return h.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Start issues a call and returns at once. Calls of a communicator complete in
// the order in which they were issued; a later blocking call waits for its turn.
// Errors before anything is sent are returned at once, the others by the Handle.
func (c *Comm) Start(ctx context.Context, call Call) (*Handle, error) {
	if err := c.check(ctx, call.Kind); err != nil {
		return nil, err
	}
	if c.group != nil {
		return nil, &fault.Argument{Call: call.Kind.String(), Reason: "asynchronous calls can't be recorded in a group: use Group.Start", Err: ErrInvalid}
	}
	prepared, err := c.prepare(&call)
	if err != nil {
		return nil, err
	}
	works, err := c.engine.Prepare(ctx, []exec.Call{prepared})
	if err != nil {
		return nil, planError(&prepared.Spec, err)
	}
	ticket, err := c.engine.Start(ctx, works)
	if err != nil {
		return nil, err
	}
	return &Handle{tickets: []*exec.Ticket{ticket}, done: ticket.Done}, nil
}
