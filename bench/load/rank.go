package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/gollective/gollective/collective"
)

// The ranks of a case and the tool talk in lines of JSON on the ranks' standard
// output.

// message is a line: the begin of a phase, by rank 0, or a rank's sample.
type message struct {
	Phase  string  `json:",omitempty"`
	Sample *Sample `json:",omitempty"`
}

// Rank is the whole of a rank process: it joins the job that its environment
// describes and goes through the case that text, from the tool, describes.
func Rank(ctx context.Context, text string, out io.Writer) error {
	var of Case
	if err := json.Unmarshal([]byte(text), &of); err != nil {
		return fmt.Errorf("the case of a rank: %w", err)
	}
	config, err := of.Config()
	if err != nil {
		return err
	}
	c, err := collective.Init(ctx, config)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, c.Abort)
	defer stop()
	return rank(ctx, c, of, out)
}

// rank is a rank's part of a case, over a communicator that exists.
func rank(ctx context.Context, c *collective.Comm, of Case, out io.Writer) error {
	say := func(m message) error {
		line, err := json.Marshal(m)
		if err == nil {
			_, err = out.Write(append(line, '\n'))
		}
		return err
	}
	s, err := Measure(ctx, c, of, func(phase string) error {
		if c.Rank() > 0 {
			return nil
		}
		return say(message{Phase: phase})
	})
	if err != nil {
		return err
	}
	return say(message{Sample: s})
}

// mostLine bounds a line: samples with many late events are long.
const mostLine = 64 << 20

// listener is where the ranks' lines go. It may be written to by several goroutines.
type listener struct {
	phase func(name string)

	mu      sync.Mutex
	rest    []byte // of an unfinished line
	samples []*Sample
}

func (l *listener) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			break
		}
		l.rest = rest
		if err := l.hear(line); err != nil {
			return 0, err
		}
	}
	if len(l.rest) > mostLine {
		return 0, errors.New("a rank says too much")
	}
	return len(p), nil
}

func (l *listener) hear(line []byte) error {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("a rank says %.100q: %w", line, err)
	}
	switch {
	case m.Sample != nil:
		l.samples = append(l.samples, m.Sample)
	case m.Phase != "":
		l.phase(m.Phase)
	}
	return nil
}

// told are the samples so far, by rank.
func (l *listener) told(ranks int) ([]*Sample, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	byRank := make([]*Sample, ranks)
	for _, s := range l.samples {
		if s.Rank < 0 || s.Rank >= ranks || byRank[s.Rank] != nil {
			return nil, fmt.Errorf("rank %d of %d has told what it measured, once too often", s.Rank, ranks)
		}
		byRank[s.Rank] = s
	}
	for rank, s := range byRank {
		if s == nil {
			return nil, fmt.Errorf("rank %d has not told what it measured", rank)
		}
	}
	return byRank, nil
}
