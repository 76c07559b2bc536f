package collective_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// refused makes a wrong call on one rank, expects the error, and proves that
// nothing has happened: the communicator goes on working.
func refused(t *testing.T, comms []*collective.Comm, rank int, what collective.Call, sentinel error) {
	t.Helper()
	c := comms[rank]
	check := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, sentinel)
		var argument *collective.ArgumentError
		require.ErrorAs(t, err, &argument)
		require.NoError(t, c.Err())
	}
	err := c.Do(context.Background(), what)
	check(err)
	t.Log(err)
	_, err = c.Start(context.Background(), what)
	check(err)
	_, err = c.Plan(what)
	check(err)
	g := collective.NewGroup()
	if err = g.Add(c, what); err == nil {
		err = g.Run(context.Background())
	}
	check(err)
}

func TestWrongArgumentsAreErrorsBeforeAnythingMoves(t *testing.T) {
	const n = 3
	comms := ranksOf(t, n, collective.Config{})
	memory := make([]byte, 4096)
	full := func(c collective.Call) collective.Call {
		c.Type, c.Count = dtype.Float32, 10
		c.Send, c.Recv = make([]byte, 4*10*n), make([]byte, 4*10*n)
		return c
	}
	with := func(c collective.Call, change func(*collective.Call)) collective.Call {
		c = full(c)
		change(&c)
		return c
	}
	kinds := []plan.Kind{plan.AllReduce, plan.Reduce, plan.Broadcast, plan.AllGather, plan.ReduceScatter, plan.AlltoAll, plan.Gather, plan.Scatter, plan.Send, plan.Recv}
	type wrong struct {
		name string
		call collective.Call
		err  error
	}
	var all []wrong
	add := func(name string, call collective.Call, err error) { all = append(all, wrong{name, call, err}) }
	for _, k := range kinds {
		of := collective.Call{Kind: k}
		if k == plan.Send || k == plan.Recv {
			of.Root = 1
		}
		for _, count := range []int{-1, math.MinInt, math.MaxInt, math.MaxInt/4 + 1, math.MaxInt / 4} {
			add(fmt.Sprintf("%v with a count of %d", k, count), with(of, func(c *collective.Call) { c.Count = count }), collective.ErrInvalid)
		}
		add(fmt.Sprintf("%v of an unknown type", k), with(of, func(c *collective.Call) { c.Type = 12 }), collective.ErrInvalid)
		add(fmt.Sprintf("%v of a type far off", k), with(of, func(c *collective.Call) { c.Type = 255 }), collective.ErrInvalid)
		switch k {
		case plan.Reduce, plan.Broadcast, plan.Gather, plan.Scatter, plan.Send, plan.Recv:
			for _, root := range []int{-1, n, math.MaxInt, math.MinInt} {
				add(fmt.Sprintf("%v with root %d", k, root), with(of, func(c *collective.Call) { c.Root = root }), collective.ErrInvalid)
			}
		}
		switch k {
		case plan.AllReduce, plan.Reduce, plan.ReduceScatter:
			add(fmt.Sprintf("%v with an unknown reduction", k),
				with(of, func(c *collective.Call) { c.Op = collective.OpOf(6, reduce.Scalar{}) }), collective.ErrInvalid)
			add(fmt.Sprintf("%v with a scalar of another type", k),
				with(of, func(c *collective.Call) { c.Op = collective.PreMulSum(2.0) }), collective.ErrInvalid)
			add(fmt.Sprintf("%v with a scalar of a type of the same size", k),
				with(of, func(c *collective.Call) { c.Op = collective.PreMulSum(int32(2)) }), collective.ErrInvalid)
		}
		if k != plan.Recv {
			add(fmt.Sprintf("%v without a send buffer", k), with(of, func(c *collective.Call) { c.Send = nil }), collective.ErrInvalid)
			add(fmt.Sprintf("%v with a short send buffer", k), with(of, func(c *collective.Call) { c.Send = c.Send[:39] }), collective.ErrInvalid)
		}
		if k != plan.Send {
			add(fmt.Sprintf("%v without a receive buffer", k), with(of, func(c *collective.Call) { c.Recv = nil }), collective.ErrInvalid)
			add(fmt.Sprintf("%v with a short receive buffer", k), with(of, func(c *collective.Call) { c.Recv = c.Recv[:39] }), collective.ErrInvalid)
		}
		switch k {
		case plan.AllGather, plan.AlltoAll, plan.Gather:
			add(fmt.Sprintf("%v with room for two ranks", k), with(of, func(c *collective.Call) { c.Recv = c.Recv[:119] }), collective.ErrInvalid)
		}
		switch k {
		case plan.ReduceScatter, plan.AlltoAll, plan.Scatter:
			add(fmt.Sprintf("%v with data for two ranks", k), with(of, func(c *collective.Call) { c.Send = c.Send[:119] }), collective.ErrInvalid)
		}
		if k == plan.Send || k == plan.Recv {
			add(fmt.Sprintf("%v with oneself without the other", k), with(of, func(c *collective.Call) { c.Root = 0 }), collective.ErrInvalid)
			continue
		}
		for _, shift := range []int{-39, -4, -1, 1, 4, 39, 41, 79} {
			call := with(of, func(c *collective.Call) {
				c.Send, c.Recv = memory[1000:1000+len(c.Send)], memory[1000+shift:1000+shift+len(c.Recv)]
			})
			send, recv := call.Send, call.Recv
			switch k { // what is looked at
			case plan.AllReduce, plan.Reduce, plan.Broadcast:
				send, recv = send[:40], recv[:40]
			case plan.AllGather, plan.Gather:
				send = send[:40]
			case plan.ReduceScatter, plan.Scatter:
				recv = recv[:40]
			}
			if begin, end := max(0, shift), min(len(send), shift+len(recv)); begin < end {
				add(fmt.Sprintf("%v shifted by %d bytes", k, shift), call, collective.ErrAlias)
			}
		}
	}
	add("an unknown kind", full(collective.Call{Kind: plan.Barrier + 1}), collective.ErrInvalid)
	add("a kind far off", full(collective.Call{Kind: 255}), collective.ErrInvalid)
	add("alltoall in place", with(collective.Call{Kind: plan.AlltoAll}, func(c *collective.Call) { c.Recv = c.Send }), collective.ErrAlias)
	add("allgather in place of another rank", with(collective.Call{Kind: plan.AllGather}, func(c *collective.Call) { c.Send = c.Recv[40:80] }), collective.ErrAlias)
	add("reduce-scatter in place of another rank", with(collective.Call{Kind: plan.ReduceScatter}, func(c *collective.Call) { c.Recv = c.Send[40:80] }), collective.ErrAlias)

	for _, w := range all {
		t.Run(w.name, func(t *testing.T) { refused(t, comms, 0, w.call, w.err) })
	}
	works(t, comms)
}

func TestWrongVectorsAreErrorsBeforeAnythingMoves(t *testing.T) {
	const n = 3
	comms := ranksOf(t, n, collective.Config{})
	right := func() collective.Call {
		return collective.Call{
			Kind: plan.AlltoAllv, Type: dtype.Float64, Send: make([]byte, 8*12), Recv: make([]byte, 8*12),
			SendCounts: []int{4, 4, 4}, SendOffsets: []int{0, 4, 8},
			RecvCounts: []int{4, 4, 4}, RecvOffsets: []int{0, 4, 8},
		}
	}
	for name, tc := range map[string]struct {
		change func(*collective.Call)
		err    error
	}{
		"a negative count":             {func(c *collective.Call) { c.SendCounts[1] = -1 }, collective.ErrInvalid},
		"a negative offset":            {func(c *collective.Call) { c.RecvOffsets[1] = -1 }, collective.ErrInvalid},
		"a count beyond the end":       {func(c *collective.Call) { c.SendCounts[2] = 5 }, collective.ErrInvalid},
		"an offset beyond the end":     {func(c *collective.Call) { c.RecvOffsets[2] = 9 }, collective.ErrInvalid},
		"a sum that overflows":         {func(c *collective.Call) { c.SendOffsets[2], c.SendCounts[2] = math.MaxInt, 4 }, collective.ErrInvalid},
		"a count that overflows":       {func(c *collective.Call) { c.SendCounts[2] = math.MaxInt }, collective.ErrInvalid},
		"a count too few":              {func(c *collective.Call) { c.SendCounts = c.SendCounts[:2] }, collective.ErrInvalid},
		"no counts":                    {func(c *collective.Call) { c.RecvCounts = nil }, collective.ErrInvalid},
		"an offset too many":           {func(c *collective.Call) { c.RecvOffsets = append(c.RecvOffsets, 0) }, collective.ErrInvalid},
		"overlapping receives":         {func(c *collective.Call) { c.RecvOffsets[2] = 7 }, collective.ErrInvalid},
		"one receive inside another":   {func(c *collective.Call) { c.RecvOffsets[2], c.RecvCounts[2] = 1, 1 }, collective.ErrInvalid},
		"no memory":                    {func(c *collective.Call) { c.Send = nil }, collective.ErrInvalid},
		"short memory":                 {func(c *collective.Call) { c.Recv = c.Recv[:95] }, collective.ErrInvalid},
		"in place":                     {func(c *collective.Call) { c.Recv = c.Send }, collective.ErrAlias},
		"overlapping memory":           {func(c *collective.Call) { c.Send, c.Recv = make([]byte, 200)[:96], nil; c.Recv = c.Send[95:][:96:96] }, collective.ErrAlias},
		"an unknown type":              {func(c *collective.Call) { c.Type = 77 }, collective.ErrInvalid},
		"less to oneself than awaited": {func(c *collective.Call) { c.SendCounts[0] = 3 }, collective.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			call := right()
			tc.change(&call)
			refused(t, comms, 0, call, tc.err)
		})
	}
	// Gaps, any order and sharing of what is only read are fine, and Count is not
	// looked at.
	for rank, err := range onRanks(t, comms, func(c *collective.Comm) error {
		call := right()
		call.Count = -7
		call.SendOffsets = []int{8, 8, 8}
		call.RecvOffsets = []int{8, 0, 4}
		return c.Do(context.Background(), call)
	}) {
		require.NoError(t, err, "rank %d", rank)
	}
	works(t, comms)
}

// TestSlicesWhoseLengthsDoNotFitAreRefused calls the typed functions.
func TestSlicesWhoseLengthsDoNotFitAreRefused(t *testing.T) {
	comms := ranksOf(t, 3, collective.Config{})
	c, ctx := comms[1], context.Background()
	s := func(n int) []int64 { return make([]int64, n) }
	for name, err := range map[string]error{
		"allreduce":                 collective.AllReduce(ctx, c, s(3), s(4), collective.Sum),
		"allreduce without receive": collective.AllReduce(ctx, c, s(3), nil, collective.Sum),
		"reduce at the root":        collective.Reduce(ctx, c, s(3), s(4), collective.Sum, 1),
		"broadcast at the root":     collective.Broadcast(ctx, c, s(4), s(3), 1),
		"allgather":                 collective.AllGather(ctx, c, s(3), s(10)),
		"allgather without send":    collective.AllGather(ctx, c, nil, s(9)),
		"reduce-scatter":            collective.ReduceScatter(ctx, c, s(8), s(3), collective.Sum),
		"alltoall":                  collective.AlltoAll(ctx, c, s(9), s(12)),
		"alltoall not by ranks":     collective.AlltoAll(ctx, c, s(10), s(10)),
		"gather at the root":        collective.Gather(ctx, c, s(3), s(3), 1),
		"scatter at the root":       collective.Scatter(ctx, c, s(3), s(3), 1),
	} {
		require.ErrorIs(t, err, collective.ErrInvalid, name)
		require.ErrorContains(t, err, "lengths don't fit", name)
	}
	works(t, comms)
}

// TestWhatIsNotLookedAtMayBeNil leaves out buffers that a rank does not need.
func TestWhatIsNotLookedAtMayBeNil(t *testing.T) {
	comms := ranksOf(t, 3, collective.Config{})
	const root = 1
	for rank, err := range onRanks(t, comms, func(c *collective.Comm) error {
		ctx := context.Background()
		var at []float32 // at the root
		if c.Rank() == root {
			at = floats(12)
		}
		if err := collective.Gather(ctx, c, floats(4), at, root); err != nil {
			return err
		}
		if err := collective.Scatter(ctx, c, at, floats(4), root); err != nil {
			return err
		}
		if at != nil {
			at = at[:4]
		}
		if err := collective.Reduce(ctx, c, floats(4), at, collective.Sum, root); err != nil {
			return err
		}
		return collective.Broadcast(ctx, c, at, floats(4), root)
	}) {
		require.NoError(t, err, "rank %d", rank)
	}
	works(t, comms)
}

// TestNilIsAnErrorNotAPanic calls everything with a nil communicator or context.
func TestNilIsAnErrorNotAPanic(t *testing.T) {
	comms := ranksOf(t, 2, collective.Config{})
	ctx := context.Background()
	s := floats(2)
	var none context.Context
	for name, with := range map[string]struct {
		ctx context.Context
		c   *collective.Comm
	}{"communicator": {ctx, nil}, "zero communicator": {ctx, new(collective.Comm)}, "context": {none, comms[0]}} {
		t.Run(name, func(t *testing.T) {
			ctx, c := with.ctx, with.c
			one := []int{1, 1}
			errs := []error{
				collective.AllReduce(ctx, c, s, s, collective.Sum),
				collective.Reduce(ctx, c, s, s, collective.Sum, 0),
				collective.Broadcast(ctx, c, s, s, 0),
				collective.AllGather(ctx, c, s[:1], s),
				collective.ReduceScatter(ctx, c, s, s[:1], collective.Sum),
				collective.AlltoAll(ctx, c, s, floats(2)),
				collective.AlltoAllv(ctx, c, s, one, one, floats(2), one, one),
				collective.Gather(ctx, c, s[:1], s, 0),
				collective.Scatter(ctx, c, s, s[:1], 0),
				collective.Send(ctx, c, s, 0),
				collective.Recv(ctx, c, s, 0),
				collective.Barrier(ctx, c),
				c.Do(ctx, collective.Call{Kind: plan.Barrier}),
			}
			_, err := c.Split(ctx, 0, 0)
			errs = append(errs, err)
			_, err = c.Shrink(ctx, []int{1})
			errs = append(errs, err)
			for _, start := range []func() (*collective.Handle, error){
				func() (*collective.Handle, error) { return collective.AllReduceAsync(ctx, c, s, s, collective.Sum) },
				func() (*collective.Handle, error) {
					return collective.ReduceAsync(ctx, c, s, s, collective.Sum, 0)
				},
				func() (*collective.Handle, error) { return collective.BroadcastAsync(ctx, c, s, s, 0) },
				func() (*collective.Handle, error) { return collective.AllGatherAsync(ctx, c, s[:1], s) },
				func() (*collective.Handle, error) {
					return collective.ReduceScatterAsync(ctx, c, s, s[:1], collective.Sum)
				},
				func() (*collective.Handle, error) { return collective.AlltoAllAsync(ctx, c, s, floats(2)) },
				func() (*collective.Handle, error) {
					return collective.AlltoAllvAsync(ctx, c, s, one, one, floats(2), one, one)
				},
				func() (*collective.Handle, error) { return collective.GatherAsync(ctx, c, s[:1], s, 0) },
				func() (*collective.Handle, error) { return collective.ScatterAsync(ctx, c, s, s[:1], 0) },
				func() (*collective.Handle, error) { return collective.SendAsync(ctx, c, s, 0) },
				func() (*collective.Handle, error) { return collective.RecvAsync(ctx, c, s, 0) },
				func() (*collective.Handle, error) { return collective.BarrierAsync(ctx, c) },
			} {
				h, err := start()
				require.Nil(t, h)
				errs = append(errs, err)
			}
			for i, err := range errs {
				require.ErrorIs(t, err, collective.ErrInvalid, i)
			}
			g := collective.NewGroup()
			if c != comms[0] {
				require.ErrorIs(t, collective.Barrier(ctx, g.On(c)), collective.ErrInvalid)
				require.ErrorIs(t, g.Add(c, collective.Call{Kind: plan.Barrier}), collective.ErrInvalid)
				require.Error(t, c.Err())
				c.Abort()
				require.NoError(t, c.Close())
			}
			if ctx == nil {
				require.ErrorIs(t, g.Run(ctx), collective.ErrInvalid)
			} else {
				require.NoError(t, g.Run(ctx), "nothing was recorded")
			}
		})
	}
	works(t, comms)
}

// TestAfterCloseEveryCallIsRefused closes all ranks, twice.
func TestAfterCloseEveryCallIsRefused(t *testing.T) {
	comms := ranksOf(t, 2, collective.Config{})
	works(t, comms)
	for range 2 {
		for _, c := range comms {
			require.NoError(t, c.Close())
		}
	}
	for _, c := range comms {
		require.ErrorIs(t, c.Err(), collective.ErrClosed)
		require.ErrorIs(t, collective.Barrier(context.Background(), c), collective.ErrClosed)
		_, err := collective.BarrierAsync(context.Background(), c)
		require.ErrorIs(t, err, collective.ErrClosed)
		_, err = c.Split(context.Background(), 0, 0)
		require.ErrorIs(t, err, collective.ErrClosed)
		g := collective.NewGroup()
		require.NoError(t, collective.Barrier(context.Background(), g.On(c)))
		require.ErrorIs(t, g.Run(context.Background()), collective.ErrClosed)
		_ = c.Stats()
	}
	comms[0].Abort() // no harm
	require.ErrorIs(t, comms[1].Err(), collective.ErrAborted)
}

// TestCloseFromSeveralGoroutinesHasAnEnd closes and aborts at once.
func TestCloseFromSeveralGoroutinesHasAnEnd(t *testing.T) {
	comms := ranksOf(t, 3, collective.Config{})
	onRanks(t, append(append(comms, comms...), comms...), func(c *collective.Comm) error {
		h, err := collective.AllReduceAsync(context.Background(), c, floats(3), floats(3), collective.Sum)
		c.Abort()
		if err == nil {
			<-h.Done()
		}
		return c.Close()
	})
}

func TestAColorMustBeOneThatSplitKnows(t *testing.T) {
	comms := ranksOf(t, 3, collective.Config{})
	for _, color := range []int{-2, math.MinInt} {
		_, err := comms[0].Split(context.Background(), color, 0)
		require.ErrorIs(t, err, collective.ErrInvalid)
		t.Log(err)
	}
	_, err := collective.NewGroup().On(comms[0]).Split(context.Background(), 0, 0)
	require.ErrorIs(t, err, collective.ErrInvalid)
	_, err = collective.NewGroup().On(comms[0]).Start(context.Background(), collective.Call{Kind: plan.Barrier})
	require.ErrorIs(t, err, collective.ErrInvalid)
	// No color at all, and extreme ones.
	children := make([]*collective.Comm, 3)
	for rank, err := range onRanks(t, comms, func(c *collective.Comm) error {
		color := []int{collective.NoColor, math.MaxInt, math.MaxInt}[c.Rank()]
		child, err := c.Split(context.Background(), color, []int{0, math.MaxInt, math.MinInt}[c.Rank()])
		children[c.Rank()] = child
		return err
	}) {
		require.NoError(t, err, "rank %d", rank)
	}
	require.Nil(t, children[0])
	require.NoError(t, children[0].Close(), "as of a communicator that this rank has no part in")
	require.Equal(t, []int{1, 0, 2}, []int{children[1].Rank(), children[2].Rank(), children[1].Size()})
	works(t, []*collective.Comm{children[2], children[1]})
	works(t, comms)
	for _, c := range children {
		require.NoError(t, c.Close())
	}
}

func TestARankCanSendToItselfInAGroup(t *testing.T) {
	for n := 1; n <= 3; n++ {
		comms := ranksOf(t, n, collective.Config{})
		for rank, err := range onRanks(t, comms, func(c *collective.Comm) error {
			ctx, me := context.Background(), c.Rank()
			a, b := []int32{1, 2, 3}, []int32{4}
			x, y := make([]int32, 3), make([]int32, 1)
			g := collective.NewGroup()
			for _, err := range []error{
				collective.Recv(ctx, g.On(c), x, me), collective.Send(ctx, g.On(c), a, me),
				collective.Send(ctx, g.On(c), b, me), collective.Recv(ctx, g.On(c), y, me),
				collective.Send(ctx, g.On(c), b[:0], me), collective.Recv(ctx, g.On(c), y[:0], me),
			} {
				if err != nil {
					return err
				}
			}
			if err := g.Run(ctx); err != nil {
				return err
			}
			if x[2] != 3 || y[0] != 4 {
				return fmt.Errorf("received %v and %v", x, y)
			}
			return nil
		}) {
			require.NoError(t, err, "rank %d", rank)
		}
		c, ctx, me := comms[0], context.Background(), 0
		for name, record := range map[string]func(on *collective.Comm){
			"a send": func(on *collective.Comm) { _ = collective.Send(ctx, on, floats(1), me) },
			"a receive too few": func(on *collective.Comm) {
				_ = collective.Send(ctx, on, floats(1), me)
				_ = collective.Send(ctx, on, floats(1), me)
				_ = collective.Recv(ctx, on, floats(1), me)
			},
			"another length": func(on *collective.Comm) {
				_ = collective.Send(ctx, on, floats(1), me)
				_ = collective.Recv(ctx, on, floats(2), me)
			},
			"another type": func(on *collective.Comm) {
				_ = collective.Send(ctx, on, floats(2), me)
				_ = collective.Recv(ctx, on, make([]float64, 1), me)
			},
			"a block of an alltoall": func(on *collective.Comm) {
				_ = collective.Send(ctx, on, floats(1), me)
				_ = collective.AlltoAll(ctx, on, floats(n), floats(n))
				_ = collective.Recv(ctx, on, floats(1), me)
			},
		} {
			g := collective.NewGroup()
			record(g.On(c))
			done, err := make(chan struct{}), error(nil)
			go func() { defer close(done); err = g.Run(ctx) }()
			comesBack(t, done, c.Abort)
			require.ErrorIs(t, err, collective.ErrInvalid, name)
			t.Log(err)
		}
		works(t, comms)
	}
}

// TestAGroupWithAMistakeLaunchesNothing has a group of several ranks in which the
// call of the last is wrong only together with the others.
func TestAGroupWithAMistakeLaunchesNothing(t *testing.T) {
	comms := ranksOf(t, 3, collective.Config{})
	g := collective.NewGroup()
	for _, c := range comms {
		require.NoError(t, collective.AllReduce(context.Background(), g.On(c), floats(3), floats(3), collective.Sum))
	}
	require.NoError(t, collective.Send(context.Background(), g.On(comms[2]), floats(3), 2))
	require.ErrorIs(t, g.Run(context.Background()), collective.ErrInvalid)
	works(t, comms)
}

// TestATimeoutOfNoneWaitsAsLongAsItTakes has a rank come late.
func TestATimeoutOfNoneWaitsAsLongAsItTakes(t *testing.T) {
	comms := ranksOf(t, 2, collective.Config{})
	for rank, err := range onRanks(t, comms, func(c *collective.Comm) error {
		time.Sleep(time.Duration(c.Rank()) * 300 * time.Millisecond)
		return exchange(c, 2)
	}) {
		require.NoError(t, err, "rank %d", rank)
	}
}
