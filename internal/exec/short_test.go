package exec

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// callAsUsersDo is what a user's call does: the short path if it can be taken, else the
// long one.
func callAsUsersDo(ctx context.Context, e *Engine, call *Call) (short bool, err error) {
	s := &call.Spec
	if done, err := e.Short(ctx, KeyOf(s.Kind, s.Type, s.Op, s.Count, s.Root, s.InPlace), call.Send, call.Recv); done {
		return true, err
	}
	return false, e.Run(ctx, call)
}

// A call that is like one before takes the short path, whatever the algorithm; other
// buffers' sizes, and what it can't do, take the long one. Results are the same.
func TestCallsLikeOneBeforeTakeTheShortPath(t *testing.T) {
	for _, a := range []plan.Algorithm{plan.OneShot, plan.TwoShot} {
		all := engines(t, 3, directWorld(1, a), spin.Adaptive, inOneHub())
		requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
			for i := range 20 {
				s := newSum(rank, 3, 100)
				_, first := callAsUsersDo(ctx, e, &s.Call) // it may be forgotten behind the others
				first = errors.Join(first, s.check())
				short, err := callAsUsersDo(ctx, e, &s.Call)
				if err = errors.Join(first, err, s.check()); err != nil || !short {
					return fmt.Errorf("%v: round %d took the short path: %v, %w", a, i, short, err)
				}
				other := newSum(rank, 3, 200+i) // never seen before
				if short, err = callAsUsersDo(ctx, e, &other.Call); err != nil || short {
					return fmt.Errorf("a new call took the short path: %v, %w", short, err)
				}
				scaled := Call{Spec: plan.Spec{Kind: plan.AllReduce, Type: dtype.Int32, Op: reduce.PreMulSum, Count: 1},
					Send: []byte{byte(rank), 0, 0, 0}, Recv: make([]byte, 4), Scalar: reduce.ScalarOf(dtype.Int32, float64(rank+i))}
				if a == plan.TwoShot {
					scaled.Recv = scaled.Send
					scaled.Spec.InPlace = true
				}
				if short, err = callAsUsersDo(ctx, e, &scaled); err != nil || short {
					return fmt.Errorf("a call with a scalar took the short path: %v, %w", short, err)
				}
				if got, want := int(scaled.Recv[0]), 1*(1+i)+2*(2+i); got != want {
					return fmt.Errorf("sum of scaled elements: %d, want %d", got, want)
				}
			}
			return nil
		}))
	}
}

// A program whose calls differ and come again, as layers of a model do, takes the short
// path with most of them.
func TestManyDifferentCallsHaveShortPaths(t *testing.T) {
	const calls, rounds = 20, 5
	all := engines(t, 2, directWorld(1, plan.OneShot), spin.Adaptive, inOneHub())
	requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		taken := 0
		for range rounds {
			for i := range calls {
				s := newSum(rank, 2, 10+7*i)
				short, err := callAsUsersDo(ctx, e, &s.Call)
				if err = errors.Join(err, s.check()); err != nil {
					return err
				}
				if short {
					taken++
				}
			}
		}
		if taken < calls*(rounds-1)/2 {
			return fmt.Errorf("%d of %d calls took the short path", taken, calls*rounds)
		}
		return nil
	}))
}

func TestTheShortPathAllocatesNothing(t *testing.T) {
	for _, a := range []plan.Algorithm{plan.OneShot, plan.TwoShot} {
		for _, kind := range directKinds {
			const runs = 200
			all := engines(t, 2, directWorld(1, a), spin.Adaptive, inOneHub())
			c := directCase{spec: plan.Spec{Kind: kind, Type: dtype.Int32, Count: 50}, inPlace: make([]bool, 2)}
			long, allocated := 0, 0.0
			requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
				call := c.buffers(rank, 2, 0, func(bytes int) []byte { return make([]byte, bytes) })
				if err := e.Run(ctx, &call); err != nil {
					return err
				}
				var failed error
				once := func() {
					short, err := callAsUsersDo(ctx, e, &call)
					failed = errors.Join(failed, err)
					if !short && rank == 0 {
						long++
					}
				}
				if rank == 0 {
					allocated = testing.AllocsPerRun(runs, once) // the other rank's included
					return failed
				}
				for range runs + 1 {
					once()
				}
				return failed
			}))
			require.Zero(t, long, "%v %v", a, kind)
			require.Zero(t, allocated, "%v %v", a, kind)
		}
	}
}

// Whoever is in a short call has the engine for itself: another blocking call is refused
// and has no effect, an asynchronous one comes behind it, and so does Close.
func TestAShortCallExcludesOthers(t *testing.T) {
	all := engines(t, 2, directWorld(1, plan.OneShot), spin.Adaptive, inOneHub())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first, second := newSum(0, 2, 10), newSum(1, 2, 10)
	requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		return e.Run(ctx, &[]*sum{first, second}[rank].Call)
	}))

	inside := make(chan error, 1)
	go func() {
		short, err := callAsUsersDo(ctx, all[0], &first.Call)
		if err == nil && !short {
			err = errors.New("not on the short path")
		}
		inside <- err
	}()
	for all[0].running.Load() != insideShort {
		runtime.Gosched()
	}
	third := newSum(0, 2, 10)
	short, err := callAsUsersDo(ctx, all[0], &third.Call)
	require.False(t, short)
	require.ErrorIs(t, err, fault.ErrConcurrentUse)

	started := make(chan error, 1)
	message := newSum(0, 2, 10)
	go func() { started <- together(ctx, all[0], message) }()
	closed := make(chan struct{})
	for !all[0].shut.Load() { // it waits for the short call
		runtime.Gosched()
	}
	go func() { all[0].Close(); close(closed) }()

	requireNoErrors(t, []error{all[1].Run(ctx, &second.Call), <-inside, first.check(), second.check()})
	// Start was there first, but Close may win: then it has been refused.
	if err := all[1].Run(ctx, &second.Call); err == nil {
		requireNoErrors(t, []error{<-started, second.check()})
	} else {
		require.ErrorIs(t, err, fault.ErrPeerClosed)
		require.ErrorIs(t, <-started, fault.ErrClosed)
	}
	<-closed
	short, err = callAsUsersDo(ctx, all[0], &first.Call)
	require.False(t, short)
	require.ErrorIs(t, err, fault.ErrClosed)
}

// Blocking calls on one goroutine, launches on another, which only move what is this
// rank's own, and Close at any moment: all end, with a result or the reason.
func TestShortCallsLaunchesAndCloseMix(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range 60 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		n := 2 + r.IntN(2)
		all := engines(t, n, directWorld(1, []plan.Algorithm{plan.OneShot, plan.TwoShot}[r.IntN(2)]), spin.Adaptive, inOneHub())
		after := time.Duration(r.IntN(2000)) * time.Microsecond
		errs := onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
			var blocking, launching error
			var both sync.WaitGroup
			both.Go(func() {
				for i := 0; blocking == nil; i++ {
					s := newSum(rank, n, 10+i%5)
					if _, blocking = callAsUsersDo(ctx, e, &s.Call); blocking == nil {
						blocking = s.check()
					}
				}
			})
			both.Go(func() {
				for launching == nil {
					launching = toMyself(ctx, e, rank)
				}
			})
			time.Sleep(after)
			e.Close()
			both.Wait()
			for _, err := range []error{blocking, launching} {
				if !errors.Is(err, fault.ErrClosed) && !errors.Is(err, fault.ErrPeerClosed) {
					return errors.Join(blocking, launching)
				}
			}
			return nil
		})
		requireNoErrors(t, errs)
	}
}

// toMyself is a launch of a message from a rank to itself.
func toMyself(ctx context.Context, e *Engine, rank int) error {
	from, to := []byte{1, 2, 3}, make([]byte, 3)
	spec := plan.Spec{Kind: plan.Send, Type: dtype.Uint8, Count: 3, Root: rank}
	send := Call{Spec: spec, Send: from}
	spec.Kind = plan.Recv
	works, err := e.Prepare(ctx, []Call{send, {Spec: spec, Recv: to}})
	if err != nil {
		return err
	}
	ticket, err := e.Start(ctx, works)
	if err != nil {
		return err
	}
	<-ticket.Done
	if err := ticket.Err(); err != nil {
		return err
	}
	if string(to) != string(from) {
		return fmt.Errorf("got %v", to)
	}
	return nil
}

// What a rank writes at every call shares no cache line with another rank's.
func TestWhatRanksWriteFillsWholeLines(t *testing.T) {
	for name, size := range map[string]uintptr{
		"worker": unsafe.Sizeof(worker{}), "Program": unsafe.Sizeof(Program{}), "Waiter": unsafe.Sizeof(spin.Waiter{}),
	} {
		require.Zero(t, size%transport.Line, "%s: %d bytes", name, size)
	}
}
