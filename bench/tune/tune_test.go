package tune

import (
	"bytes"
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gollective/gollective/collective/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// point has times of oneshot/ll, ring/simple and tree/ll128, and oneshot/ll is the
// model's choice.
func point(collective string, size int, micros ...float64) Point {
	p := Point{Place: Place{Placement{"shm", 2}, collective, size}, Model: Choice{"oneshot", "ll", 1}}
	for i, c := range []Choice{{"oneshot", "ll", 0}, {"ring", "simple", 0}, {"tree", "ll128", 0}} {
		if i < len(micros) {
			p.Times = append(p.Times, Timing{c, micros[i], micros[i], micros[i]})
		}
	}
	return p
}

func TestTheWinnerIsTheFastestUnlessTheDifferenceIsNoise(t *testing.T) {
	model, ring, tree := Choice{"oneshot", "ll", 0}, Choice{"ring", "simple", 0}, Choice{"tree", "ll128", 0}
	for _, tc := range []struct {
		times  []float64
		before Choice
		want   Choice
	}{
		{[]float64{1, 2, 3}, Choice{}, model},
		{[]float64{1.03, 1, 1}, tree, model},
		{[]float64{1.04, 1, 1.02}, Choice{}, ring},
		{[]float64{1.04, 1, 1.02}, tree, tree},
		{[]float64{1.04, 1.02, 1}, ring, ring},
		{[]float64{1.04, 1, 1.04}, tree, ring},
		{[]float64{5, 3, 1}, model, tree},
	} {
		p := point("all_reduce", 64, tc.times...)
		assert.Equal(t, tc.want, p.winner(tc.before), "%v %v", tc.times, tc.before)
	}
	p := point("all_reduce", 64, 1, 2)
	p.Model = Choice{"twoshot", "direct", 1} // was not measured
	assert.Equal(t, model, p.winner(Choice{}))
	p.Model = Choice{"ring", "simple", 2}
	p.Times = append(p.Times, Timing{Choice: Choice{"ring", "simple", 2}, Micros: 0.5}, Timing{Choice: Choice{"ring", "simple", 4}, Micros: 0.4})
	p.Times = p.Times[2:] // channels are forced
	assert.Equal(t, Choice{"ring", "simple", 4}, p.winner(Choice{}))
	p.Times[1].Micros = 0.49
	assert.Equal(t, Choice{"ring", "simple", 2}, p.winner(Choice{}))
}

func TestTheMedianOfBatchesCounts(t *testing.T) {
	for _, tc := range []struct {
		batches []float64
		want    float64
	}{{[]float64{4}, 4}, {[]float64{9, 1, 4}, 4}, {[]float64{9, 1, 4, 5}, 4.5}} {
		got := newTiming(Choice{}, tc.batches)
		assert.Equal(t, tc.want, got.Micros)
		assert.LessOrEqual(t, got.Least, got.Micros)
		assert.GreaterOrEqual(t, got.Most, got.Micros)
	}
}

// What is written is read by the library, decides for each measured size what has
// won there, and leaves no gap between sizes.
func TestRulesDecideForEverySizeWhatHasWonThere(t *testing.T) {
	points := []Point{
		point("broadcast", 1<<20, 2, 1), point("all_reduce", 4, 1, 2, 3), point("all_reduce", 16, 1, 2, 3),
		point("all_reduce", 256, 3, 1, 2), point("all_reduce", 4096, 3, 1, 2), point("all_reduce", 65536, 2, 3, 1), point("all_reduce", 64<<20, 3, 1, 2),
	}
	r := &run{Options: &Options{Args: []string{"gollective", "tune", "x\ny"}, Version: "v"}, out: io.Discard, began: time.Now()}
	cases := []Case{{Placement: points[0].Placement, Places: []Place{points[1].Place}}}
	r.points = points
	r.Output = filepath.Join(t.TempDir(), "t.csv")
	require.NoError(t, r.conclude(cases))
	text, err := os.ReadFile(r.Output)
	require.NoError(t, err)
	tuning, err := plan.ParseTuning("t.csv", bytes.NewReader(text))
	require.NoError(t, err, "%s", text)
	require.Empty(t, tuning.Foreign)
	var rules []string
	for _, r := range tuning.Rules {
		rules = append(rules, r.String())
	}
	require.Equal(t, []string{
		"allreduce,0,64,oneshot,ll,-1,1,2,-1,-1,shm",
		"allreduce,65,16384,ring,simple,-1,1,2,-1,-1,shm",
		"allreduce,16385,2097152,tree,ll128,-1,1,2,-1,-1,shm",
		"allreduce,2097153,-1,ring,simple,-1,1,2,-1,-1,shm",
		"broadcast,1048576,1048576,ring,simple,-1,1,2,-1,-1,shm",
	}, rules)
	assert.Contains(t, string(text), "# 256: ring/simple 1.00, tree/ll128 2.00, oneshot/ll 3.00; the model: oneshot/ll/1\n")
	assert.Contains(t, string(text), "# command: gollective tune x y\n")
}

func TestTheTableComparesTheAutomaticChoiceWithTheBest(t *testing.T) {
	unknown := point("broadcast", 64, 2, 1)
	unknown.Model = Choice{"twoshot", "direct", 1}
	points := []Point{point("all_reduce", 64, 1, 2), point("all_reduce", 128, 1.09, 1), point("all_reduce", 256, 2.5, 1), unknown}
	var out strings.Builder
	writeTables(&out, points)
	lines := strings.Split(out.String(), "\n")
	for _, want := range []string{
		"64 oneshot/ll/1 1.00 oneshot/ll 1.00 1.00", "128 oneshot/ll/1 1.09 ring/simple 1.00 1.09",
		"256 oneshot/ll/1 2.50 ring/simple 1.00 2.50", "64 twoshot/direct/1 - ring/simple 1.00 -",
	} {
		found := false
		for _, l := range lines {
			found = found || strings.Join(strings.Fields(l), " ") == want
		}
		assert.True(t, found, "%s in\n%s", want, out.String())
	}
	assert.Contains(t, out.String(), "within 10 % of the best forced one in 2 of 3 cases; at worst 2.50 times (all_reduce, 2 processes over shm, 256 B).")
}

func TestConstantsOfAHopAreFitted(t *testing.T) {
	of := Placement{"tcp", 3}
	want := hop{micros: 0.7, bandwidth: 4}
	var points []Point
	for size := 4; size <= 64<<20; size *= 4 {
		hops := 4.0
		us := hops * (want.micros + float64(size)/3/(want.bandwidth*1000))
		points = append(points,
			Point{Place: Place{of, "all_reduce", size}, Times: []Timing{{Choice: Choice{Algorithm: "ring", Protocol: "ll"}, Micros: us}}},
			Point{Place: Place{of, "all_gather", size}, Times: []Timing{{Choice: Choice{Algorithm: "ring", Protocol: "ll"}, Micros: 9 * us}}})
	}
	got, ok := fitHop(of, "ll", points)
	require.True(t, ok)
	assert.InDelta(t, want.micros, got.micros, 1e-9)
	assert.InDelta(t, want.bandwidth, got.bandwidth, 1e-9)
	for _, few := range [][]Point{nil, points[:4], points[:6]} {
		_, ok = fitHop(of, "ll", few)
		assert.False(t, ok, "%d points", len(few))
	}
	_, ok = fitHop(of, "simple", points)
	assert.False(t, ok)
}

func tiny() Options {
	o := DefaultOptions()
	o.Goroutines, o.Processes, o.Channels = []int{2, 3}, nil, []int{0}
	o.Collectives = []string{"all_reduce", "reduce"}
	o.MinBytes, o.MaxBytes, o.StepFactor = 64, 4096, 8
	o.Budget, o.Rounds, o.mostRounds, o.Output = time.Hour, 2, 2, ""
	return o
}

// A run of goroutine ranks, in two pieces: what the first one has kept is not
// measured again.
func TestARunInPieces(t *testing.T) {
	o := tiny()
	dir := t.TempDir()
	o.Points, o.Output = filepath.Join(dir, "points"), filepath.Join(dir, "t.csv")
	o.MaxBytes = 512
	var out, errs strings.Builder
	require.NoError(t, Run(context.Background(), o, nil, &out, &errs))
	assert.Empty(t, errs.String(), "no progress where there is no terminal")
	first, err := readPoints(o.Points)
	require.NoError(t, err)
	require.Len(t, first, 2*2*2)
	o.MaxBytes = 4096
	out.Reset()
	require.NoError(t, Run(context.Background(), o, nil, &out, &errs))
	all, err := readPoints(o.Points)
	require.NoError(t, err)
	require.Len(t, all, 2*2*3)
	require.Equal(t, first, all[:len(first)])
	for _, p := range all {
		for _, timing := range p.Times {
			assert.LessOrEqual(t, timing.Least, timing.Micros)
			assert.False(t, math.IsInf(timing.Most, 0))
		}
		_, ok := p.model()
		assert.True(t, ok, "%v", p)
	}
	assert.Contains(t, out.String(), "# reduce, 3 goroutine ranks\n")
	text, err := os.ReadFile(o.Output)
	require.NoError(t, err)
	tuning, err := plan.ParseTuning("t.csv", bytes.NewReader(text))
	require.NoError(t, err)
	require.NotEmpty(t, tuning.Rules)
}

func TestPointsThatNobodyMeasuredAreRefused(t *testing.T) {
	name := filepath.Join(t.TempDir(), "points")
	for _, line := range []string{
		"{}", "x", `{"Times":[{"Algorithm":"ring","Protocol":"ll","Micros":0}]}`, `{"Times":[{"Algorithm":"rinq","Protocol":"ll","Micros":1}]}`,
	} {
		require.NoError(t, os.WriteFile(name, []byte(line+"\n"), 0o600))
		_, err := readPoints(name)
		require.ErrorContains(t, err, name+":1: ")
		l := &listener{hear: func(Point) error { t.Error("heard"); return nil }}
		_, err = l.Write([]byte(line[:1]))
		require.NoError(t, err)
		_, err = l.Write([]byte(line[1:] + "\n"))
		require.NoError(t, err)
		require.ErrorContains(t, l.err, "a rank says")
	}
	l := &listener{}
	_, err := l.Write(make([]byte, mostLine+1))
	require.Error(t, err)
}

func TestTheEndOfTheBudgetIsTold(t *testing.T) {
	o := tiny()
	o.Budget = time.Nanosecond
	var out strings.Builder
	require.NoError(t, Run(context.Background(), o, nil, &out, io.Discard))
	assert.Contains(t, out.String(), "# 12 of the sizes were not reached in 1ns")
}

func TestAnInterruptEndsTheRun(t *testing.T) {
	o := tiny()
	o.mostRounds = 1 << 30
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := Run(ctx, o, nil, io.Discard, io.Discard)
	require.EqualError(t, err, "interrupted")
}

func TestChannelsAreTriedWhereThereAreCoresForThem(t *testing.T) {
	for _, tc := range []struct {
		cores, ranks int
		want         []int
	}{{1, 2, []int{0}}, {2, 2, []int{0}}, {3, 2, []int{0}}, {4, 2, []int{1, 2}}, {16, 2, []int{1, 2, 4, 8}}, {1024, 2, []int{1, 2, 4, 8, 16, 32, 64}}} {
		assert.Equal(t, tc.want, channelsFor(tc.cores, tc.ranks))
	}
}
