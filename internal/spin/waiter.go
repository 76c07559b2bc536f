package spin

import (
	"context"
	"runtime"
	"runtime/trace"
	"sync/atomic"
	"time"
)

// Condition is something a Waiter can wait for: a credit, a filled slot, a flag.
type Condition interface {
	// Ready reports whether the wait is over. It is called by the waiting
	// goroutine only.
	Ready() bool
	// Peer is the rank that must act for Ready to become true.
	Peer() int
	// Arm asks whoever makes Ready true to wake p from now on.
	Arm(p *Parker)
	// Disarm withdraws Arm.
	Disarm()
}

// Watch is asked on the slow path whether there is a reason to stop waiting.
type Watch interface {
	// Failed returns the error that ended the communicator, or nil. It is one
	// load: every slow turn calls it.
	Failed() error
	// Inspect looks for reasons that nobody reports by itself: peers that are
	// in another call, or closed. It is called every few milliseconds, with
	// the condition waited for.
	Inspect(c Condition) error
	// Expired turns a finished context or a passed deadline into the error
	// that names who was waited for.
	Expired(c Condition, cause error) error
}

// Counters tell what a role's work and waiting cost. A turn is one poll of a
// condition.
type Counters struct {
	Waits  uint64 // conditions that were not true at the first look
	Turns  uint64 // polls, successful or not
	Found  uint64 // polls that found the condition true
	Yields uint64 // times the processor was given away
	Parks  uint64 // sleeps

	// With accounting only. Of a sum over several goroutines, Wall may exceed
	// the time that has passed.
	Wall    time.Duration // from Enter to Leave
	CPU     time.Duration // processor time within Wall
	Waiting time.Duration // processor time within waits: polls, yields, preparing for sleep

	Bytes   uint64 // payload moved, as far as the owner counts it (Waiter.Moved)
	Threads int    // goroutines that these counters are of
}

// Useful is the share of the processor time that was not spent on waiting, between
// 0 and 1; 0 where no processor time was counted.
func (c Counters) Useful() float64 {
	if c.CPU <= 0 {
		return 0
	}
	return min(max(float64(c.CPU-c.Waiting)/float64(c.CPU), 0), 1)
}

// Add adds d to c.
func (c *Counters) Add(d Counters) {
	c.Waits += d.Waits
	c.Turns += d.Turns
	c.Found += d.Found
	c.Yields += d.Yields
	c.Parks += d.Parks
	c.Wall += d.Wall
	c.CPU += d.CPU
	c.Waiting += d.Waiting
	c.Bytes += d.Bytes
	c.Threads += d.Threads
}

// Sub is what was added to c since it was since: by the same goroutines, or with
// some more.
func (c Counters) Sub(since Counters) Counters {
	c.Waits -= since.Waits
	c.Turns -= since.Turns
	c.Found -= since.Found
	c.Yields -= since.Yields
	c.Parks -= since.Parks
	// Times of roles are differences of clocks that are read at different moments.
	c.Wall = max(c.Wall-since.Wall, 0)
	c.CPU = max(c.CPU-since.CPU, 0)
	c.Waiting = max(c.Waiting-since.Waiting, 0)
	c.Bytes -= since.Bytes
	return c
}

// Service is work that nobody does unless those who wait do it between two looks: the
// progress of a proxy that has no thread.
type Service interface {
	// Drive does what can be done without waiting.
	Drive()
	// Sleep has p woken when there is more to do, Rise withdraws it.
	Sleep(p *Parker)
	Rise(p *Parker)
}

// Waiter waits on behalf of one goroutine at a time. Its counters are kept in
// plain words and published now and then, so that a short wait costs no atomic
// store; Counters may lag by publishTurns polls, with accounting by a tenth of a
// millisecond.
type Waiter struct {
	limits limits
	parker *Parker
	yields yields

	lane   *lane
	turn   chan struct{} // wakes the waiter to be the lane's head; with one place
	behind *Waiter       // next in the lane's queue

	service Service // nil if there is none

	// What Bind set for the launch in progress.
	watch    Watch
	done     <-chan struct{}
	ctx      context.Context
	timeout  time.Duration
	deadline time.Time // set when the clock is first read

	account account

	local     Counters // owned by the waiting goroutine
	published struct { // written by the waiting goroutine
		waits, turns, found, yields, parks, bytes atomic.Uint64
		wall, cpu, waiting                        atomic.Int64 // only with accounting
	}

	_ [208]byte // whole lines: another goroutine's may lie next to it
}

const publishTurns = 1 << 12

// Options say how a Waiter waits.
type Options struct {
	Policy Policy
	// Waiters is how many may wait at the same time, on Cores processors.
	// Default: 1 on GOMAXPROCS.
	Waiters, Cores int
	// Parker is where to sleep; nobody else uses it. Default: NewParker.
	Parker *Parker
	// Lane is a number that differs, from 0 on, between those that wait at the same
	// time: it spreads them over the processors.
	Lane int
	// Shared says that some of the waiters are in other processes, of which
	// Go's scheduler knows nothing. It is implied by a Parker that is a bed.
	Shared bool
	// Heavy says that a poll is a system call, not a load.
	Heavy bool
	// Locked says that the waiting goroutine is locked to its thread, where
	// Go's own yield costs two switches of threads, some 30 µs.
	Locked bool
	// Account switches accounting on (SetAccounting).
	Account bool
	// Works says that looking at a condition is the waiting goroutine's work, as a
	// proxy's is: a look that finds it true counts as work, not as waiting.
	Works bool
}

// New returns a Waiter.
func New(o Options) *Waiter {
	if o.Cores == 0 {
		o.Cores = runtime.GOMAXPROCS(0)
	}
	if o.Parker == nil {
		o.Parker = NewParker()
	}
	o.Shared = o.Shared || o.Parker.bed != nil
	w := &Waiter{
		limits: limitsFor(o.Policy, o.Waiters, o.Cores, o.Shared, o.Heavy),
		parker: o.Parker, yields: yieldsFor(o),
		lane: laneOf(o.Lane, o.Cores), turn: make(chan struct{}, 1),
	}
	if o.Locked {
		w.limits.lane = 0
	}
	w.account = account{clocks: systemClocks{}, on: o.Account, locked: o.Locked, works: o.Works}
	return w
}

// NewWaiter returns a Waiter for a process in which waiters goroutines may wait
// at the same time.
func NewWaiter(p Policy, waiters int) *Waiter { return New(Options{Policy: p, Waiters: waiters}) }

// Parker is what a failure must wake.
func (w *Waiter) Parker() *Parker { return w.parker }

// Bind sets what ends the waits of the coming launch: the watch, the context
// and, if it is not zero, a limit on the time that may pass once waiting has become
// slow.
func (w *Waiter) Bind(ctx context.Context, watch Watch, timeout time.Duration) {
	w.watch, w.ctx, w.done = watch, ctx, ctx.Done()
	w.timeout, w.deadline = timeout, time.Time{}
}

// Serve has the waits from now on drive s; nil ends that.
func (w *Waiter) Serve(s Service) { w.service = s }

// look drives what there is to drive and reports whether c is ready.
func (w *Waiter) look(c Condition) bool {
	if c.Ready() {
		return true
	}
	if w.service == nil {
		return false
	}
	w.service.Drive()
	return c.Ready()
}

// Wait is the number of the wait in progress, for the watch: no two are equal.
func (w *Waiter) Wait() uint64 { return w.local.Waits }

// Until returns nil as soon as c is ready, or the reason why it never will be.
func (w *Waiter) Until(c Condition) error {
	if w.account.audits && w.audited(c) || !w.account.audits && c.Ready() {
		w.found(1)
		return nil
	}
	w.local.Waits++
	if w.account.inside || trace.IsEnabled() {
		return w.observed(c, w.limits)
	}
	if w.poll(c, w.limits.turns) || w.pollInLane(c, w.limits) {
		return nil
	}
	return w.slow(c, w.limits)
}

// Soon reports whether c becomes ready within the polls that a wait begins with. It
// looks once only where waits are watched: Until shows what a wait costs.
func (w *Waiter) Soon(c Condition) bool {
	if w.account.audits || w.account.inside || trace.IsEnabled() {
		return c.Ready()
	}
	return w.poll(c, w.limits.turns)
}

// Rest is Until for a condition that nobody is in a hurry for, such as that there
// is anything to do: it sleeps at once, whatever the policy, and looks around
// ever more rarely, down to once a second. c's bell, a failure and, unless the
// Parker is a bed, the context end the sleep at once.
func (w *Waiter) Rest(c Condition) error {
	if w.account.audits && w.audited(c) || !w.account.audits && c.Ready() {
		w.found(1)
		return nil
	}
	w.local.Waits++
	return w.observed(c, resting)
}

// Outlast waits for what is sure to come soon, whatever else has failed: the end of
// work that waits for nothing, by a goroutine of this process.
func (w *Waiter) Outlast(c interface{ Ready() bool }) {
	for turn := 1; !c.Ready(); turn++ {
		pause()
		if turn%max(w.limits.turns, 1) == 0 {
			w.yield(turn)
		}
	}
}

// poll looks at c up to turns times.
func (w *Waiter) poll(c Condition, turns int) bool {
	if w.account.audits {
		return w.pollAudited(c, turns)
	}
	for turn := range turns {
		if w.look(c) {
			w.found(turn + 1)
			return true
		}
		pause()
	}
	w.local.Turns += uint64(turns)
	return false
}

// found counts a success after turns polls.
func (w *Waiter) found(turns int) {
	w.local.Turns += uint64(turns)
	w.local.Found++
	if w.local.Turns-w.published.turns.Load() >= publishTurns || w.account.untold() {
		w.publish()
	}
}

// slow gives the processor away between polls and looks at everything that can
// end a wait.
func (w *Waiter) slow(c Condition, l limits) error {
	defer w.publish()
	sleep := firstSleep
	var lastLook time.Time
	for turn := 1; ; turn++ {
		if err := w.watch.Failed(); err != nil {
			return err
		}
		// The clock is read only every 64th yield and when a sleep was not
		// ended by a bell: it costs as much as a yield.
		look := turn%64 == 0 || l.looks
		if l.yields >= 0 && turn > l.yields {
			switch w.park(c, sleep) {
			case foundReady:
				w.found(1)
				return nil
			case rang: // by one of several ranks that are waited for, perhaps
				if w.pollInLane(c, l) {
					return nil
				}
			case timedOut:
				sleep = min(2*sleep, l.longest)
				look = true
			}
		} else {
			w.yield(turn)
		}
		if w.poll(c, l.turns) {
			return nil
		}
		if look {
			now := time.Now()
			if err := w.expired(c, now); err != nil {
				return err
			}
			if now.Sub(lastLook) >= firstSleep {
				lastLook = now
				w.publish()
				if err := w.watch.Inspect(c); err != nil {
					return err
				}
			}
		}
	}
}

// yield gives the processor away.
func (w *Waiter) yield(turn int) {
	w.local.Yields++
	if w.account.inside {
		w.account.cut(&w.local, true)
		w.yields.give(turn)
		w.account.back()
		return
	}
	w.yields.give(turn)
}

// expired reports a finished context or a passed deadline. The first call of a
// launch starts the clock of the timeout.
func (w *Waiter) expired(c Condition, now time.Time) error {
	select {
	case <-w.done:
		return w.watch.Expired(c, w.ctx.Err())
	default:
	}
	if w.timeout > 0 {
		if w.deadline.IsZero() {
			w.deadline = now.Add(w.timeout)
		} else if now.After(w.deadline) {
			return w.watch.Expired(c, context.DeadlineExceeded)
		}
	}
	return nil
}

// wakening says how a park ended.
type wakening uint8

const (
	foundReady wakening = iota // there was no need to sleep
	rang                       // the bell, or a failure, or a wake-up that came late
	timedOut                   // nothing happened, or the context is done
)

// park sleeps until c's bell rings, a failure or the context wakes it, or
// atMost has passed.
func (w *Waiter) park(c Condition, atMost time.Duration) wakening {
	token := w.parker.Token()
	c.Arm(w.parker)
	defer c.Disarm()
	if w.service != nil {
		w.service.Sleep(w.parker)
		defer w.service.Rise(w.parker)
	}
	if w.ready(c) { // made true before the bell was armed
		return foundReady
	}
	if w.watch.Failed() != nil {
		return rang
	}
	w.local.Parks++
	if w.account.inside {
		w.account.cut(&w.local, true)
		w.publish() // it may be long
		defer w.account.rise()
	}
	if w.parker.Sleep(token, w.done, atMost) {
		return rang
	}
	return timedOut
}

// publish makes the counters visible to Counters.
func (w *Waiter) publish() {
	w.published.waits.Store(w.local.Waits)
	w.published.turns.Store(w.local.Turns)
	w.published.found.Store(w.local.Found)
	w.published.yields.Store(w.local.Yields)
	w.published.parks.Store(w.local.Parks)
	w.published.bytes.Store(w.local.Bytes)
	if w.account.on {
		w.account.told = w.account.at
		w.published.wall.Store(int64(w.local.Wall))
		w.published.cpu.Store(int64(w.local.CPU))
		w.published.waiting.Store(int64(w.local.Waiting))
	}
}

// Moved counts bytes of payload that the waiting goroutine has moved.
func (w *Waiter) Moved(bytes int) { w.local.Bytes += uint64(bytes) }

// Counters returns what was counted so far. Any goroutine may call it.
func (w *Waiter) Counters() Counters {
	return Counters{
		Waits:  w.published.waits.Load(),
		Turns:  w.published.turns.Load(),
		Found:  w.published.found.Load(),
		Yields: w.published.yields.Load(),
		Parks:  w.published.parks.Load(),

		// In the order in which Useful stays within its bounds.
		Waiting: time.Duration(w.published.waiting.Load()),
		CPU:     time.Duration(w.published.cpu.Load()),
		Wall:    time.Duration(w.published.wall.Load()),
		Bytes:   w.published.bytes.Load(),
		Threads: 1,
	}
}

// pause spends about four nanoseconds without touching memory, so that a poll
// does not steal the line from the rank that is about to write it.
//
//go:noinline
func pause() {
	for i := 0; i < 8; i++ { //nolint:revive // the loop is the work
	}
}
