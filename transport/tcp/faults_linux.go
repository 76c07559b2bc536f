package tcp

import "golang.org/x/sys/unix"

// unreliable is the kernel with faults, for one socket.
type unreliable struct{ in, out *misfortune }

// system is what a new socket is to use; f may be nil.
func (f *Faults) system() system {
	if f == nil {
		return kernel{}
	}
	in, out := f.directions()
	return unreliable{in, out}
}

func (u unreliable) send(fd int, v *vectors) (int, unix.Errno) {
	if errno := u.out.strike(fd, v); errno != 0 {
		return 0, errno
	}
	return kernel{}.send(fd, v)
}

func (u unreliable) receive(fd int, v *vectors) (int, unix.Errno) {
	if errno := u.in.strike(fd, v); errno != 0 {
		return 0, errno
	}
	return kernel{}.receive(fd, v)
}

// strike lets the next fault happen: an error, or less to transfer.
func (m *misfortune) strike(fd int, v *vectors) unix.Errno {
	kind, allowed := m.next(v.total)
	switch kind {
	case faultInterrupt:
		return unix.EINTR
	case faultAgain, faultDelay:
		return unix.EAGAIN
	case faultReset:
		// The close that follows is not in order then: the other end is told.
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		return unix.ECONNRESET
	case faultShort:
		v.trim(allowed)
	}
	return 0
}
