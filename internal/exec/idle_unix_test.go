//go:build unix

package exec

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/spin"
)

// Blocks, halves and the stream sleep between launches, under every policy: spin
// and yield are for waiting within a launch. What polls would count turns and burn
// processors; the limit on the processor's time leaves room for a busy machine.
func TestIdleBlocksCostNothing(t *testing.T) {
	const n, idle = 3, 100 * time.Millisecond
	for policy := spin.Adaptive; policy <= spin.Block; policy++ {
		t.Run(policy.String(), func(t *testing.T) {
			w := smallWorld(4)
			w.Force.Algorithm = plan.Tree
			all := engines(t, n, w, policy, inOneHub())
			requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
				return together(ctx, e, newSum(rank, n, 4000), newExchange(rank, n, 100))
			}))
			counters := make([]spin.Counters, n)
			for rank, e := range all {
				counters[rank] = e.Counters()
			}
			before := processorTime(t)
			time.Sleep(idle)
			used := processorTime(t) - before
			for rank, e := range all {
				require.Equal(t, counters[rank], e.Counters(), "rank %d has waited for something", rank)
			}
			require.Less(t, used, idle/2, "processor time while idle")
		})
	}
}

// processorTime is what this process has used so far.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
