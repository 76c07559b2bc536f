package collective

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/ledger"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
	"github.com/gollective/gollective/transport/inproc"
	"github.com/gollective/gollective/transport/shm"
)

// process is one process's part of a communicator that spans several. Each owns a
// segment of shared memory, its home, and maps the homes of all others; that this
// works is the proof that they are on one host.
type process struct {
	job   *job
	name  string // of the communicator, the same in all processes
	ranks []int  // by rank: the number of the process it lives in
	homes map[int]*home
	hub   *inproc.Hub
	fifos *shm.Transport

	mu      sync.Mutex
	nextBed uint32 // the first bed that no goroutine of this process has
}

// home is the memory that a process shows to the others of a communicator:
//
//	mark, 128 bytes     the process's number and the job's mark for it
//	beds                where its goroutines sleep
//	pages               of the ledger, one per rank that lives there
type home struct {
	beds  []spin.Bed
	pages [][]byte
}

const homeMarkBytes = 128

// homeBytes is the size of the home of a process with the given number of ranks:
// each may have one goroutine and two more per channel waiting at the same time.
func homeBytes(ranks, channels int) (beds, total int) {
	beds = ranks * (1 + 2*channels)
	return beds, homeMarkBytes + beds*spin.BedBytes + ranks*ledger.PageBytes
}

// newProcessWorld makes this process's part of the communicator called name whose
// rank r lives in process ranks[r]. All processes that have a rank in it do the
// same at about the same time.
func newProcessWorld(ctx context.Context, j *job, name string, ranks []int, c Config) (*world, error) {
	p := &process{job: j, name: name, ranks: ranks, homes: make(map[int]*home), hub: inproc.NewHub()}
	p.fifos = shm.NewTransport(j.depot, name, j.self, p.processOf, func(number int) shm.Neighbour {
		h := p.homes[number]
		d := &j.processes[number]
		return shm.Neighbour{Address: d.Depot, Secret: d.Mark, Beds: h.beds}
	})
	w := &world{
		config: c, size: len(ranks), open: len(p.ranksIn(j.self)),
		transport: p, process: p,
		forming:  make(map[childKey]*forming),
		children: make(map[*world]struct{}),
	}
	// Peers may ask for FIFOs as soon as they see the home.
	if err := j.announce(name, p.fifos); err != nil {
		return nil, err
	}
	pages, err := p.moveIn(ctx, c)
	if err == nil {
		w.ledger, err = ledger.Over(pages)
	}
	if err != nil {
		j.withdraw(name)
		return nil, err
	}
	w.ledger.OnFailure(func(err error) { j.tellFailure(name, err) })
	j.add(name, w)
	return w, nil
}

// moveIn makes this process's home, maps the others', and returns the pages of
// all ranks.
func (p *process) moveIn(ctx context.Context, c Config) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.job.timeout)
	defer cancel()
	for number := range p.job.processes {
		here := len(p.ranksIn(number))
		if here == 0 {
			continue
		}
		beds, size := homeBytes(here, c.MaxChannels)
		memory, err := p.homeOf(ctx, number, size)
		if err != nil {
			return nil, fmt.Errorf("communicator %s: process %d (rank %d): %w", p.name, number, p.ranksIn(number)[0], err)
		}
		h := new(home)
		memory = memory[homeMarkBytes:]
		if h.beds, err = spin.BedsIn(memory[:beds*spin.BedBytes]); err != nil {
			return nil, err
		}
		memory = memory[beds*spin.BedBytes:]
		for range here {
			h.pages = append(h.pages, memory[:ledger.PageBytes:ledger.PageBytes])
			memory = memory[ledger.PageBytes:]
		}
		p.homes[number] = h
	}
	pages := make([][]byte, len(p.ranks))
	taken := make(map[int]int)
	for rank, number := range p.ranks {
		pages[rank] = p.homes[number].pages[taken[number]]
		taken[number]++
	}
	return pages, nil
}

// homeOf returns the memory of a process's home: made, if it is this one's,
// otherwise fetched as soon as it is there.
func (p *process) homeOf(ctx context.Context, number, size int) ([]byte, error) {
	name := p.name + "/home"
	want := p.job.mark(number)
	if number == p.job.self {
		return p.job.depot.Create(name, size, func(m []byte) { copy(m, want) })
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if err := p.job.lostProcess(number); err != nil {
			return nil, err
		}
		memory, err := p.job.depot.Fetch(ctx, p.job.processes[number].Depot, p.job.processes[number].Mark, name)
		switch {
		case err == nil && len(memory) != size:
			return nil, fmt.Errorf("its home has %d bytes, expected %d", len(memory), size)
		case err == nil && string(memory[:len(want)]) != string(want):
			return nil, fmt.Errorf("%w: its shared memory does not show what it wrote: it is on another host", ErrUnsupported)
		case err == nil:
			return memory, nil
		case !errors.Is(err, shm.ErrUnknown):
			if lost := p.job.lostProcess(number); lost != nil {
				return nil, lost
			}
			return nil, fmt.Errorf("%w: shared memory can't be reached: %w", ErrUnsupported, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for it to join: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
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
var _ transport.Transport = (*process)(nil)

// Name implements transport.Transport.
func (p *process) Name() string { return "inproc+shm" }

// OrderedStores implements transport.Transport.
func (p *process) OrderedStores() bool { return p.hub.OrderedStores() && p.fifos.OrderedStores() }

// Connect implements transport.Transport.
func (p *process) Connect(l transport.Link) (*transport.Conn, error) {
	if p.processOf(l.From) == p.processOf(l.To) {
		return p.hub.Connect(l)
	}
	return p.fifos.Connect(l)
}

// waiters is how many goroutines of this host may wait at the same time.
func (p *process) waiters() int { return len(p.ranks) }

// parker gives a goroutine of this process a bed of its own.
func (p *process) parker() *spin.Parker {
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

// makeChild makes the world of some of parent's ranks.
func (p *process) makeChild(ctx context.Context, parent *world, id childKey, members []int) (*world, error) {
	ranks := make([]int, len(members))
	for i, rank := range members {
		ranks[i] = p.ranks[rank]
	}
	how := "split"
	if id.shrunk {
		how = "shrink"
	}
	return newProcessWorld(ctx, p.job, fmt.Sprintf("%s.%s%d-%d", p.name, how, id.count, id.color), ranks, parent.config)
}

// close gives back what the communicator holds of this process. All of its ranks
// here have closed.
func (p *process) close(w *world) {
	w.ledger.Retire()
	p.job.remove(p.name)
	p.fifos.Close()
	p.job.release()
}

// lose is told that a process of the job is gone.
func (p *process) lose(w *world, number int, cause error) {
	if ranks := p.ranksIn(number); len(ranks) > 0 {
		w.ledger.Heard(&fault.PeerLost{Rank: ranks[0], Cause: cause})
	}
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

// Messages between processes begin with a letter.
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
	case messageQuestion:
		_ = j.control.Tell(append([]byte{messageAnswer}, rest...))
	case messageAnswer:
		if len(rest) == 8 {
			j.answered(binary.LittleEndian.Uint64(rest), from)
		}
	}
}

// patience is how long a question is left open: a running process answers at once.
const patience = 200 * time.Millisecond

// ask finds out which processes answer.
func (j *job) ask() map[int]bool {
	answers := make(map[int]bool)
	j.mu.Lock()
	j.tokens++
	token := uint64(j.self)<<32 | j.tokens
	j.questions[token] = answers
	j.mu.Unlock()
	_ = j.control.Tell(binary.LittleEndian.AppendUint64([]byte{messageQuestion}, token))
	time.Sleep(patience)
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.questions, token)
	return answers // nobody writes it any more
}

func (j *job) answered(token uint64, from int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if answers, ok := j.questions[token]; ok {
		answers[from] = true
	}
}
