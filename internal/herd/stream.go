package herd

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"time"
)

const (
	longestLine = 1 << 20
	readBytes   = 16 << 10
	// showAfter is how long rank 0 may pause within a line before the launcher
	// shows what there is of it.
	showAfter = 100 * time.Millisecond
	// lastWords is how long a stream is still read when its rank and all that it
	// left behind have ended: only a process that has left the group can hold it
	// open then.
	lastWords = time.Second
)

// stream carries one output of one rank to a sink.
type stream struct {
	r    *os.File
	to   *sink
	rank int

	mu    sync.Mutex
	final bool // the deadline of the last words is set and stays
}

// run returns when the stream has ended, or after the last words.
func (s *stream) run() {
	defer s.r.Close()
	var held []byte
	for {
		armed := s.rank == 0 && len(held) > 0
		if armed {
			s.setDeadline(time.Now().Add(showAfter))
		}
		// Asked before the read: a deadline that passed before the last words were
		// called for isn't theirs.
		last := s.ending()
		held = append(held, make([]byte, readBytes)...)
		fresh := held[len(held)-readBytes:]
		n, err := s.r.Read(fresh)
		held = held[:len(held)-readBytes+n]
		if armed {
			s.setDeadline(time.Time{})
		}
		ready := bytes.LastIndexByte(fresh[:n], '\n') + 1
		if ready > 0 {
			ready += len(held) - n
		}
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if err != nil || len(held)-ready >= longestLine {
			ready = len(held)
		}
		s.to.write(s.rank, held[:ready])
		held = append(held[:0], held[ready:]...)
		if err != nil && (!late || last) {
			return
		}
	}
}

// setDeadline does nothing where pipes have no deadlines: an unfinished line is
// not shown before it ends then.
func (s *stream) setDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.final {
		_ = s.r.SetReadDeadline(t)
	}
}

func (s *stream) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.final
}

// finish limits what is still read.
func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.final = true
	if s.r.SetReadDeadline(time.Now().Add(lastWords)) != nil {
		time.AfterFunc(lastWords, func() { s.r.Close() })
	}
}
