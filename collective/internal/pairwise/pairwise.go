// Package pairwise chooses few rows out of a large table of settings such that
// every pair of values of any two settings occurs in one of them: most mistakes
// need no more than two settings to show.
package pairwise

import "fmt"

// Allowed reports whether value a of factor f may occur with value b of factor g;
// f < g.
type Allowed func(f, a, g, b int) bool

// Cover returns the rows, the same ones every time. Factor f has the values 0 to
// levels[f]-1. Factor 0 decides which values of the others make sense: a pair that
// is allowed with none of its values is left out, and for each of them every
// other factor must have a value that is allowed whatever the rest is.
//
// It is the usual greedy method: a row begins with a pair that is still missing,
// and each further factor takes the value that adds most pairs.
func Cover(levels []int, allowed Allowed) [][]int {
	t := newTable(levels, allowed)
	var rows [][]int
	for f := range levels {
		for g := f + 1; g < len(levels); g++ {
			for a := range levels[f] {
				for b := range levels[g] {
					if t.missing(f, a, g, b) && t.feasible(f, a, g, b) {
						row := t.row(f, a, g, b, len(rows))
						t.record(row)
						rows = append(rows, row)
					}
				}
			}
		}
	}
	return rows
}

type table struct {
	levels  []int
	first   []int // index of a factor's value 0 among all values
	values  int
	allowed Allowed
	covered []bool // by pair of values
}

func newTable(levels []int, allowed Allowed) *table {
	t := &table{levels: levels, allowed: allowed}
	for _, n := range levels {
		t.first = append(t.first, t.values)
		t.values += n
	}
	t.covered = make([]bool, t.values*t.values)
	return t
}

func (t *table) pair(f, a, g, b int) int {
	if f > g {
		f, a, g, b = g, b, f, a
	}
	return (t.first[f]+a)*t.values + t.first[g] + b
}

func (t *table) missing(f, a, g, b int) bool { return !t.covered[t.pair(f, a, g, b)] }

func (t *table) may(f, a, g, b int) bool {
	if f > g {
		f, a, g, b = g, b, f, a
	}
	return t.allowed(f, a, g, b)
}

// feasible reports whether the pair can be part of a row.
func (t *table) feasible(f, a, g, b int) bool {
	if !t.may(f, a, g, b) {
		return false
	}
	if f == 0 {
		return true
	}
	for value := range t.levels[0] {
		if t.may(0, value, f, a) && t.may(0, value, g, b) {
			return true
		}
	}
	return false
}

const unset = -1

// row completes a pair to the number-th row. Ties between values go to another
// one in each row.
func (t *table) row(f, a, g, b, number int) []int {
	row := make([]int, len(t.levels))
	for i := range row {
		row[i] = unset
	}
	row[f], row[g] = a, b
	for i, value := range row {
		if value == unset {
			row[i] = t.best(row, i, number)
		}
	}
	return row
}

// best is the value of factor i that adds most pairs to what row has so far.
func (t *table) best(row []int, i, number int) int {
	best, most := unset, -1
	for k := range t.levels[i] {
		value := (k + number*(i+1)) % t.levels[i]
		if gain := t.gain(row, i, value); gain > most {
			best, most = value, gain
		}
	}
	if best == unset {
		panic(fmt.Sprintf("pairwise: factor %d has no value that is allowed in %v", i, row))
	}
	return best
}

// gain is how many missing pairs a value adds, or -1 if it is not allowed.
func (t *table) gain(row []int, i, value int) int {
	gain := 0
	for j, other := range row {
		if other == unset || j == i {
			continue
		}
		if !t.may(i, value, j, other) {
			return -1
		}
		if t.missing(i, value, j, other) {
			gain++
		}
	}
	return gain
}

func (t *table) record(row []int) {
	for f := range row {
		for g := f + 1; g < len(row); g++ {
			t.covered[t.pair(f, row[f], g, row[g])] = true
		}
	}
}
