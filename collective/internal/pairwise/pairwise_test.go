package pairwise

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEveryAllowedPairIsInARow(t *testing.T) {
	levels := []int{4, 7, 2, 16, 3, 9}
	// Value 3 of factor 0 leaves factor 3 only its value 0; two values of other
	// factors exclude each other.
	allowed := func(f, a, g, b int) bool {
		switch {
		case f == 0 && g == 3:
			return a != 3 || b == 0
		case f == 1 && g == 5:
			return a != 6 || b != 8
		}
		return true
	}
	rows := Cover(levels, allowed)
	type pair struct{ f, a, g, b int }
	seen := make(map[pair]bool)
	for _, row := range rows {
		require.Len(t, row, len(levels))
		for f := range row {
			for g := f + 1; g < len(row); g++ {
				require.True(t, allowed(f, row[f], g, row[g]), "row %v", row)
				seen[pair{f, row[f], g, row[g]}] = true
			}
		}
	}
	for f := range levels {
		for g := f + 1; g < len(levels); g++ {
			for a := range levels[f] {
				for b := range levels[g] {
					assert.Equal(t, allowed(f, a, g, b), seen[pair{f, a, g, b}], "%d=%d with %d=%d", f, a, g, b)
				}
			}
		}
	}
	assert.Less(t, len(rows), 2*16*9, "a table of all combinations has %d rows", 4*7*2*16*3*9)
	assert.Equal(t, rows, Cover(levels, allowed), "the choice is the same every time")
}

func TestPairsThatNoRowCanHoldAreLeftOut(t *testing.T) {
	// The values of factor 1 need different values of factor 0 than those of 2.
	rows := Cover([]int{2, 2, 2}, func(f, a, _, b int) bool {
		return f != 0 || a == 0 || b == 0
	})
	for _, row := range rows {
		assert.False(t, row[0] == 1 && row[1]+row[2] > 0)
	}
	assert.NotEmpty(t, rows)
}
