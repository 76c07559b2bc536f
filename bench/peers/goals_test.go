package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGoalsNameContendersThatTakePart(t *testing.T) {
	o, err := parseOptions(nil, io.Discard)
	require.NoError(t, err)
	for _, g := range goals {
		for _, c := range append(contendersOf(g.them), contenderOf(g.us)) {
			require.Contains(t, c.transports, g.group.Transport, g.work)
			bytes := make(map[int]bool)
			for _, j := range o.jobsOf(c, g.group) {
				bytes[j.bytes] = true
			}
			for _, size := range g.sizes {
				require.True(t, bytes[size], "%s: %s does not measure %d bytes", g.work, c.id, size)
			}
		}
		require.Positive(t, g.most)
	}
}

// The judged size is the worst, and each kind of buffers is judged by itself.
func TestVerdicts(t *testing.T) {
	of := func(worst float64, measured int) attempt {
		return attempt{spread: spread{worst, worst, worst}, measured: measured}
	}
	g := goal{sizes: []int{4, 256}, most: 0.7}
	for _, tc := range []struct {
		name     string
		attempts map[string]attempt
		want     string
	}{
		{"both", map[string]attempt{fixed: of(0.7, 2), rotating: of(0.1, 2)}, "yes"},
		{"neither", map[string]attempt{fixed: of(0.71, 2), rotating: of(3, 2)}, "no"},
		{"one", map[string]attempt{fixed: of(0.71, 2), rotating: of(0.5, 2)}, "rotating only"},
		{"a size is missing", map[string]attempt{fixed: of(0.5, 1), rotating: of(0.5, 2)}, "yes, as far as measured"},
		{"a kind is missing", map[string]attempt{fixed: of(0.8, 2)}, "no, as far as measured"},
		{"nothing", nil, "not measured"},
	} {
		require.Equal(t, tc.want, g.verdict([]string{fixed, rotating}, tc.attempts), tc.name)
	}
}

func TestAttemptsAreJudgedAtTheirWorstSize(t *testing.T) {
	r := sample()
	d := document{report: r}
	g := goal{us: "gollective-goroutines", them: []string{"openmpi"}, group: group{overShm, 2}, sizes: []int{4, 64 << 10, 1 << 20}, most: 0.7}
	a, ok := d.attempt(g, fixed)
	require.True(t, ok)
	require.InDelta(t, 0.1/0.15, a.figure, 1e-9)
	require.Equal(t, 4, a.bytes)
	require.Equal(t, 2, a.measured, "nobody has measured 1M")
	require.False(t, a.bought)

	g.us, g.sizes = "gollective-processes", []int{64 << 10}
	a, ok = d.attempt(g, fixed)
	require.True(t, ok)
	require.InDelta(t, 0.5, a.figure, 1e-9)
	require.True(t, a.bought, "a faster time for more processor time")

	tcp := goal{us: "gollective-processes", them: []string{"openmpi", "gloo-default"}, group: group{overTCP, 4}, sizes: []int{4, 64 << 10}, most: 1}
	a, ok = d.attempt(tcp, rotating)
	require.True(t, ok)
	require.InDelta(t, 1.5, a.figure, 1e-9, "beside the faster of two")
	require.Equal(t, 4, a.bytes)

	g.us = "gollective-memalloc"
	_, ok = d.attempt(g, fixed)
	require.False(t, ok, "it took no part")
}

// What a person has written under the table outlives the next report.
func TestWhatIsWrittenByHandIsKept(t *testing.T) {
	r := sample()
	r.options.markdown = filepath.Join(t.TempDir(), "report.md")
	require.NoError(t, r.write(nil))
	first, err := os.ReadFile(r.options.markdown)
	require.NoError(t, err)
	require.Contains(t, string(first), "\n"+explained+"\n")
	require.Contains(t, string(first), "not explained yet")

	_, rest, _ := strings.Cut(string(first), explained)
	_, rest, _ = strings.Cut(rest, "\n## ")
	begin, _, _ := strings.Cut(string(first), explained)
	section := func(text string) string { return begin + explained + "\n\n" + text + "\n\n## " + rest }
	for _, tc := range []struct{ name, written, want string }{
		{"all are explained", "- **1**, **3**: the flag's way between two cores.\n\nAnd more.",
			"- **1**, **3**: the flag's way between two cores.\n\nAnd more."},
		{"one is not", "- **1**: the flag's way.", "- **1**: the flag's way.\n- **3**, gollective, 64K: not explained yet."},
		{"one that was missed before", "- **2**, gollective, 4K: not explained yet.\n- **1**, **3**: the flag.", "- **1**, **3**: the flag."},
	} {
		require.NoError(t, os.WriteFile(r.options.markdown, []byte(section(tc.written)), 0o644))
		require.NoError(t, r.write(nil))
		again, err := os.ReadFile(r.options.markdown)
		require.NoError(t, err)
		require.Equal(t, section(tc.want), string(again), tc.name)
	}
}

// The 8 ranks are there for one size, and for whom they are meant.
func TestTheCrowdIsMeasuredAtOneSize(t *testing.T) {
	o, err := parseOptions([]string{"-sizes", "4,64K"}, io.Discard)
	require.NoError(t, err)
	eight := group{overShm, 8}
	require.Equal(t, eight, o.crowd)
	for i := range contenders {
		c := &contenders[i]
		for _, j := range o.jobsOf(c, eight) {
			if !c.ping {
				require.True(t, c.crowd, c.id)
				require.Equal(t, crowdBytes, j.bytes)
			}
		}
	}
	require.NotEmpty(t, o.jobsOf(contenderOf("openmpi"), eight))
	for _, args := range [][]string{{"-ranks", "8"}, {"-transports", "tcp"}} {
		o, err := parseOptions(args, io.Discard)
		require.NoError(t, err)
		require.Zero(t, o.crowd, args)
	}
	require.Len(t, o.jobsOf(contenderOf("openmpi"), group{overShm, 2}), 4, "others are measured at all sizes")
	require.Empty(t, o.jobsOf(contenderOf("gollective-ring"), group{overShm, 2}), "none of its sizes")
}
