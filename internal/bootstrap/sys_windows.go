package bootstrap

import (
	"errors"
	"net"

	"golang.org/x/sys/windows"
)

func isAddrInUse(err error) bool {
	return errors.Is(err, windows.WSAEADDRINUSE) || errors.Is(err, windows.WSAEACCES)
}

// isRefused: the host says that nobody listens there.
func isRefused(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }

func isResetErrno(err error) bool {
	return errors.Is(err, windows.WSAECONNRESET) || errors.Is(err, windows.WSAECONNABORTED)
}

func isUnreachable(err error) bool {
	return errors.Is(err, windows.WSAEHOSTUNREACH) || errors.Is(err, windows.WSAENETUNREACH) || errors.Is(err, windows.WSAETIMEDOUT)
}

// glance sees nothing here: the root learns of a rank that dies while the
// others join from that rank's neighbours, and from the deadline.
func glance(net.Conn) (readable, gone bool) { return false, false }
