package plan_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

var directKinds = []plan.Kind{plan.AllReduce, plan.Reduce, plan.Broadcast, plan.AllGather, plan.ReduceScatter}

// seeing is a world whose ranks see each other's memory.
func seeing(rank, size int, sight plan.Sight, force plan.Choice) plan.World {
	w := world(rank, size)
	w.Sight, w.DeskPayload, w.Force = sight, 16<<10, force
	return w
}

// The shares of all ranks are those of one deal, on every rank: where results are put
// together of shares they tile the channel's part, in the order of the ranks, elsewhere
// each is the whole part; and the parts tile the block.
func TestSharesTileEveryPart(t *testing.T) {
	for _, sight := range []plan.Sight{plan.SeesSome, plan.SeesEverything} {
		for _, kind := range directKinds {
			for size := 2; size <= 9; size++ {
				for _, count := range []int{1, 2, 15, 31, 32, 33, 1000, 4097, 100_003} {
					for _, typ := range []dtype.Type{dtype.Uint8, dtype.Half, dtype.Float64} {
						for channels := range 4 {
							s := plan.Spec{Kind: kind, Type: typ, Count: count, Root: size / 2}
							checkShares(t, s, size, sight, channels)
						}
					}
				}
			}
		}
	}
}

func checkShares(t *testing.T, s plan.Spec, size int, sight plan.Sight, channels int) {
	t.Helper()
	about := fmt.Sprintf("%v of %d ranks, sight %d, %d channels", s, size, sight, channels)
	force := plan.Choice{Algorithm: plan.TwoShot, Channels: channels}
	first := build(t, s, seeing(0, size, sight, force))
	require.Equal(t, plan.TwoShot, first.Choice.Algorithm, about)
	require.Equal(t, plan.Direct, first.Choice.Protocol, about)
	at := 0
	for _, c := range first.Channels {
		shares := c.Direct.Shares
		require.Len(t, shares, size, about)
		require.Equal(t, sight == plan.SeesSome, len(c.Threads) > 0, "%s: a ring for memory out of sight", about)
		end := shares[size-1].End
		for rank, share := range shares {
			require.LessOrEqual(t, share.Begin, share.End, about)
			require.LessOrEqual(t, share.Count(), max(shares[0].Count(), shares[s.Root].Count()), about)
			switch {
			case s.Kind == plan.Reduce && sight == plan.SeesSome:
				if rank != s.Root {
					require.Zero(t, share.Count(), about)
				}
			case s.Kind == plan.AllReduce || s.Kind == plan.Reduce:
				if rank > 0 {
					require.Equal(t, shares[rank-1].End, share.Begin, about)
				}
				if share.Count() > 0 {
					// Two ranks don't write to one line of what begins with one.
					require.Zero(t, (share.Begin-shares[0].Begin)*s.Type.Size()%128, about)
				}
			default:
				require.Equal(t, shares[0], share, about)
			}
		}
		begin := shares[0].Begin
		if s.Kind == plan.Reduce && sight == plan.SeesSome {
			begin = shares[s.Root].Begin
		}
		require.Equal(t, at, begin, about)
		require.Less(t, begin, end, about)
		at = end
	}
	require.Equal(t, s.Count, at, about)
	for rank := 1; rank < size; rank++ {
		other := build(t, s, seeing(rank, size, sight, force))
		require.Equal(t, first.Choice, other.Choice, about)
		for i := range first.Channels {
			require.Equal(t, first.Channels[i].Direct, other.Channels[i].Direct, about)
		}
	}
}

// In place or not is a rank's own business: nothing of the plan that others share may
// depend on it.
func TestDirectPlansDontDependOnBeingInPlace(t *testing.T) {
	for _, sight := range []plan.Sight{plan.SeesSome, plan.SeesEverything} {
		for _, kind := range directKinds {
			for _, count := range []int{1, 1000, 1 << 20} {
				for _, a := range []plan.Algorithm{plan.AutoAlgorithm, plan.OneShot, plan.TwoShot} {
					s := plan.Spec{Kind: kind, Type: dtype.Float32, Count: count}
					w := seeing(0, 2, sight, plan.Choice{Algorithm: a})
					out := build(t, s, w)
					s.InPlace = true
					in := build(t, s, w)
					require.Equal(t, out.Choice, in.Choice, "%v", s)
					for i := range out.Channels {
						require.Equal(t, out.Channels[i].Direct, in.Channels[i].Direct, "%v", s)
					}
				}
			}
		}
	}
}

// What forcing gives, where it can't be done an error or the model's choice.
func TestForcingDirect(t *testing.T) {
	const shown = 16 << 10
	twoshot, oneshot := plan.Choice{Algorithm: plan.TwoShot}, plan.Choice{Algorithm: plan.OneShot, Protocol: plan.Direct}
	direct := plan.Choice{Protocol: plan.Direct}
	type world = func(*plan.World)
	reproducible := func(w *plan.World) { w.Reproducible = true }
	for _, tc := range []struct {
		name  string
		spec  plan.Spec
		sight plan.Sight
		size  int
		force plan.Choice
		other world
		want  plan.Choice // fields that are zero may be any
		not   plan.Choice // fields that are zero are not looked at
		err   error
	}{
		{name: "nothing in sight", force: twoshot, err: plan.ErrSight},
		{name: "nothing in sight", force: direct, err: plan.ErrSight},
		{name: "one rank", size: 1, force: twoshot},
		{name: "one rank", size: 1, force: direct},
		{name: "twoshot", sight: plan.SeesSome, force: twoshot, want: plan.Choice{Algorithm: plan.TwoShot, Protocol: plan.Direct}},
		{name: "twoshot, whatever protocol", sight: plan.SeesSome, force: plan.Choice{Algorithm: plan.TwoShot, Protocol: plan.LL},
			want: plan.Choice{Algorithm: plan.TwoShot, Protocol: plan.Direct}},
		{name: "oneshot", sight: plan.SeesSome, force: oneshot, want: oneshot},
		{name: "oneshot through FIFOs", sight: plan.SeesSome, force: plan.Choice{Algorithm: plan.OneShot, Protocol: plan.LL},
			want: plan.Choice{Algorithm: plan.OneShot, Protocol: plan.LL}},
		{name: "as much as is shown", sight: plan.SeesSome, spec: plan.Spec{Count: shown / 4}, force: oneshot, want: oneshot},
		{name: "too much to be shown", sight: plan.SeesSome, spec: plan.Spec{Count: shown/4 + 1}, force: oneshot,
			want: plan.Choice{Algorithm: plan.OneShot}, not: plan.Choice{Protocol: plan.Direct}},
		{name: "a reducescatter shows a block for each", sight: plan.SeesSome, spec: plan.Spec{Kind: plan.ReduceScatter, Count: shown/4/3 + 1},
			force: oneshot, want: plan.Choice{Algorithm: plan.OneShot}, not: plan.Choice{Protocol: plan.Direct}},
		{name: "too much to be shown, but not to be lent", sight: plan.SeesEverything, spec: plan.Spec{Count: 1 << 20}, force: direct,
			want: plan.Choice{Algorithm: plan.TwoShot, Protocol: plan.Direct}},
		{name: "a barrier", sight: plan.SeesSome, spec: plan.Spec{Kind: plan.Barrier}, force: twoshot, want: oneshot},
		{name: "messages", sight: plan.SeesSome, spec: plan.Spec{Kind: plan.AlltoAll, Count: 1}, force: direct,
			want: plan.Choice{Algorithm: plan.PointToPoint}, not: plan.Choice{Protocol: plan.Direct}},
		{name: "scaled inputs need an output", sight: plan.SeesEverything, spec: plan.Spec{Kind: plan.Reduce, Op: reduce.Avg, Count: 1 << 20},
			force: twoshot, not: plan.Choice{Algorithm: plan.TwoShot, Protocol: plan.Direct}},
		{name: "which an allreduce has", sight: plan.SeesEverything, spec: plan.Spec{Op: reduce.PreMulSum, Count: 1 << 20},
			force: twoshot, want: plan.Choice{Algorithm: plan.TwoShot}},
		{name: "reproducible", sight: plan.SeesEverything, force: twoshot, other: reproducible, want: plan.Choice{Algorithm: plan.TwoShot}},
		{name: "reproducible, but it may come to a ring", sight: plan.SeesSome, force: twoshot, other: reproducible,
			not: plan.Choice{Algorithm: plan.TwoShot}},
		{name: "no room for the ring that it may come to", sight: plan.SeesSome, force: twoshot,
			other: func(w *plan.World) { w.Payload[plan.Simple] = 1 }, want: oneshot},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := tc.spec
			s.Type = dtype.Float32
			if s.Count == 0 {
				s.Count = 1000
			}
			if tc.size == 0 {
				tc.size = 3
			}
			w := seeing(0, tc.size, tc.sight, tc.force)
			if tc.other != nil {
				tc.other(&w)
			}
			got, err := plan.Choose(s, w)
			if tc.err != nil {
				require.ErrorIs(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			if tc.want.Algorithm != 0 {
				require.Equal(t, tc.want.Algorithm, got.Algorithm)
			}
			if tc.want.Protocol != 0 {
				require.Equal(t, tc.want.Protocol, got.Protocol)
			}
			if tc.not.Algorithm != 0 {
				require.NotEqual(t, tc.not.Algorithm, got.Algorithm)
			}
			if tc.not.Protocol != 0 {
				require.NotEqual(t, tc.not.Protocol, got.Protocol)
			}
			_, err = plan.Build(s, w)
			require.NoError(t, err)
		})
	}
	// Reproducible results by a forced ring are none, whoever sees what.
	w := seeing(0, 3, plan.SeesSome, plan.Choice{Algorithm: plan.Ring})
	w.Reproducible = true
	_, err := plan.Choose(plan.Spec{Type: dtype.Float32, Count: 10}, w)
	require.True(t, errors.Is(err, plan.ErrOrder), err)
}
