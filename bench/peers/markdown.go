package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// largeBytes is from where on bandwidth is of interest.
const largeBytes = 64 << 10

// document writes Markdown.
type document struct {
	strings.Builder
	*report
	figures, doubtful int // in tables of times and ratios
}

// markdown is the report for readers.
func (r *report) markdown() string {
	body := document{report: r}
	body.goals()
	for _, kind := range r.kinds() {
		body.glance(kind)
	}
	for _, g := range r.Groups {
		if g == machine {
			body.machineLines()
		} else {
			body.group(g)
		}
	}
	body.commands()
	head := document{report: r, figures: body.figures, doubtful: body.doubtful}
	head.head()
	return head.String() + body.String()
}

// kinds are the kinds of buffers in reading order.
func (r *report) kinds() []string {
	return slices.DeleteFunc([]string{fixed, rotating}, func(k string) bool { return !slices.Contains(r.Buffers, k) })
}

func (d *document) line(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

// row writes the cells of a row.
func (d *document) row(cells ...string) { d.line("| %s |", strings.Join(cells, " | ")) }

// header writes the first two lines of a table; all columns but the first `texts` hold
// numbers.
func (d *document) header(texts int, cells ...string) {
	d.row(cells...)
	rule := make([]string, len(cells))
	for i := range rule {
		rule[i] = "---"
		if i >= texts {
			rule[i] = "---:"
		}
	}
	d.row(rule...)
}

func groupText(g group) string {
	switch g.Transport {
	case overShm:
		return fmt.Sprintf("shared memory, %d ranks", g.Ranks)
	case overTCP:
		return fmt.Sprintf("loopback TCP, %d ranks", g.Ranks)
	}
	return "the machine"
}

func title(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// statistics say what a figure is and when it is marked.
var statistics = map[string]string{
	ofMedian: "A figure is the median over rounds of the median over a round's batches, a ratio the median of the rounds' ratios. " +
		"A ? marks it where rounds differ by more than half.",
	ofLeast: "A figure is the best batch of all rounds, as is right where others use the machine; a ratio compares two of these. " +
		"A ? marks it where no second round came within half of it.",
}

// head says what was measured, where, and how far it can be trusted.
func (d *document) head() {
	d.line("# AllReduce, side by side\n")
	d.line("Float32, sum, out of place. Made on %s by", d.Started.Format("2006-01-02"))
	command := d.Command
	if d.Statistic != ofMedian {
		command += " -statistic " + d.Statistic
	}
	d.line("\n```\n%s\n```\n", command)
	d.line("on a %s, in %.0f s. The same command repeats it, with -md FILE in a file; see [bench/peers](../bench/peers/doc.go) for what exactly is measured.", d.Machine, d.Took.Seconds())
	d.line("Rank i is pinned to the i-th of %d processors, modulo their number; goroutine ranks share as many. Every result was checked.\n", len(d.Cores))
	d.line("Contenders took turns: %d rounds. %s", d.Rounds, statistics[d.Statistic])
	d.line("That is so with %d of %d figures.\n", d.doubtful, d.figures)
	if d.Foreign >= 0 {
		d.line("Other programs kept %.2f of the machine's cores busy meanwhile.", d.Foreign)
	}
	if slices.Contains(d.Buffers, rotating) {
		d.line("Fixed buffers are one pair in all operations; rotating buffers are up to %d pairs per rank, %s over all ranks.\n", mostBuffers, formatSize(d.Pool))
	}
	for _, n := range d.Missing {
		d.line("- %s did not take part: %s", n.Contender, n.Text)
	}
	for _, n := range d.Failures {
		d.line("- %s failed, %s: %s", n.Contender, groupText(*n.Group), strings.ReplaceAll(n.Text, "\n", "; "))
	}
	for _, n := range d.Unfinished {
		d.line("- %s was %s (%s); what it had measured by then is shown, and counts.", n.Contender, n.Text, groupText(*n.Group))
	}
	if len(d.Missing)+len(d.Failures)+len(d.Unfinished) > 0 {
		d.line("")
	}
}

// glance is the table of ratios for a kind of buffers.
func (d *document) glance(kind string) {
	if !slices.ContainsFunc(d.Groups, func(g group) bool { return len(d.in(g, ours)) > 0 && len(d.in(g, peer, limit)) > 0 }) {
		return
	}
	d.line("## Ratios, %s buffers\n", kind)
	d.line("gollective's time over the other's: below 1 gollective is faster. Ratios of bandwidth are the inverse.")
	d.line("† gollective is faster and takes more processor time per operation: that speed is bought with another core.\n")
	d.header(3, append([]string{"setting", "gollective", "beside"}, d.sizeNames()...)...)
	for _, g := range d.Groups {
		for _, us := range d.in(g, ours) {
			peers := d.in(g, peer)
			for _, them := range slices.Concat(peers, d.in(g, limit)) {
				d.ratios(g, kind, us, them.name, []*contender{them})
			}
			if len(peers) > 1 {
				d.ratios(g, kind, us, "the fastest of these", peers)
			}
		}
	}
	d.line("")
}

func (d *document) sizeNames() []string {
	var names []string
	for _, bytes := range d.Sizes {
		names = append(names, formatSize(bytes))
	}
	return names
}

// ratios is a row: us beside whoever of them is fastest.
func (d *document) ratios(g group, kind string, us *contender, name string, them []*contender) {
	cells := []string{groupText(g), us.name, name}
	for _, bytes := range d.Sizes {
		j := d.job(g, kind, bytes)
		s, ok := ratio(d.Statistic, d.times(g, us.id, j), d.fastest(g, them, j))
		if !ok {
			cells = append(cells, "-")
			continue
		}
		cell := d.cell(s.figure, s)
		if s.figure < 1 && d.bought(g, us, them, j) {
			cell += "†"
		}
		cells = append(cells, cell)
	}
	d.row(cells...)
}

// time is a cell with what `of` makes of a contender's time.
func (d *document) time(g group, c *contender, j job, of func(seconds float64) float64) string {
	s, ok := figure(d.Statistic, d.times(g, c.id, j))
	if !ok {
		return "-"
	}
	return d.cell(of(s.figure), s)
}

// cell is a figure, marked where it is doubtful.
func (d *document) cell(figure float64, s spread) string {
	d.figures++
	text := digits(figure)
	if s.doubtful() {
		d.doubtful++
		text += "?"
	}
	return text
}

// digits writes a number with three significant digits, without an exponent.
func digits(x float64) string {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	decimals := 2 - int(math.Floor(math.Log10(math.Abs(x))))
	if decimals < 0 {
		scale := math.Pow10(-decimals)
		return strconv.FormatFloat(math.Round(x/scale)*scale, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'f', min(decimals, 6), 64)
}

// group is a section with the tables of a setting.
func (d *document) group(g group) {
	d.line("## %s\n", title(groupText(g)))
	all := d.in(g, peer, ours, limit)
	d.tables(g, all)
	if forced := d.in(g, reference); len(forced) > 0 {
		d.line("The same by gollective's processes, held to an algorithm and a protocol (Simple unless it says another):\n")
		d.tables(g, forced)
	}
}

func (d *document) tables(g group, all []*contender) {
	for _, kind := range d.kinds() {
		d.timeTable(g, kind, all)
	}
	for _, kind := range d.kinds() {
		d.bandwidthTable(g, kind, all)
	}
	for _, kind := range d.kinds() {
		d.cpuTable(g, kind, all)
	}
}

// measured are the sizes for which somebody has a figure.
func (d *document) measured(g group, kind string, all []*contender) []int {
	return slices.DeleteFunc(slices.Clone(d.Sizes), func(bytes int) bool {
		return !slices.ContainsFunc(all, func(c *contender) bool { return len(positive(d.times(g, c.id, d.job(g, kind, bytes)))) > 0 })
	})
}

func namesOf(all []*contender) []string {
	var names []string
	for _, c := range all {
		names = append(names, c.name)
	}
	return names
}

func (d *document) timeTable(g group, kind string, all []*contender) {
	sizes := d.measured(g, kind, all)
	if len(sizes) == 0 {
		return
	}
	d.line("Time per operation in µs, %s buffers:\n", kind)
	d.header(0, append([]string{"bytes"}, namesOf(all)...)...)
	for _, bytes := range sizes {
		cells := []string{formatSize(bytes)}
		for _, c := range all {
			cells = append(cells, d.time(g, c, d.job(g, kind, bytes), func(t float64) float64 { return 1e6 * t }))
		}
		d.row(cells...)
	}
	d.line("")
	for _, c := range all {
		if text := d.variants(g, kind, c); text != "" {
			d.line("%s took, of its ways: %s.\n", title(c.name), text)
		}
	}
}

// variants says which way a contender took at which sizes.
func (d *document) variants(g group, kind string, c *contender) string {
	var runs []string
	last := ""
	for _, bytes := range d.Sizes {
		v := d.variant(g, c.id, d.job(g, kind, bytes))
		if v != "" && v != last {
			runs = append(runs, "from "+formatSize(bytes)+" "+v)
		}
		last = v
	}
	return strings.Join(runs, ", ")
}

// bandwidthTable shows bus bandwidth: nccl-tests' definition, 2(n-1)/n times the bytes
// over the time.
func (d *document) bandwidthTable(g group, kind string, all []*contender) {
	large := slices.DeleteFunc(d.measured(g, kind, all), func(bytes int) bool { return bytes < largeBytes })
	if len(large) == 0 {
		return
	}
	d.line("Bus bandwidth in GB/s, %s buffers:\n", kind)
	d.header(0, append([]string{"bytes"}, namesOf(all)...)...)
	for _, bytes := range large {
		cells := []string{formatSize(bytes)}
		for _, c := range all {
			moved := float64(bytes) * 2 * float64(g.Ranks-1) / float64(g.Ranks)
			cells = append(cells, d.time(g, c, d.job(g, kind, bytes), func(t float64) float64 { return moved / t / 1e9 }))
		}
		d.row(cells...)
	}
	d.line("")
}

// cpuTable shows processor time, and how many cores it kept busy.
func (d *document) cpuTable(g group, kind string, all []*contender) {
	sizes := d.measured(g, kind, all)
	if len(sizes) == 0 {
		return
	}
	d.line("Processor time of all ranks per operation in µs, and the cores that it kept busy, %s buffers:\n", kind)
	d.header(0, append([]string{"bytes"}, namesOf(all)...)...)
	for _, bytes := range sizes {
		cells := []string{formatSize(bytes)}
		for _, c := range all {
			j := d.job(g, kind, bytes)
			cpu, ok := figure(d.Statistic, d.cpu(g, c.id, j))
			if !ok {
				cells = append(cells, "-")
				continue
			}
			cells = append(cells, fmt.Sprintf("%s (%.1f)", digits(cpu.figure*1e6), d.coresBusy(g, c, j)))
		}
		d.row(cells...)
	}
	d.line("")
}

// coresBusy is processor time over time, taken over all batches: both count what
// disturbed them.
func (d *document) coresBusy(g group, c *contender, j job) float64 {
	e := d.byPlace[place{g, c.id, j}]
	if e == nil {
		return 0
	}
	var each []float64
	for _, res := range e.Results {
		if res == nil || len(res.Seconds) == 0 {
			continue
		}
		sum := 0.0
		for _, t := range res.Seconds {
			sum += t
		}
		if sum > 0 {
			each = append(each, res.CPU*float64(len(res.Seconds))/sum)
		}
	}
	if len(each) == 0 {
		return 0
	}
	return median(each)
}

// machineLines are the limits that no setting changes.
func (d *document) machineLines() {
	d.line("## The machine\n")
	var pings, copies []*contender
	for _, c := range d.in(machine, limit) {
		if c.ping {
			pings = append(pings, c)
		} else {
			copies = append(copies, c)
		}
	}
	if len(pings) > 0 {
		d.header(1, "limit", "µs")
		for _, c := range pings {
			d.row(c.name, d.time(machine, c, job{4, 1}, func(t float64) float64 { return 1e6 * t }))
		}
		d.line("")
	}
	if len(copies) == 0 {
		return
	}
	for _, kind := range d.kinds() {
		d.line("Bytes copied per second in GB/s, %s buffers:\n", kind)
		d.header(0, append([]string{"bytes"}, namesOf(copies)...)...)
		for _, bytes := range d.Sizes {
			cells := []string{formatSize(bytes)}
			for _, c := range copies {
				cells = append(cells, d.time(machine, c, d.job(machine, kind, bytes), func(t float64) float64 { return float64(bytes) / t / 1e9 }))
			}
			d.row(cells...)
		}
		d.line("")
	}
}

// commands says how each was run.
func (d *document) commands() {
	d.line("## How each was run\n")
	d.header(4, "setting", "contender", "is", "command")
	for _, g := range d.Groups {
		for _, c := range d.in(g, peer, ours, limit, reference) {
			i := slices.IndexFunc(d.Taking, func(t taking) bool { return t.group == g && t.Contender == c.id })
			if i < 0 {
				continue
			}
			about := d.Taking[i].About
			if about == "" {
				about = abouts[c.role]
			}
			d.row(groupText(g), c.fullName(), about, "`"+d.Taking[i].Command+"`")
		}
	}
	d.line("")
	d.WriteString(legend)
}

// abouts is what contenders are that do not say so themselves.
var abouts = map[role]string{peer: "-", ours: "this repository", reference: "this repository", limit: "[limits.c](../bench/peers/c/limits.c)"}

// legend explains the columns.
const legend = `Gloo's sync and busy-poll modes exist only for its older classes, which work in place:
they touch less memory than the others. Ideal is the same reduction by pinned
threads of one process, with a flag per thread and phase and nothing else: no
queue, no copy, no check. It is written in C, where it was faster than with this
repository's kernels when both were tried (limits.c). Bare TCP sends what a ring has to,
both ways at once, and reduces nothing. gollective MemAlloc has its buffers in memory that
other processes can map; goroutine ranks reach each other's anyway.
`
