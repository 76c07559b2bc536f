package spin

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// count is the condition that a counter has reached a value.
type count struct {
	counter *atomic.Int64
	want    int64
	bell    *Bell
}

func (c *count) Ready() bool   { return c.counter.Load() >= c.want }
func (c *count) Peer() int     { return 0 }
func (c *count) Arm(p *Parker) { c.bell.Arm(p) }
func (c *count) Disarm()       { c.bell.Disarm() }

// inLane is how often a waiter that is alone in its lane polls there.
func (l limits) inLane() uint64 {
	if l.lane == 0 {
		return 0
	}
	return laneRounds * uint64(l.lane+1)
}

// inLanes returns n waiters that are in so many lanes.
func inLanes(t *testing.T, n, lanes int) ([]*Waiter, []*ledger) {
	waiters, ledgers := make([]*Waiter, n), make([]*ledger, n)
	for i := range waiters {
		waiters[i] = New(Options{Waiters: max(n, lanes+1), Cores: lanes, Lane: i})
		require.Positive(t, waiters[i].limits.lane)
		ledgers[i] = &ledger{parker: waiters[i].Parker()}
		waiters[i].Bind(t.Context(), ledgers[i], 0)
	}
	return waiters, ledgers
}

// requireLanesAreEmpty holds when nobody waits.
func requireLanesAreEmpty(t *testing.T) {
	for i := range lanes {
		l := &lanes[i]
		l.mu.Lock()
		require.False(t, l.headed, "lane %d", i)
		require.Nil(t, l.first, "lane %d", i)
		l.mu.Unlock()
	}
}

// Rounds of a barrier, of which each may be missed by nobody, with goroutines that come
// late now and then, by less and by more than it takes to park.
func TestWhoTakesTurnsMissesNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rounds := int64(20000)
	if testing.Short() {
		rounds = 2000
	}
	for _, tc := range []struct{ n, lanes int }{{2, 1}, {3, 2}, {4, 2}, {8, 2}, {8, 3}} {
		waiters, _ := inLanes(t, tc.n, tc.lanes)
		bells := make([]Bell, tc.n)
		var arrived atomic.Int64
		var g sync.WaitGroup
		for i, w := range waiters {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			g.Go(func() {
				for round := range rounds {
					if random.IntN(2000) == 0 {
						time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
					}
					arrived.Add(1)
					for k := range bells {
						if k != i {
							bells[k].Ring()
						}
					}
					if err := w.Until(&count{&arrived, (round + 1) * int64(tc.n), &bells[i]}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		g.Wait()
		require.EqualValues(t, rounds*int64(tc.n), arrived.Load())
		requireLanesAreEmpty(t)
	}
}

// Who is first in a lane and waits in vain holds up nobody behind it.
func TestALongWaitHoldsUpNobodyInItsLane(t *testing.T) {
	waiters, ledgers := inLanes(t, 3, 1)
	var never, now atomic.Int64
	var bells [3]Bell
	failed := errors.New("failed")
	results := make(chan error)
	go func() { results <- waiters[0].Until(&count{&never, 1, &bells[0]}) }()
	require.Eventually(t, func() bool { return waiters[0].Counters().Parks > 0 }, 10*time.Second, time.Millisecond)
	for round := range int64(1000) {
		go func() { results <- waiters[1].Until(&count{&now, round + 1, &bells[1]}) }()
		go func() { results <- waiters[2].Until(&count{&now, round + 1, &bells[2]}) }()
		now.Add(1)
		bells[1].Ring()
		bells[2].Ring()
		bells[0].Ring() // for nothing: it goes back into the lane
		require.NoError(t, <-results)
		require.NoError(t, <-results)
	}
	ledgers[0].fail(failed)
	require.ErrorIs(t, <-results, failed)
	requireLanesAreEmpty(t)
}

// Waiters of one lane of which all wait in vain park, and find out about a failure.
func TestAllOfALaneParkAndFail(t *testing.T) {
	waiters, ledgers := inLanes(t, 6, 2)
	var never atomic.Int64
	bells := make([]Bell, len(waiters))
	results := make(chan error)
	for i, w := range waiters {
		go func() { results <- w.Until(&count{&never, 1, &bells[i]}) }()
	}
	for _, w := range waiters {
		require.Eventually(t, func() bool { return w.Counters().Parks > 1 }, 10*time.Second, time.Millisecond)
	}
	requireLanesAreEmpty(t)
	failed := errors.New("failed")
	for _, l := range ledgers {
		l.fail(failed)
	}
	for range waiters {
		require.ErrorIs(t, <-results, failed)
	}
}

// A failure ends the waits of all who queue, though only the first one looks.
func TestAFailureGoesThroughALane(t *testing.T) {
	for range 200 {
		waiters, ledgers := inLanes(t, 6, 2)
		var never atomic.Int64
		bells := make([]Bell, len(waiters))
		results := make(chan error)
		for i, w := range waiters {
			go func() { results <- w.Until(&count{&never, 1, &bells[i]}) }()
		}
		failed := errors.New("failed")
		for _, l := range ledgers {
			l.fail(failed)
		}
		for range waiters {
			require.ErrorIs(t, <-results, failed)
		}
		requireLanesAreEmpty(t)
	}
}

func TestLanesAreThoseOfProcessors(t *testing.T) {
	for _, tc := range []struct{ number, cores, want int }{
		{0, 1, 0}, {7, 1, 0}, {0, 2, 0}, {1, 2, 1}, {2, 2, 0}, {63, 128, 63}, {64, 128, 0}, {5, 0, 0},
	} {
		require.Same(t, &lanes[tc.want], laneOf(tc.number, tc.cores), "%+v", tc)
	}
}
