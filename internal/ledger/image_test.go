package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

func calls(l *Ledger, rank int, counts ...int) {
	for _, n := range counts {
		e := NewEntry(plan.Spec{Kind: plan.Broadcast, Type: dtype.Int32, Count: n})
		l.Describe(rank, e)
		l.Enter(rank, e)
	}
}

func TestAnImageSaysWhatThePageDoes(t *testing.T) {
	here, there := New(2), New(2)
	for round := range 5 {
		for n := range 40 {
			calls(here, 1, round*10+n)
		}
		require.NoError(t, there.Apply(1, here.Image(1)))
		require.Equal(t, here.Count(1), there.Count(1))
		require.Equal(t, here.Image(1), there.Image(1))
		for s := here.Count(1) - 40; s < here.Count(1); s++ {
			require.Equal(t, here.Call(1, s), there.Call(1, s))
			require.Equal(t, here.Text(1, here.Call(1, s)), there.Text(1, there.Call(1, s)))
			require.NotEqual(t, "another call", there.Text(1, there.Call(1, s)))
		}
		require.False(t, there.Closed(1))
	}
	before := here.Stamp(1)
	here.Close(1)
	require.NotEqual(t, before, here.Stamp(1))
	require.NoError(t, there.Apply(1, here.Image(1)))
	require.True(t, there.Closed(1))
}

func FuzzApply(f *testing.F) {
	l := New(2)
	f.Add(1, l.Image(1))
	calls(l, 1, 1, 2, 3)
	f.Add(1, l.Image(1))
	f.Fuzz(func(t *testing.T, rank int, image []byte) {
		l := New(2)
		if l.Apply(rank, image) != nil {
			require.Zero(t, l.Count(0)+l.Count(1))
			return
		}
		// What it took can be looked at.
		require.NoError(t, l.Apply(rank, l.Image(rank)))
		for s := range uint64(3) {
			_ = l.Text(rank, l.Call(rank, s))
		}
	})
}
