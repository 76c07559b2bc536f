package perf

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// row is one line of the result table.
type row struct {
	bytes, count int
	typ, op      string
	root         int
	apart, in    half // out-of-place, in-place
	iters        int
	when         time.Time
}

// half is one measurement: half a row. The zero value is one that was not made.
type half struct {
	made         bool
	micros       float64 // per operation; wall clock, or processor time with -C
	algbw, busbw float64 // GB/s
	checked      bool
	wrong        int // elements

	costs costs // with -C

	perIter []float64 // microseconds, the slowest rank's, leading ones skipped; nil without -I
	skipped int
}

// table prints what nccl-tests prints, to the byte where numbers do not differ:
// scripts that read its output must be able to read ours (writeResultHeader,
// writeBenchmarkLineBody and getFloatStr in src/util.cu).
type table struct {
	w          io.Writer
	cpuTime    bool
	timestamps bool
	perIter    bool
}

const timeLayout = "2006-01-02 15:04:05"

func (t *table) header() {
	timeName := "time"
	if t.cpuTime {
		timeName = "cputime"
	}
	title := "           out-of-place                       in-place          "
	names := "%7s  %6s  %6s  %6s"
	args := []any{timeName, "algbw", "busbw", "#wrong"}
	units := []any{"(us)", "(GB/s)", "(GB/s)", ""}
	if t.perIter {
		title = "              out-of-place (+ per-iteration)                                in-place (+ per-iteration)"
		names += "  %7s  %7s  %7s  %7s"
		args = append(args, "i_min", "i_max", "i_p99", "i_cv%")
		units = append(units, "(us)", "(us)", "(us)", "(%)")
	}
	stamp, stampUnit := "", ""
	if t.timestamps {
		stamp, stampUnit = fmt.Sprintf("%19s", "timestamp"), fmt.Sprintf("%19s", "%Y-%m-%d %H:%M:%S")
	}
	line := func(first []any, rest []any, end string) {
		half := fmt.Sprintf("  "+names, rest...)
		fmt.Fprintf(t.w, "# %10s  %12s  %8s  %6s  %6s%s%s %s\n", append(first, half, half, end)...)
	}
	fmt.Fprintf(t.w, "#\n# %10s  %12s  %8s  %6s  %6s%s\n", "", "", "", "", "", title)
	line([]any{"size", "count", "type", "redop", "root"}, args, stamp)
	line([]any{"(B)", "(elements)", "", "", ""}, units, stampUnit)
}

func (t *table) row(r row) {
	var b strings.Builder
	fmt.Fprintf(&b, "%12d  %12d  %8s  %6s  %6d", r.bytes, r.count, r.typ, r.op, r.root)
	for _, h := range []half{r.apart, r.in} {
		t.half(&b, h)
	}
	if t.timestamps {
		fmt.Fprintf(&b, "%21s", r.when.Format(timeLayout))
	}
	fmt.Fprintln(t.w, b.String())
}

func (t *table) half(b *strings.Builder, h half) {
	number := func(width int, x float64) string {
		if !h.made {
			x = math.NaN() // a word here would stop scripts that expect a number
		}
		return fitted(x, width)
	}
	wrong := "N/A"
	if h.checked {
		wrong = cFloat(float64(h.wrong))
	}
	fmt.Fprintf(b, "  %7s  %6s  %6s  %6s", number(7, h.micros), number(6, h.algbw), number(6, h.busbw), wrong)
	if t.perIter {
		s := iterStats{}
		if h.made {
			s = newIterStats(h.perIter)
		}
		fmt.Fprintf(b, "  %7s  %7s  %7s  %7s", number(7, s.min), number(7, s.max), number(7, s.p99), number(7, s.variation()))
	}
}

// fitted prints x in width columns with as many of two decimals as fit, in
// exponent form where not even the integer part does.
func fitted(x float64, width int) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return fmt.Sprintf("%*s", width, cFloat(x))
	}
	for decimals := 2; decimals >= 0; decimals-- {
		if s := fmt.Sprintf("%*.*f", width, decimals, x); len(s) <= width {
			return s
		}
	}
	decimals := 0
	if width >= 7 {
		decimals = 1
	}
	return fmt.Sprintf("%*.*e", width, decimals, x)
}

// cFloat prints x as C's %g does: six significant digits, no trailing zeros.
func cFloat(x float64) string {
	switch {
	case math.IsNaN(x):
		return "nan"
	case math.IsInf(x, 0):
		return strings.ToLower(strings.TrimPrefix(fmt.Sprint(x), "+"))
	}
	return fmt.Sprintf("%.6g", x)
}

// verdict is what the closing lines say.
type verdict struct {
	wrong      int
	busbw      float64
	minimum    float64 // of busbw; 0 = none asked for
	choices    []string
	costs      []string
	memory     []memoryUse
	failure    error
	collective string
}

// fastEnough allows a tenth below the minimum, as nccl-tests does.
func (v verdict) fastEnough() bool { return v.minimum == 0 || v.busbw >= 0.9*v.minimum }

func okay(good bool) string {
	if good {
		return "OK"
	}
	return "FAILED"
}

func (t *table) footer(v verdict) {
	for _, c := range v.choices {
		fmt.Fprintf(t.w, "# %-20s : %s\n", "Algorithm by size", c)
	}
	for _, c := range v.costs {
		fmt.Fprintf(t.w, "# %s\n", c)
	}
	fmt.Fprintf(t.w, "# %-20s : %d %s\n", "Out of bounds values", v.wrong, okay(v.wrong == 0))
	fast := ""
	if v.minimum != 0 {
		fast = okay(v.fastEnough())
	}
	fmt.Fprintf(t.w, "# %-20s : %s %s\n", "Avg bus bandwidth", cFloat(v.busbw), fast)
	fmt.Fprintf(t.w, "#\n# Collective test concluded: %s\n", program(v.collective))
	if v.memory != nil {
		fmt.Fprintf(t.w, "# %-20s : %s\n", "Memory usage", memoryLine(v.memory))
	}
	fmt.Fprintln(t.w, "#")
	if v.failure != nil {
		fmt.Fprintf(t.w, "# error: %s\n", oneLine(v.failure))
	} else {
		fmt.Fprintln(t.w)
	}
}

// program is the name of nccl-tests' binary for a collective.
func program(collective string) string { return collective + "_perf" }

// oneLine keeps joined errors from breaking the layout.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// memoryUse is one entry of the -M line.
type memoryUse struct {
	name  string
	bytes int
}

func memoryLine(uses []memoryUse) string {
	var b strings.Builder
	total := 0
	for i, u := range uses {
		if i > 0 {
			b.WriteString("| ")
		}
		fmt.Fprintf(&b, "%s %s ", u.name, memorySize(u.bytes))
		total += u.bytes
	}
	return fmt.Sprintf("%s| Total  %s", b.String(), memorySize(total))
}

// memorySize has at most three significant digits where it can.
func memorySize(bytes int) string {
	x, unit := float64(bytes), " B"
	for _, u := range []string{" KB", " MB", " GB"} {
		if math.Abs(x) < 1024 {
			break
		}
		x, unit = x/1024, u
	}
	decimals := 0
	if math.Abs(x) < 10 {
		decimals = 2
	} else if math.Abs(x) < 100 {
		decimals = 1
	}
	return fmt.Sprintf("%.*f%s", decimals, x, unit)
}
