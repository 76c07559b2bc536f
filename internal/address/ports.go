package address

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

var (
	// ErrConfig: an argument is wrong.
	ErrConfig = errors.New("invalid configuration")
	// ErrPort: no port of those allowed is free.
	ErrPort = errors.New("no free port")
)

// Ports is the ports that a listener may take: the zero value is any free one,
// First alone a fixed one, First and Last a range with both ends in it.
type Ports struct{ First, Last int }

// ParsePorts reads "", "0", "5000" or "5000-5010".
func ParsePorts(text string) (Ports, error) {
	bad := fmt.Errorf("ports %q: %w: want 0, a port, or a range as in 5000-5010", text, ErrConfig)
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

// Check refuses what is no range.
func (p Ports) Check() error {
	last := max(p.First, p.Last)
	if p.First < 0 || p.Last < 0 || last > 65535 || p.First == 0 && p.Last != 0 || p.Last != 0 && p.Last < p.First {
		return fmt.Errorf("ports %d-%d: %w", p.First, p.Last, ErrConfig)
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

// ListenAt takes the first free port at host; an empty host is every address.
// network is as Network returns it.
// Package net sets SO_REUSEADDR where that is right, so a port left by a job
// that has just ended can be taken again at once.
func ListenAt(network, host string, ports Ports, keepAlive net.KeepAliveConfig) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	first, last := ports.First, max(ports.First, ports.Last)
	var taken error
	for port := first; port <= last; port++ {
		l, err := lc.Listen(context.Background(), network, net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return l, nil
		}
		if !InUse(err) {
			return nil, fmt.Errorf("listen at %s: %w", net.JoinHostPort(host, strconv.Itoa(port)), err)
		}
		taken = err
	}
	where := "this host"
	if host != "" {
		where = host
	}
	return nil, fmt.Errorf("listen on %v of %s: %w: each is taken by another socket, perhaps of another job on this host; "+
		"choose other ports, a range such as 5000-5010, or 0 for any free one: %w", ports, where, ErrPort, taken)
}

// Place says where a process is to listen.
type Place struct {
	Interfaces string // as ParseInterfaces reads it
	Family     string // FamilyIPv4, FamilyIPv6, or "" for both
	Ports      Ports
	// Routed is the address from which this host reaches the root's, if known.
	Routed netip.Addr
	// RootHere says that the root is on this host, so that Routed tells nothing.
	RootHere bool
	// Loopback says that all of the job is on this host.
	Loopback  bool
	KeepAlive net.KeepAliveConfig
	// Most is the largest number of addresses to return.
	Most int
}

// Check reports all that is wrong with p.
func (p Place) Check() error {
	_, err := ParseInterfaces(p.Interfaces)
	return errors.Join(err, CheckFamily(p.Family), p.Ports.Check())
}

// Listen takes a port, and returns where others find it: host:port, the best first.
// The log is told what was chosen, and for what.
func Listen(p Place, what string, log *slog.Logger) (net.Listener, []string, error) {
	filter, err := ParseInterfaces(p.Interfaces)
	if err != nil {
		return nil, nil, err
	}
	nics, err := Local()
	if err != nil {
		return nil, nil, err
	}
	chosen, err := Choose(nics, filter, p.Family, p.Routed, p.RootHere, p.Loopback)
	if err != nil {
		return nil, nil, err
	}
	if len(chosen) > 1 {
		chosen = DefaultRouteFirst(chosen)
	}
	network, host := "tcp", chosen[0].Addr.String()
	if len(chosen) > 1 {
		network, host = Network(p.Family), ""
	}
	l, err := ListenAt(network, host, p.Ports, p.KeepAlive)
	if err != nil {
		return nil, nil, err
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	var addrs []string
	for _, n := range chosen[:min(len(chosen), p.Most)] {
		LogChoice(log, what, n, filter, p.Family)
		addrs = append(addrs, net.JoinHostPort(n.Addr.String(), port))
	}
	return l, addrs, nil
}
