//go:build unix

package bootstrap

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// glance looks at a connection without waiting and without taking anything off:
// is there something to read, or has the far end gone?
func glance(conn net.Conn) (readable, gone bool) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return false, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false, true
	}
	var b [1]byte
	n, errno := 0, error(nil)
	err = raw.Read(func(fd uintptr) bool {
		n, _, errno = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	})
	switch {
	case err != nil:
		return false, true
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return false, false
	case errno != nil || n == 0:
		return false, true
	}
	return true, false
}
