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
	fmt.Fprintf(errs, "peers: %d measurements in %d rounds, about %s where nobody else uses the machine\n",
		m.steps(m.groups)*o.rounds, o.rounds, max(m.expected(), 10*time.Second).Round(10*time.Second))
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
		if transport == o.crowd.Transport {
			groups = append(groups, o.crowd)
		}
	}
	missing := make(map[string]error)
	for _, g := range groups {
		for i := range contenders {
			c := &contenders[i]
			if !o.selects(c) || !slices.Contains(c.transports, g.Transport) || len(o.jobsOf(c, g)) == 0 {
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

// steps counts the jobs of a round in some groups.
func (m *matches) steps(groups []group) int {
	n := 0
	for _, g := range groups {
		for _, c := range m.entrants[g] {
			n += len(m.options.jobsOf(c, g))
		}
	}
	return n
}

// expected is about how long all rounds take on a machine that nobody else uses.
func (m *matches) expected() time.Duration {
	seconds := 0.0
	for _, g := range m.groups {
		for _, c := range m.entrants[g] {
			jobs, rounds := m.options.jobsOf(c, g), float64(m.options.rounds)
			if c.isBrief(g, len(m.options.cores)) {
				rounds = 1
				seconds += briefPatience.Seconds()
			}
			seconds += rounds * startSeconds
			for _, j := range jobs {
				// Some operations are made even where they take longer than their time.
				memory := float64(j.bytes) * float64(j.buffers) * float64(max(1, g.Ranks))
				seconds += rounds * (1.4*m.options.jobSeconds() + memory*byteSeconds + float64(j.bytes)*float64(max(1, g.Ranks))*leastSeconds)
			}
		}
	}
	return time.Duration(seconds * float64(time.Second))
}

// What a contender takes to start and to end; to fill, poison and check a byte of a rank's
// buffers; and, roughly, for the least number of operations, per byte of an operation.
const (
	startSeconds = 0.3
	byteSeconds  = 0.5e-9
	leastSeconds = 2e-9
)

// errSlow is wrapped where a contender's time was over before its jobs were.
var errSlow = errors.New("too slow")

// basePatience is for what contenders do before and after their jobs, on a machine that
// others use, too; briefPatience is for those that would take minutes.
const (
	basePatience  = 20 * time.Second
	briefPatience = 5 * time.Second
)

// patience is how long a contender may take for its jobs. They may take longer than
// their time: the smallest number of operations that tells something may.
func (s setting) patience(c *contender, base time.Duration) time.Duration {
	jobs := time.Duration(float64(len(s.jobs)) * s.seconds * float64(time.Second))
	if c.isBrief(s.group, len(s.cores)) {
		return min(base, briefPatience) + jobs
	}
	return base + 5*jobs
}

func (c *contender) isBrief(g group, cores int) bool { return c.brief != nil && c.brief(g, cores) }

// round lets the contenders of a group run, one after the other. Who fails or takes too long
// twice, or once where that was to be expected, is not asked again; what it has measured
// counts.
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
		notes := &m.Failures
		if errors.Is(err, errSlow) {
			notes = &m.Unfinished
		}
		again := !c.isBrief(g, len(m.options.cores)) &&
			!slices.ContainsFunc(*notes, func(n note) bool { return n.Contender == c.name && *n.Group == g })
		*notes = append(*notes, note{c.name, &g, err.Error()})
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
	s := setting{g, m.options.jobSeconds(), m.options.cores, m.options.jobsOf(c, g), scratch}
	l, cleanup, err := c.start(p, s)
	if err != nil {
		return nil, err
	}
	if cleanup != nil {
		defer cleanup()
	}
	patience := s.patience(c, m.patience)
	ctx, cancel := context.WithTimeout(m.ctx, patience)
	defer cancel()
	heard := &listener{heard: m.bar.add}
	failure := m.launch(ctx, l, s.jobs, heard)
	m.take(taking{group: g, Contender: c.id, About: heard.about, Command: l.text(s.scratch)})
	results, err := heard.told(s.jobs)
	if ctx.Err() != nil && err != nil {
		return results, fmt.Errorf("%w: %d of %d jobs in %v", errSlow, len(results), len(s.jobs), patience.Round(100*time.Millisecond))
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
