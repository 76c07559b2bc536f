package perf

import (
	"math"
	"slices"
)

// iterStats sums up the times of the iterations of one measurement, in
// microseconds.
type iterStats struct {
	min, max, avg, p50, p95, p99, stdev float64
}

// newIterStats needs at least one time. Percentiles are nearest-rank, the
// deviation is the population's, as in nccl-tests.
func newIterStats(times []float64) iterStats {
	sorted := slices.Sorted(slices.Values(times))
	n := len(sorted)
	s := iterStats{
		min: sorted[0],
		max: sorted[n-1],
		p50: sorted[n/2],
		p95: sorted[nearestRank(n, 95)],
		p99: sorted[nearestRank(n, 99)],
	}
	for _, t := range sorted {
		s.avg += t / float64(n)
	}
	variance := 0.0
	for _, t := range sorted {
		variance += (t - s.avg) * (t - s.avg) / float64(n)
	}
	s.stdev = math.Sqrt(variance)
	return s
}

// nearestRank is the index of the smallest of n sorted values that is at least as
// large as percent of them.
func nearestRank(n, percent int) int { return (n*percent+99)/100 - 1 }

// variation is the deviation in percent of the average.
func (s iterStats) variation() float64 {
	if s.avg == 0 {
		return 0
	}
	return 100 * s.stdev / s.avg
}

// combine makes one time of the times of all ranks, as -a says.
func combine(times []float64, mode int) float64 {
	switch mode {
	case averageRank0:
		return times[0]
	case averageMin:
		return slices.Min(times)
	case averageMax:
		return slices.Max(times)
	}
	sum := 0.0
	for _, t := range times {
		sum += t
	}
	return sum / float64(len(times))
}

// The values of -a.
const (
	averageRank0 = iota
	averageMean
	averageMin
	averageMax
)
