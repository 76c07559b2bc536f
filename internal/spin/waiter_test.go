package spin

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gate is a condition that others make true.
type gate struct {
	open  atomic.Bool
	bell  Bell
	armed atomic.Int64
	asked atomic.Int64
}

func (g *gate) Ready() bool { g.asked.Add(1); return g.open.Load() }
func (*gate) Peer() int     { return 3 }
func (g *gate) Arm(p *Parker) {
	g.armed.Add(1)
	g.bell.Arm(p)
}
func (g *gate) Disarm() {
	g.armed.Add(-1)
	g.bell.Disarm()
}

func (g *gate) Open() {
	g.open.Store(true)
	g.bell.Ring()
}

// ledger is a Watch whose answers tests set.
type ledger struct {
	failure   atomic.Pointer[error]
	parker    *Parker
	inspected atomic.Int64
	suspicion error // what Inspect finds
}

func (l *ledger) fail(err error) {
	l.failure.Store(&err)
	l.parker.Wake()
}

func (l *ledger) Failed() error {
	if err := l.failure.Load(); err != nil {
		return *err
	}
	return nil
}

func (l *ledger) Inspect(Condition) error {
	l.inspected.Add(1)
	return l.suspicion
}

var errExpired = errors.New("expired")

func (l *ledger) Expired(c Condition, cause error) error {
	return fmt.Errorf("%w waiting for rank %d: %w", errExpired, c.Peer(), cause)
}

// crowd is more waiters than any machine has processors.
const crowd = 1 << 20

// everywhere runs a check under every policy, number of processors and crowd.
func everywhere(t *testing.T, check func(t *testing.T, w *Waiter, l *ledger)) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for _, procs := range []int{1, 2, 4} {
		runtime.GOMAXPROCS(procs)
		for p := range policiesCount {
			for _, waiters := range []int{1, crowd} {
				t.Run(fmt.Sprintf("%v, %d waiters on %d processors", p, waiters, procs), func(t *testing.T) {
					w := NewWaiter(p, waiters)
					l := &ledger{parker: w.Parker()}
					w.Bind(t.Context(), l, 0)
					check(t, w, l)
				})
			}
		}
	}
}

// soon runs f when the waiter has had time for the stations of its policy.
func soon(f func()) (wait func()) {
	var g sync.WaitGroup
	g.Go(func() {
		time.Sleep(3 * time.Millisecond)
		f()
	})
	return g.Wait
}

func TestAConditionThatIsTrueCostsOneTurn(t *testing.T) {
	everywhere(t, func(t *testing.T, w *Waiter, l *ledger) {
		g := new(gate)
		g.Open()
		require.NoError(t, w.Until(g))
		require.EqualValues(t, 1, g.asked.Load())
		require.Equal(t, Counters{Turns: 1, Found: 1}, w.local)
	})
}

func TestDataEndAWait(t *testing.T) {
	everywhere(t, func(t *testing.T, w *Waiter, l *ledger) {
		g := new(gate)
		wait := soon(g.Open)
		require.NoError(t, w.Until(g))
		wait()
		require.Zero(t, g.armed.Load(), "the bell must not stay armed")
		require.EqualValues(t, 1, w.local.Waits)
		require.EqualValues(t, 1, w.local.Found)
	})
}

func TestAFailureEndsAWait(t *testing.T) {
	lost := errors.New("peer lost")
	everywhere(t, func(t *testing.T, w *Waiter, l *ledger) {
		g := new(gate)
		wait := soon(func() { l.fail(lost) })
		require.ErrorIs(t, w.Until(g), lost)
		wait()
		require.Zero(t, g.armed.Load())
		require.Zero(t, w.local.Found)
	})
}

func TestACancelledContextEndsAWaitAndNamesThePeer(t *testing.T) {
	everywhere(t, func(t *testing.T, w *Waiter, l *ledger) {
		ctx, cancel := context.WithCancel(t.Context())
		w.Bind(ctx, l, 0)
		wait := soon(cancel)
		err := w.Until(new(gate))
		wait()
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, errExpired)
		require.ErrorContains(t, err, "rank 3")
	})
}

func TestADeadlineEndsAWait(t *testing.T) {
	everywhere(t, func(t *testing.T, w *Waiter, l *ledger) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		defer cancel()
		w.Bind(ctx, l, 0)
		require.ErrorIs(t, w.Until(new(gate)), context.DeadlineExceeded)
	})
}

func TestATimeoutEndsAWaitAndBeginsAnewWithEachBind(t *testing.T) {
	everywhere(t, func(t *testing.T, w *Waiter, l *ledger) {
		w.Bind(t.Context(), l, 3*time.Millisecond)
		require.ErrorIs(t, w.Until(new(gate)), context.DeadlineExceeded)
		// A waiter bound again must not inherit the passed deadline.
		w.Bind(t.Context(), l, time.Hour)
		g := new(gate)
		wait := soon(g.Open)
		require.NoError(t, w.Until(g))
		wait()
	})
}

func TestALongWaitIsInspected(t *testing.T) {
	everywhere(t, func(t *testing.T, w *Waiter, l *ledger) {
		l.suspicion = errors.New("rank 2 is in another call")
		require.ErrorIs(t, w.Until(new(gate)), l.suspicion)
		require.EqualValues(t, 1, l.inspected.Load())
	})
}

// Data that are there win over a failure that came at the same time.
func TestWhatIsReadyIsTakenEvenAfterAFailure(t *testing.T) {
	everywhere(t, func(t *testing.T, w *Waiter, l *ledger) {
		l.fail(errors.New("too late"))
		g := new(gate)
		g.Open()
		require.NoError(t, w.Until(g))
	})
}

func TestAStaleWakeUpDoesNotEndAWait(t *testing.T) {
	everywhere(t, func(t *testing.T, w *Waiter, l *ledger) {
		w.Parker().Wake()
		g := new(gate)
		wait := soon(g.Open)
		require.NoError(t, w.Until(g))
		wait()
		require.True(t, g.open.Load())
	})
}

// eager is a condition that becomes true while its bell is being armed, without a
// ring: the mover looked at the bell just before.
type eager struct{ gate }

func (e *eager) Arm(p *Parker) {
	e.open.Store(true)
	e.gate.Arm(p)
}

func TestNobodySleepsThroughWhatCameWhileTheBellWasArmed(t *testing.T) {
	for _, p := range []Policy{Adaptive, Block} {
		w := NewWaiter(p, crowd)
		w.Bind(t.Context(), &ledger{parker: w.Parker()}, 0)
		e := new(eager)
		require.NoError(t, w.Until(e))
		require.Zero(t, w.local.Parks, "%v", p)
		require.Zero(t, e.armed.Load())
	}
}

// A rank that never comes costs its waiter a few turns per look-around, not a
// processor: the number of turns is bounded by the sleeps, whatever the time.
func TestAParkedWaiterMakesNoTurns(t *testing.T) {
	for _, p := range []Policy{Adaptive, Block} {
		w := NewWaiter(p, crowd)
		l := &ledger{parker: w.Parker()}
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		w.Bind(ctx, l, 0)
		g := new(gate)
		require.ErrorIs(t, w.Until(g), context.DeadlineExceeded)
		c := w.Counters()
		require.Positive(t, c.Parks, "%v", p)
		// Sleeps begin at 2 ms and double up to 16 ms: 150 ms hold fewer
		// than 2+4+8+16+16+16+… of them, however slow the machine.
		require.LessOrEqual(t, c.Parks, uint64(13), "%v", p)
		before := w.limits.inLane()
		require.LessOrEqual(t, c.Turns, c.Parks+before+uint64(crowdedYields)+8, "%v: turns per sleep", p)
		require.LessOrEqual(t, c.Yields, before+uint64(crowdedYields), "%v", p)
		require.LessOrEqual(t, g.asked.Load(), int64(3*c.Parks+before+8), "%v: looks at the condition", p)
	}
}

func TestSpinAndYieldNeverPark(t *testing.T) {
	for _, p := range []Policy{Spin, Yield} {
		w := NewWaiter(p, 2)
		l := &ledger{parker: w.Parker()}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		w.Bind(ctx, l, 0)
		require.Error(t, w.Until(new(gate)))
		c := w.Counters()
		require.Zero(t, c.Parks)
		require.Positive(t, c.Yields, "every path must give the processor away")
		require.GreaterOrEqual(t, c.Turns, c.Yields)
	}
}

// Counters may lag by publishTurns polls, not by more, also when no wait is ever
// slow.
func TestCountersAreNotFarBehind(t *testing.T) {
	for p := range policiesCount {
		w := NewWaiter(p, 1)
		w.Bind(t.Context(), &ledger{parker: w.Parker()}, 0)
		g := new(gate)
		g.Open()
		for n := uint64(1); n <= 3*publishTurns; n++ {
			require.NoError(t, w.Until(g))
			if c := w.Counters(); c.Turns+publishTurns < n || c.Turns != c.Found {
				t.Fatalf("%v: %+v after %d turns", p, c, n)
			}
		}
	}
}

func TestCountersAddUp(t *testing.T) {
	a := Counters{Waits: 1, Turns: 2, Found: 3, Yields: 4, Parks: 5, Wall: 6, CPU: 7, Waiting: 8, Bytes: 9, Threads: 1}
	b := Counters{Waits: 10, Turns: 20, Found: 30, Yields: 40, Parks: 50, Wall: 60, CPU: 70, Waiting: 80, Bytes: 90, Threads: 2}
	sum := a
	sum.Add(b)
	require.Equal(t, Counters{Waits: 11, Turns: 22, Found: 33, Yields: 44, Parks: 55, Wall: 66, CPU: 77, Waiting: 88, Bytes: 99, Threads: 3}, sum)
	rest := sum.Sub(a)
	require.Equal(t, 3, rest.Threads, "those that are now")
	rest.Threads = b.Threads
	require.Equal(t, b, rest)
}

// Counters are read while the owner waits.
func TestCountersMayBeReadByAnyGoroutine(t *testing.T) {
	w := NewWaiter(Adaptive, crowd)
	w.Bind(t.Context(), &ledger{parker: w.Parker()}, 0)
	g := new(gate)
	wait := soon(g.Open)
	var reader sync.WaitGroup
	stop := make(chan struct{})
	reader.Go(func() {
		var last Counters
		for {
			select {
			case <-stop:
				return
			default:
			}
			now := w.Counters()
			if now.Turns < last.Turns || now.Parks < last.Parks || now.Yields < last.Yields {
				t.Errorf("counters fall: %+v after %+v", now, last)
				return
			}
			last = now
			runtime.Gosched()
		}
	})
	require.NoError(t, w.Until(g))
	close(stop)
	reader.Wait()
	wait()
}

// court is where two waiters play: even turns are the first one's.
type court struct {
	ball  atomic.Uint64
	bells [2]Bell
}

// seat is the condition that it is one player's turn.
type seat struct {
	*court
	me uint64
}

func (s *seat) Ready() bool   { return s.ball.Load()%2 == s.me }
func (s *seat) Peer() int     { return int(1 - s.me) }
func (s *seat) Arm(p *Parker) { s.bells[s.me].Arm(p) }
func (s *seat) Disarm()       { s.bells[s.me].Disarm() }

// Every policy lets the other side run, also on a single processor.
func TestTwoWaitersPlayBallUnderEveryPolicy(t *testing.T) {
	const turns = 200
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for _, procs := range []int{1, 2, 4} {
		runtime.GOMAXPROCS(procs)
		for p := range policiesCount {
			t.Run(fmt.Sprintf("%v on %d processors", p, procs), func(t *testing.T) {
				c := new(court)
				errs := make([]error, 2)
				var players sync.WaitGroup
				for me := range 2 {
					players.Go(func() {
						w := NewWaiter(p, 2)
						w.Bind(t.Context(), &ledger{parker: w.Parker()}, time.Minute)
						s := &seat{court: c, me: uint64(me)}
						for range turns {
							if errs[me] = w.Until(s); errs[me] != nil {
								return
							}
							c.ball.Add(1)
							c.bells[1-me].Ring()
						}
					})
				}
				players.Wait()
				require.NoError(t, errors.Join(errs...))
				require.EqualValues(t, 2*turns, c.ball.Load())
			})
		}
	}
}
