package spin

import "sync"

// Where goroutine ranks outnumber processors, most of them wait most of the time, and
// what an operation costs is what it takes to have each of them run once. Go's own
// yield takes a lock that all processors share, and spreads goroutines over the
// processors at random: a rank's state follows it from cache to cache, which costs more
// than the rank's work.
//
// So waiters of one process wait in lanes, one for each processor. In each, one at a
// time polls, the lane's head; the others queue, asleep. When its wait is over, the head
// wakes the next and goes to its work. The next one becomes runnable on the same
// processor and runs there as soon as this one waits again, unless another processor
// has nothing to do. A head whose wait takes longer lets the next one look, in turn.
//
// Who queues does not look at its condition and has armed no bell. It depends on the
// head, which therefore never sleeps, looks at nothing but memory, and leaves the lane
// after laneRounds: whoever waits longer parks on its own. An abandoned or failed wait
// is noticed in the same way, when its turn has come.

const (
	// lanePolls is about a tenth of a microsecond, what a goroutine's turn costs. With
	// 5 some operations took longer; with 100 a lane waits for its own members. Where
	// there is but one lane it is 1.
	lanePolls = 15
	// laneRounds is about 100 µs where nobody else wants the processor, several times
	// what a parked rank takes to wake up: else it would find the others parked, and
	// so on. With 20 a ring took a tenth longer.
	laneRounds = 600
)

// lane is a queue of waiters and whether there is a head.
type lane struct {
	mu          sync.Mutex // for some nanoseconds; mostly one processor uses it
	headed      bool
	first, last *Waiter // linked by Waiter.behind

	_ [96]byte // whole lines
}

// lanes are those of all waiters of the process, by processor.
var lanes [64]lane

// laneOf is the lane of a waiter of so many on one of cores processors.
func laneOf(number, cores int) *lane {
	return &lanes[uint(number)%uint(min(max(cores, 1), len(lanes)))]
}

// enter makes w the head, at once or when its turn has come. It reports whether w slept.
func (l *lane) enter(w *Waiter) bool {
	l.mu.Lock()
	if !l.headed {
		l.headed = true
		l.mu.Unlock()
		return false
	}
	l.push(w)
	l.mu.Unlock()
	<-w.turn
	return true
}

// leave makes the next waiter the head.
func (l *lane) leave() {
	l.mu.Lock()
	next := l.pop()
	l.headed = next != nil
	l.mu.Unlock()
	if next != nil {
		next.turn <- struct{}{}
	}
}

// rotate lets all others be the head before w is again. It reports whether there are
// any.
func (l *lane) rotate(w *Waiter) bool {
	l.mu.Lock()
	next := l.pop()
	if next == nil {
		l.mu.Unlock()
		return false
	}
	l.push(w)
	l.mu.Unlock()
	next.turn <- struct{}{}
	<-w.turn
	return true
}

func (l *lane) push(w *Waiter) {
	if l.first == nil {
		l.first = w
	} else {
		l.last.behind = w
	}
	l.last = w
}

func (l *lane) pop() *Waiter {
	w := l.first
	if w != nil {
		l.first, w.behind = w.behind, nil
		if l.first == nil {
			l.last = nil
		}
	}
	return w
}

// pollInLane waits in w's lane and reports whether c has become ready. It is false at
// once where waiting is counted by time, or is work on others' behalf.
func (w *Waiter) pollInLane(c Condition, l limits) bool {
	if l.lane == 0 || w.service != nil || w.account.inside {
		return false
	}
	if w.lane.enter(w) {
		w.local.Yields++
	}
	defer w.lane.leave()
	for turn := 1; turn <= laneRounds && w.watch.Failed() == nil; turn++ {
		if w.poll(c, l.lane) {
			return true
		}
		w.yield(turn) // to goroutines that don't wait, too
		if w.poll(c, 1) {
			return true
		}
		if w.lane.rotate(w) {
			w.local.Yields++
		}
	}
	return false
}
