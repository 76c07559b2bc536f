package tcp

import (
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Between processes of one host there is no network to be fair to: what limits a
// connection is the copying. Some kernels' choice of congestion control paces
// connections with timers nevertheless (BBR: up to 60 % more time for 16 MiB), so
// those that stay on the host use the one that every kernel has and lets everybody
// use. It must be chosen before a connection is made, or the pacing remains;
// those that came from elsewhere get the system's choice back.
const localCongestion = "reno"

// congestion is the name of a congestion control, empty if unknown.
type congestion string

// openLocally has the connections that l accepts begin with localCongestion, and
// returns what was chosen before.
func openLocally(l net.Listener) congestion {
	var before congestion
	if c, ok := l.(syscall.Conn); ok {
		control(c, func(fd int) {
			name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
			if err == nil && unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, localCongestion) == nil {
				before = congestion(name)
			}
		})
	}
	return before
}

// restore gives a socket the choice back.
func (c congestion) restore(fd int) {
	if c != "" {
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, string(c))
	}
}

// dialLocally is a net.Dialer's Control: sockets to addresses of this host begin
// with localCongestion.
func (p *Port) dialLocally(_, to string, c syscall.RawConn) error {
	there, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil // no address of an IP network
	}
	local := there.Addr().Unmap().IsLoopback()
	for _, own := range p.addresses {
		if here, err := netip.ParseAddrPort(own); err == nil {
			local = local || here.Addr().Unmap() == there.Addr().Unmap()
		}
	}
	if !local {
		return nil
	}
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, localCongestion)
	})
}

// isLocal reports whether both ends of a connected socket are on this host.
func isLocal(fd int) bool {
	here, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	there, err := unix.Getpeername(fd)
	if err != nil {
		return false
	}
	a, b := hostOf(here), hostOf(there)
	return a.IsValid() && (a == b || b.IsLoopback())
}

func hostOf(a unix.Sockaddr) netip.Addr {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr).Unmap()
	}
	return netip.Addr{}
}

func control(c syscall.Conn, do func(fd int)) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { do(int(fd)) })
	}
}
