package collective_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/affinity"
	"github.com/gollective/gollective/transport/tcp"
)

// Ranks of one process, and processes of one host, that are connected by sockets.

// overSockets is s without what needs memory that all ranks see.
func (s setting) overSockets() setting {
	s.config.Algorithm, s.config.Protocol = overSockets(s.config.Algorithm, s.config.Protocol)
	return s
}

// drawSetting draws a setting with the given way of waiting and protocol, whose ranks
// are connected by sockets.
func drawSetting(rng *rand.Rand, wait int, protocol plan.Protocol, proxy string) setting {
	for {
		row := randomRow(rng)
		row[fWait], row[fProtocol] = wait, int(protocol)
		row[fRanks] = rng.IntN(9)
		if tableWaits[wait] == collective.WaitSpin {
			row[fRanks] = min(row[fRanks], 2) // with proxies there are twice as many who spin
		}
		if !rowAllowed(row) {
			continue
		}
		s := settingOf(row, rng.Uint64()).overSockets()
		s.config.Transport, s.config.Proxy = "tcp", proxy
		if s.Count < 2000 { // each few KiB wait for an acknowledgement
			s.config.SocketBuffer = []int{0, 0, 0, 4096}[rng.IntN(4)]
		}
		if rng.IntN(4) == 0 {
			s.config.SocketThreads, s.config.SocketsPerThread = 1+rng.IntN(2), 1+rng.IntN(3)
		}
		s.config.TLS = []string{"", "", "", "job"}[rng.IntN(4)]
		return s
	}
}

func TestEveryWayOfDrivingSocketsGivesWhatASequentialLoopGives(t *testing.T) {
	rng, _ := sampleSeed(t)
	each := max(1, sampleSize(t, 48)/24)
	if underRace {
		each = 1
	}
	for _, proxy := range []string{"thread", "inline"} {
		for wait := range tableWaits {
			for _, protocol := range []plan.Protocol{plan.Simple, plan.LL, plan.LL128} {
				t.Run(fmt.Sprintf("%s, %v, %v", proxy, tableWaits[wait], protocol), func(t *testing.T) {
					for range each {
						s := drawSetting(rng, wait, protocol, proxy)
						require.NoError(t, s.run(), "%+v", s.config)
					}
				})
			}
		}
	}
}

// drawFaults draws sockets that misbehave as they may.
func drawFaults(rng *rand.Rand) *tcp.Faults {
	return &tcp.Faults{
		Seed: rng.Uint64(), Short: rng.Float64(), Interrupt: rng.Float64() / 2, Again: rng.Float64() / 10,
		Delay: rng.Float64() / 100, Pause: 200 * time.Microsecond,
	}
}

func TestSocketsThatMisbehaveChangeNothing(t *testing.T) {
	rng, _ := sampleSeed(t)
	rounds := sampleSize(t, 30)
	if underRace {
		rounds = 8
	}
	var injected int
	for range rounds {
		faults := drawFaults(rng)
		s := drawSetting(rng, rng.IntN(len(tableWaits)), plan.Protocol(rng.IntN(4)), []string{"thread", "inline"}[rng.IntN(2)])
		if s.Count > 1025 {
			s.Count %= 1025 // with one byte at a time it takes long enough
		}
		s.config = s.config.WithFaults(faults)
		require.NoError(t, s.run(), "%+v, %v", s.config, faults.Injected())
		for _, n := range faults.Injected() {
			injected += int(n)
		}
	}
	require.NotZero(t, injected)
}

// A connection that is lost ends calls with an error that names a rank, or was not
// needed; no result is wrong, and nobody waits forever.
func TestLostConnectionsEndCalls(t *testing.T) {
	rng, _ := sampleSeed(t)
	rounds := sampleSize(t, 6)
	if underRace {
		rounds = 4
	}
	ended := 0
	for range rounds {
		faults := drawFaults(rng)
		faults.Reset = 0.003
		ranks := 2 + rng.IntN(3)
		config := collective.Config{Transport: "tcp", Proxy: []string{"thread", "inline"}[rng.IntN(2)], Timeout: time.Minute}
		comms := ranksOf(t, ranks, config.WithFaults(faults))
		for _, err := range onRanks(t, comms, func(c *collective.Comm) error {
			for round := range 200 {
				n := 1 + round*37
				send, recv := make([]int64, n), make([]int64, n)
				for i := range send {
					send[i] = int64(c.Rank() + i)
				}
				if err := collective.AllReduce(context.Background(), c, send, recv, collective.Sum); err != nil {
					return err
				}
				for i := range recv {
					if want := int64(ranks*i + ranks*(ranks-1)/2); recv[i] != want {
						return fmt.Errorf("wrong: element %d is %d, want %d", i, recv[i], want)
					}
				}
			}
			return nil
		}) {
			if err == nil {
				continue
			}
			ended++
			var lost *collective.PeerLostError
			require.ErrorAs(t, err, &lost)
			require.GreaterOrEqual(t, lost.Rank, 0)
			require.Less(t, lost.Rank, ranks)
		}
	}
	require.NotZero(t, ended, "no connection was lost")
}

// socketJob does several settings one after the other, each in a communicator of its
// own, by processes that count themselves to the given hosts.
type socketJob struct {
	tableJob
	Proxies    []string
	Transports []string
	Hosts      []string // of each process
}

var socketRole = role("sockets", func(p *player) error {
	var job socketJob
	p.arguments(&job)
	number, err := strconv.Atoi(os.Getenv("GOLLECTIVE_RANK"))
	if err != nil {
		return err
	}
	return job.play(number, func(i int, c *collective.Config) {
		c.Proxy, c.Transport, c.HostID = job.Proxies[i], job.Transports[i], job.Hosts[number]
		if c.Transport == "tcp" {
			c.HostID = ""
		}
		c.Algorithm, c.Protocol = overSockets(c.Algorithm, c.Protocol)
	})
})

func TestProcessesOverSocketsGiveWhatASequentialLoopGives(t *testing.T) {
	rng, _ := sampleSeed(t)
	rounds, each := sampleSize(t, 60)/10, 10
	if underRace {
		rounds = 2
	}
	for range rounds {
		ranks := 2 + rng.IntN(8)
		job := socketJob{tableJob: tableJob{Ranks: layout(rng, ranks)}}
		for range job.Ranks {
			job.Hosts = append(job.Hosts, string('a'+rune(rng.IntN(3))))
		}
		for len(job.Rows) < each {
			row := randomRow(rng)
			row[fRanks] = ranks - 1
			if !rowAllowed(row) || tableWaits[row[fWait]] == collective.WaitSpin {
				continue
			}
			u, err := collective.NewUniqueID(collective.Config{})
			require.NoError(t, err)
			defer u.Close()
			job.Rows, job.Seeds, job.IDs = append(job.Rows, row), append(job.Seeds, rng.Uint64()), append(job.IDs, u.String())
			job.Proxies = append(job.Proxies, []string{"thread", "inline"}[rng.IntN(2)])
			job.Transports = append(job.Transports, []string{"tcp", "auto"}[rng.IntN(2)])
		}
		c := stage(t, staging{role: socketRole, args: job, size: len(job.Ranks), id: "none",
			env: func(int) []string { return []string{"GOLLECTIVE_DEBUG=WARN"} }})
		c.reportedNothingWrong()
		c.succeed(c.all()...)
	}
}

// Nobody sees from outside what is under way between ranks over sockets; they tell
// each other.
func TestMismatchesOverSocketsNameTheCalls(t *testing.T) {
	for _, proxy := range []string{"thread", "inline"} {
		for name, calls := range map[string][2]func(*collective.Comm) error{
			"counts": {reducing(10), reducing(20)},
			"kinds": {reducing(10), func(c *collective.Comm) error {
				return collective.Broadcast(context.Background(), c, make([]int32, 10), make([]int32, 10), 1)
			}},
			"roots": {broadcasting(0), broadcasting(1)},
		} {
			t.Run(proxy+", "+name, func(t *testing.T) {
				comms := ranksOf(t, 2, collective.Config{Transport: "tcp", Proxy: proxy, Timeout: time.Minute})
				for _, err := range onRanks(t, comms, func(c *collective.Comm) error {
					for { // a rank that needed nobody learns of it later
						if err := calls[c.Rank()](c); err != nil {
							return err
						}
					}
				}) {
					require.ErrorIs(t, err, collective.ErrMismatch)
				}
			})
		}
	}
}

func reducing(n int) func(*collective.Comm) error {
	return func(c *collective.Comm) error {
		return collective.AllReduce(context.Background(), c, make([]int32, n), make([]int32, n), collective.Sum)
	}
}

func broadcasting(root int) func(*collective.Comm) error {
	return func(c *collective.Comm) error {
		return collective.Broadcast(context.Background(), c, make([]int32, 10), make([]int32, 10), root)
	}
}

// While nobody calls, neither blocks nor proxies use the processor.
func TestIdleSocketsUseNoProcessor(t *testing.T) {
	for _, proxy := range []string{"thread", "inline"} {
		for _, wait := range tableWaits {
			t.Run(fmt.Sprint(proxy, ", ", wait), func(t *testing.T) {
				comms := ranksOf(t, 3, collective.Config{Transport: "tcp", Proxy: proxy, Wait: wait})
				works(t, comms)
				runtime.GC()
				before := processorTime()
				const idle = time.Second
				time.Sleep(idle)
				used := processorTime() - before
				require.Less(t, used, idle/20, "of this whole process, tests' own goroutines included")
			})
		}
	}
}

// Communicators that are split off share the port, and survive it.
func TestSplitsOverSockets(t *testing.T) {
	comms := ranksOf(t, 4, collective.Config{Transport: "tcp"})
	var mu sync.Mutex
	var children []*collective.Comm
	for _, err := range onRanks(t, comms, func(c *collective.Comm) error {
		child, err := c.Split(context.Background(), c.Rank()%2, 0)
		if err != nil {
			return err
		}
		mu.Lock()
		children = append(children, child)
		mu.Unlock()
		if err := c.Close(); err != nil {
			return err
		}
		for range 20 {
			if err := reducing(1000)(child); err != nil {
				return err
			}
		}
		return child.Close()
	}) {
		require.NoError(t, err)
	}
	require.Len(t, children, 4)
}

// threadsBoundTo counts the threads of this process that may run on one processor only.
func threadsBoundTo(t *testing.T, cpu string) int {
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	require.NoError(t, err)
	bound := 0
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err == nil && strings.Contains(string(text), "\nCpus_allowed_list:\t"+cpu+"\n") {
			bound++
		}
	}
	return bound
}

func TestProxyThreadsKeepToTheirProcessors(t *testing.T) {
	cpus := affinity.Own().List()
	if len(cpus) < 2 {
		t.Skip("there is one processor")
	}
	cpu := strconv.Itoa(cpus[len(cpus)-1])
	require.Zero(t, threadsBoundTo(t, cpu))
	comms := ranksOf(t, 3, collective.Config{Transport: "tcp", Proxy: "thread", ProxyCPUs: cpu})
	works(t, comms)
	require.Equal(t, 3, threadsBoundTo(t, cpu), "one thread per rank")
	for _, c := range comms {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool { return threadsBoundTo(t, cpu) == 0 }, soon, time.Millisecond, "threads end with the communicator")
}

// Programs read what roles have cost.
func TestAccountsOfSocketsTellRolesApart(t *testing.T) {
	for _, proxy := range []string{"thread", "inline"} {
		t.Run(proxy, func(t *testing.T) {
			const bytes = 4 << 20
			comms := ranksOf(t, 2, collective.Config{Transport: "tcp", Proxy: proxy, Accounting: true})
			for _, err := range onRanks(t, comms, reducing(bytes/4)) {
				require.NoError(t, err)
			}
			for _, c := range comms {
				s := c.Stats()
				t.Logf("rank %d: %+v", c.Rank(), s)
				require.NotZero(t, s.Block.Turns)
				// A ring of two sends, and receives, as much as there is.
				require.GreaterOrEqual(t, s.Proxy.Bytes, uint64(2*bytes))
				require.Less(t, s.Proxy.Bytes, uint64(2*bytes+bytes/4))
				require.NotZero(t, s.Proxy.CPU)
				require.NotZero(t, s.Proxy.Found)
				require.Positive(t, s.Proxy.Useful())
				require.LessOrEqual(t, s.Proxy.Useful(), 1.0)
				if proxy == "thread" {
					require.Equal(t, 1, s.Proxy.Threads)
					require.LessOrEqual(t, s.Proxy.CPU, s.Proxy.Wall)
				} else {
					require.Zero(t, s.Proxy.Threads)
				}
			}
		})
	}
}

// Messages with a rank that has closed can't be exchanged any more, but for what it
// had sent.
func TestMessagesOfARankThatHasClosedEndOverSockets(t *testing.T) {
	const large = 10_000_000
	send := func(c *collective.Comm, n, to int) error {
		return collective.Send(context.Background(), c, make([]int32, n), to)
	}
	recv := func(c *collective.Comm, n, from int) error {
		return collective.Recv(context.Background(), c, make([]int32, n), from)
	}
	for name, play := range map[string]struct{ closes, stays func(*collective.Comm) error }{
		"nothing was sent": {func(*collective.Comm) error { return nil }, func(c *collective.Comm) error { return recv(c, 10, 1) }},
		"something was sent": {func(c *collective.Comm) error { return send(c, 10, 0) }, func(c *collective.Comm) error {
			if err := recv(c, 10, 1); err != nil {
				return fmt.Errorf("what was sent: %w", err)
			}
			return recv(c, 10, 1)
		}},
		"nobody receives": {func(*collective.Comm) error { return nil }, func(c *collective.Comm) error { return send(c, large, 1) }},
	} {
		for _, proxy := range []string{"thread", "inline"} {
			t.Run(name+", "+proxy, func(t *testing.T) {
				t.Parallel()
				comms := ranksOf(t, 3, collective.Config{Transport: "tcp", Proxy: proxy})
				errs := onRanks(t, comms, func(c *collective.Comm) error {
					switch c.Rank() {
					case 0:
						return play.stays(c)
					case 1:
						if err := play.closes(c); err != nil {
							return err
						}
						return c.Close()
					}
					return nil
				})
				require.NoError(t, errs[1])
				var closed *collective.PeerClosedError
				require.ErrorAs(t, errs[0], &closed)
				require.Equal(t, 1, closed.PeerRank)
				require.NotContains(t, errs[0].Error(), "what was sent")
			})
		}
	}
}
