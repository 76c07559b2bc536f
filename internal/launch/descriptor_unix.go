//go:build unix

package launch

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// takeDescriptor takes over a socket that the launcher left open across exec.
// The number can be stale: a wrapper may have closed it, and this program may
// have got it anew for a file of its own. A descriptor that came through exec
// lacks close-on-exec, and Go sets that on all its own; so only one without it
// is taken. The connection that is returned has it, so that a child of this
// rank can't keep the launcher from seeing the rank die.
func takeDescriptor(fd int) (net.Conn, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if errors.Is(err, unix.EBADF) {
		return nil, errors.New("descriptor is not open: a program between the launcher and this one closed it, or this process has used it before")
	}
	if err != nil {
		return nil, fmt.Errorf("descriptor: %w", err)
	}
	if flags&unix.FD_CLOEXEC != 0 {
		return nil, errors.New("descriptor belongs to this program, not to the launcher: a program between them closed it, or this process has used it before")
	}
	if _, err := unix.Getpeername(fd); err != nil {
		return nil, fmt.Errorf("descriptor is not a connection to the launcher: %w", err)
	}
	file := os.NewFile(uintptr(fd), "PMI_FD")
	defer file.Close() // net.FileConn has a duplicate
	return net.FileConn(file)
}
