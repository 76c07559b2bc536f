package collective_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
)

func TestNilThingsAreErrorsNotPanics(t *testing.T) {
	ctx := context.Background()
	var c *collective.Comm
	require.Equal(t, -1, c.Rank())
	require.Zero(t, c.Size())
	require.Zero(t, c.Stats())
	_, err := c.MemAlloc(1)
	require.ErrorIs(t, err, collective.ErrInvalid)
	require.ErrorIs(t, c.MemFree([]byte{1}), collective.ErrInvalid)
	require.ErrorIs(t, new(collective.Comm).MemFree([]byte{1}), collective.ErrInvalid)

	var g *collective.Group
	require.ErrorIs(t, g.Run(ctx), collective.ErrInvalid)
	require.NoError(t, collective.Run(1, func(c *collective.Comm) error {
		require.ErrorIs(t, collective.Barrier(ctx, g.On(c)), collective.ErrInvalid, "a nil group records nothing and executes nothing")
		_, err := c.MemAlloc(math.MaxInt)
		require.ErrorIs(t, err, collective.ErrInvalid)
		return nil
	}))

	var h *collective.Handle
	require.ErrorIs(t, h.Wait(ctx), collective.ErrInvalid)
	require.Nil(t, h.Done())
	require.NoError(t, h.Err())

	var u collective.UniqueID
	require.Empty(t, u.String())
	require.NoError(t, u.Close())

	_, err = collective.InitAll(math.MaxInt)
	require.ErrorIs(t, err, collective.ErrInvalid)
	_, err = collective.InitLocal(ctx, math.MaxInt, collective.Config{})
	require.ErrorIs(t, err, collective.ErrInvalid)
}

func TestEveryFormOfACallAfterCloseIsErrClosed(t *testing.T) {
	ctx := context.Background()
	comms, err := collective.InitAll(2)
	require.NoError(t, err)
	require.NoError(t, comms[0].Close())
	x := []float32{1}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	for _, ctx := range []context.Context{ctx, cancelled} {
		require.ErrorIs(t, collective.AllReduce(ctx, comms[0], x, x, collective.Sum), collective.ErrClosed)
		_, err = collective.AllReduceAsync(ctx, comms[0], x, x, collective.Max)
		require.ErrorIs(t, err, collective.ErrClosed)
		g := collective.NewGroup()
		require.NoError(t, collective.Send(ctx, g.On(comms[0]), x, 1))
		require.ErrorIs(t, g.Run(ctx), collective.ErrClosed)
	}
	_, err = comms[0].Split(ctx, 0, 0)
	require.ErrorIs(t, err, collective.ErrClosed)
	_, err = comms[0].Shrink(ctx, []int{1})
	require.ErrorIs(t, err, collective.ErrClosed)
	require.NoError(t, comms[1].Err(), "what a closed rank tries is nobody else's business")
	require.NoError(t, comms[1].Close())
}

func TestCountsMayBeReusedOnceTheyAreRecorded(t *testing.T) {
	ctx := context.Background()
	comms, err := collective.InitAll(2)
	require.NoError(t, err)
	g := collective.NewGroup()
	counts, offsets := make([]int, 2), make([]int, 2)
	var got [][]int32
	for round := 1; round <= 2; round++ {
		for _, c := range comms {
			for p := range counts {
				counts[p], offsets[p] = round, p*round
			}
			send, recv := make([]int32, 2*round), make([]int32, 2*round)
			for i := range send {
				send[i] = int32(100*round + 10*c.Rank() + i)
			}
			got = append(got, recv)
			require.NoError(t, collective.AlltoAllv(ctx, g.On(c), send, counts, offsets, recv, counts, offsets))
		}
	}
	counts[0], offsets[0] = math.MaxInt, math.MaxInt
	require.NoError(t, g.Run(ctx))
	require.Equal(t, [][]int32{{100, 110}, {101, 111}, {200, 201, 210, 211}, {202, 203, 212, 213}}, got)
	for _, c := range comms {
		c.Close()
	}
}

func TestShrinkKnowsWhoHasClosed(t *testing.T) {
	for _, late := range []bool{false, true} {
		comms, err := collective.InitAll(4)
		require.NoError(t, err)
		comms[3].Close()
		if !late {
			comms[2].Close()
		}
		var ranks sync.WaitGroup
		errs := make([]error, 2)
		for rank := range 2 {
			ranks.Go(func() {
				rest, err := comms[rank].Shrink(context.Background(), []int{3})
				if err != nil {
					errs[rank] = err
					return
				}
				defer rest.Close()
				errs[rank] = collective.Barrier(context.Background(), rest)
			})
		}
		if late {
			time.Sleep(20 * time.Millisecond)
			comms[2].Close()
		}
		ranks.Wait()
		for _, err := range errs {
			var closed *collective.PeerClosedError
			require.ErrorAs(t, err, &closed)
			require.Equal(t, 2, closed.PeerRank)
		}
		for _, c := range comms {
			c.Close()
		}
	}
}

func TestTwoGoroutinesCantDivideOneCommunicator(t *testing.T) {
	comms, err := collective.InitAll(3)
	require.NoError(t, err)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 50 {
				rest, err := comms[0].Shrink(context.Background(), []int{1, 2})
				if err != nil {
					if !errors.Is(err, collective.ErrConcurrentUse) {
						t.Error(err)
					}
					continue
				}
				rest.Close()
			}
		})
	}
	callers.Wait()
	for _, c := range comms {
		c.Close()
	}
}
