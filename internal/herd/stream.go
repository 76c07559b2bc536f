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
	// lastWords is how long a stream must be silent to be taken for over when its
	// rank and all that it left behind have ended. Only a process that has left the
	// group can hold it open then, and what that writes doesn't count: the ranks'
	// words are in the pipe, which holds lastBytes at most.
	lastWords = time.Second
	lastBytes = 1 << 20
)

// stream carries one output of one rank to a sink.
type stream struct {
	r    *os.File
	to   *sink
	rank int

	mu    sync.Mutex
	final bool // the last words
}

// run returns when the stream has ended, or after the last words.
func (s *stream) run() {
	defer s.r.Close()
	var held []byte
	for left := lastBytes; left > 0; {
		last := s.arm(len(held) > 0)
		held = append(held, make([]byte, readBytes)...)
		fresh := held[len(held)-readBytes:]
		n, err := s.r.Read(fresh)
		held = held[:len(held)-readBytes+n]
		if last {
			left -= n
		}
		late := errors.Is(err, os.ErrDeadlineExceeded)
		over := err != nil && (!late || last)
		ready := 0
		if i := bytes.LastIndexByte(fresh[:n], '\n'); i >= 0 {
			ready = len(held) - n + i + 1
		}
		if over || late && s.rank == 0 || len(held)-ready >= longestLine {
			ready = len(held)
		}
		s.to.write(s.rank, held[:ready])
		held = append(held[:0], held[ready:]...)
		if over {
			return
		}
	}
	s.to.write(s.rank, held)
}

// arm sets the deadline of the next read, and reports whether it is for the last
// words: one that passed before those were called for isn't theirs. Where pipes
// have no deadlines rank 0's unfinished lines are not shown before they end.
func (s *stream) arm(unfinished bool) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var deadline time.Time
	switch {
	case s.final:
		deadline = time.Now().Add(lastWords)
	case s.rank == 0 && unfinished:
		deadline = time.Now().Add(showAfter)
	}
	_ = s.r.SetReadDeadline(deadline)
	return s.final
}

// finish lets run return even if the stream doesn't end.
func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.final = true
	if s.r.SetReadDeadline(time.Now()) != nil {
		time.AfterFunc(lastWords, func() { s.r.Close() })
	}
}
