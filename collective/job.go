package collective

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/internal/affinity"
	"github.com/gollective/gollective/transport/shm"
	"github.com/gollective/gollective/transport/tcp"
)

// job is this process's membership in a job of several processes: the control
// connections, the depot of shared memory, and the communicators that use them.
// It ends with the last of those.
type job struct {
	control   control
	depot     *shm.Depot
	self      int
	processes []description // by number
	timeout   time.Duration // of everything that joins
	port      *tcp.Port     // nil if all processes share this host, and its memory
	sockets   bool          // also those on one host are connected by sockets
	calls     calls

	mu        sync.Mutex
	closed    bool
	fifos     map[string]*shm.Transport // by communicator, from its announcement on
	worlds    map[string]*world         // by communicator
	early     map[string]error          // failures of communicators that are not made yet
	lost      map[int]error             // by process
	tokens    uint64
	questions map[uint64]*question // that are open
	left      map[int]bool         // processes that have said goodbye
	shrinks   map[shrinkKey]int
}

// control is what a job needs of bootstrap.Control.
type control interface {
	Tell(message []byte) error
	Close(ctx context.Context) error
}

// description is what a process tells all others when it joins.
type description struct {
	Version int
	Ranks   int      // that live in the process
	Depot   string   // address
	Machine string   // what it shares memory with: see Config.machine
	Ports   []string // where its data port is reached, the best first
	Mark    []byte   // random: the secret of its depot; its homes begin with a hash of it
	Host    string
	PID     int
	CPUs    affinity.Mask // on which it may run
	Quota   int           // processors that its cgroup grants; 0 = no less than CPUs
	Config  agreement
	Tuned   tuned
}

// agreement is what all ranks must have set alike: plans depend on it.
type agreement struct {
	Algorithm, Protocol, Allowed                      string
	MinChannels, MaxChannels, Channels                int
	BuffSize, LLBuffSize, LL128BuffSize, P2PChunkSize int
	RanksPerNode                                      int
	Reproducible                                      bool
	Sockets                                           bool // between all, also on one host
}

// descriptionVersion is that of everything processes exchange above bootstrap.
const descriptionVersion = 3

func (c Config) agreement() agreement {
	return agreement{
		Algorithm: c.Algorithm.String(), Protocol: c.Protocol.String(), Allowed: c.allowed.String(),
		MinChannels: c.MinChannels, MaxChannels: c.MaxChannels, Channels: c.Channels,
		BuffSize: c.BuffSize, LLBuffSize: c.LLBuffSize, LL128BuffSize: c.LL128BuffSize,
		P2PChunkSize: c.P2PChunkSize, RanksPerNode: c.RanksPerNode, Reproducible: c.Reproducible,
		Sockets: c.Transport == "tcp",
	}
}

// decodeDescriptions reads what the processes have told and compares it with
// this process's own, whose rules of a tuner file are given.
func decodeDescriptions(texts [][]byte, self int, rules *plan.Tuning) ([]description, error) {
	all := make([]description, len(texts))
	for number, text := range texts {
		d := &all[number]
		if err := json.Unmarshal(text, d); err != nil {
			return nil, fmt.Errorf("collective: the description of process %d can't be read: %w", number, err)
		}
		if d.Ranks < 1 || d.Ranks > 1<<20 {
			return nil, fmt.Errorf("collective: process %d has %d ranks", number, d.Ranks)
		}
	}
	for number, d := range all {
		if d.Version != descriptionVersion {
			return nil, fmt.Errorf("%w: process %d (%s, pid %d) speaks version %d, this one version %d",
				ErrUnsupported, number, d.Host, d.PID, d.Version, descriptionVersion)
		}
		if d.Config != all[self].Config {
			mine, theirs := differing(all[self].Config, d.Config)
			return nil, fmt.Errorf("%w: configurations differ: process %d has %s, process %d (%s, pid %d) has %s",
				ErrMismatch, self, mine, number, d.Host, d.PID, theirs)
		}
		if err := tunedDifferently(all, self, number, rules); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// differing shows the fields in which two structs of one type differ.
func differing(a, b any) (inA, inB string) {
	fields := func(of any) (all map[string]json.RawMessage) {
		text, _ := json.Marshal(of) // of numbers, names and truths
		_ = json.Unmarshal(text, &all)
		return all
	}
	left, right := fields(a), fields(b)
	for name := range left {
		if bytes.Equal(left[name], right[name]) {
			delete(left, name)
			delete(right, name)
		}
	}
	textA, _ := json.Marshal(left)
	textB, _ := json.Marshal(right)
	return string(textA), string(textB)
}

// announce makes the FIFOs of a communicator available to peers.
func (j *job) announce(name string, fifos *shm.Transport) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return net.ErrClosed
	}
	if _, exists := j.fifos[name]; exists {
		return fmt.Errorf("collective: a second communicator called %s", name)
	}
	j.fifos[name] = fifos
	return nil
}

// withdraw takes announce back.
func (j *job) withdraw(name string) {
	j.mu.Lock()
	fifos := j.fifos[name]
	delete(j.fifos, name)
	j.mu.Unlock()
	fifos.Close()
	j.release()
}

// add makes a communicator known, which may have failed already.
func (j *job) add(name string, w *world) {
	j.mu.Lock()
	j.worlds[name] = w
	early := j.early[name]
	delete(j.early, name)
	lost := maps.Clone(j.lost)
	for rank, page := range j.calls.kept(name) {
		w.process.apply(w, rank, page)
	}
	j.mu.Unlock()
	for number, cause := range lost {
		w.process.lose(w, number, cause)
	}
	if early != nil {
		w.ledger.Heard(early)
	}
}

// remove forgets a communicator.
func (j *job) remove(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.worlds, name)
	delete(j.fifos, name)
	j.calls.forget(name)
}

// release ends the job if no communicator uses it any more.
func (j *job) release() {
	j.mu.Lock()
	last := len(j.fifos) == 0 && !j.closed
	j.closed = j.closed || last
	j.mu.Unlock()
	if last {
		j.end()
	}
}

// end leaves the job.
func (j *job) end() {
	ctx, cancel := context.WithTimeout(context.Background(), j.timeout)
	defer cancel()
	_ = j.control.Close(ctx) // a goodbye that nobody hears changes nothing
	_ = j.depot.Close()
	if j.port != nil {
		_ = j.port.Close()
	}
}

// mostEarly bounds the failures that are kept for communicators not made yet.
const mostEarly = 1024

// heard is told of the failure of a communicator in another process.
func (j *job) heard(name string, err error) {
	j.mu.Lock()
	w := j.worlds[name]
	if w == nil && len(j.early) < mostEarly {
		j.early[name] = err
	}
	j.mu.Unlock()
	if w != nil {
		w.ledger.Heard(err)
	}
}

// lose is told that a process has died or can't be reached.
func (j *job) lose(number int, cause error) {
	j.mu.Lock()
	if j.lost[number] == nil {
		j.lost[number] = cause
	}
	worlds := maps.Clone(j.worlds)
	j.mu.Unlock()
	for _, w := range worlds {
		w.process.lose(w, number, cause)
	}
}

// leave is told that a process has said goodbye.
func (j *job) leave(number int) {
	j.mu.Lock()
	j.left[number] = true
	j.mu.Unlock()
}

// gone reports why a process takes no part any more: it is lost, for that cause, or
// has left.
func (j *job) gone(number int) (lost error, left bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lost[number], j.left[number]
}

// failureOf is the failure of a communicator that is not made yet, or nil.
func (j *job) failureOf(name string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.early[name]
}

// countShrink counts the Shrinks of a rank, by members.
func (j *job) countShrink(rank int, members string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	key := shrinkKey{rank, members}
	j.shrinks[key]++
	return j.shrinks[key] - 1
}

type shrinkKey struct {
	rank    int // in the communicator of all
	members string
}

func newJob(self int, c control, depot *shm.Depot, timeout time.Duration) *job {
	j := &job{
		control: c, depot: depot, self: self, timeout: timeout,
		fifos:     make(map[string]*shm.Transport),
		worlds:    make(map[string]*world),
		early:     make(map[string]error),
		lost:      make(map[int]error),
		questions: make(map[uint64]*question),
		left:      make(map[int]bool),
		shrinks:   make(map[shrinkKey]int),
	}
	depot.Provide(j.provide)
	return j
}

// cores is the number of processors that the processes of one host share. Plans and
// ways of waiting depend on it: it is computed from what all know alike.
func (j *job) cores(numbers []int) int {
	var all affinity.Mask
	quota := 0
	for _, number := range numbers {
		d := &j.processes[number]
		all = all.Union(d.CPUs)
		if d.Quota > 0 && (quota == 0 || d.Quota < quota) {
			quota = d.Quota
		}
	}
	cores := max(all.Count(), 1)
	if quota > 0 {
		cores = min(cores, quota)
	}
	return cores
}

// ownQuota is the number of processors that this process's cgroup grants, if that
// is less than it could run on: the Go runtime has looked, unless it was told.
func ownQuota() int {
	if os.Getenv("GOMAXPROCS") != "" || runtime.GOMAXPROCS(0) >= runtime.NumCPU() {
		return 0
	}
	return runtime.GOMAXPROCS(0)
}

// crowd describes the most crowded host of the given ranks' processes: how many
// processors there are, and for how many ranks.
func (j *job) crowd(ranks []int) (cores, sharers int) {
	machines := make([]string, len(ranks))
	for rank, number := range ranks {
		machines[rank] = j.processes[number].Machine
	}
	hosts := topo.HostsOf(machines)
	all := j.coresBy(hosts, ranks)
	host := hosts.MostCrowded(all)
	return all[host], len(hosts.Ranks(host))
}

// root makes this process's part of the communicator of all ranks and returns the
// handles of those that live here. Ranks are numbered through the processes.
func (j *job) root(ctx context.Context, c Config) ([]*Comm, error) {
	p := &process{job: j, name: "all", origin: "all", call: "Init", broken: nothing}
	for number, d := range j.processes {
		for range d.Ranks {
			p.global = append(p.global, len(p.ranks))
			p.ranks = append(p.ranks, number)
		}
	}
	if cores, sharers := j.crowd(p.ranks); c.RanksPerNode == 0 && sharers > cores {
		// Each hop costs a switch of processes: a tree over all ranks has
		// fewer of them one after the other than a chain.
		c.RanksPerNode = 1
	}
	w, err := newProcessWorld(ctx, p, c)
	if err != nil {
		return nil, err
	}
	var comms []*Comm
	for _, rank := range w.process.ranksIn(j.self) {
		comms = append(comms, w.comm(rank))
	}
	return comms, nil
}
