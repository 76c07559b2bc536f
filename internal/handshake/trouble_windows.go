package handshake

import (
	"errors"

	"golang.org/x/sys/windows"
)

// IsRefused: the host says that nobody listens there.
func IsRefused(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }

func isResetErrno(err error) bool {
	return errors.Is(err, windows.WSAECONNRESET) || errors.Is(err, windows.WSAECONNABORTED)
}

// IsUnreachable: the host can't be reached, or does not answer.
func IsUnreachable(err error) bool {
	return errors.Is(err, windows.WSAEHOSTUNREACH) || errors.Is(err, windows.WSAENETUNREACH) || errors.Is(err, windows.WSAETIMEDOUT)
}
