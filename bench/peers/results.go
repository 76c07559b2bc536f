package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
)

// result is what a contender has measured for one job of one round.
type result struct {
	Job        job       `json:"-"`
	Variant    string    `json:"variant,omitempty"` // of the ways to do it, the fastest
	Operations int       `json:"operations"`
	CPU        float64   `json:"cpu"`     // seconds of all ranks per operation
	Wrong      int       `json:"wrong"`   // elements of results
	Seconds    []float64 `json:"seconds"` // per operation, of each batch
}

// errNoResult is wrapped by what parseResult returns.
var errNoResult = errors.New("not a result")

// parseResult reads a line of the form
//
//	result bytes=4 buffers=1 [variant=NAME] operations=1000 cpu=1e-06 wrong=0 seconds=1e-06,2e-06
//
// Unknown keys are skipped: a program may tell more.
func parseResult(line string) (result, error) {
	fields := strings.Fields(line)
	if len(fields) == 0 || fields[0] != "result" {
		return result{}, fmt.Errorf("%w: %.80q", errNoResult, line)
	}
	var r result
	seen := make(map[string]bool)
	for _, field := range fields[1:] {
		key, value, found := strings.Cut(field, "=")
		if !found || seen[key] {
			return result{}, fmt.Errorf("%w: %.80q", errNoResult, field)
		}
		seen[key] = true
		if err := r.set(key, value); err != nil {
			return result{}, fmt.Errorf("%w: %.80q: %v", errNoResult, field, err)
		}
	}
	for _, key := range []string{"bytes", "buffers", "operations", "cpu", "wrong", "seconds"} {
		if !seen[key] {
			return result{}, fmt.Errorf("%w: no %s in %.80q", errNoResult, key, line)
		}
	}
	return r, nil
}

func (r *result) set(key, value string) (err error) {
	switch key {
	case "bytes":
		r.Job.bytes, err = natural(value)
	case "buffers":
		r.Job.buffers, err = natural(value)
	case "operations":
		r.Operations, err = natural(value)
	case "wrong":
		r.Wrong, err = natural(value)
	case "variant":
		r.Variant = value
	case "cpu":
		r.CPU, err = duration(value)
	case "seconds":
		for _, text := range strings.Split(value, ",") {
			t, err := duration(text)
			if err != nil {
				return err
			}
			r.Seconds = append(r.Seconds, t)
		}
	}
	return err
}

func natural(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 62)
	return int(n), err
}

func duration(text string) (float64, error) {
	t, err := strconv.ParseFloat(text, 64)
	if err == nil && (math.IsNaN(t) || math.IsInf(t, 0) || t < 0) {
		err = strconv.ErrRange
	}
	return t, err
}

// format is the line that parseResult reads.
func (r *result) format() string {
	var b strings.Builder
	fmt.Fprintf(&b, "result bytes=%d buffers=%d", r.Job.bytes, r.Job.buffers)
	if r.Variant != "" {
		fmt.Fprintf(&b, " variant=%s", r.Variant)
	}
	fmt.Fprintf(&b, " operations=%d cpu=%.6g wrong=%d seconds=", r.Operations, r.CPU, r.Wrong)
	for i, t := range r.Seconds {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%.6g", t)
	}
	return b.String()
}

// listener reads what a contender prints while it runs: results, "about" and
// what the library calls itself, and other things, which are passed over. It may be
// written to by several goroutines.
type listener struct {
	heard func() // called for every result

	mu      sync.Mutex
	rest    []byte // of an unfinished line
	results []result
	about   string
	other   []byte // the end of the rest of what was printed
}

// mostOther is how much of other output is kept.
const mostOther = 16 << 10

// mostLine bounds a line.
const mostLine = 1 << 20

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
		if err := l.hear(string(line)); err != nil {
			return 0, err
		}
	}
	if len(l.rest) > mostLine {
		return 0, errors.New("a line without an end")
	}
	return len(p), nil
}

func (l *listener) hear(line string) error {
	if about, ok := strings.CutPrefix(line, "about "); ok {
		l.about = strings.Join(strings.Fields(about), " ")
		return nil
	}
	if !strings.HasPrefix(line, "result ") {
		l.other = append(append(l.other, line...), '\n')
		l.other = l.other[max(0, len(l.other)-mostOther):]
		return nil
	}
	r, err := parseResult(line)
	if err != nil {
		return err
	}
	l.results = append(l.results, r)
	if l.heard != nil {
		l.heard()
	}
	return nil
}

// told is what the contender has said, as far as it can be believed, and an error if
// it has not done its jobs.
func (l *listener) told(jobs []job) ([]result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, r := range l.results {
		switch {
		case i >= len(jobs) || r.Job != jobs[i]:
			return l.results[:i], fmt.Errorf("a result for a job that it did not have: %v", r.Job)
		case r.Wrong > 0:
			return l.results[:i], fmt.Errorf("%d wrong elements in results of %d bytes", r.Wrong, r.Job.bytes)
		}
	}
	if len(l.results) < len(jobs) {
		return l.results, fmt.Errorf("%d results for %d jobs", len(l.results), len(jobs))
	}
	return l.results, nil
}
