package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
)

func TestGoroutineRanksMeasureTheirJobs(t *testing.T) {
	jobs := []job{{4, 1}, {4, 7}, {4 * 1027, 3}, {64 << 10, 1}}
	var out bytes.Buffer
	p := party{out: &out, seconds: 0.005, cpu: cpuSeconds}
	require.NoError(t, runGoroutines(context.Background(), p, 3, jobs))
	var l listener
	_, err := l.Write(out.Bytes())
	require.NoError(t, err)
	results, err := l.told(jobs)
	require.NoError(t, err)
	for _, r := range results {
		total := 0.0
		for _, s := range r.Seconds {
			total += s * float64(r.Operations/len(r.Seconds))
		}
		require.GreaterOrEqual(t, total, 0.99*p.seconds)
		require.Zero(t, r.Operations%len(r.Seconds))
	}
}

// A result that is not written, or in the wrong buffer, or of other ranks, is wrong.
func TestWrongResultsAreCounted(t *testing.T) {
	err := collective.Run(2, func(c *collective.Comm) error {
		ctx := context.Background()
		p := party{comm: c, job: job{bytes: 20, buffers: 3}, count: 5}
		p.stride = p.strideFloats()
		if err := p.allocate([]job{p.job}, false); err != nil {
			return err
		}
		p.fill()
		for _, tc := range []struct {
			name       string
			spoil      func()
			operations int
			want       int // of both ranks
		}{
			{"nothing", func() {}, 3, 0},
			{"one element of one rank", func() {
				if c.Rank() == 1 {
					p.recv[2*p.stride+4]++
				}
			}, 3, 1},
			{"outside of the operations", func() { p.recv[2*p.stride+4]++ }, 2, 0},
			{"more operations than buffers", func() { p.recv[0]++ }, 100, 2},
			{"two buffers exchanged", func() {
				first, second := p.recv[:5], p.recv[p.stride:][:5]
				for i := range first {
					first[i], second[i] = second[i], first[i]
				}
			}, 3, 20},
			{"nothing written", p.poison, 3, 30},
			{"the input", func() { copy(p.recv, p.send) }, 3, 30},
		} {
			for b := range 3 {
				at := b * p.stride
				if err := collective.AllReduce(ctx, c, p.send[at:at+5], p.recv[at:at+5], collective.Sum); err != nil {
					return err
				}
			}
			tc.spoil()
			wrong, err := p.wrong(ctx, tc.operations)
			if err != nil {
				return err
			}
			if wrong != tc.want {
				t.Errorf("%s: %d wrong elements, want %d", tc.name, wrong, tc.want)
			}
		}
		return nil
	})
	require.NoError(t, err)
}

func TestArgumentsOfRanks(t *testing.T) {
	jobs, err := parseJobs([]string{"4:1", "1048576:16"})
	require.NoError(t, err)
	require.Equal(t, []job{{4, 1}, {1 << 20, 16}}, jobs)
	for _, j := range jobs {
		back, err := parseJobs([]string{j.String()})
		require.NoError(t, err)
		require.Equal(t, []job{j}, back)
	}
	for _, text := range []string{"", "4", "4:0", "6:1", "0:1", ":1", "4:1:1", "-4:1"} {
		_, err := parseJobs([]string{text})
		require.Error(t, err, text)
	}
	cores, err := parseInts("0,3")
	require.NoError(t, err)
	require.Equal(t, []int{0, 3}, cores)
	for _, list := range []string{"", "a", "0,", "-1"} {
		_, err := parseInts(list)
		require.Error(t, err, list)
	}
	for _, args := range []string{"", "slices 2 0.1 0", "slices x 0.1 0 4:1", "slices 2 x 0 4:1", "slices 2 0.1 x 4:1", "slices 2 0.1 0 4"} {
		require.Error(t, runRank(context.Background(), strings.Fields(args), nil), args)
	}
}
