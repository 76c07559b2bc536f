package tcp

import (
	"context"
	"errors"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// proxy is the thread that serves all stations of one rank, where blocks don't do
// it themselves. It is awake while an operation is in flight.
//
// NCCL: ncclProxyProgress in src/proxy.cc.
type proxy struct {
	transport *Transport
	poller    *poller
	parker    *spin.Parker
	waiter    *spin.Waiter
	rank      int
	stopping  atomic.Bool
	running   sync.WaitGroup

	mu       sync.Mutex
	stations []*station // only grows
}

var errStopped = errors.New("the communicator is closed")

// newProxy starts the thread.
func newProxy(t *Transport, rank int) (*proxy, error) {
	poller, err := newPoller()
	if err != nil {
		return nil, err
	}
	p := &proxy{transport: t, poller: poller, rank: rank}
	p.parker = spin.NewParkerOn((*bunk)(p))
	p.waiter = spin.New(spin.Options{
		Policy: t.config.Policy, Waiters: t.config.Waiters, Cores: t.config.Cores,
		Parker: p.parker, Shared: true, Heavy: true,
		Account: t.config.Account, Locked: true, Works: true,
	})
	p.waiter.Bind(context.Background(), p, 0)
	p.running.Go(p.run)
	return p, nil
}

// bunk is where the thread sleeps.
type bunk proxy

// Wake implements spin.Sleeper.
func (b *bunk) Wake() { b.poller.wake() }

// Sleep implements spin.Sleeper. There is no done: what ends the thread wakes it.
func (b *bunk) Sleep(_ <-chan struct{}, atMost time.Duration) bool {
	ready, err := b.poller.wait(atMost)
	return err == nil && len(ready) > 0
}

func (p *proxy) run() {
	runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
	if t := p.transport; t.config.Labels {
		pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), transport.Labels(t.config.Name, p.rank, transport.Proxy, -1)))
	}
	if cpus := p.transport.config.CPUs; len(cpus) > 0 {
		defer p.keepTo(cpus)()
	}
	p.waiter.Enter()
	defer p.waiter.Leave()
	for !p.stopping.Load() {
		if p.busy() {
			_ = p.waiter.Until((*work)(p)) // an error is errStopped
		} else {
			_ = p.waiter.Rest((*call)(p))
		}
	}
}

// keepTo bounds the calling thread to the given processors, and returns what ends
// that: the runtime can't end the process's first thread, if it is that.
func (p *proxy) keepTo(cpus []int) (release func()) {
	var before, set unix.CPUSet
	err := unix.SchedGetaffinity(0, &before)
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err == nil {
		err = unix.SchedSetaffinity(0, &set)
	}
	if err != nil {
		p.transport.config.Logger.Warn("tcp: the proxy's set of processors can't be used", "cpus", cpus, "cause", err)
		return func() {}
	}
	return func() { _ = unix.SchedSetaffinity(0, &before) }
}

func (p *proxy) all() []*station {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stations
}

// add gives the thread one more station.
func (p *proxy) add(s *station) {
	p.mu.Lock()
	p.stations = append(slices.Clone(p.stations), s)
	p.mu.Unlock()
	p.parker.Wake()
}

func (p *proxy) busy() bool { return slices.ContainsFunc(p.all(), (*station).busy) }

// progress goes round all stations once.
func (p *proxy) progress() (moved bool) {
	for _, s := range p.all() {
		moved = s.drive() || moved
	}
	return moved
}

// arm has the thread woken by everything that it could be needed for.
func (p *proxy) arm(at *spin.Parker) {
	for _, s := range p.all() {
		s.mu.Lock()
		for _, x := range s.senders {
			x.out.Arm(at)
			x.haul.ArmCalled(at)
		}
		for _, r := range s.receivers {
			r.in.Arm(at)
			r.haul.ArmCalled(at)
		}
		s.mu.Unlock()
		if at != nil {
			s.look(func(fd int, read, write bool) { _ = p.poller.interest(fd, read, write) })
		}
	}
}

// stop ends the thread.
func (p *proxy) stop() {
	p.stopping.Store(true)
	p.parker.Wake()
	p.running.Wait()
	_ = p.poller.close()
}

// work is the condition that something has moved, or that there is nothing left to
// be awake for.
type work proxy

func (w *work) Ready() bool {
	p := (*proxy)(w)
	return p.progress() || !p.busy()
}
func (w *work) Peer() int          { return -1 }
func (w *work) Arm(p *spin.Parker) { (*proxy)(w).arm(p) }
func (w *work) Disarm()            { (*proxy)(w).arm(nil) }

// call is the condition that a block has begun to use its links.
type call proxy

func (c *call) Ready() bool        { return (*proxy)(c).busy() }
func (c *call) Peer() int          { return -1 }
func (c *call) Arm(p *spin.Parker) { (*proxy)(c).arm(p) }
func (c *call) Disarm()            { (*proxy)(c).arm(nil) }

// Failed implements spin.Watch.
func (p *proxy) Failed() error {
	if p.stopping.Load() {
		return errStopped
	}
	return nil
}

// Inspect implements spin.Watch: blocks look after their own.
func (p *proxy) Inspect(spin.Condition) error { return nil }

// Expired implements spin.Watch: the thread has no deadline.
func (p *proxy) Expired(_ spin.Condition, cause error) error { return cause }
