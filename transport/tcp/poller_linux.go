package tcp

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// poller is where a thread sleeps until one of its connections has something for
// it, or somebody wakes it. One goroutine at a time calls wait and, perhaps
// meanwhile, one at a time interest; any calls wake.
//
// wake is kept: one that begins after a wait has returned ends the next. Who waits
// looks for work, in this order: wait returns, look, wait again; who brings work
// makes it visible and then wakes. The eventfd is read before woken is cleared: the
// other way round a wake between the two would leave woken set with nothing to
// read, and be the last one.
type poller struct {
	epoll  int
	event  int
	woken  atomic.Bool // the event has been, or is about to be, written
	wanted []uint32    // by descriptor: what epoll has been told
	events []unix.EpollEvent
	ready  []int

	mu     sync.Mutex // between wake and close
	closed bool
}

const mostEvents = 64 // of one wait; what more there is comes with the next

func newPoller() (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	p := &poller{epoll: epoll, event: event, events: make([]unix.EpollEvent, mostEvents), ready: make([]int, 0, mostEvents)}
	err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(event)})
	if err != nil {
		p.close()
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	return p, nil
}

// interest says what wait looks for at fd: neither ends it, and must come before
// fd is closed: what has its number next would be taken for it. The kernel is asked
// only when something changes.
func (p *poller) interest(fd int, read, write bool) error {
	want := uint32(0)
	if read {
		want |= unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if write {
		want |= unix.EPOLLOUT
	}
	for fd >= len(p.wanted) {
		p.wanted = append(p.wanted, 0)
	}
	have := p.wanted[fd]
	if have == want {
		return nil
	}
	op := unix.EPOLL_CTL_MOD
	switch {
	case have == 0:
		op = unix.EPOLL_CTL_ADD
	case want == 0:
		op = unix.EPOLL_CTL_DEL
	}
	err := unix.EpollCtl(p.epoll, op, fd, &unix.EpollEvent{Events: want, Fd: int32(fd)})
	if want == 0 && (err == unix.ENOENT || err == unix.EBADF) {
		err = nil // it was closed first
	}
	if err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	p.wanted[fd] = want
	return nil
}

// wait returns the descriptors at which something has happened, errors and ends
// included: at once if timeout is 0, without bound if it is negative. It returns none
// when woken, when the time is over, or for no reason. The list is good until the
// next wait.
func (p *poller) wait(timeout time.Duration) ([]int, error) {
	n, err := unix.EpollWait(p.epoll, p.events, milliseconds(timeout))
	p.ready = p.ready[:0]
	if err == unix.EINTR {
		return p.ready, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("epoll_wait", err)
	}
	for _, e := range p.events[:n] {
		if int(e.Fd) != p.event {
			p.ready = append(p.ready, int(e.Fd))
			continue
		}
		var count [8]byte
		_, _ = unix.Read(p.event, count[:])
		p.woken.Store(false)
	}
	return p.ready, nil
}

// milliseconds rounds up: a sleep that is too short becomes a loop.
func milliseconds(d time.Duration) int {
	if d < 0 {
		return -1
	}
	return int(min((d+time.Millisecond-1)/time.Millisecond, 1<<30))
}

// wake ends the wait in progress, or else the next one.
func (p *poller) wake() {
	if !p.woken.CompareAndSwap(false, true) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		one := [8]byte{7: 1} // any number but 0 and the largest will do, in any byte order
		_, _ = unix.Write(p.event, one[:])
	}
}

// close may not be called during wait.
func (p *poller) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	err := unix.Close(p.event)
	if e := unix.Close(p.epoll); err == nil {
		err = e
	}
	return os.NewSyscallError("close", err)
}
