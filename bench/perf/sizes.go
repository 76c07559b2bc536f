package perf

import (
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
)

// ParseSize reads a size in bytes as nccl-tests writes it: a number, fractions
// allowed, and one of the binary suffixes K, M and G in either case.
func ParseSize(text string) (int, error) {
	number, unit := text, 1.0
	if text != "" {
		switch text[len(text)-1] {
		case 'k', 'K':
			unit = 1 << 10
		case 'm', 'M':
			unit = 1 << 20
		case 'g', 'G':
			unit = 1 << 30
		}
	}
	if unit > 1 {
		number = text[:len(text)-1]
	}
	if unit == 1 {
		// Integers stay exact beyond the 53 bits of a float64.
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && n >= 0 {
			return int(n), nil
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || strings.ContainsAny(number, "xXpPiIn_") || math.Signbit(n) || n*unit >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size (a number with an optional K, M or G)", text)
	}
	return int(n * unit), nil
}

// sweep yields the sizes of a run: from first to last, multiplied by factor when
// that is more than 1, else step apart.
func sweep(first, last, step, factor int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for size := first; size <= last; {
			if !yield(size) {
				return
			}
			switch {
			case factor > 1:
				if size > last/factor {
					return
				}
				size *= factor
			case size > last-step:
				return
			default:
				size += step
			}
		}
	}
}
