package tune

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// near is how near to the best the automatic choice should be.
const near = 1.10

// writeTables prints for each series what the library chooses and what is best, and
// for each placement the constants that the ring's times suggest.
func writeTables(w io.Writer, points []Point) {
	within, compared := 0, 0
	var worst float64
	var where Place
	all := series(points)
	for i, s := range all {
		fmt.Fprintf(w, "# %s, %v\n", s[0].Collective, s[0].Placement)
		fmt.Fprintf(w, "%s\n", strings.TrimRight(fmt.Sprintf("%12s  %-18s %10s  %-18s %10s %7s", "size(B)", "automatic", "time(us)", "best forced", "time(us)", "ratio"), " "))
		for _, p := range s {
			best := p.best()
			line := fmt.Sprintf("%12d  %-18v", p.Bytes, p.Model)
			if t, ok := p.model(); ok {
				ratio := t.Micros / best.Micros
				line += fmt.Sprintf(" %10s  %-18v %10s %7.2f", micros(t.Micros), best.Choice, micros(best.Micros), ratio)
				compared++
				if ratio <= near {
					within++
				}
				if ratio > worst {
					worst, where = ratio, p.Place
				}
			} else {
				line += fmt.Sprintf(" %10s  %-18v %10s %7s", "-", best.Choice, micros(best.Micros), "-")
			}
			fmt.Fprintln(w, line)
		}
		fmt.Fprintln(w)
		if i+1 == len(all) || all[i+1][0].Placement != s[0].Placement {
			writeConstants(w, s[0].Placement, points)
		}
	}
	if compared > 0 {
		fmt.Fprintf(w, "# The automatic choice is within %.0f %% of the best forced one in %d of %d cases; at worst %.2f times (%s, %v, %d B).\n",
			100*(near-1), within, compared, worst, where.Collective, where.Placement, where.Bytes)
	}
}

// writeConstants prints what a hop costs in a placement, by protocol.
func writeConstants(w io.Writer, of Placement, points []Point) {
	var lines []string
	for _, protocol := range []string{"simple", "ll", "ll128"} {
		if h, ok := fitHop(of, protocol, points); ok {
			lines = append(lines, fmt.Sprintf("#   %-7s %8s us and %5.1f GB/s", protocol, micros(h.micros), h.bandwidth))
		}
	}
	if len(lines) > 0 {
		fmt.Fprintf(w, "# A hop of a ring, %v, as fitted to all_reduce: latency and bandwidth\n%s\n\n", of, strings.Join(lines, "\n"))
	}
}

// hop is what a hop costs: us of latency, and GB/s.
type hop struct{ micros, bandwidth float64 }

// fitHop fits latency and bandwidth to the times of a ring AllReduce, of which n ranks
// make 2(n-1) hops of 1/n of the bytes each: time = hops * (latency + bytes/n /
// bandwidth). Errors count in proportion to the time, so that small calls are heard.
func fitHop(of Placement, protocol string, points []Point) (hop, bool) {
	hops := float64(2 * (of.Ranks - 1))
	// Least squares of 1 = a*(1/t) + b*(bytes/t).
	var xx, xy, yy, x1, y1 float64
	n, least, most := 0, math.MaxInt, 0
	for i := range points {
		p := &points[i]
		t, ok := p.of(Choice{Algorithm: "ring", Protocol: protocol})
		if p.Placement != of || p.Collective != "all_reduce" || !ok {
			continue
		}
		x, y := 1/t.Micros, float64(p.Bytes)/t.Micros
		xx, xy, yy, x1, y1 = xx+x*x, xy+x*y, yy+y*y, x1+x, y1+y
		n, least, most = n+1, min(least, p.Bytes), max(most, p.Bytes)
	}
	det := xx*yy - xy*xy
	if n < 3 || most/least < 256 || det <= 0 {
		return hop{}, false
	}
	a, b := (x1*yy-y1*xy)/det, (y1*xx-x1*xy)/det
	if a <= 0 || b <= 0 {
		return hop{}, false
	}
	return hop{a / hops, hops / float64(of.Ranks) / b / 1000}, true
}
