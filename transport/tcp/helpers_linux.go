package tcp

import (
	"context"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gollective/gollective/internal/cpuclock"
	"github.com/gollective/gollective/internal/spin"
)

// Striping, for large payloads:
//
//  1. begin cuts a payload into tasks, at most one for each data socket, and deals
//     them out round robin. The other end cuts the same payload alike, since both
//     know its length, and deals alike, since both have dealt out the same so far.
//  2. Each socket belongs to one helper thread. A helper goes round its tasks
//     for as long as any is unfinished, then it sleeps until there are more.
//  3. The helper that finishes the last task says so.
//
// NCCL: ncclNetSocketGetTask and persistentSocketThread in
// src/transport/net_socket.cc.

// leastTask is the size from which on a payload is cut (MIN_CHUNKSIZE there).
const leastTask = 64 << 10

// cut says how a payload is cut for sockets: all tasks have task bytes but the last,
// which has what is left.
func cut(payload, sockets int) (task, tasks int) {
	task = max(leastTask, (payload+sockets-1)/sockets)
	return task, (payload + task - 1) / task
}

// stripes carries the payloads of one direction over the data sockets.
type stripes struct {
	writes bool
	crew   *crew
	next   int  // the socket that gets the next task
	open   bool // a payload has begun and advance has not told of its end

	left atomic.Int32 // unfinished tasks of the payload under way
	done atomic.Bool  // all are finished, and event has been told
	err  atomic.Pointer[error]
	// event is readable from the end of a payload until advance has told of it.
	event int
}

func newStripes(c *crew, writes bool) (*stripes, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &stripes{crew: c, writes: writes, event: event}, nil
}

// begin deals out a payload. The one before must be finished.
func (s *stripes) begin(payload []byte) {
	size, tasks := cut(len(payload), len(s.crew.sockets))
	s.open = true
	s.done.Store(tasks == 0)
	s.left.Store(int32(tasks))
	for range tasks {
		n := min(size, len(payload))
		s.crew.post(s.next, task{of: s, rest: payload[:n]})
		payload = payload[n:]
		s.next = (s.next + 1) % len(s.crew.sockets)
	}
}

// advance reports whether the payload is finished.
func (s *stripes) advance() (done bool, err error) {
	if e := s.err.Load(); e != nil {
		return false, *e
	}
	if !s.done.Load() {
		return false, nil
	}
	if s.open {
		s.open = false
		var count [8]byte
		_, _ = unix.Read(s.event, count[:])
	}
	return true, nil
}

// finished ends one task.
func (s *stripes) finished() {
	if s.left.Add(-1) == 0 {
		s.tell()
		s.done.Store(true)
	}
}

// fail ends the direction.
func (s *stripes) fail(err error) {
	s.err.CompareAndSwap(nil, &err)
	s.tell()
}

// tell wakes a poller of event.
func (s *stripes) tell() {
	one := [8]byte{7: 1}
	_, _ = unix.Write(s.event, one[:])
}

// task is a part of a payload that goes over one socket.
type task struct {
	of   *stripes
	rest []byte
}

// crew is the helper threads of one connection and their sockets: socket s belongs to
// helper s mod n.
type crew struct {
	sockets []stream
	helpers []*helper
	closed  atomic.Bool
	threads sync.WaitGroup
}

// helper is one thread. It implements spin.Condition: that its tasks are finished.
type helper struct {
	crew  *crew
	first int // its number, and that of its first socket

	mu    sync.Mutex
	some  sync.Cond // posted is not empty, or the crew is closed
	posts []placed  // not yet taken over

	tasks [][]task // by its sockets: one task per direction at most; the helper's own
	open  int      // unfinished ones
	parts [1][]byte

	waiter *spin.Waiter

	thread              atomic.Int64 // its number, while it lives
	cpu                 atomic.Int64 // when it has ended
	polls, found, bytes atomic.Uint64
}

type placed struct {
	socket int // among the helper's
	task
}

func newCrew(sockets []stream, threads int, labels pprof.LabelSet) *crew {
	c := &crew{sockets: sockets}
	for i := range threads {
		h := &helper{crew: c, first: i, waiter: spin.New(patience(threads))}
		h.some.L = &h.mu
		for s := i; s < len(sockets); s += threads {
			h.tasks = append(h.tasks, make([]task, 0, 2))
		}
		c.helpers = append(c.helpers, h)
		c.threads.Go(func() { h.run(labels) })
	}
	return c
}

// patience is how helpers wait for their sockets: polling, as NCCL's do. Where the
// helpers of one connection alone could take all processors, each pass gives the
// processor away: else the goroutines that they wait for would get one every few
// milliseconds only.
func patience(threads int) spin.Options {
	if threads < runtime.GOMAXPROCS(0) {
		return spin.Options{Policy: spin.Spin, Heavy: true, Locked: true}
	}
	return spin.Options{Policy: spin.Yield, Heavy: true}
}

// post gives a task to the helper of a socket.
func (c *crew) post(socket int, t task) {
	h := c.helpers[socket%len(c.helpers)]
	h.mu.Lock()
	h.posts = append(h.posts, placed{socket / len(c.helpers), t})
	h.mu.Unlock()
	h.some.Signal()
}

// close ends the helpers: none touches a payload afterwards. The sockets stay open.
func (c *crew) close() {
	c.closed.Store(true)
	for _, h := range c.helpers {
		h.mu.Lock() // a helper that has just looked at closed is asleep when this succeeds
		h.some.Signal()
		h.mu.Unlock()
	}
	c.threads.Wait()
}

func (h *helper) run(labels pprof.LabelSet) {
	runtime.LockOSThread() // for good: the thread ends with the helper
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), labels))
	h.thread.Store(int64(cpuclock.Current()))
	defer func() {
		used, _ := cpuclock.Thread()
		h.cpu.Store(int64(used))
		h.thread.Store(0)
	}()
	h.waiter.Bind(context.Background(), h, 0)
	for h.take() {
		// An error is that the crew has been closed; take sees that too.
		_ = h.waiter.Until(h)
	}
}

// take sleeps until there is a task, and takes over all there are. It returns false
// at the end.
func (h *helper) take() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.posts) == 0 && !h.crew.closed.Load() {
		h.some.Wait()
	}
	h.accept()
	return !h.crew.closed.Load()
}

// accept takes over what has been posted. The caller holds h.mu.
func (h *helper) accept() {
	for _, p := range h.posts {
		h.tasks[p.socket] = append(h.tasks[p.socket], p.task)
		h.open++
	}
	clear(h.posts)
	h.posts = h.posts[:0]
}

// Ready goes round the tasks once, and reports whether none is left.
func (h *helper) Ready() bool {
	if h.crew.closed.Load() {
		return true
	}
	for at := range h.tasks {
		h.serve(at)
	}
	if h.open > 0 {
		return false
	}
	h.mu.Lock() // the next payload may be there already
	h.accept()
	h.mu.Unlock()
	return h.open == 0
}

// serve moves the tasks of one socket on.
func (h *helper) serve(at int) {
	tasks := h.tasks[at]
	kept := tasks[:0]
	var polls, found, bytes uint64
	for _, t := range tasks {
		polls++
		n, err := h.transfer(h.crew.sockets[h.first+at*len(h.crew.helpers)], t)
		if n > 0 {
			found++
			bytes += uint64(n)
			t.rest = t.rest[n:]
		}
		switch {
		case err != nil:
			h.open--
			t.of.fail(err)
		case len(t.rest) == 0:
			h.open--
			h.count(&polls, &found, &bytes) // whoever sees the payload finished sees its bytes
			t.of.finished()
		default:
			kept = append(kept, t)
		}
	}
	clear(tasks[len(kept):])
	h.tasks[at] = kept
	h.count(&polls, &found, &bytes)
}

// count publishes what has been counted and starts anew. Nobody else writes these.
func (h *helper) count(polls, found, bytes *uint64) {
	if *polls > 0 {
		h.polls.Store(h.polls.Load() + *polls)
	}
	if *found > 0 {
		h.found.Store(h.found.Load() + *found)
		h.bytes.Store(h.bytes.Load() + *bytes)
	}
	*polls, *found, *bytes = 0, 0, 0
}

func (h *helper) transfer(s stream, t task) (int, error) {
	h.parts[0] = t.rest
	defer func() { h.parts[0] = nil }()
	if t.of.writes {
		return s.write(h.parts[:])
	}
	return s.read(h.parts[:])
}

// What a spin.Condition and a spin.Watch need beside Ready. A helper polls while it
// has tasks, as NCCL's threads do, and is never parked.

// Peer implements spin.Condition.
func (*helper) Peer() int { return -1 }

// Arm implements spin.Condition.
func (*helper) Arm(*spin.Parker) {}

// Disarm implements spin.Condition.
func (*helper) Disarm() {}

// Failed implements spin.Watch.
func (h *helper) Failed() error {
	if h.crew.closed.Load() {
		return net.ErrClosed
	}
	return nil
}

// Inspect implements spin.Watch.
func (*helper) Inspect(spin.Condition) error { return nil }

// Expired implements spin.Watch.
func (*helper) Expired(_ spin.Condition, cause error) error { return cause }

// counters is what the helpers have cost.
func (c *crew) counters() HelperCounters {
	var sum HelperCounters
	for _, h := range c.helpers {
		sum.Add(HelperCounters{CPU: h.used(), Polls: h.polls.Load(), Found: h.found.Load(), Bytes: h.bytes.Load()})
	}
	return sum
}

// used is the helper's processor time, by its thread's clock as long as it lives.
func (h *helper) used() time.Duration {
	if thread := int(h.thread.Load()); thread > 0 {
		if used, err := cpuclock.Of(thread); err == nil {
			return used
		}
	}
	return time.Duration(h.cpu.Load())
}
