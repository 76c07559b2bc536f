package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// ErrFailed is the error of a run that came to its end with wrong results, or with
// less bandwidth than was asked for. The table says which.
var ErrFailed = errors.New("the run failed its checks")

// Run runs o. The table goes to out, notes and the progress bar to errs. It
// returns a *UsageError before anything has run, ErrFailed, or what ended the run
// early.
func Run(ctx context.Context, o Options, out, errs io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	r, err := newRun(ctx, &o, out, errs)
	if err != nil {
		return err
	}
	defer r.close()
	stop := context.AfterFunc(ctx, r.abort)
	defer stop()
	if err := r.preamble(ctx); err != nil {
		return err
	}
	r.table.header()
	err = r.sweepAll(ctx)
	if ctx.Err() != nil {
		err = r.interrupted()
	}
	return r.conclude(err)
}

// run is a run of the tool.
type run struct {
	*Options
	test      *test
	out, errs io.Writer
	table     *table
	report    *report
	bar       *bar
	comms     []*collective.Comm // of this process's ranks
	mem       []memory           // of this process's ranks
	first     int                // the first of them
	ranks     int                // of all processes
	spread    float64
	minimum   float64
	uses      []memoryUse // of memory, for -M
	allocated int         // resident memory when the buffers existed
	cycle     int         // of -N
	checks    uint64      // checks so far: each has its own data
	choices   choices
	costs     costTable
	noted     map[string]bool
	wrong     int
	busbws    float64
	halves    int
	tamper    func(rank int, recv []byte) // tests put errors into results here
}

func newRun(ctx context.Context, o *Options, out, errs io.Writer) (*run, error) {
	spread, err := alltoallvSpread(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	minimum, err := minimumBandwidth(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	r := &run{
		Options: o, test: testNamed(o.Collective), out: out, errs: errs,
		spread: spread, minimum: minimum, noted: make(map[string]bool),
		table: &table{w: out, cpuTime: o.CPUTime != 0, timestamps: o.Timestamps != 0, perIter: o.PerIter != 0},
	}
	before := resident()
	if err := r.join(ctx); err != nil {
		r.close()
		return nil, err
	}
	r.uses = append(r.uses, memoryUse{"Initialization", max(0, resident()-before)})
	r.allocate()
	r.openReport()
	r.bar = newBar(r.errs, r.rows())
	if o.ParallelInit != 0 {
		r.note("goroutine ranks are initialised together; -p 1 changes nothing")
	}
	return r, nil
}

// openReport opens the JSON file, if one is asked for; a run is not given up
// because it can't be written.
func (r *run) openReport() {
	if r.JSON == "" {
		return
	}
	var err error
	if r.report, err = openReport(r.JSON); err != nil {
		fmt.Fprintf(r.out, "# skipping json output; %s not accessible\n", r.JSON)
		r.note("no JSON report: %v", err)
		return
	}
	fmt.Fprintf(r.out, "# Writing JSON output to %s\n", r.report.file.Name())
}

// allocate makes the ranks' buffers, each by its own goroutine: the first write
// decides on which node of the machine a page lies.
func (r *run) allocate() {
	before := resident()
	size := r.MaxBytes + 8 // the largest element
	margin := r.Unalign * 8
	r.mem = make([]memory, r.Ranks())
	var ranks sync.WaitGroup
	for local := range r.mem {
		ranks.Go(func() {
			buffer := func() []byte {
				b := make([]byte, size+margin)
				for i := 0; i < len(b); i += 4096 {
					b[i] = 1
				}
				return b
			}
			r.mem[local] = memory{buffer(), buffer()}
		})
	}
	ranks.Wait()
	r.allocated = resident()
	r.uses = append(r.uses, memoryUse{"User-Allocated", max(0, r.allocated-before)})
}

func (r *run) close() {
	for _, c := range r.comms {
		c.Close()
	}
}

func (r *run) abort() {
	for _, c := range r.comms {
		c.Abort()
	}
}

// note tells the user something once, beside the table.
func (r *run) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if r.noted[text] {
		return
	}
	r.noted[text] = true
	r.bar.clear()
	fmt.Fprintf(r.errs, "gollective perf: note: %s\n", text)
}

// preamble prints what is run and on what.
func (r *run) preamble(ctx context.Context) error {
	o := r.Options
	fmt.Fprintf(r.out, "# gollective version %s\n", o.Version)
	fmt.Fprintf(r.out, "# Collective test starting: %s\n", program(o.Collective))
	step, kind := o.StepBytes, "bytes"
	if o.StepFactor > 1 {
		step, kind = o.StepFactor, "factor"
	}
	fmt.Fprintf(r.out, "# nThread %d nGpus %d minBytes %d maxBytes %d step: %d(%s) warmup iters: %d iters: %d agg iters: %d validation: %d graph: 0 unalign: %d\n",
		o.Threads, o.Devices, o.MinBytes, o.MaxBytes, step, kind, o.Warmup, o.Iters, o.Aggregate, o.Check, o.Unalign)
	switch o.Blocking {
	case 1:
		fmt.Fprintln(r.out, "# Blocking Enabled: wait for completion and barrier after each collective ")
	case 2, 3:
		fmt.Fprintln(r.out, "# Blocking Enabled: wait for completion after each collective (no barrier) ")
	}
	if o.PerIter != 0 {
		fmt.Fprintln(r.out, "# Per-Iteration Report: wall clock; i_* uses max over ranks ")
	}
	if o.ParallelInit != 0 {
		fmt.Fprintln(r.out, "# Parallel Init Enabled: goroutine ranks are initialised together ")
	}
	fmt.Fprint(r.out, "#\n# Using devices\n")
	devices, err := r.devices(ctx)
	if err != nil {
		return err
	}
	for _, d := range devices {
		fmt.Fprintf(r.out, "#  Rank %2d Group %2d Pid %6d on %10s device %2d [%s] %s\n",
			d.Rank, d.Group, d.Pid, string(d.Host), d.Device, string(d.Hex), string(d.Info))
	}
	r.report.begin(o, devices)
	return nil
}

// series is a sequence of rows that differ in size only.
type series struct {
	typ  dtype.Type
	op   reduce.Op
	root int
}

// series lists what -d, -o and -r ask for.
func (r *run) series() []series {
	ops, roots := []reduce.Op{reduce.Sum}, []int{-1}
	if r.test.reduces {
		ops = r.ops()
	}
	if r.test.rooted {
		roots = []int{r.Root}
		if r.Root == AllRoots {
			roots = roots[:0]
			for rank := range r.ranks {
				roots = append(roots, rank)
			}
		}
	}
	var all []series
	for _, typ := range r.types() {
		for _, op := range ops {
			for _, root := range roots {
				all = append(all, series{typ, op, root})
			}
		}
	}
	return all
}

func (r *run) job(size int, s series) job {
	return r.Options.job(r.test, size, s.typ, s.op, s.root, r.ranks, r.spread)
}

// rows is how many rows the table will have; 0 when there is no end to them.
func (r *run) rows() int {
	sizes := 0
	for range sweep(r.MinBytes, r.MaxBytes, r.StepBytes, r.StepFactor) {
		if sizes++; sizes == 1<<20 {
			return 0
		}
	}
	return sizes * len(r.series()) * r.Cycles
}

func (r *run) sweepAll(ctx context.Context) error {
	for _, s := range r.series() {
		if err := r.warmUp(ctx, s); err != nil {
			return err
		}
		for r.cycle = 0; r.Cycles == 0 || r.cycle < r.Cycles; r.cycle++ {
			for size := range sweep(r.MinBytes, r.MaxBytes, r.StepBytes, r.StepFactor) {
				if err := r.row(ctx, size, s); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// warmUp runs every size once per -w, doubling, before the first row.
func (r *run) warmUp(ctx context.Context, s series) error {
	for size := range sweep(max(r.MinBytes, 1), r.MaxBytes, 0, 2) {
		j := r.job(size, s)
		err := r.onRanks(ctx, func(ctx context.Context, rank int) error {
			c := r.caller(&j, rank)
			for i := range r.Warmup {
				if err := r.issue(ctx, c, i); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// row makes the two measurements of a size and prints them.
func (r *run) row(ctx context.Context, size int, s series) error {
	j := r.job(size, s)
	w := row{
		bytes: j.bytes(), count: j.count, typ: s.typ.String(), op: "none", root: s.root, iters: r.Iters,
	}
	if r.test.reduces {
		w.op = s.op.String()
	}
	if err := r.choose(&j); err != nil {
		return err
	}
	var err error
	if w.apart, err = r.measure(ctx, &j); err != nil {
		return err
	}
	if !r.test.apart {
		j.inPlace = true
		if w.in, err = r.measure(ctx, &j); err != nil {
			return err
		}
	}
	for _, h := range []half{w.apart, w.in} {
		if h.made {
			r.wrong += h.wrong
			r.busbws += h.busbw
			r.halves++
		}
	}
	w.when = time.Now()
	r.bar.clear()
	r.table.row(w)
	r.costs.row(w)
	r.report.row(w)
	r.bar.add()
	return nil
}

// choose asks which algorithm the size will take, for the closing line and for
// the user who has forced another one.
func (r *run) choose(j *job) error {
	calls := r.caller(j, r.first).at(0)
	if len(calls) > 1 && j.ranks == 1 {
		return nil // a message to oneself has a plan only together with its receive
	}
	p, err := r.comms[0].Plan(calls[0])
	if err != nil {
		return err
	}
	c := p.Choice
	if want := r.Algorithm; want != plan.AutoAlgorithm && want != c.Algorithm {
		r.note("%s has no algorithm %v here; it takes %v", r.Collective, want, c.Algorithm)
	}
	if want := r.Protocol; want != plan.AutoProtocol && want != c.Protocol {
		r.note("%s has no protocol %v here; it takes %v", r.Collective, want, c.Protocol)
	}
	r.choices.add(j, c)
	return nil
}

// memory is rank's memory as j sees it: moved off its alignment by -u.
func (r *run) memory(j *job, rank int) memory {
	m, off := r.mem[rank-r.first], r.Unalign*j.typ.Size()
	return memory{m.send[off:], m.recv[off:]}
}

func (r *run) caller(j *job, rank int) *caller {
	return newCaller(j, rank, r.memory(j, rank), r.MaxBytes)
}

// onRanks runs body for every rank of this process at once, within the time that -T allows.
func (r *run) onRanks(ctx context.Context, body func(ctx context.Context, rank int) error) error {
	calls := context.Background() // ctx aborts the communicators: calls need not watch it
	if r.TimeoutSeconds > 0 {
		var cancel context.CancelFunc
		calls, cancel = context.WithTimeout(calls, time.Duration(r.TimeoutSeconds)*time.Second)
		defer cancel()
	}
	all := make([]error, len(r.comms))
	var ranks sync.WaitGroup
	for local := range all {
		ranks.Go(func() {
			if all[local] = body(calls, r.first+local); all[local] != nil {
				r.comms[local].Abort() // nobody may wait for a rank that has given up
			}
		})
	}
	ranks.Wait()
	// The first cause is on every rank, unless a call was refused on one, which the
	// others only see giving up; told n times it is no clearer.
	for _, err := range all {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("test timeout (%ds): %w", r.TimeoutSeconds, err)
		}
	}
	for _, err := range all {
		if err != nil && !errors.Is(err, collective.ErrAborted) {
			return err
		}
	}
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// measure is one half of a row: steps 1 to 5 of the package's description.
func (r *run) measure(ctx context.Context, j *job) (half, error) {
	h := half{made: true}
	mine := make([]timing, len(r.comms))
	err := r.onRanks(ctx, func(ctx context.Context, rank int) error {
		j.settle(r.memory(j, rank), rank, max(r.Iters, 1))
		var err error
		mine[rank-r.first], err = r.timed(ctx, r.caller(j, rank))
		return err
	})
	if err != nil {
		return h, err
	}
	// Per rank: its time, its process's processor time, its roles', and the laps.
	measured, err := gather(ctx, r, func(rank int) []float64 {
		t := &mine[rank-r.first]
		return slices.Concat([]float64{t.seconds, t.cpu.Seconds()}, t.roles.numbers(), t.laps)
	})
	if err != nil {
		return h, err
	}
	var times []float64 // of an operation, in seconds
	var laps [][]float64
	var used roles
	cpu := 0.0
	for _, m := range measured {
		times, cpu = append(times, m[0]), cpu+m[1]
		used.add(m[2 : 2+numbersOfRoles])
		laps = append(laps, m[2+numbersOfRoles:])
	}
	operations := float64(r.Iters * r.Aggregate)
	seconds := combine(times, r.Average)
	h.micros = seconds * 1e6
	if r.CPUTime != 0 {
		h.micros = cpu / operations * 1e6
		h.costs = costs{operations, used}
	}
	h.algbw = float64(j.moved*j.typ.Size()) / seconds / 1e9
	h.busbw = h.algbw * r.test.bus(j.ranks)
	if r.PerIter != 0 {
		h.skipped = r.PerIterSkip
		h.perIter = slowest(laps)[h.skipped:]
	}
	if r.Check > 0 {
		h.checked = true
		h.wrong, err = r.check(ctx, j)
	}
	return h, err
}

// timing is what one rank measures.
type timing struct {
	seconds float64       // of an operation
	cpu     time.Duration // of the process, at its first rank
	roles   roles         // with -C, of the rank
	laps    []float64     // with -I, of the iterations in microseconds
}

// timed is one rank's part of a measurement.
func (r *run) timed(ctx context.Context, c *caller) (t timing, err error) {
	barrier := func() error {
		return r.comm(c.rank).Do(ctx, collective.Call{Kind: plan.Barrier})
	}
	if err := errors.Join(r.issue(ctx, c, 0), barrier(), barrier()); err != nil {
		return t, err
	}
	if r.PerIter != 0 {
		t.laps = make([]float64, 0, r.Iters)
	}
	cpu, _ := CPUTime()
	stats := r.comm(c.rank).Stats()
	waited := time.Duration(0) // in barriers that -z 3 does not count
	start := time.Now()
	for i := range r.Iters {
		lap := waited
		began := time.Now()
		if err := r.issue(ctx, c, i); err != nil {
			return t, err
		}
		if r.Blocking == 3 {
			arrived := time.Now()
			if err := barrier(); err != nil {
				return t, err
			}
			waited += time.Since(arrived)
		}
		if t.laps != nil {
			spent := time.Since(began) - (waited - lap)
			t.laps = append(t.laps, spent.Seconds()*1e6/float64(r.Aggregate))
		}
	}
	elapsed := time.Since(start) - waited
	t.seconds = elapsed.Seconds() / float64(r.Iters*r.Aggregate)
	if err := barrier(); err != nil {
		return t, err
	}
	t.roles = rolesSince(r.comm(c.rank).Stats(), stats)
	if c.rank == r.first {
		end, _ := CPUTime()
		t.cpu = end - cpu
	}
	return t, nil
}

// issue makes one iteration of a rank: -m operations, one after the other or, if
// there are several calls, as a group.
func (r *run) issue(ctx context.Context, c *caller, iteration int) error {
	comm, calls := r.comm(c.rank), c.at(iteration)
	if r.Blocking == 0 && r.Aggregate == 1 && len(calls) == 1 {
		return comm.Do(ctx, calls[0])
	}
	group := collective.NewGroup()
	for range r.Aggregate {
		for _, call := range calls {
			if err := group.Add(comm, call); err != nil {
				return err
			}
		}
	}
	if r.Blocking == 0 {
		return group.Run(ctx)
	}
	h, err := group.Start(ctx)
	if err != nil {
		return err
	}
	if err := h.Wait(ctx); err != nil {
		return err
	}
	if r.Blocking == 1 {
		return comm.Do(ctx, collective.Call{Kind: plan.Barrier})
	}
	return nil
}

// slowest is, for each iteration, the time of the rank that took longest.
func slowest(laps [][]float64) []float64 {
	most := slices.Clone(laps[0])
	for _, times := range laps[1:] {
		for i, t := range times {
			most[i] = max(most[i], t)
		}
	}
	return most
}

// check runs the operation -c times on data of known result and counts the wrong
// elements.
func (r *run) check(ctx context.Context, j *job) (int, error) {
	mem := make([]memory, len(r.comms))
	for local := range mem {
		mem[local] = r.memory(j, r.first+local)
	}
	wrong := 0
	for range r.Check {
		r.checks++
		seed := r.checks
		err := r.onRanks(ctx, func(ctx context.Context, rank int) error {
			j.fill(mem[rank-r.first], rank, seed)
			calls := r.caller(j, rank).at(0)
			if len(calls) == 1 {
				return r.comm(rank).Do(ctx, calls[0])
			}
			group := collective.NewGroup()
			for _, call := range calls {
				if err := group.Add(r.comm(rank), call); err != nil {
					return err
				}
			}
			return group.Run(ctx)
		})
		if err != nil {
			return wrong, err
		}
		if r.tamper != nil {
			for local := range mem {
				_, recv := j.windows(mem[local], r.first+local, 0)
				r.tamper(r.first+local, recv)
			}
		}
		wrong += j.wrong(mem, r.first, seed)
	}
	all, err := r.sum(ctx, int64(wrong))
	return int(all), err
}

// interrupted is the error of a run that the user has stopped: none if it would
// never have ended by itself.
func (r *run) interrupted() error {
	if r.Cycles == 0 {
		return nil
	}
	return context.Canceled
}

// conclude prints the closing lines and gives the run its error.
func (r *run) conclude(failure error) error {
	r.bar.finish()
	v := verdict{
		collective: r.Collective, wrong: r.wrong, minimum: r.minimum, failure: failure,
		choices: r.choices.lines(), costs: r.costs.lines(),
	}
	v.busbw = r.busbws / float64(r.halves) // no rows: not a number, as in nccl-tests
	if r.Memory != 0 {
		r.uses = append(r.uses, memoryUse{"Collective", max(0, resident()-r.allocated)})
		v.memory = r.uses
	}
	r.table.footer(v)
	if err := r.report.finish(v); err != nil {
		failure = errors.Join(failure, err)
	}
	switch {
	case failure != nil:
		return failure
	case r.wrong > 0 || !v.fastEnough():
		return ErrFailed
	}
	return nil
}
