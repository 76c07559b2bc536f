package collective_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

// Manners of leaving without a word, and two that are not.
const (
	killed  = "killed"
	panics  = "panics"
	exits0  = "exits with 0"
	exits3  = "exits with 3"
	stopped = "is stopped"         // the survivors' deadline ends their calls
	closes0 = "closes and returns" // the survivors learn of that, too
)

var manners = []string{killed, panics, exits0, exits3, stopped, closes0}

// Points at which a process leaves.
const (
	duringInit     = "during Init"
	betweenCalls   = "between calls"
	amidReductions = "amid large reductions"
	amidLoans      = "amid large reductions of allocated memory"
	amidMessages   = "amid large messages"
	duringSplit    = "during Split"
	duringClose    = "during Close"
)

var points = []string{duringInit, betweenCalls, amidReductions, amidMessages, duringSplit, duringClose, amidLoans}

// soon is when survivors must know. What it takes is logged.
const soon = 5 * time.Second

type deathJob struct {
	Ranks  []int // of each process
	Victim int   // process
	Point  string
	Manner string
	After  time.Duration // from the point on
}

// deadline is what calls of survivors get where only that can end them.
const deadline = 700 * time.Millisecond

func (j deathJob) context() (context.Context, context.CancelFunc) {
	if j.Manner == stopped {
		return context.WithTimeout(context.Background(), deadline)
	}
	return context.WithCancel(context.Background())
}

// leave ends or stops this process in the manner asked for.
func (j deathJob) leave(p *player, comms []*collective.Comm) {
	p.tell("leaves", nil)
	switch j.Manner {
	case killed:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case stopped:
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case panics:
		go panic("as the test wants it")
	case exits0:
		os.Exit(0)
	case exits3:
		os.Exit(3)
	case closes0:
		if err := closeAll(comms); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	select {}
}

// victims are the ranks of the process that leaves.
func (j deathJob) victims() []int {
	first := 0
	for _, n := range j.Ranks[:j.Victim] {
		first += n
	}
	var ranks []int
	for r := range j.Ranks[j.Victim] {
		ranks = append(ranks, first+r)
	}
	return ranks
}

// work is what all do at a point until it fails.
func (j deathJob) work(c *collective.Comm) error {
	ctx, cancel := j.context()
	defer cancel()
	n, me := c.Size(), c.Rank()
	switch j.Point {
	case amidReductions:
		x := make([]float32, 2<<20)
		return collective.AllReduce(ctx, c, x, x, collective.Sum)
	case amidLoans:
		return j.lend(ctx, c)
	case amidMessages:
		out, in := make([]int32, 1<<20), make([]int32, 1<<20)
		g := collective.NewGroup()
		err := errors.Join(collective.Send(ctx, g.On(c), out, (me+1)%n), collective.Recv(ctx, g.On(c), in, (me+n-1)%n))
		if err != nil {
			return err
		}
		return g.Run(ctx)
	case duringSplit:
		child, err := c.Split(ctx, me%2, 0)
		if err != nil {
			return err
		}
		x := []int32{1}
		err = collective.AllReduce(ctx, child, x, x, collective.Sum)
		if err == nil && int(x[0]) != child.Size() {
			err = fmt.Errorf("the sum over %d ranks is %v", child.Size(), x)
		}
		if err != nil {
			c.Abort() // those of the other color wait for this rank
			var members []int
			for rank := me % 2; rank < n; rank += 2 {
				members = append(members, rank)
			}
			err = &inChild{err, members}
		}
		return errors.Join(err, child.Close())
	}
	x := make([]int32, 5)
	return collective.AllReduce(ctx, c, x, x, collective.Sum)
}

// lend reduces memory that the others see, and frees it whatever comes: those who are
// still at work on it have views of their own.
func (j deathJob) lend(ctx context.Context, c *collective.Comm) (err error) {
	const count = 2 << 20
	b, err := c.MemAlloc(2 * 4 * count)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.MemFree(b)) }()
	call := collective.Call{Kind: plan.AllReduce, Type: dtype.Float32, Op: collective.Sum, Count: count, Send: b[:4*count], Recv: b[4*count:]}
	if j.Victim%2 == 0 {
		call.Recv = call.Send
	}
	return c.Do(ctx, call)
}

var deathRole = role("death", func(p *player) error {
	var job deathJob
	p.arguments(&job)
	number, err := strconv.Atoi(os.Getenv("GOLLECTIVE_RANK"))
	if err != nil {
		return err
	}
	victim := number == job.Victim
	before := tracesNow()
	if job.Point == duringInit {
		// Not before all are there: who has not come can't be noticed missing.
		p.tell("ready", nil)
		if err := p.await("go"); err != nil {
			return err
		}
		if victim {
			time.AfterFunc(job.After, func() { job.leave(p, nil) })
		}
	}
	comms, err := collective.InitLocal(context.Background(), job.Ranks[number], collective.Config{JoinTimeout: 3 * time.Second})
	if err != nil {
		p.tell("learned", err)
		return before.left()
	}
	if victim && job.Point == duringInit && job.Manner == closes0 {
		select {} // its communicators are closed by nobody: it leaves without a word
	}
	if job.Point != duringInit {
		if err := everyLocal(comms, func(c *collective.Comm) error { return exchange(c, c.Size()) }); err != nil {
			return err
		}
		p.tell("ready", nil)
		if err := p.await("go"); err != nil {
			return err
		}
	}
	if job.Point == duringClose {
		if victim {
			time.AfterFunc(job.After, func() { job.leave(p, nil) })
		}
		start := time.Now()
		err := closeAll(comms)
		p.tell("closed", err, time.Since(start).Seconds())
		if victim {
			select {}
		}
		return before.left()
	}
	if victim {
		return victimsPart(p, job, comms)
	}
	return survivorsPart(p, job, comms, before)
})

func victimsPart(p *player, job deathJob, comms []*collective.Comm) error {
	switch {
	case job.Point == betweenCalls:
		job.leave(p, comms)
	case job.Manner == closes0:
		for range 2 { // a program that has less to do than the others
			if err := everyLocal(comms, job.work); err != nil {
				return err
			}
		}
		job.leave(p, comms)
	case job.Point != duringInit:
		time.AfterFunc(job.After, func() { job.leave(p, comms) })
	}
	for {
		if err := everyLocal(comms, job.work); err != nil {
			select {} // it has been too slow: the others are in a hurry
		}
	}
}

func survivorsPart(p *player, job deathJob, comms []*collective.Comm, before traces) error {
	var mu sync.Mutex
	err := everyLocal(comms, func(c *collective.Comm) error {
		var err error
		for err == nil {
			err = job.work(c)
		}
		p.tell("learned", err)
		// It stays so, and at once.
		again := job.work(c)
		if again == nil {
			return fmt.Errorf("a call after %w has no error", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if job.Point == duringInit { // others may not have joined, and have left
		return errors.Join(closeAll(comms), before.left())
	}
	used := processorTime()
	time.Sleep(200 * time.Millisecond)
	p.tell("idle", nil, (processorTime()-used).Seconds()/0.2)
	err = everyLocal(comms, func(c *collective.Comm) error {
		rest, err := shrunk(c, job.victims(), job.Manner == stopped)
		if err != nil {
			return err
		}
		defer rest.Close()
		x := make([]int64, 300_000)
		for i := range x {
			x[i] = int64(rest.Rank() + i)
		}
		if err := collective.AllReduce(context.Background(), rest, x, x, collective.Sum); err != nil {
			return err
		}
		n := rest.Size()
		for i := range x {
			if want := int64(n*(n-1)/2 + n*i); x[i] != want {
				return fmt.Errorf("after Shrink element %d is %d, want %d", i, x[i], want)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		p.tell("shrunk", nil, float64(n))
		return nil
	})
	if err != nil {
		return err
	}
	start := time.Now()
	if err := closeAll(comms); err != nil {
		return err
	}
	p.tell("closed", nil, time.Since(start).Seconds())
	return before.left()
}

// shrunk returns a communicator of the ranks of c that are left, which works. Those
// that are gone are what Lost says, and must be gone, or known to be silent.
func shrunk(c *collective.Comm, gone []int, silent bool) (*collective.Comm, error) {
	if silent {
		if lost := c.Lost(); len(lost) > 0 {
			return nil, fmt.Errorf("ranks %v are lost that are only stopped", lost)
		}
		rest, err := c.Shrink(context.Background(), gone)
		if err != nil {
			return nil, err
		}
		return rest, exchange(rest, rest.Size())
	}
	for end := time.Now().Add(4 * soon); ; {
		lost := c.Lost()
		for _, rank := range lost {
			if !slices.Contains(gone, rank) {
				return nil, fmt.Errorf("rank %d is lost, of %v", rank, gone)
			}
		}
		err := errors.New("nobody is lost")
		if len(lost) > 0 {
			var rest *collective.Comm
			if rest, err = c.Shrink(context.Background(), lost); err == nil {
				if err = exchange(rest, rest.Size()); err == nil {
					return rest, nil
				}
				rest.Close()
			}
		}
		for len(c.Lost()) == len(lost) {
			if time.Now().After(end) {
				return nil, fmt.Errorf("of ranks %v, %v are lost: %w", gone, lost, err)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// deathOf draws what a row does not say.
func deathOf(rng *rand.Rand, n, victim int, point, manner string) deathJob {
	j := deathJob{Victim: victim, Point: point, Manner: manner, After: time.Duration(rng.IntN(30_000)) * time.Microsecond}
	if point == duringInit || point == duringClose {
		j.After = time.Duration(rng.IntN(5_000)) * time.Microsecond
	}
	for range n {
		j.Ranks = append(j.Ranks, 1+rng.IntN(4)/3)
	}
	return j
}

func TestEverySurvivorNamesTheProcessThatIsGoneAndGoesOn(t *testing.T) {
	rng, _ := sampleSeed(t)
	full := os.Getenv("GOLLECTIVE_TEST_FULL") != ""
	var jobs []deathJob
	for _, i := range rng.Perm(len(points)) {
		point := points[i]
		for _, manner := range manners {
			if point == duringInit && manner == closes0 || point == duringClose && manner == closes0 {
				continue // that is what all do
			}
			sizes := []int{2, 3, 5}
			if !full {
				sizes = []int{sizes[rng.IntN(3)]}
				if manner == stopped && i%3 != 0 { // each takes four seconds of waiting
					continue
				}
			}
			for _, n := range sizes {
				jobs = append(jobs, deathOf(rng, n, rng.IntN(n), point, manner))
			}
		}
	}
	if underRace {
		rng.Shuffle(len(jobs), func(i, k int) { jobs[i], jobs[k] = jobs[k], jobs[i] })
		jobs = jobs[:8]
	}
	files := sharedFiles(t)
	slowest, slowestClose := time.Duration(0), 0.0
	var mu sync.Mutex
	t.Run("", func(t *testing.T) {
		for _, job := range jobs {
			t.Run(fmt.Sprintf("%s, it %s, process %d of %v, after %v", job.Point, job.Manner, job.Victim, job.Ranks, job.After), func(t *testing.T) {
				t.Parallel()
				took, closing := deathIsSurvived(t, job)
				mu.Lock()
				defer mu.Unlock()
				slowest, slowestClose = max(slowest, took), max(slowestClose, closing)
			})
		}
	})
	t.Logf("the slowest survivor knew after %v; the slowest Close took %.3f s", slowest, slowestClose)
	require.Equal(t, files, sharedFiles(t))
}

// deathIsSurvived returns how long it took until the last survivor knew, and the
// longest Close.
func deathIsSurvived(t *testing.T, job deathJob) (took time.Duration, closing float64) {
	c := stage(t, staging{role: deathRole, args: job, size: len(job.Ranks)})
	c.reported("ready", c.all()...)
	c.cue("go", c.all()...)
	survivors := c.others(job.Victim)
	victims := job.victims()
	if job.Point == duringClose {
		for _, r := range c.reported("closed", survivors...) {
			require.Nil(t, r.Error)
			closing = max(closing, r.Numbers[0])
		}
		c.succeed(survivors...)
		return 0, closing
	}
	c.reported("learned", survivors...)
	left := c.reported("leaves", job.Victim)[0].At
	c.until("all ranks' errors", func() bool {
		for _, number := range survivors {
			p := c.processes[number]
			learned := 0
			for _, r := range p.reports {
				if r.What == "learned" {
					learned++
				}
			}
			if learned < job.Ranks[number] && !p.ended {
				return false
			}
		}
		return true
	})
	for _, number := range survivors {
		for _, r := range c.processes[number].reports {
			if r.What != "learned" {
				continue
			}
			requireNamed(t, job, victims, r)
			if r.Error.Kind != "timeout" { // which is the deadline's affair
				took = max(took, r.At.Sub(left))
			}
		}
	}
	assert.Less(t, took, soon)
	c.succeed(survivors...)
	for _, number := range survivors {
		for _, r := range c.processes[number].reports {
			switch r.What {
			case "idle":
				assert.Less(t, r.Numbers[0], 0.3, "processor time of process %d after the failure", number)
			case "shrunk":
				total := 0
				for _, n := range job.Ranks {
					total += n
				}
				assert.EqualValues(t, total-len(victims), r.Numbers[0])
			case "closed":
				closing = max(closing, r.Numbers[0])
			}
		}
	}
	return took, closing
}

// requireNamed checks the error of one survivor.
func requireNamed(t *testing.T, job deathJob, victims []int, r report) {
	t.Helper()
	require.NotNil(t, r.Error)
	kinds := map[string][]string{
		killed: {"lost"}, panics: {"lost"}, exits0: {"lost"}, exits3: {"lost"},
		stopped: {"timeout"}, closes0: {"closed"},
	}[job.Manner]
	if job.Point == duringInit {
		// Before all have come nobody knows which ranks live where: processes
		// are named. One that has not shown up yet is missing.
		kinds = append(kinds, "timeout")
		victims = append(victims, job.Victim)
	}
	if job.Point == duringSplit && r.Error.Kind == "aborted" {
		// By one that had learned of the death in its half.
		require.NotSubset(t, victims, r.Error.Ranks, r.Error.Text)
		return
	}
	require.Contains(t, kinds, r.Error.Kind, "process %d: %s", r.Process, r.Error.Text)
	require.NotEmpty(t, r.Error.Ranks, r.Error.Text)
	require.Subset(t, victims, r.Error.Ranks, "process %d: %s", r.Process, r.Error.Text)
}

// A second process dies while the survivors of the first one shrink.

type secondJob struct {
	Ranks         []int
	First, Second int
	After         time.Duration
}

var secondRole = role("second death", func(p *player) error {
	var job secondJob
	p.arguments(&job)
	number, err := strconv.Atoi(os.Getenv("GOLLECTIVE_RANK"))
	if err != nil {
		return err
	}
	gone := append(deathJob{Ranks: job.Ranks, Victim: job.First}.victims(), deathJob{Ranks: job.Ranks, Victim: job.Second}.victims()...)
	return joined(job.Ranks[number], collective.Config{}, func(comms []*collective.Comm) error {
		if err := everyLocal(comms, func(c *collective.Comm) error { return exchange(c, c.Size()) }); err != nil {
			return err
		}
		p.tell("ready", nil)
		if err := p.await("go"); err != nil {
			return err
		}
		if number == job.First {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return everyLocal(comms, func(c *collective.Comm) error {
			var err error
			for err == nil {
				err = collective.Barrier(context.Background(), c)
			}
			if number == job.Second {
				time.AfterFunc(job.After, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
				_, _ = c.Shrink(context.Background(), c.Lost())
				select {}
			}
			rest, err := shrunk(c, gone, false)
			if err != nil {
				return err
			}
			return errors.Join(exchange(rest, len(staying(job.Ranks, gone))), rest.Close())
		})
	})
})

// staying lists the ranks that are not gone.
func staying(ranks, gone []int) []int {
	var rest []int
	total := 0
	for _, n := range ranks {
		total += n
	}
	for r := range total {
		if !slices.Contains(gone, r) {
			rest = append(rest, r)
		}
	}
	return rest
}

func TestADeathDuringShrinkIsSurvivedToo(t *testing.T) {
	rng, _ := sampleSeed(t)
	rounds := 6
	if os.Getenv("GOLLECTIVE_TEST_FULL") != "" {
		rounds = 60
	}
	for round := range rounds {
		n := []int{3, 4, 5}[round%3]
		order := rng.Perm(n)
		job := secondJob{First: order[0], Second: order[1], After: time.Duration(rng.IntN(4000)) * time.Microsecond}
		for range n {
			job.Ranks = append(job.Ranks, 1+rng.IntN(3)/2)
		}
		t.Run(fmt.Sprintf("%+v", job), func(t *testing.T) {
			c := stage(t, staging{role: secondRole, args: job, size: n})
			c.reported("ready", c.all()...)
			c.cue("go", c.all()...)
			c.succeed(c.others(job.First, job.Second)...)
		})
	}
}

// Signals from a terminal.

var loopRole = role("loop", func(p *player) error {
	c, err := collective.Init(context.Background(), collective.Config{})
	if err != nil {
		return err
	}
	p.tell("ready", exchange(c, c.Size()))
	x := make([]float32, 1<<18)
	for {
		if err := collective.AllReduce(context.Background(), c, x, x, collective.Sum); err != nil {
			return err
		}
	}
})

func TestSignalsThatEndAJobLeaveNothingBehind(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(s.String(), func(t *testing.T) {
			files := sharedFiles(t)
			n := 8
			if underRace {
				n = 3
			}
			c := stage(t, staging{role: loopRole, size: n})
			c.reported("ready", c.all()...)
			c.signal(s, c.all()...)
			c.until("the end of all processes", func() bool {
				return !slices.ContainsFunc(c.processes, func(p *process) bool { return !p.ended })
			})
			require.Equal(t, files, sharedFiles(t))
		})
	}
}

// Shared memory that belongs to the dead would show in the host's count.
func TestKilledJobsDoNotPileUpSharedMemory(t *testing.T) {
	rounds := 5
	if os.Getenv("GOLLECTIVE_TEST_FULL") != "" {
		rounds = 100
	}
	before := sharedMemory(t)
	for range rounds {
		c := stage(t, staging{role: loopRole, size: 4})
		c.reported("ready", c.all()...)
		c.signal(syscall.SIGKILL, c.all()...)
		c.until("the end of all processes", func() bool {
			return !slices.ContainsFunc(c.processes, func(p *process) bool { return !p.ended })
		})
	}
	// Others use this host, too: what leaked would be some ten MiB of each round.
	assert.Less(t, sharedMemory(t)-before, int64(rounds)*(8<<20)+64<<20)
	c := stage(t, staging{role: startRole, size: 4})
	c.succeed(c.all()...)
}

// sharedMemory is how much shared memory the host has in use.
func sharedMemory(t testing.TB) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "Shmem: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Skip("this system does not count shared memory")
	return 0
}
