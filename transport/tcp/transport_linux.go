package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gollective/gollective/internal/hostmem"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// Transport connects the ranks of one communicator. Each link is a connection of its
// own, dialled by the producer's process when one of its ranks first asks: TCP's
// window is the credit between the two.
type Transport struct {
	config  Config
	lookout lookout
	ctx     context.Context // ends with the Transport; dials hang on it
	cancel  context.CancelFunc
	dials   sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	ends      map[endKey]*transport.Conn
	senders   map[transport.Link]*sender
	receivers map[transport.Link]*receiver
	stations  map[stationKey]*station
	proxies   map[int]*proxy             // by rank
	arrived   map[transport.Link]*bundle // before their consumers have asked
	memory    [][]byte
}

type endKey struct {
	link transport.Link
	end  transport.End
}

// unlocked has that said once.
var unlocked sync.Once

type stationKey struct{ rank, channel int }

var (
	_ transport.Carrier    = (*Transport)(nil)
	_ transport.Accountant = (*Transport)(nil)
)

// New returns the transport of a communicator. Peers may connect from now on.
func New(c Config) (*Transport, error) {
	t := &Transport{
		config:    c,
		ends:      make(map[endKey]*transport.Conn),
		senders:   make(map[transport.Link]*sender),
		receivers: make(map[transport.Link]*receiver),
		stations:  make(map[stationKey]*station),
		proxies:   make(map[int]*proxy),
		arrived:   make(map[transport.Link]*bundle),
	}
	if t.config.ConnectTimeout == 0 {
		t.config.ConnectTimeout = 30 * time.Second
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	if err := c.Port.Serve(c.Name, t.arrive); err != nil {
		t.cancel()
		return nil, err
	}
	return t, nil
}

// Name implements transport.Transport.
func (*Transport) Name() string { return "tcp" }

// OrderedStores implements transport.Transport: lines are read when all of their slot
// has come.
func (*Transport) OrderedStores() bool { return true }

// Carries implements transport.Carrier.
func (*Transport) Carries() bool { return true }

// Connect implements transport.Transport. It does not wait for the other process:
// the FIFO is there, and its connection follows.
func (t *Transport) Connect(l transport.Link, end transport.End) (*transport.Conn, error) {
	c, err := t.connect(l, end)
	if err != nil {
		return nil, fmt.Errorf("tcp: rank %d to rank %d, channel %d: %w", l.From, l.To, l.Channel, err)
	}
	return c, nil
}

func (t *Transport) connect(l transport.Link, end transport.End) (*transport.Conn, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, net.ErrClosed
	}
	key := endKey{l, end}
	if c, ok := t.ends[key]; ok {
		return c, nil
	}
	rank := l.From
	if end == transport.Consumer {
		rank = l.To
	}
	s, err := t.station(stationKey{rank, l.Channel})
	if err != nil {
		return nil, err
	}
	memory, err := hostmem.Allocate(transport.Slots * l.Slot)
	if err != nil {
		return nil, err
	}
	t.memory = append(t.memory, memory)
	if hostmem.Unlocked() {
		unlocked.Do(func() {
			t.config.Logger.Warn("tcp: buffers can't be locked in memory: the limit (ulimit -l) is too small; page faults may slow transfers down")
		})
	}
	haul := new(transport.Haul)
	if !t.config.Thread {
		haul.Service = inline{s}
	}
	c := transport.NewHauledConn(memory, haul)
	t.ends[key] = c
	if end == transport.Producer {
		t.addSender(s, &sender{transport: t, link: l, haul: haul, out: transport.NewOutbound(c)})
	} else {
		t.addReceiver(s, &receiver{link: l, haul: haul, in: transport.NewInbound(c)})
	}
	return c, nil
}

// station returns the station of key, made if need be. The caller holds t.mu.
func (t *Transport) station(key stationKey) (*station, error) {
	if s, ok := t.stations[key]; ok {
		return s, nil
	}
	s := &station{transport: t, ahead: t.config.Thread}
	if t.config.Account && !t.config.Thread {
		s.meter = new(spin.Meter)
	}
	if t.config.Thread {
		p, ok := t.proxies[key.rank]
		if !ok {
			var err error
			if p, err = newProxy(t, key.rank); err != nil {
				return nil, err
			}
			t.proxies[key.rank] = p
		}
		p.add(s)
	}
	t.stations[key] = s
	return s, nil
}

// addSender gives s one more link, and has it dialled. The caller holds t.mu.
func (t *Transport) addSender(s *station, x *sender) {
	t.senders[x.link] = x
	s.add(x, nil)
	t.dials.Go(func() {
		ctx, cancel := context.WithTimeout(t.ctx, t.config.ConnectTimeout)
		defer cancel()
		b, err := t.config.Port.Dial(ctx, t.config.Addresses(x.link.To), Greeting{Communicator: t.config.Name, Link: x.link})
		s.mu.Lock()
		x.bundle = b
		if err != nil {
			x.bundle = nil
			x.fail(err)
			if r := x.twin; r != nil && r.turned && r.failure == nil {
				r.failure = err
			}
		}
		s.mu.Unlock()
		t.news(s, x.link.From)
	})
}

// addReceiver gives s one more link. The caller holds t.mu.
func (t *Transport) addReceiver(s *station, r *receiver) {
	t.receivers[r.link] = r
	r.bundle = t.arrived[r.link]
	delete(t.arrived, r.link)
	s.add(nil, r)
}

// arrive takes over a connection that another process has made.
func (t *Transport) arrive(g Greeting, b *bundle) {
	l := g.Link
	t.mu.Lock()
	_, waits := t.arrived[l]
	r := t.receivers[l]
	if t.closed || waits || !t.plausible(l) {
		t.mu.Unlock()
		_ = b.close()
		return
	}
	if r == nil {
		t.arrived[l] = b
		t.mu.Unlock()
		return
	}
	s := t.stations[stationKey{l.To, l.Channel}]
	t.mu.Unlock()
	s.mu.Lock()
	second := r.bundle != nil
	if !second {
		r.bundle = b
	}
	s.mu.Unlock()
	if second {
		_ = b.close()
		return
	}
	t.news(s, l.To)
}

// mostSlot and mostChannel bound what peers may ask for.
const (
	mostSlot    = 1 << 30
	mostChannel = 1 << 10
)

// plausible reports whether a rank of this process may ever ask for l.
func (t *Transport) plausible(l transport.Link) bool {
	return l.Check() == nil && l.Slot <= mostSlot && l.Channel >= 0 && l.Channel < mostChannel &&
		l.From >= 0 && l.From < t.config.Size && l.To >= 0 && l.To < t.config.Size && l.From != l.To && t.config.Here(l.To)
}

// news wakes whoever waits for the links of a rank's station.
func (t *Transport) news(s *station, rank int) {
	t.mu.Lock()
	p := t.proxies[rank]
	t.mu.Unlock()
	if p != nil {
		p.parker.Wake()
	}
	s.wake()
}

// lost has it told, a little later, that what was posted on a link can't be sent: the
// peer's own word, that it has closed or died, says more.
func (t *Transport) lost(l transport.Link, cause error) {
	if t.config.Lost == nil || t.ctx.Err() != nil {
		return
	}
	t.dials.Go(func() {
		timer := time.NewTimer(hearsay)
		defer timer.Stop()
		select {
		case <-t.ctx.Done():
		case <-timer.C:
			t.config.Lost(l.From, l.To, cause)
		}
	})
}

// hearsay is how long that word may take.
const hearsay = time.Second

// of lists the stations of a rank.
func (t *Transport) of(rank int) []*station {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*station
	for key, s := range t.stations {
		if key.rank == rank {
			all = append(all, s)
		}
	}
	return all
}

// Broken implements transport.Carrier.
func (t *Transport) Broken(rank, peer int, left bool) error {
	for _, s := range t.of(rank) {
		if err := s.broken(peer, left); err != nil {
			return err
		}
	}
	return nil
}

// Abandon implements transport.Carrier.
func (t *Transport) Abandon(rank int) {
	for _, s := range t.of(rank) {
		s.abandon()
	}
}

// Accounts implements transport.Accountant.
func (t *Transport) Accounts(rank int) (proxy, helper spin.Counters) {
	for _, s := range t.of(rank) {
		p, h := s.accounts()
		proxy.Add(p)
		helper.Add(h)
	}
	t.mu.Lock()
	thread := t.proxies[rank]
	t.mu.Unlock()
	if thread != nil {
		proxy.Add(thread.waiter.Counters())
	}
	return proxy, helper
}

// Leave implements transport.Carrier.
func (t *Transport) Leave(rank int, failed <-chan struct{}) {
	ctx, cancel := context.WithTimeout(t.ctx, t.config.ConnectTimeout)
	defer cancel()
	all := t.of(rank)
	t.drain(ctx, failed, all)
	for _, s := range all {
		s.leave()
	}
}

// Drain waits until everything that blocks have left behind has been handed to the
// system, can't be any more, or ctx has ended.
func (t *Transport) Drain(ctx context.Context) {
	t.mu.Lock()
	var all []*station
	for _, s := range t.stations {
		all = append(all, s)
	}
	t.mu.Unlock()
	t.drain(ctx, nil, all)
}

func (t *Transport) drain(ctx context.Context, failed <-chan struct{}, all []*station) {
	if !t.config.Thread {
		return // nothing is left behind
	}
	for pause := 50 * time.Microsecond; slices.ContainsFunc(all, (*station).pending); pause = min(2*pause, 10*time.Millisecond) {
		select {
		case <-ctx.Done():
			return
		case <-failed:
			return
		case <-time.After(pause):
		}
	}
}

// Close ends all connections, after what was sent, and gives back the memory. No
// block may use it any more.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	t.mu.Unlock()
	t.config.Port.Unserve(t.config.Name) // no arrive after this
	t.cancel()
	for _, p := range t.proxies {
		p.stop()
	}
	t.dials.Wait() // nobody begins another
	t.lookout.close()
	var errs []error
	for _, b := range t.bundles() {
		errs = append(errs, b.close())
	}
	for _, memory := range t.memory {
		hostmem.Free(memory)
	}
	return errors.Join(errs...)
}

func (t *Transport) bundles() []*bundle {
	var all []*bundle
	for _, x := range t.senders {
		if x.bundle != nil {
			all = append(all, x.bundle)
		}
	}
	for _, r := range t.receivers {
		if r.bundle != nil {
			all = append(all, r.bundle)
		}
	}
	for _, b := range t.arrived {
		all = append(all, b)
	}
	return all
}
