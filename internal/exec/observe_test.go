package exec

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"runtime/trace"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/ledger"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport/inproc"
)

// watchedEngines are engines with accounting and labels.
func watchedEngines(t *testing.T, n int, w plan.World, name string) []*Engine {
	t.Helper()
	l, hub := ledger.New(n), inproc.NewHub()
	all := make([]*Engine, n)
	for rank := range all {
		w.Rank, w.Size = rank, n
		all[rank] = New(Config{
			World: w, Transport: hub, Ledger: l, Policy: spin.Adaptive, Waiters: n,
			Account: true, Labels: true, Name: name,
		})
	}
	t.Cleanup(func() { closeAll(all) })
	return all
}

// What all ranks together send and receive follows from the collective alone: every
// byte that crosses a FIFO counts at both of its ends.
func TestBytesAreThoseThatTheCollectiveNeeds(t *testing.T) {
	const elements = 1237 // nothing that divides
	for _, tc := range []struct {
		kind plan.Kind
		per  func(n int) int // elements that cross FIFOs, over elements of a call
	}{
		{plan.AllReduce, func(n int) int { return 2 * (n - 1) }}, // of a ring, and of a tree's n-1 edges
		{plan.Broadcast, func(n int) int { return n - 1 }},
		{plan.Reduce, func(n int) int { return n - 1 }},
		{plan.AllGather, func(n int) int { return n * (n - 1) }},
		{plan.ReduceScatter, func(n int) int { return n * (n - 1) }},
		{plan.AlltoAll, func(n int) int { return n * (n - 1) }},
	} {
		for _, n := range []int{1, 2, 3, 5} {
			for _, algorithm := range []plan.Algorithm{plan.Ring, plan.Tree, plan.OneShot, plan.TwoShot} {
				if algorithm == plan.Tree && tc.kind != plan.AllReduce {
					continue
				}
				for _, protocol := range []plan.Protocol{plan.Simple, plan.LL, plan.LL128, plan.Direct} {
					if protocol == plan.Direct && (tc.kind == plan.AlltoAll || algorithm != plan.OneShot && algorithm != plan.TwoShot) ||
						algorithm == plan.TwoShot && (protocol != plan.Direct || tc.kind == plan.Reduce) {
						continue // results of shares of a Reduce cross, too, but the root's
					}
					w := smallWorld(2)
					w.DeskPayload = 64 << 10
					w.Force.Algorithm, w.Force.Protocol = algorithm, protocol
					name := fmt.Sprintf("%v %v %v, %d ranks", tc.kind, algorithm, protocol, n)
					all := watchedEngines(t, n, w, name)
					errs := onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
						call := Call{Spec: plan.Spec{Kind: tc.kind, Type: dtype.Int32, Op: reduce.Sum, Count: elements}}
						call.Send, call.Recv = make([]byte, 4*elements*n), make([]byte, 4*elements*n)
						if tc.kind != plan.ReduceScatter && tc.kind != plan.AlltoAll {
							call.Send = call.Send[:4*elements]
						}
						if tc.kind != plan.AllGather && tc.kind != plan.AlltoAll {
							call.Recv = call.Recv[:4*elements]
						}
						return e.Run(ctx, &call)
					})
					for _, err := range errs {
						require.NoError(t, err, name)
					}
					want := tc.per(n)
					if tc.kind == plan.AllReduce && algorithm == plan.OneShot {
						want = n * (n - 1)
					}
					got := uint64(0)
					for _, e := range all {
						got += e.Counters().Bytes
					}
					require.EqualValues(t, 2*4*elements*want, got, name)
				}
			}
		}
	}
}

func TestLaunchesAreAccounted(t *testing.T) {
	all := watchedEngines(t, 3, smallWorld(2), "accounted")
	call := func(ctx context.Context, rank int, e *Engine) error {
		return run(ctx, e, newSum(rank, 3, 5000), newExchange(rank, 3, 700))
	}
	var last [3]spin.Counters
	for range 3 {
		for _, err := range onEach(t, all, call) {
			require.NoError(t, err)
		}
		for rank, e := range all {
			c := e.Counters()
			require.Greater(t, c.Wall, last[rank].Wall)
			require.Greater(t, c.CPU, last[rank].CPU)
			require.Greater(t, c.Bytes, last[rank].Bytes)
			require.LessOrEqual(t, c.Waiting, c.CPU)
			require.LessOrEqual(t, c.CPU, c.Wall)
			require.GreaterOrEqual(t, c.Threads, 2, "a block per channel")
			last[rank] = c
		}
	}
}

func TestWithoutAccountingNothingIsTimed(t *testing.T) {
	all := engines(t, 2, smallWorld(2), spin.Adaptive, inOneHub())
	for _, err := range onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		return run(ctx, e, newSum(rank, 2, 5000), newExchange(rank, 2, 700))
	}) {
		require.NoError(t, err)
	}
	for _, e := range all {
		c := e.Counters()
		require.Zero(t, c.Wall+c.CPU+c.Waiting)
		require.Zero(t, c.Bytes)
	}
}

// goroutines is the goroutine profile as text, with labels.
func goroutines(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
	return b.String()
}

func labelText(channel int, name string, rank int) string {
	return fmt.Sprintf(`{"channel":"%d", "comm":%q, "rank":"%d", "role":"block"}`, channel, name, rank)
}

// A persistent block has labels all the time, the caller's goroutine while it is one.
func TestBlocksHaveLabels(t *testing.T) {
	all := watchedEngines(t, 2, smallWorld(2), "labelled")
	inside := make(chan string, 1)
	errs := onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		if rank == 1 { // late: rank 0 waits meanwhile
			for {
				profile := goroutines(t)
				if bytes.Contains([]byte(profile), []byte(labelText(0, "labelled", 0))) || ctx.Err() != nil {
					inside <- profile
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
		pprof.Do(ctx, pprof.Labels("mine", fmt.Sprint(rank)), func(mine context.Context) {
			s := newSum(rank, 2, 5000)
			ctx = mine
			if err := e.Run(mine, callOf(s)); err != nil {
				t.Error(err)
			}
			if profile := goroutines(t); !bytes.Contains([]byte(profile), fmt.Appendf(nil, `{"mine":"%d"}`, rank)) {
				t.Errorf("rank %d's own label is gone:\n%s", rank, profile)
			}
		})
		return nil
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Contains(t, <-inside, labelText(0, "labelled", 0))
	for rank := range all {
		require.Contains(t, goroutines(t), labelText(1, "labelled", rank))
		require.NotContains(t, goroutines(t), labelText(0, "labelled", rank))
	}
	closeAll(all)
	require.NotContains(t, goroutines(t), "labelled")
}

func TestLaunchesAndWaitsAreRegionsOfTheTrace(t *testing.T) {
	if trace.IsEnabled() {
		t.Skip("the tests are being traced")
	}
	w := smallWorld(2)
	w.Force.Protocol = plan.Simple
	all := watchedEngines(t, 2, w, "traced")
	var out bytes.Buffer
	require.NoError(t, trace.Start(&out))
	begins := make(chan uint64)
	broadcast := func(root int) Call {
		const elements = 50_000 // far more than the FIFOs hold
		call := Call{Spec: plan.Spec{Kind: plan.Broadcast, Type: dtype.Int32, Root: root, Count: elements}}
		call.Send, call.Recv = make([]byte, 4*elements), make([]byte, 4*elements)
		return call
	}
	errs := onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		for _, call := range []Call{broadcast(0), broadcast(1), newExchange(rank, 2, 700).Call} {
			// Rank 1 is late: rank 0 waits for credit, for data, for a message.
			if rank == 0 {
				begins <- e.Counters().Waits
			} else {
				for before := <-begins; all[0].Counters().Waits == before && ctx.Err() == nil; {
					time.Sleep(time.Millisecond)
				}
			}
			if err := e.Run(ctx, &call); err != nil {
				return err
			}
		}
		return nil
	})
	trace.Stop()
	for _, err := range errs {
		require.NoError(t, err)
	}
	for _, region := range []string{"Broadcast", "AlltoAll", "wait credit", "wait data", "wait message"} {
		require.True(t, bytes.Contains(out.Bytes(), []byte(region)), region)
	}
}
