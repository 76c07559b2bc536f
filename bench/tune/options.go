package tune

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gollective/gollective/bench/perf"
	"github.com/gollective/gollective/collective"
)

// Options is a run of the tool.
type Options struct {
	Args    []string // of the command, for the file
	Version string

	Collectives []string // of Collectives
	Goroutines  []int    // numbers of ranks that are goroutines of one process
	Processes   []int    // numbers of ranks that are processes
	Transports  []string // between processes: shm, tcp

	MinBytes, MaxBytes, StepFactor int
	Channels                       []int // numbers to force; 0 = as the library chooses
	Budget                         time.Duration
	Rounds                         int
	mostRounds                     int // even if the time allows more

	Output string // the tuner file; "" = none
	Points string // the file that measurements are kept in; "" = none
}

// Collectives are what can be tuned, by their names in nccl-tests: what has several
// algorithms.
func Collectives() []string {
	return []string{"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}
}

// DefaultOptions are two ranks in each placement that this platform has.
func DefaultOptions() Options {
	o := Options{
		Goroutines: []int{2}, Transports: []string{"shm", "tcp"},
		MinBytes: 4, MaxBytes: 64 << 20, StepFactor: 4,
		Channels: channelsFor(runtime.GOMAXPROCS(0), 2),
		Budget:   2 * time.Minute, Rounds: 5, mostRounds: 101,
		Output: "gollective_tuner.csv",
	}
	if runtime.GOOS == "linux" {
		o.Processes = []int{2}
	}
	return o
}

// channelsFor are the numbers of channels that are worth trying: powers of two for
// which there are cores.
func channelsFor(cores, ranks int) []int {
	if cores < 2*ranks {
		return []int{0}
	}
	var all []int
	for channels := 1; channels*ranks <= cores && channels <= 64; channels *= 2 {
		all = append(all, channels)
	}
	return all
}

// UsageError is a mistake in the options: nothing has run.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// AddFlags defines the flags. Current values are the defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.IntSliceVarP(&o.Goroutines, "ngpus", "g", o.Goroutines, "numbers of goroutine ranks; 0 = none")
	fs.IntSliceVarP(&o.Processes, "ranks", "n", o.Processes, "numbers of processes; 0 = none")
	fs.StringSliceVar(&o.Transports, "transport", o.Transports, "how processes are connected: shm, tcp")
	fs.VarP((*size)(&o.MinBytes), "minbytes", "b", "first size in bytes (K, M, G: binary units)")
	fs.VarP((*size)(&o.MaxBytes), "maxbytes", "e", "last size in bytes")
	fs.IntVarP(&o.StepFactor, "stepfactor", "f", o.StepFactor, "factor between sizes, from 2 on")
	fs.IntSliceVar(&o.Channels, "channels", o.Channels, "numbers of channels to try; 0 = as the library chooses")
	fs.DurationVar(&o.Budget, "budget", o.Budget, "time for all measurements; sizes that it does not reach are left out")
	fs.IntVar(&o.Rounds, "rounds", o.Rounds, "least number of batches of each choice, of which the median counts; the budget may allow more")
	fs.StringVarP(&o.Output, "output_file", "o", o.Output, "the tuner file to write; \"\" = none")
	fs.StringVar(&o.Points, "points", o.Points, "keep measurements in this file, and do not repeat those in it: a run in pieces")
}

type size int

func (s *size) String() string { return fmt.Sprint(int(*s)) }
func (s *size) Type() string   { return "size" }

func (s *size) Set(text string) error {
	n, err := perf.ParseSize(text)
	if err != nil {
		return errors.New("accepted: a number of bytes with an optional K, M or G")
	}
	*s = size(n)
	return nil
}

// mostRanks keeps a slip of the finger from being a fork bomb.
const mostRanks = 256

// Validate reports the first mistake.
func (o *Options) Validate() error {
	for _, c := range o.Collectives {
		if !slices.Contains(Collectives(), c) {
			return usagef("unknown collective %q; accepted: %s", c, strings.Join(Collectives(), ", "))
		}
	}
	for name, numbers := range map[string][]int{"-g": o.Goroutines, "-n": o.Processes} {
		for _, n := range numbers {
			if n != 0 && n < 2 || n > mostRanks {
				return usagef("%s %d; accepted: 2 to %d, or 0 for none", name, n, mostRanks)
			}
		}
	}
	for _, t := range o.Transports {
		if t != "shm" && t != "tcp" {
			return usagef("--transport %s; accepted: shm, tcp", t)
		}
	}
	for _, n := range o.Channels {
		if n < 0 || n > 64 {
			return usagef("--channels %d; accepted: 0 to 64", n)
		}
	}
	switch {
	case o.MinBytes < 4 || o.MaxBytes > 1<<30:
		return usagef("-b %d -e %d; accepted: 4 to 1G", o.MinBytes, o.MaxBytes)
	case o.MinBytes > o.MaxBytes:
		return usagef("-b %d is more than -e %d; accepted: a first size up to the last", o.MinBytes, o.MaxBytes)
	case o.StepFactor < 2:
		return usagef("-f %d; accepted: 2 and more", o.StepFactor)
	case o.Rounds < 1 || o.Rounds > 1000:
		return usagef("--rounds %d; accepted: 1 to 1000", o.Rounds)
	case o.Budget <= 0:
		return usagef("--budget %v; accepted: a time such as 2m", o.Budget)
	case len(o.Channels) == 0:
		return usagef("no --channels; accepted: 0 to 64")
	case len(o.placements()) == 0:
		return usagef("no ranks; accepted: -g or -n from 2 on")
	}
	return nil
}

// sizes are those between the bounds.
func (o *Options) sizes() []int {
	var all []int
	for s := o.MinBytes; ; s *= o.StepFactor {
		all = append(all, s)
		if s > o.MaxBytes/o.StepFactor {
			return all
		}
	}
}

// Placement is where ranks live, and how they are connected.
type Placement struct {
	Transport string // inproc, shm or tcp
	Ranks     int
}

func (p Placement) String() string {
	if p.Transport == "inproc" {
		return fmt.Sprintf("%d goroutine ranks", p.Ranks)
	}
	return fmt.Sprintf("%d processes over %s", p.Ranks, p.Transport)
}

func (o *Options) placements() []Placement {
	var all []Placement
	for _, n := range o.Goroutines {
		if n > 0 {
			all = append(all, Placement{"inproc", n})
		}
	}
	for _, t := range o.Transports {
		for _, n := range o.Processes {
			if n > 0 {
				all = append(all, Placement{t, n})
			}
		}
	}
	return all
}

// Variables are those of the environment that must not be set: they would decide
// what is to be found out.
func Variables() []string {
	return []string{
		"GOLLECTIVE_ALGO", "GOLLECTIVE_PROTO", "GOLLECTIVE_TUNER_FILE", "GOLLECTIVE_REPRODUCIBLE",
		"GOLLECTIVE_TRANSPORT", "GOLLECTIVE_MIN_NCHANNELS", "GOLLECTIVE_MAX_NCHANNELS",
	}
}

// config is that of a communicator of a placement.
func (p Placement) config() collective.Config {
	return collective.Config{Transport: p.Transport, Logger: quiet}
}
