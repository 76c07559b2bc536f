package spin

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// everyPolicy runs a check under every policy and kind of poll.
func everyPolicy(t *testing.T, check func(t *testing.T, w *Waiter, l *ledger)) {
	for p := range policiesCount {
		for _, heavy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, heavy %v", p, heavy), func(t *testing.T) {
				w := New(Options{Policy: p, Heavy: heavy})
				l := &ledger{parker: w.Parker()}
				w.Bind(t.Context(), l, 0)
				check(t, w, l)
			})
		}
	}
}

func TestWhatIsThereNeedsNoRest(t *testing.T) {
	everyPolicy(t, func(t *testing.T, w *Waiter, l *ledger) {
		g := new(gate)
		g.Open()
		require.NoError(t, w.Rest(g))
		require.Equal(t, Counters{Turns: 1, Found: 1}, w.local)
	})
}

func TestABellEndsARest(t *testing.T) {
	everyPolicy(t, func(t *testing.T, w *Waiter, l *ledger) {
		g := new(gate)
		wait := soon(g.Open)
		require.NoError(t, w.Rest(g))
		wait()
		require.Zero(t, g.armed.Load())
	})
}

func TestAFailureAndTheContextEndARest(t *testing.T) {
	lost := errors.New("peer lost")
	everyPolicy(t, func(t *testing.T, w *Waiter, l *ledger) {
		wait := soon(func() { l.fail(lost) })
		require.ErrorIs(t, w.Rest(new(gate)), lost)
		wait()
	})
	everyPolicy(t, func(t *testing.T, w *Waiter, l *ledger) {
		ctx, cancel := context.WithCancel(t.Context())
		w.Bind(ctx, l, 0)
		wait := soon(cancel)
		require.ErrorIs(t, w.Rest(new(gate)), context.Canceled)
		wait()
	})
}

// Whoever has nothing to do polls and yields no processor away, whatever the
// policy, and looks around ever more rarely.
func TestARestIsASleep(t *testing.T) {
	everyPolicy(t, func(t *testing.T, w *Waiter, l *ledger) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		w.Bind(ctx, l, 0)
		require.ErrorIs(t, w.Rest(new(gate)), context.DeadlineExceeded)
		c := w.Counters()
		// 2+4+8+…+128 ms are more than the 200.
		require.Positive(t, c.Parks)
		require.LessOrEqual(t, c.Parks, uint64(7))
		require.Zero(t, c.Yields)
		require.LessOrEqual(t, c.Turns, 1+c.Parks)
		require.LessOrEqual(t, l.inspected.Load(), int64(c.Parks))
	})
}

// couch is a Sleeper that counts its use.
type couch struct {
	pending    chan struct{}
	woken, lay atomic.Int64
}

func newCouch() *couch { return &couch{pending: make(chan struct{}, 1)} }

func (c *couch) Wake() {
	c.woken.Add(1)
	select {
	case c.pending <- struct{}{}:
	default:
	}
}

func (c *couch) Sleep(done <-chan struct{}, atMost time.Duration) bool {
	c.lay.Add(1)
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-c.pending:
		return true
	case <-done:
		return false
	case <-timer.C:
		return false
	}
}

func TestAParkerSleepsAsItsSleeperDoes(t *testing.T) {
	c := newCouch()
	w := New(Options{Policy: Block, Parker: NewParkerOn(c)})
	w.Bind(t.Context(), &ledger{parker: w.Parker()}, 0)
	g := new(gate)
	wait := soon(func() {
		for c.lay.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		g.Open()
	})
	require.NoError(t, w.Until(g))
	wait()
	require.EqualValues(t, w.local.Parks, c.lay.Load())
	require.Positive(t, c.lay.Load())
	require.Positive(t, c.woken.Load(), "the bell wakes through the Sleeper")
}

// What else a Sleeper listens to ends the sleep, and the condition is looked at.
func TestASleeperWakesByItself(t *testing.T) {
	c := newCouch()
	w := New(Options{Policy: Block, Parker: NewParkerOn(c)})
	w.Bind(t.Context(), &ledger{parker: w.Parker()}, 0)
	g := new(gate)
	wait := soon(func() {
		g.open.Store(true) // no bell
		c.pending <- struct{}{}
	})
	require.NoError(t, w.Rest(g))
	wait()
	require.Zero(t, c.woken.Load())
}

// Processes are given way to by the system's yield, whatever the Parker is.
func TestWhoseYieldItIs(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options Options
		want    yields
	}{
		{"goroutines", Options{}, yields{false, 1}},
		{"processes", Options{Shared: true}, yields{true, 8}},
		{"processes, by the bed", Options{Parker: NewBedParker(beds(t, 1), 1)}, yields{true, 8}},
		{"a thread that spins", Options{Locked: true, Policy: Spin}, yields{true, 16}},
		{"a thread", Options{Locked: true, Policy: Yield, Shared: true}, yields{true, 256}},
	} {
		require.Equal(t, tc.want, New(tc.options).yields, tc.name)
	}
}
