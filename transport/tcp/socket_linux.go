package tcp

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// system is the kernel's part of a transfer, and where tests let it go wrong. The
// descriptors are non-blocking; the memory is at least one byte.
type system interface {
	send(fd int, v *vectors) (int, unix.Errno)
	receive(fd int, v *vectors) (int, unix.Errno)
}

// socket is a connected descriptor that package net does not know: its reads and
// writes are system calls and nothing else.
type socket struct {
	fd  int
	sys system
	// One for each direction: the reader and the writer may be two goroutines.
	in, out vectors
}

// newSocket takes over fd.
func newSocket(fd int, sys system) *socket {
	if sys == nil {
		sys = kernel{}
	}
	return &socket{fd: fd, sys: sys}
}

func (s *socket) write(buffers [][]byte) (int, error) {
	v := &s.out
	v.fill(buffers)
	if v.total == 0 {
		return 0, nil
	}
	for {
		n, errno := s.sys.send(s.fd, v)
		switch errno {
		case 0:
			v.clear()
			return n, nil
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			v.clear()
			return 0, nil
		}
		v.clear()
		return 0, os.NewSyscallError("send", errno)
	}
}

func (s *socket) read(buffers [][]byte) (int, error) {
	v := &s.in
	v.fill(buffers)
	if v.total == 0 {
		return 0, nil
	}
	for {
		n, errno := s.sys.receive(s.fd, v)
		switch {
		case errno == 0 && n == 0:
			v.clear()
			return 0, io.EOF
		case errno == 0:
			v.clear()
			return n, nil
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			v.clear()
			return 0, nil
		}
		v.clear()
		return 0, os.NewSyscallError("receive", errno)
	}
}

func (s *socket) descriptor() int { return s.fd }

func (s *socket) close() error {
	if s.fd < 0 {
		return nil
	}
	fd := s.fd
	s.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}
