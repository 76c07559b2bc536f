package perf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// document is the JSON report, version 3 of nccl-tests' (src/util.cu). Its
// peculiarities are kept for the programs that read it: booleans and NaN are
// strings, numbers have six decimals, "/" is escaped, strings end before their
// first character that is not printable ASCII.
type document struct {
	Version   int        `json:"version"`
	StartTime text       `json:"start_time"`
	Args      []text     `json:"args"`
	Env       []text     `json:"env"`
	Library   int        `json:"nccl_version"`
	Config    jsonConfig `json:"config"`
	Results   []any      `json:"results"`
	Bounds    struct {
		Count int  `json:"count"`
		Okay  flag `json:"okay"`
	} `json:"out_of_bounds"`
	Bandwidth struct {
		Bandwidth double `json:"bandwidth"`
		Okay      text   `json:"okay"`
	} `json:"average_bus_bandwidth"`
	Errors  []text `json:"errors"`
	EndTime text   `json:"end_time"`
}

type jsonConfig struct {
	Threads     int          `json:"nthreads"`
	Devices     int          `json:"ngpus"`
	MinBytes    int          `json:"minimum_bytes"`
	MaxBytes    int          `json:"maximum_bytes"`
	StepFactor  int          `json:"step_factor,omitempty"`
	StepBytes   int          `json:"step_bytes,omitempty"`
	Warmup      int          `json:"warmup_iters"`
	Iterations  int          `json:"iterations"`
	Aggregated  int          `json:"aggregated_iterations"`
	Validation  int          `json:"validation"`
	Graph       int          `json:"graph"`
	Blocking    flag         `json:"blocking_collectives"`
	PerIter     flag         `json:"per_iter_timing"`
	PerIterSkip int          `json:"per_iter_skip"`
	Parallel    flag         `json:"parallel_init"`
	Ranks       []jsonDevice `json:"devices"`
}

type jsonDevice struct {
	Rank   int  `json:"rank"`
	Group  int  `json:"group"`
	Pid    int  `json:"pid"`
	Host   text `json:"hostname"`
	Device int  `json:"device"`
	Hex    text `json:"device_hex"`
	Info   text `json:"device_info"`
}

type jsonRow struct {
	Size  int  `json:"size"`
	Count int  `json:"count"`
	Type  text `json:"type"`
	Op    text `json:"redop"`
	Root  text `json:"root"`
	// any, because the time's name depends on -C and a half that was not
	// measured is null.
	Apart      any       `json:"out_of_place"`
	ApartIters *jsonIter `json:"out_of_place_per_iter,omitempty"`
	In         any       `json:"in_place"`
	InIters    *jsonIter `json:"in_place_per_iter,omitempty"`
	// Not nccl-tests', with -C.
	ApartRoles []jsonRole `json:"out_of_place_roles,omitempty"`
	InRoles    []jsonRole `json:"in_place_roles,omitempty"`
	Iterations int        `json:"actual_iterations"`
	Experiment text       `json:"experiment_name"`
}

type jsonHalf struct {
	Time  double  `json:"time"`
	Algbw double  `json:"alg_bw"`
	Busbw double  `json:"bus_bw"`
	Wrong *double `json:"nwrong"`
}

type jsonCPUHalf struct {
	Time  double  `json:"cpu_time"`
	Algbw double  `json:"alg_bw"`
	Busbw double  `json:"bus_bw"`
	Wrong *double `json:"nwrong"`
}

type jsonIter struct {
	Skipped int      `json:"skipped_iterations"`
	Min     double   `json:"min_us"`
	Max     double   `json:"max_us"`
	Avg     double   `json:"avg_us"`
	P50     double   `json:"p50_us"`
	P95     double   `json:"p95_us"`
	P99     double   `json:"p99_us"`
	Stdev   double   `json:"stdev_us"`
	CV      double   `json:"cv_pct"`
	Times   []double `json:"times_us"`
}

// double is a number with six decimals.
type double float64

func (d double) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(d)) || math.IsInf(float64(d), 0) {
		return []byte(`"` + cFloat(float64(d)) + `"`), nil
	}
	return strconv.AppendFloat(nil, float64(d), 'f', 6, 64), nil
}

// flag is a boolean as the string "true" or "false".
type flag bool

func (f flag) MarshalJSON() ([]byte, error) {
	return []byte(strconv.Quote(strconv.FormatBool(bool(f)))), nil
}

// text is a string of printable ASCII, tabs and newlines.
type text string

func (t text) MarshalJSON() ([]byte, error) {
	out := []byte{'"'}
	for i := range len(t) {
		switch c := t[i]; {
		case c == '\n':
			out = append(out, '\\', 'n')
		case c == '\t':
			out = append(out, '\\', 't')
		case c == '"' || c == '\\' || c == '/':
			out = append(out, '\\', c)
		case c < 0x20 || c >= 0x7f:
			return append(out, '"'), nil
		default:
			out = append(out, c)
		}
	}
	return append(out, '"'), nil
}

func texts(in []string) []text {
	out := make([]text, len(in))
	for i, s := range in {
		out[i] = text(s)
	}
	return out
}

// relevant are the variables that can change what a run measures. nccl-tests writes
// the whole environment; reports are passed on, and what else is in an environment
// is nobody's business.
func relevant(environ []string) []string {
	return slices.DeleteFunc(environ, func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		return !strings.HasPrefix(name, "GOLLECTIVE_") &&
			!slices.Contains([]string{"GOMAXPROCS", "GOGC", "GOMEMLIMIT", "GODEBUG"}, name)
	})
}

// report collects the document of a run and writes it to a file of its own.
type report struct {
	doc     document
	file    *os.File
	cpuTime bool
}

// openReport creates the file: path, or path.0, path.1 and so on where that exists
// already. Nothing is ever overwritten.
func openReport(path string) (*report, error) {
	name := path
	for try := 0; ; try++ {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err == nil {
			return &report{file: f}, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		name = fmt.Sprintf("%s.%d", path, try)
	}
}

func (r *report) begin(o *Options, devices []jsonDevice) {
	if r == nil {
		return
	}
	r.cpuTime = o.CPUTime != 0
	r.doc = document{
		Version:   3,
		StartTime: now(),
		Args:      texts(o.Args),
		Env:       texts(relevant(os.Environ())),
		Library:   versionCode(o.Version),
		Results:   []any{},
		Errors:    []text{},
		Config: jsonConfig{
			Threads: o.Threads, Devices: o.Devices,
			MinBytes: o.MinBytes, MaxBytes: o.MaxBytes,
			Warmup: o.Warmup, Iterations: o.Iters, Aggregated: o.Aggregate,
			Validation: o.Check, Blocking: o.Blocking != 0,
			PerIter: o.PerIter != 0, PerIterSkip: o.PerIterSkip,
			Parallel: o.ParallelInit != 0, Ranks: devices,
		},
	}
	if o.StepFactor > 1 {
		r.doc.Config.StepFactor = o.StepFactor
	} else {
		r.doc.Config.StepBytes = o.StepBytes
	}
}

func (r *report) row(w row) {
	if r == nil {
		return
	}
	r.doc.Results = append(r.doc.Results, jsonRow{
		Size: w.bytes, Count: w.count, Type: text(w.typ), Op: text(w.op),
		Root:  text(fmt.Sprintf("%6d", w.root)),
		Apart: r.half(w.apart), ApartIters: perIterJSON(w.apart),
		In: r.half(w.in), InIters: perIterJSON(w.in),
		ApartRoles: w.apart.costs.json(), InRoles: w.in.costs.json(),
		Iterations: w.iters,
	})
}

func (r *report) half(h half) any {
	if !h.made {
		return nil
	}
	out := jsonHalf{Time: double(h.micros), Algbw: double(h.algbw), Busbw: double(h.busbw)}
	if h.checked {
		wrong := double(h.wrong)
		out.Wrong = &wrong
	}
	if r.cpuTime {
		return jsonCPUHalf(out)
	}
	return out
}

func perIterJSON(h half) *jsonIter {
	if h.perIter == nil {
		return nil
	}
	s := newIterStats(h.perIter)
	out := &jsonIter{
		Skipped: h.skipped,
		Min:     double(s.min), Max: double(s.max), Avg: double(s.avg),
		P50: double(s.p50), P95: double(s.p95), P99: double(s.p99),
		Stdev: double(s.stdev), CV: double(s.variation()),
	}
	for _, t := range h.perIter {
		out.Times = append(out.Times, double(t))
	}
	return out
}

// finish writes the document and closes the file.
func (r *report) finish(v verdict) error {
	if r == nil {
		return nil
	}
	r.doc.Bounds.Count, r.doc.Bounds.Okay = v.wrong, v.wrong == 0
	r.doc.Bandwidth.Bandwidth = double(v.busbw)
	r.doc.Bandwidth.Okay = "unchecked"
	if v.minimum != 0 {
		r.doc.Bandwidth.Okay = text(strconv.FormatBool(v.fastEnough()))
	}
	if v.failure != nil {
		r.doc.Errors = append(r.doc.Errors, text(oneLine(v.failure)))
	}
	r.doc.EndTime = now()
	err := r.doc.write(r.file)
	return errors.Join(err, r.file.Close())
}

func (d *document) write(w io.Writer) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		return err
	}
	_, err := w.Write(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	return err
}

func now() text { return text(time.Now().Format(timeLayout)) }

// versionCode is a version in NCCL's coding: 10000·major + 100·minor + patch.
func versionCode(version string) int {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "v%d.%d.%d", &major, &minor, &patch); err != nil {
		return 0
	}
	return 10000*major + 100*minor + patch
}
