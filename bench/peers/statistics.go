package main

import "slices"

// median is that of a list with at least one number: the mean of the middle two where
// the length is even.
func median(numbers []float64) float64 {
	sorted := slices.Sorted(slices.Values(numbers))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// spread is a median over rounds and the range around it.
type spread struct{ middle, low, high float64 }

func spreadOf(numbers []float64) spread {
	return spread{median(numbers), slices.Min(numbers), slices.Max(numbers)}
}

// doubtful reports whether rounds differ so much that the median says little: by more
// than half of the lowest.
func (s spread) doubtful() bool { return s.high > 1.5*s.low }

// ratio compares two contenders round by round: a over b, in the rounds in which
// both have a figure, which 0 is not.
func ratio(a, b []float64) (spread, bool) {
	var each []float64
	for i := range min(len(a), len(b)) {
		if a[i] > 0 && b[i] > 0 {
			each = append(each, a[i]/b[i])
		}
	}
	if len(each) == 0 {
		return spread{}, false
	}
	return spreadOf(each), true
}

// positive are the figures of the rounds that have one.
func positive(rounds []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(rounds), func(t float64) bool { return t <= 0 })
}
