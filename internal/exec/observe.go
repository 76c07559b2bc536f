package exec

import (
	"context"
	"runtime/pprof"
	"runtime/trace"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/transport"
)

// This file shows a program's observers what blocks do: accounts (what they cost),
// profile labels (whose they are) and regions of the execution trace (what they are
// at). All of it is off unless somebody asks.

// observed executes one channel's part of a call, in a region of the execution trace,
// and counts its payload.
func (w *worker) observed(l *launch, work *Work, c *channel) error {
	if trace.IsEnabled() {
		defer trace.StartRegion(l.ctx, work.Program.Plan.Spec.Kind.String()).End()
	}
	err := w.runCall(l, work, c)
	if err == nil && w.engine.config.Account {
		w.waiter.Moved(c.traffic(work))
	}
	return err
}

// traffic is how many bytes the worker of a channel sends and receives through FIFOs
// in a call. The second of two concurrent threads is another worker's.
func (c *channel) traffic(work *Work) int {
	threads := c.Threads
	if c.Concurrent {
		threads = threads[:1]
	}
	sum := 0
	for i := range threads {
		sum += traffic(&threads[i], work)
	}
	for _, t := range c.transfers {
		sum += t.Bytes
	}
	if c.Direct != nil {
		return directTraffic(c, work)
	}
	return sum
}

// directTraffic is how much of what a rank posts, lends or stores others take, once each,
// and how much it takes of theirs.
func directTraffic(c *channel, work *Work) int {
	p, shares := work.Program.Plan, c.Direct.Shares
	others, whole := p.Size-1, p.Spec.Count
	share, root := whole, p.Rank == p.Spec.Root
	if shares != nil {
		whole = shares[p.Size-1].End - shares[0].Begin
		share = shares[p.Rank].Count()
	}
	sum := 2 * others * whole
	switch kind := p.Spec.Kind; {
	case kind == plan.Broadcast && root:
		sum = others * whole
	case kind == plan.Broadcast, kind == plan.Reduce && shares == nil && !root:
		sum = whole
	case kind == plan.Reduce && root: // the others' inputs, and its own and the results of their shares
		sum = others*share + 2*(whole-share)
	case kind == plan.Reduce:
		sum = others*share + whole
	case scattered(kind) && shares != nil: // inputs and results, both ways
		sum = 2 * (others*share + whole - share)
	}
	return sum * p.Spec.Type.Size()
}

// scattered reports whether results of shares go to all ranks.
func scattered(k plan.Kind) bool { return k == plan.AllReduce || k == plan.Barrier }

// traffic is the same for one thread.
func traffic(t *plan.Thread, work *Work) int {
	sum := 0
	for loop := range t.Loops() {
		for _, s := range t.Steps {
			block := s.In // where both are given they are of equal lengths
			if block == plan.None {
				block = s.Out
			}
			_, count := t.Range(loop, block)
			sum += count * ways(s.Action, len(t.From), len(t.To))
		}
	}
	return sum * work.Program.Plan.Spec.Type.Size()
}

// ways is how often a primitive moves its chunk: from each of so many peers and to
// each of so many.
func ways(action plan.Action, from, to int) int {
	switch action {
	case plan.DoSend, plan.DoSendFromOutput, plan.DoCopySend:
		return to
	case plan.DoRecv, plan.DoRecvReduceCopy:
		return from
	}
	return from + to
}

// labels are the contexts whose profile labels a block of a channel has; nil where
// labels are off.
type labels struct {
	engine   *Engine
	channels map[int]context.Context // owned by whoever executes
}

// of returns the context of a channel's block.
func (s *labels) of(channel int) context.Context {
	ctx, ok := s.channels[channel]
	if !ok {
		c := &s.engine.config
		ctx = pprof.WithLabels(context.Background(), transport.Labels(c.Name, s.engine.rank, transport.Block, channel))
		s.channels[channel] = ctx
	}
	return ctx
}

// wear gives the goroutine that executes a launch the labels of its channel, and
// returns what gives it back those of its caller's context.
func (e *Engine) wear(l *launch, channel int) (takeOff func()) {
	if e.labels == nil {
		return func() {}
	}
	pprof.SetGoroutineLabels(e.labels.of(channel))
	caller := l.ctx
	if l.ticket != nil { // the stream is nobody's
		caller = context.Background()
	}
	return func() { pprof.SetGoroutineLabels(caller) }
}

// wearForever gives a persistent goroutine its labels.
func (e *Engine) wearForever(channel int) {
	if e.config.Labels {
		c := &e.config
		pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(),
			transport.Labels(c.Name, e.rank, transport.Block, channel)))
	}
}

// What implements spin.Named.
func (*anyTransfer) What() string { return "message" }
