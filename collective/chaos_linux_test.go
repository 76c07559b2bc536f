package collective_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
)

// chaosJob is a random program in which processes die whenever they like, from the
// first moment of Init on.
type chaosJob struct {
	Ranks []int
	Seed  uint64
	Dies  map[int]deathJob // by process: when and how
}

func drawChaos(seed uint64) chaosJob {
	rng := rand.New(rand.NewPCG(seed, 23))
	job := chaosJob{Ranks: layout(rng, 2+rng.IntN(6)), Seed: seed, Dies: make(map[int]deathJob)}
	n := len(job.Ranks)
	for _, number := range rng.Perm(n)[:1+rng.IntN(n-1)] {
		job.Dies[number] = deathJob{
			Manner: []string{killed, killed, panics, exits0, exits3}[rng.IntN(5)],
			After:  time.Duration(rng.IntN(120_000)) * time.Microsecond,
		}
	}
	return job
}

// gone are the ranks of those that die.
func (j chaosJob) gone() []int {
	var ranks []int
	for number := range j.Dies {
		ranks = append(ranks, deathJob{Ranks: j.Ranks, Victim: number}.victims()...)
	}
	slices.Sort(ranks)
	return ranks
}

var chaosRole = role("chaos", func(p *player) error {
	var job chaosJob
	p.arguments(&job)
	number, err := strconv.Atoi(os.Getenv("GOLLECTIVE_RANK"))
	if err != nil {
		return err
	}
	before := tracesNow()
	death, dies := job.Dies[number]
	if dies {
		time.AfterFunc(death.After, func() { death.leave(p, nil) })
	}
	config := processConfig(rand.New(rand.NewPCG(job.Seed, 0)))
	config.JoinTimeout = 3 * time.Second
	comms, err := collective.InitLocal(context.Background(), job.Ranks[number], config)
	if err != nil {
		p.tell("not joined", err)
		if dies {
			select {}
		}
		return before.left()
	}
	err = everyLocal(comms, func(c *collective.Comm) error {
		err := newActor(c, job.Seed, "world").run(40, 3)
		for err == nil {
			err = collective.Barrier(context.Background(), c)
		}
		c.Abort()
		switch {
		case errors.Is(err, collective.ErrPeerLost), errors.Is(err, collective.ErrAborted):
			return nil
		}
		return fmt.Errorf("the program ended with %w", err)
	})
	if dies {
		select {}
	}
	if err != nil {
		return err
	}
	p.tell("learned", nil)
	if err := p.await("shrink"); err != nil { // all have died who will
		return err
	}
	err = everyLocal(comms, func(c *collective.Comm) error {
		rest, err := shrunk(c, job.gone(), false)
		if err != nil {
			return err
		}
		// It is as good as any.
		err = newActor(rest, job.Seed+1, "rest").run(10, 2)
		return errors.Join(err, rest.Close())
	})
	if err != nil {
		return err
	}
	if err := closeAll(comms); err != nil {
		return err
	}
	return before.left()
})

func TestRandomDeathsInRandomProgramsAreSurvived(t *testing.T) {
	rounds := numberOf(t, "GOLLECTIVE_TEST_CHAOS", 5)
	seed := seedOf(t)
	files := sharedFiles(t)
	before := sharedMemory(t)
	joined := 0
	for round := range rounds {
		job := drawChaos(seed + uint64(round))
		t.Run(fmt.Sprintf("seed %d", job.Seed), func(t *testing.T) {
			if chaos(t, job) {
				joined++
			}
		})
		if t.Failed() {
			t.Fatalf("GOLLECTIVE_TEST_SEED=%d, %+v", job.Seed, job)
		}
	}
	t.Logf("in %d of %d rounds all had joined before somebody died", joined, rounds)
	require.Equal(t, files, sharedFiles(t))
	require.Less(t, sharedMemory(t)-before, int64(rounds)*(4<<20)+64<<20)
}

// chaos reports whether the job came about.
func chaos(t *testing.T, job chaosJob) bool {
	c := stage(t, staging{role: chaosRole, args: job, size: len(job.Ranks)})
	var dead []int
	for number := range job.Dies {
		dead = append(dead, number)
	}
	survivors := c.others(dead...)
	c.until("the deaths", func() bool {
		return !slices.ContainsFunc(dead, func(n int) bool { return !c.processes[n].ended })
	})
	// Each survivor has either failed to join or learned of a death.
	var out []int
	c.until("what survivors learn", func() bool {
		out = nil
		for _, number := range survivors {
			p := c.processes[number]
			known := p.ended
			for _, r := range p.reports {
				switch r.What {
				case "not joined":
					out = append(out, number)
					known = true
				case "learned", "failed":
					known = true
				}
			}
			if !known {
				return false
			}
		}
		return true
	})
	for _, number := range out {
		for _, r := range c.processes[number].reports {
			if r.What == "not joined" {
				require.Contains(t, []string{"lost", "timeout", "aborted", "closed"}, r.Error.Kind, r.Error.Text)
			}
		}
	}
	if len(out) > 0 {
		// Who has joined has lost not only the dead: those that could not join
		// have left.
		c.signal(syscall.SIGKILL, c.others(append(dead, out...)...)...)
		c.succeed(out...)
		return false
	}
	c.cue("shrink", survivors...)
	c.succeed(survivors...)
	return true
}
