package load

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/gollective/gollective/bench/perf"
	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/internal/spin"
)

// Case is one set of rank processes: how they wait, who drives the proxy, and how
// long everything takes.
type Case struct {
	Wait  string // of policies
	Proxy string // of drivers
	// Rate bounds what a connection sends, in bytes per second; then slow is the
	// only phase. 0 = no bound, and all phases but that.
	Rate int `json:",omitempty"`

	Ranks    int
	Channels int
	Duration time.Duration // of a phase
	Late     int           // how often the last rank is late
}

const (
	smallBytes = 4
	largeBytes = 16 << 20
	slowBytes  = 4 << 20
	// lateBy is how long the others wait for the last rank.
	lateBy = 50 * time.Millisecond
	// idleComms are the communicators that are idle together.
	idleComms = 4
	// settling is how long after their last call communicators count as idle: who
	// waits for the next one looks around at growing intervals first.
	settling = 500 * time.Millisecond
)

// The phases, by the names that reports have for them.
const (
	phaseIdle  = "idle"
	phaseSmall = "small"
	phaseLarge = "large"
	phaseLate  = "late"
	phaseSlow  = "slow"
)

// phases are those that a case goes through, in order.
func (c Case) phases() []string {
	if c.Rate > 0 {
		return []string{phaseSlow}
	}
	return []string{phaseIdle, phaseSmall, phaseLarge, phaseLate}
}

// threads is how many threads of a rank wait: its blocks and, if there is one, its
// proxy's.
func (c Case) threads() int {
	if c.Proxy == "thread" {
		return c.Channels + 1
	}
	return c.Channels
}

// Config is what the case asks of the library.
func (c Case) Config() (collective.Config, error) {
	wait, err := spin.ParsePolicy(c.Wait)
	return collective.Config{
		Transport: "tcp", Wait: wait, Proxy: c.Proxy, SocketRate: c.Rate,
		Channels: c.Channels, Accounting: true,
	}, err
}

// Usage is what a stretch of time has cost one rank. Host is what all processes of
// the host have used of the processors that this one may use; negative where the
// system does not tell.
type Usage struct {
	Wall, Process, Host time.Duration
	Stats               collective.Stats
}

// Sample is what one rank has measured in a case.
type Sample struct {
	Rank, Cores int
	Phases      map[string]*Phase
}

// Phase is one rank's part of a phase. Usage covers all of it; in phase late, the
// calls only.
type Phase struct {
	Usage Usage
	// Calls is how many were made, in Spent: by the slowest rank's clock.
	Calls int           `json:",omitempty"`
	Bytes int           `json:",omitempty"` // of a call
	Spent time.Duration `json:",omitempty"`
	// P50 and P99 of the calls' times, on this rank.
	P50, P99 time.Duration `json:",omitempty"`
	// Events are the times that the last rank was late, on the others.
	Events []Usage `json:",omitempty"`
}

// Measure is one rank's part of a case: all ranks of c call it. At the begin of each
// phase it tells the name.
func Measure(ctx context.Context, c *collective.Comm, of Case, begins func(phase string) error) (*Sample, error) {
	m := &measurement{Case: of, comm: c}
	s := &Sample{Rank: c.Rank(), Cores: runtime.GOMAXPROCS(0), Phases: make(map[string]*Phase)}
	for _, name := range of.phases() {
		if err := begins(name); err != nil {
			return nil, err
		}
		var err error
		if s.Phases[name], err = m.phase(ctx, name); err != nil {
			return nil, fmt.Errorf("phase %s: %w", name, err)
		}
	}
	return s, nil
}

// measurement is one rank's.
type measurement struct {
	Case
	comm *collective.Comm
}

func (m *measurement) phase(ctx context.Context, name string) (*Phase, error) {
	switch name {
	case phaseIdle:
		return m.idle(ctx)
	case phaseSmall:
		return m.busy(ctx, smallBytes)
	case phaseLarge:
		return m.busy(ctx, largeBytes)
	case phaseSlow:
		return m.busy(ctx, slowBytes)
	}
	return m.late(ctx)
}

// idle sleeps among communicators that have been used.
func (m *measurement) idle(ctx context.Context) (*Phase, error) {
	comms := []*collective.Comm{m.comm}
	for len(comms) < idleComms {
		c, err := m.comm.Split(ctx, 0, m.comm.Rank())
		if err != nil {
			return nil, err
		}
		defer c.Close()
		comms = append(comms, c)
	}
	for _, c := range comms {
		for _, bytes := range []int{smallBytes, largeBytes} {
			if err := allReduce(ctx, c, make([]float32, bytes/4)); err != nil {
				return nil, err
			}
		}
	}
	runtime.GC() // the buffers' end is not the communicators' doing
	if err := collective.Barrier(ctx, m.comm); err != nil {
		return nil, err
	}
	if err := sleep(ctx, min(settling, m.Duration)); err != nil {
		return nil, err
	}
	before := read(comms...)
	if err := sleep(ctx, m.Duration); err != nil {
		return nil, err
	}
	after := read(comms...)
	// Whoever wakes first would be seen by the others.
	return &Phase{Usage: after.since(before)}, collective.Barrier(ctx, m.comm)
}

// busy makes allreduces back to back for the case's duration.
func (m *measurement) busy(ctx context.Context, bytes int) (*Phase, error) {
	buffer := make([]float32, bytes/4)
	p := &Phase{Bytes: bytes}
	var times []time.Duration
	for range 2 { // connections exist, and pages
		if err := allReduce(ctx, m.comm, buffer); err != nil {
			return nil, err
		}
	}
	before := read(m.comm)
	for calls := 1; p.Spent < m.Duration; calls = m.batch(p, calls) {
		batch := time.Now()
		for range calls {
			begin := time.Now()
			if err := allReduce(ctx, m.comm, buffer); err != nil {
				return nil, err
			}
			times = append(times, time.Since(begin))
		}
		p.Calls += calls
		// All ranks must make the same number of calls: the slowest clock decides.
		spent := []int64{int64(time.Since(batch))}
		if err := collective.AllReduce(ctx, m.comm, spent, spent, collective.Max); err != nil {
			return nil, err
		}
		p.Spent += time.Duration(spent[0])
	}
	p.Usage = read(m.comm).since(before)
	slices.Sort(times)
	p.P50, p.P99 = percentile(times, 50), percentile(times, 99)
	return p, nil
}

// batch is how many calls to make between two looks at the clock after the last
// batch was of so many: some tenth of the phase.
func (m *measurement) batch(p *Phase, last int) int {
	each := max(p.Spent/time.Duration(p.Calls), 1)
	return max(1, min(4*last, int(m.Duration/10/each)))
}

// percentile is the smallest of the sorted times that so many percent don't exceed.
func percentile(sorted []time.Duration, percent int) time.Duration {
	at := int(math.Ceil(float64(len(sorted)*percent)/100)) - 1
	return sorted[max(at, 0)]
}

// late has the last rank sleep before an allreduce that all others have entered.
func (m *measurement) late(ctx context.Context) (*Phase, error) {
	p := &Phase{Bytes: smallBytes}
	buffer := make([]float32, smallBytes/4)
	for range m.Late {
		if err := collective.Barrier(ctx, m.comm); err != nil {
			return nil, err
		}
		before := read(m.comm)
		last := m.comm.Rank() == m.comm.Size()-1
		if last {
			if err := sleep(ctx, lateBy); err != nil {
				return nil, err
			}
		}
		if err := allReduce(ctx, m.comm, buffer); err != nil {
			return nil, err
		}
		event := read(m.comm).since(before)
		p.Usage.add(event)
		p.Calls++
		if !last {
			p.Events = append(p.Events, event)
		}
	}
	return p, nil
}

func allReduce(ctx context.Context, c *collective.Comm, buffer []float32) error {
	return collective.AllReduce(ctx, c, buffer, buffer, collective.Sum)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readings are the state of all clocks and counters.
type readings struct {
	at            time.Time
	process, host time.Duration
	stats         []collective.Stats // by communicator
}

func read(comms ...*collective.Comm) readings {
	r := readings{at: time.Now(), host: hostTime()}
	r.process, _ = perf.CPUTime()
	for _, c := range comms {
		r.stats = append(r.stats, c.Stats())
	}
	return r
}

// since is what was used since an earlier reading of the same communicators.
func (r readings) since(before readings) Usage {
	u := Usage{Wall: r.at.Sub(before.at), Process: r.process - before.process, Host: r.host - before.host}
	if r.host < 0 || before.host < 0 {
		u.Host = -1
	}
	for i, s := range r.stats {
		b := before.stats[i]
		addStats(&u.Stats, collective.Stats{
			Block: s.Block.Sub(b.Block), Proxy: s.Proxy.Sub(b.Proxy), Helper: s.Helper.Sub(b.Helper),
		})
	}
	return u
}

func addStats(to *collective.Stats, s collective.Stats) {
	to.Block.Add(s.Block)
	to.Proxy.Add(s.Proxy)
	to.Helper.Add(s.Helper)
}

// add adds another time of the same rank and communicators.
func (u *Usage) add(v Usage) {
	u.Wall += v.Wall
	u.Process += v.Process
	if u.Host >= 0 && v.Host >= 0 {
		u.Host += v.Host
	} else {
		u.Host = -1
	}
	addStats(&u.Stats, v.Stats)
	u.Stats.Block.Threads = v.Stats.Block.Threads
	u.Stats.Proxy.Threads = v.Stats.Proxy.Threads
	u.Stats.Helper.Threads = v.Stats.Helper.Threads
}
