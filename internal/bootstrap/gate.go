package bootstrap

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

// A gate accepts connections and lets through those that prove to belong to the
// job. Everything else that can reach a port — scanners, browsers, programs that
// connect and say nothing or one byte a second — gets strangerTime, from the
// moment it is accepted, and then the connection is closed. Each is handled on
// its own, so none makes another wait; when there are more than maxStrangers at
// once the oldest of them is closed. Who knows the job's number counts apart, so
// that a crowd of strangers doesn't push out members in the middle of a hello.
type gate struct {
	id    ID
	log   *slog.Logger
	judge func(hello) verdict // before the proof, so nothing may depend on it
	// enter gets a proven connection, with strangerTime's deadline still set, and
	// owns it.
	enter func(net.Conn, hello)

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
	strangerTime = 3 * time.Second
	maxStrangers = 256
	maxGreeted   = 256
)

func newGate(id ID, log *slog.Logger, judge func(hello) verdict, enter func(net.Conn, hello)) *gate {
	return &gate{id: id, log: log, judge: judge, enter: enter, strangers: list.New(), greeted: list.New()}
}

// serve takes over l and accepts from it until close.
func (g *gate) serve(l net.Listener) {
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

func (g *gate) accept(l net.Listener) {
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
		g.admit(conn)
	}
}

func (g *gate) admit(conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		conn.Close()
		return
	}
	conn.SetDeadline(time.Now().Add(strangerTime))
	at := crowd(g.strangers, conn, maxStrangers)
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

func (g *gate) examine(conn net.Conn, at *list.Element) {
	defer g.wg.Done()
	h, err := g.prove(conn, at)
	if err != nil {
		conn.Close()
		g.turnAway(conn, err)
		return
	}
	g.enter(conn, h)
}

var errTurned = errors.New("refused")

func (g *gate) prove(conn net.Conn, at *list.Element) (hello, error) {
	remove := func(l *list.List) {
		g.mu.Lock()
		l.Remove(at) // does nothing when crowd has taken it out
		g.mu.Unlock()
	}
	if err := prepare(conn); err != nil {
		remove(g.strangers)
		return hello{}, err
	}
	h, raw, err := receiveHello(conn, &g.id)
	remove(g.strangers)
	if err != nil {
		return h, err
	}
	g.mu.Lock()
	at = crowd(g.greeted, conn, maxGreeted)
	g.mu.Unlock()
	v := g.judge(h)
	err = answerHello(conn, &g.id, raw, v)
	remove(g.greeted)
	if err == nil && v != welcome {
		err = fmt.Errorf("%w: this process %s", errTurned, v)
	}
	return h, err
}

func (g *gate) turnAway(conn net.Conn, err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it closed the connection")
	}
	why := fmt.Sprintf("%s: %v", addrText(conn), err)
	g.mu.Lock()
	closed := g.closed
	if !closed {
		g.turned++
		g.last = why
	}
	g.mu.Unlock()
	if !closed {
		g.log.Debug("bootstrap: connection turned away", "from", addrText(conn), "why", err)
	}
}

// crowdText is a remark about those turned away, for errors that a stranger may explain.
func (g *gate) crowdText() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.turned == 0 {
		return ""
	}
	return fmt.Sprintf("%d connections turned away, the last from %s", g.turned, g.last)
}

// close ends the listeners and everybody still being examined, and waits until
// no more calls of enter are under way.
func (g *gate) close() {
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

// race dials addrs until one of them proves to be the listener wanted: each when
// the one before has failed, or has taken raceStagger. start is called with each
// address; the first connection that it returns is kept. When all fail, the most
// telling error is returned.
func race(ctx context.Context, addrs []string, start func(context.Context, string) (net.Conn, error)) (net.Conn, error) {
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
	case errors.Is(err, ErrVersion):
		return 5
	case errors.Is(err, ErrStranger):
		return 4
	case isUnreachable(err):
		return 1
	case classify(err) == troubleRefused:
		return 2
	}
	return 3
}
