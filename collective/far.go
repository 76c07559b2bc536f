package collective

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/transport/tcp"
)

// Processes that share no memory with this one are far: their ranks are reached by
// sockets, and what homes and pages say of the near ones comes over the control
// connections.

// Messages about communicators begin with a letter, the communicator's name and a
// newline.
const (
	messageHere    = 'H' // the sender makes it: its mark
	messageSettled = 'S' // the sender has made it: everybody else makes it, too
	messagePage    = 'P' // rank, 4 bytes; the image of its page
	messageWhere   = 'W' // who has got further than he has told is to tell
)

// machine names the host of this process: processes of equal names can map each
// other's memory.
func (c Config) machine() string {
	if c.HostID != "" {
		return "named " + c.HostID
	}
	return ownMachine()
}

// near reports whether the process of that number shares memory with this one.
func (j *job) near(number int) bool {
	return number == j.self || !j.sockets && j.processes[number].Machine == j.processes[j.self].Machine
}

// coresBy returns, by host, how many processors its processes share.
func (j *job) coresBy(hosts *topo.Hosts, ranks []int) []int {
	cores := make([]int, hosts.Count())
	for host := range cores {
		var numbers []int
		for _, rank := range hosts.Ranks(host) {
			numbers = append(numbers, ranks[rank])
		}
		cores[host] = j.cores(numbers)
	}
	return cores
}

// hosts says which of the given ranks' processes share a machine; nil if all do.
func (j *job) hosts(ranks []int) *topo.Hosts {
	machines := make([]string, len(ranks))
	for rank, number := range ranks {
		machines[rank] = j.processes[number].Machine
	}
	if hosts := topo.HostsOf(machines); hosts.Count() > 1 {
		return hosts
	}
	return nil
}

// calls is what has been heard of communicators that are being made.
type calls struct {
	mu    sync.Mutex
	heard map[string]*heard // by name
	order []string          // of the names, the oldest first
}

type heard struct {
	marks   map[int][]byte // by process, of those who make it
	settled map[int]bool   // those who have made it
	pages   map[int]image  // by rank, told before it was made here
}

// image is that of a rank's page, with the process that told it.
type image struct {
	from  int
	bytes []byte
}

// mostHeard bounds the communicators that are remembered: of some this process will
// never be a member.
const mostHeard = 4096

func (c *calls) of(name string) *heard {
	if c.heard == nil {
		c.heard = make(map[string]*heard)
	}
	h := c.heard[name]
	if h == nil {
		if len(c.order) >= mostHeard {
			delete(c.heard, c.order[0])
			c.order = c.order[1:]
		}
		h = &heard{marks: make(map[int][]byte), settled: make(map[int]bool), pages: make(map[int]image)}
		c.heard[name] = h
		c.order = append(c.order, name)
	}
	return h
}

func (c *calls) note(kind byte, name string, from int, rest []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kind == messageSettled {
		c.of(name).settled[from] = true
		return
	}
	c.of(name).marks[from] = slices.Clone(rest)
}

func (c *calls) mark(name string, from int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(name).marks[from]
}

func (c *calls) settled(name string, from int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(name).settled[from]
}

// keep holds a page of a communicator that is not made yet.
func (c *calls) keep(name string, rank int, p image) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if pages := c.of(name).pages; len(pages) < mostRanks {
		pages[rank] = p
	}
}

// kept returns what was held.
func (c *calls) kept(name string) map[int]image {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.of(name)
	pages := h.pages
	h.pages = make(map[int]image)
	return pages
}

func (c *calls) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.heard[name]; ok {
		delete(c.heard, name)
		c.order = slices.DeleteFunc(c.order, func(other string) bool { return other == name })
	}
}

// tell sends a message about a communicator to all other processes.
func (j *job) tell(kind byte, name string, rest ...byte) {
	text := append([]byte{kind}, name...)
	// Whoever can't be told is lost, and noticed as such.
	_ = j.control.Tell(append(append(text, '\n'), rest...))
}

// about handles a message about a communicator.
func (j *job) about(kind byte, from int, message []byte) {
	name, rest, found := strings.Cut(string(message), "\n")
	if !found {
		return
	}
	switch kind {
	case messageHere, messageSettled:
		j.calls.note(kind, name, from, []byte(rest))
		return
	}
	j.mu.Lock()
	w := j.worlds[name]
	if kind == messagePage && len(rest) >= 4 {
		rank := int(binary.LittleEndian.Uint32([]byte(rest)))
		page := image{from, []byte(rest[4:])}
		if w != nil {
			w.process.apply(w, rank, page)
		} else {
			// It is being made here: the rank may have closed already, and will not
			// tell again.
			j.calls.keep(name, rank, page)
		}
	}
	j.mu.Unlock()
	if kind == messageWhere && w != nil {
		w.process.publishAll(w)
	}
}

// apply makes the ledger say what the image of a far rank's page does.
func (p *process) apply(w *world, rank int, page image) {
	if p.processOf(rank) == page.from && !p.job.near(page.from) {
		_ = w.ledger.Apply(rank, page.bytes) // nonsense from a member says nothing
	}
}

// farHome stands for the home of a far process, if that makes the communicator, too.
func (p *process) farHome(number int) (*home, error) {
	mark := p.job.calls.mark(p.name, number)
	if mark == nil {
		return nil, nil
	}
	if !bytes.Equal(mark, p.mark(number)) {
		return nil, fmt.Errorf("%w: it makes another communicator of this name", ErrMismatch)
	}
	return &home{pages: make([][]byte, len(p.ranksIn(number)))}, nil
}

// anyFar reports whether any rank of the communicator is far.
func (p *process) anyFar() bool {
	return slices.ContainsFunc(p.ranks, func(number int) bool { return !p.job.near(number) })
}

// overSockets reports whether ranks of two processes are connected by sockets.
func (p *process) overSockets(from, to int) bool {
	other := from
	if from == p.job.self {
		other = to
	}
	return p.job.sockets || !p.job.near(other)
}

// port is where ranks of a process are reached.
func (p *process) portOf(rank int) []string { return p.job.processes[p.ranks[rank]].Ports }

// telling is what a process has last told of its pages.
type telling struct {
	stamps map[int]*atomic.Uint64 // by rank here: of the image that was told
	told   atomic.Int64           // when, Unix nanoseconds
	asked  atomic.Int64
}

const (
	// tellEvery and askEvery bound the messages about pages of one communicator:
	// each goes to all processes.
	tellEvery = 10 * time.Millisecond
	askEvery  = 250 * time.Millisecond
)

func newTelling(ranks []int) *telling {
	t := &telling{stamps: make(map[int]*atomic.Uint64)}
	for _, rank := range ranks {
		t.stamps[rank] = new(atomic.Uint64)
	}
	return t
}

// due reports whether it is time for the next message of a kind, and if so takes
// note of it.
func due(last *atomic.Int64, every time.Duration) bool {
	now, before := time.Now().UnixNano(), last.Load()
	return now-before >= int64(every) && last.CompareAndSwap(before, now)
}

// publish tells the far processes how far rank has got, if they don't know, and with
// ask has them do the same.
func (p *process) publish(w *world, rank int, ask bool) {
	if p.telling.stamps[rank].Load() != w.ledger.Stamp(rank) && due(&p.telling.told, tellEvery) {
		p.publishAll(w)
	}
	if ask && due(&p.telling.asked, askEvery) {
		p.job.tell(messageWhere, p.name)
	}
}

// publishAll tells the far processes how far the ranks here have got.
func (p *process) publishAll(w *world) {
	for rank, last := range p.telling.stamps {
		stamp := w.ledger.Stamp(rank)
		if last.Swap(stamp) != stamp {
			image := binary.LittleEndian.AppendUint32(nil, uint32(rank))
			p.job.tell(messagePage, p.name, append(image, w.ledger.Image(rank)...)...)
		}
	}
}

// socketsFor is the transport between far ranks of the communicator.
func (p *process) socketsFor(c Config) (*tcp.Transport, error) {
	return c.sockets(tcp.Config{
		Port: p.job.port, Name: p.name, Size: len(p.ranks),
		Here:      func(rank int) bool { return p.processOf(rank) == p.job.self },
		Addresses: p.portOf,
		Lost: func(_, peer int, cause error) {
			if book := p.book.Load(); book != nil {
				lostPeer(book, peer, cause)
			}
		},
	}, p.ranksOnThisHost(), p.coresHere())
}
