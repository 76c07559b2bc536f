package load

import (
	"fmt"
	"slices"
	"time"
)

// Figures are what a case has shown. Phases that it did not go through are nil.
type Figures struct {
	Wait  string `json:"wait"`
	Proxy string `json:"proxy"`
	Rate  int    `json:"rate_bytes_per_second,omitempty"`
	// Threads is how many threads of all ranks poll while all ranks are in a call,
	// if the policy has them poll; Cores is how many there are for them.
	Threads int    `json:"polling_threads"`
	Cores   int    `json:"cores"`
	Idle    *Load  `json:"idle,omitempty"`
	Small   *Load  `json:"small,omitempty"`
	Large   *Load  `json:"large,omitempty"`
	Late    *Delay `json:"late,omitempty"`
	Slow    *Load  `json:"slow,omitempty"`
}

// Load is a phase in which all ranks did the same. Shares are of one core, 1 = all of
// it, and the mean of the ranks unless they say otherwise.
type Load struct {
	Process float64 `json:"process"` // all threads of a rank's process
	Block   float64 `json:"block"`   // a rank's blocks
	Proxy   float64 `json:"proxy"`   // a rank's proxy, if that has a thread
	Rest    float64 `json:"rest"`    // of the process: the runtime, control connections

	MostProcess float64 `json:"most_process"` // of any rank
	LeastProxy  float64 `json:"least_proxy"`

	// Others is what other processes of the host used meanwhile of the cores that
	// the ranks share; 0 where that is not known.
	Others float64 `json:"others"`
	// Had is how many cores the polling threads of all ranks could have had: one
	// each, or what Others and Rest left. Busy is how much of that they used.
	Had  float64 `json:"had"`
	Busy float64 `json:"busy"`
	// Useful is the part of Busy that was not spent on looking in vain.
	Useful float64 `json:"useful"`

	Calls    int     `json:"calls,omitempty"`
	Bytes    int     `json:"bytes,omitempty"`
	P50      float64 `json:"p50_us,omitempty"` // of the slowest rank
	P99      float64 `json:"p99_us,omitempty"`
	AlgBW    float64 `json:"algbw_gb_per_second,omitempty"`
	CPUPerGB float64 `json:"cpu_seconds_per_gb,omitempty"` // of all ranks
}

// Delay is what it costs a rank to wait for one that is late: medians of all such
// times, in milliseconds.
type Delay struct {
	Events  int     `json:"events"`
	Waited  float64 `json:"waited_ms"`
	Block   float64 `json:"block_ms"`
	Proxy   float64 `json:"proxy_ms"`
	Process float64 `json:"process_ms"`
	Threads int     `json:"polling_threads"` // of a rank that waits
	Others  float64 `json:"others"`
	Had     float64 `json:"had"` // cores for each of them, at most 1
	// Busy is how much they used of what they could have had, over all times.
	Busy float64 `json:"busy"`
}

// figuresOf makes the figures of a case of all ranks' samples.
func figuresOf(c Case, samples []*Sample) (*Figures, error) {
	f := &Figures{Wait: c.Wait, Proxy: c.Proxy, Rate: c.Rate, Threads: c.Ranks * c.threads()}
	if len(samples) != c.Ranks {
		return nil, fmt.Errorf("%d of %d ranks have told what they measured", len(samples), c.Ranks)
	}
	f.Cores = samples[0].Cores
	for _, s := range samples {
		f.Cores = min(f.Cores, s.Cores)
	}
	for _, name := range c.phases() {
		var ranks []*Phase
		for _, s := range samples {
			p := s.Phases[name]
			if p == nil || p.Usage.Wall <= 0 || name == phaseLate && s.Rank < c.Ranks-1 && len(p.Events) == 0 {
				return nil, fmt.Errorf("rank %d has not told about phase %s", s.Rank, name)
			}
			ranks = append(ranks, p)
		}
		switch name {
		case phaseIdle:
			f.Idle = f.load(ranks)
		case phaseSmall:
			f.Small = f.load(ranks)
		case phaseLarge:
			f.Large = f.load(ranks)
		case phaseSlow:
			f.Slow = f.load(ranks)
		case phaseLate:
			f.Late = f.delay(c, ranks)
		}
	}
	return f, nil
}

func (f *Figures) load(ranks []*Phase) *Load {
	l := &Load{LeastProxy: 1e9}
	n := float64(len(ranks))
	var polling, useful, cpu time.Duration
	for _, p := range ranks {
		u := &p.Usage
		share := func(d time.Duration) float64 { return float64(d) / float64(u.Wall) }
		block, proxy, helper, work := u.roles()
		process := share(u.Process)
		l.Process += process / n
		l.Block += share(block) / n
		l.Proxy += share(proxy+helper) / n
		l.Rest += max(0, share(u.Process-block-proxy-helper)) / n
		l.MostProcess = max(l.MostProcess, process)
		l.LeastProxy = min(l.LeastProxy, share(proxy))
		polling += block + proxy + helper
		useful += work
		cpu += u.Process

		l.P50 = max(l.P50, micros(p.P50))
		l.P99 = max(l.P99, micros(p.P99))
	}
	l.Others = others(ranks)
	l.Had = min(float64(f.Threads), max(float64(f.Cores)-l.Others-n*l.Rest, 0))
	wall := ranks[0].Usage.Wall
	if l.Had > 0 {
		l.Busy = min(1, float64(polling)/float64(wall)/l.Had) // clocks are not read at one moment
	}
	if polling > 0 {
		l.Useful = float64(useful) / float64(polling)
	}
	l.Calls, l.Bytes = ranks[0].Calls, ranks[0].Bytes
	if moved := float64(l.Calls*l.Bytes) / 1e9; moved > 0 {
		l.AlgBW = moved / ranks[0].Spent.Seconds()
		l.CPUPerGB = cpu.Seconds() / moved
	}
	return l
}

// roles splits what was used by the threads of roles. A proxy that has none works on
// its blocks'. The last result is the part of all that was not spent on looking in
// vain.
func (u *Usage) roles() (block, proxy, helper, work time.Duration) {
	s := &u.Stats
	block, proxy, helper = s.Block.CPU, s.Proxy.CPU, s.Helper.CPU
	total := block + proxy + helper
	work = total - s.Block.Waiting - s.Proxy.Waiting - s.Helper.Waiting
	if s.Proxy.Threads == 0 {
		block, proxy = block+proxy, 0
	}
	return block, proxy, helper, max(0, min(work, total))
}

// others is how many cores were used by processes other than the ranks', as the
// first rank has seen it.
func others(ranks []*Phase) float64 {
	u := &ranks[0].Usage
	if u.Host < 0 {
		return 0
	}
	mine := 0.0
	for _, p := range ranks {
		mine += float64(p.Usage.Process) / float64(p.Usage.Wall)
	}
	return max(0, float64(u.Host)/float64(u.Wall)-mine)
}

func (f *Figures) delay(c Case, ranks []*Phase) *Delay {
	d := &Delay{Others: others(ranks)}
	var waited, block, proxy, process []float64
	var wall, polling time.Duration
	for _, p := range ranks {
		for i := range p.Events {
			u := &p.Events[i]
			b, x, helper, _ := u.roles()
			// Each of the blocks waits for as long.
			waited = append(waited, micros(u.Wall)/1e3)
			block = append(block, micros(b)/1e3)
			proxy = append(proxy, micros(x+helper)/1e3)
			process = append(process, micros(u.Process)/1e3)
			wall += u.Wall
			polling += b + x + helper
		}
	}
	d.Events = len(waited)
	d.Waited, d.Block, d.Proxy, d.Process = median(waited), median(block), median(proxy), median(process)
	// A call of 4 B has one block, and the last rank sleeps.
	d.Threads = c.threads() - c.Channels + 1
	d.Had = min(1, max(float64(f.Cores)-d.Others, 0)/float64((c.Ranks-1)*d.Threads))
	if d.Had > 0 {
		d.Busy = min(1, float64(polling)/(float64(wall)*float64(d.Threads)*d.Had))
	}
	return d
}

func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func (f *Figures) name() string { return f.Wait + ", " + f.Proxy }

// proxied reports whether the proxies have threads of their own.
func (f *Figures) proxied() bool { return f.Proxy == "thread" }
