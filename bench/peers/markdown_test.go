package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files")

// sample is a report of two rounds with all that a report can have.
func sample() *report {
	o := options{
		sizes: []int{4, 64 << 10}, buffers: []string{fixed, rotating}, pool: 1 << 20, rounds: 2, seconds: 0.2, cores: []int{0, 1},
		statistic: ofMedian, args: []string{"-sizes", "4,64K", "-cores", "0, 1"},
	}
	r := newReport(o)
	r.Started = time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)
	r.Machine = "2-core model machine"
	r.Took = 90 * time.Second
	r.Foreign = 0.25
	shm := group{overShm, 2}
	tcp := group{overTCP, 4}
	r.Groups = []group{machine, shm, tcp}
	r.Missing = []note{{Contender: "mpich", Text: "not installed: no compiler and launcher (mpicc.mpich, mpiexec.mpich)"}}
	r.Failures = []note{{"Gloo sync", &tcp, "exit status 1: an error"}}
	r.Unfinished = []note{{"Gloo busy-poll", &tcp, "too slow: 3 of 17 jobs in 47s"}}

	// 4 bytes are slower than the peer's, 64K faster: with one buffer by a second
	// core, with eight without.
	add := func(g group, id, variant string, small, large, cores float64) {
		for round := range 2 {
			drift := float64(1 + round) // the machine is half as fast in the second round
			of := func(j job, t, cores float64) result {
				t *= drift
				return result{Job: j, Variant: variant, Operations: 10, CPU: t * cores, Seconds: []float64{t, t, 50 * t}}
			}
			results := []result{of(r.job(g, fixed, 4), small, 2), of(r.job(g, fixed, 64<<10), large, cores)}
			if j := r.job(g, rotating, 64<<10); g != machine {
				results = append(results, of(r.job(g, rotating, 4), 2*small, 2), of(j, 2*large, 1))
			}
			r.add(round, g, id, results)
		}
		r.take(taking{group: g, Contender: id, Command: id + " 0.1 0,1 BYTES:BUFFERS..."})
	}
	add(shm, "openmpi", "", 0.15e-6, 20e-6, 1)
	add(shm, "gollective-processes", "", 0.2e-6, 10e-6, 2.1)
	add(shm, "gollective-goroutines", "", 0.1e-6, 2.5e-6, 2)
	add(shm, "ideal", "one-shot", 0.045e-6, 2e-6, 2)
	add(tcp, "openmpi", "", 100e-6, 400e-6, 2)
	add(tcp, "gloo-default", "", 50e-6, 800e-6, 2)
	add(tcp, "gollective-processes", "", 75e-6, 200e-6, 2)
	r.add(0, machine, "ping", []result{{Job: job{4, 1}, Seconds: []float64{39e-9}}})
	r.add(1, machine, "ping", []result{{Job: job{4, 1}, Seconds: []float64{41e-9}}})
	add(machine, "copy", "", 1e-9, 1e-6, 1)
	r.Taking[0].About = "Open MPI v4.1.4"
	return r
}

func TestMarkdownIsAsBefore(t *testing.T) {
	golden := filepath.Join("testdata", "report.md")
	got := sample().markdown()
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestFiguresOfAReport(t *testing.T) {
	r := sample()
	shm := group{overShm, 2}
	j := r.job(shm, fixed, 4)
	require.InDeltaSlice(t, []float64{0.15e-6, 0.3e-6}, r.times(shm, "openmpi", j), 1e-12, "the slow batches are outliers")
	s, ok := ratio(ofMedian, r.times(shm, "gollective-processes", j), r.times(shm, "openmpi", j))
	require.True(t, ok)
	require.InDelta(t, 4.0/3, s.figure, 1e-9)
	require.False(t, s.doubtful(), "both sides drift alike")
	require.Nil(t, r.times(shm, "mpich", j))
	require.Equal(t, "one-shot", r.variant(shm, "ideal", j))

	tcp := group{overTCP, 4}
	best := r.fastest(tcp, r.in(tcp, peer), r.job(tcp, fixed, 4))
	require.InDeltaSlice(t, []float64{50e-6, 100e-6}, best, 1e-12)
	best = r.fastest(tcp, r.in(tcp, peer), r.job(tcp, fixed, 64<<10))
	require.InDeltaSlice(t, []float64{400e-6, 800e-6}, best, 1e-12, "another one at this size")

	r.Statistic = ofLeast
	e := r.byPlace[place{shm, "openmpi", j}]
	e.Results[0].Seconds = []float64{5, 3, 4}
	e.Results[1] = nil
	require.Equal(t, []float64{3, 0}, r.times(shm, "openmpi", j))
}

func TestJSONHoldsEverything(t *testing.T) {
	r := sample()
	r.options.json = filepath.Join(t.TempDir(), "out.json")
	r.options.markdown = filepath.Join(t.TempDir(), "out.md")
	require.NoError(t, r.write(nil))
	text, err := os.ReadFile(r.options.json)
	require.NoError(t, err)
	var back report
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, r.Failures, back.Failures)
	require.Equal(t, r.Unfinished, back.Unfinished)
	require.Equal(t, r.Taking, back.Taking)
	require.Len(t, back.Entries, len(r.Entries))
	for i, e := range back.Entries {
		require.Equal(t, r.Entries[i].Bytes, e.Bytes)
		require.Equal(t, r.Entries[i].BufferSet, e.BufferSet)
		require.Equal(t, r.Entries[i].group, e.group)
		for round, res := range e.Results {
			require.Equal(t, r.Entries[i].Results[round].Seconds, res.Seconds)
		}
	}
	markdown, err := os.ReadFile(r.options.markdown)
	require.NoError(t, err)
	require.Equal(t, r.markdown(), string(markdown))

	again, err := readReport(options{from: r.options.json, statistic: ofMedian})
	require.NoError(t, err)
	require.Equal(t, string(markdown), again.markdown(), "a report that was read is the same")
	again, err = readReport(options{from: r.options.json, statistic: ofLeast})
	require.NoError(t, err)
	require.Contains(t, again.markdown(), "best batch of all rounds")
}

func TestReportsThatAreNoneAreRefused(t *testing.T) {
	for _, text := range []string{
		"", "{}", "[]", `{"rounds": 2, "entries": [{"rounds": [null]}]}`, `{"rounds": 1, "entries": null}`,
	} {
		name := filepath.Join(t.TempDir(), "report.json")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
		_, err := readReport(options{from: name})
		require.ErrorContains(t, err, name)
	}
	_, err := readReport(options{from: filepath.Join(t.TempDir(), "none")})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestDigits(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 0.0450: "0.0450", 0.5: "0.500", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1234.5: "1230", 987654: "988000", 0.000000123: "0.000000",
	} {
		require.Equal(t, want, digits(x))
	}
}
