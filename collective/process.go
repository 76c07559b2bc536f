package collective

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/ledger"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
	"github.com/gollective/gollective/transport/inproc"
	"github.com/gollective/gollective/transport/shm"
	"github.com/gollective/gollective/transport/tcp"
)

// process is one process's part of a communicator that spans several. Each owns a
// segment of shared memory, its home, and maps the homes of all others on its host;
// that this works is the proof that they are there. What is different about those on
// other hosts is in far.go.
type process struct {
	job    *job
	name   string // of the communicator, the same in all processes
	origin string // the name, or that of what it was shrunk from
	ranks  []int  // by rank: the number of the process it lives in
	global []int  // by rank: its number in the communicator of all ranks
	homes  map[int]*home
	hub    *inproc.Hub
	fifos  *shm.Transport
	remote *tcp.Transport // nil if all ranks are near

	registered []regions       // by rank, of those that live here
	views      views           // of segments of other processes
	ctx        context.Context // ends with the communicator
	cancel     context.CancelFunc

	telling *telling
	book    atomic.Pointer[ledger.Ledger] // of the communicator, when it is made

	// Who makes the communicator, for errors: the call, and the communicator that
	// it is a call of, nil for Init.
	call   string
	parent *process
	// broken is why a Split can't be completed, or nil: ranks of this communicator
	// may have failed in it, and not come.
	broken func() error

	mu      sync.Mutex
	nextBed uint32 // the first bed that no goroutine of this process has
}

// home is the memory that a process shows to the others of a communicator:
//
//	mark, 128 bytes     what proves whose it is, and the word that says that its
//	                    process has mapped all others
//	beds                where its goroutines sleep
//	pages               of the ledger, one per rank that lives there
type home struct {
	settled *atomic.Uint64
	beds    []spin.Bed
	pages   [][]byte
}

const homeMarkBytes = 128

// homeBytes is the size of the home of a process with the given number of ranks:
// each may have one goroutine and two more per channel waiting at the same time.
func homeBytes(ranks, channels int) (beds, total int) {
	beds = ranks * (1 + 2*channels)
	return beds, homeMarkBytes + beds*spin.BedBytes + ranks*ledger.PageBytes
}

// layOut views memory as the home of a process with the given number of ranks.
func layOut(memory []byte, ranks, channels int) (*home, error) {
	beds, _ := homeBytes(ranks, channels)
	h := &home{settled: &transport.Words(memory[homeMarkBytes-8 : homeMarkBytes])[0]}
	memory = memory[homeMarkBytes:]
	var err error
	if h.beds, err = spin.BedsIn(memory[:beds*spin.BedBytes]); err != nil {
		return nil, err
	}
	memory = memory[beds*spin.BedBytes:]
	for range ranks {
		h.pages = append(h.pages, memory[:ledger.PageBytes:ledger.PageBytes])
		memory = memory[ledger.PageBytes:]
	}
	return h, nil
}

// mark is what the home of a process begins with: it shows the process, and which
// communicator it means.
func (p *process) mark(number int) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%x %s %v", p.job.processes[number].Mark, p.name, p.global))
	return append([]byte("gollective home "), sum[:]...)
}

// newProcessWorld makes this process's part of p's communicator. All processes that
// have a rank in it do the same at about the same time.
func newProcessWorld(ctx context.Context, p *process, c Config) (*world, error) {
	j := p.job
	p.homes, p.hub = make(map[int]*home), inproc.NewHub()
	p.fifos = shm.NewTransport(j.depot, p.name, j.self, p.processOf, func(number int) shm.Neighbour {
		d := &j.processes[number]
		return shm.Neighbour{Address: d.Depot, Secret: d.Mark, Beds: p.homes[number].beds}
	})
	p.registered = make([]regions, len(p.ranks))
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.telling = newTelling(p.ranksIn(j.self))
	c.hosts, c.carried = j.hosts(p.ranks), j.sockets
	c.cores, c.sharers = j.crowd(p.ranks)
	w := &world{
		config: c, size: len(p.ranks), open: len(p.ranksIn(j.self)),
		transport: p, process: p,
		forming:  make(map[childKey]*forming),
		children: make(map[*world]struct{}),
	}
	// Peers may ask for FIFOs as soon as they see the home, or hear of it.
	if err := j.announce(p.name, p.fifos); err != nil {
		return nil, err
	}
	var pages [][]byte
	var err error
	if p.anyFar() {
		if p.remote, err = p.socketsFor(c); err == nil {
			j.tell(messageHere, p.name, p.mark(j.self)...)
		}
	}
	if err == nil {
		pages, err = p.moveIn(ctx, c)
	}
	if err == nil {
		w.ledger, err = ledger.Over(pages)
	}
	if err != nil {
		if p.remote != nil {
			_ = p.remote.Close()
		}
		p.cancel()
		j.withdraw(p.name)
		return nil, err
	}
	w.ledger.OnFailure(func(err error) { j.tellFailure(p.name, err) })
	j.add(p.name, w)
	p.book.Store(w.ledger)
	p.log(c)
	return w, nil
}

// log tells those who ask for it how the ranks are connected.
func (p *process) log(c Config) {
	about := []any{"name", p.name, "size", len(p.ranks), "ranks here", p.ranksIn(p.job.self), "transport", p.Name(), "wait", c.Wait}
	if p.remote != nil {
		var far []int
		for rank, number := range p.ranks {
			if number != p.job.self && p.overSockets(number, p.job.self) {
				far = append(far, rank)
			}
		}
		proxy, encrypted := "inline", "off"
		if c.threaded(p.ranksOnThisHost(), p.coresHere()) {
			proxy = "thread"
		}
		if c.TLS != "" {
			encrypted = c.TLS
		}
		about = append(about, "over sockets", far, "proxy", proxy, "tls", encrypted)
	}
	c.Logger.Debug("collective: communicator made", about...)
}

// moveIn makes this process's home, maps the others', and returns the pages of
// all ranks. The others are told of a failure that they would not find themselves.
func (p *process) moveIn(ctx context.Context, c Config) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.job.timeout)
	defer cancel()
	// Its own home first: others look for it while this one asks a stopped process.
	pending := []int{p.job.self}
	for _, number := range slices.Compact(slices.Sorted(slices.Values(p.ranks))) {
		if number != p.job.self {
			pending = append(pending, number)
		}
	}
	since := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		// Who heard of a death first may have left for that reason: it is not to
		// blame.
		err := p.anyLost()
		if broken := p.broken(); err == nil && broken != nil {
			p.job.tellFailure(p.name, &fault.Abort{Rank: p.ranksIn(p.job.self)[0], Call: p.call, Cause: broken})
			return nil, broken
		}
		if err == nil {
			pending, err = p.visit(ctx, pending, c.MaxChannels, since)
		}
		switch {
		case err != nil:
		case len(pending) == 0:
			p.homes[p.job.self].settled.Store(1)
			if p.remote != nil {
				p.job.tell(messageSettled, p.name)
			}
			return p.pages(), nil
		case ctx.Err() != nil:
			err = p.notAllCame(pending, ctx.Err())
		}
		if err != nil {
			return nil, p.spread(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// visit maps the homes that are there of the given processes, and returns those
// whose are not.
func (p *process) visit(ctx context.Context, numbers []int, channels int, since time.Time) (pending []int, err error) {
	for _, number := range numbers {
		if err := p.job.failureOf(p.name); err != nil {
			return nil, fault.Renumber(err, p.outer)
		}
		if err := p.absent(number); err != nil {
			if lost := p.anyLost(); lost != nil {
				err = lost
			}
			return nil, err
		}
		if !p.job.near(number) {
			h, err := p.farHome(number)
			if err != nil {
				return nil, fmt.Errorf("communicator %s: process %d (rank %d): %w", p.name, number, p.known(number)[0], err)
			}
			if p.homes[number] = h; h == nil {
				delete(p.homes, number)
				pending = append(pending, number)
			}
			continue
		}
		here := len(p.ranksIn(number))
		memory, err := p.homeOf(ctx, number, here, channels, time.Since(since))
		if err != nil {
			return nil, fmt.Errorf("communicator %s: process %d (rank %d): %w", p.name, number, p.known(number)[0], err)
		}
		if memory == nil {
			pending = append(pending, number)
			continue
		}
		if p.homes[number], err = layOut(memory, here, channels); err != nil {
			return nil, err
		}
	}
	return pending, nil
}

// A process of this host answers at once, but for one that is stopped; one that
// has died is noticed by the control connections.
const (
	askFor        = time.Second     // one question, so that others are not waited for behind a stopped process
	unreachableIn = 2 * time.Second // of refused connections: the process is not on this host
)

// homeOf returns the memory of a process's home: made, if it is this one's, else
// fetched if it is there, else nil.
func (p *process) homeOf(ctx context.Context, number, ranks, channels int, tried time.Duration) ([]byte, error) {
	name := p.name + "/home"
	want := p.mark(number)
	_, size := homeBytes(ranks, channels)
	if number == p.job.self {
		return p.job.depot.Create(name, size, func(m []byte) { copy(m, want) })
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	d := &p.job.processes[number]
	memory, err := p.job.depot.Fetch(ctx, d.Depot, d.Mark, name)
	switch {
	case err == nil && len(memory) != size:
		return nil, fmt.Errorf("its home has %d bytes, expected %d", len(memory), size)
	case err == nil && !bytes.HasPrefix(memory, want):
		return nil, fmt.Errorf("%w: its shared memory does not show what it wrote: it makes another communicator, or is on another host though it says it is on this one", ErrUnsupported)
	case err == nil:
		return memory, nil
	case errors.Is(err, shm.ErrUnknown), ctx.Err() != nil, tried < unreachableIn:
		return nil, nil
	}
	return nil, fmt.Errorf("%w: %s (pid %d) can't be reached through shared memory, though it is on this host (GOLLECTIVE_TRANSPORT=tcp does without): %w",
		ErrUnsupported, d.Host, d.PID, err)
}

// pages are those of all ranks' in the ledger.
func (p *process) pages() [][]byte {
	pages := make([][]byte, len(p.ranks))
	taken := make(map[int]int)
	for rank, number := range p.ranks {
		pages[rank] = p.homes[number].pages[taken[number]]
		taken[number]++
	}
	return pages
}

// known are the ranks of a process as those who make the communicator know them.
func (p *process) known(number int) []int {
	if p.parent != nil {
		return p.parent.ranksIn(number)
	}
	return p.ranksIn(number)
}

// absent is the error about a process that takes no part any more, or nil.
func (p *process) absent(number int) error {
	cause, left := p.job.gone(number)
	ranks := p.known(number)
	switch {
	case cause != nil:
		return &fault.PeerLost{Rank: ranks[0], Others: ranks[1:], Cause: cause}
	case left:
		return &fault.PeerClosed{Rank: p.known(p.job.self)[0], Call: p.call, PeerRank: ranks[0]}
	}
	return nil
}

// anyLost is the error about a process of the communicator that is lost, or nil.
func (p *process) anyLost() error {
	var lost *fault.PeerLost
	for _, number := range p.ranks {
		if err := p.absent(number); errors.As(err, &lost) {
			return lost
		}
	}
	return nil
}

// notAllCame is the error for the end of the context of what makes the
// communicator.
func (p *process) notAllCame(pending []int, cause error) error {
	me := p.outer(p.ranksIn(p.job.self)[0])
	if !errors.Is(cause, context.DeadlineExceeded) {
		return &fault.Abort{Rank: me, Call: p.call, Cause: cause}
	}
	timeout := &fault.Timeout{Rank: me, Call: p.call, Waiting: -1, Cause: cause}
	for _, number := range pending {
		for _, rank := range p.ranksIn(number) {
			timeout.Missing = append(timeout.Missing, p.outer(rank))
		}
	}
	slices.Sort(timeout.Missing)
	for _, rank := range p.silent() {
		timeout.Silent = append(timeout.Silent, p.outer(rank))
	}
	return timeout
}

// spread tells the other processes why the communicator can't be made, unless
// they know or will find out.
func (p *process) spread(err error) error {
	switch {
	case p.job.failureOf(p.name) != nil, errors.Is(err, fault.ErrPeerLost), errors.Is(err, fault.ErrPeerClosed):
	case errors.Is(err, fault.ErrTimeout), errors.Is(err, fault.ErrAborted):
		p.job.tellFailure(p.name, fault.Renumber(err, p.inner))
	default:
		p.job.tellFailure(p.name, &fault.Abort{Rank: p.ranksIn(p.job.self)[0], Call: p.call, Cause: err})
	}
	return err
}

// outer is the number of a rank as those who make the communicator know it, inner
// the inverse, -1 for a rank that is not in it.
func (p *process) outer(rank int) int {
	if p.parent == nil || rank < 0 || rank >= len(p.global) {
		return rank
	}
	return slices.Index(p.parent.global, p.global[rank])
}

func (p *process) inner(rank int) int {
	if p.parent == nil {
		return rank
	}
	return slices.Index(p.global, p.parent.global[rank])
}

// identity names ranks of the communicator so that it does not matter which one
// it is, as long as it was shrunk from the same.
func (p *process) identity(ranks []int) string {
	var global []int
	for _, rank := range ranks {
		global = append(global, p.global[rank])
	}
	return short(fmt.Sprint(p.origin, global))
}

// short is a name for a text of any length.
func short(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// ranksIn lists the ranks of the communicator that live in a process.
func (p *process) ranksIn(number int) []int {
	var ranks []int
	for rank, n := range p.ranks {
		if n == number {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// membersHere is how many of the given ranks live in this process.
func (p *process) membersHere(ranks []int) int {
	here := 0
	for _, rank := range ranks {
		if p.ranks[rank] == p.job.self {
			here++
		}
	}
	return here
}

func (p *process) processOf(rank int) int {
	if rank < 0 || rank >= len(p.ranks) {
		return -1
	}
	return p.ranks[rank]
}

// A process is the transport of its communicator: each pair of ranks uses the one
// that their places allow.
var (
	_ transport.Carrier    = (*process)(nil)
	_ transport.Accountant = (*process)(nil)
)

// Name implements transport.Transport.
func (p *process) Name() string {
	switch {
	case p.job.sockets:
		return "tcp"
	case p.remote != nil:
		return "inproc+shm+tcp"
	}
	return "inproc+shm"
}

// OrderedStores implements transport.Transport.
func (p *process) OrderedStores() bool { return p.hub.OrderedStores() && p.fifos.OrderedStores() }

// Connect implements transport.Transport.
func (p *process) Connect(l transport.Link, end transport.End) (*transport.Conn, error) {
	from, to := p.processOf(l.From), p.processOf(l.To)
	switch {
	case p.remote != nil && p.overSockets(from, to):
		return p.remote.Connect(l, end)
	case from == to:
		return p.hub.Connect(l, end)
	}
	return p.fifos.Connect(l, end)
}

// Carries implements transport.Carrier.
func (p *process) Carries() bool { return p.remote != nil }

// Broken implements transport.Carrier.
func (p *process) Broken(rank, peer int, left bool) error { return p.remote.Broken(rank, peer, left) }

// Leave implements transport.Carrier.
func (p *process) Leave(rank int, failed <-chan struct{}) { p.remote.Leave(rank, failed) }

// Abandon implements transport.Carrier.
func (p *process) Abandon(rank int) { p.remote.Abandon(rank) }

// Accounts implements transport.Accountant.
func (p *process) Accounts(rank int) (proxy, helper spin.Counters) {
	if p.remote == nil {
		return proxy, helper
	}
	return p.remote.Accounts(rank)
}

// ranksOnThisHost is how many ranks of the communicator share this host, and may wait
// at the same time.
func (p *process) ranksOnThisHost() int {
	here := 0
	for _, number := range p.ranks {
		if p.job.processes[number].Machine == p.job.processes[p.job.self].Machine {
			here++
		}
	}
	return here
}

// coresHere is how many processors those ranks share.
func (p *process) coresHere() int {
	var numbers []int
	for _, number := range p.ranks {
		if p.job.processes[number].Machine == p.job.processes[p.job.self].Machine {
			numbers = append(numbers, number)
		}
	}
	return p.job.cores(numbers)
}

// parker gives a goroutine of this process a bed of its own, if others are to find
// it there.
func (p *process) parker() *spin.Parker {
	if !slices.ContainsFunc(p.ranks, func(number int) bool { return number != p.job.self && p.job.near(number) }) {
		return spin.NewParker()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nextBed++
	return spin.NewBedParker(p.homes[p.job.self].beds, p.nextBed)
}

// silent lists the ranks whose process does not answer.
func (p *process) silent() []int {
	answers := p.job.ask()
	var silent []int
	for rank, number := range p.ranks {
		if number != p.job.self && !answers[number] {
			silent = append(silent, rank)
		}
	}
	return silent
}

// mostReadableName bounds names made of names of parents: they are parts of names of
// segments.
const mostReadableName = 100

func nothing() error { return nil }

// makeChild makes the world of some of parent's ranks.
func (p *process) makeChild(ctx context.Context, parent *world, id childKey, members []int) (*world, error) {
	child := &process{job: p.job, call: id.call(), parent: p, broken: nothing}
	if id.shrunk == "" {
		child.broken = parent.ledger.Failure
	}
	for _, rank := range members {
		child.ranks = append(child.ranks, p.ranks[rank])
		child.global = append(child.global, p.global[rank])
	}
	if id.shrunk != "" {
		child.origin = p.origin
		child.name = fmt.Sprintf("%s.shrink-%s-%d", p.origin, id.shrunk, id.count)
	} else {
		child.name = fmt.Sprintf("%s.split%d-%d", p.name, id.count, id.color)
		if len(child.name) > mostReadableName {
			child.name = "split-" + short(child.name)
		}
		child.origin = child.name
	}
	return newProcessWorld(ctx, child, parent.config)
}

// close gives back what the communicator holds of this process. All of its ranks
// here have closed.
func (p *process) close(w *world) {
	p.waitForSettlers(w)
	p.waitForReaders(w)
	p.cancel()
	if p.remote != nil {
		p.drain(w)
		_ = p.remote.Close() // what is lost thereby is missed by nobody
	}
	w.ledger.Retire()
	p.job.remove(p.name)
	p.fifos.Close()
	p.job.release()
}

// waitForSettlers returns when every process of the communicator has mapped the
// homes of all, or will not do so any more: what this rank was quick to send and
// leave behind can be received only in a communicator that came about.
func (p *process) waitForSettlers(w *world) {
	ctx, cancel := context.WithTimeout(context.Background(), p.job.timeout)
	defer cancel()
	settled := func(number int) bool {
		if h := p.homes[number]; h.settled != nil {
			return h.settled.Load() != 0
		}
		return p.job.calls.settled(p.name, number)
	}
	for number := range p.homes {
		for pause := 50 * time.Microsecond; !settled(number) && p.absent(number) == nil; pause = min(2*pause, 10*time.Millisecond) {
			select {
			case <-ctx.Done():
				return
			case <-w.ledger.Failed():
				return
			case <-time.After(pause):
			}
		}
	}
}

// waitForReaders returns when every rank has mapped the desks at which ranks here have
// posted, or will not do so any more: a root shows what others look at when it has left.
func (p *process) waitForReaders(w *world) {
	ctx, cancel := context.WithTimeout(context.Background(), p.job.timeout)
	defer cancel()
	left := func(rank int) bool { return w.ledger.Closed(rank) || p.absent(p.ranks[rank]) != nil }
	for pause := 50 * time.Microsecond; p.fifos.Unseen(left); pause = min(2*pause, 10*time.Millisecond) {
		select {
		case <-ctx.Done():
			return
		case <-w.ledger.Failed():
			return
		case <-time.After(pause):
		}
	}
}

// drain waits until what ranks here have sent has left the process.
func (p *process) drain(w *world) {
	ctx, cancel := context.WithTimeout(context.Background(), p.job.timeout)
	defer cancel()
	go func() {
		select {
		case <-w.ledger.Failed():
			cancel()
		case <-ctx.Done():
		}
	}()
	p.remote.Drain(ctx)
}

// lose is told that a process of the job is gone.
func (p *process) lose(w *world, number int, cause error) {
	if ranks := p.ranksIn(number); len(ranks) > 0 {
		w.ledger.Heard(&fault.PeerLost{Rank: ranks[0], Others: ranks[1:], Cause: cause})
	}
}

// gone lists the ranks whose processes have died or left.
func (p *process) gone() []int {
	var ranks []int
	for rank, number := range p.ranks {
		if cause, left := p.job.gone(number); cause != nil || left {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// Lost lists the ranks that take no part any more, as far as this rank knows: their
// processes have died, can't be reached, or have left the job. It is what to
// Shrink without after ErrPeerLost. Where several processes die, ranks hear of them
// one after the other.
func (c *Comm) Lost() []int {
	if !c.valid() || c.world.process == nil {
		return nil
	}
	return c.world.process.gone()
}

// provide makes segments that peers ask for before this process does: FIFOs to
// ranks here.
func (j *job) provide(name string) (int, func([]byte), error) {
	communicator, _, _ := strings.Cut(name, "/")
	j.mu.Lock()
	fifos := j.fifos[communicator]
	j.mu.Unlock()
	if fifos == nil {
		return 0, nil, shm.ErrUnknown
	}
	return fifos.Provide(name)
}

// Messages between processes begin with a letter; far.go has more.
const (
	messageFailure  = 'F' // name of a communicator, newline, encoded failure
	messageQuestion = 'Q' // token: who is alive?
	messageAnswer   = 'A' // token
)

// tellFailure spreads the failure of a communicator.
func (j *job) tellFailure(name string, err error) {
	text := append([]byte{messageFailure}, name...)
	text = append(append(text, '\n'), fault.Encode(err)...)
	_ = j.control.Tell(text) // whoever can't be told is lost, and noticed as such
}

// handle is called with every message of another process.
func (j *job) handle(from int, message []byte) {
	if len(message) == 0 {
		return
	}
	switch kind, rest := message[0], message[1:]; kind {
	case messageFailure:
		name, encoded, found := strings.Cut(string(rest), "\n")
		if found {
			j.heard(name, fault.Decode([]byte(encoded)))
		}
	case messageHere, messageSettled, messagePage, messageWhere:
		j.about(kind, from, rest)
	case messageQuestion:
		_ = j.control.Tell(append([]byte{messageAnswer}, rest...))
	case messageAnswer:
		if len(rest) == 8 {
			j.answered(binary.LittleEndian.Uint64(rest), from)
		}
	}
}

// patience is how long a question is left open: a running process answers at once,
// if it gets a processor.
const patience = 500 * time.Millisecond

// question is one that is open.
type question struct {
	answers map[int]bool
	all     chan struct{} // closed when everybody has answered
}

// ask finds out which processes answer.
func (j *job) ask() map[int]bool {
	q := &question{answers: make(map[int]bool), all: make(chan struct{})}
	j.mu.Lock()
	j.tokens++
	token := uint64(j.self)<<32 | j.tokens
	j.questions[token] = q
	j.mu.Unlock()
	_ = j.control.Tell(binary.LittleEndian.AppendUint64([]byte{messageQuestion}, token))
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-q.all:
	case <-timer.C:
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.questions, token)
	return q.answers // nobody writes it any more
}

func (j *job) answered(token uint64, from int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	q, ok := j.questions[token]
	if !ok || q.answers[from] {
		return
	}
	q.answers[from] = true
	if len(q.answers) == len(j.processes)-1 {
		close(q.all)
	}
}
