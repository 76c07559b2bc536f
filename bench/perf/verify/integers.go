package verify

import "github.com/gollective/gollective/internal/reduce"

// integers makes the inputs of every reduction of integers. Numbers are kept in
// 64 bits, sign-extended where the type is signed, and cut to the type's width
// when they are stored.
type integers struct {
	op     reduce.Op
	size   int
	signed bool
	ranks  int
}

// extend cuts b to the type's width and extends it again.
func (g integers) extend(b uint64) uint64 {
	unused := 64 - 8*g.size
	if g.signed {
		return uint64(int64(b<<unused) >> unused)
	}
	return b << unused >> unused
}

func (g integers) scalar(rank int) uint64 { return mix(uint64(rank+1) * golden) }

func (g integers) input(h uint64, rank int) uint64 {
	b := ofRank(h, rank)
	if g.op == reduce.Prod {
		b |= 1
	}
	return g.extend(b)
}

func (g integers) result(h uint64) uint64 {
	total := g.input(h, 0)
	if g.op == reduce.PreMulSum {
		total *= g.scalar(0)
	}
	for rank := 1; rank < g.ranks; rank++ {
		total = g.combine(total, g.input(h, rank), rank)
	}
	if g.op == reduce.Avg {
		total = g.divide(g.extend(total))
	}
	return total
}

func (g integers) combine(a, b uint64, rank int) uint64 {
	switch g.op {
	case reduce.Prod:
		return a * b
	case reduce.PreMulSum:
		return a + b*g.scalar(rank)
	case reduce.Min, reduce.Max:
		less := a < b
		if g.signed {
			less = int64(a) < int64(b)
		}
		if less == (g.op == reduce.Min) {
			return a
		}
		return b
	default:
		return a + b
	}
}

// divide is Avg's last step, a truncating division of the wrapped sum.
func (g integers) divide(total uint64) uint64 {
	if g.signed {
		return uint64(int64(total) / int64(g.ranks))
	}
	return total / uint64(g.ranks)
}
