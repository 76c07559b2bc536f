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
	require.Equal(t, limits{adaptiveTurns, adaptiveYields}, limitsFor(Adaptive, procs, procs, false))
	require.Equal(t, limits{1, crowdedYields}, limitsFor(Adaptive, procs+1, procs, false))
	require.Equal(t, limits{1, sharedYields}, limitsFor(Adaptive, procs+1, procs, true))
	for _, waiters := range []int{1, procs, 1000} {
		require.Equal(t, limits{spinTurns, -1}, limitsFor(Spin, waiters, procs, false))
		require.Equal(t, limits{1, -1}, limitsFor(Yield, waiters, procs, false))
		require.Equal(t, limits{1, 0}, limitsFor(Block, waiters, procs, false))
	}
}
