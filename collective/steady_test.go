package collective_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
)

// Small operations, over and over, leave everything as it was.

// holdings is what a process has of what could grow.
type holdings struct {
	Heap       uint64 // bytes in use after a collection
	Goroutines int
	Files      int // open descriptors, where the system tells
	Mappings   int // of segments
}

func holdingsNow() holdings {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	h := holdings{Heap: m.HeapAlloc, Goroutines: runtime.NumGoroutine()}
	h.Files, h.Mappings = filesAndMappings()
	return h
}

// grown reports what h has more than there was before so many operations.
func (h holdings) grown(before holdings, operations int) error {
	var errs []error
	more := func(what string, now, then, slack int) {
		if now > then+slack {
			errs = append(errs, fmt.Errorf("%d %s after %d operations, %d before", now, what, operations, then))
		}
	}
	more("bytes of heap", int(h.Heap), int(before.Heap), 256<<10)
	more("goroutines", h.Goroutines, before.Goroutines, 0)
	more("descriptors", h.Files, before.Files, 0)
	more("mappings", h.Mappings, before.Mappings, 0)
	return errors.Join(errs...)
}

// steadily makes so many small operations, or as many as fit into the time, and returns
// how many those were. Rank 0 has the clock.
func steadily(c *collective.Comm, most int, limit time.Duration) (operations int, err error) {
	ctx, begin := context.Background(), time.Now()
	x, y := make([]int32, 4), make([]int32, 4)
	for operations < most {
		clear(x)
		if c.Rank() == 0 && operations%1000 == 999 && time.Since(begin) > limit {
			x[0] = 1
		}
		x[1] = int32(operations + c.Rank())
		if err := collective.AllReduce(ctx, c, x, y, collective.Sum); err != nil {
			return operations, err
		}
		operations++
		n := c.Size()
		if want := int32(n*(operations-1) + n*(n-1)/2); y[1] != want {
			return operations, fmt.Errorf("operation %d gives %d, want %d", operations, y[1], want)
		}
		if y[0] > 0 {
			break
		}
		if operations%1000 == 0 {
			if err := errors.Join(collective.Barrier(ctx, c), collective.Broadcast(ctx, c, x, x, operations/1000%n)); err != nil {
				return operations, err
			}
		}
	}
	return operations, nil
}

func TestAMillionSmallOperationsLeaveEverythingAsItWas(t *testing.T) {
	for _, n := range []int{2, 3} {
		comms := ranksOf(t, n, collective.Config{})
		operations := 0
		run := func(most int, limit time.Duration) {
			for rank, err := range onRanks(t, comms, func(c *collective.Comm) error {
				k, err := steadily(c, most, limit)
				if c.Rank() == 0 {
					operations = k
				}
				return err
			}) {
				require.NoError(t, err, "rank %d", rank)
			}
		}
		run(5000, time.Second)
		before := holdingsNow()
		run(1_000_000, time.Second)
		require.NoError(t, holdingsNow().grown(before, operations))
		t.Logf("%d ranks: %d operations", n, operations)
	}
}
