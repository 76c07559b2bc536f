package collective_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
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
	"github.com/gollective/gollective/collective/internal/trial"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

// layout draws in how many processes how many ranks live.
func layout(rng *rand.Rand, ranks int) []int {
	processes := min(ranks, 2+rng.IntN(3))
	all := make([]int, processes)
	for i := range all {
		all[i] = 1
	}
	for range ranks - processes {
		all[rng.IntN(processes)]++
	}
	return all
}

// A table's job does several settings one after the other, each in a communicator
// of its own.
type tableJob struct {
	Ranks []int // of each process
	Rows  [][]int
	Seeds []uint64
	IDs   []string
}

var tableRole = role("table", func(p *player) error {
	var job tableJob
	p.arguments(&job)
	number, err := strconv.Atoi(os.Getenv("GOLLECTIVE_RANK"))
	if err != nil {
		return err
	}
	return job.play(number, func(int, *collective.Config) {})
})

// play does all settings, with a change to the communicator of each.
func (job *tableJob) play(number int, change func(i int, c *collective.Config)) error {
	for i, row := range job.Rows {
		s := settingOf(row, job.Seeds[i])
		s.config.Place = collective.Place{Rank: number, Size: len(job.Ranks), ID: job.IDs[i]}
		s.config.JoinTimeout = 30 * time.Second
		change(i, &s.config)
		err := joined(job.Ranks[number], s.config, func(comms []*collective.Comm) error {
			var ranks []int
			for _, c := range comms {
				ranks = append(ranks, c.Rank())
			}
			memory := trial.Heap
			if i%2 == 1 { // the first rank's is seen by the other processes
				memory = trial.From(func(bytes int) []byte {
					b, err := comms[0].MemAlloc(bytes)
					if err != nil {
						panic(err) // there is no memory
					}
					return b
				})
			}
			t := trial.New(s.Case, s.ranks, memory)
			for range 2 {
				if err := trial.Run(comms, s.form, t); err != nil {
					return err
				}
				if err := t.CheckOf(ranks); err != nil {
					return err
				}
				t.Restore()
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("ranks of processes %v, %v: %w", job.Ranks, s, err)
		}
	}
	return nil
}

func TestProcessesGiveWhatASequentialLoopGives(t *testing.T) {
	rng, _ := sampleSeed(t)
	rounds, each := sampleSize(t, 60)/10, 10
	if underRace {
		rounds = 2
	}
	for range rounds {
		ranks := 2 + rng.IntN(7)
		job := tableJob{Ranks: layout(rng, ranks)}
		for len(job.Rows) < each {
			row := randomRow(rng)
			row[fRanks] = ranks - 1
			// Who spins on two processors keeps processes from working that
			// no scheduler of Go's knows of.
			if !rowAllowed(row) || tableWaits[row[fWait]].String() == "spin" {
				continue
			}
			u, err := collective.NewUniqueID(collective.Config{})
			require.NoError(t, err)
			defer u.Close()
			job.Rows, job.Seeds, job.IDs = append(job.Rows, row), append(job.Seeds, rng.Uint64()), append(job.IDs, u.String())
		}
		c := stage(t, staging{role: tableRole, args: job, size: len(job.Ranks), id: "none",
			env: func(int) []string { return []string{"GOLLECTIVE_DEBUG=WARN"} }})
		c.reportedNothingWrong()
		c.succeed(c.all()...)
	}
}

// reportedNothingWrong waits for the ends of all processes, and shows what failed.
func (c *cast) reportedNothingWrong() {
	c.t.Helper()
	var failed []string
	c.until("the end of all processes", func() bool {
		failed = nil
		all := true
		for number, p := range c.processes {
			for _, r := range p.reports {
				if r.What == "failed" {
					failed = append(failed, fmt.Sprintf("process %d: %s", number, r.Error.Text))
				}
			}
			all = all && p.ended
		}
		return all
	})
	require.Empty(c.t, failed)
}

type programJob struct {
	Ranks  []int
	Seed   uint64
	Length int
	Lends  bool // by two-shot schedules
}

var programRole = role("program", func(p *player) error {
	var job programJob
	p.arguments(&job)
	number, err := strconv.Atoi(os.Getenv("GOLLECTIVE_RANK"))
	if err != nil {
		return err
	}
	config := processConfig(rand.New(rand.NewPCG(job.Seed, 0)))
	if job.Lends {
		config = collective.Config{Algorithm: plan.TwoShot, Channels: config.Channels, Wait: config.Wait}
	}
	return joined(job.Ranks[number], config, func(comms []*collective.Comm) error {
		return everyLocal(comms, func(c *collective.Comm) error {
			a := newActor(c, job.Seed, "world")
			a.lends = job.Lends
			err := a.run(job.Length, 3)
			if err != nil {
				c.Abort()
			}
			return err
		})
	})
})

// processConfig is a random one without pure spinning, see above.
func processConfig(r *rand.Rand) collective.Config {
	for {
		if c := randomConfig(r); c.Wait.String() != "spin" {
			return c
		}
	}
}

func TestRandomProgramsOfProcessesGiveWhatAModelGives(t *testing.T) {
	limit := 6 * time.Second
	if underRace {
		limit = 3 * time.Second
	}
	end := time.Now().Add(durationOf(t, "GOLLECTIVE_TEST_PROPERTY", limit))
	seed := seedOf(t)
	rounds := 0
	for ; time.Now().Before(end); rounds++ {
		rng := rand.New(rand.NewPCG(seed+uint64(rounds), 11))
		job := programJob{Ranks: layout(rng, 2+rng.IntN(5)), Seed: seed + uint64(rounds), Length: 5 + rng.IntN(30), Lends: rounds%2 == 1}
		t.Run(fmt.Sprintf("seed %d, ranks of processes %v", job.Seed, job.Ranks), func(t *testing.T) {
			c := stage(t, staging{role: programRole, args: job, size: len(job.Ranks)})
			c.reportedNothingWrong()
			c.succeed(c.all()...)
		})
		if t.Failed() {
			t.Fatalf("GOLLECTIVE_TEST_SEED=%d", job.Seed)
		}
	}
	t.Logf("%d programs", rounds)
}

// Mismatches.

type mismatchJob struct{ Case, Odd int }

// messageMismatches are mismatches between a message and a collective, or two messages.
var messageMismatches = []struct {
	name         string
	first, other deed // of ranks 0 and 1
	third        deed
}{
	{"receive and allreduce", receives(1, 5), sum, sum},
	{"allreduce and large send", sum, sends(0, large), sum},
	{"two receives that face each other", receives(1, 5), receives(0, 5), nil},
	{"two large sends that face each other", sends(1, large), sends(0, large), nil},
	{"5 and 7 elements", sends(1, 5), receives(0, 7), nil},
}

var mismatchRole = role("mismatch", func(p *player) error {
	var job mismatchJob
	p.arguments(&job)
	return joined(1, collective.Config{}, func(comms []*collective.Comm) error {
		c := comms[0]
		if err := exchange(c, c.Size()); err != nil {
			return err
		}
		p.tell("ready", nil) // else one may still be in the exchange
		if err := p.await("go"); err != nil {
			return err
		}
		ctx := context.Background()
		start := time.Now()
		var err error
		if job.Case < len(mismatches) {
			what := mismatches[job.Case].rest
			if c.Rank() == job.Odd {
				what = mismatches[job.Case].odd
			}
			err = c.Do(ctx, call(c, what))
		} else {
			m := messageMismatches[job.Case-len(mismatches)]
			program := m.third
			switch c.Rank() {
			case 0:
				program = m.first
			case 1:
				program = m.other
			}
			if program != nil {
				err = program(ctx, c)
			}
		}
		if err == nil {
			err = collective.Barrier(ctx, c)
		}
		p.tell("result", err, time.Since(start).Seconds())
		p.tell("again", collective.Barrier(ctx, c))
		return nil
	})
})

func TestMismatchesOfProcessesEndTheCallOnEveryRank(t *testing.T) {
	rng, _ := sampleSeed(t)
	slowest := 0.0
	all := rng.Perm(len(mismatches) + len(messageMismatches))
	if os.Getenv("GOLLECTIVE_TEST_FULL") == "" {
		all = all[:min(len(all), 12)]
	}
	if underRace {
		all = all[:4]
	}
	for _, number := range all {
		n := 2 + rng.IntN(3)
		name := ""
		if number < len(mismatches) {
			name = mismatches[number].name
			n = max(n, mismatches[number].least)
		} else {
			name = messageMismatches[number-len(mismatches)].name
		}
		odd := rng.IntN(n)
		t.Run(fmt.Sprintf("%s, %d ranks, rank %d differs", name, n, odd), func(t *testing.T) {
			c := stage(t, staging{role: mismatchRole, args: mismatchJob{number, odd}, size: n})
			c.reported("ready", c.all()...)
			c.cue("go", c.all()...)
			for _, r := range c.reported("result", c.all()...) {
				require.NotNil(t, r.Error, "rank %d", r.Process)
				require.Equal(t, "mismatch", r.Error.Kind, "rank %d: %s", r.Process, r.Error.Text)
				assert.NotEqual(t, r.Error.Calls[0], r.Error.Calls[1], r.Error.Text)
				assert.NotEqual(t, r.Error.Ranks[0], r.Error.Ranks[1], r.Error.Text)
				if number < len(mismatches) {
					texts := []string{spec(mismatches[number].rest).String(), spec(mismatches[number].odd).String()}
					assert.ElementsMatch(t, texts, r.Error.Calls, r.Error.Text)
					assert.Contains(t, r.Error.Ranks, odd, r.Error.Text)
				}
				assert.Less(t, r.Numbers[0], generous.Seconds())
				slowest = max(slowest, r.Numbers[0])
			}
			for _, r := range c.reported("again", c.all()...) {
				assert.Equal(t, "mismatch", r.Error.Kind)
			}
			c.succeed(c.all()...)
		})
	}
	t.Logf("the slowest rank knew after %.3f s", slowest)
}

var initRole = role("init", func(p *player) error {
	var config collective.Config
	p.arguments(&config)
	config.JoinTimeout = 20 * time.Second
	before := tracesNow()
	c, err := collective.Init(context.Background(), config)
	p.tell("result", err)
	if err == nil {
		err = errors.Join(exchange(c, c.Size()), c.Close())
	} else {
		err = nil
	}
	return errors.Join(err, before.left())
})

func TestConfigurationsThatDifferAreAnErrorThatShowsBoth(t *testing.T) {
	c := stage(t, staging{role: initRole, size: 3, each: func(number int) any {
		if number == 1 {
			return collective.Config{BuffSize: 8192}
		}
		return collective.Config{}
	}})
	for _, r := range c.reported("result", c.all()...) {
		require.NotNil(t, r.Error)
		assert.Contains(t, r.Error.Text, "configurations differ")
		assert.Contains(t, r.Error.Text, "8192")
		assert.Contains(t, r.Error.Text, strconv.Itoa(2<<20))
	}
	c.succeed(c.all()...)
}

// Idle communicators.

var idleRole = role("idle", func(p *player) error {
	return joined(1, collective.Config{}, func(comms []*collective.Comm) error {
		world := comms[0]
		all := []*collective.Comm{world}
		for range 3 {
			c, err := world.Split(context.Background(), 0, 0)
			if err != nil {
				return err
			}
			all = append(all, c)
		}
		for _, c := range all {
			if err := works1(c); err != nil {
				return err
			}
		}
		time.Sleep(200 * time.Millisecond) // blocks go to sleep, the collector ends
		runtime.GC()
		used := processorTime()
		time.Sleep(2500 * time.Millisecond)
		used = processorTime() - used
		p.tell("idle", nil, used.Seconds()/2.5)
		for _, c := range all[1:] {
			if err := errors.Join(works1(c), c.Close()); err != nil {
				return err
			}
		}
		return works1(world)
	})
})

// works1 is works for one rank.
func works1(c *collective.Comm) error {
	for range 20 {
		if err := exchange(c, c.Size()); err != nil {
			return err
		}
	}
	big := make([]float32, 1<<20)
	return collective.AllReduce(context.Background(), c, big, big, collective.Sum)
}

func TestIdleCommunicatorsOfProcessesUseNoProcessor(t *testing.T) {
	if underRace {
		t.Skip("the race detector uses processor time of its own")
	}
	c := stage(t, staging{role: idleRole, size: 2})
	for _, r := range c.reported("idle", c.all()...) {
		t.Logf("rank %d: %.3f %% of a processor", r.Process, 100*r.Numbers[0])
		assert.Less(t, r.Numbers[0], 0.01)
	}
	c.succeed(c.all()...)
}

// A sender that leaves.

var leaverRole = role("leaver", func(p *player) error {
	c, err := collective.Init(context.Background(), collective.Config{})
	if err != nil {
		return err
	}
	const count = 16
	switch c.Rank() {
	case 0:
		data := make([]float32, count)
		for i := range data {
			data[i] = float32(i + 1)
		}
		if _, err := collective.SendAsync(context.Background(), c, data, 1); err != nil {
			return err
		}
		if err := c.Close(); err != nil {
			return err
		}
		os.Exit(0)
	case 1:
		if err := p.await("receive"); err != nil {
			return err
		}
		data := make([]float32, count)
		if err := collective.Recv(context.Background(), c, data, 0); err != nil {
			return err
		}
		for i, x := range data {
			if x != float32(i+1) {
				return fmt.Errorf("element %d is %v", i, x)
			}
		}
		p.tell("received", nil)
		// More than was sent does not come.
		p.tell("more", collective.Recv(context.Background(), c, data, 0))
	}
	return c.Close()
})

func TestWhatASenderLeavesBehindArrives(t *testing.T) {
	for _, n := range []int{2, 3} {
		c := stage(t, staging{role: leaverRole, size: n})
		c.succeed(0) // has closed and gone
		c.cue("receive", 1)
		c.reported("received", 1)
		more := c.reported("more", 1)[0]
		require.Equal(t, "closed", more.Error.Kind, more.Error.Text)
		require.Equal(t, []int{0}, more.Error.Ranks)
		c.succeed(c.all()...)
	}
}

// Starting.

var startRole = role("start", func(p *player) error {
	return joined(1, collective.Config{JoinTimeout: 30 * time.Second}, func(comms []*collective.Comm) error {
		p.tell("joined", nil)
		return exchange(comms[0], comms[0].Size())
	})
})

// strangers talk to a port as programs do that mean somebody else, until the test
// ends.
func strangers(t *testing.T, network, address string) {
	t.Helper()
	strangersFrom(t, func() (net.Conn, error) { return net.DialTimeout(network, address, time.Second) })
}

func strangersFrom(t *testing.T, dial func() (net.Conn, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	speak := func(every time.Duration, say func(net.Conn)) {
		all.Go(func() {
			for ctx.Err() == nil {
				conn, err := dial()
				if err == nil {
					stop := context.AfterFunc(ctx, func() { conn.Close() })
					say(conn)
					stop()
					conn.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(every):
				}
			}
		})
	}
	speak(5*time.Millisecond, func(c net.Conn) { // a browser
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = io.Copy(io.Discard, c)
	})
	speak(5*time.Millisecond, func(c net.Conn) { // noise
		noise := make([]byte, 300)
		for i := range noise {
			noise[i] = byte(rand.Uint32())
		}
		_, _ = c.Write(noise)
	})
	speak(5*time.Millisecond, func(net.Conn) {})               // a port scan
	speak(5*time.Millisecond, func(net.Conn) { <-ctx.Done() }) // half open
	for range 20 {
		speak(20*time.Millisecond, func(net.Conn) { <-ctx.Done() })
	}
	speak(5*time.Millisecond, func(c net.Conn) { // slow
		for {
			if _, err := c.Write([]byte("G")); err != nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
}

func TestStrangersOnThePortOfAJobChangeNothing(t *testing.T) {
	u, err := collective.NewUniqueID(collective.Config{})
	require.NoError(t, err)
	defer u.Close()
	// The last field of an id are its addresses.
	fields := strings.SplitN(u.String(), ".", 4)
	tcp := ""
	for _, a := range strings.Split(fields[3], ",") {
		if a != "unix" {
			tcp = a
		}
	}
	_, port, err := net.SplitHostPort(tcp)
	require.NoError(t, err)
	strangers(t, "tcp", net.JoinHostPort("127.0.0.1", port))
	strangers(t, "unix", "@gollective-"+fields[1]+"-root")
	time.Sleep(100 * time.Millisecond) // they were here first
	start := time.Now()
	c := stage(t, staging{role: startRole, size: 4, id: u.String()})
	c.reported("joined", c.all()...)
	t.Logf("all had joined after %v", time.Since(start))
	c.succeed(c.all()...)
}

func numberOf(t testing.TB, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, name)
	return n
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func TestAJobStartsAgainAndAgainOnOnePort(t *testing.T) {
	rounds := numberOf(t, "GOLLECTIVE_TEST_STARTS", 10)
	address := freePort(t)
	env := func(int) []string { return []string{"GOLLECTIVE_ROOT=" + address, "GOLLECTIVE_JOB_KEY=of this test"} }
	for range rounds {
		c := stage(t, staging{role: startRole, size: 2, id: "none", env: env})
		c.succeed(c.all()...)
	}
}

func TestManyJobsStartAtTheSameTime(t *testing.T) {
	jobs := max(numberOf(t, "GOLLECTIVE_TEST_STARTS", 10)/4, 5)
	var casts []*cast
	for range jobs {
		casts = append(casts, stage(t, staging{role: startRole, size: 2}))
	}
	for _, c := range casts {
		c.succeed(c.all()...)
	}
}

// Too little memory.

var spaceRole = role("space", func(p *player) error {
	before := tracesNow()
	limit := syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	c, err := collective.Init(context.Background(), collective.Config{})
	if err != nil {
		return err
	}
	p.tell("ready", nil) // else one may be in Init when another fails
	if err := p.await("go"); err != nil {
		return err
	}
	big := make([]float32, 1<<20)
	err = collective.AllReduce(context.Background(), c, big, big, collective.Sum)
	var space *collective.SpaceError
	if errors.As(err, &space) {
		p.tell("space", err, float64(space.Need), float64(space.Free))
	} else {
		p.tell("space", err)
	}
	_, err = c.MemAlloc(2 << 20)
	p.tell("allocated", err)
	return errors.Join(c.Close(), before.left())
})

func TestTooLittleMemoryIsAnErrorThatSaysHowMuchIsMissing(t *testing.T) {
	c := stage(t, staging{role: spaceRole, size: 3})
	c.reported("ready", c.all()...)
	c.cue("go", c.all()...)
	said := 0
	for _, r := range c.reported("space", c.all()...) {
		require.NotNil(t, r.Error)
		if r.Error.Kind == "space" {
			said++
			require.Len(t, r.Numbers, 2)
			require.Greater(t, r.Numbers[0], 1e6)
			require.LessOrEqual(t, r.Numbers[1], float64(1<<20))
			continue
		}
		// It heard of another's trouble.
		require.Equal(t, "aborted", r.Error.Kind, r.Error.Text)
		require.Contains(t, r.Error.Text, "not enough shared memory")
		require.Contains(t, r.Error.Text, "needed")
	}
	require.NotZero(t, said)
	for _, r := range c.reported("allocated", c.all()...) {
		require.Equal(t, "space", r.Error.Kind, r.Error.Text)
	}
	c.succeed(c.all()...)
}

// Namespaces.

func TestProcessesThatOnlyShareAHostNameDoNotBelieveToBeLocal(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("unshare is not installed (Debian: apt-get install util-linux)")
	}
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("ip is not installed (Debian: apt-get install iproute2)")
	}
	// A network namespace joined to this one by a pair of interfaces, so that the
	// control connections come about.
	ns := fmt.Sprintf("gltest%d", os.Getpid())
	veth, peer := fmt.Sprintf("gl%da", os.Getpid()%100000), fmt.Sprintf("gl%db", os.Getpid()%100000)
	run := func(args ...string) error {
		out, err := exec.Command(ip, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
		return nil
	}
	if err := run("netns", "add", ns); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	t.Cleanup(func() { _ = run("netns", "del", ns) })
	if err := run("link", "add", veth, "type", "veth", "peer", "name", peer, "netns", ns); err != nil {
		t.Skipf("no pairs of interfaces here: %v", err)
	}
	for _, args := range [][]string{
		{"addr", "add", "10.213.71.1/30", "dev", veth}, {"link", "set", veth, "up"},
		{"-n", ns, "addr", "add", "10.213.71.2/30", "dev", peer}, {"-n", ns, "link", "set", peer, "up"},
		{"-n", ns, "link", "set", "lo", "up"},
	} {
		require.NoError(t, run(args...))
	}
	u, err := collective.NewUniqueID(collective.Config{SocketIfname: "=" + veth})
	require.NoError(t, err)
	defer u.Close()
	// By default they are connected by sockets: see TestProcessesOnOddHostsFindEachOther.
	c := stage(t, staging{role: initRole, args: collective.Config{Transport: "shm"}, size: 2, id: u.String(),
		command: func(number int) []string {
			if number == 1 {
				return []string{ip, "netns", "exec", ns, unshare, "--mount"}
			}
			return nil
		},
	})
	for _, r := range c.reported("result", c.all()...) {
		require.NotNil(t, r.Error)
		t.Log(r.Error.Text)
		assert.Contains(t, r.Error.Text, "not supported")
		assert.Contains(t, r.Error.Text, "shared memory")
	}
	c.succeed(c.all()...)
}

// More processes than processors.

var costs = []struct {
	name string
	what collective.Call
}{
	{"allreduce of 4 B", allReduce(1, dtype.Float32, collective.Sum)},
	{"allreduce of 4 KiB", allReduce(1<<10, dtype.Float32, collective.Sum)},
	{"allreduce of 4 MiB", allReduce(1<<20, dtype.Float32, collective.Sum)},
	{"broadcast of 4 KiB", of(plan.Broadcast, 1<<10, 0)},
	{"alltoall of 4 KiB each", of(plan.AlltoAll, 1<<10, 0)},
	{"barrier", collective.Call{Kind: plan.Barrier}},
}

// cost measures what a rank's calls take.
func cost(c *collective.Comm, rounds int) (seconds []float64, err error) {
	for _, k := range costs {
		what := call(c, k.what)
		if err := collective.Barrier(context.Background(), c); err != nil {
			return nil, err
		}
		start := time.Now()
		for range rounds {
			if err := c.Do(context.Background(), what); err != nil {
				return nil, err
			}
		}
		seconds = append(seconds, time.Since(start).Seconds()/float64(rounds))
	}
	return seconds, nil
}

var costRole = role("cost", func(p *player) error {
	var rounds int
	p.arguments(&rounds)
	return joined(1, collective.Config{}, func(comms []*collective.Comm) error {
		seconds, err := cost(comms[0], rounds)
		p.tell("cost", err, seconds...)
		return err
	})
})

func TestMoreProcessesThanProcessorsComplete(t *testing.T) {
	rounds := 20
	for _, n := range []int{2, 5, 9} {
		if underRace && n > 5 {
			continue
		}
		var goroutines []float64
		err := collective.Run(n, func(c *collective.Comm) error {
			seconds, err := cost(c, rounds)
			if c.Rank() == 0 {
				goroutines = seconds
			}
			return err
		})
		require.NoError(t, err)
		c := stage(t, staging{role: costRole, args: rounds, size: n})
		seconds := c.reported("cost", c.all()...)[0].Numbers
		for i, k := range costs {
			t.Logf("%d ranks on %d processors, %s: processes %8.1f µs, goroutines %8.1f µs, %.1f times",
				n, runtime.NumCPU(), k.name, 1e6*seconds[i], 1e6*goroutines[i], seconds[i]/goroutines[i])
		}
		c.succeed(c.all()...)
	}
}

// Concurrent calls.

var concurrentRole = role("concurrent", func(p *player) error {
	return joined(1, collective.Config{}, func(comms []*collective.Comm) error {
		c := comms[0]
		const callers, count = 8, 1000
		refused, right := 0, 0
		var mu sync.Mutex
		var all sync.WaitGroup
		errs := make([]error, callers)
		for i := range callers {
			all.Go(func() {
				x := make([]int64, count)
				for k := range x {
					x[k] = int64(c.Rank() + 1)
				}
				h, err := collective.AllReduceAsync(context.Background(), c, x, x, collective.Sum)
				if err == nil {
					err = h.Wait(context.Background())
				}
				if err != nil {
					errs[i] = err
					return
				}
				for k := range x {
					if x[k] != int64(c.Size()*(c.Size()+1)/2) {
						errs[i] = fmt.Errorf("element %d is %d", k, x[k])
						return
					}
				}
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		// Blocking calls: one gets through, others are refused without effect, so
		// each goroutine calls until it has had its share.
		for i := range callers {
			all.Go(func() {
				x := make([]int64, count)
				for {
					for k := range x {
						x[k] = int64(c.Rank() + 1)
					}
					err := collective.AllReduce(context.Background(), c, x, x, collective.Sum)
					if errors.Is(err, collective.ErrConcurrentUse) {
						mu.Lock()
						refused++
						mu.Unlock()
						time.Sleep(100 * time.Microsecond)
						continue
					}
					if err == nil && slices.ContainsFunc(x, func(v int64) bool { return v != int64(c.Size()*(c.Size()+1)/2) }) {
						err = errors.New("wrong data")
					}
					mu.Lock()
					right++
					mu.Unlock()
					errs[i] = err
					return
				}
			})
		}
		all.Wait()
		p.tell("done", errors.Join(errs...), float64(refused), float64(right))
		return errors.Join(errs...)
	})
})

func TestConcurrentCallsOfProcessesAreSerialisedOrRefused(t *testing.T) {
	c := stage(t, staging{role: concurrentRole, size: 2})
	for _, r := range c.reported("done", c.all()...) {
		t.Logf("rank %d: %v calls refused", r.Process, r.Numbers[0])
		assert.Equal(t, 8.0, r.Numbers[1])
	}
	c.succeed(c.all()...)
}

// Launchers.

var launchedRole = role("launched", func(p *player) error {
	err := joined(1, collective.Config{JoinTimeout: 30 * time.Second}, func(comms []*collective.Comm) error {
		c := comms[0]
		sum := []int64{int64(c.Rank()), 1}
		if err := collective.AllReduce(context.Background(), c, sum, sum, collective.Sum); err != nil {
			return err
		}
		line, err := json.Marshal(append([]int64{int64(c.Rank()), int64(c.Size())}, sum...))
		if err != nil {
			return err
		}
		// One write: the launcher merges the lines of all ranks.
		_, err = os.Stdout.WriteString("LAUNCHED " + string(line) + "\n")
		return err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return err
})

func TestRanksFindTheirPlaceUnderRealLaunchers(t *testing.T) {
	for _, launcher := range []struct {
		name, debian string
		programs     []string
		args         []string
	}{
		{"Open MPI's mpirun", "openmpi-bin", []string{"mpirun.openmpi"}, []string{"--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "3"}},
		{"MPICH's mpiexec", "mpich", []string{"mpiexec.hydra", "mpiexec.mpich"}, []string{"-n", "3"}},
		{"MPICH's mpiexec with a port", "mpich", []string{"mpiexec.hydra", "mpiexec.mpich"}, []string{"-pmi-port", "-n", "3"}},
	} {
		t.Run(launcher.name, func(t *testing.T) {
			path := ""
			for _, name := range launcher.programs {
				if found, err := exec.LookPath(name); err == nil {
					path = found
				}
			}
			if path == "" {
				t.Skipf("%s is not installed (Debian: apt-get install %s)", launcher.programs[0], launcher.debian)
			}
			self, err := os.Executable()
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, path, append(launcher.args, self)...)
			cmd.Env = append(ownEnvironment(), roleVar+"="+launchedRole, launcherVar+"=1")
			cmd.WaitDelay = 5 * time.Second
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			var ranks []int
			for line := range strings.Lines(string(out)) {
				text, ok := strings.CutPrefix(line, "LAUNCHED ")
				if !ok {
					continue
				}
				var got [4]int
				require.NoError(t, json.Unmarshal([]byte(text), &got), "%s", out)
				ranks = append(ranks, got[0])
				require.Equal(t, []int{3, 3, 3}, got[1:], "size, sum of ranks, sum of ones")
			}
			slices.Sort(ranks)
			require.Equal(t, []int{0, 1, 2}, ranks, "%s", out)
		})
	}
}

// Ids differ in how many addresses they end with, and what else could be read as
// host and port.
func TestProcessesJoinByIDsOfAnyAddresses(t *testing.T) {
	for _, config := range []collective.Config{
		{SocketFamily: "AF_INET"}, {SocketFamily: "AF_INET6"}, {SocketIfname: "=lo"}, {SocketIfname: "^lo"}, {Ports: "40000-50000"},
	} {
		t.Run(config.SocketFamily+config.SocketIfname+config.Ports, func(t *testing.T) {
			u, err := collective.NewUniqueID(config)
			if err != nil {
				t.Skipf("this host has no such address: %v", err)
			}
			defer u.Close()
			c := stage(t, staging{role: startRole, size: 2, id: u.String()})
			c.reported("joined", c.all()...)
			c.succeed(c.all()...)
		})
	}
}
