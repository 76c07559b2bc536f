package handshake

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"
)

// A Gate accepts connections and lets through those that prove to belong to the
// job. Everything else that can reach a port — scanners, browsers, programs that
// connect and say nothing or one byte a second — gets StrangerTime, from the
// moment it is accepted, and then the connection is closed. Each is handled on
// its own, so none makes another wait; when there are more than MaxStrangers at
// once the oldest of them is closed. Who knows the job's number counts apart, so
// that a crowd of strangers doesn't push out members in the middle of a hello.
type Gate struct {
	c GateConfig

	mu        sync.Mutex
	closed    bool
	listeners []net.Listener
	strangers *list.List // of net.Conn, the oldest first: nothing valid read yet
	greeted   *list.List // of net.Conn: have named the job, proof to come
	turned    int        // connections turned away
	last      string     // the last of them, and why
	wg        sync.WaitGroup
}

const (
	// StrangerTime is how long a connection may take to prove itself.
	StrangerTime = 3 * time.Second
	// MaxStrangers is how many connections may be unknown at once.
	MaxStrangers = 256
	maxGreeted   = 256
)

// GateConfig says whom a Gate lets through.
type GateConfig struct {
	// Name begins the log's messages.
	Name  string
	Log   *slog.Logger
	Terms Terms
	// Prepare is given a new connection, and may refuse it; it may be nil.
	Prepare func(net.Conn) error
	// Judge gives its verdict on a body before the proof, so nothing may depend
	// on it; nil welcomes all.
	Judge func(body []byte) Verdict
	// Enter gets a proven connection, with StrangerTime's deadline still set, and
	// owns it. Close waits for it.
	Enter func(conn net.Conn, body []byte)
}

// NewGate returns a Gate without a listener.
func NewGate(c GateConfig) *Gate {
	return &Gate{c: c, strangers: list.New(), greeted: list.New()}
}

// Serve takes over l and accepts from it until Close.
func (g *Gate) Serve(l net.Listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		l.Close()
		return
	}
	g.listeners = append(g.listeners, l)
	g.wg.Add(1)
	go g.accept(l)
}

func (g *Gate) accept(l net.Listener) {
	defer g.wg.Done()
	pause := 5 * time.Millisecond
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Too many files, or a connection that was gone before it was taken:
			// neither ends the listener.
			time.Sleep(pause)
			pause = min(2*pause, 200*time.Millisecond)
			continue
		}
		pause = 5 * time.Millisecond
		g.Admit(conn)
	}
}

// Admit takes over a connection as if it had been accepted.
func (g *Gate) Admit(conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		conn.Close()
		return
	}
	conn.SetDeadline(time.Now().Add(StrangerTime))
	at := crowd(g.strangers, conn, MaxStrangers)
	g.wg.Add(1)
	go g.examine(conn, at)
}

// crowd adds conn to a list of at most limit, closing the oldest when it is full.
func crowd(l *list.List, conn net.Conn, limit int) *list.Element {
	if l.Len() >= limit {
		l.Remove(l.Front()).(net.Conn).Close()
	}
	return l.PushBack(conn)
}

func (g *Gate) examine(conn net.Conn, at *list.Element) {
	defer g.wg.Done()
	proven, body, err := g.prove(conn, at)
	if err != nil {
		conn.Close()
		g.turnAway(conn, err)
		return
	}
	g.c.Enter(proven, body)
}

var errTurned = errors.New("refused")

// prove returns the connection as it is to be used from then on, and the body of
// the hello.
func (g *Gate) prove(conn net.Conn, at *list.Element) (net.Conn, []byte, error) {
	remove := func(l *list.List) {
		g.mu.Lock()
		l.Remove(at) // does nothing when crowd has taken it out
		g.mu.Unlock()
	}
	if g.c.Prepare != nil {
		if err := g.c.Prepare(conn); err != nil {
			remove(g.strangers)
			return nil, nil, err
		}
	}
	t := g.c.Terms.Over(conn)
	body, raw, err := t.Receive(conn)
	remove(g.strangers)
	if err != nil {
		return nil, nil, err
	}
	g.mu.Lock()
	at = crowd(g.greeted, conn, maxGreeted)
	g.mu.Unlock()
	defer remove(g.greeted)
	v := Welcome
	if g.c.Judge != nil {
		v = g.c.Judge(body)
	}
	if err := t.Answer(conn, raw, v); err != nil {
		return nil, nil, err
	}
	if v != Welcome {
		return nil, nil, fmt.Errorf("%w: this process %s", errTurned, t.Text(v))
	}
	proven, err := t.Secure(conn, false)
	return proven, body, err
}

func (g *Gate) turnAway(conn net.Conn, err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it closed the connection")
	}
	why := fmt.Sprintf("%s: %v", AddrText(conn), err)
	g.mu.Lock()
	closed := g.closed
	if !closed {
		g.turned++
		g.last = why
	}
	g.mu.Unlock()
	if !closed {
		g.c.Log.Debug(g.c.Name+": connection turned away", "from", AddrText(conn), "why", err)
	}
}

// Crowd is how many connections have said nothing valid so far, and how many have
// been turned away.
func (g *Gate) Crowd() (strangers, turned int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.strangers.Len(), g.turned
}

// CrowdText is a remark about those turned away, for errors that a stranger may explain.
func (g *Gate) CrowdText() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.turned == 0 {
		return ""
	}
	return fmt.Sprintf("%d connections turned away, the last from %s", g.turned, g.last)
}

// Close ends the listeners and everybody still being examined, and waits until
// no more calls of Enter are under way.
func (g *Gate) Close() {
	g.mu.Lock()
	g.closed = true
	for _, l := range g.listeners {
		l.Close()
	}
	for _, l := range []*list.List{g.strangers, g.greeted} {
		for e := l.Front(); e != nil; e = e.Next() {
			e.Value.(net.Conn).Close()
		}
	}
	g.mu.Unlock()
	g.wg.Wait()
}

// AddrText is how messages name the far end of a connection.
func AddrText(conn net.Conn) string {
	a := conn.RemoteAddr()
	if a == nil {
		return "unknown"
	}
	if a.Network() == "unix" {
		if a.String() == "" || a.String() == "@" || a.String() == "\x00" {
			return "unix"
		}
		return "unix:" + a.String()
	}
	return a.String()
}

// Race dials addrs until one of them proves to be the listener wanted: each when
// the one before has failed, or has taken raceStagger. start is called with each
// address; the first connection that it returns is kept. When all fail, the most
// telling error is returned.
func Race(ctx context.Context, addrs []string, start func(context.Context, string) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	run := func(addr string) {
		conn, err := start(ctx, addr)
		results <- result{conn, err}
	}
	var won net.Conn
	var failed error
	running := 0
	for rest := addrs; won == nil && len(rest) > 0 || running > 0; {
		var stagger <-chan time.Time
		if won == nil && len(rest) > 0 {
			if running == 0 {
				go run(rest[0])
				rest, running = rest[1:], running+1
				continue
			}
			stagger = time.After(raceStagger)
		}
		select {
		case <-stagger:
			go run(rest[0])
			rest, running = rest[1:], running+1
		case r := <-results:
			running--
			switch {
			case r.err != nil:
				if failed == nil || telling(r.err) > telling(failed) {
					failed = r.err
				}
				if won == nil && len(rest) > 0 {
					go run(rest[0])
					rest, running = rest[1:], running+1
				}
			case won != nil:
				r.conn.Close()
			default:
				won = r.conn
				cancel()
			}
		}
	}
	if won != nil {
		return won, nil
	}
	return nil, failed
}

const raceStagger = 100 * time.Millisecond

// telling orders the failures of several addresses of one listener. An answer
// says more than none, that somebody may be there after all more than that one
// address refuses, and the least is said by an address that has no route.
func telling(err error) int {
	switch {
	case errors.Is(err, context.Canceled):
		return 0
	case errors.Is(err, ErrVersion), errors.Is(err, ErrTLS):
		return 5
	case errors.Is(err, ErrStranger):
		return 4
	case IsUnreachable(err):
		return 1
	case IsRefused(err):
		return 2
	}
	return 3
}
