// Package spin is the one place that waits. Everything else in the project asks
// it to wait until a condition holds; how the processor is used meanwhile is
// decided here, by policy.
//
// A wait goes through the same stations under every policy:
//
//	check → pause (a bounded number of turns) → failure, context, deadline
//	      → runtime.Gosched → (adaptive, block) park until the bell rings
//
// and every turn is counted, because what waiting costs is what this project
// exists to show.
package spin

import (
	"fmt"
	"runtime"
	"time"
)

// Policy says how a waiter uses the processor.
type Policy uint8

const (
	// Adaptive spins for about two microseconds, yields between such spins for
	// about a millisecond, then parks. When more ranks wait than cores exist, one per
	// core polls at a time, those of a process take turns at it for about a tenth of a
	// millisecond (see lane.go), and those of several processes yield.
	Adaptive Policy = iota
	// Spin polls without giving the processor away, as NCCL's kernels and
	// proxies do, but for one yield every spinTurns polls: without it a
	// waiter that occupies the only processor would hold up the very rank
	// it waits for until the scheduler's time slice ends.
	Spin
	// Yield gives the processor away after every poll.
	Yield
	// Block parks at once.
	Block
	policiesCount
)

var policyNames = [policiesCount]string{"adaptive", "spin", "yield", "block"}

func (p Policy) String() string {
	if p >= policiesCount {
		return fmt.Sprintf("policy(%d)", uint8(p))
	}
	return policyNames[p]
}

// ParsePolicy is the inverse of String.
func ParsePolicy(name string) (Policy, error) {
	for p, n := range policyNames {
		if n == name {
			return Policy(p), nil
		}
	}
	return 0, fmt.Errorf("unknown wait policy %q (spin, yield, adaptive or block)", name)
}

// Turns a waiter may burn, each worth a poll and a pause of some nanoseconds.
const (
	// spinTurns is NCCL's interval between looks at the abort flag
	// (NCCL_SPINS_BEFORE_CHECK_ABORT in src/device/primitives.h).
	spinTurns = 10000
	// adaptiveTurns is about 2 µs: a rank that is on time answers within it.
	adaptiveTurns = 400
	// adaptiveYields is about 50 µs of runtime.Gosched with an idle
	// processor: parking and waking cost as much. With the polls between them
	// it is 1.0 to 1.4 ms (Zen 5) until a waiter parks.
	adaptiveYields = 500
	// crowdedYields replaces both when ranks outnumber cores, for waiters that lanes
	// don't serve: a switch to a rank that has work is worth more than any poll.
	crowdedYields = 2
	// sharedYields is the same where the others are processes: each yield lets
	// the system's scheduler run one, for about a microsecond, and a futex
	// costs some ten of them.
	sharedYields = 50
)

// The same for polls that are system calls, of 0.3 to 1 µs each: fewer of them,
// for about as long.
const (
	heavySpinTurns     = 200 // a failure is seen within 200 µs
	heavyAdaptiveTurns = 4   // 2 µs
	// heavyYields is about 1 ms with the polls between them. It must be well above
	// what a wake-up takes (50 µs over sockets): else the wake-up of one that has
	// parked has the other one park, and both go on so. With 20, two ranks that
	// exchanged 4 bytes over and over did a third as much, at twice the processor
	// time for each.
	heavyYields       = 400
	heavySharedYields = 30 // 50 µs
)

// Sleeps end by themselves after these times, in which a parked waiter looks
// around (Watch.Inspect): a peer that is in another call wakes nobody. They
// double from the first to the longest.
const (
	firstSleep   = 2 * time.Millisecond
	longestSleep = 16 * time.Millisecond
	// longestRest is the same where nothing is under way: at one look a
	// second, resting costs nothing that could be measured.
	longestRest = time.Second
)

// limits is a policy made concrete for a number of waiters.
type limits struct {
	turns  int // polls between two slow turns
	yields int // slow turns before the first park; -1 = never park
	// looks means that the clock is read in every slow turn: it costs nothing
	// beside the polls.
	looks   bool
	lane    int           // polls of the head of a lane, see lane.go; 0 = no lanes
	longest time.Duration // sleep
}

// resting are the limits of Rest, whatever the policy.
var resting = limits{turns: 1, yields: 0, longest: longestRest}

// limitsFor decides how long waiters of policy p may poll and yield when waiters
// of them share cores processors: as goroutines of this process or, if shared, of
// several. Polls are loads or, if heavy, system calls.
func limitsFor(p Policy, waiters, cores int, shared, heavy bool) limits {
	l := limits{longest: longestSleep}
	crowded := waiters > cores
	switch {
	case p == Spin:
		l.turns, l.yields, l.looks = spinTurns, -1, true
		if heavy {
			l.turns = heavySpinTurns
		}
	case p == Yield:
		l.turns, l.yields = 1, -1
	case p == Block:
		l.turns, l.yields = 1, 0
	case crowded && shared && heavy:
		l.turns, l.yields = 1, heavySharedYields
	case crowded && shared:
		l.turns, l.yields = 1, sharedYields
	case crowded && heavy:
		l.turns, l.yields = 1, crowdedYields
	case crowded && cores == 1:
		l.turns, l.yields, l.lane = 1, crowdedYields, 1
	case crowded:
		l.turns, l.yields, l.lane = 1, crowdedYields, lanePolls
	case heavy:
		l.turns, l.yields = heavyAdaptiveTurns, heavyYields
	default:
		l.turns, l.yields = adaptiveTurns, adaptiveYields
	}
	return l
}

// yields is how a processor is given away: by the system's yield, which lets other
// processes and threads run and knows nothing of goroutines, by Go's, or by both.
type yields struct {
	system bool
	every  int // Go's yield comes every so many turns
}

// yieldsFor: Go's own yield wakes an idle thread to look for work, which takes a
// processor from the very rank that is waited for, where that is in another
// process. And on a locked thread it costs some 30 µs: there it comes only so that
// other goroutines get a processor before the scheduler's time slice ends, in 10 ms.
func yieldsFor(o Options) yields {
	switch {
	case o.Locked && o.Policy == Spin:
		return yields{true, 16} // every millisecond or so
	case o.Locked:
		return yields{true, 256}
	case o.Shared:
		return yields{true, 8}
	}
	return yields{false, 1}
}

func (y yields) give(turn int) {
	if y.system {
		yieldProcessor()
	}
	if y.every == 1 || turn%y.every == 0 {
		runtime.Gosched()
	}
}
