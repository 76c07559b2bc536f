package collective_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

func filesAndMappings() (files, mappings int) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, 0
	}
	return len(descriptors()), strings.Count(string(maps), "memfd:gollective")
}

type steadyJob struct{ Ranks []int }

var steadyRole = role("steady", func(p *player) error {
	var job steadyJob
	p.arguments(&job)
	number, err := strconv.Atoi(os.Getenv("GOLLECTIVE_RANK"))
	if err != nil {
		return err
	}
	return joined(job.Ranks[number], collective.Config{}, func(comms []*collective.Comm) error {
		var mu sync.Mutex
		operations := 0
		small := func(most int) error {
			return everyLocal(comms, func(c *collective.Comm) error {
				k, err := steadily(c, most, time.Second)
				mu.Lock()
				operations = k
				mu.Unlock()
				return err
			})
		}
		if err := errors.Join(small(5000), everyLocal(comms, allocations(40))); err != nil {
			return err
		}
		before := holdingsNow()
		if err := errors.Join(small(100_000), holdingsNow().grown(before, operations)); err != nil {
			return err
		}
		// What frees memory is seen by the others in the next operation.
		err := everyLocal(comms, allocations(200))
		now := holdingsNow()
		p.tell("steady", nil, float64(operations))
		return errors.Join(err, now.grown(before, 200))
	})
})

// allocations reduces memory that is allocated and freed again, so many times.
func allocations(times int) func(*collective.Comm) error {
	return func(c *collective.Comm) error {
		const count = 1 << 16
		for i := range times {
			b, err := c.MemAlloc(4 * count)
			if err != nil {
				return err
			}
			b[4*(i%count)] = 1
			call := collective.Call{Kind: plan.AllReduce, Type: dtype.Int32, Op: collective.Sum, Count: count, Send: b, Recv: b}
			if err := c.Do(context.Background(), call); err != nil {
				return err
			}
			if got := b[4*(i%count)]; int(got) != c.Size() {
				return fmt.Errorf("the sum over %d ranks is %d", c.Size(), got)
			}
			if err := c.MemFree(b); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestOperationsOfProcessesLeaveEverythingAsItWas(t *testing.T) {
	for _, ranks := range [][]int{{1, 1}, {2, 1}} {
		c := stage(t, staging{role: steadyRole, args: steadyJob{ranks}, size: len(ranks)})
		c.reportedNothingWrong()
		c.succeed(c.all()...)
		for _, number := range c.all() {
			for _, r := range c.processes[number].reports {
				if r.What == "steady" {
					require.Positive(t, r.Numbers[0])
					t.Logf("ranks of processes %v: %.0f operations", ranks, r.Numbers[0])
				}
			}
		}
	}
}
