package exec

import (
	"context"
	"fmt"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/ledger"
	"github.com/gollective/gollective/internal/reduce"
)

// Call is one call with the user's memory.
type Call struct {
	Spec       plan.Spec
	Send, Recv []byte
	Scalar     reduce.Scalar // of a PreMulSum
	Vectors    *plan.Vectors // of an AlltoAllv
}

// Work is one item of a launch: a program and what it works on.
type Work struct {
	Program *Program
	Call
	// Fused is set instead of Call for point-to-point calls that share the
	// program of the launch.
	Fused []Call
	// entries are the calls among Fused that all ranks make, in order.
	entries []*ledger.Entry

	// Set when the launch begins.
	sequence uint64
	header   uint64
	kernel   *reduce.Kernel
	own      reduce.Kernel // what kernel points to when the call has a scalar
}

// call returns the i-th call of w.
func (w *Work) call(i int) *Call {
	if w.Fused == nil {
		return &w.Call
	}
	return &w.Fused[i]
}

// Ticket is an asynchronous launch.
type Ticket struct {
	// Done is closed when the launch has ended.
	Done chan struct{}
	err  error // valid when Done is closed
}

// Err is the outcome; valid when Done is closed.
func (t *Ticket) Err() error { return t.err }

// launch is one execution: one call, or the calls of a group.
type launch struct {
	ctx    context.Context
	works  []Work
	ticket *Ticket // nil when the caller executes
	// unwatch ends the watching of ctx while the launch is queued; nil if that
	// is not needed.
	unwatch func() bool
	number  uint64 // counts the launches of the engine, from 1
}

// Run executes one call and waits for it. The caller's goroutine becomes the
// first block, unless asynchronous launches are queued, in which case it waits
// for its turn. It fails with ErrConcurrentUse while another goroutine is inside
// Run.
func (e *Engine) Run(ctx context.Context, call *Call) error {
	if !e.running.CompareAndSwap(outside, insideRun) {
		return fault.ErrConcurrentUse
	}
	defer e.running.Store(outside)
	e.mu.Lock()
	if err := e.open(ctx, call); err != nil {
		e.mu.Unlock()
		return err
	}
	program, err := e.program(ctx, call)
	if err != nil {
		e.mu.Unlock()
		return err
	}
	if e.outstanding > 0 {
		ticket := e.enqueue(ctx, []Work{{Program: program, Call: *call}})
		e.mu.Unlock()
		<-ticket.Done
		return ticket.err
	}
	defer e.mu.Unlock()
	e.prepareShort(program, len(call.Send), len(call.Recv))
	work := &e.single[0]
	work.Program, work.Call = program, *call
	e.inline.ctx, e.inline.works = ctx, e.single[:]
	err = e.execute(&e.inline)
	work.Call = Call{} // user memory is not retained
	e.inline.ctx = nil
	return err
}

// Prepare makes the launch of several calls, which Start queues. Collectives run
// in the given order, then all messages together. All that is wrong with the
// calls comes out here, before anything moves.
//
// NCCL: the order within a launch is that of ncclLaunchPrepare in src/enqueue.cc,
// but for the sorting by size: the calls of a group must come in the same order
// on all ranks here.
func (e *Engine) Prepare(ctx context.Context, calls []Call) ([]Work, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shutShort()
	defer e.openShort()
	if e.closed { // the memory that a plan would be bound to may be gone
		return nil, fault.ErrClosed
	}
	works := make([]Work, 0, len(calls))
	var messages []Call
	for i := range calls {
		if pointToPoint(calls[i].Spec.Kind) && len(calls) > 1 {
			messages = append(messages, calls[i])
			continue
		}
		program, err := e.program(ctx, &calls[i])
		if err != nil {
			return nil, err
		}
		works = append(works, Work{Program: program, Call: calls[i]})
	}
	if len(messages) > 0 {
		work, err := e.fuse(ctx, messages)
		if err != nil {
			return nil, err
		}
		works = append(works, work)
	}
	return works, nil
}

// Start queues a launch to be executed after everything that was queued before,
// and returns at once.
func (e *Engine) Start(ctx context.Context, works []Work) (*Ticket, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shutShort()
	defer e.openShort()
	if err := e.open(ctx, works[0].call(0)); err != nil {
		return nil, err
	}
	return e.enqueue(ctx, works), nil
}

// program returns the program of one call; ctx bounds the connecting of FIFOs. The
// caller holds e.mu.
func (e *Engine) program(ctx context.Context, call *Call) (*Program, error) {
	e.connecting.ctx, e.connecting.spec = ctx, call.Spec
	if call.Spec.Kind != plan.AlltoAllv {
		return e.Program(call.Spec)
	}
	p, err := plan.BuildAlltoAllv(call.Spec, e.world, *call.Vectors)
	if err != nil {
		return nil, err
	}
	return e.bind(p)
}

// fuse makes one program of several point-to-point calls. The caller holds e.mu.
func (e *Engine) fuse(ctx context.Context, calls []Call) (Work, error) {
	e.connecting.ctx, e.connecting.spec = ctx, calls[0].Spec
	work := Work{Fused: calls}
	var all []plan.Message
	for i := range calls {
		spec := calls[i].Spec
		var messages []plan.Message
		var err error
		if spec.Kind == plan.AlltoAllv {
			messages, err = spec.MessagesV(e.world, i, *calls[i].Vectors)
		} else {
			messages, err = spec.Messages(e.world, i)
		}
		if err != nil {
			return Work{}, err
		}
		all = append(all, messages...)
		if !oneSided(spec.Kind) {
			entry := ledger.NewEntry(spec)
			e.ledger.Describe(e.rank, entry)
			work.entries = append(work.entries, entry)
		}
	}
	p, err := e.world.PointToPoint(all)
	if err != nil {
		return Work{}, err
	}
	if err := matchOwn(p, calls); err != nil {
		return Work{}, err
	}
	p.Spec = plan.Spec{Kind: plan.Send, Type: calls[0].Spec.Type}
	work.Program, err = e.bind(p)
	return work, err
}

// matchOwn checks the messages of this rank to itself as headers check the others:
// both ends must be of one kind and type.
func matchOwn(p *plan.Plan, calls []Call) error {
	for i := range p.Channels {
		for _, c := range p.Channels[i].Copies {
			from, to := calls[c.From].Spec, calls[c.To].Spec
			if from.Type != to.Type || from.Kind != to.Kind && !(oneSided(from.Kind) && oneSided(to.Kind)) {
				return fmt.Errorf("%w: the rank's message to itself of %v is received by %v", plan.ErrSpec, from, to)
			}
		}
	}
	return nil
}

// open reports why no launch, which begins with call, may be issued. The caller
// holds e.mu.
func (e *Engine) open(ctx context.Context, call *Call) error {
	if e.closed {
		return fault.ErrClosed
	}
	return e.usable(ctx, call)
}

// usable reports why no launch may begin with call.
func (e *Engine) usable(ctx context.Context, call *Call) error {
	if err := e.ledger.Failure(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		// The other ranks are waiting for this one, or will.
		return e.ledger.Fail(e.tooLate(call, err))
	}
	return nil
}

// enqueue adds a launch to the queue of the stream, which is started at the
// first one. The caller holds e.mu.
func (e *Engine) enqueue(ctx context.Context, works []Work) *Ticket {
	t := &Ticket{Done: make(chan struct{})}
	l := &launch{ctx: ctx, works: works, ticket: t}
	if e.outstanding > 0 && ctx.Done() != nil {
		// What the launch waits behind may never end.
		l.unwatch = context.AfterFunc(ctx, func() { e.ledger.Fail(e.tooLate(l.works[0].call(0), ctx.Err())) })
	}
	e.queue = append(e.queue, l)
	e.outstanding++
	if !e.streaming {
		e.streaming = true
		e.goroutines.Add(1)
		go e.stream()
	}
	e.queued.Broadcast() // the stream is not the only one that may wait
	return t
}

// stream executes queued launches in issue order: the communicator's stream, in
// CUDA's words. It sleeps while the queue is empty.
func (e *Engine) stream() {
	defer e.goroutines.Done()
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		for len(e.queue) == 0 && !e.closed {
			e.queued.Wait()
		}
		if len(e.queue) == 0 {
			return
		}
		l := e.queue[0]
		e.queue[0] = nil
		e.queue = e.queue[1:]
		e.mu.Unlock()
		l.ticket.err = e.startQueued(l)
		e.mu.Lock()
		e.outstanding--
		e.openShort()
		close(l.ticket.Done)
		e.queued.Broadcast() // Close waits for outstanding to be 0
	}
}

// startQueued executes a launch whose turn has come, unless it is too late.
func (e *Engine) startQueued(l *launch) error {
	if l.unwatch != nil {
		l.unwatch()
	}
	if err := e.usable(l.ctx, l.works[0].call(0)); err != nil {
		return err
	}
	return e.execute(l)
}

// execute runs a launch on this goroutine and the blocks it needs.
func (e *Engine) execute(l *launch) error {
	if err := e.begin(l); err != nil {
		return err
	}
	first := -1
	helping := e.helping[:0]
	for id := range e.world.MaxChannels {
		if !l.uses(id) {
			continue
		}
		if first < 0 {
			first = id
			continue
		}
		b := e.block(id)
		b.mailbox <- task{launch: l}
		helping = append(helping, b)
	}
	var err error
	if first >= 0 {
		takeOff := e.wear(l, first)
		err = e.main.runChannel(l, first)
		takeOff()
	}
	for _, b := range helping {
		if blockErr := <-b.done; err == nil {
			err = blockErr
		}
	}
	e.helping = helping
	e.end(l)
	if err != nil && e.carrier != nil {
		e.carrier.Abandon(e.rank) // the buffers are the caller's again
	}
	return err
}

// uses reports whether any call of l has work on channel id.
func (l *launch) uses(id int) bool {
	for i := range l.works {
		if l.works[i].Program.channel(id) != nil {
			return true
		}
	}
	return false
}

// channel returns the work of channel id, or nil.
func (p *Program) channel(id int) *channel {
	for i := range p.channels {
		if p.channels[i].ID == id {
			return &p.channels[i]
		}
	}
	return nil
}

// begin enters the calls of l in the ledger, gives each its header, and executes
// what needs no channel.
func (e *Engine) begin(l *launch) error {
	e.launches++
	l.number = e.launches
	for i := range l.works {
		w := &l.works[i]
		spec := &w.Program.Plan.Spec
		w.kernel = &w.Program.kernel
		if spec.Op == reduce.PreMulSum {
			own, err := reduce.For(spec.Type, spec.Op, e.size, w.Scalar)
			if err != nil {
				return err
			}
			w.own, w.kernel = own, &w.own
		}
		if w.Fused == nil {
			w.entries = w.entries[:0]
			if w.Program.entry != nil {
				w.entries = append(w.entries, w.Program.entry)
			}
		}
		for j, entry := range w.entries {
			sequence := e.ledger.Enter(e.rank, entry)
			if j == 0 {
				w.sequence = sequence
			}
			e.history = mix(e.history, entry.Fingerprint)
			if hearsOfAll(entry.Spec) {
				continue
			}
			if err := e.ledger.Compare(e.rank, sequence, entry); err != nil {
				return e.ledger.Fail(err)
			}
		}
		// The header tells of all calls so far: one that nobody could see to be
		// wrong shows in the next.
		w.header = mix(w.Program.identity, e.history)
		e.beginMessages(w)
		if e.size == 1 && w.Fused == nil && len(w.Program.channels) == 0 {
			runLocal(w)
		}
	}
	return nil
}

// end counts the messages that l has exchanged.
func (e *Engine) end(l *launch) {
	for i := range l.works {
		e.endMessages(&l.works[i])
	}
}

// hearsOfAll reports whether every rank receives something in the course of the
// call, so that headers show every disagreement. Otherwise the ledger is asked:
// the rank that enters last finds what all others have entered.
func hearsOfAll(s plan.Spec) bool {
	switch s.Kind {
	case plan.AllReduce, plan.AllGather, plan.ReduceScatter, plan.AlltoAll:
		return s.Count > 0
	case plan.AlltoAllv, plan.Barrier:
		return true
	}
	return false
}

// runLocal is a collective of one rank: a copy, with the reduction's scaling as
// for more ranks.
//
// NCCL: src/device/onerank.cu.
func runLocal(w *Work) {
	dst, src := w.Recv, w.Send
	if len(dst) == 0 || len(src) == 0 {
		return
	}
	switch w.Program.Plan.Spec.Kind {
	case plan.AllReduce, plan.Reduce, plan.ReduceScatter:
		if w.kernel.HasPre() {
			w.kernel.Pre(dst, src)
		} else {
			copy(dst, src)
		}
		if w.kernel.HasPost() {
			w.kernel.Post(dst)
		}
	default:
		copy(dst, src)
	}
}

// pointToPoint reports whether a kind is made of messages.
func pointToPoint(k plan.Kind) bool { return k >= plan.AlltoAll && k <= plan.Recv }

// oneSided reports whether a kind is not made by all ranks together.
func oneSided(k plan.Kind) bool { return k == plan.Send || k == plan.Recv }
