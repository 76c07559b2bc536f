package tcp

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// watch ends the connections whose data the other host has not answered for too
// long. The kernel would go on for a quarter of an hour, and can't be told to be
// quicker with hosts that are silent without being told the same about processes
// that are slow (see setOptions): a slow process's host still answers, with a window
// of zero.
type watch struct {
	limit time.Duration
	stop  chan struct{}
	done  sync.WaitGroup

	mu      sync.Mutex
	watched map[*wire]struct{}
}

// wire is a TCP socket that is looked after, as long as it is in the watch.
type wire struct {
	fd int
	// since is when data was first seen to be under way with no answer since; the
	// watch's own.
	since time.Time
	// lost is why the connection was ended.
	lost atomic.Pointer[error]
}

func newWatch(limit time.Duration) *watch {
	w := &watch{limit: limit, stop: make(chan struct{}), watched: make(map[*wire]struct{})}
	w.done.Go(w.run)
	return w
}

func (w *watch) run() {
	tick := time.NewTicker(min(max(w.limit/8, 50*time.Millisecond), time.Second))
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case now := <-tick.C:
			w.look(now)
		}
	}
}

func (w *watch) look(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for x := range w.watched {
		if silent := x.silence(now); silent > w.limit {
			err := fmt.Errorf("tcp: no answer for %v: %w", silent.Round(100*time.Millisecond), unix.ETIMEDOUT)
			x.lost.Store(&err)
			// Whoever uses the socket is woken, and told.
			_ = unix.Shutdown(x.fd, unix.SHUT_RDWR)
			delete(w.watched, x)
		}
	}
}

// silence is how long data, or the question whether the window has opened, has been
// under way without an answer of any kind. One such question may go unanswered by a
// living host, which answers only so many a second.
func (x *wire) silence(now time.Time) time.Duration {
	info, err := unix.GetsockoptTCPInfo(x.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.Unacked == 0 && info.Probes < 2 {
		x.since = time.Time{}
		return 0
	}
	answered := now.Add(-time.Duration(info.Last_ack_recv) * time.Millisecond)
	if x.since.IsZero() {
		x.since = now
	} else if answered.After(x.since) {
		x.since = answered
	}
	return now.Sub(x.since)
}

func (w *watch) add(x *wire) {
	w.mu.Lock()
	w.watched[x] = struct{}{}
	w.mu.Unlock()
}

// remove must come before the descriptor is closed.
func (w *watch) remove(x *wire) {
	w.mu.Lock()
	delete(w.watched, x)
	w.mu.Unlock()
}

func (w *watch) close() {
	close(w.stop)
	w.done.Wait()
}

// explain is err, or why the watch has ended the connection.
func (x *wire) explain(err error) error {
	if lost := x.lost.Load(); lost != nil {
		return *lost
	}
	return err
}

// guarded is a socket in a watch.
type guarded struct {
	*socket
	wire  wire
	watch *watch
}

func newGuarded(s *socket, w *watch) *guarded {
	g := &guarded{socket: s, watch: w}
	g.wire.fd = s.fd
	w.add(&g.wire)
	return g
}

func (g *guarded) write(buffers [][]byte) (int, error) {
	n, err := g.socket.write(buffers)
	if err != nil {
		err = g.wire.explain(err)
	}
	return n, err
}

func (g *guarded) read(buffers [][]byte) (int, error) {
	n, err := g.socket.read(buffers)
	if err != nil {
		err = g.wire.explain(err)
	}
	return n, err
}

func (g *guarded) close() error {
	g.watch.remove(&g.wire)
	return g.socket.close()
}
