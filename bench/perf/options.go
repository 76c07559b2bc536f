package perf

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
)

// Options is a run of the tool. [DefaultOptions] gives nccl-tests' defaults;
// [Options.AddFlags] names and explains each field.
type Options struct {
	Collective string // one of Collectives
	Args       []string
	Version    string // of the tool, for the header and the JSON file

	Threads, Devices              int // ranks = Threads * Devices
	MinBytes, MaxBytes, StepBytes int
	StepFactor                    int // 0 or 1: StepBytes counts
	Iters, Aggregate, Warmup      int
	Cycles                        int // 0 = for ever
	ParallelInit                  int
	Check                         int
	Op, Type                      string // a name, or "all"
	Root                          int    // AllRoots = each in turn
	Blocking                      int
	TimeoutSeconds                int
	CPUTime, Timestamps           int
	JSON                          string
	Average                       int
	Memory                        int
	Unalign                       int
	PerIter, PerIterSkip          int

	Algorithm    plan.Algorithm
	Protocol     plan.Protocol
	Channels     int // 0 = as the library chooses
	Wait         spin.Policy
	RanksPerNode int
	Transport    string
	Proxy        string
}

// AllRoots is the Root that stands for every rank in turn.
const AllRoots = -1

// DefaultOptions are nccl-tests' defaults: one rank, 32 MiB, 20 iterations,
// results checked once.
func DefaultOptions() Options {
	return Options{
		Threads: 1, Devices: 1,
		MinBytes: 32 << 20, MaxBytes: 32 << 20, StepBytes: 1 << 20,
		Iters: 20, Aggregate: 1, Warmup: 1, Cycles: 1, Check: 1,
		Op: "sum", Type: "float", Average: averageMean,
		Transport: "auto", Proxy: "auto",
	}
}

// UsageError is a mistake in the options: nothing has run.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// AddFlags defines the flags of nccl-tests, with its names and meanings, and this
// project's own. Current values are the defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.VarP(integer(&o.Threads, 1, 1<<20), "nthreads", "t", "groups of ranks; the number of ranks is -t times -g")
	fs.VarP(integer(&o.Devices, 1, 1<<20), "ngpus", "g", "goroutine ranks of a group")
	fs.VarP((*sizeValue)(&o.MinBytes), "minbytes", "b", "first size in bytes (K, M, G: binary units)")
	fs.VarP((*sizeValue)(&o.MaxBytes), "maxbytes", "e", "last size in bytes")
	fs.VarP((*sizeValue)(&o.StepBytes), "stepbytes", "i", "bytes between sizes, where -f is not used")
	fs.VarP(integer(&o.StepFactor, 0, 1<<30), "stepfactor", "f", "factor between sizes, from 2 on")
	fs.VarP(integer(&o.Iters, 1, 1<<30), "iters", "n", "timed iterations")
	fs.VarP(integer(&o.Aggregate, 1, 1<<20), "agg_iters", "m", "operations of an iteration, launched as one group")
	fs.VarP(integer(&o.Warmup, 0, 1<<30), "warmup_iters", "w", "untimed iterations of each size, before the table")
	fs.VarP(integer(&o.Cycles, 0, 1<<30), "run_cycles", "N", "how often all sizes are run; 0 = until interrupted")
	fs.VarP(integer(&o.ParallelInit, 0, 1), "parallel_init", "p", "initialise in parallel (goroutine ranks always are)")
	fs.VarP(integer(&o.Check, 0, 1<<20), "check", "c", "iterations whose results are verified; 0 = none")
	o.addCallFlags(fs)
	fs.VarP(integer(&o.Blocking, 0, 3), "blocking", "z", "0 = operations back to back; 1 = asynchronous, wait and barrier after each; 2 = wait only; 3 = wait and barrier after each iteration, the barrier not timed")
	fs.VarP(integer(&o.TimeoutSeconds, 0, 1<<30), "timeout", "T", "seconds after which a measurement is given up; 0 = never")
	fs.VarP(integer(&o.CPUTime, 0, 1), "report_cputime", "C", "1 = report the process's processor time per operation instead of the time, and after the table that of each role (block, proxy, helper) with its useful share")
	fs.VarP(integer(&o.Timestamps, 0, 1), "report_timestamps", "S", "1 = add a column with the time of day")
	fs.StringVarP(&o.JSON, "output_file", "J", o.JSON, "write a JSON report to this file")
	fs.VarP(integer(&o.Average, 0, 3), "average", "a", "the time of an operation is 0 = rank 0's, 1 = the ranks' average, 2 = their minimum, 3 = their maximum")
	fs.VarP(integer(&o.Memory, 0, 1), "memory", "M", "1 = add a line with the memory used")
	fs.VarP(integer(&o.Unalign, 0, 1<<20), "unalign", "u", "elements by which buffers are moved off their alignment")
	fs.VarP(integer(&o.PerIter, 0, 1), "per_iter_timing", "I", "1 = add columns with statistics over the iterations")
	fs.VarP(integer(&o.PerIterSkip, 0, 1<<30), "per_iter_skip", "K", "leading iterations that -I leaves out")
	for _, g := range gpuOnly {
		fs.VarP(&fixedValue{g}, g.name, g.short, "only "+g.accepted+": "+g.why)
	}

	o.addChoiceFlags(fs)
	fs.Var(oneOf(&o.Wait, policies), "wait", "how ranks wait: "+listed(policies))
	fs.Var(choice(&o.Transport, "auto", "inproc", "shm", "tcp"), "transport", "how ranks are connected: auto, inproc (one process), shm (processes of one host) or tcp")
	fs.Var(choice(&o.Proxy, "auto", "thread", "inline"), "proxy", "who moves bytes between FIFOs and sockets: thread, inline (blocks that wait) or auto")
}

// AddPlanFlags defines the flags that decide what one call looks like: element
// type, operator, root and the forced choices.
func (o *Options) AddPlanFlags(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.VarP((*sizeValue)(&o.MinBytes), "bytes", "b", "size of the call in bytes (K, M, G: binary units), as perf's -b")
	o.addCallFlags(fs)
	o.addChoiceFlags(fs)
}

func (o *Options) addCallFlags(fs *pflag.FlagSet) {
	fs.VarP(choice(&o.Op, "sum", "prod", "max", "min", "avg", "mulsum", "all"), "op", "o", "reduction: sum, prod, max, min, avg, mulsum or all")
	fs.VarP(choice(&o.Type, append(typeNames(), "all")...), "datatype", "d", "element type: "+strings.Join(typeNames(), ", ")+" or all")
	fs.VarP((*rootValue)(&o.Root), "root", "r", "root rank; -1 or all = each in turn")
}

func (o *Options) addChoiceFlags(fs *pflag.FlagSet) {
	fs.Var(oneOf(&o.Algorithm, algorithms), "algo", "algorithm: "+listed(algorithms))
	fs.Var(oneOf(&o.Protocol, protocols), "proto", "protocol: "+listed(protocols))
	fs.Var(integer(&o.Channels, 0, 64), "channels", "channels of every operation; 0 = as the library chooses")
	fs.Var(integer(&o.RanksPerNode, 0, 1<<20), "ranks-per-node", "ranks of a virtual node; 0 = all ranks are on one node")
}

// Config is what the options ask of the library.
func (o *Options) Config() collective.Config {
	return collective.Config{
		Algorithm: o.Algorithm, Protocol: o.Protocol, Channels: o.Channels,
		RanksPerNode: o.RanksPerNode, Wait: o.Wait, Transport: o.Transport, Proxy: o.Proxy,
		Accounting: o.CPUTime != 0,
	}
}

// gpuFlag is a flag of nccl-tests that has no meaning without a GPU.
type gpuFlag struct{ name, short, accepted, why string }

var gpuOnly = []gpuFlag{
	{"stream_null", "y", "0", "there are no CUDA streams here"},
	{"cudagraph", "G", "0", "there are no CUDA graphs here"},
	{"local_register", "R", "0", "goroutine ranks need no registration of buffers"},
	{"cta_policy", "x", "unset", "there are no CTAs here; see --channels"},
	{"device_implementation", "D", "0", "there are no device-side implementations here"},
	{"device_cta_count", "V", "16", "there are no device-side implementations here"},
}

// Validate reports the first rule that the options of a run of one process break
// together; each flag by itself was checked when it was set.
func (o *Options) Validate() error {
	if err := o.validate(); err != nil {
		return err
	}
	return o.validateFor(o.Ranks())
}

// validateFor is the part of Validate that depends on the number of ranks.
func (o *Options) validateFor(ranks int) error {
	switch {
	case o.Root >= ranks:
		return usagef("-r %d is not a rank; accepted: 0 to %d, or all", o.Root, ranks-1)
	case o.MaxBytes > maxTotal/(4*ranks):
		return usagef("-e %d is too much for %d ranks; accepted: up to %d", o.MaxBytes, ranks, maxTotal/(4*ranks))
	}
	return nil
}

// validate is the part that does not.
func (o *Options) validate() error {
	switch {
	case testNamed(o.Collective) == nil:
		return usagef("unknown collective %q; accepted: %s", o.Collective, strings.Join(Collectives(), ", "))
	case o.MinBytes > o.MaxBytes:
		return usagef("-b %d is more than -e %d; accepted: a first size up to the last", o.MinBytes, o.MaxBytes)
	case o.StepFactor > 1 && o.MinBytes == 0:
		return usagef("-b 0 cannot be multiplied by -f %d; accepted: -b from 1 on, or -f 1", o.StepFactor)
	case o.StepFactor <= 1 && o.StepBytes == 0:
		return usagef("-i 0 makes no progress; accepted: -i from 1 on, or -f from 2 on")
	case o.PerIter != 0 && o.PerIterSkip >= o.Iters:
		return usagef("-K %d leaves none of the -n %d iterations; accepted: 0 to %d", o.PerIterSkip, o.Iters, o.Iters-1)
	}
	if _, ok := CPUTime(); o.CPUTime != 0 && !ok {
		return usagef("-C 1: this platform does not tell the processor time of a process; accepted: 0")
	}
	_, err := minimumBandwidth(os.LookupEnv)
	return err
}

// maxTotal keeps sums of buffer sizes far from overflow.
const maxTotal = 1 << 50

// Ranks is the number of ranks of a process: of all, unless a launcher has started
// several.
func (o *Options) Ranks() int { return o.Threads * o.Devices }

// ops are the operators to run, a single placeholder for a collective without.
func (o *Options) ops() []reduce.Op {
	if o.Op != "all" {
		op, err := reduce.ParseOp(o.Op)
		if err != nil {
			panic("perf: " + o.Op + " passed for an operator") // AddFlags accepts no other
		}
		return []reduce.Op{op}
	}
	return []reduce.Op{reduce.Sum, reduce.Prod, reduce.Max, reduce.Min, reduce.Avg, reduce.PreMulSum}
}

func (o *Options) types() []dtype.Type {
	if o.Type == "all" {
		return dtype.All()
	}
	t, err := dtype.Parse(o.Type)
	if err != nil {
		panic("perf: " + o.Type + " passed for an element type")
	}
	return []dtype.Type{t}
}

func typeNames() []string {
	var names []string
	for _, t := range dtype.All() {
		names = append(names, t.String())
	}
	return names
}

// minimumBandwidthVar is NCCL_TESTS_MIN_BW under this project's name: the average
// busbw in GB/s that a run must reach, less a tenth.
const minimumBandwidthVar = "GOLLECTIVE_TESTS_MIN_BW"

func minimumBandwidth(lookup func(string) (string, bool)) (float64, error) {
	value, ok := lookup(minimumBandwidthVar)
	if !ok || value == "" {
		return 0, nil
	}
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || !(x > 0) {
		return 0, usagef("%s=%s is not a bandwidth; accepted: a positive number of GB/s", minimumBandwidthVar, value)
	}
	return x, nil
}

// alltoallvSpreadVar is NCCL_TESTS_ALLTOALLV_SPREAD under this project's name: how
// unevenly alltoallv is spread, from 0 (evenly) to 1 (by distance), the default.
const alltoallvSpreadVar = "GOLLECTIVE_TESTS_ALLTOALLV_SPREAD"

func alltoallvSpread(lookup func(string) (string, bool)) (float64, error) {
	value, ok := lookup(alltoallvSpreadVar)
	if !ok || value == "" {
		return 1, nil
	}
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || !(x >= 0 && x <= 1) {
		return 0, usagef("%s=%s is not a spread; accepted: 0 to 1", alltoallvSpreadVar, value)
	}
	return x, nil
}

// integerValue is a flag that takes an integer of any base, as C writes it.
type integerValue struct {
	target  *int
	low, up int
}

func integer(target *int, low, up int) *integerValue { return &integerValue{target, low, up} }

func (v *integerValue) String() string { return strconv.Itoa(*v.target) }
func (v *integerValue) Type() string   { return "int" }

func (v *integerValue) Set(text string) error {
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil || n < int64(v.low) || n > int64(v.up) {
		return fmt.Errorf("accepted: an integer from %d to %d", v.low, v.up)
	}
	*v.target = int(n)
	return nil
}

type sizeValue int

func (v *sizeValue) String() string { return strconv.Itoa(int(*v)) }
func (v *sizeValue) Type() string   { return "size" }

func (v *sizeValue) Set(text string) error {
	n, err := ParseSize(text)
	if err != nil {
		return fmt.Errorf("accepted: a number of bytes with an optional K, M or G")
	}
	*v = sizeValue(n)
	return nil
}

type rootValue int

func (v *rootValue) String() string { return strconv.Itoa(int(*v)) }
func (v *rootValue) Type() string   { return "rank" }

func (v *rootValue) Set(text string) error {
	if text == "all" {
		*v = AllRoots
		return nil
	}
	n, err := strconv.ParseInt(text, 0, 32)
	if err != nil || n < AllRoots {
		return fmt.Errorf("accepted: a rank, or -1 or all for each in turn")
	}
	*v = rootValue(n)
	return nil
}

// choiceValue is a flag that takes one of some words.
type choiceValue struct {
	target   *string
	accepted []string
}

func choice(target *string, accepted ...string) *choiceValue { return &choiceValue{target, accepted} }

func (v *choiceValue) String() string { return *v.target }
func (v *choiceValue) Type() string   { return "name" }

func (v *choiceValue) Set(text string) error {
	if !slices.Contains(v.accepted, text) {
		return fmt.Errorf("accepted: %s", strings.Join(v.accepted, ", "))
	}
	*v.target = text
	return nil
}

// fixedValue is a flag that takes its default only.
type fixedValue struct{ gpuFlag }

func (v *fixedValue) String() string { return v.accepted }
func (v *fixedValue) Type() string   { return "int" }

func (v *fixedValue) Set(text string) error {
	if text != v.accepted {
		return fmt.Errorf("%s; accepted: %s", v.why, v.accepted)
	}
	return nil
}

// forceable are the values of a forced choice, in the order in which they are
// told. The names are those of their String methods.
var (
	algorithms = plan.Algorithms()
	protocols  = []plan.Protocol{plan.AutoProtocol, plan.Simple, plan.LL, plan.LL128, plan.Direct}
	policies   = []spin.Policy{spin.Spin, spin.Yield, spin.Adaptive, spin.Block}
)

type name interface {
	comparable
	fmt.Stringer
}

// namedValue is a flag that takes the name of one of some values.
type namedValue[T name] struct {
	target *T
	all    []T
}

func oneOf[T name](target *T, all []T) *namedValue[T] { return &namedValue[T]{target, all} }

func (v *namedValue[T]) String() string { return (*v.target).String() }
func (v *namedValue[T]) Type() string   { return "name" }

func (v *namedValue[T]) Set(text string) error {
	for _, x := range v.all {
		if strings.EqualFold(x.String(), text) {
			*v.target = x
			return nil
		}
	}
	return fmt.Errorf("accepted: %s", listed(v.all))
}

func listed[T name](all []T) string {
	var names []string
	for _, x := range all {
		names = append(names, x.String())
	}
	return strings.Join(names, ", ")
}
