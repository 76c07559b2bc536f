package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gollective/gollective/internal/address"
	"github.com/gollective/gollective/internal/handshake"
)

// Port is where a process is connected to, and from where it connects to others: one
// for all its communicators. All methods may be called by any goroutine.
type Port struct {
	c          PortConfig
	terms      handshake.Terms
	gate       *handshake.Gate
	watch      *watch
	addresses  []string
	congestion congestion     // the system's choice, for connections to other hosts
	carrying   sync.WaitGroup // tunnels
	dialling   chan struct{}  // holds a token for each attempt under way

	mu      sync.Mutex
	closed  bool
	serving map[communicatorID]*service
	// partial are the connections some of whose sockets have not come, ready those
	// whose communicator is not served yet. Each waits for JoinTimeout at most,
	// and all of them have at most maxWaiting sockets.
	partial map[[16]byte]*arrival
	// unchosen are proven connections of which their dialler may keep another.
	unchosen map[net.Conn]struct{}
	ready    map[communicatorID][]*arrival
	waiting  int // sockets
	tunnels  map[*tunnel]struct{}
}

const (
	defaultPeerTimeout = 30 * time.Second
	defaultJoinTimeout = 60 * time.Second
	maxWaiting         = 4096
	maxAddresses       = 8

	// mostDialling is how many sockets a process connects at once. A gate closes the
	// oldest of handshake.MaxStrangers that it has not come to the end with, and
	// cannot tell then whether the other side has: ranks of one process that
	// connect to each other all at once must not be as many.
	mostDialling = handshake.MaxStrangers / 4
)

// service is a communicator that is served.
type service struct {
	name   string
	arrive func(Greeting, *bundle)
	calls  sync.WaitGroup
}

// arrival is a connection that has been made from elsewhere.
type arrival struct {
	hello   hello    // of its first socket
	streams []stream // by place
	missing int
	expires *time.Timer
}

// Open listens at this host's addresses that others can reach.
func Open(c PortConfig) (*Port, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	t, err := terms(c.Secret, c.TLS)
	if err != nil {
		return nil, err
	}
	p := &Port{
		c: c, terms: t,
		serving: make(map[communicatorID]*service),
		partial: make(map[[16]byte]*arrival), unchosen: make(map[net.Conn]struct{}),
		ready:   make(map[communicatorID][]*arrival),
		tunnels: make(map[*tunnel]struct{}), dialling: make(chan struct{}, mostDialling),
	}
	l, addresses, err := address.Listen(c.place(), "data", c.Logger)
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	p.addresses = addresses
	p.congestion = openLocally(l)
	p.watch = newWatch(c.PeerTimeout)
	p.gate = handshake.NewGate(handshake.GateConfig{Name: "tcp", Log: c.Logger, Terms: t, Enter: p.enter})
	p.gate.Serve(l)
	return p, nil
}

// check fills in what is not set.
func (c *PortConfig) check() error {
	if c.PeerTimeout <= 0 {
		c.PeerTimeout = defaultPeerTimeout
	}
	if c.JoinTimeout <= 0 {
		c.JoinTimeout = defaultJoinTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Threads <= 0 || c.SocketsPerThread <= 0 {
		c.Threads, c.SocketsPerThread = 0, 0
	}
	switch n := c.Threads * c.SocketsPerThread; {
	case len(c.Secret) == 0:
		return fmt.Errorf("tcp: %w: no secret", address.ErrConfig)
	case c.Threads > mostThreads:
		return fmt.Errorf("tcp: %w: %d threads for a connection, at most %d", address.ErrConfig, c.Threads, mostThreads)
	case n > mostSockets:
		return fmt.Errorf("tcp: %w: %d sockets for a connection, at most %d", address.ErrConfig, n, mostSockets)
	case c.Buffer < 0 || c.Buffer > mostNumber || c.Rate < 0:
		return fmt.Errorf("tcp: %w: buffer of %d bytes, rate of %d bytes per second", address.ErrConfig, c.Buffer, c.Rate)
	}
	if err := c.place().Check(); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	return nil
}

func (c *PortConfig) place() address.Place {
	return address.Place{
		Interfaces: c.Interfaces, Family: c.Family, Ports: c.Ports, Most: maxAddresses,
		Routed: c.Routed, RootHere: !c.Routed.IsValid() || c.Routed.IsLoopback(), Loopback: c.Loopback,
		KeepAlive: net.KeepAliveConfig{Enable: false}, // setOptions does it
	}
}

// Addresses is where others reach this process: host:port, the best first.
func (p *Port) Addresses() []string { return slices.Clone(p.addresses) }

// Serve hands arrive the connections of a communicator: those that have come
// already before Serve returns, the others from goroutines of the port, perhaps
// several at a time. arrive owns what it is given, and must not call Serve, Unserve or
// Close.
func (p *Port) Serve(communicator string, arrive func(Greeting, *bundle)) error {
	id := identify(communicator)
	s := &service{name: communicator, arrive: arrive}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return fmt.Errorf("tcp: serve %s: %w", communicator, net.ErrClosed)
	}
	if _, already := p.serving[id]; already {
		p.mu.Unlock()
		return fmt.Errorf("%w: %s", ErrServed, communicator)
	}
	p.serving[id] = s
	early := p.ready[id]
	delete(p.ready, id)
	for _, a := range early {
		p.forget(a)
	}
	s.calls.Add(1)
	p.mu.Unlock()
	defer s.calls.Done()
	for _, a := range early {
		s.deliver(p, a)
	}
	return nil
}

// Unserve ends Serve: arrive is not called any more when it returns. Connections
// that come later wait for another Serve, as at the beginning.
func (p *Port) Unserve(communicator string) {
	id := identify(communicator)
	p.mu.Lock()
	s := p.serving[id]
	delete(p.serving, id)
	p.mu.Unlock()
	if s != nil {
		s.calls.Wait()
	}
}

// deliver hands over a connection; a call of s.calls is under way.
func (s *service) deliver(p *Port, a *arrival) {
	g := Greeting{Communicator: s.name, Link: a.hello.link}
	b, err := newBundle(a.streams, int(a.hello.threads), g, g.Link.To)
	if err != nil {
		p.c.Logger.Warn("tcp: connection dropped", "communicator", s.name, "link", a.hello.link, "err", err)
		a.close()
		return
	}
	s.arrive(g, b)
}

func (a *arrival) close() {
	for _, s := range a.streams {
		if s != nil {
			_ = s.close()
		}
	}
}

// enter takes a proven socket.
func (p *Port) enter(conn net.Conn, body []byte) {
	if !p.isChosen(conn) {
		conn.Close()
		return
	}
	h, _ := decodeHello(body) // the gate has seen to that
	s, err := p.take(conn)
	if err != nil {
		p.c.Logger.Warn("tcp: connection dropped", "from", handshake.AddrText(conn), "err", err)
		return
	}
	p.mu.Lock()
	a, err := p.join(&h, s)
	var to *service
	if err == nil && a.missing == 0 {
		to = p.assign(a)
	}
	p.mu.Unlock()
	if err != nil {
		_ = s.close()
		p.c.Logger.Warn("tcp: connection dropped", "from", handshake.AddrText(conn), "err", err)
		return
	}
	if to != nil {
		to.deliver(p, a)
		to.calls.Done()
	}
}

// chosen is the byte that a dialler sends over the one of its attempts that it keeps:
// several may be proven, over several addresses or one after the other.
const chosen = 0x63

// isChosen waits for that byte. The far end belongs to the job: it may take its time.
func (p *Port) isChosen(conn net.Conn) bool {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return false
	}
	p.unchosen[conn] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.unchosen, conn)
		p.mu.Unlock()
	}()
	conn.SetDeadline(time.Now().Add(p.c.JoinTimeout))
	var word [1]byte
	_, err := io.ReadFull(conn, word[:])
	return err == nil && word[0] == chosen
}

// join puts a socket among those that belong to it. The caller holds p.mu.
func (p *Port) join(h *hello, s stream) (*arrival, error) {
	switch {
	case p.closed:
		return nil, net.ErrClosed
	case p.waiting >= maxWaiting:
		return nil, fmt.Errorf("%d sockets wait for their communicators already", p.waiting)
	}
	a := p.partial[h.bundle]
	if a == nil {
		a = &arrival{hello: *h, streams: make([]stream, int(h.sockets)+1), missing: int(h.sockets) + 1}
		p.partial[h.bundle] = a
		a.expires = time.AfterFunc(p.c.JoinTimeout, func() { p.expire(a) })
	}
	first := a.hello
	first.place = h.place
	if first != *h || a.streams[h.place] != nil {
		return nil, errors.New("it claims to belong to a connection that it does not fit")
	}
	a.streams[h.place] = s
	a.missing--
	p.waiting++
	return a, nil
}

// assign finds whose a complete connection is; nil says that it waits. The caller
// holds p.mu and, if not nil, ends a call of the service.
func (p *Port) assign(a *arrival) *service {
	delete(p.partial, a.hello.bundle)
	s := p.serving[a.hello.communicator]
	if s == nil {
		p.ready[a.hello.communicator] = append(p.ready[a.hello.communicator], a)
		return nil
	}
	p.forget(a)
	s.calls.Add(1)
	return s
}

// forget ends a's waiting. The caller holds p.mu.
func (p *Port) forget(a *arrival) {
	a.expires.Stop()
	p.waiting -= len(a.streams) - a.missing
}

// expire closes a connection that has waited in vain.
func (p *Port) expire(a *arrival) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := a.hello.communicator
	what := "nobody serves its communicator"
	if p.partial[a.hello.bundle] == a {
		delete(p.partial, a.hello.bundle)
		what = fmt.Sprintf("%d of its sockets have not come", a.missing)
	} else {
		at := slices.Index(p.ready[id], a)
		if at < 0 {
			return // it has just been served
		}
		p.ready[id] = slices.Delete(p.ready[id], at, at+1)
		if len(p.ready[id]) == 0 {
			delete(p.ready, id)
		}
	}
	p.forget(a)
	a.close()
	p.c.Logger.Warn("tcp: connection dropped", "link", a.hello.link, "after", p.c.JoinTimeout, "why", what)
}

// Dial connects to the first of addresses that proves to belong to the job. It tries
// again until ctx ends as long as nobody listens there, or there is no way there;
// not when what listens is a stranger (handshake.ErrStranger), or has other ideas about
// TLS (handshake.ErrTLS).
func (p *Port) Dial(ctx context.Context, addresses []string, g Greeting) (*bundle, error) {
	h := hello{communicator: identify(g.Communicator), link: g.Link,
		sockets: uint8(p.c.Threads * p.c.SocketsPerThread), threads: uint8(p.c.Threads)}
	rand.Read(h.bundle[:])
	if _, ok := decodeHello(h.encode()); !ok {
		return nil, fmt.Errorf("tcp: %w: link %+v", address.ErrConfig, g.Link)
	}
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("tcp: connect to %v: %w", addresses, net.ErrClosed)
	}
	streams := make([]stream, int(h.sockets)+1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	var once sync.Once
	var failed error
	for place := range streams {
		mine := h
		mine.place = uint8(place)
		all.Go(func() {
			s, err := p.dialStream(ctx, addresses, &mine)
			if err != nil {
				once.Do(func() { failed = err })
				cancel()
				return
			}
			streams[place] = s
		})
	}
	all.Wait()
	var b *bundle
	if failed == nil {
		b, failed = newBundle(streams, int(h.threads), g, g.Link.From)
	}
	if failed != nil {
		(&arrival{streams: streams}).close()
		return nil, fmt.Errorf("tcp: connect to %v: %w", addresses, failed)
	}
	return b, nil
}

const (
	dialTime   = 5 * time.Second // for one attempt
	firstPause = 10 * time.Millisecond
	mostPause  = 500 * time.Millisecond
)

// dialStream makes one socket of a connection.
func (p *Port) dialStream(ctx context.Context, addresses []string, h *hello) (stream, error) {
	if len(addresses) == 0 {
		return nil, fmt.Errorf("%w: no address", address.ErrConfig)
	}
	body := h.encode()
	var last error // of an attempt that had its time
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		conn, err := handshake.Race(ctx, addresses, func(ctx context.Context, addr string) (net.Conn, error) {
			return p.dialOnce(ctx, addr, body)
		})
		if err == nil {
			if _, err = conn.Write([]byte{chosen}); err == nil {
				return p.take(conn)
			}
			conn.Close()
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if ctx.Err() == nil && !worthRetrying(err) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (the last attempt: %w)", ctx.Err(), last)
		case <-time.After(pause):
		}
	}
}

// worthRetrying: the other process may listen, or be reached, later. A connection
// that ends during the handshake may have met a process that ends, or one that was
// overrun by strangers.
func worthRetrying(err error) bool {
	var timeout net.Error
	return handshake.IsRefused(err) || handshake.IsUnreachable(err) ||
		!errors.Is(err, handshake.ErrTLS) && (handshake.IsReset(err) || errors.As(err, &timeout) && timeout.Timeout())
}

func (p *Port) dialOnce(ctx context.Context, addr string, body []byte) (net.Conn, error) {
	select {
	case p.dialling <- struct{}{}:
		defer func() { <-p.dialling }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, Control: p.dialLocally}
	conn, err := d.DialContext(ctx, address.Network(p.c.Family), addr)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	_, err = p.terms.Greet(conn, body)
	proven := conn
	if err == nil {
		proven, err = p.terms.Secure(conn, true)
	}
	if !stop() && err == nil {
		err = ctx.Err() // closed, or about to be
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return proven, nil
}

// take turns a proven connection into a stream. The connection is gone in any case.
func (p *Port) take(conn net.Conn) (stream, error) {
	s, err := p.convert(conn)
	if err != nil {
		conn.Close()
	}
	return s, err
}

func (p *Port) convert(conn net.Conn) (stream, error) {
	below, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T has no descriptor", conn)
	}
	raw, err := below.SyscallConn()
	if err != nil {
		return nil, err
	}
	tunnels := p.c.TLS != nil
	fd := -1
	var failed error
	err = raw.Control(func(theirs uintptr) {
		fd = int(theirs)
		if !isLocal(fd) {
			p.congestion.restore(fd)
		}
		if failed = p.c.setOptions(fd); failed == nil && !tunnels {
			fd, failed = unix.FcntlInt(theirs, unix.F_DUPFD_CLOEXEC, 0)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	if tunnels {
		conn.SetDeadline(time.Time{})
		t, err := newTunnel(conn.(tlsConn), fd, p.watch, p.c.Faults)
		if err != nil {
			return nil, err
		}
		p.carry(t)
		return t, nil
	}
	conn.Close()
	return newGuarded(newSocket(fd, p.c.Faults.system()), p.watch), nil
}

// carry runs a tunnel.
func (p *Port) carry(t *tunnel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tunnels[t] = struct{}{}
	if p.closed {
		t.expire()
	}
	p.carrying.Go(func() {
		t.run(p.watch)
		p.mu.Lock()
		delete(p.tunnels, t)
		p.mu.Unlock()
	})
}

// Close ends the listener, and the connections that wait for their communicators.
// Those that have been delivered, or dialled, are their owners', who close them
// first: nothing looks after them any more, and encrypted ones end. What was written
// to those is sent before, unless that takes long.
func (p *Port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	for _, a := range p.partial {
		p.forget(a)
		a.close()
	}
	for _, as := range p.ready {
		for _, a := range as {
			p.forget(a)
			a.close()
		}
	}
	clear(p.partial)
	clear(p.ready)
	for conn := range p.unchosen {
		conn.Close()
	}
	for t := range p.tunnels {
		t.expire()
	}
	p.mu.Unlock()
	p.gate.Close()
	p.carrying.Wait()
	p.watch.close()
	return nil
}
