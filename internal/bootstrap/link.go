package bootstrap

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// link is a proven connection to one other process. Its reader hands frames to
// the Control; its writer sends what has been queued, in order, as few writes as
// possible. Idle, both sleep in the network poller and use no processor time.
type link struct {
	peer int
	conn net.Conn

	// Guarded by Control.mu.
	synced  bool   // the peer's digest has come and what it lacked is queued
	asked   uint64 // the last flush sent
	flushed uint64 // the last flush that the peer has answered

	mu    sync.Mutex
	queue [][]byte
	shut  bool          // no more is to be queued
	wake  chan struct{} // one token: the queue has something, or shut
	err   error         // why the writer stopped
}

func newLink(peer int, conn net.Conn) *link {
	return &link{peer: peer, conn: conn, wake: make(chan struct{}, 1)}
}

// send queues frames, which must not change any more.
//
// The queue has no bound of its own: everything in it is an entry that waits in
// the journal as well, where every sender's share is bounded (maxBacklog), or a
// token, of which there is one at a time.
func (l *link) send(frames ...[]byte) {
	l.mu.Lock()
	if !l.shut {
		l.queue = append(l.queue, frames...)
	}
	l.mu.Unlock()
	l.signal()
}

func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// close ends the link at once. What was queued may be lost.
func (l *link) close() {
	l.mu.Lock()
	l.shut = true
	l.queue = nil
	l.mu.Unlock()
	l.signal()
	l.conn.Close()
}

// write runs until close, or until the connection fails.
func (l *link) write() {
	for range l.wake {
		l.mu.Lock()
		batch := net.Buffers(l.queue)
		l.queue = nil
		shut := l.shut
		l.mu.Unlock()
		if shut {
			return
		}
		if _, err := batch.WriteTo(l.conn); err != nil {
			l.mu.Lock()
			l.shut = true
			l.err = err
			l.mu.Unlock()
			// What the peer sent before it went, its goodbye for example, is still
			// to be read; the reader meets the end itself, and soon.
			l.conn.SetReadDeadline(time.Now().Add(lastWords))
			return
		}
	}
}

// lastWords bounds the time to read what a peer had sent before it went.
const lastWords = time.Second

// read calls take with every frame, whole, until the connection ends or take
// returns an error.
func (l *link) read(size int, take func(frameKind, []byte) error) error {
	r := bufio.NewReaderSize(l.conn, 8<<10)
	for {
		kind, frame, err := readFrame(r, size)
		if err == nil {
			err = take(kind, frame)
		}
		if err == nil {
			continue
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.err != nil {
			return l.err // the writer met it first, and knows better than a deadline
		}
		return err
	}
}

// readFrame returns a frame with its head, in memory of its own.
func readFrame(r io.Reader, size int) (frameKind, []byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	kind := frameKind(head[4])
	if limit := frameLimit(kind, size); int64(n) > int64(limit) {
		return 0, nil, fmt.Errorf("%w: frame of kind %d with %d bytes", errProtocol, kind, n)
	}
	frame := make([]byte, frameHead+int(n))
	copy(frame, head[:])
	_, err := io.ReadFull(r, frame[frameHead:])
	return kind, frame, noEOF(err)
}
