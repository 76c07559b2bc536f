package tcp

import (
	"sync"
)

// lookout watches sockets for blocks that sleep and would drive their stations
// themselves. Its goroutine sleeps, in epoll, for as long as nothing happens; it is
// started by the first block that sleeps. Sockets are closed after it.
type lookout struct {
	mu       sync.Mutex
	poller   *poller
	stations map[int]*station // by descriptor
	closed   bool
	watching sync.WaitGroup
}

// watch has s woken, once, by the first thing that happens at its sockets.
func (l *lookout) watch(s *station) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || !l.start() {
		return // the block looks around by itself now and then
	}
	s.look(func(fd int, read, write bool) {
		if read || write {
			l.stations[fd] = s
		}
		_ = l.poller.interest(fd, read, write)
	})
}

// start opens the eyes. The caller holds l.mu.
func (l *lookout) start() bool {
	if l.poller != nil {
		return true
	}
	p, err := newPoller()
	if err != nil {
		return false
	}
	l.poller, l.stations = p, make(map[int]*station)
	l.watching.Go(l.run)
	return true
}

func (l *lookout) run() {
	for {
		ready, err := l.poller.wait(-1)
		if err != nil {
			return
		}
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return
		}
		for _, fd := range ready {
			// Nobody may be asleep any more: it is not looked at again unless
			// somebody asks.
			_ = l.poller.interest(fd, false, false)
			if s := l.stations[fd]; s != nil {
				s.wake()
			}
		}
		l.mu.Unlock()
	}
}

func (l *lookout) close() {
	l.mu.Lock()
	if l.closed || l.poller == nil {
		l.closed = true
		l.mu.Unlock()
		return
	}
	l.closed = true
	l.mu.Unlock()
	l.poller.wake()
	l.watching.Wait()
	_ = l.poller.close()
}
