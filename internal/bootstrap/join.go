package bootstrap

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/gollective/gollective/internal/address"
	"github.com/gollective/gollective/internal/handshake"
)

// Config is what a process brings to Join. ID, Rank and Size must be set, unless
// Size is 1, which needs no ID and opens no connection.
type Config struct {
	ID   ID
	Rank int // from 0
	Size int
	// Description is given to every process; at most MaxDescription bytes.
	Description []byte
	// Timeout bounds each step of joining; default 60 s. The wait for the other
	// ranks is one step, so it should be longer than their starts are apart.
	Timeout time.Duration
	// Interfaces, Family and Ports say where this process listens, as in
	// ListenConfig.
	Interfaces string
	Family     string
	Ports      Ports
	// TLS encrypts the connections that aren't unix sockets, if it is not nil. All
	// processes, and the root, must have it or none: ErrTLS otherwise. It serves for
	// both ends of a connection.
	TLS *tls.Config
	// PeerTimeout is how long a host may be silent, though its kernel should
	// answer, before the links to its processes count as broken. Default 30 s.
	PeerTimeout time.Duration
	// Logger gets the choices made, losses and repairs; nil is silent.
	Logger *slog.Logger
}

func (cfg *Config) check() error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("bootstrap: join: %w: "+format, append([]any{ErrConfig}, args...)...))
	}
	if cfg.Size < 1 || cfg.Size > maxSize {
		wrong("size %d, want 1 to %d", cfg.Size, maxSize)
	}
	if cfg.Rank < 0 || cfg.Rank >= cfg.Size {
		wrong("rank %d of size %d", cfg.Rank, cfg.Size)
	}
	if len(cfg.Description) > MaxDescription {
		wrong("description of %d bytes, at most %d", len(cfg.Description), MaxDescription)
	}
	if cfg.ID.IsZero() && cfg.Size > 1 {
		wrong("no id")
	}
	if err := cfg.place().Check(); err != nil {
		errs = append(errs, fmt.Errorf("bootstrap: join: %w", err))
	}
	return errors.Join(errs...)
}

// place is where this process may listen.
func (cfg *Config) place() address.Place {
	return address.Place{Interfaces: cfg.Interfaces, Family: cfg.Family, Ports: cfg.Ports, KeepAlive: keepAlive, Most: maxMemberAddrs - 1}
}

// Join brings this process into the job and returns when all Size processes are
// in it. ctx bounds only the joining.
//
// The error is a *Error for anything that other processes have a part in, and
// names the phase, the address and the ranks: ErrMissing, ErrClaimed, ErrSize,
// ErrLost, ErrGaveUp, ErrRoot, ErrVersion, ErrTLS, ErrTimeout, or ctx's. When one process
// fails, all that can be told fail with its error, at once.
func Join(ctx context.Context, cfg Config) (*Control, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.PeerTimeout <= 0 {
		cfg.PeerTimeout = unackedTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = cfg.Logger.With("rank", cfg.Rank)
	j := &joiner{Control: newControl(cfg)}
	j.self.host, j.self.name = hostNumber()
	j.self.pid = uint32(os.Getpid())
	var b [8]byte
	rand.Read(b[:])
	j.self.incarnation = binary.BigEndian.Uint64(b[:])
	if err := j.join(ctx); err != nil {
		err = j.abandon(err)
		return nil, err
	}
	return j.Control, nil
}

// joiner is a Control on its way in.
type joiner struct {
	*Control
	root      net.Conn
	rootOwner int // the rank in whose process the root is, or -1
	nextKnown bool
}

func (j *joiner) join(ctx context.Context) error {
	if j.size == 1 {
		j.mu.Lock()
		j.joined = true
		j.described[0], j.about[0], j.left = true, append([]byte{}, j.cfg.Description...), 0
		j.mu.Unlock()
		return nil
	}
	if err := j.checkIn(ctx); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wg.Add(1)
	go j.hearRoot()
	j.publish(entryDescribe, j.self.append(nil), appendBytes(nil, j.cfg.Description))
	for _, step := range []struct {
		phase Phase
		done  func() bool
		want  func() int
	}{
		{PhaseAddress, func() bool { return j.nextKnown || j.left == 0 }, j.next},
		{PhaseRing, func() bool { return j.linked(j.next()) != nil && j.linked(j.prev()) != nil || j.left == 0 }, j.unlinked},
		{PhaseGather, func() bool { return j.left == 0 }, j.undescribed},
	} {
		if err := j.step(ctx, step.phase, step.done, step.want); err != nil {
			return err
		}
	}
	j.joined = true
	_ = writeRecord(j.root, recordJoined, nil) // the root may be gone already, and be missed by nobody
	j.log.Info("bootstrap: joined", "size", j.size, "job", j.cfg.ID)
	j.maintain()
	j.coordinate()
	return nil
}

func (j *joiner) next() int { return (j.rank + 1) % j.size }
func (j *joiner) prev() int { return (j.rank + j.size - 1) % j.size }

// unlinked is the ring neighbour that is waited for.
func (j *joiner) unlinked() int {
	if j.linked(j.next()) == nil {
		return j.next()
	}
	return j.prev()
}

// undescribed is the first rank whose description has not come.
func (j *joiner) undescribed() int {
	for r, ok := range j.described {
		if !ok {
			return r
		}
	}
	return -1
}

// step waits for one phase to be done, or for the job to fail; it needs c.mu.
func (j *joiner) step(ctx context.Context, phase Phase, done func() bool, want func() int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, j.cfg.Timeout, ErrTimeout)
	defer cancel()
	err := j.wait(ctx, func() (bool, error) {
		// What is done is done: who fails after the last description has come is
		// for the handler to hear of, as after Join.
		if !done() && j.failure != nil {
			return false, j.failure
		}
		return done(), nil
	})
	if err == nil || err == error(j.failure) {
		return err
	}
	rank := want()
	e := &Error{Phase: phase, Rank: rank, Reporter: j.rank, Err: j.whyEnded(ctx)}
	if rank >= 0 {
		e.Addr = j.peers[rank].addr()
	}
	if phase == PhaseAddress {
		e.Addr = handshake.AddrText(j.root)
	}
	return e
}

// checkIn reaches the root, opens this process's listeners, and gets the root to
// take note of them.
func (j *joiner) checkIn(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, j.cfg.Timeout, ErrTimeout)
	defer cancel()
	if j.size > staggerAbove {
		if err := sleep(ctx, time.Duration(j.rank)*time.Second/staggerRate); err != nil {
			return j.failed(ctx, PhaseRoot, nil)
		}
	}
	var last error
	for pause := redial; ; pause = min(2*pause, maxRedial) {
		root, err := j.callRoot(ctx, roleCheckIn)
		if errors.Is(err, ErrVersion) || errors.Is(err, ErrTLS) {
			return &Error{Phase: PhaseRoot, Rank: -1, Reporter: j.rank, Addr: j.rootText(), Err: err}
		}
		if err == nil {
			if err := j.listen(root); err != nil {
				root.Close()
				return &Error{Phase: PhaseListen, Rank: j.rank, Reporter: j.rank, Err: err}
			}
			if err = j.register(root); err == nil {
				j.root = root
				return nil
			}
			root.Close()
			var final *Error
			if errors.As(err, &final) {
				return final
			}
		}
		if ctx.Err() == nil {
			if last == nil || !handshake.IsRefused(err) { // that says least
				last = err
			}
		}
		if sleep(ctx, pause) != nil {
			return j.failed(ctx, PhaseRoot, last)
		}
	}
}

// Above this size ranks come to the root a little apart, as in NCCL
// (NCCL_UID_STAGGER_THRESHOLD, NCCL_UID_STAGGER_RATE).
const (
	staggerAbove = 256
	staggerRate  = 7000 // ranks a second
)

func (j *joiner) failed(ctx context.Context, phase Phase, last error) error {
	e := &Error{Phase: phase, Rank: -1, Reporter: j.rank, Addr: j.rootText(), Err: j.whyEnded(ctx)}
	if last != nil {
		e.Detail = "the last attempt: " + last.Error()
	}
	return e
}

// whyEnded is why a step's context has ended.
func (j *joiner) whyEnded(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrTimeout) {
		return fmt.Errorf("%w after %v", ErrTimeout, j.cfg.Timeout)
	}
	return ctx.Err()
}

func (j *joiner) rootText() string {
	text := ""
	for i, a := range j.cfg.ID.Addrs() {
		if i > 0 {
			text += ", "
		}
		text += a
	}
	return text
}

// callRoot makes one attempt to connect to the root at any of its addresses.
func (j *joiner) callRoot(ctx context.Context, as role) (net.Conn, error) {
	var addrs []string
	for _, a := range j.cfg.ID.addrs {
		if a != localAddr {
			addrs = append(addrs, a)
		} else if haveLocal {
			addrs = append(addrs, rootSocket(j.cfg.ID.job))
		}
	}
	if len(addrs) == 0 {
		return nil, errors.New("the root has only a unix address, which this system lacks")
	}
	h := hello{role: as, from: uint32(j.rank), to: toRoot, size: uint32(j.size)}
	return handshake.Race(ctx, addrs, func(ctx context.Context, addr string) (net.Conn, error) {
		conn, _, err := connect(ctx, addr, j.cfg.Family, j.cfg.ID.terms(j.cfg.TLS), h, dialTime, dialTime)
		return conn, err
	})
}

// register sends the check-in and waits for the root's note of it.
func (j *joiner) register(root net.Conn) error {
	root.SetDeadline(time.Now().Add(dialTime))
	defer root.SetDeadline(time.Time{})
	if err := writeRecord(root, recordCheckIn, j.self.append(nil)); err != nil {
		return err
	}
	kind, body, err := readRecord(root, recordLimit(j.size))
	if err != nil {
		return err
	}
	s := scanner{rest: body}
	switch kind {
	case recordNoted:
		j.rootOwner = int(int32(s.u32()))
		if s.ok() && j.rootOwner >= -1 && j.rootOwner < j.size {
			return nil
		}
	case recordFailed:
		if e, ok := decodeError(body, j.size); ok {
			return e
		}
	}
	return fmt.Errorf("%w: the root sent record %d with %d bytes", errProtocol, kind, len(body))
}

// listen opens this process's listeners, once. root is a connection to the root.
func (j *joiner) listen(root net.Conn) error {
	if j.gate != nil {
		return nil
	}
	g := newGate(j.cfg.ID.terms(j.cfg.TLS), j.log, j.judge, j.enter)
	var tcp []string
	for _, a := range j.cfg.ID.addrs {
		if a != localAddr {
			tcp = append(tcp, a)
			continue
		}
		if !haveLocal {
			continue
		}
		name := memberSocket(j.cfg.ID.job, j.rank, j.self.incarnation)
		l, err := listenLocal(name)
		if err != nil {
			return err
		}
		g.Serve(l)
		j.self.addrs = append(j.self.addrs, name)
	}
	if len(tcp) > 0 {
		l, addrs, err := j.listenTCP(root, tcp)
		if err != nil {
			g.Close()
			return err
		}
		g.Serve(l)
		j.self.addrs = append(j.self.addrs, addrs...)
	}
	j.mu.Lock()
	j.gate = g
	j.mu.Unlock()
	return nil
}

// listenTCP takes a port, and returns where others find it.
func (j *joiner) listenTCP(root net.Conn, rootAddrs []string) (net.Listener, []string, error) {
	p := j.cfg.place()
	p.Routed, p.Loopback = address.Of(root.LocalAddr()), allLoopback(rootAddrs)
	p.RootHere = !p.Routed.IsValid() || p.Routed.IsLoopback() || p.Routed == address.Of(root.RemoteAddr())
	if !p.Routed.IsValid() {
		p.Routed = address.Routed(rootAddrs[0])
	}
	l, addrs, err := address.Listen(p, "rank", j.log)
	if err != nil {
		return nil, nil, fmt.Errorf("bootstrap: %w", err)
	}
	return l, addrs, nil
}

// allLoopback: every address is literally one of loopback, so all of the job is
// on one host. A name that means loopback here may mean something else elsewhere.
func allLoopback(addrs []string) bool {
	for _, a := range addrs {
		ap, err := netip.ParseAddrPort(a)
		if err != nil || !ap.Addr().IsLoopback() {
			return false
		}
	}
	return true
}

// judge looks at the hello of somebody who dials this process. It must be called
// without c.mu, as enter.
func (c *Control) judge(h hello) verdict {
	if h.role != roleLink || int64(h.to) != int64(c.rank) || int64(h.size) != int64(c.size) || int64(h.from) >= int64(c.size) || h.from == h.to {
		return wrongProcess
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state[h.from] == isLost {
		return declaredLost
	}
	return welcome
}

func (c *Control) enter(conn net.Conn, h hello) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLink(int(h.from), newLink(int(h.from), conn))
}

// hearRoot listens to the root until it hangs up, which it does when some rank
// has joined. It must be called without c.mu.
func (j *joiner) hearRoot() {
	defer j.wg.Done()
	defer j.root.Close()
	stop := context.AfterFunc(j.ctx, func() { j.root.Close() })
	defer stop()
	for {
		kind, body, err := readRecord(j.root, recordLimit(j.size))
		j.mu.Lock()
		over := j.takeRecord(kind, body, err)
		j.notify()
		j.mu.Unlock()
		if over {
			return
		}
	}
}

func (j *joiner) takeRecord(kind recordKind, body []byte, err error) (over bool) {
	s := scanner{rest: body}
	switch {
	case j.joined || j.failure != nil:
		return true
	case err != nil:
		if !j.nextKnown {
			j.failure = &Error{Phase: PhaseAddress, Rank: j.rootOwner, Reporter: j.rank, Addr: handshake.AddrText(j.root), Err: ErrRoot, Detail: err.Error()}
		}
		return true
	case kind == recordFailed:
		if e, ok := decodeError(body, j.size); ok {
			j.failure = e
			return true
		}
	case kind == recordNext:
		m := s.member()
		if !s.ok() {
			break
		}
		j.peers[j.next()] = m
		j.nextKnown = true
		// Two processes need one link between them: rank 0 makes it.
		if j.size > 2 || j.rank == 0 {
			j.reach(j.next(), nil)
		}
		return false
	}
	j.failure = &Error{Phase: PhaseAddress, Rank: -1, Reporter: j.rank, Addr: handshake.AddrText(j.root), Err: errProtocol,
		Detail: fmt.Sprintf("the root sent record %d with %d bytes", kind, len(body))}
	return true
}

// abandon ends a Join that has failed: it tells the others, as far as they can
// be reached, and returns the error to give to the caller. It must be called
// without c.mu.
func (j *joiner) abandon(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Phase: PhaseListen, Rank: j.rank, Reporter: j.rank, Err: err}
	}
	mine := e.Reporter == j.rank
	// Who has not reached the root so far won't now.
	if mine && e.Phase != PhaseRoot {
		told := j.report(e)
		if told != nil && errors.Is(e.Err, ErrTimeout) && len(told.Missing) > 0 {
			e.Err, e.Missing, e.Detail = told.Err, told.Missing, told.Detail
		}
	}
	j.mu.Lock()
	j.closing = true
	if mine && len(j.links) > 0 {
		j.publish(entryFailed, appendError(nil, e, j.size))
	}
	j.ending = e
	for _, l := range j.links {
		j.tellWhy(l)
	}
	if j.root != nil {
		// A neighbour may be on its way here: it would find nobody and blame us.
		wait, cancel := context.WithTimeout(context.Background(), lastCall)
		_ = j.wait(wait, func() (bool, error) { return j.linked(j.next()) != nil && j.linked(j.prev()) != nil, nil })
		cancel()
	}
	j.flush(context.Background())
	j.mu.Unlock()
	j.shutDown()
	<-j.ended
	return err
}

// lastCall is how long a process whose Join has failed goes on to accept
// neighbours, to tell them why.
const lastCall = 250 * time.Millisecond

// tellWhy says over one link why this process's Join has failed, so that the
// neighbour knows why the link ends. It needs c.mu.
func (c *Control) tellWhy(l *link) {
	body := appendError(nil, c.ending, c.size)
	l.send(append(appendFrameHead(nil, frameFailed, len(body)), body...))
}

// report tells the root, which tells those that links don't reach, and returns
// what the root makes of it, or nil.
func (j *joiner) report(e *Error) *Error {
	ctx, cancel := context.WithTimeout(context.Background(), min(2*time.Second, j.cfg.Timeout))
	defer cancel()
	conn, err := j.callRoot(ctx, roleReport)
	if err != nil {
		return nil
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	if writeRecord(conn, recordReport, appendError(nil, e, j.size)) != nil {
		return nil
	}
	kind, body, err := readRecord(conn, recordLimit(j.size))
	if err != nil || kind != recordFailed {
		return nil
	}
	told, _ := decodeError(body, j.size)
	return told
}
