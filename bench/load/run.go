package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// ErrFailed is the error of a run that came to its end with verdicts that are FAIL.
var ErrFailed = errors.New("claims don't hold on this machine")

// Launcher starts n processes as ranks of a job, each of which calls [Rank] with the
// given text, passes their standard output on to out line by line, and returns when
// all have ended: with an error if any failed. The processes' environment must be free
// of the [Variables].
type Launcher func(ctx context.Context, n int, text string, out io.Writer) error

// Variables are those of the environment that would take the place of what cases say.
func Variables() []string {
	return []string{
		"GOLLECTIVE_WAIT", "GOLLECTIVE_PROXY", "GOLLECTIVE_TRANSPORT", "GOLLECTIVE_SOCKET_RATE",
		"GOLLECTIVE_SOCKET_NTHREADS", "GOLLECTIVE_NSOCKS_PERTHREAD", "GOLLECTIVE_ACCOUNTING",
		"GOLLECTIVE_MIN_NCHANNELS", "GOLLECTIVE_MAX_NCHANNELS",
	}
}

// Run measures the cases of o one after the other, prints the table and the verdicts
// on out, and writes the chart and the report. Progress goes to errs, if that is a
// terminal. It returns a *UsageError before anything has run, ErrFailed, or what ended
// the run early.
func Run(ctx context.Context, o Options, launch Launcher, out, errs io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	if runtime.GOOS != "linux" {
		return fmt.Errorf("rank processes that are connected by sockets: %w on %s", errors.ErrUnsupported, runtime.GOOS)
	}
	r := &run{Options: o, launch: launch, out: out}
	if err := r.open(); err != nil {
		return err
	}
	defer r.discard()
	r.bar = newBar(errs, r.steps())
	err := r.measure(ctx)
	r.bar.finish()
	if err != nil {
		return err
	}
	verdicts := judge(r.figures)
	writeNotes(out, r.figures)
	writeVerdicts(out, verdicts)
	if err := r.save(verdicts); err != nil {
		return err
	}
	for _, v := range verdicts {
		if !v.Pass {
			return ErrFailed
		}
	}
	return nil
}

// run is a run of the tool.
type run struct {
	Options
	launch  Launcher
	out     io.Writer
	bar     *bar
	figures []*Figures

	chart, report *os.File // nil: not asked for
	redrawn       bool     // the chart's file was there before
	saved         bool
}

// open creates the files: what can't be written is told before the work.
func (r *run) open() error {
	var err error
	if r.Chart != "" {
		_, missing := os.Stat(r.Chart)
		r.redrawn = missing == nil
		if r.chart, err = os.OpenFile(r.Chart, os.O_WRONLY|os.O_CREATE, 0o666); err != nil {
			return err
		}
	}
	if r.JSON != "" {
		if r.report, err = createReport(r.JSON); err != nil {
			r.discard()
			return err
		}
	}
	return nil
}

// discard closes the files of a run that did not get to save, and leaves everything
// as it was.
func (r *run) discard() {
	if r.saved {
		return
	}
	for _, f := range []*os.File{r.chart, r.report} {
		if f == nil {
			continue
		}
		f.Close()
		if f != r.chart || !r.redrawn {
			os.Remove(f.Name())
		}
	}
}

// save writes the chart and the report.
func (r *run) save(verdicts []Verdict) error {
	r.saved = true
	var errs []error
	if r.chart != nil {
		errs = append(errs, r.chart.Truncate(0), drawChart(r.chart, r.Chart, r.figures), r.chart.Close())
	}
	if r.report != nil {
		errs = append(errs, writeReport(r.report, &r.Options, r.figures, verdicts), r.report.Close())
	}
	return errors.Join(errs...)
}

// steps is how many phases the run has.
func (r *run) steps() int {
	n := 0
	for _, c := range r.cases() {
		n += len(c.phases())
	}
	return n
}

// measure goes through the cases; rows of the table appear as they are known.
func (r *run) measure(ctx context.Context) error {
	writeHeader(r.out, &r.Options, runtime.GOMAXPROCS(0))
	var slow []*Figures
	for _, c := range r.cases() {
		f, err := r.one(ctx, c)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", c.Wait, c.Proxy, err)
		}
		r.figures = append(r.figures, f)
		if c.Rate > 0 {
			slow = append(slow, f)
			continue
		}
		r.bar.clear()
		writeRow(r.out, f)
	}
	r.bar.clear()
	writeSlow(r.out, slow)
	return nil
}

// one measures a case.
func (r *run) one(ctx context.Context, c Case) (*Figures, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	begun := 0
	l := &listener{phase: func(name string) {
		if begun++; begun > 1 {
			r.bar.add()
		}
		r.bar.describe(strings.Join([]string{c.Wait, c.Proxy, name}, " "))
	}}
	err = r.launch(ctx, c.Ranks, string(text), l)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	r.bar.add()
	samples, err := l.told(c.Ranks)
	if err != nil {
		return nil, err
	}
	return figuresOf(c, samples)
}
