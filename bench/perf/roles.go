package perf

import (
	"fmt"
	"strings"
	"time"

	"github.com/gollective/gollective/collective"
)

// With -C the ranks keep accounts (collective.Config.Accounting), and the run tells
// what each role of theirs has used: all lines of that begin with '#', so that
// scripts that read nccl-tests' table do not see them.

// roleNames are the roles in the order of everything here.
var roleNames = [...]string{"block", "proxy", "helper"}

// roles are the accounts of a measurement by role: of a rank, or of all.
type roles [len(roleNames)]collective.Counters

// rolesSince is what a rank has used between two moments.
func rolesSince(now, before collective.Stats) roles {
	return roles{now.Block.Sub(before.Block), now.Proxy.Sub(before.Proxy), now.Helper.Sub(before.Helper)}
}

// numbers are what ranks tell each other; add takes as many.
func (r *roles) numbers() []float64 {
	var all []float64
	for _, c := range r {
		all = append(all, float64(c.Threads), c.Wall.Seconds(), c.CPU.Seconds(), c.Waiting.Seconds(),
			float64(c.Turns), float64(c.Found), float64(c.Yields), float64(c.Parks), float64(c.Bytes))
	}
	return all
}

// numbersOfRoles is how many numbers there are.
var numbersOfRoles = len((&roles{}).numbers())

// add adds the numbers of one rank.
func (r *roles) add(numbers []float64) {
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	for i := range r {
		n := numbers[i*len(numbers)/len(r):]
		r[i].Add(collective.Counters{
			Threads: int(n[0]), Wall: seconds(n[1]), CPU: seconds(n[2]), Waiting: seconds(n[3]),
			Turns: uint64(n[4]), Found: uint64(n[5]), Yields: uint64(n[6]), Parks: uint64(n[7]), Bytes: uint64(n[8]),
		})
	}
}

// played reports whether role i took part.
func (r *roles) played(i int) bool { return i == 0 || r[i].Threads > 0 || r[i].Turns > 0 }

// costs are the roles of one half of a row. The zero value is one without accounts.
type costs struct {
	operations float64
	roles      roles
}

// add makes the sum of two measurements of the same row.
func (c costs) add(d costs) costs {
	c.operations += d.operations
	for i := range c.roles {
		threads := d.roles[i].Threads
		c.roles[i].Add(d.roles[i])
		c.roles[i].Threads = threads
	}
	return c
}

// costed is a row's place in the table of costs.
type costed struct {
	bytes, root int
	typ, op     string
}

// costTable collects what rows have cost, in their order.
type costTable struct {
	rows []costed
	all  map[costed]*[2]costs // out of place, in place
}

func (t *costTable) row(w row) {
	if w.apart.costs.operations == 0 {
		return
	}
	key := costed{w.bytes, w.root, w.typ, w.op}
	if t.all == nil {
		t.all = make(map[costed]*[2]costs)
	}
	c, ok := t.all[key]
	if !ok {
		c = new([2]costs)
		t.all[key] = c
		t.rows = append(t.rows, key)
	}
	c[0], c[1] = c[0].add(w.apart.costs), c[1].add(w.in.costs)
}

// lines is the table, without the leading "# ".
func (t *costTable) lines() []string {
	if len(t.rows) == 0 {
		return nil
	}
	half := func(names ...any) string { return fmt.Sprintf("  %9s  %7s  %9s  %9s  %9s", names...) }
	line := func(a, b, c, d, e, f any, apart, in string) string {
		return fmt.Sprintf("%12v  %8v  %6v  %6v  %6v  %7v%s%s", a, b, c, d, e, f, apart, in)
	}
	names, units := half("cpu", "useful", "polls", "yields", "parks"), half("(s/op)", "(%)", "(/op)", "(/op)", "(/op)")
	all := []string{
		"Processor time by role, of all ranks; useful is what was not spent on waiting",
		strings.TrimRight(line("", "", "", "", "", "", fmt.Sprintf("  %-51s", "out-of-place"), "  in-place"), " "),
		line("size", "type", "redop", "root", "role", "threads", names, names),
		line("(B)", "", "", "", "", "", units, units),
	}
	for _, key := range t.rows {
		both := t.all[key]
		for i, name := range roleNames {
			if both[0].roles.played(i) || both[1].roles.played(i) {
				threads := max(both[0].roles[i].Threads, both[1].roles[i].Threads)
				all = append(all, line(key.bytes, key.typ, key.op, key.root, name, threads, both[0].half(i), both[1].half(i)))
			}
		}
	}
	return all
}

// half is what role i has cost per operation.
func (c costs) half(i int) string {
	if c.operations == 0 {
		return fmt.Sprintf("  %9s  %7s  %9s  %9s  %9s", "nan", "nan", "nan", "nan", "nan")
	}
	r := c.roles[i]
	per := func(n uint64) string { return fitted(float64(n)/c.operations, 9) }
	return fmt.Sprintf("  %9.3e  %7s  %9s  %9s  %9s",
		r.CPU.Seconds()/c.operations, fitted(100*r.Useful(), 7), per(r.Turns), per(r.Yields), per(r.Parks))
}

// jsonRole is a role in the JSON report; all but threads and the share are per
// operation, over all ranks.
type jsonRole struct {
	Role    text   `json:"role"`
	Threads int    `json:"threads"`
	Wall    double `json:"wall_us"`
	CPU     double `json:"cpu_us"`
	Waiting double `json:"waiting_us"`
	Useful  double `json:"useful_share"`
	Polls   double `json:"polls"`
	Found   double `json:"polls_found"`
	Yields  double `json:"yields"`
	Parks   double `json:"parks"`
	Bytes   double `json:"bytes"`
}

func (c costs) json() []jsonRole {
	if c.operations == 0 {
		return nil
	}
	var all []jsonRole
	micros := func(d time.Duration) double { return double(d.Seconds() * 1e6 / c.operations) }
	per := func(n uint64) double { return double(float64(n) / c.operations) }
	for i, name := range roleNames {
		if r := c.roles[i]; c.roles.played(i) {
			all = append(all, jsonRole{
				Role: text(name), Threads: r.Threads,
				Wall: micros(r.Wall), CPU: micros(r.CPU), Waiting: micros(r.Waiting), Useful: double(r.Useful()),
				Polls: per(r.Turns), Found: per(r.Found), Yields: per(r.Yields), Parks: per(r.Parks), Bytes: per(r.Bytes),
			})
		}
	}
	return all
}
