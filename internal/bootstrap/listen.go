package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// Ports is the ports that a listener may take: the zero value is any free one,
// First alone a fixed one, First and Last a range with both ends in it.
type Ports struct{ First, Last int }

// ParsePorts reads "", "0", "5000" or "5000-5010".
func ParsePorts(text string) (Ports, error) {
	bad := fmt.Errorf("bootstrap: ports %q: %w: want 0, a port, or a range as in 5000-5010", text, ErrConfig)
	if text == "" {
		return Ports{}, nil
	}
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return Ports{}, bad
	}
	b, err := strconv.ParseUint(last, 10, 16)
	if err != nil || isRange && (a == 0 || b < a) {
		return Ports{}, bad
	}
	if a == 0 {
		return Ports{}, nil
	}
	return Ports{First: int(a), Last: int(b)}, nil
}

func (p Ports) check() error {
	last := max(p.First, p.Last)
	if p.First < 0 || p.Last < 0 || last > 65535 || p.First == 0 && p.Last != 0 || p.Last != 0 && p.Last < p.First {
		return fmt.Errorf("bootstrap: ports %d-%d: %w", p.First, p.Last, ErrConfig)
	}
	return nil
}

func (p Ports) String() string {
	switch {
	case p.First == 0:
		return "any port"
	case p.Last <= p.First:
		return fmt.Sprintf("port %d", p.First)
	}
	return fmt.Sprintf("ports %d-%d", p.First, p.Last)
}

// Keepalives find a host that went away without a word: 15 s of silence, then
// three probes 5 s apart. They keep idle connections alive in firewalls too.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// unackedTimeout is how long sent data may stay unacknowledged, where that can be
// set. A stopped process with full buffers runs into it too; what is dialled
// afterwards tells the two apart (repair.go).
const unackedTimeout = 30 * time.Second

// listenTCP takes the first free port at host; an empty host is every address.
// Package net sets SO_REUSEADDR where that is right, so a port left by a job
// that has just ended can be taken again at once.
func listenTCP(network, host string, ports Ports) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	first, last := ports.First, max(ports.First, ports.Last)
	var taken error
	for port := first; port <= last; port++ {
		l, err := lc.Listen(context.Background(), network, net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return l, nil
		}
		if !isAddrInUse(err) {
			return nil, fmt.Errorf("bootstrap: listen at %s: %w", net.JoinHostPort(host, strconv.Itoa(port)), err)
		}
		taken = err
	}
	where := "this host"
	if host != "" {
		where = host
	}
	return nil, fmt.Errorf("bootstrap: listen on %v of %s: %w: each is taken by another socket, perhaps of another job on this host; "+
		"choose other ports, a range such as 5000-5010, or 0 for any free one: %w", ports, where, ErrPort, taken)
}

// listenLocal makes an abstract unix socket. Its name needs no file, so that
// nothing is left behind however the process ends.
func listenLocal(name string) (net.Listener, error) {
	l, err := net.Listen("unix", name)
	if err != nil && isAddrInUse(err) {
		return nil, fmt.Errorf("bootstrap: listen at unix:%s: %w: another process serves this job already: %w", name, ErrPort, err)
	}
	if err != nil {
		return nil, fmt.Errorf("bootstrap: listen at unix:%s: %w", name, err)
	}
	return l, nil
}

// dial connects to an address of an ID or a member, and checks that the far end
// of a unix socket belongs to this user.
func dial(ctx context.Context, addr, family string) (net.Conn, error) {
	network := tcpNetwork(family)
	if addr[0] == '@' {
		network = "unix"
	}
	d := net.Dialer{KeepAliveConfig: keepAlive}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if err := prepare(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// prepare sets what package net has no option for, and refuses unix peers of
// other users.
func prepare(conn net.Conn) error {
	switch c := conn.(type) {
	case *net.TCPConn:
		// Where it can't be set, keepalives still find a dead host, if later.
		_ = setUnackedTimeout(c, unackedTimeout)
	case *net.UnixConn:
		return checkPeerUser(c)
	}
	return nil
}

// errSilent marks a timeout of something that had accepted the connection.
var errSilent = errors.New("connected, but no answer")

// trouble says what an unsuccessful attempt to reach a process shows.
type trouble int

const (
	troubleLocal       trouble = iota // nothing: the fault may be ours
	troubleSilent                     // the host answers, the process doesn't
	troubleUnreachable                // the host doesn't answer
	troubleReset                      // somebody is there and hangs up, or is a stranger
	troubleRefused                    // nobody is there
)

func classify(err error) trouble {
	var timeout net.Error
	switch {
	case errors.Is(err, errSilent):
		return troubleSilent
	case isRefused(err):
		return troubleRefused
	case errors.Is(err, ErrStranger), errors.Is(err, ErrVersion), isReset(err):
		return troubleReset
	case isUnreachable(err):
		return troubleUnreachable
	case errors.As(err, &timeout) && timeout.Timeout():
		return troubleUnreachable
	}
	return troubleLocal
}

// isReset: the far end closed the connection, in order or not.
func isReset(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isResetErrno(err)
}
