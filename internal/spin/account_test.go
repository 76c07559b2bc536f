package spin

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/trace"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/cpuclock"
)

// machine is a model of a goroutine that runs on threads, and its clocks. What
// the goroutine has really used is counted beside.
type machine struct {
	time    time.Duration
	at      int             // the goroutine's thread
	threads []time.Duration // what each has used
	mine    time.Duration   // of the goroutine
	reads   int             // of threads' clocks
}

func (m *machine) now() time.Duration { return m.time }

func (m *machine) thread() (int, time.Duration, bool) {
	m.reads++
	return m.at, m.threads[m.at], true
}

// run lets the goroutine run for d.
func (m *machine) run(d time.Duration) {
	m.time += d
	m.threads[m.at] += d
	m.mine += d
}

// preempt lets the system's scheduler run something else for d.
func (m *machine) preempt(d time.Duration) { m.time += d }

// others lets other goroutines run for d, on all threads, after which this one
// continues on any of them.
func (m *machine) others(r *rand.Rand, d time.Duration) {
	m.time += d
	for i := range m.threads {
		m.threads[i] += d
	}
	m.at = r.IntN(len(m.threads))
}

// drive makes random launches on m, as a Waiter would, and returns what was counted
// and how much of the goroutine's time was work.
func (m *machine) drive(r *rand.Rand, a *account, preemptive bool) (c Counters, worked time.Duration) {
	between := func(low, high time.Duration) time.Duration { return low + time.Duration(r.Int64N(int64(high-low))) }
	segment := func() {
		m.run(between(10, 15*time.Microsecond))
		switch r.IntN(8) {
		case 0:
			m.run(between(longSegment, time.Millisecond))
		case 1:
			if preemptive {
				m.preempt(between(100*time.Microsecond, 8*time.Millisecond))
				m.run(between(10, time.Microsecond))
			}
		}
	}
	for range 400 {
		m.others(r, time.Millisecond) // the user's own work
		a.enter()
		for range r.IntN(10) {
			before := m.mine
			segment()
			worked += m.mine - before
			a.cut(&c, false)
			for range r.IntN(5) { // polls and yields
				segment()
				a.cut(&c, true)
				if r.IntN(3) > 0 {
					m.run(50) // nobody else is there
				} else {
					m.others(r, between(time.Microsecond, time.Millisecond))
				}
				a.back()
			}
			if r.IntN(3) == 0 {
				segment()
				a.cut(&c, true)
				m.others(r, between(5*time.Microsecond, 10*time.Millisecond))
				a.rise()
			}
			a.cut(&c, true)
		}
		before := m.mine
		m.run(between(10, time.Microsecond))
		worked += m.mine - before
		a.cut(&c, false)
		a.inside = false
	}
	return c, worked
}

// Against a model, in which segments are at will short, long, interrupted by the
// system or followed by other goroutines' time.
func TestAccountsAgreeWithAModel(t *testing.T) {
	for _, preemptive := range []bool{false, true} {
		seed := rand.Uint64()
		t.Logf("preemptive %v, seed %d", preemptive, seed)
		r := rand.New(rand.NewPCG(seed, 0))
		m := &machine{threads: make([]time.Duration, 3)}
		for i := range m.threads { // threads have lived before, unlike long
			m.threads[i] = time.Duration(i) * time.Hour
		}
		a := &account{clocks: m, on: true, idle: 50}
		c, worked := m.drive(r, a, preemptive)
		// What is not known is how much of the first long segment was its own,
		// which is a millisecond at most.
		require.InDelta(t, m.mine, c.CPU, float64(time.Millisecond))
		require.InDelta(t, worked, c.CPU-c.Waiting, float64(time.Millisecond))
		require.LessOrEqual(t, c.CPU, c.Wall)
		require.Less(t, c.Wall, m.time)
	}
}

// Small launches don't read the thread's clock, and yet what interrupts them is not
// counted as theirs.
func TestInterruptionsOfSmallLaunchesAreNotTheirs(t *testing.T) {
	for _, others := range []bool{false, true} {
		seed := rand.Uint64()
		t.Logf("others %v, seed %d", others, seed)
		r := rand.New(rand.NewPCG(seed, 0))
		m := &machine{threads: make([]time.Duration, 3)}
		a := &account{clocks: m, on: true, idle: 50}
		var c Counters
		const launches, interruptions = 100_000, 100
		mine := time.Duration(0)
		for i := range launches {
			m.run(200) // the caller's
			before := m.mine
			a.enter()
			m.run(500)
			a.cut(&c, false)
			m.run(300)
			a.cut(&c, true)
			if others && r.IntN(3) == 0 {
				m.others(r, 2*time.Microsecond)
			} else {
				m.run(60)
			}
			a.back()
			if i%(launches/interruptions) == 77 {
				m.preempt(10 * time.Millisecond)
			}
			m.run(400)
			a.cut(&c, false)
			a.inside = false
			mine += m.mine - before
		}
		require.InDelta(t, mine, c.CPU, interruptions*float64(longSegment+5*time.Microsecond))
		require.Less(t, m.reads, launches/5)
	}
}

// A thread's system calls for sleeping are its own.
func TestALockedGoroutineCountsItsSystemCalls(t *testing.T) {
	m := &machine{threads: make([]time.Duration, 1)}
	a := &account{clocks: m, on: true, locked: true}
	var c Counters
	a.enter()
	for range 100 {
		m.run(time.Microsecond)
		a.cut(&c, true)
		m.run(2 * time.Microsecond)
		m.preempt(time.Millisecond)
		m.run(3 * time.Microsecond)
		a.rise()
	}
	a.cut(&c, true)
	require.Equal(t, m.mine, c.CPU)
	require.Equal(t, m.time, c.Wall)
}

// Without thread clocks only the time of day is left.
func TestWithoutThreadClocksTheTimeOfDayCounts(t *testing.T) {
	m := &machine{threads: make([]time.Duration, 1)}
	a := &account{clocks: blind{m}, on: true}
	var c Counters
	a.enter()
	m.run(time.Millisecond)
	a.cut(&c, true)
	m.preempt(time.Second)
	a.rise()
	m.run(time.Millisecond)
	a.cut(&c, false)
	require.Equal(t, 2*time.Millisecond, c.CPU)
	require.Equal(t, time.Millisecond, c.Waiting)
	require.Equal(t, 1002*time.Millisecond, c.Wall)
	require.InEpsilon(t, 0.5, c.Useful(), 1e-9)
}

type blind struct{ *machine }

func (blind) thread() (int, time.Duration, bool) { return 0, 0, false }

func TestWithoutAccountingNoTimeIsCounted(t *testing.T) {
	w := New(Options{})
	w.Bind(t.Context(), &ledger{parker: w.Parker()}, 0)
	g := new(gate)
	wait := soon(g.Open)
	w.Enter()
	w.Moved(5)
	require.NoError(t, w.Until(g))
	w.Leave()
	wait()
	c := w.Counters()
	require.Zero(t, c.Wall)
	require.Zero(t, c.CPU)
	require.Zero(t, c.Waiting)
	require.Zero(t, c.Useful())
	require.Equal(t, 1, c.Threads)
}

// Whatever waits, and however: waiting is a part of the processor time, and that a
// part of the time.
func TestAccountsAreWithinTheirBounds(t *testing.T) {
	everywhere(t, func(t *testing.T, w *Waiter, l *ledger) {
		w.SetAccounting(true)
		var last Counters
		for range 3 {
			g := new(gate)
			wait := soon(g.Open)
			w.Enter()
			w.Moved(7)
			require.NoError(t, w.Until(g))
			w.Leave()
			wait()
			c := w.Counters()
			require.LessOrEqual(t, c.Waiting, c.CPU)
			require.LessOrEqual(t, c.CPU, c.Wall)
			require.Greater(t, c.Wall, last.Wall)
			require.Greater(t, c.CPU, last.CPU)
			require.Equal(t, last.Bytes+7, c.Bytes)
			require.GreaterOrEqual(t, c.Useful(), 0.0)
			require.LessOrEqual(t, c.Useful(), 1.0)
			last = c
		}
	})
}

// What is counted is what the thread's own clock shows: about all of a wait that
// spins, about nothing of one that sleeps.
func TestAccountsAgreeWithTheThreadsClock(t *testing.T) {
	if !cpuclock.Supported {
		t.Skip("this system has no clocks of threads")
	}
	for p := range policiesCount {
		t.Run(p.String(), func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			w := New(Options{Policy: p, Locked: true, Account: true, Parker: NewParkerOn(newCouch())})
			l := &ledger{parker: w.Parker()}
			launch := func() {
				ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
				defer cancel()
				w.Bind(ctx, l, 0)
				w.Enter()
				require.Error(t, w.Until(new(gate)))
				w.Leave()
			}
			launch()                           // from now on the clock is read at Enter
			const slack = 2 * time.Millisecond // segments that are short but interrupted
			var got Counters
			var want time.Duration
			// Where others take the processor away in the middle of many short segments,
			// these count as whole: on a busy machine it takes some tries.
			for range 20 {
				before := w.Counters()
				began, err := cpuclock.Thread()
				require.NoError(t, err)
				launch()
				ended, err := cpuclock.Thread()
				require.NoError(t, err)
				got, want = w.Counters().Sub(before), ended-began
				t.Logf("%+v, the thread's clock: %v", got, want)
				if got.CPU <= want+want/4+slack && got.CPU+slack >= want-want/4 {
					break
				}
			}
			require.LessOrEqual(t, got.CPU, want+want/4+slack)
			require.GreaterOrEqual(t, got.CPU+slack, want-want/4)
			require.GreaterOrEqual(t, got.Waiting+slack, got.CPU-got.CPU/4, "it did nothing but wait")
		})
	}
}

// toil is a condition whose looks are work on a machine: every third moves something
// and makes it true.
type toil struct {
	gate
	m     *machine
	looks int
	moved time.Duration
}

func (c *toil) Ready() bool {
	c.looks++
	before := c.m.mine
	c.m.run(time.Duration(300+c.looks%7*100) * time.Nanosecond)
	if c.looks%3 != 0 {
		return false
	}
	c.m.run(5 * time.Microsecond)
	c.moved += c.m.mine - before
	return true
}

// A proxy works by looking: what finds something is useful, the rest is not.
func TestLooksThatFindSomethingAreWorkWhereLookingIsTheJob(t *testing.T) {
	for p := range policiesCount {
		m := &machine{threads: make([]time.Duration, 1)}
		w := New(Options{Policy: p, Heavy: true, Account: true, Works: true})
		w.account.clocks = m
		w.Bind(t.Context(), &ledger{parker: w.Parker()}, 0)
		c := &toil{m: m}
		w.Enter()
		for range 100 {
			if p == Block {
				require.NoError(t, w.Rest(c))
			} else {
				require.NoError(t, w.Until(c))
			}
		}
		w.Leave()
		got := w.Counters()
		require.Equal(t, m.mine, got.CPU, "%v", p)
		require.Equal(t, c.moved, got.CPU-got.Waiting, "%v", p)
		require.EqualValues(t, 100, got.Found)
	}
}

// Whoever sleeps or has little to do has told what it did.
func TestWithAccountingCountersAreNotFarBehind(t *testing.T) {
	m := &machine{threads: make([]time.Duration, 1)}
	w := New(Options{Heavy: true, Account: true, Works: true})
	w.account.clocks = m
	w.Bind(t.Context(), &ledger{parker: w.Parker()}, 0)
	c := &toil{m: m}
	w.Enter()
	for range 200 {
		require.NoError(t, w.Until(c))
		require.Less(t, w.local.Wall-w.Counters().Wall, 2*longestUntold)
	}
}

func TestAMeterCountsPolls(t *testing.T) {
	var m Meter
	require.Zero(t, m.Counters())
	for i := range 10 {
		m.Begin()
		time.Sleep(10 * time.Microsecond)
		m.End(i%5 == 0, i)
	}
	c := m.Counters()
	require.EqualValues(t, 10, c.Turns)
	require.EqualValues(t, 2, c.Found)
	require.EqualValues(t, 5, c.Bytes)
	require.Greater(t, c.Waiting, 80*time.Microsecond)
	require.Greater(t, c.CPU, c.Waiting)
	require.Zero(t, c.Threads)
	require.Positive(t, c.Useful())
}

// Waits show in execution traces, under their conditions' names.
func TestWaitsAreRegionsOfTheTrace(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, trace.Start(&out))
	for _, account := range []bool{false, true} {
		w := New(Options{Account: account})
		w.Bind(t.Context(), &ledger{parker: w.Parker()}, 0)
		w.Enter()
		assert.NoError(t, w.Until(&delayed{}))
		assert.NoError(t, w.Until(&titled{}))
		w.Leave()
	}
	trace.Stop()
	require.Contains(t, out.String(), "wait godot")
}

type titled struct{ delayed }

func (*titled) What() string { return "godot" }

func TestAccountingAllocatesNothing(t *testing.T) {
	for _, on := range []bool{false, true} {
		w := New(Options{Account: on})
		w.Bind(t.Context(), &ledger{parker: w.Parker()}, 0)
		g, late := new(gate), &delayed{}
		g.Open()
		require.Zero(t, testing.AllocsPerRun(100, func() {
			w.Enter()
			late.looks = 0
			_ = w.Until(g)
			_ = w.Until(late)
			w.Leave()
		}), "accounting %v", on)
	}
}

// delayed becomes true at the thousandth look.
type delayed struct {
	gate
	looks int
}

func (d *delayed) Ready() bool { d.looks++; return d.looks > 1000 }

func BenchmarkUntil(b *testing.B) {
	for _, account := range []bool{false, true} {
		for _, looks := range []int{0, 1, 500} {
			b.Run(fmt.Sprintf("account=%v/looks=%d", account, looks), func(b *testing.B) {
				w := New(Options{Account: account})
				w.Bind(b.Context(), &ledger{parker: w.Parker()}, 0)
				late := &delayed{}
				b.ReportAllocs()
				for b.Loop() {
					late.looks = 1000 - looks
					w.Enter()
					if err := w.Until(late); err != nil {
						b.Fatal(err)
					}
					w.Leave()
				}
			})
		}
	}
}
