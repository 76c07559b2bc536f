package verify

import (
	"bytes"

	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// Reduction describes the inputs and the result of one reduction over Ranks
// ranks. The zero Seed is as good as any other.
type Reduction struct {
	Type  dtype.Type
	Op    reduce.Op
	Ranks int
	Seed  uint64
}

// Input stores rank's elements number first, first+1, … in dst, a whole number
// of elements long.
func (r Reduction) Input(dst []byte, rank, first int) {
	g, size := r.generator(), r.Type.Size()
	for i := 0; i+size <= len(dst); i += size {
		put(dst[i:], size, g.input(r.element(first), rank))
		first++
	}
}

// Result stores the elements number first, first+1, … of the result in dst, a
// whole number of elements long.
func (r Reduction) Result(dst []byte, first int) {
	g, size := r.generator(), r.Type.Size()
	for i := 0; i+size <= len(dst); i += size {
		put(dst[i:], size, g.result(r.element(first)))
		first++
	}
}

// Scalar is rank's factor of a PreMulSum.
func (r Reduction) Scalar(rank int) reduce.Scalar {
	return reduce.Scalar{Type: r.Type, Bits: r.generator().scalar(rank)}
}

// Wrong counts the elements of got that are not those of want: different bits,
// or for Avg of floats more than two representable values apart.
func (r Reduction) Wrong(got, want []byte) int {
	if r.Op == reduce.Avg && r.Type.Float() {
		return wrongFloats(formatOf(r.Type), got, want, 2)
	}
	return Wrong(got, want, r.Type.Size())
}

// Wrong counts the elements of got that differ from want in any bit; got and want
// have the same length, a whole number of elements of size bytes.
func Wrong(got, want []byte, size int) int {
	if bytes.Equal(got, want) {
		return 0
	}
	wrong := 0
	for i := 0; i+size <= len(want); i += size {
		if !bytes.Equal(got[i:i+size], want[i:i+size]) {
			wrong++
		}
	}
	return wrong
}

func wrongFloats(f format, got, want []byte, tolerance int64) int {
	if bytes.Equal(got, want) {
		return 0
	}
	wrong := 0
	for i := 0; i+f.size <= len(want); i += f.size {
		d := f.key(get(got[i:], f.size)) - f.key(get(want[i:], f.size))
		if d < -tolerance || d > tolerance {
			wrong++
		}
	}
	return wrong
}

// Poison fills dst with what no float result and few integer ones are: NaN in
// every format, all bits set. A result buffer that starts like this does not pass
// where nothing was written to it.
func Poison(dst []byte) {
	for i := range dst {
		dst[i] = 0xff
	}
}

// element is the hash from which everything about one index follows.
func (r Reduction) element(i int) uint64 { return mix(r.Seed*golden + uint64(i) + 1) }

// generator makes the bits of the elements whose hash is h.
type generator interface {
	input(h uint64, rank int) uint64
	result(h uint64) uint64
	scalar(rank int) uint64
}

func (r Reduction) generator() generator {
	if r.Type.Integer() {
		return integers{op: r.Op, size: r.Type.Size(), signed: signed(r.Type), ranks: r.Ranks}
	}
	f := formatOf(r.Type)
	switch r.Op {
	case reduce.Prod:
		return newProducts(f, r.Ranks)
	case reduce.Min, reduce.Max:
		return extremes{f, r.Ranks, r.Op == reduce.Max}
	case reduce.Avg:
		return newAverages(f, r.Ranks)
	default:
		return newSums(f, r.Ranks, r.Op == reduce.PreMulSum)
	}
}

func signed(t dtype.Type) bool {
	return t == dtype.Int8 || t == dtype.Int32 || t == dtype.Int64
}

// ofRank is the part of h that belongs to one rank.
func ofRank(h uint64, rank int) uint64 { return mix(h ^ uint64(rank+1)*golden) }

// place deals the ranks out anew for every element: rank's place in a rotated,
// perhaps reversed row. Without it the same ranks would always bring the same
// kind of value, and in the small formats the same ones always zero.
func place(h uint64, rank, ranks int) int {
	p := rank + below(h, ranks)
	if p >= ranks {
		p -= ranks
	}
	if h&1 != 0 {
		p = ranks - 1 - p
	}
	return p
}

// share is what member i of members takes of a budget that they all draw on: at
// least one where there is enough for some to take more than others; otherwise one
// or nothing, for if all took one the two sides of a sum would cancel always.
func share(h uint64, i, members, budget int) int {
	each := budget / members
	switch {
	case each > 1:
		return 1 + int(h%uint64(each))
	case i < budget:
		return int(h & 1)
	default:
		return 0
	}
}
