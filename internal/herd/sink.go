package herd

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"sync"
)

// Label says when lines are given the number of their rank.
type Label string

const (
	LabelAuto   Label = "auto"   // rank 0's not before another rank has written
	LabelAlways Label = "always" // all
	LabelNever  Label = "never"  // none
)

// nobody is the rank of the launcher's own messages.
const nobody = -1

// sink is one stream of the launcher's, to which all ranks write.
type sink struct {
	label Label
	width int // of the longest prefix
	// broken is told of the first failed write; later output is dropped.
	broken func(error)

	mu     sync.Mutex
	w      io.Writer
	others bool // a rank other than 0 has written
	// unfinished: the output ends within a line of rank owner.
	unfinished bool
	owner      int
	dead       bool
	buf        []byte
}

func newSink(w io.Writer, label Label, ranks int, broken func(error)) *sink {
	return &sink{w: w, label: label, width: len(prefix(ranks - 1)), broken: broken}
}

func prefix(rank int) string { return "[" + strconv.Itoa(rank) + "] " }

// write writes text of rank, which may begin in the middle of a line and end
// there, by one call to the writer.
func (s *sink) write(rank int, text []byte) {
	if len(text) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if rank > 0 {
		s.others = true
	}
	s.buf = s.buf[:0]
	if s.unfinished && s.owner != rank {
		s.buf, s.unfinished = append(s.buf, '\n'), false
	}
	for len(text) > 0 {
		if !s.unfinished && s.labels(rank) {
			s.buf = fmt.Appendf(s.buf, "%-*s", s.width, prefix(rank))
		}
		line, rest, ended := bytes.Cut(text, []byte{'\n'})
		s.buf = append(s.buf, line...)
		if ended {
			s.buf = append(s.buf, '\n')
		}
		s.unfinished, s.owner, text = !ended, rank, rest
	}
	if s.dead {
		return
	}
	if _, err := s.w.Write(s.buf); err != nil {
		s.dead = true
		s.broken(err)
	}
}

func (s *sink) labels(rank int) bool {
	switch {
	case rank == nobody || s.label == LabelNever:
		return false
	case s.label == LabelAlways:
		return true
	}
	return rank > 0 || s.others
}
