package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// report is everything that a run has found out.
type report struct {
	Command    string        `json:"command"`
	Started    time.Time     `json:"started"`
	Machine    string        `json:"machine"`
	Cores      []int         `json:"cores"`
	Pool       int           `json:"pool_bytes"`
	Rounds     int           `json:"rounds"`
	Seconds    float64       `json:"seconds"`
	Statistic  string        `json:"statistic"`
	Foreign    float64       `json:"foreign_cores"` // cores that others kept busy, -1 if not known
	Took       time.Duration `json:"took_ns"`
	Sizes      []int         `json:"sizes"`
	Buffers    []string      `json:"buffers"`
	Groups     []group       `json:"groups"`
	Missing    []note        `json:"missing"`
	Failures   []note        `json:"failures"`
	Unfinished []note        `json:"unfinished"` // their time was over
	Taking     []taking      `json:"contenders"`
	Entries    []*entry      `json:"entries"`

	options options
	byPlace map[place]*entry
}

// note is why somebody is not in the tables.
type note struct {
	Contender string `json:"contender"`
	Group     *group `json:"group,omitempty"`
	Text      string `json:"text"`
}

// taking is a contender that takes part in a group.
type taking struct {
	group
	Contender string `json:"contender"`
	About     string `json:"about,omitempty"` // what the library calls itself
	Command   string `json:"command"`
}

// entry are the figures of one contender in one setting.
type entry struct {
	group
	Contender string    `json:"contender"`
	Bytes     int       `json:"bytes"`
	BufferSet int       `json:"buffers"`
	Results   []*result `json:"rounds"` // null where a round has none
}

type place struct {
	group
	id string
	job
}

func newReport(o options) *report {
	r := &report{
		Started: time.Now(), Machine: machineText(len(o.cores)), Cores: o.cores, Pool: o.pool, Rounds: o.rounds, Seconds: o.seconds,
		Statistic: o.statistic, Foreign: -1, Sizes: o.sizes, Buffers: o.buffers,
		Missing: []note{}, Failures: []note{}, Unfinished: []note{}, options: o, byPlace: make(map[place]*entry),
	}
	r.Command = commandLine(append([]string{"go", "run", "./bench/peers"}, o.args...))
	return r
}

// readReport reads what write has written as JSON, to be written again as o says.
func readReport(o options) (*report, error) {
	text, err := os.ReadFile(o.from)
	if err != nil {
		return nil, err
	}
	r := &report{byPlace: make(map[place]*entry)}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", o.from, err)
	}
	for _, e := range r.Entries {
		if len(e.Results) != r.Rounds {
			return nil, fmt.Errorf("%s: %d rounds of %d", o.from, len(e.Results), r.Rounds)
		}
		r.byPlace[place{e.group, e.Contender, job{e.Bytes, e.BufferSet}}] = e
	}
	if len(r.Entries) == 0 {
		return nil, fmt.Errorf("%s holds no figures", o.from)
	}
	r.Statistic = o.statistic
	r.options = o
	r.options.pool, r.options.sizes, r.options.buffers = r.Pool, r.Sizes, r.Buffers
	return r, nil
}

// add enters the results of a round.
func (r *report) add(round int, g group, id string, results []result) {
	for i := range results {
		p := place{g, id, results[i].Job}
		e := r.byPlace[p]
		if e == nil {
			e = &entry{group: g, Contender: id, Bytes: p.bytes, BufferSet: p.buffers, Results: make([]*result, r.Rounds)}
			r.byPlace[p] = e
			r.Entries = append(r.Entries, e)
		}
		e.Results[round] = &results[i]
	}
}

// take enters how a contender takes part.
func (r *report) take(t taking) {
	if !slices.ContainsFunc(r.Taking, func(known taking) bool { return known.group == t.group && known.Contender == t.Contender }) {
		r.Taking = append(r.Taking, t)
	}
}

// times are the seconds per operation of each round, 0 where there is none; nil where
// nothing was measured.
func (r *report) times(g group, id string, j job) []float64 {
	e := r.byPlace[place{g, id, j}]
	if e == nil {
		return nil
	}
	times := make([]float64, len(e.Results))
	for i, res := range e.Results {
		switch {
		case res == nil || len(res.Seconds) == 0:
		case r.Statistic == ofLeast:
			times[i] = slices.Min(res.Seconds)
		default:
			times[i] = median(res.Seconds)
		}
	}
	return times
}

// cpu is the processor time per operation of each round.
func (r *report) cpu(g group, id string, j job) []float64 {
	e := r.byPlace[place{g, id, j}]
	if e == nil {
		return nil
	}
	cpu := make([]float64, len(e.Results))
	for i, res := range e.Results {
		if res != nil {
			cpu[i] = res.CPU
		}
	}
	return cpu
}

// variant is what a contender took in most rounds.
func (r *report) variant(g group, id string, j job) string {
	e := r.byPlace[place{g, id, j}]
	if e == nil {
		return ""
	}
	votes := make(map[string]int)
	best := ""
	for _, res := range e.Results {
		if res == nil || res.Variant == "" {
			continue
		}
		if votes[res.Variant]++; best == "" || votes[res.Variant] > votes[best] {
			best = res.Variant
		}
	}
	return best
}

// job is the one that measures a kind of buffers.
func (r *report) job(g group, kind string, bytes int) job {
	return job{bytes, r.options.buffersOf(kind, bytes, max(1, g.Ranks))}
}

// in lists the contenders that have figures in a group, those of the given roles.
func (r *report) in(g group, roles ...role) []*contender {
	var all []*contender
	for i := range contenders {
		c := &contenders[i]
		if slices.Contains(roles, c.role) && slices.ContainsFunc(r.Entries, func(e *entry) bool { return e.group == g && e.Contender == c.id }) {
			all = append(all, c)
		}
	}
	return all
}

// fastest are, round by round, the times of whoever was fastest.
func (r *report) fastest(g group, of []*contender, j job) []float64 {
	best := make([]float64, r.Rounds)
	for _, c := range of {
		for round, t := range r.times(g, c.id, j) {
			if t > 0 && (best[round] == 0 || t < best[round]) {
				best[round] = t
			}
		}
	}
	return best
}

// save writes the JSON, if it was asked for.
func (r *report) save() error {
	if r.options.json == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(r.options.json, append(text, '\n'), 0o644)
}

// write writes what was asked for: Markdown to w or a file, JSON to a file.
func (r *report) write(w io.Writer) error {
	if err := r.save(); err != nil {
		return err
	}
	text := r.markdown()
	if r.options.markdown != "" {
		return os.WriteFile(r.options.markdown, []byte(text), 0o644)
	}
	_, err := io.WriteString(w, text)
	return err
}
