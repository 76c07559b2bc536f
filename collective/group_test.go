package collective_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/spin"
)

// noErrors requires all ranks to have succeeded.
func noErrors(t testing.TB, errs []error, args ...any) {
	t.Helper()
	for rank, err := range errs {
		require.NoError(t, err, append([]any{"rank", rank}, args...)...)
	}
}

// letter is element i of the k-th message from one rank to another.
func letter(from, to, k, i int) int32 { return int32(from<<24 ^ to<<16 ^ k<<8 ^ i*7) }

func letters(from, to, k, n int) []int32 {
	data := make([]int32, n)
	for i := range data {
		data[i] = letter(from, to, k, i)
	}
	return data
}

// checkLetters compares a received message with what was sent.
func checkLetters(data []int32, from, to, k int) error {
	for i, got := range data {
		if want := letter(from, to, k, i); got != want {
			return fmt.Errorf("message %d from %d to %d: element %d of %d is %#x, want %#x", k, from, to, i, len(data), got, want)
		}
	}
	return nil
}

// correspondence is all pairs of ranks exchanging messages of given lengths, in one
// group of each rank, recorded in random order.
func correspondence(c *collective.Comm, lengths []int, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, uint64(c.Rank())))
	ctx, me := context.Background(), c.Rank()
	g := collective.NewGroup()
	on := g.On(c)
	received := make([][][]int32, c.Size())
	// Messages of a pair keep their order; pairs and directions mix.
	var streams []func(k int) error
	for peer := range c.Size() {
		received[peer] = make([][]int32, len(lengths))
		streams = append(streams,
			func(k int) error { return collective.Send(ctx, on, letters(me, peer, k, lengths[k]), peer) },
			func(k int) error {
				received[peer][k] = make([]int32, lengths[k])
				return collective.Recv(ctx, on, received[peer][k], peer)
			})
	}
	next := make([]int, len(streams))
	for range len(streams) * len(lengths) {
		s := r.IntN(len(streams))
		for next[s] == len(lengths) {
			s = (s + 1) % len(streams)
		}
		if err := streams[s](next[s]); err != nil {
			return err
		}
		next[s]++
	}
	if err := g.Run(ctx); err != nil {
		return err
	}
	for peer := range received {
		for k, data := range received[peer] {
			if err := checkLetters(data, peer, me, k); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestAllPairsExchangeSeveralMessagesInOneGroup(t *testing.T) {
	big := 400_000
	if underRace {
		big = 60_000
	}
	seed := seedOf(t)
	for _, tc := range []struct {
		n       int
		lengths []int
	}{
		{1, []int{3, 0, 5}}, {2, []int{big, 1, 0, big}}, {3, []int{0, big, 5000, 3}}, {5, []int{40_000, 1, big / 4}},
		{9, []int{1000, 0, 20_000}}, {12, []int{50_000, 7}}, {17, []int{1, 4096}},
	} {
		for _, config := range []collective.Config{
			{}, {Channels: 2}, {Channels: 4, P2PChunkSize: 4096}, {Protocol: plan.LL}, {Protocol: plan.Simple, P2PChunkSize: 512, Wait: spin.Block},
		} {
			if tc.n > 9 && (config.Protocol != plan.AutoProtocol || underRace) {
				continue
			}
			where := fmt.Sprintf("%d ranks, %s", tc.n, configName(config))
			comms := ranksOf(t, tc.n, config)
			for range 2 {
				noErrors(t, onRanks(t, comms, func(c *collective.Comm) error { return correspondence(c, tc.lengths, seed) }), where)
			}
			works(t, comms)
		}
	}
}

// TestLargeMessagesShiftAroundARing sends what no FIFO holds to the right, in
// groups, again and again.
func TestLargeMessagesShiftAroundARing(t *testing.T) {
	for n := 1; n <= 5; n++ {
		comms := ranksOf(t, n, collective.Config{Channels: n % 3, P2PChunkSize: 8192})
		noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
			ctx, me := context.Background(), c.Rank()
			right, left := (me+1)%n, (me+n-1)%n
			parcel := letters(me, 0, 0, 300_000)
			g := collective.NewGroup()
			for range n {
				arriving := make([]int32, len(parcel))
				if err := errors.Join(collective.Send(ctx, g.On(c), parcel, right), collective.Recv(ctx, g.On(c), arriving, left)); err != nil {
					return err
				}
				if err := g.Run(ctx); err != nil {
					return err
				}
				parcel = arriving
			}
			return checkLetters(parcel, me, 0, 0)
		}), n)
	}
}

// TestOneGoroutineDrivesAllRanksThroughEveryCollective records every rank's call in
// one group.
func TestOneGoroutineDrivesAllRanksThroughEveryCollective(t *testing.T) {
	for n := 1; n <= 9; n += 2 {
		for _, count := range []int{0, 1, 1000, 70_000} {
			if underRace && n*count > 100_000 {
				continue
			}
			comms := ranksOf(t, n, collective.Config{})
			ctx := context.Background()
			buffers := func(blocks int) [][]int32 {
				all := make([][]int32, n)
				for rank := range all {
					all[rank] = make([]int32, blocks*count)
				}
				return all
			}
			mine, blocks := buffers(1), buffers(n)
			for rank := range n {
				for i := range mine[rank] {
					mine[rank][i] = int32(rank + i)
				}
				for i := range blocks[rank] {
					blocks[rank][i] = int32(1000*rank + i)
				}
			}
			root := n / 2
			total := func(i int) int32 { return int32(n*(n-1)/2 + n*i) }
			all, sums, firsts, shards := buffers(n), buffers(1), buffers(1), buffers(1)
			turned, rooted, gathered, scattered := buffers(n), buffers(1), buffers(n), buffers(1)
			g := collective.NewGroup()
			for rank, c := range comms {
				on := g.On(c)
				for _, err := range []error{
					collective.AllReduce(ctx, on, mine[rank], sums[rank], collective.Sum),
					collective.Barrier(ctx, on),
					collective.AllGather(ctx, on, mine[rank], all[rank]),
					collective.Reduce(ctx, on, mine[rank], rooted[rank], collective.Sum, root),
					collective.ReduceScatter(ctx, on, blocks[rank], shards[rank], collective.Max),
					collective.Broadcast(ctx, on, mine[rank], firsts[rank], root),
					collective.AlltoAll(ctx, on, blocks[rank], turned[rank]),
					collective.Gather(ctx, on, mine[rank], gathered[rank], root),
					collective.Scatter(ctx, on, blocks[rank], scattered[rank], root),
				} {
					require.NoError(t, err)
				}
			}
			done, err := make(chan struct{}), error(nil)
			go func() { defer close(done); err = g.Run(ctx) }()
			comesBack(t, done, comms[0].Abort)
			require.NoError(t, err, "%d ranks, count %d", n, count)
			for rank := range n {
				for i := range count {
					require.Equal(t, total(i), sums[rank][i])
					require.Equal(t, int32(root+i), firsts[rank][i])
					require.Equal(t, int32(1000*(n-1)+rank*count+i), shards[rank][i])
					require.Equal(t, int32(1000*root+rank*count+i), scattered[rank][i])
					if rank == root {
						require.Equal(t, total(i), rooted[rank][i])
					} else {
						require.Zero(t, rooted[rank][i])
					}
					for peer := range n {
						require.Equal(t, int32(peer+i), all[rank][peer*count+i])
						require.Equal(t, int32(1000*peer+rank*count+i), turned[rank][peer*count+i])
						if rank == root {
							require.Equal(t, int32(peer+i), gathered[rank][peer*count+i])
						}
					}
					if i > 100 {
						break // the table test looks at every element
					}
				}
			}
		}
	}
}

// TestTwoCommunicatorsInOneGroup fuses calls of a communicator, of one with the
// ranks in reverse, and of the halves.
func TestTwoCommunicatorsInOneGroup(t *testing.T) {
	const n = 4
	comms := ranksOf(t, n, collective.Config{})
	noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
		ctx, me := context.Background(), c.Rank()
		reverse, err := c.Split(ctx, 0, -me)
		if err != nil {
			return err
		}
		defer reverse.Close()
		half, err := c.Split(ctx, me/2, 0)
		if err != nil {
			return err
		}
		defer half.Close()
		g := collective.NewGroup()
		for round := range 50 {
			sum, sums, first := []int32{int32(me)}, []int32{int32(me)}, []int32{int32(me + round)}
			sent, got := letters(me, (me+1)%n, round, 5000), make([]int32, 5000)
			for _, err := range []error{
				collective.Send(ctx, g.On(c), sent, (me+1)%n),
				collective.Broadcast(ctx, g.On(reverse), first, first, 0),
				collective.AllReduce(ctx, g.On(half), sums, sums, collective.Sum),
				collective.Recv(ctx, g.On(c), got, (me+3)%n),
				collective.AllReduce(ctx, g.On(c), sum, sum, collective.Sum),
			} {
				if err != nil {
					return err
				}
			}
			if err := g.Run(ctx); err != nil {
				return err
			}
			if sum[0] != 6 || sums[0] != int32(1+4*(me/2)) || first[0] != int32(n-1+round) {
				return fmt.Errorf("round %d: %v %v %v", round, sum, sums, first)
			}
			if err := checkLetters(got, (me+3)%n, me, round); err != nil {
				return err
			}
		}
		return g.Run(ctx) // is empty
	}))
	works(t, comms)
}

// TestAnEmptyGroupDoesNothing runs and starts one.
func TestAnEmptyGroupDoesNothing(t *testing.T) {
	g := collective.NewGroup()
	require.NoError(t, g.Run(context.Background()))
	h, err := g.Start(context.Background())
	require.NoError(t, err)
	require.NoError(t, h.Wait(context.Background()))
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, h.Wait(ended), "a launch that has ended has ended, whatever the context says")
}

// TestAGroupCanBeUsedAgainAfterAnError records something wrong, and then not.
func TestAGroupCanBeUsedAgainAfterAnError(t *testing.T) {
	comms := ranksOf(t, 2, collective.Config{})
	noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
		ctx := context.Background()
		g := collective.NewGroup()
		if err := collective.Send(ctx, g.On(c), floats(1), 7); !errors.Is(err, collective.ErrInvalid) {
			return fmt.Errorf("a message to rank 7: %w", err)
		}
		if err := collective.Send(ctx, g.On(c), floats(1), c.Rank()); err != nil {
			return err
		}
		if err := g.Run(ctx); !errors.Is(err, collective.ErrInvalid) {
			return fmt.Errorf("a message to oneself alone: %w", err)
		}
		buffer := []float32{1}
		if err := collective.AllReduce(ctx, g.On(c), buffer, buffer, collective.Sum); err != nil {
			return err
		}
		if err := g.Run(ctx); err != nil || buffer[0] != 2 {
			return fmt.Errorf("%v, %w", buffer, err)
		}
		return nil
	}))
}

// TestAsynchronousCallsEndInTheOrderTheyWereIssued issues many of different sizes,
// with blocking ones and groups in between.
func TestAsynchronousCallsEndInTheOrderTheyWereIssued(t *testing.T) {
	for _, channels := range []int{0, 1, 3} {
		for n := 1; n <= 4; n++ {
			comms := ranksOf(t, n, collective.Config{Channels: channels})
			noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
				ctx := context.Background()
				r := rand.New(rand.NewPCG(1, uint64(n))) // the same on all ranks
				var handles []*collective.Handle
				check := func(k int) error { // all before k have ended
					for i, h := range handles[:k] {
						select {
						case <-h.Done():
						default:
							return fmt.Errorf("launch %d is under way though %d, issued later, has ended", i, k)
						}
					}
					return nil
				}
				sums := make([][]int64, 60)
				for k := range sums {
					sums[k] = make([]int64, 1+r.IntN(1<<r.IntN(16)))
					for i := range sums[k] {
						sums[k][i] = int64(c.Rank() + k + i)
					}
					switch r.IntN(4) {
					case 0:
						if err := collective.AllReduce(ctx, c, sums[k], sums[k], collective.Sum); err != nil {
							return err
						}
						if err := check(len(handles)); err != nil {
							return fmt.Errorf("a blocking call came before its turn: %w", err)
						}
					case 1:
						g := collective.NewGroup()
						if err := collective.AllReduce(ctx, g.On(c), sums[k], sums[k], collective.Sum); err != nil {
							return err
						}
						if err := collective.Barrier(ctx, g.On(c)); err != nil {
							return err
						}
						h, err := g.Start(ctx)
						if err != nil {
							return err
						}
						handles = append(handles, h)
					default:
						h, err := collective.AllReduceAsync(ctx, c, sums[k], sums[k], collective.Sum)
						if err != nil {
							return err
						}
						handles = append(handles, h)
					}
				}
				for k := len(handles) - 1; k >= 0; k -= 7 {
					if err := handles[k].Wait(ctx); err != nil {
						return err
					}
					if err := check(k); err != nil {
						return err
					}
				}
				for k, sum := range sums {
					for i, got := range sum {
						if want := int64(n*(n-1)/2 + n*(k+i)); got != want {
							return fmt.Errorf("call %d: element %d is %d, want %d", k, i, got, want)
						}
					}
				}
				return nil
			}), channels)
		}
	}
}

// TestABlockingCallDirectlyBehindAnAsynchronousOneIsNotRefused waits for a handle
// and calls at once, again and again: nobody else is inside a call.
func TestABlockingCallDirectlyBehindAnAsynchronousOneIsNotRefused(t *testing.T) {
	comms := ranksOf(t, 2, collective.Config{})
	noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
		ctx := context.Background()
		calls := 3000
		if underRace {
			calls = 300
		}
		for range calls {
			h, err := collective.BarrierAsync(ctx, c)
			if err != nil {
				return err
			}
			if c.Rank() == 0 {
				<-h.Done()
			}
			if err := collective.Barrier(ctx, c); err != nil {
				return err
			}
		}
		return nil
	}))
}

// TestGivingUpOnAHandleLeavesTheLaunchAlone stops waiting, and waits again.
func TestGivingUpOnAHandleLeavesTheLaunchAlone(t *testing.T) {
	comms := ranksOf(t, 2, collective.Config{})
	buffer := []float32{1}
	h, err := collective.AllReduceAsync(context.Background(), comms[0], buffer, buffer, collective.Sum)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	require.Equal(t, context.DeadlineExceeded, h.Wait(ctx))
	select {
	case <-h.Done():
		require.Fail(t, "ended without rank 1")
	default:
	}
	require.NoError(t, comms[0].Err())
	other := []float32{2}
	require.NoError(t, collective.AllReduce(context.Background(), comms[1], other, other, collective.Sum))
	<-h.Done()
	require.NoError(t, h.Wait(ctx))
	require.NoError(t, h.Err())
	require.Equal(t, []float32{3}, buffer)
	var none context.Context
	require.ErrorIs(t, h.Wait(none), collective.ErrInvalid)
	works(t, comms)
}

// TestCloseWaitsForWhatWasIssued closes with launches in flight.
func TestCloseWaitsForWhatWasIssued(t *testing.T) {
	for _, n := range []int{1, 2, 4} {
		comms := ranksOf(t, n, collective.Config{})
		noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
			time.Sleep(time.Duration(c.Rank()) * 2 * time.Millisecond)
			buffers := make([][]int32, 100)
			var last *collective.Handle
			for k := range buffers {
				buffers[k] = []int32{1, int32(k)}
				var err error
				if last, err = collective.AllReduceAsync(context.Background(), c, buffers[k], buffers[k], collective.Sum); err != nil {
					return err
				}
			}
			if err := c.Close(); err != nil {
				return err
			}
			select {
			case <-last.Done():
			default:
				return errors.New("Close came back with a launch under way")
			}
			for k, b := range buffers {
				if b[0] != int32(n) || b[1] != int32(n*k) {
					return fmt.Errorf("call %d left %v", k, b)
				}
			}
			return last.Err()
		}))
	}
}

// TestArgumentsOfAnAsynchronousAlltoAllvMayBeReused changes counts and offsets as
// soon as the call was issued.
func TestArgumentsOfAnAsynchronousAlltoAllvMayBeReused(t *testing.T) {
	const n = 3
	comms := ranksOf(t, n, collective.Config{})
	noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
		ctx, me := context.Background(), c.Rank()
		var handles []*collective.Handle
		var results [][]int32
		counts, sends, offsets := make([]int, n), make([]int, n), make([]int, n)
		for round := range 20 {
			for peer := range n {
				sends[peer], counts[peer], offsets[peer] = me+round%4, peer+round%4, 10*peer
			}
			send := make([]int32, 10*n)
			for peer := range n {
				copy(send[10*peer:], letters(me, peer, round, sends[peer]))
			}
			recv := make([]int32, 10*n)
			h, err := collective.AlltoAllvAsync(ctx, c, send, sends, offsets, recv, counts, offsets)
			if err != nil {
				return err
			}
			handles, results = append(handles, h), append(results, recv)
			for peer := range n {
				sends[peer], counts[peer], offsets[peer] = -1, 1<<40, -7
			}
		}
		for round, h := range handles {
			if err := h.Wait(ctx); err != nil {
				return err
			}
			for peer := range n {
				if err := checkLetters(results[round][10*peer:][:peer+round%4], peer, me, round); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

// TestConcurrentCallsOnOneCommunicatorAreRefusedOrInTurn has several goroutines of
// each rank call the same thing: whatever is not refused must give right data, and
// a refusal must leave no trace.
func TestConcurrentCallsOnOneCommunicatorAreRefusedOrInTurn(t *testing.T) {
	const n, goroutines, calls = 2, 8, 200
	comms := ranksOf(t, n, collective.Config{})
	var refusals atomic.Int64
	var served [n]atomic.Int64
	noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
		errs := make([]error, goroutines)
		var all sync.WaitGroup
		for i := range goroutines {
			all.Go(func() {
				for served[c.Rank()].Load() < calls && errs[i] == nil {
					buffer := []int64{3, 5, 7}
					err := collective.AllReduce(context.Background(), c, buffer, buffer, collective.Sum)
					switch {
					case errors.Is(err, collective.ErrConcurrentUse):
						refusals.Add(1)
						if buffer[0] != 3 || buffer[1] != 5 || buffer[2] != 7 {
							errs[i] = fmt.Errorf("a refused call changed its buffer: %v", buffer)
						}
						runtime.Gosched()
					case err == nil && (buffer[0] != 3*n || buffer[1] != 5*n || buffer[2] != 7*n):
						errs[i] = fmt.Errorf("the sum is %v", buffer)
					case err == nil:
						served[c.Rank()].Add(1)
					default:
						errs[i] = err
					}
				}
			})
		}
		// Ranks make different numbers of calls in the end: the slower one must
		// not wait for the other.
		done := make(chan struct{})
		go func() { all.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(patience):
			c.Abort()
			<-done
		}
		for i, err := range errs {
			if errors.Is(err, collective.ErrPeerClosed) && served[c.Rank()].Load() >= calls {
				errs[i] = nil
			}
		}
		_ = c.Close()
		return errors.Join(errs...)
	}))
	t.Logf("%d refusals beside %d and %d calls", refusals.Load(), served[0].Load(), served[1].Load())
}

// TestStartsFromSeveralGoroutinesAreServedOneByOne issues the same call from many
// goroutines: in whatever order, all are served.
func TestStartsFromSeveralGoroutinesAreServedOneByOne(t *testing.T) {
	const n, goroutines, calls = 3, 4, 50
	comms := ranksOf(t, n, collective.Config{})
	noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
		errs := make([]error, goroutines)
		var all sync.WaitGroup
		for i := range goroutines {
			all.Go(func() {
				for range calls {
					buffer := []int64{3, 5}
					h, err := collective.AllReduceAsync(context.Background(), c, buffer, buffer, collective.Sum)
					if err == nil {
						err = h.Wait(context.Background())
					}
					if err == nil && (buffer[0] != 3*n || buffer[1] != 5*n) {
						err = fmt.Errorf("the sum is %v", buffer)
					}
					if err != nil {
						errs[i] = err
						return
					}
				}
			})
		}
		all.Wait()
		return errors.Join(errs...)
	}))
}

// TestAGroupOfManySmallCollectives fuses more calls than a FIFO has slots.
func TestAGroupOfManySmallCollectives(t *testing.T) {
	for n := 1; n <= 4; n++ {
		comms := ranksOf(t, n, collective.Config{Channels: 2})
		noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
			g := collective.NewGroup()
			buffers := make([][]byte, 150)
			for k := range buffers {
				buffers[k] = []byte{1, byte(k), 0, 0, 0, 0, 0, 0}
				what := collective.Call{Kind: plan.AllReduce, Type: dtype.Uint8, Count: 2 + k%7, Send: buffers[k], Recv: buffers[k]}
				if k%3 == 1 {
					what.Kind, what.Root = plan.Broadcast, k%n
				}
				if err := g.Add(c, what); err != nil {
					return err
				}
			}
			if err := g.Run(context.Background()); err != nil {
				return err
			}
			for k, b := range buffers {
				factor := byte(n)
				if k%3 == 1 {
					factor = 1
				}
				if b[0] != factor || b[1] != factor*byte(k) {
					return fmt.Errorf("call %d left %v", k, b)
				}
			}
			return nil
		}))
	}
}
