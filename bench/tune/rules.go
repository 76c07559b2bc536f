package tune

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"

	"github.com/klauspost/cpuid/v2"

	"github.com/gollective/gollective/bench/perf"
	"github.com/gollective/gollective/collective/plan"
)

// comparePoints orders by placement, collective and size.
func comparePoints(a, b Point) int {
	places := []string{"inproc", "shm", "tcp"}
	return cmp.Or(
		cmp.Compare(slices.Index(places, a.Transport), slices.Index(places, b.Transport)),
		cmp.Compare(a.Ranks, b.Ranks),
		cmp.Compare(slices.Index(Collectives(), a.Collective), slices.Index(Collectives(), b.Collective)),
		cmp.Compare(a.Bytes, b.Bytes),
	)
}

// series cuts sorted points into those that differ in size only.
func series(points []Point) [][]Point {
	var all [][]Point
	for i, p := range points {
		if i > 0 {
			if q := points[i-1]; p.Placement == q.Placement && p.Collective == q.Collective {
				all[len(all)-1] = append(all[len(all)-1], p)
				continue
			}
		}
		all = append(all, []Point{p})
	}
	return all
}

// moves reports whether a place's ranks have anything to send.
func moves(p Place) bool {
	shape, err := perf.ShapeOf(p.Collective, p.Bytes, 4, p.Ranks)
	return err == nil && shape.Count > 0
}

// span are neighbouring sizes of a series with the same winner.
type span struct {
	plan.Rule
	points []Point
}

// What lies below or above the measured sizes is like the least or the greatest of
// them, unless these are so far away that it may well be different.
const (
	smallest = 256
	largest  = 16 << 20
)

// spans are the rules for a series.
func spans(points []Point) ([]span, error) {
	var all []span
	before := Choice{}
	for i, p := range points {
		won := p.winner(before)
		if i > 0 && won == before {
			s := &all[len(all)-1]
			s.points, s.MaxBytes = append(s.points, p), p.Bytes
			continue
		}
		choice, err := won.plan()
		if err != nil {
			return nil, err
		}
		kind, err := plan.ParseKind(p.Collective)
		if err != nil {
			return nil, err
		}
		s := span{plan.Rule{
			Kind: kind, MinBytes: p.Bytes, MaxBytes: p.Bytes, Hosts: 1, Ranks: p.Ranks,
			Transport: p.Transport, Choice: choice,
		}, []Point{p}}
		if i > 0 {
			// In the middle, in proportion, between what was measured.
			last := &all[len(all)-1]
			last.MaxBytes = int(math.Sqrt(float64(last.MaxBytes) * float64(p.Bytes)))
			s.MinBytes = last.MaxBytes + 1
		} else if p.Bytes <= smallest {
			s.MinBytes = 0
		}
		all, before = append(all, s), won
	}
	if last := &all[len(all)-1]; last.MaxBytes >= largest {
		last.MaxBytes = math.MaxInt
	}
	return all, nil
}

// writeRules writes the tuner file.
func (r *run) writeRules(w io.Writer) error {
	cpu := cpuid.CPU.BrandName
	if cpu == "" {
		cpu = runtime.GOARCH
	}
	fmt.Fprintf(w, "# Rules for GOLLECTIVE_TUNER_FILE, in the format of NCCL's tuner plugin.\n")
	fmt.Fprintf(w, "# machine: %s, %d processors, %s/%s\n", cpu, runtime.GOMAXPROCS(0), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(w, "# date: %s\n", r.began.Format("2006-01-02 15:04:05 -0700"))
	fmt.Fprintf(w, "# gollective version: %s\n", oneLine(r.Version))
	fmt.Fprintf(w, "# command: %s\n", oneLine(strings.Join(r.Args, " ")))
	fmt.Fprintf(w, "#\n# Above each line: size in bytes, median time of a call in us by choice, fastest first.\n")
	fmt.Fprintf(w, "# %s\n", plan.TunerHeader())
	for _, points := range series(r.points) {
		fmt.Fprintf(w, "\n# %s, %v\n", points[0].Collective, points[0].Placement)
		all, err := spans(points)
		if err != nil {
			return err
		}
		for _, s := range all {
			for _, p := range s.points {
				fmt.Fprintf(w, "# %d: %s; the model: %v\n", p.Bytes, p.times(), p.Model)
			}
			fmt.Fprintln(w, s.Rule)
		}
	}
	return nil
}

// oneLine keeps a comment a comment.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// times are those of all choices, the fastest first.
func (p *Point) times() string {
	sorted := slices.SortedStableFunc(slices.Values(p.Times), func(a, b Timing) int { return cmp.Compare(a.Micros, b.Micros) })
	var all []string
	for _, t := range sorted {
		all = append(all, fmt.Sprintf("%v %s", t.Choice, micros(t.Micros)))
	}
	return strings.Join(all, ", ")
}

// micros writes a time with three digits.
func micros(us float64) string {
	switch {
	case us < 10:
		return fmt.Sprintf("%.2f", us)
	case us < 100:
		return fmt.Sprintf("%.1f", us)
	}
	return fmt.Sprintf("%.0f", us)
}
