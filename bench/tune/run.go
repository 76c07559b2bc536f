package tune

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// Launcher starts so many rank processes of this program, which call Rank with the
// text and write to out, and waits for their end.
type Launcher func(ctx context.Context, n int, text string, out io.Writer) error

// Run measures what o asks for, prints tables on out, and writes the tuner file.
// Progress goes to errs, if that is a terminal. It returns a *UsageError before
// anything has run, or what ended the run early; what was measured by then is in
// o.Points.
func Run(ctx context.Context, o Options, launch Launcher, out, errs io.Writer) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if len(o.Collectives) == 0 {
		o.Collectives = Collectives()
	}
	r := &run{Options: &o, launch: launch, out: out, began: time.Now()}
	if err := r.openPoints(); err != nil {
		return err
	}
	defer r.closePoints()
	cases := r.cases()
	left := 0
	for _, c := range cases {
		left += len(c.Places)
	}
	r.bar = newBar(errs, left)
	for i := range cases {
		c := &cases[i]
		// Each placement gets its share of what is left of the time.
		c.Budget = (o.Budget - time.Since(r.began)) * time.Duration(len(c.Places)) / time.Duration(max(left, 1))
		left -= len(c.Places)
		if c.Budget <= 0 || len(c.Places) == 0 {
			continue
		}
		r.bar.describe(c.Placement.String())
		if err := r.measure(ctx, c); err != nil {
			r.bar.clear()
			return err
		}
	}
	r.bar.clear()
	return r.conclude(cases)
}

// run is a run of the tool.
type run struct {
	*Options
	launch Launcher
	out    io.Writer
	bar    *bar
	began  time.Time
	kept   *os.File // nil if points are not kept

	mu     sync.Mutex
	points []Point
}

func (r *run) openPoints() error {
	if r.Points == "" {
		return nil
	}
	var err error
	if r.points, err = readPoints(r.Points); err != nil {
		return err
	}
	r.kept, err = os.OpenFile(r.Points, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	return err
}

func (r *run) closePoints() {
	if r.kept != nil {
		_ = r.kept.Close() // each point was written by itself
	}
}

// cases are what is to be measured: places that no earlier run has measured.
func (r *run) cases() []Case {
	known := make(map[Place]bool)
	for _, p := range r.points {
		known[p.Place] = true
	}
	var all []Case
	for _, placement := range r.placements() {
		c := Case{Placement: placement, Channels: r.Channels, Rounds: r.Rounds, MostRounds: r.mostRounds}
		for _, collective := range r.Collectives {
			for _, bytes := range r.sizes() {
				if p := (Place{placement, collective, bytes}); !known[p] && moves(p) {
					c.Places = append(c.Places, p)
				}
			}
		}
		all = append(all, c)
	}
	return all
}

func (r *run) measure(ctx context.Context, c *Case) error {
	if c.Transport == "inproc" {
		return measured(ctx, goroutines(ctx, c, r.hear), c)
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	l := &listener{hear: r.hear}
	err = r.launch(ctx, c.Ranks, string(text), l)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return measured(ctx, errors.Join(err, l.err), c)
}

// measured is the error of a case.
func measured(ctx context.Context, err error, c *Case) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return errors.New("interrupted")
	case err != nil:
		return fmt.Errorf("%v: %w", c.Placement, err)
	}
	return nil
}

// hear takes a point that was measured.
func (r *run) hear(p Point) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.points = append(r.points, p)
	r.bar.add()
	if r.kept == nil {
		return nil
	}
	line, err := json.Marshal(p)
	if err == nil {
		_, err = r.kept.Write(append(line, '\n'))
	}
	return err
}

// conclude prints what all points show, and writes the file.
func (r *run) conclude(cases []Case) error {
	known := make(map[Place]bool)
	for _, p := range r.points {
		known[p.Place] = true
	}
	missing := 0
	for _, c := range cases {
		for _, p := range c.Places {
			if !known[p] {
				missing++
			}
		}
	}
	slices.SortStableFunc(r.points, comparePoints)
	writeTables(r.out, r.points)
	if missing > 0 {
		fmt.Fprintf(r.out, "# %d of the sizes were not reached in %v; --budget gives more time, --points goes on where a run has ended\n", missing, r.Budget)
	}
	if len(r.points) == 0 || r.Output == "" {
		return nil
	}
	var file bytes.Buffer
	if err := r.writeRules(&file); err != nil {
		return err
	}
	if err := os.WriteFile(r.Output, file.Bytes(), 0o666); err != nil {
		return err
	}
	fmt.Fprintf(r.out, "# %s is written; GOLLECTIVE_TUNER_FILE=%s uses it\n", r.Output, r.Output)
	return nil
}

// mostLine bounds what a rank says at once.
const mostLine = 1 << 20

// listener is where the lines of rank processes go.
type listener struct {
	hear func(Point) error

	mu   sync.Mutex
	rest []byte // of an unfinished line
	err  error  // of what was heard
}

func (l *listener) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			break
		}
		l.rest = rest
		var point Point
		if err := json.Unmarshal(line, &point); err != nil || !point.sane() {
			l.err = errors.Join(l.err, fmt.Errorf("a rank says %.200q", line))
			continue
		}
		l.err = errors.Join(l.err, l.hear(point))
	}
	if len(l.rest) > mostLine {
		return 0, errors.New("a rank says too much")
	}
	return len(p), nil
}
