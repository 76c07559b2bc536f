package collective_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/spin"
)

// configs are all combinations of algorithm, protocol and way of waiting.
func configs() []collective.Config {
	var all []collective.Config
	for _, algorithm := range []plan.Algorithm{plan.AutoAlgorithm, plan.Ring, plan.Tree} {
		for _, protocol := range []plan.Protocol{plan.AutoProtocol, plan.Simple, plan.LL, plan.LL128} {
			for _, wait := range []spin.Policy{spin.Adaptive, spin.Spin, spin.Yield, spin.Block} {
				all = append(all, collective.Config{Algorithm: algorithm, Protocol: protocol, Wait: wait})
			}
		}
	}
	return all
}

func configName(c collective.Config) string {
	return fmt.Sprintf("%v/%v/%v/%d channels", c.Algorithm, c.Protocol, c.Wait, c.Channels)
}

// call makes an untyped call with buffers of the sizes it needs at any rank.
func call(c *collective.Comm, what collective.Call) collective.Call {
	bytes := what.Count * what.Type.Size() * c.Size()
	what.Send, what.Recv = make([]byte, bytes), make([]byte, bytes)
	return what
}

func allReduce(count int, t dtype.Type, op collective.Op) collective.Call {
	return collective.Call{Kind: plan.AllReduce, Count: count, Type: t, Op: op}
}

func of(kind plan.Kind, count, root int) collective.Call {
	return collective.Call{Kind: kind, Count: count, Type: dtype.Float32, Root: root}
}

// mismatches are calls of which one rank makes another than the rest.
var mismatches = []struct {
	name      string
	rest, odd collective.Call
	least     int // ranks
}{
	{"another kind", allReduce(100, dtype.Float32, collective.Sum), of(plan.AllGather, 100, 0), 2},
	{"another kind without data for all", of(plan.Broadcast, 10, 0), of(plan.Reduce, 10, 0), 2},
	{"a barrier", allReduce(100, dtype.Float32, collective.Sum), collective.Call{Kind: plan.Barrier}, 2},
	{"a barrier instead of one byte", allReduce(1, dtype.Uint8, collective.Sum), collective.Call{Kind: plan.Barrier}, 2},
	{"another type of the same size", allReduce(100, dtype.Float32, collective.Sum), allReduce(100, dtype.Int32, collective.Sum), 2},
	{"another type", allReduce(100, dtype.Float64, collective.Sum), allReduce(100, dtype.Int8, collective.Sum), 2},
	{"another reduction", allReduce(100, dtype.Float32, collective.Sum), allReduce(100, dtype.Float32, collective.Max), 2},
	{"another count", allReduce(100, dtype.Float32, collective.Sum), allReduce(101, dtype.Float32, collective.Sum), 2},
	{"half the count", allReduce(512000, dtype.Float32, collective.Sum), allReduce(256000, dtype.Float32, collective.Sum), 2},
	{"a small count", allReduce(5120, dtype.Float32, collective.Sum), allReduce(2560, dtype.Float32, collective.Sum), 2},
	{"a count for another protocol", allReduce(2_500_000, dtype.Float32, collective.Sum), allReduce(3, dtype.Float32, collective.Sum), 2},
	{"nothing", allReduce(100, dtype.Float32, collective.Sum), allReduce(0, dtype.Float32, collective.Sum), 2},
	{"something", allReduce(0, dtype.Float32, collective.Sum), allReduce(100, dtype.Float32, collective.Sum), 2},
	{"nothing of another kind", of(plan.Broadcast, 0, 0), of(plan.AllGather, 0, 0), 2},
	{"another root of a broadcast", of(plan.Broadcast, 10, 0), of(plan.Broadcast, 10, 1), 2},
	{"another root of a large broadcast", of(plan.Broadcast, 3_000_000, 0), of(plan.Broadcast, 3_000_000, 1), 2},
	{"another root of a reduce", of(plan.Reduce, 10, 0), of(plan.Reduce, 10, 1), 2},
	{"another root of a gather", of(plan.Gather, 10, 0), of(plan.Gather, 10, 1), 2},
	{"another root of a large gather", of(plan.Gather, 500_000, 0), of(plan.Gather, 500_000, 1), 2},
	{"another root of a scatter", of(plan.Scatter, 10, 0), of(plan.Scatter, 10, 1), 2},
	{"another count of a broadcast", of(plan.Broadcast, 10, 0), of(plan.Broadcast, 11, 0), 2},
	{"another count of an allgather", of(plan.AllGather, 10, 0), of(plan.AllGather, 11, 0), 2},
	{"another count of a reduce-scatter", of(plan.ReduceScatter, 10, 0), of(plan.ReduceScatter, 11, 0), 2},
	{"another count of an alltoall", of(plan.AlltoAll, 10, 0), of(plan.AlltoAll, 11, 0), 2},
	{"a much larger alltoall", of(plan.AlltoAll, 10, 0), of(plan.AlltoAll, 1_000_000, 0), 2},
	{"an empty alltoall", of(plan.AlltoAll, 10, 0), of(plan.AlltoAll, 0, 0), 2},
	{"alltoall and allreduce", allReduce(100, dtype.Float32, collective.Sum), of(plan.AlltoAll, 100, 0), 2},
	{"gather and scatter", of(plan.Gather, 10, 0), of(plan.Scatter, 10, 0), 2},
	{"gather and allgather", of(plan.Gather, 10, 0), of(plan.AllGather, 10, 0), 2},
}

// TestMismatchEndsTheCallOnEveryRank has one rank make another call than the
// others. Some calls need nothing of other ranks and may be over before anybody
// can know; the next one must then fail.
func TestMismatchEndsTheCallOnEveryRank(t *testing.T) {
	all := configs()
	perCase := 2
	if underRace {
		perCase = 1
	}
	if os.Getenv("GOLLECTIVE_TEST_FULL") != "" {
		perCase = len(all)
	}
	var slowest atomic.Int64
	turn := 0
	for _, tc := range mismatches {
		t.Run(tc.name, func(t *testing.T) {
			for n := tc.least; n <= 5; n++ {
				for range perCase {
					config := all[(turn*7)%len(all)]
					config.Channels = turn / 3 % 3
					odd := turn % n
					turn++
					took := mismatch(t, n, odd, config, tc.rest, tc.odd)
					slowest.Store(max(slowest.Load(), int64(took)))
				}
			}
		})
	}
	t.Logf("slowest: %v", time.Duration(slowest.Load()))
}

// mismatch runs one case and returns how long it took until all ranks knew.
func mismatch(t *testing.T, n, odd int, config collective.Config, rest, other collective.Call) time.Duration {
	t.Helper()
	where := fmt.Sprintf("%d ranks, rank %d differs, %s", n, odd, configName(config))
	comms := ranksOf(t, n, config)
	calls := make([]collective.Call, n)
	for rank := range calls {
		calls[rank] = call(comms[rank], rest)
		if rank == odd {
			calls[rank] = call(comms[rank], other)
		}
	}
	start := time.Now()
	errs := onRanks(t, comms, func(c *collective.Comm) error {
		if err := c.Do(context.Background(), calls[c.Rank()]); err != nil {
			return err
		}
		return collective.Barrier(context.Background(), c)
	})
	took := time.Since(start)
	isMismatch(t, errs, where, func(m *collective.MismatchError) {
		assert.Less(t, m.Rank, n, where)
		assert.Less(t, m.PeerRank, n, where)
		if m.Rank != odd {
			assert.Equal(t, odd, m.PeerRank, "%s: %v", where, m)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	texts := []string{spec(rest).String(), spec(other).String()}
	var m *collective.MismatchError
	errors.As(errs[0], &m)
	assert.ElementsMatch(t, texts, []string{m.Call, m.PeerCall}, where)
	assert.Less(t, took, generous, where)
	remains(t, comms, errs[0])
	return took
}

// spec is how errors print a call.
func spec(c collective.Call) plan.Spec {
	s := plan.Spec{Kind: c.Kind, Type: c.Type, Count: c.Count, Root: c.Root}
	for op, of := range map[string]collective.Op{"max": collective.Max} {
		if c.Op.String() == op && c.Op == of {
			s.Op = 2
		}
	}
	return s
}

// isMismatch requires every rank to have the same mismatch, and checks it.
func isMismatch(t *testing.T, errs []error, where string, check func(*collective.MismatchError)) {
	t.Helper()
	for rank, err := range errs {
		require.ErrorIs(t, err, collective.ErrMismatch, "%s: rank %d", where, rank)
		require.Equal(t, errs[0], err, "%s: rank %d has another cause than rank 0", where, rank)
	}
	var m *collective.MismatchError
	require.ErrorAs(t, errs[0], &m, where)
	assert.NotEqual(t, m.Rank, m.PeerRank, "%s: %v", where, m)
	assert.NotEqual(t, m.Call, m.PeerCall, "%s: %v", where, m)
	check(m)
}

// remains requires that every later call of every rank returns the first cause.
func remains(t *testing.T, comms []*collective.Comm, cause error) {
	t.Helper()
	buffer := make([]float32, 4)
	for _, c := range comms {
		require.Equal(t, cause, collective.Barrier(context.Background(), c))
		require.Equal(t, cause, collective.AllReduce(context.Background(), c, buffer, buffer, collective.Sum))
		require.Equal(t, cause, collective.Send(context.Background(), c, buffer, (c.Rank()+1)%c.Size()))
		require.Equal(t, cause, c.Err())
		g := collective.NewGroup()
		require.NoError(t, collective.Barrier(context.Background(), g.On(c)))
		require.Equal(t, cause, g.Run(context.Background()))
		if h, err := collective.BarrierAsync(context.Background(), c); err == nil {
			require.Equal(t, cause, h.Wait(context.Background()))
		} else {
			require.Equal(t, cause, err)
		}
		_, err := c.Split(context.Background(), 0, 0)
		require.Equal(t, cause, err)
	}
}

// deed is what one rank does in a scenario, in order.
type deed func(ctx context.Context, c *collective.Comm) error

func floats(n int) []float32 { return make([]float32, n) }

func sends(peer, n int) deed {
	return func(ctx context.Context, c *collective.Comm) error {
		return collective.Send(ctx, c, floats(n), peer)
	}
}

func receives(peer, n int) deed {
	return func(ctx context.Context, c *collective.Comm) error {
		return collective.Recv(ctx, c, floats(n), peer)
	}
}

func does(what collective.Call) deed {
	return func(ctx context.Context, c *collective.Comm) error { return c.Do(ctx, call(c, what)) }
}

// together makes the calls of all programs in one group.
func together(programs ...deed) deed {
	return func(ctx context.Context, c *collective.Comm) error {
		g := collective.NewGroup()
		for _, p := range programs {
			if err := p(ctx, g.On(c)); err != nil {
				return err
			}
		}
		return g.Run(ctx)
	}
}

func inTurn(programs ...deed) deed {
	return func(ctx context.Context, c *collective.Comm) error {
		for _, p := range programs {
			if err := p(ctx, c); err != nil {
				return err
			}
		}
		return nil
	}
}

func vectors(send, recv func(peer int) int) deed {
	return func(ctx context.Context, c *collective.Comm) error {
		var v [4][]int
		for peer := range c.Size() {
			v[0], v[1] = append(v[0], send(peer)), append(v[1], 10*peer)
			v[2], v[3] = append(v[2], recv(peer)), append(v[3], 10*peer)
		}
		n := 10 * c.Size()
		return collective.AlltoAllv(ctx, c, floats(n), v[0], v[1], floats(n), v[2], v[3])
	}
}

var (
	barrier = does(collective.Call{Kind: plan.Barrier})
	sum     = does(allReduce(100, dtype.Float32, collective.Sum))
)

const large = 2_500_000 // elements: 10 MB, more than all FIFOs of a pair hold

// TestMessagesThatDoNotFitEndTheCallOnEveryRank has ranks 0 and 1 (and sometimes
// more) exchange messages that don't fit together.
func TestMessagesThatDoNotFitEndTheCallOnEveryRank(t *testing.T) {
	for _, tc := range []struct {
		name  string
		first deed
		other deed
		third deed // of ranks 2, 3, …; nil: straight to the barrier
	}{
		{"receive and allreduce", receives(1, 5), sum, sum},
		{"allreduce and receive", sum, receives(0, 5), sum},
		{"large receive and allreduce", receives(1, large), sum, sum},
		{"large send and allreduce", sends(1, large), sum, sum},
		{"allreduce and large send", sum, sends(0, large), sum},
		{"send that nobody receives and allreduce", inTurn(sends(1, 5), barrier), inTurn(sum, barrier), sum},
		{"receive and barrier", receives(1, 5), barrier, nil},
		{"receive and broadcast", receives(1, 5), does(of(plan.Broadcast, 10, 0)), does(of(plan.Broadcast, 10, 0))},
		{"receive and gather", receives(1, 5), does(of(plan.Gather, 10, 0)), does(of(plan.Gather, 10, 0))},
		{"receive and alltoall", receives(1, 5), does(of(plan.AlltoAll, 5, 0)), does(of(plan.AlltoAll, 5, 0))},
		{"send and alltoall", sends(1, 5), does(of(plan.AlltoAll, 5, 0)), does(of(plan.AlltoAll, 5, 0))},
		{"two receives that face each other", receives(1, 5), receives(0, 5), nil},
		{"two large receives that face each other", receives(1, large), receives(0, large), nil},
		{"two large sends that face each other", sends(1, large), sends(0, large), nil},
		{"receives in groups", together(receives(1, 5), receives(1, large)), together(receives(0, 7), sends(0, 5)), nil},
		{"a receive too many in a group", together(receives(1, 5), receives(1, 5)), together(sends(0, 5)), nil},
		{"a large send too many in a group", together(sends(1, large), sends(1, large)), together(receives(0, large)), nil},
		{"0 and 5 elements", sends(1, 0), receives(0, 5), nil},
		{"5 and 0 elements", sends(1, 5), receives(0, 0), nil},
		{"3 and 4 elements", sends(1, 3), receives(0, 4), nil},
		{"small and large", sends(1, 3), receives(0, large), nil},
		{"large and small", sends(1, large), receives(0, 3), nil},
		{"medium and large", sends(1, 20_000), receives(0, large), nil},
		{"large and 4 bytes less", sends(1, large), receives(0, large-1), nil},
		{"another type", sends(1, 5), does(collective.Call{Kind: plan.Recv, Type: dtype.Int32, Count: 5, Root: 0}), nil},
		{"another type of as many bytes", sends(1, 4), does(collective.Call{Kind: plan.Recv, Type: dtype.Float64, Count: 2, Root: 0}), nil},
		{"another length in groups", together(sends(1, 5), receives(1, 6)), together(sends(0, 5), receives(0, 5)), nil},
		{"lengths in another order", together(sends(1, 5), sends(1, 6)), together(receives(0, 6), receives(0, 5)), nil},
		{"collectives in another order", together(sum, barrier), together(barrier, sum), together(sum, barrier)},
		{"a collective more in a group", together(sum, sum), together(sum), together(sum)},
		{"another collective in a group of messages",
			together(does(of(plan.Gather, 10, 0)), does(of(plan.Scatter, 10, 0))),
			together(does(of(plan.Gather, 10, 0)), does(of(plan.Scatter, 10, 1))),
			together(does(of(plan.Gather, 10, 0)), does(of(plan.Scatter, 10, 0)))},
		{"alltoallv with another count",
			vectors(func(int) int { return 5 }, func(int) int { return 5 }),
			vectors(func(int) int { return 5 }, func(p int) int { return 5 - p%2 + 1 }),
			vectors(func(int) int { return 5 }, func(int) int { return 5 })},
		{"alltoallv with a count of 0",
			vectors(func(p int) int { return 5 * (1 - p%2) }, func(p int) int { return 5 }),
			vectors(func(int) int { return 5 }, func(int) int { return 5 }),
			vectors(func(int) int { return 5 }, func(int) int { return 5 })},
		{"order of calls", inTurn(sum, does(of(plan.AllGather, 7, 0))), inTurn(does(of(plan.AllGather, 7, 0)), sum), inTurn(sum, does(of(plan.AllGather, 7, 0)))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var slowest time.Duration
			all := configs()
			for n := 2; n <= 5; n++ {
				for i, channels := range []int{0, 1, 2, 4} {
					config := all[(13*n+7*i)%len(all)]
					config.Channels = channels
					where := fmt.Sprintf("%d ranks, %s", n, configName(config))
					comms := ranksOf(t, n, config)
					start := time.Now()
					errs := onRanks(t, comms, func(c *collective.Comm) error {
						mine := tc.third
						switch c.Rank() {
						case 0:
							mine = tc.first
						case 1:
							mine = tc.other
						}
						if mine != nil {
							if err := mine(context.Background(), c); err != nil {
								return err
							}
						}
						return barrier(context.Background(), c)
					})
					slowest = max(slowest, time.Since(start))
					assert.Less(t, time.Since(start), generous, where)
					isMismatch(t, errs, where, func(m *collective.MismatchError) {
						assert.Contains(t, []int{m.Rank, m.PeerRank}, m.Rank, where)
						if m.Rank > 1 {
							assert.LessOrEqual(t, m.PeerRank, 1, "%s: %v", where, m)
						}
					})
					if n == 3 && i == 0 {
						t.Log(errs[0])
					}
					remains(t, comms, errs[0])
				}
			}
			t.Logf("slowest: %v", slowest)
		})
	}
}

// TestACircleOfWaitingRanksIsAMismatch has every rank wait for the next one.
func TestACircleOfWaitingRanksIsAMismatch(t *testing.T) {
	for _, tc := range []struct {
		name string
		step func(c *collective.Comm) deed
	}{
		{"receives", func(c *collective.Comm) deed { return receives((c.Rank()+1)%c.Size(), 5) }},
		{"large sends", func(c *collective.Comm) deed { return sends((c.Rank()+1)%c.Size(), large) }},
		{"a receive, then a collective", func(c *collective.Comm) deed {
			if c.Rank() < c.Size()-1 {
				return receives(c.Rank()+1, 5)
			}
			return sum
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var slowest time.Duration
			for n := 2; n <= 5; n++ {
				for _, channels := range []int{1, 2, 4} {
					where := fmt.Sprintf("%d ranks, %d channels", n, channels)
					comms := ranksOf(t, n, collective.Config{Channels: channels})
					start := time.Now()
					errs := onRanks(t, comms, func(c *collective.Comm) error {
						return tc.step(c)(context.Background(), c)
					})
					slowest = max(slowest, time.Since(start))
					isMismatch(t, errs, where, func(*collective.MismatchError) {})
					remains(t, comms, errs[0])
				}
			}
			t.Logf("slowest: %v", slowest)
		})
	}
}
