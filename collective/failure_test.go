package collective_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
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
	for _, algorithm := range plan.Algorithms() {
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
		{"a send behind a collective of its group", receives(1, 5), together(sum, sends(0, 5)), sum},
		{"a large receive behind a collective of its group", sends(1, large), together(sum, receives(0, large)), sum},
		{"receive and reduce", receives(1, 5), does(of(plan.Reduce, 10, 0)), does(of(plan.Reduce, 10, 0))},
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
			mostRanks, channels := 5, []int{0, 1, 2, 4}
			if underRace {
				mostRanks, channels = 3, []int{0, 2}
			}
			for n := 2; n <= mostRanks; n++ {
				if n > 3 {
					channels = channels[len(channels)-2:]
				}
				for i, channels := range channels {
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

// ending is a way in which a context or a communicator comes to its end.
var endings = []struct {
	name string
	// do ends ctx or the communicator of c; it may wait for something first.
	do    func(cancel context.CancelFunc, c *collective.Comm)
	cause []error
}{
	{"cancelled", func(cancel context.CancelFunc, _ *collective.Comm) { cancel() }, []error{collective.ErrAborted, context.Canceled}},
	{"aborted", func(_ context.CancelFunc, c *collective.Comm) { c.Abort() }, []error{collective.ErrAborted}},
}

// TestAnEndOnOneRankEndsTheCallsOfAll cancels or aborts on one rank before the
// others call, while they wait, and while data moves.
func TestAnEndOnOneRankEndsTheCallsOfAll(t *testing.T) {
	waits := []spin.Policy{spin.Adaptive, spin.Spin, spin.Yield, spin.Block}
	for _, e := range endings {
		for _, when := range []string{"before", "while the others wait", "while data moves"} {
			t.Run(e.name+" "+when, func(t *testing.T) {
				for n := 1; n <= 5; n++ {
					for _, wait := range waits {
						where := fmt.Sprintf("%d ranks, %v", n, wait)
						comms := ranksOf(t, n, collective.Config{Wait: wait})
						errs := onRanks(t, comms, func(c *collective.Comm) error {
							ctx := context.Background()
							if c.Rank() == n-1 {
								var cancel context.CancelFunc
								ctx, cancel = context.WithCancel(ctx)
								defer cancel()
								switch when {
								case "before":
									e.do(cancel, c)
								case "while the others wait":
									time.Sleep(5 * time.Millisecond)
									e.do(cancel, c)
								default:
									defer time.AfterFunc(5*time.Millisecond, func() { e.do(cancel, c) }).Stop()
								}
							}
							for {
								buffer := floats(30_000)
								if err := collective.AllReduce(ctx, c, buffer, buffer, collective.Sum); err != nil {
									return err
								}
							}
						})
						for rank, err := range errs {
							require.Equal(t, errs[0], err, "%s: rank %d", where, rank)
						}
						for _, cause := range e.cause {
							require.ErrorIs(t, errs[0], cause, where)
						}
						var abort *collective.AbortError
						require.ErrorAs(t, errs[0], &abort, where)
						require.Equal(t, n-1, abort.Rank, where)
						if n == 3 && wait == spin.Adaptive {
							t.Log(errs[0])
						}
						remains(t, comms, errs[0])
					}
				}
			})
		}
	}
}

// TestARankThatNeverComesIsNamed leaves one rank, or two, out of every kind of
// call.
func TestARankThatNeverComesIsNamed(t *testing.T) {
	for _, how := range []string{"deadline of all", "deadline of one", "Config.Timeout"} {
		t.Run(how, func(t *testing.T) {
			for i, what := range []collective.Call{
				allReduce(100, dtype.Float32, collective.Sum),
				allReduce(300_000, dtype.Float32, collective.Sum),
				of(plan.AllGather, 100, 0), of(plan.ReduceScatter, 100, 0), of(plan.AlltoAll, 100, 0),
				of(plan.Gather, 100, 0), of(plan.Reduce, 100, 0), {Kind: plan.Barrier},
			} {
				config := configs()[i*5]
				where := fmt.Sprintf("%v, %s", spec(what), configName(config))
				// A rank may be slow to come on a busy machine.
				for deadline := 30 * time.Millisecond; ; deadline *= 3 {
					timeout := leaveOut3(t, how, what, config, deadline, where)
					if (len(timeout.Missing) != 1 || timeout.Waiting != -1) && deadline < generous {
						continue
					}
					require.Equal(t, -1, timeout.Waiting, where)
					require.Equal(t, []int{3}, timeout.Missing, "%s: %v", where, timeout)
					require.Contains(t, timeout.Error(), "rank 3 has not entered it", where)
					if i == 0 {
						t.Log(timeout)
					}
					break
				}
			}
		})
	}
	t.Run("two ranks", func(t *testing.T) {
		for deadline := 50 * time.Millisecond; ; deadline *= 3 {
			comms := ranksOf(t, 5, collective.Config{Timeout: deadline})
			errs := onRanks(t, []*collective.Comm{comms[0], comms[2], comms[4]}, func(c *collective.Comm) error {
				return barrier(context.Background(), c)
			})
			var timeout *collective.TimeoutError
			require.ErrorAs(t, errs[0], &timeout)
			if len(timeout.Missing) > 2 && deadline < generous {
				continue
			}
			require.Equal(t, []int{1, 3}, timeout.Missing)
			t.Log(errs[0])
			return
		}
	})
	t.Run("of a message", func(t *testing.T) {
		comms := ranksOf(t, 3, collective.Config{})
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		err := collective.Recv(ctx, comms[1], floats(3), 2)
		var timeout *collective.TimeoutError
		require.ErrorAs(t, err, &timeout)
		require.Equal(t, 2, timeout.Waiting)
		require.Equal(t, 1, timeout.Rank)
		t.Log(err)
		remains(t, comms, err)
	})
	t.Run("when it came in the end", func(t *testing.T) {
		comms := ranksOf(t, 2, collective.Config{Timeout: 20 * time.Millisecond})
		cause := barrier(context.Background(), comms[0])
		require.ErrorIs(t, cause, collective.ErrTimeout)
		require.Equal(t, cause, barrier(context.Background(), comms[1]))
	})
}

// leaveOut3 has all ranks but 3 make a call.
func leaveOut3(t *testing.T, how string, what collective.Call, config collective.Config, deadline time.Duration, where string) *collective.TimeoutError {
	t.Helper()
	if how == "Config.Timeout" {
		config.Timeout = deadline
	}
	comms := ranksOf(t, 4, config)
	errs := onRanks(t, comms[:3], func(c *collective.Comm) error {
		ctx := context.Background()
		if how == "deadline of all" || how == "deadline of one" && c.Rank() == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, deadline)
			defer cancel()
		}
		return c.Do(ctx, call(c, what))
	})
	for rank, err := range errs {
		if err == nil && rank > 0 && (what.Kind == plan.Gather || what.Kind == plan.Reduce) {
			continue // it only had to send
		}
		require.Equal(t, errs[0], err, "%s: rank %d", where, rank)
	}
	require.ErrorIs(t, errs[0], collective.ErrTimeout, where)
	require.ErrorIs(t, errs[0], context.DeadlineExceeded, where)
	var timeout *collective.TimeoutError
	require.ErrorAs(t, errs[0], &timeout, where)
	remains(t, comms, errs[0])
	return timeout
}

// TestADeadlineThatHasPassedEndsTheCallsOfAll has one rank come too late.
func TestADeadlineThatHasPassedEndsTheCallsOfAll(t *testing.T) {
	comms := ranksOf(t, 3, collective.Config{})
	errs := onRanks(t, comms, func(c *collective.Comm) error {
		ctx := context.Background()
		if c.Rank() == 1 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, time.Now().Add(-time.Second))
			defer cancel()
		}
		return sum(ctx, c)
	})
	for _, err := range errs {
		require.Equal(t, errs[0], err)
		require.ErrorIs(t, err, collective.ErrTimeout)
	}
	var timeout *collective.TimeoutError
	require.ErrorAs(t, errs[0], &timeout)
	require.Equal(t, 1, timeout.Rank)
	require.Contains(t, timeout.Call, "AllReduce(count 100")
	t.Log(errs[0])
	remains(t, comms, errs[0])
}

// TestACallBehindOneThatHangsKeepsItsDeadline issues a call that nobody answers
// and then one with a deadline.
func TestACallBehindOneThatHangsKeepsItsDeadline(t *testing.T) {
	for _, form := range []string{"blocking", "asynchronous", "cancelled"} {
		t.Run(form, func(t *testing.T) {
			comms := ranksOf(t, 2, collective.Config{})
			first, err := collective.BarrierAsync(context.Background(), comms[0])
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
			want := collective.ErrTimeout
			done := make(chan struct{})
			go func() {
				defer close(done)
				switch form {
				case "blocking":
					err = sum(ctx, comms[0])
				case "cancelled":
					time.AfterFunc(5*time.Millisecond, cancel)
					want = collective.ErrAborted
					err = sum(ctx, comms[0])
				default:
					var h *collective.Handle
					if h, err = collective.AllReduceAsync(ctx, comms[0], floats(3), floats(3), collective.Sum); err == nil {
						err = h.Wait(context.Background())
					}
				}
			}()
			comesBack(t, done, comms[0].Abort)
			require.ErrorIs(t, err, want)
			t.Log(err)
			require.Equal(t, err, first.Wait(context.Background()))
			remains(t, comms, err)
		})
	}
}

// TestAbortEndsTheCommunicatorsOfSplitsToo aborts the parent while its ranks wait
// in children and grandchildren.
func TestAbortEndsTheCommunicatorsOfSplitsToo(t *testing.T) {
	for _, when := range []string{"before", "while they wait"} {
		t.Run(when, func(t *testing.T) {
			comms := ranksOf(t, 4, collective.Config{})
			cause := make(chan struct{})
			if when != "before" {
				time.AfterFunc(10*time.Millisecond, func() { comms[2].Abort(); close(cause) })
			}
			errs := onRanks(t, comms, func(c *collective.Comm) error {
				child, err := c.Split(context.Background(), c.Rank()%2, 0)
				if err != nil {
					return err
				}
				defer child.Close()
				grandchild, err := child.Split(context.Background(), 0, -c.Rank())
				if err != nil {
					return err
				}
				defer grandchild.Close()
				if err := barrier(context.Background(), c); err != nil {
					return err
				}
				if when == "before" {
					c.Abort()
				}
				if c.Rank() == 0 {
					return barrier(context.Background(), grandchild)
				}
				if c.Rank() == 1 {
					return receives(1, 5)(context.Background(), child)
				}
				<-grandchildEnds(grandchild)
				return grandchild.Err()
			})
			for rank, err := range errs {
				var abort *collective.AbortError
				require.ErrorAs(t, err, &abort, "rank %d", rank)
				if when != "before" {
					require.Equal(t, 2, abort.Rank)
				}
			}
			if when != "before" {
				<-cause
			}
		})
	}
}

// grandchildEnds is closed when c has failed.
func grandchildEnds(c *collective.Comm) <-chan struct{} {
	ends := make(chan struct{})
	go func() {
		defer close(ends)
		for c.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}()
	return ends
}

// TestAChildThatFailsLeavesItsParentUsable splits, makes a mistake in the child,
// and goes on in the parent.
func TestAChildThatFailsLeavesItsParentUsable(t *testing.T) {
	comms := ranksOf(t, 4, collective.Config{})
	errs := onRanks(t, comms, func(c *collective.Comm) error {
		child, err := c.Split(context.Background(), c.Rank()/2, 0)
		if err != nil {
			return err
		}
		defer child.Close()
		mistake := sum
		if child.Rank() == 0 {
			mistake = barrier
		}
		if err := mistake(context.Background(), child); !errors.Is(err, collective.ErrMismatch) {
			return fmt.Errorf("child: %w", err)
		}
		return c.Err()
	})
	require.NoError(t, errors.Join(errs...))
	works(t, comms)
}

// TestARankThatHasClosedIsNamed closes one rank while the others call.
func TestARankThatHasClosedIsNamed(t *testing.T) {
	for _, tc := range []struct {
		name string
		call deed
	}{
		{"allreduce", sum},
		{"large allreduce", does(allReduce(300_000, dtype.Float32, collective.Sum))},
		{"barrier", barrier},
		{"broadcast", does(of(plan.Broadcast, 10, 0))},
		{"reduce", does(of(plan.Reduce, 10, 0))},
		{"gather", does(of(plan.Gather, 10, 0))},
		{"scatter", does(of(plan.Scatter, 10, 0))},
		{"alltoall", does(of(plan.AlltoAll, 10, 0))},
		{"receive", receives(3, 10)},
		{"large send", sends(3, large)},
		{"large send in a group", together(sends(3, large), receives(3, large))},
		{"split", func(ctx context.Context, c *collective.Comm) error { _, err := c.Split(ctx, 0, 0); return err }},
	} {
		for _, when := range []string{"before", "meanwhile"} {
			t.Run(tc.name+" "+when, func(t *testing.T) {
				for i, wait := range []spin.Policy{spin.Adaptive, spin.Spin, spin.Yield, spin.Block} {
					comms := ranksOf(t, 4, collective.Config{Wait: wait, Channels: i})
					errs := onRanks(t, comms, func(c *collective.Comm) error {
						if c.Rank() == 3 {
							if when == "meanwhile" {
								time.Sleep(3 * time.Millisecond)
							}
							return c.Close()
						}
						if when == "before" {
							time.Sleep(3 * time.Millisecond)
						}
						return inTurn(tc.call, barrier)(context.Background(), c) // what needs nobody may succeed
					})
					require.NoError(t, errs[3])
					for rank, err := range errs[:3] {
						require.Equal(t, errs[0], err, "rank %d", rank)
					}
					var closed *collective.PeerClosedError
					require.ErrorAs(t, errs[0], &closed)
					require.ErrorIs(t, errs[0], collective.ErrPeerClosed)
					require.Equal(t, 3, closed.PeerRank)
					if i == 0 {
						t.Log(errs[0])
					}
					require.ErrorIs(t, barrier(context.Background(), comms[3]), collective.ErrClosed)
				}
			})
		}
	}
}

// TestWhatWasSentBeforeCloseArrives closes the sender before the receiver comes.
func TestWhatWasSentBeforeCloseArrives(t *testing.T) {
	comms := ranksOf(t, 2, collective.Config{})
	data := []float32{1, 2, 3}
	for range 3 {
		require.NoError(t, collective.Send(context.Background(), comms[0], data, 1))
	}
	require.NoError(t, comms[0].Close())
	time.Sleep(5 * time.Millisecond)
	for range 3 {
		got := floats(3)
		require.NoError(t, collective.Recv(context.Background(), comms[1], got, 0))
		require.Equal(t, data, got)
	}
	require.ErrorIs(t, collective.Recv(context.Background(), comms[1], floats(3), 0), collective.ErrPeerClosed)
}

// TestRunReleasesRanksThatWaitForOneThatFailed has a body return an error, also
// while the others wait in a communicator of Split, or not return at all.
func TestRunReleasesRanksThatWaitForOneThatFailed(t *testing.T) {
	mine := errors.New("out of memory")
	for _, where := range []string{"the communicator", "a child"} {
		t.Run(where, func(t *testing.T) {
			done := make(chan struct{})
			var err error
			go func() {
				defer close(done)
				err = collective.Run(3, func(c *collective.Comm) error {
					in := c
					if where == "a child" {
						child, err := c.Split(context.Background(), 0, 0)
						if err != nil {
							return err
						}
						if c.Rank() != 1 {
							defer child.Close()
						}
						in = child
					}
					if c.Rank() == 1 {
						return mine
					}
					return barrier(context.Background(), in)
				})
			}()
			comesBack(t, done, func() {})
			require.ErrorIs(t, err, mine)
			require.ErrorIs(t, err, collective.ErrAborted)
			t.Log(err)
		})
	}
	t.Run("a body that does not return", func(t *testing.T) {
		done := make(chan struct{})
		var err error
		go func() {
			defer close(done)
			err = collective.Run(2, func(c *collective.Comm) error {
				if c.Rank() == 0 {
					runtime.Goexit()
				}
				return barrier(context.Background(), c)
			})
		}()
		comesBack(t, done, func() {})
		require.ErrorIs(t, err, collective.ErrAborted)
		t.Log(err)
	})
}

// TestEveryErrorIsOfItsTypeAndSaysWhatHappened reads errors as a user would.
func TestEveryErrorIsOfItsTypeAndSaysWhatHappened(t *testing.T) {
	for _, tc := range []struct {
		err  error
		is   []error
		text string
	}{
		{
			&collective.MismatchError{Sequence: 7, Rank: 1, Call: "Barrier()", PeerRank: 2, PeerCall: "Recv(count 3, float, from 1)"},
			[]error{collective.ErrMismatch},
			"ranks disagree on the call: operation 7: rank 1 is in Barrier(), rank 2 in Recv(count 3, float, from 1)",
		},
		{
			&collective.TimeoutError{Sequence: 7, Rank: 1, Call: "Barrier()", Missing: []int{0, 2}, Waiting: -1, Cause: context.DeadlineExceeded},
			[]error{collective.ErrTimeout, context.DeadlineExceeded},
			"timed out: operation 7: rank 1 in Barrier(): ranks 0, 2 have not entered it",
		},
		{
			&collective.TimeoutError{Rank: 1, Call: "Recv(count 3, float, from 2)", Waiting: 2, Cause: context.DeadlineExceeded},
			[]error{collective.ErrTimeout, context.DeadlineExceeded},
			"timed out: operation 0: rank 1 in Recv(count 3, float, from 2): waiting for rank 2",
		},
		{
			&collective.TimeoutError{Rank: 1, Call: "Barrier()", Waiting: -1, Cause: context.DeadlineExceeded},
			[]error{collective.ErrTimeout, context.DeadlineExceeded},
			"timed out: operation 0: rank 1 in Barrier(): the deadline had passed before it began",
		},
		{
			&collective.AbortError{Rank: 3, Call: "Barrier()", Cause: context.Canceled},
			[]error{collective.ErrAborted, context.Canceled},
			"communicator aborted by rank 3 in Barrier(): context canceled",
		},
		{&collective.AbortError{Rank: 3}, []error{collective.ErrAborted}, "communicator aborted by rank 3"},
		{
			&collective.PeerClosedError{Sequence: 2, Rank: 0, Call: "Barrier()", PeerRank: 1},
			[]error{collective.ErrPeerClosed},
			"peer has closed the communicator: operation 2: rank 0 in Barrier() needs rank 1",
		},
		{
			&collective.ArgumentError{Call: "Split", Reason: "color -2", Err: collective.ErrInvalid},
			[]error{collective.ErrInvalid},
			"Split: invalid argument: color -2",
		},
	} {
		assert.EqualError(t, tc.err, tc.text)
		for _, sentinel := range []error{
			collective.ErrInvalid, collective.ErrAlias, collective.ErrUnsupported, collective.ErrConcurrentUse, collective.ErrClosed,
			collective.ErrMismatch, collective.ErrTimeout, collective.ErrAborted, collective.ErrPeerClosed,
			context.Canceled, context.DeadlineExceeded,
		} {
			assert.Equal(t, slices.Contains(tc.is, sentinel), errors.Is(tc.err, sentinel), "%v is %v", tc.err, sentinel)
		}
	}
}
