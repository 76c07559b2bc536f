package affinity

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOwnMaskHasTheProcessorsThatTheRuntimeCounts(t *testing.T) {
	require.Equal(t, runtime.NumCPU(), Own().Count())
}

func TestUnion(t *testing.T) {
	a, b := Mask{1, 0, 4}, Mask{3}
	require.Equal(t, Mask{3, 0, 4}, a.Union(b))
	require.Equal(t, Mask{3, 0, 4}, b.Union(a))
	require.Equal(t, 3, a.Union(b).Count())
	require.Equal(t, Mask{1, 0, 4}, a, "the operands stay as they are")
	require.Zero(t, Mask(nil).Union(nil).Count())
}
