package load

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gollective/gollective/bench/perf"
	"github.com/gollective/gollective/internal/spin"
)

// Options is a run of the tool. [DefaultOptions] gives the defaults;
// [Options.AddFlags] names and explains each field.
type Options struct {
	Version string // of the tool, for the JSON report

	Ranks, Channels   int
	Policies, Proxies []string
	Duration          time.Duration // of a phase
	Late              int           // events
	Quick             bool
	Rate              int // of the slow network in bytes per second; 0 = none
	Chart, JSON       string
}

// Accepted values.
const (
	mostRanks    = 64
	mostChannels = 64
	shortest     = 10 * time.Millisecond
	longest      = time.Hour
	mostRate     = 1 << 40
)

// drivers of the proxy, in the order of the table.
var drivers = []string{"thread", "inline"}

// policies in the order of the table: from the busiest to the laziest.
func policies() []string {
	var names []string
	for _, p := range []spin.Policy{spin.Spin, spin.Yield, spin.Adaptive, spin.Block} {
		names = append(names, p.String())
	}
	return names
}

// DefaultOptions are two ranks, every policy and driver, a second for each phase.
func DefaultOptions() Options {
	return Options{
		Ranks: 2, Channels: 1,
		Policies: policies(), Proxies: slices.Clone(drivers),
		Duration: time.Second, Late: 10,
		Rate: 50e6,
	}
}

// What --quick takes the place of.
const (
	quickDuration = 200 * time.Millisecond
	quickLate     = 3
)

// UsageError is a mistake in the options: nothing has run.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// AddFlags defines the flags. Current values are the defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.VarP(integer(&o.Ranks, 2, mostRanks), "ranks", "n", "rank processes")
	fs.Var(&listValue{&o.Policies, policies()}, "policies", "wait policies to measure, a list of: "+strings.Join(policies(), ", "))
	fs.Var(&listValue{&o.Proxies, drivers}, "proxies", "proxy drivers to measure, a list of: "+strings.Join(drivers, ", "))
	fs.Var(integer(&o.Channels, 1, mostChannels), "channels", "channels, and so blocks of a rank")
	fs.Var((*durationValue)(&o.Duration), "duration", "how long each phase of each case takes")
	fs.Var(integer(&o.Late, 1, 1<<20), "late-events", "how often the last rank is late")
	fs.BoolVar(&o.Quick, "quick", false, fmt.Sprintf("--duration %v --late-events %d, where these are not given: for a look, or a smoke test", quickDuration, quickLate))
	fs.Var((*rateValue)(&o.Rate), "rate", "what a connection of the slow network sends in bytes per second (K, M, G: binary units); 0 = leave it out")
	fs.StringVarP(&o.Chart, "output", "o", o.Chart, "write a bar chart to this file, .svg or .png")
	fs.StringVarP(&o.JSON, "output_file", "J", o.JSON, "write a JSON report to this file")
}

// Settle fills in what flags say about one another, once they have been parsed.
func (o *Options) Settle(changed func(flag string) bool) {
	if !o.Quick {
		return
	}
	if !changed("duration") {
		o.Duration = quickDuration
	}
	if !changed("late-events") {
		o.Late = quickLate
	}
}

// validate reports what is wrong with the options together; each flag by itself was
// checked when it was set.
func (o *Options) validate() error {
	if o.Chart != "" && !slices.Contains(chartFormats, strings.ToLower(filepath.Ext(o.Chart))) {
		return usagef("-o %s; accepted: names that end in %s", o.Chart, strings.Join(chartFormats, " or "))
	}
	return nil
}

// cases are those of the table, and after them those of the slow network.
func (o *Options) cases() []Case {
	base := Case{Ranks: o.Ranks, Channels: o.Channels, Duration: o.Duration, Late: o.Late}
	var table, slow []Case
	for _, p := range o.Policies {
		for _, d := range o.Proxies {
			c := base
			c.Wait, c.Proxy = p, d
			table = append(table, c)
			if p == spin.Spin.String() && o.Rate > 0 {
				c.Rate = o.Rate
				slow = append(slow, c)
			}
		}
	}
	return append(table, slow...)
}

// integerValue is a flag that takes an integer between two others.
type integerValue struct {
	target  *int
	low, up int
}

func integer(target *int, low, up int) *integerValue { return &integerValue{target, low, up} }

func (v *integerValue) String() string { return fmt.Sprint(*v.target) }
func (v *integerValue) Type() string   { return "int" }

func (v *integerValue) Set(text string) error {
	var n int
	if _, err := fmt.Sscanf(text+"\n", "%d\n", &n); err != nil || n < v.low || n > v.up {
		return fmt.Errorf("accepted: an integer from %d to %d", v.low, v.up)
	}
	*v.target = n
	return nil
}

// listValue is a flag that takes some of several words, each once.
type listValue struct {
	target   *[]string
	accepted []string
}

func (v *listValue) String() string { return strings.Join(*v.target, ",") }
func (v *listValue) Type() string   { return "list" }

func (v *listValue) Set(text string) error {
	var list []string
	for _, word := range strings.Split(text, ",") {
		word = strings.TrimSpace(word)
		if !slices.Contains(v.accepted, word) || slices.Contains(list, word) {
			return fmt.Errorf("accepted: some of %s, separated by commas", strings.Join(v.accepted, ","))
		}
		list = append(list, word)
	}
	*v.target = list
	return nil
}

type durationValue time.Duration

func (v *durationValue) String() string { return time.Duration(*v).String() }
func (v *durationValue) Type() string   { return "duration" }

func (v *durationValue) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < shortest || d > longest {
		return fmt.Errorf("accepted: a duration from %v to %v, such as 500ms", shortest, longest)
	}
	*v = durationValue(d)
	return nil
}

type rateValue int

func (v *rateValue) String() string { return fmt.Sprint(int(*v)) }
func (v *rateValue) Type() string   { return "bytes/s" }

func (v *rateValue) Set(text string) error {
	n, err := perf.ParseSize(text)
	if err != nil || n > mostRate {
		return fmt.Errorf("accepted: a number of bytes with an optional K, M or G, or 0")
	}
	*v = rateValue(n)
	return nil
}
