package handshake

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// Over returns t as it holds for conn. Unix sockets are never encrypted: they don't
// leave the host, and the system knows who is at their end.
func (t *Terms) Over(conn net.Conn) *Terms {
	if _, local := conn.(*net.UnixConn); local && t.TLS != nil {
		plain := *t
		plain.TLS = nil
		return &plain
	}
	return t
}

// Secure is the connection from the proofs on: conn itself, or TLS over it. The
// deadline of conn bounds the TLS handshake.
func (t *Terms) Secure(conn net.Conn, dialled bool) (net.Conn, error) {
	if t.TLS == nil {
		return conn, nil
	}
	over := tls.Server
	if dialled {
		over = tls.Client
	}
	s := &secured{Conn: over(conn, t.TLS)}
	err := s.Handshake()
	if err == nil {
		err = s.confirm(dialled)
	}
	if err == nil {
		return s, nil
	}
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, net.ErrClosed) || IsReset(err) {
		return nil, err // no word of the other side's: it may be overrun, or gone
	}
	return nil, fmt.Errorf("%w: %w", ErrTLS, err)
}

// secured is a TLS connection whose Close never waits: package tls would first send
// a farewell, which a stopped peer holds up. That a connection has ended in order is
// for the protocols on it to say.
type secured struct{ *tls.Conn }

func (s *secured) Close() error { return s.NetConn().Close() }

// SyscallConn is that of the connection below.
func (s *secured) SyscallConn() (syscall.RawConn, error) {
	below, ok := s.NetConn().(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return below.SyscallConn()
}

// confirm lets the dialler know that the listener has accepted its certificate,
// which in TLS 1.3 it would learn with the first data only.
func (s *secured) confirm(dialled bool) error {
	var b [1]byte
	if !dialled {
		_, err := s.Write(b[:])
		return err
	}
	_, err := io.ReadFull(s, b[:])
	return err
}
