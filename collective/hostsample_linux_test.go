package collective_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/internal/trial"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/netlab"
)

// What jobs on several hosts compute.

// spread draws hosts for processes: at least one each, and not in order.
func spread(rng *rand.Rand, hosts, processes int) []int {
	where := make([]int, processes)
	for i := range where {
		where[i] = i
		if i >= hosts {
			where[i] = rng.IntN(hosts)
		}
	}
	rng.Shuffle(processes, func(i, k int) { where[i], where[k] = where[k], where[i] })
	return where
}

// hostsJob does several settings one after the other, each in a communicator of its
// own.
type hostsJob struct {
	Ranks []int // of each process
	Rows  []hostsRow
}

type hostsRow struct {
	Row       []int
	Seed      uint64
	Arbitrary bool
	Sockets   sockets
}

// sockets is what of a Config concerns them.
type sockets struct {
	Proxy, TLS, Family       string
	Threads, Each, BufferLen int
}

// setting is the row's, with its sockets.
func (r hostsRow) setting() setting {
	s := settingOf(r.Row, r.Seed).overSockets()
	s.Arbitrary = r.Arbitrary
	s.config.Proxy, s.config.TLS, s.config.SocketFamily = r.Sockets.Proxy, r.Sockets.TLS, r.Sockets.Family
	s.config.SocketThreads, s.config.SocketsPerThread, s.config.SocketBuffer = r.Sockets.Threads, r.Sockets.Each, r.Sockets.BufferLen
	s.config.JoinTimeout = 30 * time.Second
	return s
}

// alike tells whether every rank receives the same, and nothing else.
func (s setting) alike() bool {
	return s.Kind == plan.AllReduce || s.Kind == plan.AllGather || s.Kind == plan.Broadcast
}

var hostsRole = role("hosts", func(p *player) error {
	var job hostsJob
	p.arguments(&job)
	number, err := strconv.Atoi(os.Getenv("GOLLECTIVE_RANK"))
	if err != nil {
		return err
	}
	for _, row := range job.Rows {
		s := row.setting()
		sum := sha256.New()
		err := joined(job.Ranks[number], s.config, func(comms []*collective.Comm) error {
			var ranks []int
			for _, c := range comms {
				ranks = append(ranks, c.Rank())
			}
			t := trial.New(s.Case, s.ranks, trial.Heap)
			for range 2 {
				if err := trial.Run(comms, s.form, t); err != nil {
					return err
				}
				if !s.Arbitrary { // else only the bits of all processes can be compared
					if err := t.CheckOf(ranks); err != nil {
						return err
					}
				}
				if s.alike() {
					sum.Write(t.Result(ranks[0]))
				}
				t.Restore()
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("ranks of processes %v, %v, sockets %+v: %w", job.Ranks, s, row.Sockets, err)
		}
		p.report(report{What: "bits", Text: hex.EncodeToString(sum.Sum(nil))})
	}
	return nil
})

// drawHosts draws settings for a job with the given ranks in its processes.
func drawHosts(rng *rand.Rand, ranks []int, rows int, wanted func(setting) bool) hostsJob {
	total := 0
	for _, n := range ranks {
		total += n
	}
	job := hostsJob{Ranks: ranks}
	for len(job.Rows) < rows {
		row := randomRow(rng)
		row[fRanks] = total - 1
		r := hostsRow{Row: row, Seed: rng.Uint64()}
		// As with processes of one host, see TestProcessesGiveWhatASequentialLoopGives.
		if !rowAllowed(row) || tableWaits[row[fWait]].String() == "spin" || wanted != nil && !wanted(r.setting()) {
			continue
		}
		r.Sockets = sockets{
			Proxy:     []string{"", "thread", "inline"}[rng.IntN(3)],
			TLS:       []string{"", "", "", "job"}[rng.IntN(4)],
			Family:    []string{"", "AF_INET", "AF_INET6"}[rng.IntN(3)],
			BufferLen: []int{0, 0, 64 << 10, 1 << 20}[rng.IntN(4)],
		}
		if r.setting().Count < 2000 && rng.IntN(4) == 0 {
			r.Sockets.BufferLen = 4096 // a full one waits for the other system's next look
		}
		if rng.IntN(3) == 0 {
			r.Sockets.Threads, r.Sockets.Each = 1+rng.IntN(3), 1+rng.IntN(3)
		}
		r.Arbitrary = r.setting().alike() && rng.IntN(3) == 0
		job.Rows = append(job.Rows, r)
	}
	return job
}

// rightOnHosts plays a job, and compares what processes received that should be alike.
func rightOnHosts(t *testing.T, l *netlab.Lab, hosts []int, job hostsJob) {
	t.Helper()
	c := stage(t, onHosts(l, hosts, staging{role: hostsRole, args: job}))
	c.reportedNothingWrong()
	c.succeed(c.all()...)
	for _, p := range c.processes {
		require.Len(t, p.reports, len(job.Rows))
		for i, r := range p.reports {
			require.Equal(t, c.processes[0].reports[i].Text, r.Text, "the bits of %v", job.Rows[i].setting())
		}
	}
}

func TestHostsGiveWhatASequentialLoopGives(t *testing.T) {
	rng, _ := sampleSeed(t)
	each := max(sampleSize(t, 24)/6, 1)
	for _, tc := range []struct {
		hosts int
		ranks []int // of each process
	}{
		{2, []int{1, 1}},
		{2, []int{1, 1, 1, 1}}, // two processes on each
		{2, []int{2, 2, 2, 2}}, // goroutines, processes and hosts
		{3, []int{1, 2, 1}},
		{4, []int{1, 1, 1, 1, 2}},
		{8, []int{1, 1, 1, 1, 1, 1, 1, 1}},
	} {
		if underRace && len(tc.ranks) > 4 {
			continue
		}
		hosts := spread(rng, tc.hosts, len(tc.ranks))
		t.Run(fmt.Sprintf("ranks %v of processes on hosts %v", tc.ranks, hosts), func(t *testing.T) {
			rightOnHosts(t, netlab.New(t, tc.hosts), hosts, drawHosts(rng, tc.ranks, each, nil))
		})
	}
}

func TestHostsWithPoorCablesGiveTheSame(t *testing.T) {
	rng, seed := sampleSeed(t)
	each := max(sampleSize(t, 20)/5, 1)
	if underRace {
		each = 1
	}
	for _, tc := range []struct {
		name  string
		cable netlab.Cable
	}{
		{"10 Gb/s", netlab.Cable{Rate: 10e9}},
		{"10 Gb/s, 1 ms", netlab.Cable{Rate: 10e9, Delay: time.Millisecond}},
		{"1 % lost", netlab.Cable{Rate: 10e9, Loss: 0.01}},
		{"5 % out of order", netlab.Cable{Rate: 10e9, Delay: time.Millisecond, Reorder: 0.05}},
		{"all of it", netlab.Cable{Rate: 10e9, Delay: time.Millisecond, Loss: 0.01, Reorder: 0.05}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := netlab.New(t, 3)
			tc.cable.Seed = seed
			l.Shape(tc.cable)
			// Every loop of a tiny FIFO is a round trip or more.
			few := func(s setting) bool {
				return s.config.BuffSize == 0 && s.Count < 100_000 || s.config.BuffSize >= 4000 && s.Count < 5000
			}
			rightOnHosts(t, l, []int{0, 1, 2, 1}, drawHosts(rng, []int{1, 1, 2, 1}, each, few))
		})
	}
}

// Pytorch issue 75512, between hosts.
func TestWhatASenderOnAnotherHostLeavesBehindArrives(t *testing.T) {
	c := stage(t, onHosts(netlab.New(t, 2), []int{0, 1}, staging{role: leaverRole}))
	c.succeed(0)
	c.cue("receive", 1)
	c.reported("received", 1)
	more := c.reported("more", 1)[0]
	require.Equal(t, "closed", more.Error.Kind, more.Error.Text)
	require.Equal(t, []int{0}, more.Error.Ranks)
	c.succeed(c.all()...)
}

// inTheEnd waits until each of the processes knows that exactly these ranks are lost.
func (c *cast) inTheEnd(gone func(process int) []int, numbers ...int) {
	c.t.Helper()
	c.until("all losses", func() bool {
		for _, number := range numbers {
			last := slices.Clone(c.processes[number].reports)
			slices.Reverse(last)
			i := slices.IndexFunc(last, func(r report) bool { return r.What == "lost" })
			if i < 0 || !slices.Equal(last[i].Error.Ranks, gone(number)) {
				return false
			}
		}
		return true
	})
	c.cue("end", numbers...)
	c.succeed(numbers...)
}

// MLX pull 4060, Mooncake issue 2157: a rank is killed, and nobody else is blamed.
func TestAProcessThatIsKilledIsNamedOnAllHosts(t *testing.T) {
	rng, _ := sampleSeed(t)
	for range 4 {
		hosts := spread(rng, 2+rng.IntN(3), 4)
		victim := rng.IntN(4)
		t.Run(fmt.Sprintf("hosts %v, process %d", hosts, victim), func(t *testing.T) {
			l := netlab.New(t, 4)
			job := untilJob{Ranks: []int{1, 1, 1, 1}, Count: 1 << 20}
			c := stage(t, onHosts(l, hosts, staging{role: untilRole, args: job}))
			c.reported("ready", c.all()...)
			c.cue("on", c.all()...)
			c.reported("works", c.all()...)
			killed := c.signal(syscall.SIGKILL, victim)
			gone := func(int) []int { return []int{victim} }
			c.learn(killed, job, gone, c.others(victim)...)
			c.inTheEnd(gone, c.others(victim)...)
		})
	}
}
