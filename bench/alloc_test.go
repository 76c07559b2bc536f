package bench

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/bench/perf"
	"github.com/gollective/gollective/collective/plan"
)

// A synchronous collective allocates nothing once its plan exists. An allocation
// of one rank in every call would count calls; what the runtime does for itself
// meanwhile is much less.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's build allocates where others do not")
	}
	const calls = 1000
	slab := newSlabOf(4, 1<<20)
	for _, name := range perf.Collectives() {
		for _, size := range []int{64, 64 << 10} {
			t.Run(fmt.Sprintf("%s of %d bytes", name, size), func(t *testing.T) {
				shape, err := perf.ShapeOf(name, size, 4, 3)
				require.NoError(t, err)
				if shape.Kind == plan.Send || shape.Kind == plan.AlltoAllv {
					t.Skip("groups and per-call counts are planned anew for every call")
				}
				team := open(t, setup{collective: name, ranks: 3})
				defer team.close()
				var members []*member
				for rank := range team.comms {
					members = append(members, team.member(t, rank, size, slab[rank]))
				}
				var before, after runtime.MemStats
				none := func() {}
				require.NoError(t, together(members, 100, none, none)) // plans, FIFOs, parked goroutines
				require.NoError(t, together(members, calls,
					func() { runtime.ReadMemStats(&before) },
					func() { runtime.ReadMemStats(&after) }))
				assert.Less(t, after.Mallocs-before.Mallocs, uint64(calls/4))
			})
		}
	}
}

func newSlabOf(ranks, bytes int) [][]byte {
	slab := make([][]byte, ranks)
	for rank := range slab {
		slab[rank] = make([]byte, bytes)
	}
	return slab
}
