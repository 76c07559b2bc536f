package verify

import "math/bits"

// sums makes the inputs of Sum and PreMulSum. The contribution of a rank at an
// index is count·2^e with e common to all ranks; even places bring positive
// counts, odd places negative ones, and each side has its own budget.
type sums struct {
	format
	ranks          int
	scaled         bool
	budget         int // of one side, in units of the largest scalar
	lowest, choice int // the common exponent is in [lowest, lowest+choice)
}

func newSums(f format, ranks int, scaled bool) sums {
	s := sums{format: f, ranks: ranks, scaled: scaled, budget: 1 << f.precision(), lowest: f.minExp}
	if scaled {
		s.budget /= 4
	}
	s.choice = f.maxExp - f.precision() - s.lowest + 1
	return s
}

// factor is twice rank's scalar.
func (s sums) factor(rank int) int64 {
	if !s.scaled {
		return 1
	}
	return 1 << (rank % 3)
}

func (s sums) scalar(rank int) uint64 { return s.encode(s.factor(rank), -1) }

func (s sums) exponent(h uint64) int { return s.lowest + below(mix(h), s.choice) }

// count is rank's input in units of 2^e, or of 2·2^e for PreMulSum.
func (s sums) count(h uint64, rank int) int64 {
	p := place(h, rank, s.ranks)
	members := (s.ranks + 1) / 2
	if p%2 != 0 {
		members = s.ranks / 2
	}
	n := int64(share(ofRank(h, rank), p/2, members, s.budget))
	if uint64(p)%2 != h>>1&1 {
		return -n
	}
	return n
}

func (s sums) input(h uint64, rank int) uint64 {
	e := s.exponent(h)
	if s.scaled {
		e++
	}
	return s.encode(s.count(h, rank), e)
}

func (s sums) result(h uint64) uint64 {
	total := int64(0)
	for rank := range s.ranks {
		total += s.count(h, rank) * s.factor(rank)
	}
	return s.encode(total, s.exponent(h))
}

// products makes the inputs of Prod. The rank at place 0 brings a full mantissa
// with an exponent in [-own, own], the others ±2^x: x ≥ 0 at odd places, x ≤ 0 at
// even ones, each side with a budget for its exponents.
type products struct {
	format
	ranks         int
	own, up, down int
}

func newProducts(f format, ranks int) products {
	top := f.maxExp - 1 // any mantissa is finite below it
	own := min(top, -f.minExp) / 3
	return products{f, ranks, own, top - own, -f.minExp - own}
}

func (g products) scalar(int) uint64 { return 0 }

// factor is rank's input: sign·mantissa·2^e.
func (g products) factor(h uint64, rank int) (mantissa int64, e int) {
	own, p := ofRank(h, rank), place(h, rank, g.ranks)
	mantissa = 1
	switch {
	case p == 0:
		mantissa = 1<<g.fraction | int64(own>>8&(1<<g.fraction-1))
		e = below(own, 2*g.own+1) - g.own - g.fraction
	case p%2 != 0:
		e = share(own>>1, p/2, g.ranks/2, g.up)
	default:
		e = -share(own>>1, p/2-1, (g.ranks-1)/2, g.down)
	}
	if own&1 != 0 {
		mantissa = -mantissa
	}
	return mantissa, e
}

func (g products) input(h uint64, rank int) uint64 { return g.encode(g.factor(h, rank)) }

func (g products) result(h uint64) uint64 {
	mantissa, e := int64(1), 0
	for rank := range g.ranks {
		m, x := g.factor(h, rank)
		mantissa, e = mantissa*m, e+x
	}
	return g.encode(mantissa, e)
}

// extremes makes the inputs of Min and Max: any normal numbers.
type extremes struct {
	format
	ranks int
	max   bool
}

func (g extremes) scalar(int) uint64 { return 0 }

func (g extremes) input(h uint64, rank int) uint64 {
	own := ofRank(h, rank)
	exponents := g.maxExp - g.minExp + 1
	b := own&1<<(8*g.size-1) | uint64(1+below(own, exponents))<<g.fraction | own>>1&(1<<g.fraction-1)
	if g.noInf && b&0x7f == 0x7f { // the only NaN: take the number below
		b--
	}
	return b
}

func (g extremes) result(h uint64) uint64 {
	best := g.input(h, 0)
	for rank := 1; rank < g.ranks; rank++ {
		b := g.input(h, rank)
		if g.key(b) != g.key(best) && (g.key(b) > g.key(best)) == g.max {
			best = b
		}
	}
	return best
}

// averages makes the inputs of Avg: a count times the common power of two at the
// places 0 and 1, zero elsewhere.
type averages struct {
	format
	ranks          int
	scale          float64 // 1/ranks, rounded
	lowest, choice int
}

func newAverages(f format, ranks int) averages {
	// The largest sum must be finite and, where the format is wide enough, the
	// smallest product normal.
	highest := f.maxExp - f.precision()
	lowest := min(f.minExp+bits.Len(uint(ranks-1)), highest)
	return averages{f, ranks, f.value(f.round(1 / float64(ranks))), lowest, highest - lowest + 1}
}

func (g averages) scalar(int) uint64 { return 0 }

func (g averages) exponent(h uint64) int { return g.lowest + below(mix(h), g.choice) }

func (g averages) input(h uint64, rank int) uint64 {
	if place(h, rank, g.ranks) > 1 {
		return 0
	}
	n := 1 + int64(ofRank(h, rank)%(1<<g.precision()-1))
	if h>>1&1 != 0 {
		n = -n
	}
	return g.encode(n, g.exponent(h))
}

// result multiplies by the rounded 1/ranks, rounds, and adds. Both operations are
// exact in float64 for the narrower types, and rounded by it for its own; the
// conversions keep a compiler from fusing them.
func (g averages) result(h uint64) uint64 {
	sum := 0.0
	for rank := range g.ranks {
		if b := g.input(h, rank); b != 0 {
			scaled := float64(g.value(b) * g.scale)
			sum += g.value(g.round(scaled))
		}
	}
	return g.round(sum)
}
