package perf

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestIterStats(t *testing.T) {
	var hundred []float64
	for i := 100; i >= 1; i-- {
		hundred = append(hundred, float64(i))
	}
	s := newIterStats(hundred)
	assert.Equal(t, 1.0, s.min)
	assert.Equal(t, 100.0, s.max)
	assert.InDelta(t, 50.5, s.avg, 1e-9)
	assert.Equal(t, 51.0, s.p50)
	assert.Equal(t, 95.0, s.p95)
	assert.Equal(t, 99.0, s.p99)
	assert.InDelta(t, 28.86607, s.stdev, 1e-5) // sqrt((100²-1)/12)
	assert.InDelta(t, 57.16053, s.variation(), 1e-5)
	assert.Equal(t, 100.0, hundred[0], "the caller's order is kept")

	assert.Equal(t, iterStats{min: 4, max: 4, avg: 4, p50: 4, p95: 4, p99: 4}, newIterStats([]float64{4}))
	assert.Zero(t, newIterStats([]float64{0, 0}).variation())
}

func TestNearestRankIsTheSmallestThatCoversThePercentage(t *testing.T) {
	for n := 1; n <= 250; n++ {
		for _, percent := range []int{95, 99} {
			i := nearestRank(n, percent)
			assert.GreaterOrEqual(t, 100*(i+1), percent*n)
			assert.Less(t, 100*i, percent*n)
		}
	}
}

func TestCombine(t *testing.T) {
	times := []float64{3, 1, 8}
	assert.Equal(t, 3.0, combine(times, averageRank0))
	assert.Equal(t, 4.0, combine(times, averageMean))
	assert.Equal(t, 1.0, combine(times, averageMin))
	assert.Equal(t, 8.0, combine(times, averageMax))
}
