package main

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		numbers []float64
		want    float64
	}{
		{[]float64{3}, 3},
		{[]float64{4, 1}, 2.5},
		{[]float64{9, 1, 5}, 5},
		{[]float64{1, 100, 2, 3}, 2.5},
		{[]float64{7, 7, 7, 7, 1000}, 7},
	} {
		before := slices.Clone(tc.numbers)
		require.Equal(t, tc.want, median(tc.numbers))
		require.Equal(t, before, tc.numbers, "the list stays as it is")
	}
}

// As many numbers lie below a median as above it.
func TestMedianHalvesItsNumbers(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 1000 {
		numbers := make([]float64, 1+random.IntN(20))
		for i := range numbers {
			numbers[i] = float64(random.IntN(10))
		}
		m := median(numbers)
		below, above := 0, 0
		for _, x := range numbers {
			if x < m {
				below++
			}
			if x > m {
				above++
			}
		}
		require.LessOrEqual(t, max(below, above), len(numbers)/2, numbers)
	}
}

func TestRatiosAreMadeRoundByRound(t *testing.T) {
	for _, tc := range []struct {
		name string
		a, b []float64
		want spread
		ok   bool
	}{
		// The medians alone would give 2/4, too; the range would be 1/8 to 2.
		{"a machine that slows down", []float64{1, 2, 4}, []float64{2, 4, 8}, spread{0.5, 0.5, 0.5}, true},
		{"rounds that differ", []float64{1, 1, 1}, []float64{1, 2, 4}, spread{0.5, 0.25, 1}, true},
		{"rounds without a figure count for nothing", []float64{1, 0, 3}, []float64{2, 2, 0}, spread{0.5, 0.5, 0.5}, true},
		{"fewer rounds", []float64{1}, []float64{2, 4}, spread{0.5, 0.5, 0.5}, true},
		{"nothing in common", []float64{1, 0}, []float64{0, 1}, spread{}, false},
		{"nothing", nil, nil, spread{}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := ratio(ofMedian, tc.a, tc.b)
			require.Equal(t, tc.ok, ok)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestTheLeastIsBelievedWhenASecondRoundComesClose(t *testing.T) {
	s, ok := figure(ofLeast, []float64{90, 0, 10, 12, 500})
	require.True(t, ok)
	require.Equal(t, spread{10, 10, 12}, s)
	require.False(t, s.doubtful())

	s, ok = figure(ofLeast, []float64{90, 10, 500})
	require.True(t, ok)
	require.True(t, s.doubtful())

	s, ok = figure(ofLeast, []float64{7})
	require.True(t, ok)
	require.Equal(t, spread{7, 7, 7}, s)

	// Each has its own best round.
	s, ok = ratio(ofLeast, []float64{4, 100, 5}, []float64{900, 8, 10})
	require.True(t, ok)
	require.Equal(t, spread{0.5, 0.4, 0.625}, s)
	_, ok = ratio(ofLeast, []float64{4}, []float64{0})
	require.False(t, ok)
	_, ok = figure(ofLeast, nil)
	require.False(t, ok)
}

func TestRoundsThatDifferByMoreThanHalfAreDoubtful(t *testing.T) {
	for _, tc := range []struct {
		rounds   []float64
		doubtful bool
	}{
		{[]float64{2, 3}, false},
		{[]float64{2, 3.01}, true},
		{[]float64{5}, false},
		{[]float64{2, 2, 2, 4}, true},
	} {
		s, ok := figure(ofMedian, tc.rounds)
		require.True(t, ok)
		require.Equal(t, tc.doubtful, s.doubtful(), tc.rounds)
	}
}
