package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// goal is what gollective wants to be beside others, in one setting.
type goal struct {
	work  string
	us    string // the contender
	them  []string
	group group
	sizes []int
	most  float64 // our time over that of the fastest of them
}

// goals are numbered by their place from 1 on; what bounds one is written by hand under
// its number.
var goals = slices.Concat(
	onSharedMemory("gollective-processes", 0.35),
	onSharedMemory("gollective-memalloc", 0.25),
	onSharedMemory("gollective-goroutines", 0.25),
	[]goal{
		{"80 % of the ideal bandwidth from 64K", "gollective-goroutines", []string{"ideal"}, group{overShm, 2},
			[]int{64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}, 1.25},
		{"4 ranks that share processors, 4 bytes", "gollective-goroutines", []string{"openmpi"}, group{overShm, 4}, []int{4}, 0.25},
		{"8 ranks that share processors, 4 bytes", "gollective-goroutines", []string{"openmpi"}, group{overShm, 8}, []int{4}, 0.25},
		{"latency of loopback TCP, 4 bytes", "gollective-processes", []string{"openmpi"}, group{overTCP, 2}, []int{4}, 0.65},
		{"bandwidth of loopback TCP, 1M to 64M", "gollective-processes", []string{"openmpi", "gloo-sync", "gloo-poll"}, group{overTCP, 2},
			[]int{1 << 20, 4 << 20, 16 << 20, 64 << 20}, 0.9},
		{"the ring's bandwidth, 1M to 16M", "gollective-ring", []string{"openmpi"}, group{overShm, 2}, []int{1 << 20, 4 << 20, 16 << 20}, 1},
		{"the tree's bandwidth, 1M to 16M", "gollective-tree", []string{"openmpi"}, group{overShm, 2}, []int{1 << 20, 4 << 20, 16 << 20}, 1},
		{"80 % of Simple's bandwidth by LL128, 1M", "gollective-ring-ll128", []string{"gollective-ring"}, group{overShm, 2}, []int{1 << 20}, 1.25},
		{"40 % of Simple's bandwidth by LL, 1M", "gollective-ring-ll", []string{"gollective-ring"}, group{overShm, 2}, []int{1 << 20}, 2.5},
	},
)

// onSharedMemory are the goals of two ranks of one host beside Open MPI; far is that of
// buffers which no cache holds.
func onSharedMemory(us string, far float64) []goal {
	shm, openmpi := group{overShm, 2}, []string{"openmpi"}
	return []goal{
		{"latency, 4 to 256 bytes", us, openmpi, shm, []int{4, 256}, 0.7},
		{"4K", us, openmpi, shm, []int{4 << 10}, 0.5},
		{"64K", us, openmpi, shm, []int{64 << 10}, 0.2},
		{"1M and 4M", us, openmpi, shm, []int{1 << 20, 4 << 20}, 0.3},
		{"16M and 64M", us, openmpi, shm, []int{16 << 20, 64 << 20}, far},
	}
}

// attempt is how near a goal one kind of buffers has come: at its worst size.
type attempt struct {
	spread
	bytes    int
	measured int // sizes that have figures
	bought   bool
}

// attempt returns false where nothing was measured.
func (d *document) attempt(g goal, kind string) (attempt, bool) {
	var worst attempt
	us, them := contenderOf(g.us), contendersOf(g.them)
	for _, bytes := range g.sizes {
		j := d.job(g.group, kind, bytes)
		s, ok := ratio(d.Statistic, d.times(g.group, us.id, j), d.fastest(g.group, them, j))
		if !ok {
			continue
		}
		worst.measured++
		if s.figure > worst.figure {
			worst.spread, worst.bytes, worst.bought = s, bytes, d.bought(g.group, us, them, j)
		}
	}
	return worst, worst.measured > 0
}

// bought reports whether the processor time of us is more than that of the fastest of
// them.
func (d *document) bought(g group, us *contender, them []*contender, j job) bool {
	var best *contender
	least := 0.0
	for _, c := range them {
		if s, ok := figure(d.Statistic, d.times(g, c.id, j)); ok && (best == nil || s.figure < least) {
			best, least = c, s.figure
		}
	}
	if best == nil {
		return false
	}
	cost, ok := ratio(d.Statistic, d.cpu(g, us.id, j), d.cpu(g, best.id, j))
	return ok && cost.figure > 1
}

// verdict says which kinds of buffers have reached a goal.
func (g goal) verdict(kinds []string, attempts map[string]attempt) string {
	var reached, missed []string
	complete := true
	for _, kind := range kinds {
		a, ok := attempts[kind]
		switch {
		case !ok:
			complete = false
			continue
		case a.figure <= g.most*(1+1e-9): // what is written alike is alike
			reached = append(reached, kind)
		default:
			missed = append(missed, kind)
		}
		complete = complete && a.measured == len(g.sizes)
	}
	text := "yes"
	switch {
	case len(reached)+len(missed) == 0:
		return "not measured"
	case len(reached) == 0:
		text = "no"
	case len(missed) > 0:
		text = strings.Join(reached, ", ") + " only"
	}
	if !complete {
		text += ", as far as measured"
	}
	return text
}

// explained is the title of the section that is written by hand.
const explained = "## What bounds what was not reached"

// goals is the table of all goals, and the place for what bounds those that were not
// reached.
func (d *document) goals() {
	var rows [][]string
	var missed []int // from 0 on
	measured := false
	for i, g := range goals {
		attempts := make(map[string]attempt)
		cells := []string{fmt.Sprint(i + 1), g.work, g.name(), d.beside(g), strconv.FormatFloat(g.most, 'g', -1, 64)}
		for _, kind := range d.kinds() {
			a, ok := d.attempt(g, kind)
			if !ok {
				cells = append(cells, "-")
				continue
			}
			measured, attempts[kind] = true, a
			cells = append(cells, d.attemptCell(g, a))
		}
		verdict := g.verdict(d.kinds(), attempts)
		if strings.HasPrefix(verdict, "no,") || verdict == "no" || strings.Contains(verdict, "only") {
			missed = append(missed, i)
		}
		rows = append(rows, append(cells, verdict))
	}
	if !measured {
		return
	}
	d.line("## Goals\n")
	d.line("gollective's time over the other's, at the size at which it is worst: the smaller the better. † as below.\n")
	d.header(4, append(append([]string{"", "goal", "gollective", "beside", "at most"}, d.kinds()...), "reached")...)
	for _, cells := range rows {
		d.row(cells...)
	}
	d.line("")
	d.line("That calls allocate nothing is tested, not measured: [alloc_test.go](../bench/alloc_test.go).\n")
	d.line("%s\n", explained)
	if text := d.explanations(missed); text != "" {
		d.line("%s\n", text)
	} else {
		d.line("Nothing: all that was measured was reached.\n")
	}
}

// unexplained ends the lines of goals that nobody has written about.
const unexplained = ": not explained yet."

// explanations is what was written by hand, and a line for each missed goal that it does
// not name by its number, as **1**.
func (d *document) explanations(missed []int) string {
	lines := slices.DeleteFunc(strings.Split(d.kept(), "\n"), func(line string) bool { return strings.HasSuffix(line, unexplained) })
	text := strings.TrimSpace(strings.Join(lines, "\n"))
	for _, i := range missed {
		if number := fmt.Sprintf("**%d**", i+1); !strings.Contains(text, number) {
			text += fmt.Sprintf("\n- %s, %s, %s%s", number, goals[i].name(), goals[i].work, unexplained)
		}
	}
	return strings.TrimSpace(text)
}

// kept is what the file that is about to be written says in the section that is written by
// hand.
func (d *document) kept() string {
	if d.options.markdown == "" {
		return ""
	}
	old, err := os.ReadFile(d.options.markdown)
	if err != nil {
		return "" // there is none yet
	}
	_, text, found := strings.Cut(string(old), "\n"+explained+"\n")
	if !found {
		return ""
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return strings.TrimSpace(text)
}

func (g goal) name() string { return contenderOf(g.us).fullName() }

// fullName is the name where it does not stand under a title that says whose it is.
func (c *contender) fullName() string {
	if c.role == reference {
		return "gollective " + c.name
	}
	return c.name
}

func (d *document) beside(g goal) string {
	var names []string
	for _, c := range contendersOf(g.them) {
		names = append(names, c.fullName())
	}
	text := strings.Join(names, ", ")
	if len(names) > 1 {
		text = "the fastest of " + text
	}
	return text + ", " + groupText(g.group)
}

func (d *document) attemptCell(g goal, a attempt) string {
	text := d.cell(a.figure, a.spread)
	if a.bought && a.figure < 1 {
		text += "†"
	}
	if len(g.sizes) > 1 {
		text += " (" + formatSize(a.bytes) + ")"
	}
	return text
}

// contenderOf returns the contender with an id that there is.
func contenderOf(id string) *contender {
	i := slices.IndexFunc(contenders, func(c contender) bool { return c.id == id })
	return &contenders[i]
}

func contendersOf(ids []string) []*contender {
	var all []*contender
	for _, id := range ids {
		all = append(all, contenderOf(id))
	}
	return all
}
