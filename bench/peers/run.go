package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gollective/gollective/internal/herd"
)

// grace is how long the processes of a run that is ended have to go.
const grace = 2 * time.Second

// matches runs all rounds of a comparison.
type matches struct {
	*report
	ctx      context.Context
	errs     io.Writer
	shop     *workshop
	bar      *bar
	entrants map[group][]*contender
	groups   []group // of entrants, in order
	patience time.Duration
}

// run does everything that o asks for. It fails only where there is nothing to report.
func run(ctx context.Context, o options, errs io.Writer) (*report, error) {
	shop, err := newWorkshop(ctx)
	if err != nil {
		return nil, err
	}
	defer shop.close()
	m := &matches{report: newReport(o), ctx: ctx, errs: errs, shop: shop, entrants: make(map[group][]*contender), patience: basePatience}
	m.enter()
	if len(m.groups) == 0 {
		return nil, errors.New("nobody takes part: " + m.reasons())
	}
	for _, missing := range m.Missing {
		fmt.Fprintf(errs, "peers: %s is left out: %s\n", missing.Contender, missing.Text)
	}
	m.bar = newBar(errs, m.steps(m.groups)*o.rounds)
	busy := newBusy()
	for round := range o.rounds {
		for i, g := range m.groups {
			m.round(round, g)
			m.bar.skip(m.steps(m.groups)*round + m.steps(m.groups[:i+1]))
		}
		m.Took, m.Foreign = time.Since(m.Started), busy.foreign()
		if err := m.save(); err != nil { // a run that is killed later was not for nothing
			return nil, err
		}
	}
	m.bar.finish()
	if len(m.Entries) == 0 {
		return nil, fmt.Errorf("nobody has finished a job: %s", m.reasons())
	}
	return m.report, ctx.Err()
}

// enter builds what the chosen contenders need and makes the groups.
func (m *matches) enter() {
	o := &m.options
	groups := []group{machine}
	for _, transport := range o.transports {
		for _, ranks := range o.ranks {
			groups = append(groups, group{transport, ranks})
		}
	}
	missing := make(map[string]error)
	for _, g := range groups {
		for i := range contenders {
			c := &contenders[i]
			if !o.selects(c) || !slices.Contains(c.transports, g.Transport) {
				continue
			}
			if _, err := m.shop.build(c); err != nil {
				missing[c.family] = err
				continue
			}
			m.entrants[g] = append(m.entrants[g], c)
		}
		if len(m.entrants[g]) > 0 {
			m.groups = append(m.groups, g)
		}
	}
	m.Groups = m.groups
	for _, family := range slices.Sorted(maps.Keys(missing)) {
		m.Missing = append(m.Missing, note{Contender: family, Text: missing[family].Error()})
	}
}

func (m *matches) reasons() string {
	var all []string
	for _, n := range slices.Concat(m.Missing, m.Failures, m.Unfinished) {
		all = append(all, n.Contender+": "+n.Text)
	}
	return strings.Join(all, "; ")
}

// jobsOf is what a contender has to do in a group.
func (m *matches) jobsOf(c *contender, g group) []job {
	if c.ping {
		return []job{{4, 1}}
	}
	return m.options.jobs(max(1, g.Ranks))
}

// steps counts the jobs of a round in some groups.
func (m *matches) steps(groups []group) int {
	n := 0
	for _, g := range groups {
		for _, c := range m.entrants[g] {
			n += len(m.jobsOf(c, g))
		}
	}
	return n
}

// errSlow is wrapped where a contender's time was over before its jobs were.
var errSlow = errors.New("too slow")

// basePatience is for what contenders do before and after their jobs, on a machine that
// others use, too.
const basePatience = 30 * time.Second

// patience is how long a contender may take for its jobs. They may take longer than
// their time: where ranks outnumber processors and a library waits by polling, one
// operation takes several time slices.
func (s setting) patience(base time.Duration) time.Duration {
	return base + time.Duration(10*float64(len(s.jobs))*s.seconds*float64(time.Second))
}

// round lets the contenders of a group run, one after the other. Who fails twice, or takes
// too long, is not asked again; what it has measured counts.
func (m *matches) round(round int, g group) {
	m.entrants[g] = slices.DeleteFunc(m.entrants[g], func(c *contender) bool {
		if m.ctx.Err() != nil {
			return false
		}
		m.bar.describe("round %d of %d, %s: %s", round+1, m.Rounds, groupText(g), c.name)
		results, err := m.contest(c, g)
		m.add(round, g, c.id, results)
		if err == nil || m.ctx.Err() != nil {
			return false
		}
		n, again := note{c.name, &g, err.Error()}, false
		if errors.Is(err, errSlow) {
			m.Unfinished = append(m.Unfinished, n)
		} else {
			again = !slices.ContainsFunc(m.Failures, func(f note) bool { return f.Contender == c.name && *f.Group == g })
			m.Failures = append(m.Failures, n)
		}
		m.bar.finish()
		fmt.Fprintf(m.errs, "peers: %s, %s: %v\n", c.name, groupText(g), err)
		return !again
	})
}

// contest is one run of one contender: all jobs of a group.
func (m *matches) contest(c *contender, g group) ([]result, error) {
	p, err := m.shop.build(c)
	if err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp(m.shop.dir, "run-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	s := setting{g, m.options.jobSeconds(), m.options.cores, m.jobsOf(c, g), scratch}
	l, cleanup, err := c.start(p, s)
	if err != nil {
		return nil, err
	}
	if cleanup != nil {
		defer cleanup()
	}
	ctx, cancel := context.WithTimeout(m.ctx, s.patience(m.patience))
	defer cancel()
	heard := &listener{heard: m.bar.add}
	failure := m.launch(ctx, l, s.jobs, heard)
	m.take(taking{group: g, Contender: c.id, About: heard.about, Command: l.text(s.scratch)})
	results, err := heard.told(s.jobs)
	if ctx.Err() != nil && err != nil {
		return results, fmt.Errorf("%w: %d of %d jobs in %v", errSlow, len(results), len(s.jobs), s.patience(m.patience))
	}
	if failure != nil {
		err = failure
	}
	return results, err
}

// launch runs the processes to their end.
func (m *matches) launch(ctx context.Context, l launch, jobs []job, out *listener) error {
	command := slices.Clone(l.command)
	for _, j := range jobs {
		command = append(command, j.String())
	}
	var complaints lockedBuffer
	status, err := herd.Run(ctx, herd.Config{
		Command: command,
		Ranks:   l.processes,
		Environ: func(process int) []string { return append(os.Environ(), l.environ(process)...) },
		Label:   herd.LabelNever,
		Grace:   grace,
		Stdout:  out,
		Stderr:  &complaints,
		Name:    "peers",
	})
	if err == nil && status != 0 {
		err = fmt.Errorf("exit status %d: %s", status, complaint(complaints.String()+"\n"+string(out.other)))
	}
	return err
}

// text is the command as a reader could give it, without what differs from run to run:
// directories, among them the run's own, and the meeting place.
func (l launch) text(scratch string) string {
	var words []string
	for _, variable := range l.environ(0) {
		if name, value, _ := strings.Cut(variable, "="); name != "GOLLECTIVE_COMM_ID" {
			words = append(words, name+"="+value)
		}
	}
	for _, word := range l.command {
		if scratch != "" {
			word = strings.ReplaceAll(word, scratch, "DIR")
		}
		if filepath.IsAbs(word) {
			word = filepath.Base(word)
		}
		words = append(words, word)
	}
	return commandLine(words) + " BYTES:BUFFERS..."
}

// commandLine joins words, quoted where a shell would need it.
func commandLine(words []string) string {
	var quoted []string
	for _, w := range words {
		if w == "" || strings.ContainsAny(w, " \t'\"$&|;<>()*?[]\\") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		quoted = append(quoted, w)
	}
	return strings.Join(quoted, " ")
}

// lockedBuffer may be written to by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
