package spin

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPolicyNamesAreReadBack(t *testing.T) {
	for p := range policiesCount {
		got, err := ParsePolicy(p.String())
		require.NoError(t, err)
		require.Equal(t, p, got)
	}
	for _, name := range []string{"", "Spin", "busy", "policy(4)"} {
		_, err := ParsePolicy(name)
		require.ErrorContains(t, err, "spin, yield, adaptive or block", name)
	}
	require.Equal(t, "policy(9)", Policy(9).String())
}

func TestAdaptiveDoesNotSpinWhenWaitersOutnumberProcessors(t *testing.T) {
	procs := runtime.GOMAXPROCS(0)
	for _, tc := range []struct {
		waiters       int
		shared, heavy bool
		turns, yields int
		lane          int
	}{
		{procs, false, false, adaptiveTurns, adaptiveYields, 0},
		{procs, true, false, adaptiveTurns, adaptiveYields, 0},
		{procs, false, true, heavyAdaptiveTurns, heavyYields, 0},
		{procs + 1, false, false, 1, crowdedYields, lanePolls},
		{procs + 1, true, false, 1, sharedYields, 0},
		{procs + 1, false, true, 1, crowdedYields, 0},
		{procs + 1, true, true, 1, heavySharedYields, 0},
	} {
		got := limitsFor(Adaptive, tc.waiters, procs, tc.shared, tc.heavy)
		require.Equal(t, limits{turns: tc.turns, yields: tc.yields, lane: tc.lane, longest: longestSleep}, got, "%+v", tc)
	}
}

func TestOtherPoliciesDoNotDependOnTheCrowd(t *testing.T) {
	for _, waiters := range []int{1, 1000} {
		for _, shared := range []bool{false, true} {
			for _, heavy := range []bool{false, true} {
				spins := spinTurns
				if heavy {
					spins = heavySpinTurns
				}
				require.Equal(t, limits{spins, -1, true, 0, longestSleep}, limitsFor(Spin, waiters, 2, shared, heavy))
				require.Equal(t, limits{1, -1, false, 0, longestSleep}, limitsFor(Yield, waiters, 2, shared, heavy))
				require.Equal(t, limits{1, 0, false, 0, longestSleep}, limitsFor(Block, waiters, 2, shared, heavy))
			}
		}
	}
}
