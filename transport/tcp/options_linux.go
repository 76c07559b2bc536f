package tcp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// setOptions prepares a connected socket for data.
//
// TCP_USER_TIMEOUT is not among the options: it also ends the connection to a peer
// that lives, but has not read for so long (tcp_probe_timer in the kernel's
// net/ipv4/tcp_timer.c), and a rank may compute for as long as it likes. The watch
// looks after unanswered data instead, keepalives after silent idle connections.
func (c *PortConfig) setOptions(fd int) error {
	idle, interval, count := c.keepAlive()
	var errs []error
	for _, o := range []struct {
		name              string
		level, opt, value int
	}{
		{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, idle},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, interval},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, count},
		{"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, c.Buffer},
		{"SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF, c.Buffer},
	} {
		if o.value == 0 {
			continue
		}
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", o.name, err))
		}
	}
	// Questions whether a closed window has opened are asked ever more rarely, as are
	// retransmissions: up to two minutes apart, too far to tell a slow process from a
	// host that is gone. Linux before 6.15 has no say in it; there the control
	// connections tell.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMax, c.longestPause())
	if c.Rate > 0 {
		// 32 bits would end at 4 GB/s; the kernel takes 64 since Linux 4.20.
		if err := unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, uint64(c.Rate)); err != nil {
			errs = append(errs, fmt.Errorf("SO_MAX_PACING_RATE: %w", err))
		}
	}
	return errors.Join(errs...)
}

// tcpRTOMax is TCP_RTO_MAX_MS.
const tcpRTOMax = 44

// longestPause is in milliseconds, from the system's least to its usual.
func (c *PortConfig) longestPause() int {
	return int(min(max(c.PeerTimeout/4, time.Second), 120*time.Second).Milliseconds())
}

// keepAlive spreads PeerTimeout: half of it in silence, then three probes.
func (c *PortConfig) keepAlive() (idle, interval, count int) {
	seconds := func(d time.Duration) int { return max(1, int(d/time.Second)) }
	return seconds(c.PeerTimeout / 2), seconds(c.PeerTimeout / 6), 3
}
