package load

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// textbook are the figures that theory has for two ranks on a machine with cores
// enough.
func textbook() []*Figures {
	spin := &Figures{
		Wait: "spin", Proxy: "thread", Threads: 4, Cores: 8,
		Idle:  &Load{Process: 0.001, MostProcess: 0.002},
		Small: &Load{Block: 0.99, Proxy: 0.99, LeastProxy: 0.98, Had: 4, Busy: 0.99},
		Late:  &Delay{Waited: 50.2, Block: 50, Proxy: 50, Threads: 2, Had: 1},
	}
	block := &Figures{
		Wait: "block", Proxy: "inline", Threads: 2, Cores: 8,
		Idle:  &Load{Process: 0.001, MostProcess: 0.003},
		Small: &Load{Block: 0.3, Had: 2, Busy: 0.3},
		Late:  &Delay{Waited: 50.4, Block: 0.05, Threads: 1, Had: 1},
	}
	slow := &Figures{Wait: "spin", Proxy: "inline", Rate: 1, Threads: 2, Cores: 8, Slow: &Load{Had: 2, Busy: 0.99, Useful: 0.03}}
	return []*Figures{spin, block, slow}
}

func TestVerdicts(t *testing.T) {
	const idle, active, burnt, asleep, busy, useful = 0, 1, 2, 3, 4, 5
	for name, tc := range map[string]struct {
		change func(spin, block, slow *Figures)
		fails  []int
		says   string // in the first that fails, or the active one
	}{
		"as the textbook has it": {},
		"one rank of one case is not idle": {
			func(_, b, _ *Figures) { b.Idle.MostProcess = 0.0123 }, []int{idle}, "1.23 % of a core (block, inline)"},
		"exactly one per cent is too much": {
			func(s, _, _ *Figures) { s.Idle.MostProcess = 0.01 }, []int{idle}, "(spin, thread)"},
		"a proxy that sleeps at times": {
			func(s, _, _ *Figures) { s.Small.LeastProxy = 0.84 }, []int{active}, "at least 84.0 %"},
		"more threads than cores that take turns": {
			func(s, _, _ *Figures) {
				s.Cores = 2
				*s.Small = Load{Block: 0.5, Proxy: 0.48, LeastProxy: 0.47, Had: 2, Busy: 0.98}
			}, nil, "48 % of a core each, where 4 threads poll on 2 cores and took 98.0 % of it"},
		"more threads than cores that leave them unused": {
			func(s, _, _ *Figures) {
				s.Cores = 2
				*s.Small = Load{Proxy: 0.4, LeastProxy: 0.4, Had: 2, Busy: 0.80}
			}, []int{active}, "took 80.0 %"},
		"proxies that get nothing of it": {
			func(s, _, _ *Figures) {
				s.Cores = 2
				*s.Small = Load{Block: 0.9, Proxy: 0.1, LeastProxy: 0.1, Had: 2, Busy: 0.99}
			}, []int{active}, "10 % of a core each"},
		"others that use the cores": {
			func(s, _, _ *Figures) {
				s.Cores = 4
				*s.Small = Load{Proxy: 0.8, LeastProxy: 0.7, Others: 0.5, Had: 3.5, Busy: 0.9}
			}, nil, "4 threads poll on 4 cores, 0.5 of which others used, and took"},
		"a late rank costs little under spin": {
			func(s, _, _ *Figures) { s.Late.Block = 42 }, []int{burnt}, "42.00 ms of the 50.2 ms waited, each time; its proxy 50.00 ms"},
		"a late rank costs more than it can": {
			func(s, _, _ *Figures) { s.Late.Block = 60 }, []int{burnt}, "60.00 ms"},
		"two threads share a core, in whatever way": {
			func(s, _, _ *Figures) { s.Late.Block, s.Late.Proxy, s.Late.Had, s.Late.Busy = 14, 34, 0.5, 0.96 }, nil, ""},
		"two threads share a core and leave a part of it": {
			func(s, _, _ *Figures) { s.Late.Block, s.Late.Proxy, s.Late.Had, s.Late.Busy = 20, 20, 0.5, 0.8 }, []int{burnt},
			"all of it 80 % of what was to be had, 0.50 of a core for each thread that polls (limit: >= 85 % of that)"},
		"a late rank costs much under block": {
			func(_, b, _ *Figures) { b.Late.Block = 2 }, []int{asleep}, "2.00 ms of the 50.4 ms waited, each time (limit: < 2 ms)"},
		"a slow network lets them rest": {
			func(_, _, s *Figures) { s.Slow.Busy = 0.95 }, []int{busy}, "95.0 %"},
		"a slow network has them work": {
			func(_, _, s *Figures) { s.Slow.Useful = 0.2 }, []int{useful}, "20.0 % useful"},
		"everything at once": {
			func(s, b, sl *Figures) {
				s.Idle.MostProcess, s.Small.LeastProxy, s.Late.Block = 1, 0, 0
				b.Late.Block = 50
				sl.Slow.Busy, sl.Slow.Useful = 0.1, 0.9
			}, []int{idle, active, burnt, asleep, busy, useful}, "100.00 %"},
	} {
		t.Run(name, func(t *testing.T) {
			all := textbook()
			if tc.change != nil {
				tc.change(all[0], all[1], all[2])
			}
			verdicts := judge(all)
			require.Len(t, verdicts, 6)
			var fails []int
			for i, v := range verdicts {
				word := "PASS  "
				if !v.Pass {
					fails = append(fails, i)
					word = "FAIL  "
				}
				assert.Contains(t, v.String(), word+v.Claim+": "+v.Measured+" (limit: "+v.Limit+")")
			}
			assert.Equal(t, tc.fails, fails)
			at := active
			if len(fails) > 0 {
				at = fails[0]
			}
			assert.Contains(t, verdicts[at].String(), tc.says)
		})
	}
}

// What was not measured is not judged.
func TestVerdictsAreOnlyAboutWhatWasMeasured(t *testing.T) {
	assert.Empty(t, judge(nil))
	all := textbook()
	assert.Len(t, judge(all[1:2]), 2) // idle, late
	all[1].Wait = "yield"             // about which nothing is claimed
	assert.Len(t, judge(all[1:2]), 1)
	assert.Len(t, judge(all[2:]), 2)
}
