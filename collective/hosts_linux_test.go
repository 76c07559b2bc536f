package collective_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/internal/netlab"
)

// Jobs whose processes are on several hosts of a lab.

// quiet is how long a host may be silent in these tests before it counts as lost.
const quiet = 2 * time.Second

// known is when survivors must know of a host that is silent: its kernel was asked for
// so long, and those who find it tell the others.
const known = quiet + soon + soon

// onHosts places a cast: process i on the host with the number hosts[i].
func onHosts(l *netlab.Lab, hosts []int, s staging) staging {
	env := s.env
	s.size, s.id = len(hosts), "none"
	s.command = func(number int) []string { return l.Host(hosts[number]).Prefix() }
	s.env = func(number int) []string {
		all := []string{
			"GOLLECTIVE_ROOT=" + l.Host(hosts[0]).Name() + ":29400", "GOLLECTIVE_JOB_KEY=of this test",
			"GOLLECTIVE_PEER_TIMEOUT=" + quiet.String(), "GOLLECTIVE_DEBUG=WARN",
		}
		if env != nil {
			all = append(all, env(number)...)
		}
		return all
	}
	return s
}

// How hosts are found.

func TestProcessesOnOddHostsFindEachOther(t *testing.T) {
	for _, tc := range []struct {
		name  string
		hosts []int
		opts  []netlab.Option
	}{
		{"twenty interfaces that lead nowhere", []int{0, 1}, []netlab.Option{netlab.Decoys(20)}}, // oneCCL issue 209
		{"names that mean loopback", []int{0, 1}, []netlab.Option{netlab.LoopbackNames()}},       // aws-do-eks pull 69
		{"one host, different mounts", []int{0, 0}, nil},                                         // NCCL issue 155
		{"two hosts, different mounts on each", []int{0, 1, 1, 0}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := stage(t, onHosts(netlab.New(t, 2, tc.opts...), tc.hosts, staging{role: initRole, args: collective.Config{}}))
			for _, r := range c.reported("result", c.all()...) {
				require.Nil(t, r.Error)
			}
			c.succeed(c.all()...)
		})
	}
}

// Processes that work until told otherwise.

type untilJob struct {
	Ranks []int // of each process
	Count int   // of float32 in each AllReduce
	Idle  bool  // work only when told
}

// On the cue "once" all work once; on "on" again and again, until a call fails.
var untilRole = role("until", func(p *player) error {
	var job untilJob
	p.arguments(&job)
	number, err := strconv.Atoi(os.Getenv("GOLLECTIVE_RANK"))
	if err != nil {
		return err
	}
	comms, err := collective.InitLocal(context.Background(), job.Ranks[number], collective.Config{JoinTimeout: 30 * time.Second})
	if err != nil {
		return err
	}
	once := func(c *collective.Comm) error {
		x := make([]float32, max(job.Count, 1))
		for i := range x {
			x[i] = float32((c.Rank() + i) % 5)
		}
		if err := collective.AllReduce(context.Background(), c, x, x, collective.Sum); err != nil {
			return err
		}
		for i := range x {
			want := 0
			for r := range c.Size() {
				want += (r + i) % 5
			}
			if x[i] != float32(want) {
				return fmt.Errorf("element %d is %v, want %d", i, x[i], want)
			}
		}
		return exchange(c, c.Size())
	}
	if err := everyLocal(comms, once); err != nil {
		return err
	}
	p.tell("ready", nil)
	for cue := range p.cues {
		switch cue {
		case "once":
			err := everyLocal(comms, once)
			p.tell("done", err)
			if err != nil {
				return leaves(p, comms)
			}
		case "on":
			err := everyLocal(comms, func(c *collective.Comm) error {
				p.tell("works", nil)
				var err error
				for err == nil {
					err = once(c)
				}
				p.tell("learned", err)
				return nil
			})
			if err != nil {
				return err
			}
			return leaves(p, comms)
		case "end":
			return closeAll(comms)
		}
	}
	return nil
})

// leaves reports who is lost in the end, and that a communicator can be closed then.
func leaves(p *player, comms []*collective.Comm) error {
	for end := time.Now().Add(patience); ; {
		cue := ""
		select {
		case cue = <-p.cues:
		case <-time.After(10 * time.Millisecond):
		}
		lost := named{Ranks: comms[0].Lost()}
		if cue == "end" || time.Now().After(end) {
			return closeAll(comms)
		}
		p.report(report{What: "lost", Error: &lost})
	}
}

// reportsOf is what a process that may still run has reported.
func (c *cast) reportsOf(number int) []report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.processes[number].reports)
}

// learn waits until all ranks of the given processes have learned of the end, and
// checks that they name ranks that are gone, and only such.
func (c *cast) learn(since time.Time, job untilJob, gone func(process int) []int, numbers ...int) {
	c.t.Helper()
	c.until("all ranks' errors", func() bool {
		for _, number := range numbers {
			learned := 0
			for _, r := range c.processes[number].reports {
				if r.What == "learned" {
					learned++
				}
			}
			if learned < job.Ranks[number] && !c.processes[number].ended {
				return false
			}
		}
		return true
	})
	for _, number := range numbers {
		learned := 0
		for _, r := range c.reportsOf(number) {
			if r.What != "learned" {
				continue
			}
			learned++
			require.NotNil(c.t, r.Error)
			assert.Equal(c.t, "lost", r.Error.Kind, "process %d: %s", number, r.Error.Text)
			assert.NotEmpty(c.t, r.Error.Ranks, r.Error.Text)
			assert.Subset(c.t, gone(number), r.Error.Ranks, "process %d: %s", number, r.Error.Text)
			assert.Less(c.t, r.At.Sub(since), known, "process %d", number)
			c.t.Logf("process %d knew after %v: %s", number, r.At.Sub(since).Round(time.Millisecond), r.Error.Text)
		}
		assert.Equal(c.t, job.Ranks[number], learned, "process %d", number)
	}
}

// The two halves of a parted network both learn that they lost the other.
func TestAPartitionEndsCallsWithErrorsThatNameTheOtherSide(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, tc := range []struct {
		hosts []int // of each process
		cut   [2][]int
		gone  [][]int // by process: the ranks that it loses
	}{
		{[]int{0, 1}, [2][]int{{0}, {1}}, [][]int{{1}, {0}}},
		{[]int{0, 1, 2, 3}, [2][]int{{0, 1}, {2, 3}}, [][]int{{2, 3}, {2, 3}, {0, 1}, {0, 1}}},
		{[]int{0, 1, 1, 2}, [2][]int{{0, 2}, {1}}, [][]int{{1, 2}, {0, 3}, {0, 3}, {1, 2}}},
	} {
		t.Run(fmt.Sprintf("hosts %v, %v from %v", tc.hosts, tc.cut[0], tc.cut[1]), func(t *testing.T) {
			t.Parallel()
			l := netlab.New(t, 4)
			job := untilJob{Count: 1 << 18}
			for range tc.hosts {
				job.Ranks = append(job.Ranks, 1)
			}
			c := stage(t, onHosts(l, tc.hosts, staging{role: untilRole, args: job}))
			c.reported("ready", c.all()...)
			c.cue("on", c.all()...)
			c.reported("works", c.all()...)
			cut := time.Now()
			l.Cut(tc.cut[0], tc.cut[1])
			c.learn(cut, job, func(process int) []int { return tc.gone[process] }, c.all()...)
			c.cue("end", c.all()...)
			c.succeed(c.all()...)
		})
	}
}

// A host that vanishes says nothing: no FIN, no RST.
func TestAHostThatVanishesIsNamed(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, idle := range []bool{false, true} {
		t.Run(fmt.Sprintf("idle %v", idle), func(t *testing.T) {
			t.Parallel()
			l := netlab.New(t, 3)
			job := untilJob{Ranks: []int{1, 2, 1}, Count: 1 << 16}
			c := stage(t, onHosts(l, []int{0, 1, 2}, staging{role: untilRole, args: job}))
			c.reported("ready", c.all()...)
			if !idle {
				c.cue("on", c.all()...)
				c.reported("works", c.all()...)
			}
			vanished := time.Now()
			l.Host(1).Unplug()
			c.signal(syscall.SIGKILL, 1)
			if idle {
				c.cue("on", 0, 2)
			}
			gone := func(int) []int { return []int{1, 2} }
			c.learn(vanished, job, gone, 0, 2)
			c.cue("end", 0, 2)
			c.succeed(0, 2)
		})
	}
}

// A slow peer is not a lost one, however slow: its kernel answers.
func TestASlowPeerIsNoError(t *testing.T) {
	t.Parallel() // it mostly waits
	l := netlab.New(t, 3)
	job := untilJob{Ranks: []int{1, 1, 1}, Count: 1 << 16}
	c := stage(t, onHosts(l, []int{0, 1, 2}, staging{role: untilRole, args: job}))
	c.reported("ready", c.all()...)
	c.signal(syscall.SIGSTOP, 1)
	c.cue("once", c.all()...)
	time.Sleep(2 * quiet) // what must not happen takes so long
	for _, number := range []int{0, 2} {
		c.mu.Lock()
		ended := c.processes[number].ended
		c.mu.Unlock()
		require.False(t, ended)
	}
	c.signal(syscall.SIGCONT, 1)
	for _, r := range c.reported("done", c.all()...) {
		require.Nil(t, r.Error)
	}
	l.Host(2).Shape(netlab.Cable{Rate: 2e6}) // 256 KiB take a second each way
	c.cue("once", c.all()...)
	c.until("the second call", func() bool {
		return !slices.ContainsFunc(c.processes, func(p *process) bool { return count(p, "done") < 2 })
	})
	for _, r := range c.reported("done", c.all()...) {
		require.Nil(t, r.Error)
	}
	c.cue("end", c.all()...)
	c.succeed(c.all()...)
}

// count is how often a process has reported what.
func count(p *process, what string) (n int) {
	for _, r := range p.reports {
		if r.What == what {
			n++
		}
	}
	return n
}

// NCCL issue 1619: a firewall forgets connections that were idle. The next call works,
// or says which rank can't be reached; it does not hang.
func TestAFlowThatAFirewallForgotIsNoticed(t *testing.T) {
	t.Parallel() // it mostly waits
	l := netlab.New(t, 2)
	job := untilJob{Ranks: []int{1, 1}, Count: 1 << 16}
	c := stage(t, onHosts(l, []int{0, 1}, staging{role: untilRole, args: job}))
	c.reported("ready", c.all()...)
	flows := l.DropFlows(0, 1)
	require.Greater(t, flows, 1, "control and data")
	c.cue("on", c.all()...)
	c.learn(time.Now(), job, func(process int) []int { return []int{1 - process} }, c.all()...)
	c.cue("end", c.all()...)
	c.succeed(c.all()...)
}

// An idle flow is not idle: firewalls see it now and then.
func TestIdleConnectionsAreKeptAlive(t *testing.T) {
	l := netlab.New(t, 2)
	job := untilJob{Ranks: []int{1, 1}, Count: 1 << 16}
	c := stage(t, onHosts(l, []int{0, 1}, staging{role: untilRole, args: job}))
	c.reported("ready", c.all()...)
	for i := range 2 {
		var awake []netlab.Flow
		require.Eventually(t, func() bool { // while there is something to acknowledge, that is watched instead
			flows := l.Host(i).Flows(l.Host(1 - i))
			awake = slices.DeleteFunc(slices.Clone(flows), func(f netlab.Flow) bool { return f.KeptAlive })
			return len(flows) > 1 && len(awake) == 0
		}, generous, 10*time.Millisecond, "without keepalive: %v", &awake)
	}
	c.cue("end", c.all()...)
	c.succeed(c.all()...)
}

// What README says of ports and firewalls.
func TestAProcessListensOnTwoPortsOfThoseItMay(t *testing.T) {
	l := netlab.New(t, 2)
	job := untilJob{Ranks: []int{1, 1}, Count: 1 << 16}
	c := stage(t, onHosts(l, []int{0, 1}, staging{role: untilRole, args: job, env: func(int) []string {
		return []string{"GOLLECTIVE_PORTS=30000-30001"}
	}}))
	c.reported("ready", c.all()...)
	for i := range 2 {
		ports := slices.DeleteFunc(l.Host(i).Listening(), func(p uint16) bool { return p == 29400 })
		assert.Subset(t, []uint16{30000, 30001}, ports)
		assert.NotEmpty(t, ports)
	}
	c.cue("end", c.all()...)
	c.succeed(c.all()...)
}

// Strangers on every port that the processes of a job listen on change nothing.
func TestStrangersOnThePortsOfHostsChangeNothing(t *testing.T) {
	l := netlab.New(t, 3)
	job := untilJob{Ranks: []int{1, 1}, Count: 1 << 16}
	c := stage(t, onHosts(l, []int{0, 1}, staging{role: untilRole, args: job}))
	c.reported("ready", c.all()...)
	for i := range 2 {
		ports := l.Host(i).Listening()
		require.NotEmpty(t, ports)
		for _, port := range ports {
			at := netip.AddrPortFrom(l.Host(i).Address(), port).String()
			strangersFrom(t, func() (net.Conn, error) { return l.Host(2).Dial(at, time.Second) })
		}
	}
	for range 20 {
		c.cue("once", c.all()...)
	}
	c.until("all calls", func() bool {
		return !slices.ContainsFunc(c.processes, func(p *process) bool { return count(p, "done") < 20 })
	})
	for _, number := range c.all() {
		for _, r := range c.reportsOf(number) {
			require.Nil(t, r.Error)
		}
	}
	c.cue("end", c.all()...)
	c.succeed(c.all()...)
}

// Strangers are there before the job is: NCCL issue 1808.
func TestStrangersOnTheRootsPortOfHostsChangeNothing(t *testing.T) {
	l := netlab.New(t, 3)
	at := netip.AddrPortFrom(l.Host(0).Address(), 29400).String()
	strangersFrom(t, func() (net.Conn, error) { return l.Host(2).Dial(at, time.Second) })
	c := stage(t, onHosts(l, []int{0, 1, 1, 0}, staging{role: initRole, args: collective.Config{}}))
	for _, r := range c.reported("result", c.all()...) {
		require.Nil(t, r.Error)
	}
	c.succeed(c.all()...)
}
