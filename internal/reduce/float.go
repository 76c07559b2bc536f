package reduce

// Max and Min of floats work on bit patterns seen as signed integers: patterns of
// positive numbers are ordered as the numbers are, those of negative ones the other
// way round, and all of the latter are below all of the former, zeros included.
// That serves every width, needs no conversion, gives -0 < +0 and takes half the
// time of the built-in max on float32, of which the NaN would still have to be
// made canonical.

// ordering describes a float format by three patterns.
type ordering[S int8 | int16 | int32 | int64] struct {
	magnitude S // all bits but the sign
	top       S // the largest magnitude that is not a NaN
	nan       S // the canonical NaN
}

var (
	half   = ordering[int16]{0x7fff, 0x7c00, 0x7e00}
	bfloat = ordering[int16]{0x7fff, 0x7f80, 0x7fc0}
	single = ordering[int32]{0x7fffffff, 0x7f800000, 0x7fc00000}
	double = ordering[int64]{0x7fffffffffffffff, 0x7ff0000000000000, 0x7ff8000000000000}
	e4m3   = ordering[int8]{0x7f, 0x7e, 0x7f}
	e5m2   = ordering[int8]{0x7f, 0x7c, 0x7e}
)

func maxFloat[S int8 | int16 | int32 | int64](o ordering[S], dst, a, b []byte) {
	d, x, y := views[S](dst, a, b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		p, q := x[i], y[i]
		if p&o.magnitude > o.top || q&o.magnitude > o.top {
			d[i] = o.nan
			continue
		}
		r := max(p, q)
		if r < 0 {
			r = min(p, q)
		}
		d[i] = r
	}
}

func minFloat[S int8 | int16 | int32 | int64](o ordering[S], dst, a, b []byte) {
	d, x, y := views[S](dst, a, b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		p, q := x[i], y[i]
		if p&o.magnitude > o.top || q&o.magnitude > o.top {
			d[i] = o.nan
			continue
		}
		r, high := min(p, q), max(p, q)
		if high < 0 {
			r = high
		}
		d[i] = r
	}
}
