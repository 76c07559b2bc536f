package tune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
)

// Case is what the ranks of a placement have to do.
type Case struct {
	Placement
	Places   []Place
	Channels []int
	Budget   time.Duration

	Rounds, MostRounds int // of batches
}

// quiet keeps what communicators say of themselves from the tool's output.
var quiet = slog.New(slog.DiscardHandler)

// team are the ranks of a placement that live in this process, with a communicator
// for each choice.
type team struct {
	free   []*collective.Comm // that choose themselves
	forced []forced
}

type forced struct {
	Choice
	comms []*collective.Comm
}

// choices are what is to be measured.
func choices(channels []int) []plan.Choice {
	var all []plan.Choice
	for _, a := range plan.Algorithms()[1:] {
		for _, p := range []plan.Protocol{plan.Simple, plan.LL, plan.LL128, plan.Direct} {
			if p == plan.Direct && a != plan.OneShot && a != plan.TwoShot || a == plan.TwoShot && p != plan.Direct {
				continue
			}
			for _, n := range channels {
				all = append(all, plan.Choice{Algorithm: a, Protocol: p, Channels: n})
			}
		}
	}
	return all
}

// assemble makes the communicators of a case with create.
func assemble(of *Case, create func(collective.Config) ([]*collective.Comm, error)) (*team, error) {
	var t team
	var err error
	if t.free, err = create(of.config()); err != nil {
		return nil, err
	}
	for _, c := range choices(of.Channels) {
		config := of.config()
		config.Algorithm, config.Protocol, config.Channels = c.Algorithm, c.Protocol, c.Channels
		comms, err := create(config)
		if errors.Is(err, collective.ErrUnsupported) || errors.Is(err, collective.ErrInvalid) {
			continue // it can't be forced here: all else is as in the free one
		}
		if err != nil {
			t.close()
			return nil, err
		}
		t.forced = append(t.forced, forced{Choice{c.Algorithm.String(), c.Protocol.String(), c.Channels}, comms})
	}
	return &t, nil
}

func (t *team) all() [][]*collective.Comm {
	all := [][]*collective.Comm{t.free}
	for _, f := range t.forced {
		all = append(all, f.comms)
	}
	return all
}

func (t *team) abort() {
	for _, comms := range t.all() {
		for _, c := range comms {
			c.Abort()
		}
	}
}

func (t *team) close() {
	for _, comms := range t.all() {
		for _, c := range comms {
			c.Close()
		}
	}
}

// play goes through the case; say hears each point, from the goroutine of rank 0.
func (t *team) play(ctx context.Context, of *Case, say func(Point) error) error {
	stop := context.AfterFunc(ctx, t.abort)
	defer stop()
	errs := make([]error, len(t.free))
	var ranks sync.WaitGroup
	for local := range t.free {
		ranks.Go(func() {
			m := newMember(t, local, of)
			if errs[local] = m.play(say); errs[local] != nil {
				t.abort() // nobody may wait for a rank that has given up
			}
		})
	}
	ranks.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, collective.ErrAborted) {
			return err // the cause: others were aborted because of it
		}
	}
	return errors.Join(errs...)
}

// goroutines measures a case between goroutines of this process.
func goroutines(ctx context.Context, of *Case, say func(Point) error) error {
	t, err := assemble(of, func(c collective.Config) ([]*collective.Comm, error) {
		return collective.InitAllConfig(of.Ranks, c)
	})
	if err != nil {
		return err
	}
	defer t.close()
	return t.play(ctx, of, say)
}

// Rank is the whole of a rank process: it joins the job that its environment
// describes and goes through the case that text, from the tool, describes.
func Rank(ctx context.Context, text string, out io.Writer) error {
	var of Case
	if err := json.Unmarshal([]byte(text), &of); err != nil {
		return fmt.Errorf("the case of a rank: %w", err)
	}
	t, err := assemble(&of, func(c collective.Config) ([]*collective.Comm, error) {
		return collective.InitLocal(ctx, 1, c)
	})
	if err != nil {
		return err
	}
	defer t.close()
	return t.play(ctx, &of, func(p Point) error {
		line, err := json.Marshal(p)
		if err == nil {
			_, err = out.Write(append(line, '\n'))
		}
		return err
	})
}
