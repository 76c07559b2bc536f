package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gollective/gollective/collective"
)

// group is a setting in which contenders are compared.
type group struct {
	Transport string `json:"transport"`
	Ranks     int    `json:"ranks"`
}

// machine is the group of lines that no setting changes.
var machine = group{Transport: "machine"}

// role says what a contender is in tables.
type role int

const (
	peer      role = iota // another library
	ours                  // gollective
	limit                 // what the machine allows
	reference             // gollective, held to an algorithm and a protocol
)

// contender is a program, or a way to use one, that takes part.
type contender struct {
	id, family string // either selects it
	name       string // in tables
	role       role
	transports []string
	// ping contenders have a time, but no bytes.
	ping bool
	// crowd contenders take part where ranks are four times the usual two; see
	// options.crowd.
	crowd bool
	// only says where a contender takes part, among the transports; nil is everywhere.
	only func(g group, bytes int) bool
	// brief says where it is known to take seconds for what others do in microseconds;
	// nil is nowhere.
	brief func(g group, cores int) bool
	// build makes the program, or says what is missing.
	build func(w *workshop) (program, error)
	// start says how the program is run. cleanup may be nil.
	start func(p program, s setting) (l launch, cleanup func(), err error)
}

// setting is what a run is told.
type setting struct {
	group
	seconds float64 // per job
	cores   []int
	jobs    []job
	scratch string // a directory of this run's own
}

// arguments is what all programs take before their jobs: SECONDS CORES.
func (s setting) arguments() []string {
	var cores []string
	for _, core := range s.cores {
		cores = append(cores, strconv.Itoa(core))
	}
	return []string{strconv.FormatFloat(s.seconds, 'g', -1, 64), strings.Join(cores, ",")}
}

// launch is a command that is started once, or once per rank.
type launch struct {
	command   []string // without the jobs, which are its last arguments
	processes int
	// environ is what the environment has besides this process's own.
	environ func(process int) []string
}

// contenders lists all of them, in the order of the tables' columns.
var contenders = []contender{
	{id: "openmpi", family: "openmpi", name: "Open MPI", crowd: true, transports: []string{overShm, overTCP}, build: buildOpenMPI, start: startOpenMPI},
	{id: "mpich", family: "mpich", name: "MPICH", brief: overTCPOrCrowded, transports: []string{overShm, overTCP}, build: buildMPICH, start: startMPICH},
	{id: "gloo-default", family: "gloo", name: "Gloo", brief: crowded, transports: []string{overTCP}, build: buildGloo, start: gloo("default")},
	{id: "gloo-sync", family: "gloo", name: "Gloo sync", brief: crowded, transports: []string{overTCP}, build: buildGloo, start: gloo("sync")},
	{id: "gloo-poll", family: "gloo", name: "Gloo busy-poll", brief: crowded, transports: []string{overTCP}, build: buildGloo, start: gloo("poll")},
	{id: "gollective-processes", family: "gollective", name: "gollective", role: ours, transports: []string{overShm, overTCP}, build: buildNothing, start: gollective(inSlices)},
	{id: "gollective-memalloc", family: "gollective", name: "gollective MemAlloc", role: ours, transports: []string{overShm}, build: buildNothing, start: gollective(inMemAlloc)},
	{id: "gollective-goroutines", family: "gollective", name: "gollective goroutines", role: ours, crowd: true, transports: []string{overShm}, build: buildNothing, start: gollective(inGoroutines)},
	{id: "gollective-ring", family: "gollective", name: "ring", role: reference, only: twoRanksAt(1<<20, 4<<20, 16<<20), transports: []string{overShm}, build: buildNothing, start: gollective(inSlices, forced("ring", "simple")...)},
	{id: "gollective-tree", family: "gollective", name: "tree", role: reference, only: twoRanksAt(1<<20, 4<<20, 16<<20), transports: []string{overShm}, build: buildNothing, start: gollective(inSlices, forced("tree", "simple")...)},
	{id: "gollective-ring-ll128", family: "gollective", name: "ring LL128", role: reference, only: twoRanksAt(1 << 20), transports: []string{overShm}, build: buildNothing, start: gollective(inSlices, forced("ring", "ll128")...)},
	{id: "gollective-ring-ll", family: "gollective", name: "ring LL", role: reference, only: twoRanksAt(1 << 20), transports: []string{overShm}, build: buildNothing, start: gollective(inSlices, forced("ring", "ll")...)},
	{id: "ideal", family: "limits", name: "ideal", role: limit, transports: []string{overShm}, build: buildLimits, start: limitOfRanks("ideal")},
	{id: "wire", family: "limits", name: "bare TCP", role: limit, transports: []string{overTCP}, build: buildLimits, start: limitOfRanks("wire")},
	{id: "copy", family: "limits", name: "memcpy, one core", role: limit, transports: []string{machine.Transport}, build: buildLimits, start: limitOf("copy")},
	{id: "copies", family: "limits", name: "memcpy, each core", role: limit, transports: []string{machine.Transport}, build: buildLimits, start: limitOf("copies")},
	{id: "exchange", family: "limits", name: "flags exchanged", role: limit, ping: true, transports: []string{machine.Transport}, build: buildLimits, start: limitOf("exchange")},
	{id: "ping", family: "limits", name: "flag, one way", role: limit, ping: true, transports: []string{machine.Transport}, build: buildLimits, start: limitOf("ping")},
	{id: "wire-ping", family: "limits", name: "TCP, one way, polling", role: limit, ping: true, transports: []string{machine.Transport}, build: buildLimits, start: limitOf("wire-ping")},
	{id: "wire-ping-asleep", family: "limits", name: "TCP, one way, sleeping", role: limit, ping: true, transports: []string{machine.Transport}, build: buildLimits, start: limitOf("wire-ping-asleep")},
}

// twoRanksAt is where the reference plans take part.
func twoRanksAt(sizes ...int) func(group, int) bool {
	return func(g group, bytes int) bool { return g.Ranks == 2 && slices.Contains(sizes, bytes) }
}

// crowded is where ranks outnumber processors: who waits there by polling, and does not
// yield, keeps others from doing what it waits for.
func crowded(g group, cores int) bool { return g.Ranks > cores }

func overTCPOrCrowded(g group, cores int) bool { return g.Transport == overTCP || crowded(g, cores) }

// forced is what holds gollective to an algorithm and a protocol.
func forced(algorithm, protocol string) []string {
	return []string{"GOLLECTIVE_ALGO=" + algorithm, "GOLLECTIVE_PROTO=" + protocol}
}

// ids are the values of -peers.
func ids() []string {
	all := []string{"all"}
	for _, c := range contenders {
		for _, id := range []string{c.family, c.id} {
			if !slices.Contains(all, id) {
				all = append(all, id)
			}
		}
	}
	return all
}

// selects reports whether -peers names c.
func (o *options) selects(c *contender) bool {
	return slices.ContainsFunc(o.peers, func(id string) bool { return id == "all" || id == c.family || id == c.id })
}

func startOpenMPI(p program, s setting) (launch, func(), error) {
	// What mpirun would choose here, said aloud; ranks pin themselves.
	command := []string{p.launcher, "-n", strconv.Itoa(s.Ranks), "--bind-to", "none", "--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl"}
	switch {
	case s.Transport == overTCP:
		command = append(command, "self,tcp", "--mca", "btl_tcp_if_include", "lo")
	case p.major >= 5:
		command = append(command, "self,sm")
	default:
		command = append(command, "self,vader")
	}
	environ := func(int) []string {
		if os.Getuid() != 0 {
			return nil
		}
		return []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}
	}
	return launch{append(append(command, p.path), s.arguments()...), 1, environ}, nil, nil
}

func startMPICH(p program, s setting) (launch, func(), error) {
	command := append([]string{p.launcher, "-n", strconv.Itoa(s.Ranks), p.path}, s.arguments()...)
	environ := func(int) []string {
		if s.Transport != overTCP {
			return nil
		}
		// The second and third are for the netmod ch4:ucx, the last for ch4:ofi.
		return []string{"MPIR_CVAR_NOLOCAL=1", "UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo", "FI_PROVIDER=tcp"}
	}
	return launch{command, 1, environ}, nil, nil
}

// gloo starts gloo.cc in one of its ways.
func gloo(how string) func(program, setting) (launch, func(), error) {
	return func(p program, s setting) (launch, func(), error) {
		store := filepath.Join(s.scratch, "rendezvous")
		if err := os.Mkdir(store, 0o700); err != nil {
			return launch{}, nil, err
		}
		command := append([]string{p.path, how, store, strconv.Itoa(s.Ranks)}, s.arguments()...)
		return launch{command, s.Ranks, func(rank int) []string {
			return []string{fmt.Sprintf("PEERS_RANK=%d", rank)}
		}}, nil, nil
	}
}

// gollective starts this program as ranks; processes have some more in their
// environment.
func gollective(how string, more ...string) func(program, setting) (launch, func(), error) {
	return func(_ program, s setting) (launch, func(), error) {
		self, err := os.Executable()
		if err != nil {
			return launch{}, nil, err
		}
		command := append([]string{self, rankCommand, how, strconv.Itoa(s.Ranks)}, s.arguments()...)
		if how == inGoroutines {
			return launch{command, 1, func(int) []string { return nil }}, nil, nil
		}
		id, err := collective.NewUniqueID(collective.Config{Place: collective.Place{Size: s.Ranks, LocalSize: s.Ranks}})
		if err != nil {
			return launch{}, nil, err
		}
		environ := func(rank int) []string {
			return append([]string{
				fmt.Sprintf("GOLLECTIVE_RANK=%d", rank), fmt.Sprintf("GOLLECTIVE_SIZE=%d", s.Ranks),
				"GOLLECTIVE_COMM_ID=" + id.String(), "GOLLECTIVE_TRANSPORT=" + s.Transport,
			}, more...)
		}
		return launch{command, s.Ranks, environ}, func() { id.Close() }, nil
	}
}

func limitOf(what string) func(program, setting) (launch, func(), error) {
	return func(p program, s setting) (launch, func(), error) {
		return launch{append([]string{p.path, what}, s.arguments()...), 1, func(int) []string { return nil }}, nil, nil
	}
}

func limitOfRanks(what string) func(program, setting) (launch, func(), error) {
	return func(p program, s setting) (launch, func(), error) {
		return launch{append([]string{p.path, what, strconv.Itoa(s.Ranks)}, s.arguments()...), 1, func(int) []string { return nil }}, nil, nil
	}
}
