package bootstrap

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gollective/gollective/internal/address"
	"github.com/gollective/gollective/internal/handshake"
)

// ListenConfig says where and how the root listens. The zero value is right for
// jobs of any shape.
type ListenConfig struct {
	// ID is an id made with MakeID, to be served at its own addresses. Zero makes
	// a new one.
	ID ID
	// Network is "" for processes of this host and of others, "local" for a job
	// of one host (an abstract unix socket on Linux, loopback TCP elsewhere), "tcp"
	// for TCP only.
	Network string
	// Interfaces is a list as in NCCL_SOCKET_IFNAME: prefixes, '^' excludes, '='
	// is exact. Empty takes every address that others can use.
	Interfaces string
	// Family is FamilyIPv4, FamilyIPv6, or "" for both, as NCCL_SOCKET_FAMILY.
	Family string
	// Ports is where to listen; any free port by default. An ID given has its own.
	Ports Ports
	// Owner is the rank whose process calls Listen, or -1 for a launcher. It is
	// named when the root dies.
	Owner int
	// Timeout is how long to wait for all ranks after the first; default 60 s.
	Timeout time.Duration
	// Again lets the processes of a job that has joined check in anew, as often as
	// they like, with the same rank and size: each time all of them make one more
	// job. Without it that is ErrClaimed.
	Again bool
	// TLS is as in Config. TLSOf makes it where it depends on the id.
	TLS   *tls.Config
	TLSOf func(ID) (*tls.Config, error)
	// Logger gets the choices made; nil is silent.
	Logger *slog.Logger
}

// Networks that a job can use.
const (
	NetworkAll   = ""
	NetworkLocal = "local"
	NetworkTCP   = "tcp"
)

const defaultTimeout = 60 * time.Second

// Root is where the processes of one job meet. It is needed until all of them
// have joined, and not afterwards.
//
// It has one goroutine for each listener, one that looks after waiting ranks,
// and one for each connection being examined (see gate); a rank that has checked
// in costs a socket and no goroutine.
//
// NCCL: bootstrapRoot (src/bootstrap.cc).
type Root struct {
	id      ID
	owner   int
	timeout time.Duration
	log     *slog.Logger
	gate    *handshake.Gate

	mu      sync.Mutex
	size    int    // 0 until the first check-in
	first   string // who was first: to name when sizes differ
	waiting map[int]*checkIn
	again   bool // ListenConfig.Again
	// members are the processes of the round that has joined, by rank.
	members map[int]member
	round   int
	checked int           // how many have checked in, ever
	failed  *Error        // the end of the job; kept for those who come later
	joined  bool          // some rank has joined, so all are connected
	closed  chan struct{} // closed by Close
	close   sync.Once
	watch   sync.WaitGroup
}

type checkIn struct {
	conn net.Conn
	m    member
}

// Listen makes an ID, unless it is given one, and serves it until Close.
func Listen(c ListenConfig) (*Root, error) {
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	place := address.Place{Interfaces: c.Interfaces, Family: c.Family, Ports: c.Ports}
	if err := errors.Join(place.Check(), checkNetwork(c.Network)); err != nil {
		return nil, fmt.Errorf("bootstrap: listen: %w", err)
	}
	filter, err := address.ParseInterfaces(c.Interfaces)
	if err != nil {
		return nil, err
	}
	r := &Root{id: c.ID, owner: c.Owner, again: c.Again, timeout: c.Timeout, log: c.Logger,
		waiting: make(map[int]*checkIn), closed: make(chan struct{})}
	var listeners []net.Listener
	if c.ID.IsZero() {
		listeners, err = r.open(c, filter)
	} else {
		listeners, err = reopen(c.ID, c.Family)
	}
	if err == nil && c.TLSOf != nil {
		c.TLS, err = c.TLSOf(r.id)
	}
	if err != nil {
		for _, l := range listeners {
			l.Close()
		}
		return nil, err
	}
	r.gate = newGate(r.id.terms(c.TLS), r.log, r.judge, r.enter)
	for _, l := range listeners {
		r.gate.Serve(l)
	}
	r.log.Info("bootstrap: root listens", "id", r.id)
	return r, nil
}

func checkNetwork(network string) error {
	switch network {
	case NetworkAll, NetworkLocal, NetworkTCP:
		return nil
	}
	return fmt.Errorf("network %q: %w: want %q, %q or nothing", network, ErrConfig, NetworkLocal, NetworkTCP)
}

// maxIDText bounds the text of an id that Listen makes. A host with many
// interfaces puts as many of its addresses there as fit, the one of its default
// route first: who can't reach one tries the others.
const maxIDText = 300

// open makes a new id and its listeners; those made before an error are
// returned with it.
func (r *Root) open(c ListenConfig, filter address.Filter) (ls []net.Listener, err error) {
	r.id = newID(nil)
	if c.Network != NetworkTCP && haveLocal {
		l, err := listenLocal(rootSocket(r.id.job))
		if err != nil {
			return ls, err
		}
		ls = append(ls, l)
		r.id.addrs = append(r.id.addrs, localAddr)
		if c.Network == NetworkLocal {
			return ls, nil
		}
	}
	nics, err := address.Local()
	if err != nil {
		return ls, err
	}
	use := address.Usable(nics, filter, c.Family)
	if c.Network == NetworkLocal {
		use = slices.DeleteFunc(slices.Clone(nics), func(n address.NIC) bool {
			return !n.Addr.IsLoopback() || !address.FamilyAllows(c.Family, n.Addr)
		})
	}
	if len(use) == 0 {
		return ls, fmt.Errorf("bootstrap: %w", address.NoneUsable(nics, filter, c.Family))
	}
	use = address.DefaultRouteFirst(use)
	host := "" // every address of the host, for one port for all of them
	if len(use) == 1 {
		host = use[0].Addr.String()
	}
	l, err := address.ListenAt(address.Network(c.Family), host, c.Ports, keepAlive)
	if err != nil {
		return ls, fmt.Errorf("bootstrap: %w", err)
	}
	ls = append(ls, l)
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	for _, n := range use {
		more := r.id
		more.addrs = append(slices.Clone(r.id.addrs), net.JoinHostPort(n.Addr.String(), port))
		if len(more.addrs) > maxIDAddrs || len(more.String()) > maxIDText {
			break
		}
		address.LogChoice(r.log, "root", n, filter, c.Family)
		r.id = more
	}
	return ls, nil
}

// reopen listens where an id says that its root is. Its host may be a name that
// means something else here than elsewhere, so the port is taken at every address.
func reopen(id ID, family string) (ls []net.Listener, err error) {
	ports := make(map[string]bool)
	for _, a := range id.addrs {
		if a == localAddr {
			if !haveLocal {
				continue
			}
			l, err := listenLocal(rootSocket(id.job))
			if err != nil {
				return ls, err
			}
			ls = append(ls, l)
			continue
		}
		host, port, err := net.SplitHostPort(a)
		if err != nil || ports[port] {
			continue
		}
		ports[port] = true
		n, _ := strconv.Atoi(port) // checked when the id was made
		// A host may have another address on its own side of a translator, or none
		// yet; but who names loopback does not mean the network.
		bind := ""
		if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
			bind = host
		}
		l, err := address.ListenAt(address.Network(family), bind, Ports{First: n}, keepAlive)
		if err != nil {
			return ls, fmt.Errorf("bootstrap: %w", err)
		}
		ls = append(ls, l)
	}
	if len(ls) == 0 {
		return nil, fmt.Errorf("bootstrap: listen: %w: the id has only unix addresses, which this system lacks", ErrConfig)
	}
	return ls, nil
}

// ID is what the processes need to join.
func (r *Root) ID() ID { return r.id }

// Close ends the root. Ranks that are still waiting for it fail with ErrRoot.
func (r *Root) Close() error {
	r.close.Do(func() {
		close(r.closed)
		r.gate.Close()
		r.watch.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.hangUp()
	})
	return nil
}

func (r *Root) judge(h hello) verdict {
	if h.to != toRoot || h.role == roleLink {
		return wrongProcess
	}
	return welcome
}

// enter takes the one record that a proven connection brings.
func (r *Root) enter(conn net.Conn, h hello) {
	kind, body, err := readRecord(conn, recordLimit(int(min(h.size, maxSize))))
	switch {
	case err != nil:
	case h.role == roleCheckIn && kind == recordCheckIn:
		s := scanner{rest: body}
		if m := s.member(); s.ok() {
			r.checkIn(conn, h, m)
			return
		}
	case h.role == roleReport && kind == recordReport:
		r.report(conn, h, body)
		return
	}
	conn.Close()
}

// maxSize bounds the number of processes that anybody may claim: what is
// allocated for one byte of a stranger's, or of a member gone mad, stays small.
const maxSize = 1 << 20

func (r *Root) checkIn(conn net.Conn, h hello, m member) {
	rank, size := int(h.from), int(h.size)
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.waiting[rank]; r.again && old != nil && old.m.incarnation != m.incarnation {
		r.lookAt(rank, old) // its word that it has joined may lie there still
	}
	if r.comesBack(rank, size, &m) {
		r.nextRound()
	}
	err := r.objection(rank, size, &m)
	if err != nil {
		r.fail(err) // unless it has failed already, or joined
	}
	if r.failed != nil || r.isClosed() {
		err = r.lastWord()
	}
	if err != nil {
		r.tell(conn, recordFailed, appendError(nil, err, max(r.size, size)))
		conn.Close()
		return
	}
	if r.size == 0 {
		r.size, r.first = size, fmt.Sprintf("rank %d (%v)", rank, &m)
		r.watch.Add(1)
		go r.lookAfter(r.round)
	}
	if old := r.waiting[rank]; old != nil {
		old.conn.Close() // the same process, trying again
	} else {
		r.checked++
	}
	r.waiting[rank] = &checkIn{conn, m}
	r.tell(conn, recordNoted, binary.BigEndian.AppendUint32(nil, uint32(int32(r.owner))))
	conn.SetDeadline(time.Time{})
	r.introduce(rank, (rank+1)%r.size)
	r.introduce((rank+r.size-1)%r.size, rank)
}

// comesBack reports whether a member of the job that has joined checks in for the
// next. Anybody else who claims its rank is a stranger.
func (r *Root) comesBack(rank, size int, m *member) bool {
	old, ok := r.members[rank]
	return r.again && r.joined && ok && size == r.size && old.pid == m.pid && old.host == m.host && old.incarnation != m.incarnation
}

// nextRound begins. Those of the last are all connected and need no
// root any more.
func (r *Root) nextRound() {
	r.round++
	r.size, r.first, r.checked, r.joined, r.members = 0, "", 0, false, nil
}

// objection is what is wrong with a check-in, or nil.
func (r *Root) objection(rank, size int, m *member) *Error {
	e := &Error{Phase: PhaseCheckIn, Rank: rank, Reporter: -1, Addr: m.addr()}
	switch old := r.waiting[rank]; {
	case r.size != 0 && size != r.size:
		e.Err = ErrSize
		e.Detail = fmt.Sprintf("rank %d (%v) has size %d, %s has size %d", rank, m, size, r.first, r.size)
		if rank >= r.size {
			e.Rank = -1 // not a rank of the others' job
		}
	case size < 1 || size > maxSize || rank >= size:
		e.Err, e.Rank = ErrSize, -1
		e.Detail = fmt.Sprintf("rank %d of size %d (%v) is not possible", rank, size, m)
	case r.joined:
		e.Err = ErrClaimed
		e.Detail = fmt.Sprintf("%v claims it after the job has started", m)
	case old != nil && old.m.incarnation != m.incarnation:
		e.Err = ErrClaimed
		e.Detail = fmt.Sprintf("by %v at %s and by %v at %s", &old.m, old.m.addr(), m, m.addr())
	default:
		return nil
	}
	return e
}

// introduce tells rank where next listens, if both have checked in.
func (r *Root) introduce(rank, next int) {
	a, b := r.waiting[rank], r.waiting[next]
	if a != nil && b != nil && !r.joined {
		r.tell(a.conn, recordNext, b.m.append(nil))
	}
}

// tell writes a record that fits into any socket buffer; who doesn't get it is
// found gone by the next look.
func (r *Root) tell(conn net.Conn, kind recordKind, body []byte) {
	conn.SetWriteDeadline(time.Now().Add(time.Second))
	_ = writeRecord(conn, kind, body)
	conn.SetWriteDeadline(time.Time{})
}

// report is a rank's word that the job can't start. The answer is why the job
// failed, which may be something that was noticed earlier.
func (r *Root) report(conn net.Conn, h hello, body []byte) {
	defer conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := decodeError(body, int(min(h.size, maxSize)))
	if !ok || r.size != 0 && int(h.size) != r.size || r.joined {
		return
	}
	if errors.Is(e.Err, ErrTimeout) {
		if r.size == 0 {
			return // it timed out before it, or anybody, had checked in
		}
		if missing := r.missing(); len(missing) > 0 {
			e = r.missingError(missing, fmt.Sprintf("rank %d waited until its deadline", h.from))
		}
	}
	r.fail(e)
	r.tell(conn, recordFailed, appendError(nil, r.failed, max(r.size, int(h.size))))
}

// fail ends the job, once, and tells everybody who waits.
func (r *Root) fail(e *Error) {
	if r.failed != nil || r.joined {
		return
	}
	r.failed = e
	r.log.Warn("bootstrap: the job can't start", "err", e)
	body := appendError(nil, e, r.size)
	for _, w := range r.waiting {
		r.tell(w.conn, recordFailed, body)
	}
	r.hangUp()
}

func (r *Root) hangUp() {
	for _, w := range r.waiting {
		w.conn.Close()
	}
	clear(r.waiting)
}

// lastWord is what late comers are told.
func (r *Root) lastWord() *Error {
	if r.failed != nil {
		return r.failed
	}
	return &Error{Phase: PhaseCheckIn, Rank: -1, Reporter: -1, Err: ErrRoot, Detail: "the root has been closed"}
}

func (r *Root) isClosed() bool {
	select {
	case <-r.closed:
		return true
	default:
		return false
	}
}

func (r *Root) missing() []int {
	var out []int
	for rank := range r.size {
		if r.waiting[rank] == nil {
			out = append(out, rank)
		}
	}
	return out
}

func (r *Root) missingError(missing []int, detail string) *Error {
	if crowd := r.gate.CrowdText(); crowd != "" {
		detail += "; " + crowd
	}
	return &Error{Phase: PhaseCheckIn, Rank: missing[0], Reporter: -1, Err: ErrMissing, Missing: missing, Detail: detail}
}

// glanceEvery is how often the root looks whether a waiting rank has died: the
// look costs a system call for each of them.
const glanceEvery = 200 * time.Millisecond

// lookAfter watches the waiting ranks until all have joined, and ends the job
// when one dies or the deadline passes.
func (r *Root) lookAfter(round int) {
	defer r.watch.Done()
	deadline := time.NewTimer(r.timeout)
	defer deadline.Stop()
	tick := time.NewTicker(glanceEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.closed:
			return
		case <-deadline.C:
			r.mu.Lock()
			if missing := r.missing(); r.round == round && len(missing) > 0 && r.failed == nil && !r.joined {
				r.fail(r.missingError(missing, fmt.Sprintf("%d of %d have checked in after %v", r.checked, r.size, r.timeout)))
			}
			r.mu.Unlock()
		case <-tick.C:
		}
		r.mu.Lock()
		over := r.round != round || r.look()
		r.mu.Unlock()
		if over {
			return
		}
	}
}

// look reports that nobody waits any more.
func (r *Root) look() (over bool) {
	for rank, w := range r.waiting {
		r.lookAt(rank, w)
		if r.failed != nil || r.joined {
			break
		}
	}
	return r.failed != nil || r.joined
}

// lookAt notices that a waiting rank has joined or is lost.
func (r *Root) lookAt(rank int, w *checkIn) {
	readable, gone := glance(w.conn)
	if gone {
		r.fail(&Error{Phase: PhaseCheckIn, Rank: rank, Reporter: -1, Addr: w.m.addr(), Err: ErrLost,
			Detail: fmt.Sprintf("%v closed its connection to the root", &w.m)})
		return
	}
	if !readable {
		return
	}
	w.conn.SetReadDeadline(time.Now().Add(time.Second))
	if kind, _, err := readRecord(w.conn, 0); err != nil || kind != recordJoined {
		r.fail(&Error{Phase: PhaseCheckIn, Rank: rank, Reporter: -1, Addr: w.m.addr(), Err: ErrLost,
			Detail: fmt.Sprintf("%v sent what no rank sends", &w.m)})
		return
	}
	// It has heard from everyone, so all have checked in and are linked.
	r.joined, r.members = true, make(map[int]member, r.size)
	for rank, w := range r.waiting {
		r.members[rank] = w.m
	}
	r.hangUp()
}

// hostNumber is equal for processes that share a network stack.
func hostNumber() (uint64, string) {
	name, err := os.Hostname()
	if err != nil {
		name = "unknown"
	}
	h := fnv.New64a()
	h.Write([]byte(name + "\x00" + hostDetails()))
	if len(name) > 255 {
		name = name[:255]
	}
	return h.Sum64(), name
}
