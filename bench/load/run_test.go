package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
)

func linuxOnly(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("ranks are connected by sockets on Linux only")
	}
}

// goroutines launches ranks in this process: what they measure of the process is all
// ranks', all else is as it is with processes.
func goroutines(ctx context.Context, n int, text string, out io.Writer) error {
	var of Case
	if err := json.Unmarshal([]byte(text), &of); err != nil {
		return err
	}
	config, err := of.Config()
	if err != nil {
		return err
	}
	return collective.RunConfig(n, config, func(c *collective.Comm) error { return rank(ctx, c, of, out) })
}

// tiny are options of a run that takes no time.
func tiny(t *testing.T) Options {
	o := DefaultOptions()
	o.Duration, o.Late = shortest, 2
	o.Chart, o.JSON = filepath.Join(t.TempDir(), "load.svg"), filepath.Join(t.TempDir(), "load.json")
	return o
}

// A whole run: every case has a row, every number is one, and the files are there.
func TestRun(t *testing.T) {
	linuxOnly(t)
	o := tiny(t)
	o.Policies = []string{"spin", "block"}
	var out bytes.Buffer
	err := Run(t.Context(), o, goroutines, &out, io.Discard)
	if err != nil {
		require.ErrorIs(t, err, ErrFailed)
	}
	text := out.String()
	rows := regexp.MustCompile(`(?m)^  (spin|block) +(thread|inline)( +[\d.]+| +-){13}$`).FindAllString(text, -1)
	assert.Len(t, rows, 4, text)
	slow := regexp.MustCompile(`(?m)^  spin +(thread|inline)( +[\d.]+| +-){6}$`).FindAllString(text, -1)
	assert.Len(t, slow, 2, text)
	verdicts := regexp.MustCompile(`(?m)^(PASS|FAIL)  .*\(limit: .*\)$`).FindAllString(text, -1)
	assert.Len(t, verdicts, 1+1+4+4, text)
	assert.Equal(t, err != nil, strings.Contains(text, "\nFAIL  "))
	assert.NotContains(t, text, "NaN")
	assert.NotContains(t, text, "Inf")
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		assert.True(t, strings.HasPrefix(line, "#") || strings.HasPrefix(line, "  ") ||
			strings.HasPrefix(line, "PASS  ") || strings.HasPrefix(line, "FAIL  "), line)
	}

	chart, err := os.ReadFile(o.Chart)
	require.NoError(t, err)
	assert.Contains(t, string(chart), "</svg>")
	document, err := os.ReadFile(o.JSON)
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(document, &r))
	assert.Len(t, r.Cases, 6)
	assert.Len(t, r.Verdicts, len(verdicts))
	for _, f := range r.Cases {
		if f.Rate > 0 {
			assert.Positive(t, f.Slow.Calls)
			assert.Nil(t, f.Small)
			continue
		}
		assert.Positive(t, f.Small.Calls)
		assert.GreaterOrEqual(t, f.Small.P99, f.Small.P50)
		assert.Positive(t, f.Large.AlgBW)
		assert.Equal(t, o.Late, f.Late.Events)
		// Whoever waits does so for at least as long as the last rank is late: that
		// is no matter of speed. It had just left a barrier, in its own time.
		assert.Greater(t, f.Late.Waited, 25.0)
		assert.Nil(t, f.Slow)
	}
}

// With three ranks and two channels, all but the last tell how long they waited.
func TestMeasureOfSeveralRanks(t *testing.T) {
	linuxOnly(t)
	c := Case{Wait: "block", Proxy: "inline", Ranks: 3, Channels: 2, Duration: shortest, Late: 2}
	config, err := c.Config()
	require.NoError(t, err)
	samples := make([]*Sample, c.Ranks)
	var phases []string
	require.NoError(t, collective.RunConfig(c.Ranks, config, func(comm *collective.Comm) error {
		s, err := Measure(context.Background(), comm, c, func(name string) error {
			if comm.Rank() == 2 {
				phases = append(phases, name)
			}
			return nil
		})
		samples[comm.Rank()] = s
		return err
	}))
	assert.Equal(t, []string{phaseIdle, phaseSmall, phaseLarge, phaseLate}, phases)
	for rank, s := range samples {
		assert.Equal(t, rank, s.Rank)
		assert.Equal(t, samples[0].Phases[phaseSmall].Calls, s.Phases[phaseSmall].Calls)
		assert.Equal(t, samples[0].Phases[phaseSmall].Spent, s.Phases[phaseSmall].Spent)
		assert.GreaterOrEqual(t, s.Phases[phaseLarge].Spent, shortest)
		assert.Equal(t, largeBytes, s.Phases[phaseLarge].Bytes)
		assert.Len(t, s.Phases[phaseLate].Events, map[bool]int{true: 2}[rank < 2])
		block, proxy, _, _ := s.Phases[phaseSmall].Usage.roles()
		assert.Positive(t, block)
		assert.Zero(t, proxy, "has no thread")
		assert.Positive(t, s.Phases[phaseSmall].Usage.Stats.Block.Bytes)
		assert.Zero(t, s.Phases[phaseIdle].Usage.Stats.Block.Bytes)
	}
	_, err = figuresOf(c, samples)
	require.NoError(t, err)
}

// A run that ends early, and one that can't begin, leave no file of theirs, and the
// chart of another run as it was.
func TestARunThatFailsLeavesFilesAlone(t *testing.T) {
	linuxOnly(t)
	broken := errors.New("no such machine")
	for name, tc := range map[string]struct {
		launch Launcher
		want   string
	}{
		"a launcher that fails": {
			func(context.Context, int, string, io.Writer) error { return broken }, "spin, thread: no such machine"},
		"ranks that say nothing": {
			func(context.Context, int, string, io.Writer) error { return nil }, "spin, thread: rank 0 has not told"},
	} {
		t.Run(name, func(t *testing.T) {
			o := tiny(t)
			err := Run(t.Context(), o, tc.launch, io.Discard, io.Discard)
			require.ErrorContains(t, err, tc.want)
			assert.NoFileExists(t, o.Chart)
			assert.NoFileExists(t, o.JSON)

			require.NoError(t, os.WriteFile(o.Chart, []byte("old"), 0o600))
			require.Error(t, Run(t.Context(), o, tc.launch, io.Discard, io.Discard))
			text, err := os.ReadFile(o.Chart)
			require.NoError(t, err)
			assert.Equal(t, "old", string(text))
		})
	}
	t.Run("a place where nothing can be written", func(t *testing.T) {
		o := tiny(t)
		o.JSON = filepath.Join(t.TempDir(), "missing", "x.json")
		called := false
		err := Run(t.Context(), o, func(context.Context, int, string, io.Writer) error { called = true; return nil }, io.Discard, io.Discard)
		require.ErrorIs(t, err, os.ErrNotExist)
		assert.False(t, called, "told before the work")
		assert.NoFileExists(t, o.Chart)
	})
}

// An interrupted run says so, whatever its ranks make of it.
func TestARunEndsWithItsContext(t *testing.T) {
	linuxOnly(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := Run(ctx, tiny(t), func(ctx context.Context, _ int, _ string, _ io.Writer) error {
		cancel()
		<-ctx.Done()
		return errors.New("a rank has failed")
	}, io.Discard, io.Discard)
	require.ErrorIs(t, err, context.Canceled)
}

// A chart is drawn over an older, longer one; a report goes beside it.
func TestFilesOfARepeatedRun(t *testing.T) {
	linuxOnly(t)
	o := tiny(t)
	o.Policies, o.Proxies, o.Rate = []string{"adaptive"}, []string{"inline"}, 0
	require.NoError(t, os.WriteFile(o.Chart, bytes.Repeat([]byte("x"), 1<<20), 0o600))
	require.NoError(t, os.WriteFile(o.JSON, []byte("old"), 0o600))
	for range 2 {
		if err := Run(t.Context(), o, goroutines, io.Discard, io.Discard); err != nil {
			require.ErrorIs(t, err, ErrFailed)
		}
	}
	chart, err := os.ReadFile(o.Chart)
	require.NoError(t, err)
	assert.True(t, bytes.HasPrefix(chart, []byte("<?xml")))
	assert.True(t, bytes.HasSuffix(bytes.TrimSpace(chart), []byte("</svg>")))
	old, err := os.ReadFile(o.JSON)
	require.NoError(t, err)
	assert.Equal(t, "old", string(old))
	for _, name := range []string{o.JSON + ".0", o.JSON + ".1"} {
		document, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.True(t, json.Valid(document))
	}
}

// Notes tell what disturbs, and nothing where nothing does.
func TestNotes(t *testing.T) {
	all := textbook()
	assert.Empty(t, notes(all))
	all[0].Cores, all[1].Cores = 2, 1
	all[1].Small.Others, all[0].Late.Others, all[0].Idle.Others = 0.4, 0.3, 2
	got := notes(all)
	require.Len(t, got, 2)
	assert.Contains(t, got[0], "with spin, thread there are up to 4 threads that poll and 2 cores")
	assert.NotContains(t, got[0], "block", "who sleeps takes no turns")
	assert.Contains(t, got[1], "up to 40 % of a core (block, inline, 4 B)")
}

func TestBatchesGrowTowardsATenthOfThePhase(t *testing.T) {
	m := &measurement{Case: Case{Duration: time.Second}}
	for _, tc := range []struct {
		calls int
		spent time.Duration
		last  int
		want  int
	}{
		{1, 10 * time.Microsecond, 1, 4},
		{1000, 10 * time.Millisecond, 1000, 4000},
		{10000, 100 * time.Millisecond, 10000, 10000},
		{3, 900 * time.Millisecond, 3, 1},
		{1, 0, 1, 4},
	} {
		assert.Equal(t, tc.want, m.batch(&Phase{Calls: tc.calls, Spent: tc.spent}, tc.last), "%+v", tc)
	}
}
