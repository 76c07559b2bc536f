package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/cpuid/v2"

	"github.com/gollective/gollective/internal/affinity"
)

// options are what the command line says.
type options struct {
	peers      []string // contender ids or families
	transports []string
	ranks      []int
	crowd      group // a setting for the smallest size alone; zero if there is none
	sizes      []int // bytes per rank
	buffers    []string
	rounds     int
	seconds    float64 // per size, round and contender
	cores      []int
	pool       int // bytes that rotating buffers take, over all ranks
	statistic  string
	markdown   string // file names, or empty
	json       string
	from       string   // a report to print again
	args       []string // flags that decide what is measured, for the report
}

// The two transports.
const (
	overShm = "shm"
	overTCP = "tcp"
)

// The two ways to use buffers.
const (
	fixed    = "fixed"
	rotating = "rotating"
)

// What a figure is.
const (
	ofMedian = "median"
	ofLeast  = "least"
)

var defaultSizes = []int{4, 256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}

const mostBuffers = 1024

// parseOptions reads the command line. It returns flag.ErrHelp, or an error about
// the user's mistake, which it has printed.
func parseOptions(args []string, errs io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() {
		fmt.Fprint(errs, "Usage: go run ./bench/peers [flags]\n\nCompares gollective with Open MPI, MPICH and Gloo, and with the machine.\n\n")
		flags.PrintDefaults()
	}
	peers := flags.String("peers", "all", "who takes part: "+strings.Join(ids(), ", "))
	transports := flags.String("transports", "shm,tcp", "shared memory, loopback TCP")
	ranks := flags.String("ranks", "2,4", "numbers of ranks; 8 for the smallest size, too, unless numbers are given")
	sizes := flags.String("sizes", "", "bytes per rank, with K, M and G (default "+formatSizes(defaultSizes)+")")
	buffers := flags.String("buffers", "fixed,rotating", "one pair of buffers, many in turn")
	rounds := flags.Int("rounds", 5, "how often contenders take turns")
	seconds := flags.Float64("seconds", 0.16, "time for a size in a round, over both kinds of buffers")
	cores := flags.String("cores", "", "the processors to use, as in 0-3,8 (default all that this process may use)")
	pool := flags.String("pool", "", "bytes that rotating buffers take, over all ranks (default twice the last-level cache)")
	flags.StringVar(&o.statistic, "statistic", ofMedian, "a figure: median, over batches and rounds, or, where others use the machine, least")
	quick := flags.Bool("quick", false, "a first look: 2 rounds of 3 sizes, 0.05 s each, unless other flags say more")
	flags.StringVar(&o.markdown, "md", "", "write the report to this file instead of standard output")
	flags.StringVar(&o.json, "J", "", "write all figures to this file as JSON")
	flags.StringVar(&o.from, "from", "", "measure nothing: print the report in this JSON file again, -statistic and -md apply")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) {
		given[f.Name] = true
		switch f.Name {
		case "quick":
			o.args = append(o.args, "-quick")
		case "md", "J", "from", "statistic": // can be had later
		default:
			o.args = append(o.args, "-"+f.Name, f.Value.String())
		}
	})
	o.rounds, o.seconds = *rounds, *seconds
	if !given["ranks"] && strings.Contains(*transports, overShm) {
		o.crowd = group{overShm, 8}
	}
	if *quick {
		if !given["rounds"] {
			o.rounds = 2
		}
		if !given["seconds"] {
			o.seconds = 0.05
		}
		if !given["sizes"] {
			*sizes = "4,64K,4M"
		}
	}
	err := errors.Join(
		o.setNames(*peers, *transports, *buffers),
		o.setNumbers(*ranks, *sizes, *pool),
		o.setCores(*cores),
		o.check(flags.Args()),
	)
	if err != nil {
		fmt.Fprintf(errs, "peers: %v\n", err)
	}
	return o, err
}

func (o *options) setNames(peers, transports, buffers string) error {
	o.peers = strings.Split(peers, ",")
	o.transports = strings.Split(transports, ",")
	o.buffers = strings.Split(buffers, ",")
	return errors.Join(
		known("-peers", o.peers, ids()),
		known("-transports", o.transports, []string{overShm, overTCP}),
		known("-buffers", o.buffers, []string{fixed, rotating}),
		known("-statistic", []string{o.statistic}, []string{ofMedian, ofLeast}),
	)
}

// known complains about given names that are none of those.
func known(flag string, given, names []string) error {
	for _, g := range given {
		if !slices.Contains(names, g) {
			return fmt.Errorf("%s: %q is none of %s", flag, g, strings.Join(names, ", "))
		}
	}
	return nil
}

func (o *options) setNumbers(ranks, sizes, pool string) error {
	for _, text := range strings.Split(ranks, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 2 || n > 64 {
			return fmt.Errorf("-ranks: %q is no number from 2 to 64", text)
		}
		o.ranks = append(o.ranks, n)
	}
	o.sizes = defaultSizes
	if sizes != "" {
		o.sizes = nil
		for _, text := range strings.Split(sizes, ",") {
			n, err := parseSize(text)
			if err != nil || n < 4 || n%4 != 0 {
				return fmt.Errorf("-sizes: %q is no multiple of 4 bytes", text)
			}
			o.sizes = append(o.sizes, n)
		}
		slices.Sort(o.sizes)
		o.sizes = slices.Compact(o.sizes)
	}
	o.pool = 2 * lastLevelCache()
	if pool != "" {
		n, err := parseSize(pool)
		if err != nil || n <= 0 {
			return fmt.Errorf("-pool: %q is no size", pool)
		}
		o.pool = n
	}
	return nil
}

func (o *options) setCores(list string) error {
	own := affinity.Own().List()
	o.cores = own
	if list == "" {
		return nil
	}
	m, err := affinity.Parse(list)
	if err != nil {
		return fmt.Errorf("-cores: %w", err)
	}
	o.cores = m.List()
	for _, core := range o.cores {
		if !slices.Contains(own, core) {
			return fmt.Errorf("-cores: this process may not use processor %d", core)
		}
	}
	return nil
}

func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q is no flag", rest[0])
	case o.rounds < 1:
		return errors.New("-rounds: at least 1")
	case !(o.seconds > 0 && o.seconds <= 3600):
		return errors.New("-seconds: more than 0, and at most 3600")
	}
	return nil
}

// lastLevelCache is its size in bytes, 32 MiB where the processor does not tell.
func lastLevelCache() int {
	if c := cpuid.CPU.Cache; max(c.L2, c.L3) > 0 {
		return max(c.L2, c.L3)
	}
	return 32 << 20
}

var units = []struct {
	suffix string
	bytes  int
}{{"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}}

// parseSize reads a size such as 4, 64K or 1M.
func parseSize(text string) (int, error) {
	factor := 1
	for _, u := range units {
		if number, ok := strings.CutSuffix(strings.ToUpper(text), u.suffix); ok {
			text, factor = number, u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, err
	}
	if n > 1<<40/uint64(factor) {
		return 0, strconv.ErrRange
	}
	return int(n) * factor, nil
}

// formatSize is parseSize's inverse, with the largest unit that divides the size.
func formatSize(n int) string {
	for _, u := range units {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.Itoa(n/u.bytes) + u.suffix
		}
	}
	return strconv.Itoa(n)
}

func formatSizes(sizes []int) string {
	var texts []string
	for _, n := range sizes {
		texts = append(texts, formatSize(n))
	}
	return strings.Join(texts, ",")
}

// job is one measurement of a contender: operations of so many bytes per rank, over so
// many pairs of buffers in turn.
type job struct{ bytes, buffers int }

// String is the form that programs take as an argument.
func (j job) String() string { return fmt.Sprintf("%d:%d", j.bytes, j.buffers) }

// buffersOf is how many pairs of buffers a kind of job takes. Fixed and rotating are
// one and the same job where a pair of each rank is as large as the pool.
func (o *options) buffersOf(kind string, bytes, ranks int) int {
	if kind == fixed {
		return 1
	}
	line := (bytes + 63) &^ 63
	pair := 2 * line * ranks
	return max(1, min(mostBuffers, (o.pool+pair-1)/pair))
}

// jobs lists what a contender of a group has to do.
func (o *options) jobs(ranks int) []job {
	var all []job
	for _, bytes := range o.sizes {
		for _, kind := range o.buffers {
			j := job{bytes, o.buffersOf(kind, bytes, ranks)}
			if !slices.Contains(all, j) {
				all = append(all, j)
			}
		}
	}
	return all
}

// crowdBytes is the size that is measured in the setting options.crowd.
const crowdBytes = 4

// jobsOf is what a contender has to do in a group.
func (o *options) jobsOf(c *contender, g group) []job {
	if c.ping {
		return []job{{4, 1}}
	}
	return slices.DeleteFunc(o.jobs(max(1, g.Ranks)), func(j job) bool {
		return c.only != nil && !c.only(g, j.bytes) || g == o.crowd && (!c.crowd || j.bytes != crowdBytes)
	})
}

// jobSeconds is the time of one job.
func (o *options) jobSeconds() float64 { return o.seconds / float64(len(o.buffers)) }
