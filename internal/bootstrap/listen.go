package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/gollective/gollective/internal/address"
	"github.com/gollective/gollective/internal/handshake"
)

// Ports is the ports that a listener may take: the zero value is any free one,
// First alone a fixed one, First and Last a range with both ends in it.
type Ports = address.Ports

// ParsePorts reads "", "0", "5000" or "5000-5010".
func ParsePorts(text string) (Ports, error) { return address.ParsePorts(text) }

// Address families, by NCCL's names.
const (
	FamilyIPv4 = address.FamilyIPv4
	FamilyIPv6 = address.FamilyIPv6
)

// Keepalives find a host that went away without a word: 15 s of silence, then
// three probes 5 s apart. They keep idle connections alive in firewalls too.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// unackedTimeout is how long sent data may stay unacknowledged, where that can be
// set. A stopped process with full buffers runs into it too; what is dialled
// afterwards tells the two apart (repair.go).
const unackedTimeout = 30 * time.Second

// listenLocal makes an abstract unix socket. Its name needs no file, so that
// nothing is left behind however the process ends.
func listenLocal(name string) (net.Listener, error) {
	l, err := net.Listen("unix", name)
	if err != nil && address.InUse(err) {
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
	network := address.Network(family)
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

// watchHost has a link end when its far end's host has been silent for timeout: half
// of it idle and then three probes unanswered, or data unacknowledged for so long.
func watchHost(conn net.Conn, timeout time.Duration) {
	for {
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = below.NetConn()
	}
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return // a unix socket: its far end is here
	}
	// Where they can't be set, the defaults find a dead host, if later.
	_ = c.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Count: 3, Idle: max(timeout/2, time.Second), Interval: max(timeout/6, time.Second),
	})
	_ = setUnackedTimeout(c, timeout)
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
	case handshake.IsRefused(err):
		return troubleRefused
	case errors.Is(err, ErrStranger), errors.Is(err, ErrVersion), handshake.IsReset(err):
		return troubleReset
	case handshake.IsUnreachable(err):
		return troubleUnreachable
	case errors.As(err, &timeout) && timeout.Timeout():
		return troubleUnreachable
	}
	return troubleLocal
}
