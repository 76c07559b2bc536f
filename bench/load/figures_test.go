package load

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
)

const ms = time.Millisecond

// spent are counters of a role.
func spent(cpu, waiting time.Duration, threads int) collective.Counters {
	return collective.Counters{CPU: cpu, Waiting: waiting, Threads: threads}
}

// samplesOf are those of two ranks, with a phase each.
func samplesOf(cores int, name string, phases ...Phase) []*Sample {
	var all []*Sample
	for rank := range phases {
		all = append(all, &Sample{Rank: rank, Cores: cores, Phases: map[string]*Phase{name: &phases[rank]}})
	}
	return all
}

var slowCase = Case{Wait: "spin", Proxy: "thread", Rate: 1, Ranks: 2, Channels: 1}

// Two ranks on three cores, one of which others use half of.
func TestFiguresOfALoad(t *testing.T) {
	samples := samplesOf(3, phaseSlow,
		Phase{
			Usage: Usage{Wall: 1000 * ms, Process: 1300 * ms, Host: 2600 * ms, Stats: collective.Stats{
				Block: spent(700*ms, 600*ms, 1), Proxy: spent(500*ms, 450*ms, 1),
			}},
			Calls: 10, Bytes: 1e8, Spent: 500 * ms, P50: 40 * ms, P99: 60 * ms,
		},
		Phase{
			Usage: Usage{Wall: 1000 * ms, Process: 800 * ms, Host: 2600 * ms, Stats: collective.Stats{
				Block: spent(400*ms, 380*ms, 1), Proxy: spent(400*ms, 320*ms, 1),
			}},
			Calls: 10, Bytes: 1e8, Spent: 500 * ms, P50: 41 * ms, P99: 50 * ms,
		})
	f, err := figuresOf(slowCase, samples)
	require.NoError(t, err)
	require.Equal(t, 4, f.Threads)
	require.Equal(t, 3, f.Cores)
	l := f.Slow
	for name, pair := range map[string][2]float64{
		"process":      {l.Process, 1.05},
		"block":        {l.Block, 0.55},
		"proxy":        {l.Proxy, 0.45},
		"rest":         {l.Rest, 0.05},
		"most process": {l.MostProcess, 1.3},
		"least proxy":  {l.LeastProxy, 0.4},
		"others":       {l.Others, 0.5},
		"had":          {l.Had, 2.4},
		"busy":         {l.Busy, 2.0 / 2.4},
		"useful":       {l.Useful, (2.0 - 1.75) / 2.0},
		"p50":          {l.P50, 41e3},
		"p99":          {l.P99, 60e3},
		"algbw":        {l.AlgBW, 2},
		"CPU per GB":   {l.CPUPerGB, 2.1},
	} {
		assert.InDelta(t, pair[1], pair[0], 1e-9, name)
	}
}

// A proxy without a thread works on its blocks'.
func TestFiguresOfAProxyInline(t *testing.T) {
	c := slowCase
	c.Proxy = "inline"
	usage := Usage{Wall: 1000 * ms, Process: 1000 * ms, Host: -1, Stats: collective.Stats{
		Block: spent(200*ms, 100*ms, 1), Proxy: spent(800*ms, 650*ms, 0),
	}}
	f, err := figuresOf(c, samplesOf(8, phaseSlow, Phase{Usage: usage}, Phase{Usage: usage}))
	require.NoError(t, err)
	assert.Equal(t, 2, f.Threads)
	assert.InDelta(t, 1, f.Slow.Block, 1e-9)
	assert.Zero(t, f.Slow.Proxy)
	assert.Zero(t, f.Slow.Others, "not known")
	assert.InDelta(t, 1, f.Slow.Busy, 1e-9)
	assert.InDelta(t, 0.25, f.Slow.Useful, 1e-9)
}

// The last rank's own time is no part of what its lateness costs others.
func TestFiguresOfADelay(t *testing.T) {
	c := Case{Wait: "spin", Proxy: "thread", Ranks: 3, Channels: 4}
	event := func(wall, block, proxy time.Duration) Usage {
		return Usage{Wall: wall, Process: block + proxy, Host: -1, Stats: collective.Stats{
			Block: spent(block, block, 4), Proxy: spent(proxy, proxy, 1),
		}}
	}
	phase := func(events ...Usage) *Phase {
		return &Phase{Usage: Usage{Wall: 1, Host: -1}, Events: events}
	}
	f := &Figures{Cores: 2}
	d := f.delay(c, []*Phase{
		phase(event(50*ms, 48*ms, 47*ms), event(51*ms, 50*ms, 10*ms)),
		phase(event(52*ms, 1*ms, 49*ms), event(90*ms, 52*ms, 48*ms)),
		phase(),
	})
	assert.Equal(t, 4, d.Events)
	assert.InDelta(t, 51.5, d.Waited, 1e-9)
	assert.InDelta(t, 49, d.Block, 1e-9)
	assert.InDelta(t, 47.5, d.Proxy, 1e-9)
	assert.Equal(t, 2, d.Threads)
	assert.InDelta(t, 1, d.Busy, 1e-9, "305 ms of 243, as clocks go")
	assert.InDelta(t, 0.5, d.Had, 1e-9, "two ranks wait, with a block and a proxy each")
}

func TestFiguresNeedAllRanksAndPhases(t *testing.T) {
	good := Phase{Usage: Usage{Wall: 1}}
	_, err := figuresOf(slowCase, samplesOf(1, phaseSlow, good, good))
	require.NoError(t, err)
	_, err = figuresOf(slowCase, samplesOf(1, phaseSlow, good))
	require.ErrorContains(t, err, "1 of 2 ranks")
	_, err = figuresOf(slowCase, samplesOf(1, phaseIdle, good, good))
	require.ErrorContains(t, err, "rank 0 has not told about phase slow")
	_, err = figuresOf(slowCase, samplesOf(1, phaseSlow, good, Phase{}))
	require.ErrorContains(t, err, "rank 1 has not told about phase slow")
}

func TestPercentilesAndMedians(t *testing.T) {
	var times []time.Duration
	for i := range 200 {
		times = append(times, time.Duration(i+1))
	}
	assert.Equal(t, time.Duration(100), percentile(times, 50))
	assert.Equal(t, time.Duration(198), percentile(times, 99))
	assert.Equal(t, time.Duration(1), percentile(times[:1], 99))
	assert.Equal(t, time.Duration(1), percentile(times[:2], 50))
	assert.InDelta(t, 2, median([]float64{9, 1, 2}), 0)
	assert.InDelta(t, 3, median([]float64{9, 4, 1, 2}), 0)
}
