package collective

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/internal/affinity"
	"github.com/gollective/gollective/internal/bootstrap"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport/tcp"
)

// Config tells how a communicator works. The zero value is a good choice; each
// field says what zero means. All ranks of a communicator must use equal ones.
//
// Variables of the environment win over fields, as NCCL's do; they are read
// once, when the communicator is made. A variable with an unacceptable value is
// an error, an unknown one that begins with GOLLECTIVE_ is logged as a warning.
type Config struct {
	// Algorithm and Protocol force a choice where the collective has it.
	// Default: chosen per call by a cost model.
	// Variables: GOLLECTIVE_ALGO (auto, ring, tree, oneshot, twoshot),
	// GOLLECTIVE_PROTO (auto, simple, ll, ll128, direct), and for both NCCL's lists,
	// such as ring,tree or ring;allreduce:^ring (plan.Allowed.ParseAlgorithms).
	Algorithm plan.Algorithm
	Protocol  plan.Protocol

	// Reproducible has sums and products of floats combined in the order of the
	// ranks, so that AllReduce, Reduce and ReduceScatter have the bits of a loop
	// over ranks whatever the size, the transport, the protocol, the channels and
	// the timing. (Types of 16 and 8 bits are rounded once, behind the last
	// rank.) It needs the algorithm twoshot, where all ranks are goroutines of one
	// process, or oneshot, which is slow where there are many ranks or bytes. What
	// excludes these is an error: ErrInvalid for a forced ring or tree, ErrUnsupported
	// at the call for a list that leaves neither; a forced twoshot between processes
	// gives way to oneshot. Everything else is reproducible anyway. Variable: GOLLECTIVE_REPRODUCIBLE (0, 1).
	Reproducible bool

	// TunerFile is a file of rules in the format of NCCL's tuner plugin, such as
	// gollective tune writes, that decide instead of the cost model
	// (plan.ParseTuning; docs/tuning.md). What is forced, or must be reproducible,
	// stays. All ranks need the same rules. Default "": none. Variable:
	// GOLLECTIVE_TUNER_FILE.
	TunerFile string
	tuning    *plan.Tuning // what is in it

	// MinChannels and MaxChannels bound how many blocks share a call.
	// Default: 1 and 2; at most 64.
	// Variables: GOLLECTIVE_MIN_NCHANNELS, GOLLECTIVE_MAX_NCHANNELS.
	MinChannels, MaxChannels int

	// Channels forces the number of channels, but for calls too small to have
	// something for each. Default 0: by size.
	Channels int

	// BuffSize is the size of a FIFO of the Simple protocol in bytes: eight
	// slots. Default 2 MiB, at least 512 B; NCCL's is 4 MiB, of which less stays in
	// a processor's caches. Variable: GOLLECTIVE_BUFFSIZE.
	BuffSize int
	// LLBuffSize is the same for LL, where half of the bytes are flags.
	// Default 512 KiB, at least 512 B. Variable: GOLLECTIVE_LL_BUFFSIZE.
	LLBuffSize int
	// LL128BuffSize is the same for LL128, where 8 of 128 bytes are flags.
	// Default 4800 KiB, at least 1 KiB. Variable: GOLLECTIVE_LL128_BUFFSIZE.
	LL128BuffSize int
	// P2PChunkSize is the size of a slot of point-to-point traffic in bytes.
	// Default 128 KiB, at least 64 B. Variable: GOLLECTIVE_P2P_CHUNKSIZE.
	P2PChunkSize int

	// RanksPerNode makes virtual nodes of so many consecutive ranks: rings
	// enter a node once, trees are laid over nodes with a chain inside each.
	// Default 0: all ranks of a process are one node, so that a tree is a
	// chain. 1 gives a tree over all ranks. Variable: GOLLECTIVE_RANKS_PER_NODE.
	RanksPerNode int

	// Wait is how blocks wait. Default adaptive.
	// Variable: GOLLECTIVE_WAIT (spin, yield, adaptive, block).
	Wait WaitPolicy

	// Timeout bounds the time that a call may spend waiting, besides its
	// context. Default 0: none. Variable: GOLLECTIVE_TIMEOUT (as
	// time.ParseDuration, 90s).
	Timeout time.Duration

	// Place is where this process stands in its job; Init only.
	Place Place

	// Transport is how ranks are connected: "auto", "inproc" (goroutines of one
	// process), "shm" (shared memory between processes of one host) or "tcp"
	// (sockets, also between ranks of one process). Default "": auto, the best
	// that each pair of ranks can use. Variable: GOLLECTIVE_TRANSPORT.
	Transport string

	// HostID names the host that this process counts itself to: processes of
	// equal names share memory. Default "": the machine and its network
	// namespace. Variable: GOLLECTIVE_HOSTID.
	HostID string

	// Proxy says who moves bytes between FIFOs and sockets: "thread", one thread
	// per rank that polls while an operation is in flight, as NCCL's proxy does;
	// "inline", the blocks while they wait; "auto". Default "": auto, a thread
	// where each rank has two cores or more and there is no TLS. Variable:
	// GOLLECTIVE_PROXY.
	Proxy string
	// ProxyCPUs are the processors that proxy threads may use, as in "0-3,8".
	// Default "": all of this process's. Variable: GOLLECTIVE_PROXY_CPUSET.
	ProxyCPUs string

	// SocketThreads helper threads, with SocketsPerThread sockets each, carry the
	// payloads of a connection; at most 16 threads and 64 sockets. Default 0: the
	// proxy does it over one socket. Variables: GOLLECTIVE_SOCKET_NTHREADS,
	// GOLLECTIVE_NSOCKS_PERTHREAD.
	SocketThreads, SocketsPerThread int

	// SocketBuffer is the size of the system's buffers of a socket in bytes.
	// Default 0: the system adapts it; else at least 4096. Variable:
	// GOLLECTIVE_SOCKET_BUFFER.
	SocketBuffer int

	// SocketRate bounds what a socket sends, in bytes per second, so that one
	// machine can show what a slow network does. Default 0: no bound. Variable:
	// GOLLECTIVE_SOCKET_RATE.
	SocketRate int

	// PeerTimeout is how long a host may be silent, though its kernel should
	// answer, before its ranks count as lost. Default 30 s. Variable:
	// GOLLECTIVE_PEER_TIMEOUT.
	PeerTimeout time.Duration

	// TLS encrypts what goes over sockets, control and data, with TLS 1.3: "job"
	// with a key derived from the job's secret (of its id, of its launcher, or
	// GOLLECTIVE_JOB_KEY; without any that is an error), "files" with the certificate,
	// key and authorities in TLSCert, TLSKey and TLSCA (PEM files). Default "":
	// "off". Variables: GOLLECTIVE_TLS, GOLLECTIVE_TLS_CERT, _KEY and _CA.
	TLS                    string
	TLSCert, TLSKey, TLSCA string

	// JoinTimeout bounds each step of joining a job. Default 60 s. Variable:
	// GOLLECTIVE_JOIN_TIMEOUT.
	JoinTimeout time.Duration

	// SocketIfname and SocketFamily say over which interfaces the processes of
	// a job talk to each other: a list of prefixes ("eth,ib"), '^' in front
	// excludes, '=' asks for exact names; AF_INET or AF_INET6. Default: what
	// reaches the other side. Variables: GOLLECTIVE_SOCKET_IFNAME,
	// GOLLECTIVE_SOCKET_FAMILY.
	SocketIfname, SocketFamily string

	// Ports is where this process may listen: "" or "0" for any free port, a
	// number, or a range such as "5000-5010". Variable: GOLLECTIVE_PORTS.
	Ports string
	ports bootstrap.Ports // what Ports means

	proxyCPUs affinity.Mask // what ProxyCPUs means
	faults    *tcp.Faults   // of sockets, for tests

	// Accounting switches the counting of time, processor time and bytes in
	// Stats on. It takes about 0.2 µs per call and channel, and may differ from rank
	// to rank. Default: only what waiting does is counted, which is free.
	// Variable: GOLLECTIVE_ACCOUNTING (0, 1).
	Accounting bool

	// Profile gives the goroutines that work for the communicator, a caller's during
	// its call included, labels for runtime/pprof: comm, rank, role (block, proxy,
	// helper) and channel. A caller gets back the labels of the context that it
	// has given. May differ from rank to rank. Variable: GOLLECTIVE_PROFILE (0, 1).
	//
	// Execution traces (runtime/trace) need no switch: while one is made, calls and
	// waits are regions in it.
	Profile bool

	// Logger gets warnings and, at level debug, what was chosen.
	// Default: slog.Default(), or what the variable GOLLECTIVE_DEBUG (WARN, INFO)
	// says: INFO prints everything on standard error.
	Logger *slog.Logger

	// firstStep starts the FIFOs' counters elsewhere than at 0, for tests of
	// the wrap-around.
	firstStep uint64

	// allowed is what GOLLECTIVE_ALGO and GOLLECTIVE_PROTO allow as lists.
	allowed plan.Allowed
	// origins are the variables that set fields, as NAME=VALUE, by field.
	origins map[string]string

	// cores is GOMAXPROCS when the communicator was made. It may change later,
	// and all ranks, those of splits too, must plan with the same number. Where
	// ranks are processes, cores and sharers describe the host with the fewest
	// cores per rank; hosts says which ranks share one, nil if all do, and carried
	// that they are connected by sockets nevertheless.
	cores, sharers int
	hosts          *topo.Hosts
	carried        bool
}

// WaitPolicy says how a waiting block uses the processor. Its String is the name
// that GOLLECTIVE_WAIT takes.
type WaitPolicy = spin.Policy

const (
	// WaitAdaptive polls for about two microseconds, goes on with the processor
	// given away in between for about a millisecond, then sleeps; where ranks
	// outnumber cores it gives the processor away at once and sleeps sooner.
	WaitAdaptive = spin.Adaptive
	// WaitSpin polls all the time, as NCCL's kernels and proxies do.
	WaitSpin = spin.Spin
	// WaitYield gives the processor away after every poll.
	WaitYield = spin.Yield
	// WaitBlock sleeps at once.
	WaitBlock = spin.Block
)

// NCCL's sizes (src/init.cc, computeBuffSizes) and ours for what NCCL derives.
const (
	defaultBuffSize      = 2 << 20
	defaultLLBuffSize    = 8 * 64 << 10
	defaultLL128BuffSize = 8 * 600 << 10
	defaultP2PChunkSize  = 128 << 10
	p2pLLPayload         = 16 << 10 // the largest part of a message that LL carries
	defaultMaxChannels   = 2        // a double binary tree needs two
	mostChannels         = 64       // MAXCHANNELS
	slots                = 8        // NCCL_STEPS
	deskPayload          = 64 << 10 // bytes of a post
	mostRanks            = 1 << 20  // of a process
	defaultJoinTimeout   = 60 * time.Second
	defaultPeerTimeout   = 30 * time.Second
	mostSocketThreads    = 16 // MAX_THREADS and MAX_SOCKETS in src/transport/net_socket.cc
	mostSockets          = 64
)

// withDefaults returns c with every default filled in, or all that is wrong with
// it.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	refuse := func(name string, value any, accepted string) {
		given, ok := c.origins[name]
		if !ok {
			given = fmt.Sprintf("Config.%s is %v", name, value)
		}
		errs = append(errs, fmt.Errorf("%w: %s, accepted are %s", ErrInvalid, given, accepted))
	}
	fill := func(name string, field *int, def, least, most int) {
		if *field == 0 {
			*field = def
		}
		if *field < least || *field > most {
			refuse(name, *field, fmt.Sprintf("%d to %d", least, most))
		}
	}
	const mostBytes = 1 << 30
	if c.Channels > 0 && c.Channels <= mostChannels {
		c.MinChannels, c.MaxChannels = c.Channels, max(c.Channels, c.MaxChannels)
	}
	fill("MaxChannels", &c.MaxChannels, min(max(defaultMaxChannels, c.MinChannels), mostChannels), 1, mostChannels)
	most := c.MaxChannels
	if most < 1 || most > mostChannels {
		most = mostChannels // that mistake has been told
	}
	fill("MinChannels", &c.MinChannels, 1, 1, most)
	fill("BuffSize", &c.BuffSize, defaultBuffSize, 512, mostBytes)
	fill("LLBuffSize", &c.LLBuffSize, defaultLLBuffSize, 512, mostBytes)
	fill("LL128BuffSize", &c.LL128BuffSize, defaultLL128BuffSize, 1024, mostBytes)
	fill("P2PChunkSize", &c.P2PChunkSize, defaultP2PChunkSize, 64, mostBytes/slots)
	if c.Channels < 0 || c.Channels > mostChannels {
		refuse("Channels", c.Channels, fmt.Sprintf("0 to %d", mostChannels))
	}
	if c.RanksPerNode < 0 {
		refuse("RanksPerNode", c.RanksPerNode, "0 and more")
	}
	if c.Timeout < 0 {
		refuse("Timeout", c.Timeout, "0 and more")
	}
	if !slices.Contains(plan.Algorithms(), c.Algorithm) {
		refuse("Algorithm", c.Algorithm, "auto, ring, tree, oneshot and twoshot")
	}
	if c.Reproducible && (c.Algorithm == plan.Ring || c.Algorithm == plan.Tree) {
		refuse("Algorithm", c.Algorithm, "auto, oneshot and twoshot, where results must be reproducible")
	}
	if c.Protocol > plan.Direct {
		refuse("Protocol", c.Protocol, "auto, simple, ll, ll128 and direct")
	}
	if _, err := spin.ParsePolicy(c.Wait.String()); err != nil {
		refuse("Wait", c.Wait, "spin, yield, adaptive and block")
	}
	switch c.Transport {
	case "", "auto", "inproc", "shm", "tcp":
	default:
		refuse("Transport", strconv.Quote(c.Transport), "auto, inproc, shm and tcp")
	}
	c.socketDefaults(fill, refuse)
	if c.JoinTimeout < 0 {
		refuse("JoinTimeout", c.JoinTimeout, "0 and more")
	} else if c.JoinTimeout == 0 {
		c.JoinTimeout = defaultJoinTimeout
	}
	var err error
	if c.ports, err = bootstrap.ParsePorts(c.Ports); err != nil {
		given, ok := c.origins["Ports"]
		if !ok {
			given = "Config.Ports"
		}
		errs = append(errs, fmt.Errorf("%w: %s: %w", ErrInvalid, given, err))
	}
	c.Logger = c.logger()
	if c.tuning, err = c.readTuning(); err != nil {
		errs = append(errs, err)
	}
	c.cores = runtime.GOMAXPROCS(0)
	return c, errors.Join(errs...)
}

// world is what plans depend on. c has its defaults.
func (c Config) world(rank, size int, ordered bool, sight plan.Sight) plan.World {
	w := plan.World{
		Rank: rank, Size: size,
		RanksPerNode: c.RanksPerNode,
		MinChannels:  c.MinChannels, MaxChannels: c.MaxChannels,
		Cores: c.cores, Sharers: c.sharers, Tuning: c.tuning,
		Hosts: c.hosts, Carried: c.carried,
		Allowed:       c.allowed,
		Reproducible:  c.Reproducible,
		Force:         plan.Choice{Algorithm: c.Algorithm, Protocol: c.Protocol, Channels: c.Channels},
		OrderedStores: ordered,
		Sight:         sight, DeskPayload: deskPayload,
	}
	w.Payload[plan.Simple] = c.BuffSize / slots
	w.Payload[plan.LL] = c.LLBuffSize / slots / 16 * 8
	w.Payload[plan.LL128] = c.LL128BuffSize / slots / 128 * 120
	w.P2PPayload[plan.Simple] = c.P2PChunkSize
	w.P2PPayload[plan.LL] = min(p2pLLPayload, max(w.Payload[plan.LL], 8))
	return w
}

func (c Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.Default()
	}
	return c.Logger
}

// quiet is the logger for the parts below: their choices are for those who ask
// for debug messages, their warnings for everybody.
func (c Config) quiet() *slog.Logger {
	if c.Logger.Enabled(context.Background(), slog.LevelDebug) {
		return c.Logger
	}
	return slog.New(warnings{c.Logger.Handler()})
}

// warnings is a handler that passes warnings and errors on.
type warnings struct{ slog.Handler }

func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}
func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs)}
}
func (w warnings) WithGroup(name string) slog.Handler { return warnings{w.Handler.WithGroup(name)} }
