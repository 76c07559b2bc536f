package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// tunnel is a stream over a TLS connection. Package tls waits, and a stream must not:
// so the stream is one end of a pair of unix sockets, and two goroutines carry bytes
// between the other end and the connection. What a stream must do, be ready when it
// says so, take only so much, end in order, a socket does by itself.
type tunnel struct {
	*socket
	conn tlsConn
	far  *net.UnixConn
	wire wire
	// failed is why the connection has ended, but in order.
	failed atomic.Pointer[error]
	closed atomic.Bool
}

// tlsConn is what a tunnel needs of a *tls.Conn.
type tlsConn interface {
	net.Conn
	CloseWrite() error
}

const (
	// tunnelBuffer is two records or more.
	tunnelBuffer = 64 << 10
	// tunnelLinger is how long what was written may take to be sent after close.
	tunnelLinger = 2 * time.Second
)

// newTunnel takes over conn, whose descriptor is fd.
func newTunnel(conn tlsConn, fd int, w *watch, f *Faults) (*tunnel, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	t := &tunnel{socket: newSocket(near, f.system()), conn: conn, far: far}
	t.wire.fd = fd
	w.add(&t.wire)
	return t, nil
}

// run returns when the connection has ended.
func (t *tunnel) run(w *watch) {
	var both sync.WaitGroup
	both.Go(t.send)
	both.Go(t.receive)
	both.Wait()
	w.remove(&t.wire)
	_ = t.conn.Close()
	_ = t.far.Close()
}

// expire ends the tunnel soon, whatever its owner and the other end do, or don't.
func (t *tunnel) expire() {
	t.failed.CompareAndSwap(nil, &errPortClosed)
	at := time.Now().Add(tunnelLinger)
	_ = t.conn.SetDeadline(at)
	_ = t.far.SetDeadline(at)
}

var errPortClosed = fmt.Errorf("tcp: %w with its port", net.ErrClosed)

// socketPair is a descriptor, and a connection of package net to it.
func socketPair() (near int, far *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, os.NewSyscallError("socketpair", err)
	}
	file := os.NewFile(uintptr(fds[1]), "tunnel")
	defer file.Close() // FileConn has its own
	conn, err := net.FileConn(file)
	if err != nil {
		unix.Close(fds[0])
		return -1, nil, err
	}
	return fds[0], conn.(*net.UnixConn), nil
}

// send carries what was written to the connection, to its end.
func (t *tunnel) send() {
	buffer := make([]byte, tunnelBuffer)
	for {
		n, err := t.far.Read(buffer)
		if n > 0 {
			if _, err := t.conn.Write(buffer[:n]); err != nil {
				t.fail(err)
				return
			}
		}
		if err != nil {
			break // the stream has been closed
		}
	}
	_ = t.conn.CloseWrite()
	// Nobody reads any more. The other goroutine may be waiting for something to.
	_ = t.conn.SetReadDeadline(time.Unix(1, 0))
}

// receive carries what comes over the connection to the stream.
func (t *tunnel) receive() {
	buffer := make([]byte, tunnelBuffer)
	for {
		n, err := t.conn.Read(buffer)
		if n > 0 {
			if _, err := t.far.Write(buffer[:n]); err != nil {
				return // the stream has been closed
			}
		}
		switch {
		case errors.Is(err, io.EOF) && t.wire.lost.Load() == nil:
			_ = t.far.CloseWrite()
			return
		case err != nil:
			t.fail(err)
			return
		}
	}
}

// fail ends both directions.
func (t *tunnel) fail(err error) {
	if !t.closed.Load() {
		err = t.wire.explain(err)
		t.failed.CompareAndSwap(nil, &err)
	}
	_ = t.far.Close()
	_ = t.conn.SetDeadline(time.Unix(1, 0))
}

func (t *tunnel) write(buffers [][]byte) (int, error) {
	n, err := t.socket.write(buffers)
	if err != nil {
		err = t.explain(err)
	}
	return n, err
}

func (t *tunnel) read(buffers [][]byte) (int, error) {
	n, err := t.socket.read(buffers)
	if err != nil {
		err = t.explain(err)
	}
	return n, err
}

// explain is err, or why the connection has ended.
func (t *tunnel) explain(err error) error {
	if failed := t.failed.Load(); failed != nil {
		return *failed
	}
	return err
}

// close lets the goroutines send what was written, for some time.
func (t *tunnel) close() error {
	if t.closed.Swap(true) {
		return nil
	}
	_ = t.conn.SetWriteDeadline(time.Now().Add(tunnelLinger))
	return t.socket.close()
}
