package spin

import (
	"runtime/trace"
	"time"

	"github.com/gollective/gollective/internal/cpuclock"
)

// Accounting tells apart what a goroutine's waiting and what its work costs. The
// difficulty is that processor time is a thread's, that a goroutine changes
// threads whenever it gives its processor away, and that the clock of a thread
// costs half a microsecond to read, as much as a small operation.
//
// The time between Enter and Leave is therefore cut into segments: at the begin
// and end of each wait, at yields and at sleeps.
//
//   - A short segment is counted by the time of day: whatever interrupts a thread
//     takes longer.
//   - A long one is counted by the thread's clock, if that was read since the
//     goroutine came to the thread. That is left out for small operations that give
//     their processors away: a long segment among them was interrupted, and counts
//     as a short one.
//   - Where looking at a condition is work itself, each look is a segment.
//   - A yield counts as waiting when it was as short as yields are that find
//     nobody else; otherwise as the others' time, and so does a sleep. A goroutine
//     that is locked to its thread has the thread's clock for both.
//
// Where the system has no clocks of threads, all segments are counted by the time
// of day.

// longSegment is more than a reading of the thread's clock costs, by far, and less
// than what a preempted thread waits for its turn.
const longSegment = 20 * time.Microsecond

// launchesAlike is how many launches after one with a long segment are expected to
// have some, too, and read the thread's clock beforehand.
const launchesAlike = 16

// longestCredit is how long segments are counted by the time of day, and what lies
// between launches, before the thread's clock is read again.
const longestCredit = time.Millisecond

// account is the state of a Waiter's accounting. All of it is owned by the waiting
// goroutine.
type account struct {
	clocks clocks
	on     bool
	inside bool // between Enter and Leave: implies on
	locked bool // the goroutine stays on its thread
	works  bool // a look that finds something counts as work
	audits bool // inside and works

	at   time.Duration // begin of the segment in progress
	seen time.Duration // up to where Wall is counted
	told time.Duration // up to where the counters are published
	idle time.Duration // the shortest yield so far
	long int           // launches for which long segments are expected

	known    bool          // the next three hold
	thread   int           // where the goroutine was when used was read
	used     time.Duration // that thread's clock
	credited time.Duration // what the thread has used since, by the time of day
	read     time.Duration // when
}

// clocks are what an account reads. Tests have others.
type clocks interface {
	// now is the time of day, from any moment on.
	now() time.Duration
	// thread is the number of the calling thread and the processor time that it
	// has used, if that is known.
	thread() (int, time.Duration, bool)
}

type systemClocks struct{}

// epoch makes times of day differences, which cost half.
var epoch = time.Now()

func (systemClocks) now() time.Duration { return time.Since(epoch) }

func (systemClocks) thread() (int, time.Duration, bool) {
	used, err := cpuclock.Thread()
	return cpuclock.Current(), used, err == nil
}

// SetAccounting switches the counting of Wall, CPU and Waiting on or off. To be
// called outside of Enter and Leave, by the waiting goroutine or before there is one.
func (w *Waiter) SetAccounting(on bool) { w.account.on = on }

// Enter begins a stretch of work and waits, such as a launch, whose processor time
// is to be counted. Without accounting it does nothing.
func (w *Waiter) Enter() {
	if w.account.on {
		w.account.enter()
	}
}

// Leave ends what Enter began, on the same goroutine, and publishes the counters.
func (w *Waiter) Leave() {
	if w.account.inside {
		w.account.cut(&w.local, false)
		w.account.inside, w.account.audits = false, false
		w.publish()
	}
}

// observed is the rest of Until, after the first look, with a segment of the account
// and a region of the execution trace of its own.
func (w *Waiter) observed(c Condition, l limits) error {
	if trace.IsEnabled() {
		defer trace.StartRegion(w.ctx, region(c)).End()
	}
	if !w.account.inside {
		return w.wait(c, l)
	}
	if w.account.audits { // the looks before and after are segments
		return w.wait(c, l)
	}
	w.account.cut(&w.local, false)
	err := w.wait(c, l)
	w.account.cut(&w.local, true)
	return err
}

func (w *Waiter) wait(c Condition, l limits) error {
	if w.poll(c, l.turns) {
		return nil
	}
	return w.slow(c, l)
}

// Named is a Condition that shows in execution traces under a name of its own, in a
// region "wait <What>".
type Named interface {
	Condition
	What() string
}

func region(c Condition) string {
	if n, ok := c.(Named); ok {
		return "wait " + n.What()
	}
	return "wait"
}

// ready looks at c.
func (w *Waiter) ready(c Condition) bool {
	if w.account.audits {
		return w.audited(c)
	}
	return w.look(c)
}

// audited looks at c in a segment of its own.
func (w *Waiter) audited(c Condition) bool {
	w.account.cut(&w.local, false)
	ready := w.look(c)
	w.account.cut(&w.local, !ready)
	return ready
}

// pollAudited is poll with a segment for each look, from the end of the last one on.
func (w *Waiter) pollAudited(c Condition, turns int) bool {
	for turn := range turns {
		ready := w.look(c)
		w.account.cut(&w.local, !ready)
		if ready {
			w.found(turn + 1)
			return true
		}
	}
	w.local.Turns += uint64(turns)
	return false
}

// untold reports whether Counters are behind by more than they should.
func (a *account) untold() bool { return a.inside && a.at-a.told > longestUntold }

const longestUntold = 100 * time.Microsecond

func (a *account) enter() {
	a.inside, a.audits = true, a.works
	t := a.clocks.now()
	pause, old := t-a.at, t-a.read // since the last launch and the last reading
	a.at, a.seen = t, t
	switch {
	case a.locked, a.long > 0, old > longestCredit, old > longSegment && (pause > longSegment || !a.known):
		a.long = max(a.long-1, 0)
		a.consult()
	default: // what the caller did meanwhile was on this thread
		a.credited += pause
	}
}

// consult reads the thread's clock, if the system has it.
func (a *account) consult() {
	a.thread, a.used, a.known = a.clocks.thread()
	a.credited, a.read = 0, a.at
}

// cut ends a segment, which was one of waiting or of work, and begins the next.
func (a *account) cut(c *Counters, waiting bool) {
	t := a.clocks.now()
	c.Wall += t - a.seen
	a.seen = t
	spent := t - a.at
	a.at = t
	if spent > longSegment {
		a.long = launchesAlike
		spent = a.measured(spent)
	} else {
		a.credited += spent
	}
	a.add(c, spent, waiting)
}

func (a *account) add(c *Counters, spent time.Duration, waiting bool) {
	c.CPU += spent
	if waiting {
		c.Waiting += spent
	}
}

// measured is the processor time of a long segment, which took atMost. The thread's
// clock is known afterwards.
func (a *account) measured(atMost time.Duration) time.Duration {
	was := *a
	a.consult()
	switch {
	case !a.known, was.known && was.thread != a.thread:
		return atMost
	case !was.known:
		return longSegment
	}
	return min(max(a.used-was.used-was.credited, 0), atMost)
}

// back begins a segment after a yield, before which the last one was cut.
func (a *account) back() {
	t := a.clocks.now()
	away := t - a.at
	if a.idle == 0 || away < a.idle {
		a.idle = away
	}
	if away > 4*a.idle { // else nobody was there: the yield is a part of the next segment
		a.arrive(t)
	}
}

// rise begins a segment after a sleep, before which the last one was cut.
func (a *account) rise() { a.arrive(a.clocks.now()) }

// arrive begins a segment at t, after time that was others', on any thread. On a
// locked thread nobody else runs: what passed is a part of the next segment, of
// which the thread's clock knows how much was used, in system calls for example.
func (a *account) arrive(t time.Duration) {
	if a.locked {
		return
	}
	a.at, a.known = t, false
	if a.long > 0 {
		a.consult()
	}
}
