package collective_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/spin"
)

// What programs have been seen to do, and other libraries to get wrong.

// TestSteadyProgressOnFewProcessorsUnderForcedCollections has many more ranks than
// processors, under every way of waiting, while the collector runs in a loop.
func TestSteadyProgressOnFewProcessorsUnderForcedCollections(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	for _, processors := range []int{1, 2, 4} {
		for _, wait := range []spin.Policy{spin.Adaptive, spin.Spin, spin.Yield, spin.Block} {
			t.Run(fmt.Sprintf("%d processors, %v", processors, wait), func(t *testing.T) {
				runtime.GOMAXPROCS(processors)
				n, calls := 8, 100
				if wait == spin.Spin || underRace {
					calls = 10
				}
				stop := make(chan struct{})
				var collector sync.WaitGroup
				collector.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							runtime.GC()
						}
					}
				})
				comms := ranksOf(t, n, collective.Config{Wait: wait})
				errs := onRanks(t, comms, func(c *collective.Comm) error {
					buffer := make([]int32, 1024)
					for k := range calls {
						for i := range buffer {
							buffer[i] = int32(c.Rank() + k + i)
						}
						if err := collective.AllReduce(context.Background(), c, buffer, buffer, collective.Sum); err != nil {
							return err
						}
						for i, got := range buffer {
							if want := int32(n*(n-1)/2 + n*(k+i)); got != want {
								return fmt.Errorf("call %d: element %d is %d, want %d", k, i, got, want)
							}
						}
					}
					return nil
				})
				close(stop)
				collector.Wait()
				noErrors(t, errs)
			})
		}
	}
}

// TestManyCommunicatorsInParallel has 128 communicators of 4 ranks at work at once.
func TestManyCommunicatorsInParallel(t *testing.T) {
	const communicators, n, count = 128, 4, 1024
	calls := 20
	if underRace {
		calls = 3
	}
	if os.Getenv("GOLLECTIVE_TEST_FULL") != "" {
		calls = 1000
	}
	var all []*collective.Comm
	number := make(map[*collective.Comm]int)
	for k := range communicators {
		for _, c := range ranksOf(t, n, collective.Config{}) {
			all = append(all, c)
			number[c] = k
		}
	}
	noErrors(t, onRanks(t, all, func(c *collective.Comm) error {
		buffer := make([]float32, count)
		for call := range calls {
			for i := range buffer {
				buffer[i] = float32(number[c] + c.Rank() + call + i)
			}
			if err := collective.AllReduce(context.Background(), c, buffer, buffer, collective.Sum); err != nil {
				return err
			}
			for i, got := range buffer {
				if want := float32(n*(number[c]+call+i) + n*(n-1)/2); got != want {
					return fmt.Errorf("communicator %d, call %d: element %d is %v, want %v", number[c], call, i, got, want)
				}
			}
		}
		return nil
	}))
}

// TestTwoCommunicatorsUsedInDifferentOrdersEndAtTheDeadline has ranks 0 and 1 call on
// A and then on B, ranks 2 and 3 on B and then on A, with blocking calls. No
// communicator knows of the other; each names whom it misses.
func TestTwoCommunicatorsUsedInDifferentOrdersEndAtTheDeadline(t *testing.T) {
	for deadline := 50 * time.Millisecond; ; deadline *= 3 {
		a, b := ranksOf(t, 4, collective.Config{}), ranksOf(t, 4, collective.Config{})
		errs := onRanks(t, a, func(c *collective.Comm) error {
			ctx, cancel := context.WithTimeout(context.Background(), deadline)
			defer cancel()
			first, second := c, b[c.Rank()]
			if c.Rank() >= 2 {
				first, second = second, first
			}
			if err := collective.Barrier(ctx, first); err != nil {
				return err
			}
			return collective.Barrier(ctx, second)
		})
		var missing [4][]int
		for rank, err := range errs {
			var timeout *collective.TimeoutError
			require.ErrorAs(t, err, &timeout, "rank %d", rank)
			missing[rank] = timeout.Missing
		}
		want := [4][]int{{2, 3}, {2, 3}, {0, 1}, {0, 1}}
		if !reflect.DeepEqual(want, missing) && deadline < generous {
			continue // a rank may be slow to come on a busy machine
		}
		require.Equal(t, want, missing)
		t.Logf("ranks 0 and 1: %v", errs[0])
		t.Logf("ranks 2 and 3: %v", errs[2])
		return
	}
}

// TestBlocksBeyond32BitsHaveTheirPlace plans a reduce-scatter of 1.2 GB per rank and
// looks where its pieces lie.
func TestBlocksBeyond32BitsHaveTheirPlace(t *testing.T) {
	const count, n = 1_200_000_000, 2
	for rank := range n {
		w := plan.World{Rank: rank, Size: n, MaxChannels: 4, MinChannels: 4, OrderedStores: true, Payload: [4]int{0, 1 << 19, 1 << 15, 1 << 16}}
		p, err := plan.Build(plan.Spec{Kind: plan.ReduceScatter, Type: dtype.Int8, Count: count}, w)
		require.NoError(t, err)
		covered := make([]int, n) // bytes of each block of the input
		for _, c := range p.Channels {
			for _, thread := range c.Threads {
				for loop := range thread.Loops() {
					for _, s := range thread.Steps {
						offset, length := thread.Range(loop, s.In)
						require.GreaterOrEqual(t, offset, s.In*count)
						require.LessOrEqual(t, offset+length, (s.In+1)*count)
						covered[s.In] += length
					}
				}
			}
		}
		require.Equal(t, []int{count, count}, covered, "rank %d", rank)
	}
}

// TestCallsWithoutElementsKeepTheirPlaceInTheSequence alternates empty and small calls
// of every kind.
func TestCallsWithoutElementsKeepTheirPlaceInTheSequence(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for _, config := range []collective.Config{{}, {Algorithm: plan.Tree, RanksPerNode: 1}, {Protocol: plan.Simple}, {Protocol: plan.LL128, Channels: 2}} {
			comms := ranksOf(t, n, config)
			noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
				for k := range 6 {
					for _, kind := range []plan.Kind{
						plan.AllReduce, plan.Reduce, plan.Broadcast, plan.AllGather, plan.ReduceScatter, plan.AlltoAll, plan.Gather, plan.Scatter, plan.Barrier,
					} {
						if err := c.Do(context.Background(), call(c, of(kind, 5*(k%2), k%n))); err != nil {
							return fmt.Errorf("%v: %w", kind, err)
						}
					}
					if n > 1 {
						peer := c.Rank() ^ 1
						if peer < n { // an empty message is a message
							if err := together(sends(peer, 5*(k%2)), receives(peer, 5*(k%2)))(context.Background(), c); err != nil {
								return err
							}
						}
					}
					if err := exchange(c, n); err != nil {
						return err
					}
				}
				return nil
			}), n, configName(config))
		}
	}
}

// TestAlltoAllvInWhichSomeSendNothing has ranks 1 and 2 send nothing at all, and
// then nobody.
func TestAlltoAllvInWhichSomeSendNothing(t *testing.T) {
	const n = 4
	comms := ranksOf(t, n, collective.Config{})
	noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
		me := c.Rank()
		for round := range 10 {
			rows := func(from int) int {
				if from == 1 || from == 2 || round == 9 {
					return 0
				}
				return 3 + from + round
			}
			send, recv := []int32{}, []int32{}
			var counts, offsets, recvCounts, recvOffsets []int
			for peer := range n {
				counts, offsets = append(counts, rows(me)), append(offsets, len(send))
				send = append(send, letters(me, peer, round, rows(me))...)
				recvCounts, recvOffsets = append(recvCounts, rows(peer)), append(recvOffsets, len(recv))
				recv = append(recv, make([]int32, rows(peer))...)
			}
			if err := collective.AlltoAllv(context.Background(), c, send, counts, offsets, recv, recvCounts, recvOffsets); err != nil {
				return err
			}
			for peer := range n {
				if err := checkLetters(recv[recvOffsets[peer]:][:recvCounts[peer]], peer, me, round); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

// TestInPlaceAllReduceOfOddCountsInEveryType sums, in place, counts around what lines
// and vectors hold.
func TestInPlaceAllReduceOfOddCountsInEveryType(t *testing.T) {
	const n = 4
	for _, config := range []collective.Config{{}, {Protocol: plan.LL}, {Protocol: plan.LL128}, {Protocol: plan.Simple, Channels: 3}, {Algorithm: plan.Tree, RanksPerNode: 1}} {
		comms := ranksOf(t, n, config)
		noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
			for _, typ := range dtype.All() {
				for _, count := range []int{1, 3, 7, 15, 17, 100, 120, 121} {
					// 1 and 2 in every type, by their bits.
					one, two := bitsOfOne[typ], bitsOfTwo[typ]
					buffer := slices.Repeat(one, count)
					if c.Rank() != 0 {
						clear(buffer)
					}
					if c.Rank() == n-1 {
						copy(buffer, slices.Repeat(one, count))
					}
					err := c.Do(context.Background(), collective.Call{Kind: plan.AllReduce, Type: typ, Count: count, Op: collective.Sum, Send: buffer, Recv: buffer})
					if err != nil {
						return err
					}
					if !slices.Equal(buffer, slices.Repeat(two, count)) {
						return fmt.Errorf("%d of %v: 1+1 is %v", count, typ, buffer)
					}
				}
			}
			return nil
		}), configName(config))
	}
}

var bitsOfOne, bitsOfTwo = bitsOf(1), bitsOf(2)

// bitsOf is the small number x in every type, written down from the formats'
// definitions: the exponent's bias goes in front of a mantissa of zero.
func bitsOf(x uint64) map[dtype.Type][]byte {
	power := x - 1 // of 2: x is 1 or 2
	float := func(bytes int, bias, mantissa uint64) []byte {
		return binary.LittleEndian.AppendUint64(nil, (bias+power)<<mantissa)[:bytes]
	}
	integer := func(bytes int) []byte { return binary.LittleEndian.AppendUint64(nil, x)[:bytes] }
	return map[dtype.Type][]byte{
		dtype.Int8: integer(1), dtype.Uint8: integer(1), dtype.Int32: integer(4), dtype.Uint32: integer(4),
		dtype.Int64: integer(8), dtype.Uint64: integer(8),
		dtype.Half: float(2, 15, 10), dtype.Bfloat: float(2, 127, 7), dtype.Float32: float(4, 127, 23), dtype.Float64: float(8, 1023, 52),
		dtype.F8E4M3: float(1, 7, 3), dtype.F8E5M2: float(1, 15, 2),
	}
}

// TestReduceLeavesOtherRanksBuffersAlone reduces to rank 0 and looks at the others'.
func TestReduceLeavesOtherRanksBuffersAlone(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		for root := range n {
			comms := ranksOf(t, n, collective.Config{})
			noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
				send, recv := []float32{1, 1, 1, 1}, []float32{-1, -2, -3, -4}
				if err := collective.Reduce(context.Background(), c, send, recv, collective.Sum, root); err != nil {
					return err
				}
				total := float32(n)
				want := []float32{-1, -2, -3, -4}
				if c.Rank() == root {
					want = []float32{total, total, total, total}
				}
				if !slices.Equal(recv, want) || !slices.Equal(send, []float32{1, 1, 1, 1}) {
					return fmt.Errorf("send %v, receive %v", send, recv)
				}
				return nil
			}), n, root)
		}
	}
}

// TestASlowRankDoesNotSpoilWhatIsUnderWay has messages and collectives of many chunks
// through small FIFOs, and a rank that sleeps at random.
func TestASlowRankDoesNotSpoilWhatIsUnderWay(t *testing.T) {
	seed := seedOf(t)
	for n := 2; n <= 4; n++ {
		for _, protocol := range []plan.Protocol{plan.Simple, plan.LL, plan.LL128} {
			config := collective.Config{
				Protocol: protocol, Channels: 1 + n%2,
				BuffSize: 2048, LLBuffSize: 2048, LL128BuffSize: 4096, P2PChunkSize: 256,
			}
			comms := ranksOf(t, n, config)
			noErrors(t, onRanks(t, comms, func(c *collective.Comm) error {
				r := rand.New(rand.NewPCG(seed, uint64(n)))
				me, g := c.Rank(), collective.NewGroup()
				for k := range 12 {
					count := 500 + r.IntN(3000) // the same on all ranks
					if me == 0 {
						time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond)
					}
					sent, got := letters(me, (me+1)%n, k, count), make([]int32, count)
					sum := letters(0, 0, k, count)
					err := errors.Join(
						collective.AllReduce(context.Background(), g.On(c), sum, sum, collective.Sum),
						collective.Send(context.Background(), g.On(c), sent, (me+1)%n),
						collective.Recv(context.Background(), g.On(c), got, (me+n-1)%n))
					if err == nil {
						err = g.Run(context.Background())
					}
					if err == nil {
						err = checkLetters(got, (me+n-1)%n, me, k)
					}
					for i := range sum {
						if want := int32(n) * letter(0, 0, k, i); err == nil && sum[i] != want {
							err = fmt.Errorf("call %d: element %d of the sum is %d, want %d", k, i, sum[i], want)
						}
					}
					if err != nil {
						return err
					}
				}
				return nil
			}), n, configName(config))
		}
	}
}

// TestTheAverageOfOneRankIsItsInput averages every count up to some vectors' worth.
func TestTheAverageOfOneRankIsItsInput(t *testing.T) {
	comms := ranksOf(t, 1, collective.Config{})
	ctx := context.Background()
	step := 1
	if underRace {
		step = 7
	}
	for count := 1; count <= 4099; count += step {
		send, recv := make([]dtype.BFloat16, count), make([]dtype.BFloat16, count+1)
		for i := range send {
			send[i] = dtype.ToBFloat16(float32(i%200) - 99.5)
		}
		recv[count] = 0x1234
		require.NoError(t, collective.AllReduce(ctx, comms[0], send, recv[:count], collective.Avg))
		require.Equal(t, send, recv[:count])
		require.Equal(t, dtype.BFloat16(0x1234), recv[count])
	}
}
