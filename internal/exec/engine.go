// Package exec runs plans: it is the kernel in CUDA's words. A launch is one
// call, or the calls of a group. Its way:
//
//  1. Engine.Run or Engine.Start (launch.go): the caller becomes the first block,
//     or the launch is queued for the stream, which executes in issue order;
//  2. begin: each call is entered in the ledger and gets the header that its
//     slots carry;
//  3. one block per channel walks the launch's calls (run.go): the interpreter
//     turns the plan's steps into primitives of proto, or, for point-to-point
//     messages, moves whichever can move (transfers.go);
//  4. the first error, whoever has it, goes into the ledger, which ends every
//     wait of every rank.
package exec

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/ledger"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/proto"
	"github.com/gollective/gollective/transport"
)

// Config is what an Engine is made of.
type Config struct {
	World     plan.World // Rank and Size are this engine's; OrderedStores is set from Transport
	Transport transport.Transport
	Ledger    *ledger.Ledger
	Policy    spin.Policy
	Waiters   int           // goroutines that may wait at the same time
	Cores     int           // processors that they share; 0 = GOMAXPROCS
	Timeout   time.Duration // of one call; 0 = none

	// Account switches the counting of time and bytes on, Labels profile labels;
	// Name is the communicator's in these.
	Account, Labels bool
	Name            string

	// Parker makes the place where a goroutine of this engine sleeps. Default
	// spin.NewParker.
	Parker func() *spin.Parker
	// Shared says that some of those who wait are in other processes, Heavy that
	// a poll may be a system call: blocks drive a proxy.
	Shared, Heavy bool

	// Publish has the ranks with which this one shares no memory told how far
	// it has got. It is called now and then while this rank waits, first with
	// ask false; later with ask true, to have the others do the same. Default:
	// all share memory.
	Publish func(rank int, ask bool)

	// Chosen is told of every plan that is made. Default: nobody.
	Chosen func(plan.Spec, plan.Choice)

	// Silent lists the ranks that do not answer. It is asked when a deadline
	// has passed. Default: not asked.
	Silent func() []int
}

// Engine executes the calls of one rank of one communicator.
type Engine struct {
	rank, size int
	world      plan.World
	transport  transport.Transport
	ledger     *ledger.Ledger
	config     Config
	carrier    transport.Carrier // nil where what peers have posted is there to be seen

	// running says how a goroutine is inside the engine. mu alone could not tell
	// that from the moments in which the stream or Start hold it.
	running atomic.Uint32
	// shut closes the short path: something is queued or about to be, or the engine is
	// closed. Written by the holder of mu.
	shut atomic.Bool

	// mu is held while a call is executed by its caller, and while the queue
	// is changed. It guards everything down to outstanding.
	mu          sync.Mutex
	queued      sync.Cond // queue or outstanding has changed, or closed is set
	queue       []*launch
	outstanding int // launches queued or being executed by the stream
	streaming   bool
	closed      bool

	// inline and single are the launch of a call that its caller executes.
	inline launch
	single [1]Work

	// Owned by whoever executes: the holder of mu with nothing outstanding,
	// or the stream.
	main     *worker
	helping  []*block
	programs programs
	sendEnds map[endKey]*transport.SendEnd
	recvEnds map[endKey]*transport.RecvEnd
	pairs    map[int]*pair
	seer     transport.Seer // nil where ranks don't see each other's memory
	meetings map[int]*meeting
	// connecting is the call for which FIFOs are made.
	connecting errand
	launches   uint64 // begun so far
	// history is made of all collectives executed so far, in order.
	history uint64

	// blocks and halves are started when a channel first needs one. The first
	// block of a launch is whoever executes it.
	blocksMu sync.Mutex
	blocks   map[int]*block
	halves   map[int]*block
	workers  []*worker // all of them, for the counters
	labels   *labels   // of whoever executes

	goroutines sync.WaitGroup // to wait for in Close
}

// New returns an Engine. It starts no goroutine before one is needed.
func New(c Config) *Engine {
	// Only the transport knows. LL and LL128 over memory that does not show
	// stores in order would take stale data for new.
	c.World.OrderedStores = c.Transport.OrderedStores()
	seer, sees := c.Transport.(transport.Seer)
	c.World.Sight = plan.SeesNothing
	if sees && c.World.DeskPayload > 0 {
		c.World.Sight = plan.Sight(seer.Sees())
	}
	e := &Engine{
		rank: c.World.Rank, size: c.World.Size,
		world: c.World, transport: c.Transport, ledger: c.Ledger, config: c, seer: seer,
		meetings: make(map[int]*meeting),
		sendEnds: make(map[endKey]*transport.SendEnd),
		recvEnds: make(map[endKey]*transport.RecvEnd),
		pairs:    make(map[int]*pair),
		blocks:   make(map[int]*block),
		halves:   make(map[int]*block),
	}
	if carrier, ok := c.Transport.(transport.Carrier); ok && carrier.Carries() {
		e.carrier = carrier
	}
	e.queued.L = &e.mu
	if c.Labels {
		e.labels = &labels{engine: e, channels: make(map[int]context.Context)}
	}
	e.main = e.newWorker()
	return e
}

// Close waits until everything issued is done, then ends the goroutines. Later
// calls fail with ErrClosed.
func (e *Engine) Close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	for e.outstanding > 0 || e.shortGoesOn() {
		e.queued.Wait()
	}
	e.closed = true
	e.queued.Broadcast()
	e.mu.Unlock()

	e.blocksMu.Lock()
	for _, blocks := range []map[int]*block{e.blocks, e.halves} {
		for _, b := range blocks {
			close(b.mailbox)
		}
	}
	e.blocksMu.Unlock()
	e.goroutines.Wait()
	if e.carrier != nil {
		e.carrier.Leave(e.rank, e.ledger.Failed())
	}
	e.ledger.Close(e.rank)
}

// Counters returns what this rank's blocks have spent on waiting.
func (e *Engine) Counters() spin.Counters {
	e.blocksMu.Lock()
	defer e.blocksMu.Unlock()
	var sum spin.Counters
	for _, w := range e.workers {
		sum.Add(w.waiter.Counters())
	}
	return sum
}

// block is a persistent goroutine that runs one channel, or the second half of
// one. It sleeps in its mailbox between launches.
type block struct {
	*worker
	mailbox chan task
	done    chan error // one answer per task
}

// task is what a block is asked to do: its channel's part of a launch, or, if
// work is set, one thread of one call.
type task struct {
	launch *launch
	work   *Work
	thread *plan.Thread
	pipe   proto.Primitives
}

// block returns the block of channel id.
func (e *Engine) block(id int) *block { return e.blockOf(e.blocks, id) }

// half returns the block that runs the second thread of channel id.
func (e *Engine) half(id int) *block { return e.blockOf(e.halves, id) }

func (e *Engine) blockOf(blocks map[int]*block, id int) *block {
	e.blocksMu.Lock()
	b, ok := blocks[id]
	e.blocksMu.Unlock()
	if ok {
		return b
	}
	b = &block{worker: e.newWorker(), mailbox: make(chan task, 1), done: make(chan error, 1)}
	e.blocksMu.Lock()
	blocks[id] = b
	e.blocksMu.Unlock()
	e.goroutines.Add(1)
	go func() {
		defer e.goroutines.Done()
		e.wearForever(id)
		for t := range b.mailbox {
			b.done <- b.perform(t, id)
		}
	}()
	return b
}

func (b *block) perform(t task, id int) error {
	if t.work == nil {
		return b.runChannel(t.launch, id)
	}
	b.bind(t.launch, t.work, t.work.Program.channel(id), id+halfChannel)
	b.waiter.Enter()
	defer b.waiter.Leave()
	defer b.stopWaiting()
	if err := b.runThread(t.thread, t.pipe, t.work); err != nil {
		return b.engine.fail(b.worker, err)
	}
	if b.engine.config.Account {
		b.waiter.Moved(traffic(t.thread, t.work))
	}
	return nil
}

// worker is a goroutine at work for an Engine: a way of waiting, and what it is
// waiting in. It implements spin.Watch.
type worker struct {
	engine  *Engine
	waiter  *spin.Waiter
	launch  *launch
	work    *Work
	channel int
	any     anyTransfer

	active         []*transfer // of the point-to-point call in progress
	moving         *transfer   // the one of them whose chunk has begun to move
	published      bool        // a ledger.Waiting of this worker is in the ledger
	publishedAs    int         // its channel there
	publishedIn    uint64      // the wait that it is about
	suspects       suspicion
	suspectedIn    uint64 // the wait that they were seen in
	waitingIn      uint64 // the wait that waitingSince is about
	waitingSince   time.Time
	suspectedPeers map[int]time.Time // peers that have closed, or whose connection has ended, since

	_ [96]byte // whole lines: another rank's may lie next to it
}

func (e *Engine) newWorker() *worker {
	options := spin.Options{
		Policy: e.config.Policy, Waiters: e.config.Waiters, Cores: e.config.Cores,
		Shared: e.config.Shared, Heavy: e.config.Heavy, Lane: e.rank,
	}
	if e.config.Parker != nil {
		options.Parker = e.config.Parker()
	}
	w := &worker{engine: e, waiter: spin.New(options)}
	w.waiter.SetAccounting(e.config.Account)
	w.any.worker = w
	e.ledger.Register(w.waiter.Parker())
	e.blocksMu.Lock()
	e.workers = append(e.workers, w)
	e.blocksMu.Unlock()
	return w
}

// bind prepares w for waiting in c's part of one call of a launch, under the given
// number.
func (w *worker) bind(l *launch, work *Work, c *channel, channel int) {
	w.launch, w.work, w.channel = l, work, channel
	w.active, w.moving = w.active[:0], nil
	clear(w.suspects)
	w.waiter.Bind(l.ctx, w, w.engine.config.Timeout)
	w.waiter.Serve(c.service)
}

// programs caches the Programs of an Engine: the latest few are found without a
// map.
type programs struct {
	recent [4]*Program
	next   int
	all    map[plan.Spec]*Program

	shortcuts [shortPrograms]*Program // see place
}

// mostPrograms bounds the cache: a program that calls with ever new sizes must
// not grow without end.
const mostPrograms = 1024

// Program returns the program for s, which it builds at first. The caller must
// be the only user of e, as in Run.
func (e *Engine) Program(s plan.Spec) (*Program, error) {
	for _, p := range e.programs.recent {
		if p != nil && p.Plan.Spec == s {
			return p, nil
		}
	}
	p, ok := e.programs.all[s]
	if !ok {
		built, err := plan.Build(s, e.world)
		if err != nil {
			return nil, err
		}
		if built.Spec != s {
			return nil, fmt.Errorf("exec: plan of %v is for %v", s, built.Spec)
		}
		if p, err = e.bind(built); err != nil {
			return nil, err
		}
		if e.programs.all == nil || len(e.programs.all) >= mostPrograms {
			e.programs.all = make(map[plan.Spec]*Program)
		}
		e.programs.all[s] = p
	}
	e.programs.recent[e.programs.next] = p
	e.programs.next = (e.programs.next + 1) % len(e.programs.recent)
	return p, nil
}
