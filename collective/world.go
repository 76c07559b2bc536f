package collective

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/exec"
	"github.com/gollective/gollective/internal/ledger"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
	"github.com/gollective/gollective/transport/inproc"
)

// world is what the ranks of one communicator that live in this process share.
type world struct {
	config    Config
	size      int
	ledger    *ledger.Ledger
	transport transport.Transport
	parent    *world
	process   *process // nil when all ranks live here
	loop      *loop    // nil unless those are connected by sockets
	number    uint64   // of a world all of whose ranks live here

	mu       sync.Mutex
	open     int                   // ranks of this process that have not closed
	forming  map[childKey]*forming // children that some members here have not joined yet
	children map[*world]struct{}   // for Abort

	id        childKey      // of this world in parent
	abandoned map[int]error // Splits that failed on some rank of this process
}

// newWorld is the world of size ranks of this process. Those that are made of others
// share the sockets' port of parent, which is nil for the first.
func newWorld(size int, c Config, parent *world) (*world, error) {
	w := &world{
		config: c, size: size, open: size, number: local.Add(1),
		ledger:    ledger.New(size),
		transport: inproc.NewHubAt(c.firstStep),
		forming:   make(map[childKey]*forming),
		children:  make(map[*world]struct{}),
	}
	if c.Transport != "tcp" {
		return w, nil
	}
	w.config.carried = true
	var err error
	if parent != nil {
		w.loop, err = parent.loop.again(w.config, size, w.ledger)
	} else {
		w.loop, err = newLoop(w.config, size, w.ledger)
	}
	if err != nil {
		return nil, err
	}
	w.transport = w.loop.sockets
	return w, nil
}

// comm returns the handle of one rank.
func (w *world) comm(rank int) *Comm {
	c := exec.Config{
		World:     w.planWorld(rank),
		Transport: w.transport,
		Ledger:    w.ledger,
		Policy:    w.config.Wait,
		Waiters:   w.size,
		Timeout:   w.config.Timeout,
		Parker:    spin.NewParker,
		Account:   w.config.Accounting,
		Labels:    w.config.Profile,
		Name:      w.label(),
	}
	if log := w.config.Logger; log.Enabled(context.Background(), slog.LevelDebug) {
		c.Chosen = func(s plan.Spec, chosen plan.Choice) {
			log.Debug("collective: plan chosen", "name", w.label(), "rank", rank, "call", s,
				"algorithm", chosen.Algorithm, "protocol", chosen.Protocol, "channels", chosen.Channels)
		}
	}
	if p := w.process; p != nil {
		c.Waiters, c.Cores = p.ranksOnThisHost(), p.coresHere()
		c.Parker = p.parker
		c.Silent = p.silent
		if p.remote != nil {
			c.Shared, c.Heavy = true, !w.config.threaded(c.Waiters, c.Cores)
			c.Publish = func(rank int, ask bool) { p.publish(w, rank, ask) }
		}
	}
	if w.loop != nil {
		c.Heavy = !w.config.threaded(w.size, w.config.cores)
	}
	return &Comm{state: &state{rank: rank, size: w.size, world: w, engine: exec.New(c)}}
}

// local numbers the communicators all of whose ranks live in this process.
var local atomic.Uint64

// label is w's name in profiles, the same for its ranks here.
func (w *world) label() string {
	if w.process != nil {
		return w.process.name
	}
	return fmt.Sprintf("local-%d", w.number)
}

// planWorld is what this world's plans depend on.
func (w *world) planWorld(rank int) plan.World {
	return w.config.world(rank, w.size, w.transport.OrderedStores(), sightOf(w.transport))
}

// abort ends w and what was split off it.
func (w *world) abort(cause error) {
	w.ledger.Fail(cause)
	w.mu.Lock()
	defer w.mu.Unlock()
	for child := range w.children {
		child.abort(cause)
	}
}

// leave is the end of the membership of some ranks of this process. The last ones
// take the world's share of the process's memory with them, and with it the
// membership of ranks that have not come to the communicators made out of w: they
// can't any more.
func (w *world) leave(ranks int) {
	w.mu.Lock()
	w.open -= ranks
	last := w.open == 0
	absent := w.forming
	if w.process == nil {
		for _, f := range absent {
			f.closeAbsent(w.ledger)
		}
	}
	if last {
		w.forming = nil
	}
	w.mu.Unlock()
	if !last {
		return
	}
	for _, f := range absent {
		<-f.made
		if f.err == nil {
			f.world.leave(f.missing)
		}
	}
	if w.parent != nil {
		w.parent.mu.Lock()
		delete(w.parent.children, w)
		w.parent.mu.Unlock()
	}
	if w.process != nil {
		w.process.close(w)
	}
	if w.loop != nil {
		w.loop.close(w.ledger.Failed())
	}
}
