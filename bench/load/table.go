package load

import (
	"fmt"
	"io"
	"strings"
)

// The table has a line per case, written as it is measured; the slow network comes
// after it, then the verdicts.

func writeHeader(w io.Writer, o *Options, cores int) {
	fmt.Fprintf(w, "# What waiting costs: %d rank processes of this host over loopback TCP, %s, %s.\n",
		o.Ranks, plural(o.Channels, "channel"), plural(cores, "core"))
	fmt.Fprintf(w, "# Per rank, its block and its proxy thread (inline: the block does the proxy's part); 100 %% = one core.\n")
	fmt.Fprintf(w, "# idle: %d communicators that nobody calls. late: what it costs a rank to wait %d ms for the last one.\n",
		idleComms, lateBy.Milliseconds())
	fmt.Fprintf(w, "#\n")
	fmt.Fprintf(w, "#%17s %7s %36s %40s %15s\n", "", "idle", "allreduce 4 B", "allreduce 16 MiB", "late")
	fmt.Fprintf(w, "# %-9s%-7s%7s  %6s%6s%6s%9s%9s  %6s%6s%6s%8s%8s  %7s%8s\n",
		"wait", "proxy", "all", "block", "proxy", "rest", "p50", "p99", "block", "proxy", "rest", "algbw", "CPU", "block", "proxy")
	fmt.Fprintf(w, "# %-9s%-7s%7s  %6s%6s%6s%9s%9s  %6s%6s%6s%8s%8s  %7s%8s\n",
		"", "", "(%)", "(%)", "(%)", "(%)", "(us)", "(us)", "(%)", "(%)", "(%)", "(GB/s)", "(s/GB)", "(ms)", "(ms)")
}

func writeRow(w io.Writer, f *Figures) {
	hasProxy := f.proxied()
	roles := func(l *Load) string {
		return fmt.Sprintf("%6.1f%6s%6.1f", 100*l.Block, ifSo(hasProxy, "%.1f", 100*l.Proxy), 100*l.Rest)
	}
	fmt.Fprintf(w, "  %-9s%-7s%7.2f  %s%9.1f%9.1f  %s%8.2f%8.2f  %7.2f%8s\n",
		f.Wait, f.Proxy, 100*f.Idle.Process,
		roles(f.Small), f.Small.P50, f.Small.P99,
		roles(f.Large), f.Large.AlgBW, f.Large.CPUPerGB,
		f.Late.Block, ifSo(hasProxy, "%.2f", f.Late.Proxy))
}

// ifSo is a figure, or a dash where there is none.
func ifSo(so bool, format string, value float64) string {
	if !so {
		return "-"
	}
	return fmt.Sprintf(format, value)
}

func writeSlow(w io.Writer, all []*Figures) {
	for i, f := range all {
		if i == 0 {
			fmt.Fprintf(w, "#\n# A slow network: no connection sends more than %.3g MB/s; allreduces of 4 MiB. useful: not spent on looking in vain.\n", float64(f.Rate)/1e6)
			fmt.Fprintf(w, "# %-9s%-7s%7s%8s%8s%8s%8s%8s\n", "wait", "proxy", "block", "proxy", "rest", "useful", "algbw", "CPU")
			fmt.Fprintf(w, "# %-9s%-7s%7s%8s%8s%8s%8s%8s\n", "", "", "(%)", "(%)", "(%)", "(%)", "(GB/s)", "(s/GB)")
		}
		l := f.Slow
		fmt.Fprintf(w, "  %-9s%-7s%7.1f%8s%8.1f%8.1f%8.3f%8.2f\n", f.Wait, f.Proxy,
			100*l.Block, ifSo(f.proxied(), "%.1f", 100*l.Proxy), 100*l.Rest, 100*l.Useful, l.AlgBW, l.CPUPerGB)
	}
}

// writeNotes says what the reader must know to judge the table.
func writeNotes(w io.Writer, all []*Figures) {
	fmt.Fprintln(w, "#")
	for _, note := range notes(all) {
		fmt.Fprintf(w, "# Note: %s.\n", note)
	}
}

func notes(all []*Figures) []string {
	var crowded []string
	var threads, cores int
	most, during := 0.0, ""
	for _, f := range all {
		if f.Threads > f.Cores && f.Rate == 0 && f.Wait != "block" {
			crowded = append(crowded, f.name())
			threads, cores = f.Threads, f.Cores
		}
		for _, at := range []struct {
			phase  string
			others float64
		}{{"4 B", f.Small.others()}, {"16 MiB", f.Large.others()}, {"late", f.Late.others()}, {"slow network", f.Slow.others()}} {
			if at.others > most {
				most, during = at.others, f.name()+", "+at.phase
			}
		}
	}
	var notes []string
	if len(crowded) > 0 {
		notes = append(notes, fmt.Sprintf("with %s there are up to %d threads that poll and %s: they take turns, none can have 100 %%, and latencies are the scheduler's",
			strings.Join(crowded, "; "), threads, plural(cores, "core")))
	}
	if most >= disturbed {
		notes = append(notes, fmt.Sprintf("other processes have disturbed: they used up to %.0f %% of a core (%s)", 100*most, during))
	}
	return notes
}

// others of an idle phase disturb nothing.
func (l *Load) others() float64 {
	if l == nil {
		return 0
	}
	return l.Others
}

func (d *Delay) others() float64 {
	if d == nil {
		return 0
	}
	return d.Others
}

func writeVerdicts(w io.Writer, verdicts []Verdict) {
	failed := 0
	for _, v := range verdicts {
		fmt.Fprintln(w, v)
		if !v.Pass {
			failed++
		}
	}
	if failed > 0 {
		fmt.Fprintf(w, "# %d of %d claims don't hold on this machine, or not at this time.\n", failed, len(verdicts))
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
