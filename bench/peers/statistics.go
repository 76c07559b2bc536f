package main

import "slices"

// median is that of a list with at least one number: the mean of the middle two where
// the length is even.
func median(numbers []float64) float64 {
	sorted := slices.Sorted(slices.Values(numbers))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// spread is a figure and the range in which other rounds have it.
type spread struct{ figure, low, high float64 }

// doubtful reports whether rounds differ so much that the figure says little: by more
// than half of the lowest.
func (s spread) doubtful() bool { return s.high > 1.5*s.low }

// figure makes one of those of the rounds that have one, which 0 is not.
//
// The median has the range of all rounds. The least is for a machine that others use:
// who was disturbed in all rounds but one still has a good figure, and it is to be
// believed when a second round has come close to it. That is its range.
func figure(statistic string, rounds []float64) (spread, bool) {
	sorted := slices.Sorted(slices.Values(positive(rounds)))
	n := len(sorted)
	switch {
	case n == 0:
		return spread{}, false
	case statistic == ofLeast:
		return spread{sorted[0], sorted[0], sorted[min(1, n-1)]}, true
	}
	return spread{median(sorted), sorted[0], sorted[n-1]}, true
}

// ratio is a over b. Medians are compared round by round, in the rounds in which both
// have a figure: a machine that slows down hits both. Of the least each has its own
// round.
func ratio(statistic string, a, b []float64) (spread, bool) {
	if statistic == ofLeast {
		over, oka := figure(statistic, a)
		under, okb := figure(statistic, b)
		if !oka || !okb {
			return spread{}, false
		}
		return spread{over.figure / under.figure, over.low / under.high, over.high / under.low}, true
	}
	var each []float64
	for i := range min(len(a), len(b)) {
		if a[i] > 0 && b[i] > 0 {
			each = append(each, a[i]/b[i])
		}
	}
	return figure(statistic, each)
}

// positive are the figures of the rounds that have one.
func positive(rounds []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(rounds), func(t float64) bool { return t <= 0 })
}
