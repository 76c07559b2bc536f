package exec

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/spin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCallsOneByOneUnderEveryAlgorithmProtocolAndPolicy(t *testing.T) {
	const n = 5
	for _, algorithm := range []plan.Algorithm{plan.Ring, plan.Tree, plan.OneShot} {
		for _, protocol := range []plan.Protocol{plan.Simple, plan.LL, plan.LL128} {
			for policy := spin.Adaptive; policy <= spin.Block; policy++ {
				for _, channels := range []int{1, 2} {
					t.Run(fmt.Sprintf("%v %v %v %d channels", algorithm, protocol, policy, channels), func(t *testing.T) {
						w := smallWorld(channels)
						w.Force.Algorithm, w.Force.Protocol = algorithm, protocol
						all := engines(t, n, w, policy, inOneHub())
						requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
							return run(ctx, e,
								newSum(rank, n, 0), newSum(rank, n, 1), newExchange(rank, n, 1),
								newSum(rank, n, 2000), newExchange(rank, n, 300), newSum(rank, n, 7))
						}))
					})
				}
			}
		}
	}
}

// The calls of a launch follow each other on the same channels and FIFOs.
func TestSeveralCallsOfOneLaunch(t *testing.T) {
	const n = 4
	for _, protocol := range []plan.Protocol{plan.Simple, plan.LL, plan.LL128} {
		for _, channels := range []int{1, 2} {
			t.Run(fmt.Sprintf("%v %d channels", protocol, channels), func(t *testing.T) {
				w := smallWorld(channels)
				w.Force.Protocol = protocol
				all := engines(t, n, w, spin.Adaptive, inOneHub())
				requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
					for range 10 {
						// Two of them are alike and so share a Program.
						if err := together(ctx, e,
							newSum(rank, n, 700), newSum(rank, n, 1), newExchange(rank, n, 90),
							newSum(rank, n, 700), newExchange(rank, n, 3), newSum(rank, n, 0),
						); err != nil {
							return err
						}
					}
					return nil
				}))
			})
		}
	}
}

// programWith binds the plan of a call that other settings would give: a launch
// may mix algorithms, though one communicator's choice seldom does.
func programWith(e *Engine, s plan.Spec, change func(*plan.World)) (*Program, error) {
	w := e.world
	change(&w)
	p, err := plan.Build(s, w)
	if err != nil {
		return nil, err
	}
	return e.bind(p)
}

// A tree's two halves run at the same time, on two goroutines; what follows on the
// channel uses the FIFOs of both, so it must not begin before both are through. On
// the way from rank 0 to rank 1 the reduce half, the broadcast half and the ring
// share one FIFO in various orders.
func TestARingMayFollowATreeInOneLaunch(t *testing.T) {
	for _, n := range []int{2, 3, 5, 8} {
		for _, channels := range []int{1, 2} {
			t.Run(fmt.Sprintf("%d ranks, %d channels", n, channels), func(t *testing.T) {
				all := engines(t, n, smallWorld(channels), spin.Adaptive, inOneHub())
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
					delay := rand.New(rand.NewPCG(seed, uint64(rank)))
					tree, ring := newSum(rank, n, 5000), newSum(rank, n, 901)
					treeProgram, err := programWith(e, tree.Spec, func(w *plan.World) { w.Force.Algorithm = plan.Tree })
					if err != nil {
						return err
					}
					ringProgram, err := programWith(e, ring.Spec, func(w *plan.World) { w.Force.Algorithm = plan.Ring })
					if err != nil {
						return err
					}
					for range 20 {
						again := newSum(rank, n, 5000)
						works := []Work{
							{Program: treeProgram, Call: tree.Call},
							{Program: ringProgram, Call: ring.Call},
							{Program: treeProgram, Call: again.Call},
						}
						if err := launchAndCheck(ctx, e, works, tree, ring, again); err != nil {
							return err
						}
						if delay.IntN(4) == 0 {
							time.Sleep(time.Duration(delay.IntN(300)) * time.Microsecond)
						}
					}
					return nil
				}))
			})
		}
	}
}

// A call with one channel and nothing queued is executed by its caller: no hand-off
// to another goroutine, on which small calls would spend most of their time.
func TestACallOfOneChannelStartsNoGoroutine(t *testing.T) {
	const n = 3
	for _, algorithm := range []plan.Algorithm{plan.Ring, plan.Tree, plan.OneShot} {
		w := smallWorld(1)
		w.Force.Algorithm = algorithm
		all := engines(t, n, w, spin.Adaptive, inOneHub())
		before := runtime.NumGoroutine()
		var most atomic.Int64
		requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
			for range 20 {
				// One chunk: the tree's halves run one after the other.
				if err := run(ctx, e, newSum(rank, n, 16)); err != nil {
					return err
				}
				most.Store(max(most.Load(), int64(runtime.NumGoroutine())))
			}
			return nil
		}))
		require.LessOrEqual(t, most.Load(), int64(before+n), "the ranks of this test are all there is")
		for _, e := range all {
			require.Empty(t, e.blocks, "%v", algorithm)
			require.Empty(t, e.halves, "%v", algorithm)
			require.False(t, e.streaming)
			require.Len(t, e.workers, 1)
		}
	}
}

// Blocks are started when first needed and stay.
func TestGoroutinesDoNotGrowWithLaunches(t *testing.T) {
	const n, channels = 3, 4
	w := smallWorld(channels)
	w.Force.Algorithm = plan.Tree
	all := engines(t, n, w, spin.Adaptive, inOneHub())
	launch := func() {
		requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
			return together(ctx, e, newSum(rank, n, 4000), newExchange(rank, n, 100))
		}))
	}
	launch()
	count := func() (total int) {
		for _, e := range all {
			total += len(e.workers)
		}
		return total
	}
	workers, goroutines := count(), runtime.NumGoroutine()
	for range 100 {
		launch()
	}
	require.Equal(t, workers, count())
	for range 1000 { // the goroutines of the test itself may take a moment to go
		if runtime.NumGoroutine() <= goroutines {
			break
		}
		time.Sleep(time.Millisecond)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	// A block and a half per channel, but that the stream is the first block.
	require.LessOrEqual(t, workers, n*2*channels)
}

func TestCloseEndsAllGoroutines(t *testing.T) {
	before := goleak.IgnoreCurrent()
	const n = 4
	w := smallWorld(4)
	w.Force.Algorithm = plan.Tree
	all := engines(t, n, w, spin.Block, inOneHub())
	requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		return together(ctx, e, newSum(rank, n, 4000), newExchange(rank, n, 100))
	}))
	closeAll(all)
	goleak.VerifyNone(t, before)
	for rank, err := range onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		return run(ctx, e, newSum(rank, n, 10))
	}) {
		require.ErrorIs(t, err, fault.ErrClosed, "rank %d", rank)
		_, err = all[rank].Start(t.Context(), []Work{{Call: newSum(rank, n, 10).Call}})
		require.ErrorIs(t, err, fault.ErrClosed)
	}
}

// A failure in the middle of a launch releases every block of every rank, so that
// Close has nothing to wait for.
func TestAFailureEndsBlocksOfAllRanks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	const n = 4
	w := smallWorld(4)
	w.Force.Algorithm = plan.Tree
	all := engines(t, n, w, spin.Adaptive, inOneHub())
	lost := errors.New("a rank is lost")
	errs := onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		if rank == 2 { // it never comes
			time.Sleep(5 * time.Millisecond)
			return e.ledger.Fail(lost)
		}
		return together(ctx, e, newSum(rank, n, 4000), newExchange(rank, n, 100))
	})
	for rank, err := range errs {
		require.ErrorIs(t, err, lost, "rank %d", rank)
	}
	closeAll(all)
	goleak.VerifyNone(t, before)
}

func TestCloseWaitsForWhatIsQueued(t *testing.T) {
	const n, launches = 3, 20
	all := engines(t, n, smallWorld(2), spin.Adaptive, inOneHub())
	requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		var tickets []*Ticket
		var sums []*sum
		for range launches {
			s := newSum(rank, n, 1500)
			works, err := e.Prepare(context.Background(), []Call{s.Call})
			if err != nil {
				return err
			}
			ticket, err := e.Start(ctx, works)
			if err != nil {
				return err
			}
			tickets, sums = append(tickets, ticket), append(sums, s)
		}
		e.Close()
		for i, ticket := range tickets {
			select {
			case <-ticket.Done:
			default:
				return fmt.Errorf("launch %d has not ended", i)
			}
			if err := errors.Join(ticket.Err(), sums[i].check()); err != nil {
				return err
			}
		}
		return nil
	}))
}

// A blocking call takes its turn behind what was queued.
func TestABlockingCallWaitsItsTurn(t *testing.T) {
	const n = 3
	all := engines(t, n, smallWorld(2), spin.Adaptive, inOneHub())
	requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		for range 20 {
			first := newSum(rank, n, 3000)
			works, err := e.Prepare(context.Background(), []Call{first.Call})
			if err != nil {
				return err
			}
			ticket, err := e.Start(ctx, works)
			if err != nil {
				return err
			}
			if err := run(ctx, e, newSum(rank, n, 3)); err != nil {
				return err
			}
			select {
			case <-ticket.Done:
			default:
				return errors.New("the later call has overtaken the earlier one")
			}
			if err := errors.Join(ticket.Err(), first.check()); err != nil {
				return err
			}
		}
		return nil
	}))
}

func TestASecondGoroutineInsideRunIsRefusedAndChangesNothing(t *testing.T) {
	all := engines(t, 2, smallWorld(1), spin.Adaptive, inOneHub())
	waiting := make(chan error, 1)
	mine := newSum(0, 2, 100)
	go func() { waiting <- run(t.Context(), all[0], mine) }()
	for !all[0].ledger.Entered(0, 0) {
		time.Sleep(time.Millisecond)
	}
	require.ErrorIs(t, all[0].Run(t.Context(), &newSum(0, 2, 5).Call), fault.ErrConcurrentUse)
	require.NoError(t, run(t.Context(), all[1], newSum(1, 2, 100)))
	require.NoError(t, <-waiting)
	require.False(t, all[0].ledger.Entered(0, 1), "the refused call must not count")
	requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		return run(ctx, e, newSum(rank, 2, 5))
	}))
}

// Ever new sizes must not fill the memory; what was forgotten works again.
func TestTheCacheOfProgramsIsBounded(t *testing.T) {
	const n = 2
	all := engines(t, n, smallWorld(1), spin.Adaptive, inOneHub())
	requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		for count := range 2*mostPrograms + 100 {
			if err := run(ctx, e, newSum(rank, n, count%(mostPrograms+50))); err != nil {
				return err
			}
			if len(e.programs.all) > mostPrograms {
				return fmt.Errorf("%d programs after %d calls", len(e.programs.all), count)
			}
		}
		return nil
	}))
	for _, e := range all {
		require.LessOrEqual(t, len(e.sendEnds), 3, "one end per protocol, however many programs")
		require.LessOrEqual(t, len(e.recvEnds), 3)
	}
}

// User memory is not kept after the call.
func TestBuffersAreForgottenAfterTheCall(t *testing.T) {
	all := engines(t, 1, smallWorld(1), spin.Adaptive, inOneHub())
	require.NoError(t, run(t.Context(), all[0], newSum(0, 1, 10)))
	require.Zero(t, all[0].single[0].Call)
	require.Nil(t, all[0].inline.ctx)
}

func TestACancelledContextEndsTheCallOnEveryRank(t *testing.T) {
	const n = 3
	all := engines(t, n, smallWorld(2), spin.Adaptive, inOneHub())
	cancelled, cancel := context.WithCancel(t.Context())
	for rank, err := range onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		switch rank {
		case 0: // it never comes
			time.Sleep(5 * time.Millisecond)
			cancel()
			return e.ledger.Failure()
		case 1:
			ctx = cancelled
		}
		return run(ctx, e, newSum(rank, n, 3000))
	}) {
		if rank > 0 {
			require.ErrorIs(t, err, context.Canceled, "rank %d", rank)
			var abort *fault.Abort
			require.ErrorAs(t, err, &abort)
			require.Equal(t, 1, abort.Rank)
		}
	}
}

// What rank peer says it sent is put into words whatever the word is: it comes out
// of memory that others write.
func FuzzMessageText(f *testing.F) {
	f.Add(messageHeader(plan.Send, dtype.Float32, 3, 4096), 1)
	f.Add(messageHeader(plan.AlltoAll, dtype.Uint8, 1<<16, 1<<40-1), 0)
	f.Add(^uint64(0), -1)
	f.Fuzz(func(t *testing.T, header uint64, to int) {
		if messageText(header, to) == "" {
			t.Fatal("no text")
		}
	})
}

func TestAMessagesHeaderCanBeReadAgain(t *testing.T) {
	for typ := dtype.Type(0); typ.Valid(); typ++ {
		for _, count := range []int{0, 1, 1000, 1 << 30} {
			spec := plan.Spec{Kind: plan.Send, Type: typ, Count: count, Root: 5}
			header := messageHeader(plan.Send, typ, 77, count*typ.Size())
			require.Equal(t, spec.String(), messageText(header, 5))
			require.Equal(t, header, messageHeader(plan.Recv, typ, 77, count*typ.Size()), "both ends must make the same header")
			require.NotEqual(t, header, messageHeader(plan.Send, typ, 78, count*typ.Size()))
			require.NotEqual(t, header, messageHeader(plan.Send, typ, 77, (count+1)*typ.Size()))
			require.NotEqual(t, header, messageHeader(plan.AlltoAll, typ, 77, count*typ.Size()))
		}
	}
}
