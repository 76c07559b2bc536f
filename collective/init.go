package collective

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/gollective/gollective/internal/address"
	"github.com/gollective/gollective/internal/affinity"
	"github.com/gollective/gollective/internal/bootstrap"
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/launch"
	"github.com/gollective/gollective/transport/shm"
	"github.com/gollective/gollective/transport/tcp"
)

// Place says where a process stands among the processes of its job. The zero
// value leaves that to the environment: GOLLECTIVE_*, torchrun, Open MPI, MPICH
// or Intel MPI (Hydra), Slurm, Kubernetes' Indexed Job, in this order; nothing set
// is a world of one.
type Place struct {
	// Rank and Size number the processes; they count when Size > 0. Variables:
	// GOLLECTIVE_RANK, GOLLECTIVE_SIZE.
	Rank, Size int
	// LocalRank and LocalSize are the same for the processes of this host; they
	// count when LocalSize > 0. Variables: GOLLECTIVE_LOCAL_RANK, _LOCAL_SIZE.
	LocalRank, LocalSize int
	// ID is the text of a UniqueID, made by one process and given to all.
	// Variable: GOLLECTIVE_COMM_ID.
	ID string
	// Root is, instead of ID, the host:port on which rank 0 is to listen.
	// Variable: GOLLECTIVE_ROOT.
	Root string
}

// UniqueID is where the processes of one job meet. It serves in the process that
// made it. One is enough for several calls of Init, as long as it is the same
// processes that make them, in the same order.
//
// NCCL: ncclGetUniqueId.
type UniqueID struct{ root *bootstrap.Root }

// NewUniqueID makes an id and serves it until Close. Of c it uses SocketIfname,
// SocketFamily, Ports, JoinTimeout and Logger, with their variables; when Place
// says that all processes are on this host it opens no port.
func NewUniqueID(c Config) (*UniqueID, error) {
	c, err := c.resolve()
	if err != nil {
		return nil, err
	}
	network := bootstrap.NetworkAll
	if c.Place.Size > 0 && c.Place.LocalSize == c.Place.Size {
		network = bootstrap.NetworkLocal
	}
	root, err := c.listen(bootstrap.ID{}, -1, network)
	if err != nil {
		return nil, err
	}
	return &UniqueID{root}, nil
}

// String is the text for Place.ID or GOLLECTIVE_COMM_ID. Whoever has it can join:
// it holds the job's secret.
func (u *UniqueID) String() string {
	if u == nil || u.root == nil {
		return ""
	}
	return u.root.ID().String()
}

// Close ends the service. Those who have joined don't need it any more.
func (u *UniqueID) Close() error {
	if u == nil || u.root == nil {
		return nil
	}
	return u.root.Close()
}

// Init joins this process, with one rank, to the communicator of its job, and
// returns when all processes have joined. Alone, it returns a communicator of
// one rank.
//
// Every step ends: by c.JoinTimeout at the latest, with an error that names the
// step and the processes waited for. All processes must have set alike what plans
// depend on; if not, the error shows both. ErrPeerLost names a process that died
// meanwhile, ErrTimeout those that did not come; ranks are processes' in these
// errors.
//
// NCCL: ncclCommInitRankConfig.
func Init(ctx context.Context, c Config) (*Comm, error) {
	comms, err := InitLocal(ctx, 1, c)
	if err != nil {
		return nil, err
	}
	return comms[0], nil
}

// InitLocal is Init for a process that brings several ranks, each meant for a
// goroutine of its own. Processes may bring different numbers; ranks are numbered
// through the processes in order.
func InitLocal(ctx context.Context, ranks int, c Config) ([]*Comm, error) {
	if ctx == nil {
		return nil, &fault.Argument{Call: "Init", Reason: "the context is nil", Err: ErrInvalid}
	}
	if ranks < 1 || ranks > mostRanks {
		return nil, &fault.Argument{Call: "Init", Reason: fmt.Sprintf("%d ranks", ranks), Err: ErrInvalid}
	}
	c, err := c.resolve()
	if err != nil {
		return nil, err
	}
	world, err := launch.Find(ctx, launch.Explicit(c.Place), os.LookupEnv)
	if err != nil {
		return nil, err
	}
	c.Logger.Debug("collective: place found", "world", world.String(), "notes", world.Notes)
	if world.Size == 1 {
		world.Rendezvous.Release()
		if c.Transport == "shm" {
			return nil, &fault.Argument{Call: "Init", Reason: "ranks of one process are connected inproc, not by shm", Err: ErrUnsupported}
		}
		return initAll(ranks, c)
	}
	if c.Transport == "inproc" {
		world.Rendezvous.Release()
		return nil, &fault.Argument{Call: "Init", Reason: fmt.Sprintf("%d processes can't be connected inproc", world.Size), Err: ErrUnsupported}
	}
	j, err := join(ctx, world, ranks, c)
	if err != nil {
		return nil, err
	}
	return j.root(ctx, c)
}

// join makes this process a member of its job.
func join(ctx context.Context, world launch.World, ranks int, c Config) (j *job, err error) {
	depot, mark, err := openDepot()
	if err != nil {
		world.Rendezvous.Release()
		return nil, err
	}
	var port *tcp.Port
	defer func() {
		if err != nil && j == nil {
			err = errors.Join(err, depot.Close())
			if port != nil {
				err = errors.Join(err, port.Close())
			}
		}
	}()
	id, root, err := meet(ctx, world, c)
	if err != nil {
		return nil, err
	}
	text, port, err := c.describe(world, id, ranks, depot, mark)
	if err != nil {
		if root != nil {
			err = errors.Join(err, root.Close())
		}
		return nil, err
	}
	encrypted, err := c.tls(id.Secret())
	if err != nil {
		return nil, err
	}
	control, err := bootstrap.Join(ctx, bootstrap.Config{
		ID: id, Rank: world.Rank, Size: world.Size, Description: text,
		Timeout:    c.JoinTimeout,
		Interfaces: c.SocketIfname, Family: c.SocketFamily, Ports: c.ports,
		TLS:    encrypted,
		Logger: c.quiet(),
	})
	if root != nil {
		_ = root.Close() // all have joined, or the job has failed
	}
	if err != nil {
		return nil, joinError(world.Rank, err)
	}
	j = newJob(world.Rank, control, depot, c.JoinTimeout)
	j.port, j.sockets = port, c.Transport == "tcp"
	if j.processes, err = decodeDescriptions(control.Descriptions(), j.self, c.tuning); err != nil {
		j.end()
		return j, err
	}
	if err := j.reachable(c); err != nil {
		j.end()
		return j, err
	}
	control.Handle(bootstrap.Handler{Message: j.handle, Lost: j.lose, Left: j.leave})
	return j, nil
}

// describe makes what this process tells all others, and opens its port for data
// unless the launcher says that all processes share this host and its memory.
func (c Config) describe(world launch.World, id bootstrap.ID, ranks int, depot *shm.Depot, mark []byte) (text []byte, port *tcp.Port, err error) {
	host, _ := os.Hostname() // for messages
	d := description{
		Version: descriptionVersion, Ranks: ranks, Depot: depot.Address(), Mark: mark, Machine: c.machine(),
		Host: host, PID: os.Getpid(), CPUs: affinity.Own(), Quota: ownQuota(), Config: c.agreement(), Tuned: c.tuned(),
	}
	local := world.LocalSize == world.Size && c.HostID == ""
	if c.Transport == "tcp" || c.Transport != "shm" && !local {
		port, err = c.port(id.Secret(), func(p *tcp.PortConfig) {
			p.Loopback = local || loopback(id)
			p.Routed = routed(id)
		})
		if err != nil {
			return nil, nil, err
		}
		d.Ports = port.Addresses()
	}
	text, err = json.Marshal(d)
	return text, port, err
}

// loopback reports whether the root is reached at loopback addresses only.
func loopback(id bootstrap.ID) bool {
	for _, target := range id.Addrs() {
		host, _, err := net.SplitHostPort(target)
		if err != nil {
			continue // a unix socket
		}
		if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
			return false
		}
	}
	return true
}

// routed is this host's address from which the root is reached, the zero value on the
// root's own host.
func routed(id bootstrap.ID) netip.Addr {
	for _, target := range id.Addrs() {
		if host, _, err := net.SplitHostPort(target); err == nil {
			if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
				continue
			}
			if from := address.Routed(target); from.IsValid() && !from.IsLoopback() {
				return from
			}
		}
	}
	return netip.Addr{}
}

// reachable reports processes that this one can't be connected to.
func (j *job) reachable(c Config) error {
	for number, d := range j.processes {
		switch {
		case j.near(number):
		case c.Transport == "shm":
			return &fault.Argument{Call: "Init", Reason: fmt.Sprintf("process %d (%s, pid %d) is on another host: no shared memory", number, d.Host, d.PID), Err: ErrUnsupported}
		case len(d.Ports) == 0 || j.port == nil:
			return &fault.Argument{Call: "Init", Reason: fmt.Sprintf("process %d (%s, pid %d) is on another host, though the launcher said that all are on one: it has opened no port", number, d.Host, d.PID), Err: ErrUnsupported}
		}
	}
	return nil
}

// joinFailure is an error of package bootstrap that also answers as the kind that it
// is among those of communicators.
type joinFailure struct {
	error
	kind error
}

func (e *joinFailure) Unwrap() []error { return []error{e.error, e.kind} }

// joinError gives a failure to join its kind. Ranks are processes' there: which
// ranks of the communicator live where is not known yet.
func joinError(self int, err error) error {
	var e *bootstrap.Error
	if !errors.As(err, &e) {
		return err
	}
	var kind error
	switch {
	case errors.Is(err, bootstrap.ErrLost) && e.Rank >= 0:
		kind = &fault.PeerLost{Rank: e.Rank, Cause: err}
	case errors.Is(err, bootstrap.ErrMissing), errors.Is(err, bootstrap.ErrTimeout):
		timeout := &fault.Timeout{Rank: self, Call: "Init", Missing: e.Missing, Waiting: -1, Cause: context.DeadlineExceeded}
		if len(e.Missing) == 0 && e.Rank >= 0 {
			timeout.Missing = []int{e.Rank}
		}
		kind = timeout
	case errors.Is(err, bootstrap.ErrSize), errors.Is(err, bootstrap.ErrClaimed):
		kind = ErrInvalid
	case errors.Is(err, bootstrap.ErrGaveUp), errors.Is(err, bootstrap.ErrRoot):
		kind = &fault.Abort{Rank: e.Rank, Call: "Init", Cause: err}
	default:
		return err
	}
	return &joinFailure{err, kind}
}

// openDepot starts this process's depot. Its secret comes with the mark, to those
// who have joined.
func openDepot() (*shm.Depot, []byte, error) {
	mark := make([]byte, 32)
	if _, err := rand.Read(mark); err != nil {
		return nil, nil, err
	}
	depot, err := shm.Open(mark)
	return depot, mark, err
}

// meet turns a rendezvous into an id, which rank 0 serves until root is closed.
func meet(ctx context.Context, world launch.World, c Config) (bootstrap.ID, *bootstrap.Root, error) {
	r := world.Rendezvous
	first := world.Rank == 0
	network := bootstrap.NetworkAll
	if world.LocalSize == world.Size {
		network = bootstrap.NetworkLocal
	}
	var id bootstrap.ID
	var root *bootstrap.Root
	var err error
	switch r.Kind {
	case launch.ID:
		// Whoever made it serves it.
		id, err = bootstrap.ParseID(r.ID)
	case launch.Address:
		if c.TLS == "job" && r.Key.Strength == launch.KeyNone {
			err = &fault.Argument{Call: "Init", Reason: "TLS needs a secret that only the job's processes know: set GOLLECTIVE_JOB_KEY", Err: ErrInvalid}
			break
		}
		addresses := r.Addresses
		if r.SameHost && r.Key.Strength > launch.KeyNone {
			addresses = []string{"unix"}
		}
		seed := append([]byte(fmt.Sprint(addresses)), r.Key.Secret[:]...)
		if id, err = bootstrap.MakeID(seed, addresses...); err == nil && first {
			root, err = c.listen(id, 0, network)
		}
	case launch.Store:
		id, root, err = c.exchange(ctx, r, world.Rank, network)
	default:
		err = fmt.Errorf("%w: %d processes and no meeting place", ErrInvalid, world.Size)
	}
	if err != nil && root != nil {
		err = errors.Join(err, root.Close())
		root = nil
	}
	return id, root, err
}

// exchange makes an id at rank 0 and gives it to all through the launcher's store.
func (c Config) exchange(ctx context.Context, r launch.Rendezvous, rank int, network string) (id bootstrap.ID, root *bootstrap.Root, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.JoinTimeout)
	defer cancel()
	store, err := r.Open(ctx)
	if err != nil {
		return id, nil, err
	}
	text, err := launch.Publish(ctx, store, rank, "gollective-id", func() (string, error) {
		var err error
		if root, err = c.listen(bootstrap.ID{}, 0, network); err != nil {
			return "", err
		}
		return root.ID().String(), nil
	})
	if err != nil {
		return id, root, err
	}
	if err := store.Close(); err != nil {
		return id, root, err
	}
	id, err = bootstrap.ParseID(text)
	return id, root, err
}

// listen starts a root.
func (c Config) listen(id bootstrap.ID, owner int, network string) (*bootstrap.Root, error) {
	return bootstrap.Listen(bootstrap.ListenConfig{
		TLSOf: func(id bootstrap.ID) (*tls.Config, error) { return c.tls(id.Secret()) },
		ID:    id, Network: network, Owner: owner, Again: owner < 0,
		Interfaces: c.SocketIfname, Family: c.SocketFamily, Ports: c.ports,
		Timeout: c.JoinTimeout, Logger: c.quiet(),
	})
}
