package collective

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
	"github.com/gollective/gollective/transport/inproc"
)

// late runs an AllReduce to which rank 0 comes late, and returns rank 1's account.
func late(t *testing.T, c Config, by time.Duration) Stats {
	t.Helper()
	c.Accounting = true
	var stats Stats
	arrived := make(chan struct{})
	require.NoError(t, RunConfig(2, c, func(comm *Comm) error {
		ctx := t.Context()
		x := make([]float32, 1000)
		if err := AllReduce(ctx, comm, x, x, Sum); err != nil {
			return err
		}
		before := comm.Stats().Block
		if comm.Rank() == 0 {
			<-arrived
			time.Sleep(by)
		} else {
			close(arrived)
		}
		if err := AllReduce(ctx, comm, x, x, Sum); err != nil {
			return err
		}
		if comm.Rank() == 1 {
			stats.Block = comm.Stats().Block.Sub(before)
		}
		return nil
	}))
	return stats
}

// What the project is about: a rank that waits for a late one burns a processor
// where it spins, and does not where it sleeps; either way it does not work.
func TestALatePeerCostsWhoSpinsAProcessor(t *testing.T) {
	by := 50 * time.Millisecond
	spins, blocks := late(t, Config{Wait: WaitSpin}, by).Block, late(t, Config{Wait: WaitBlock}, by).Block
	for _, s := range []Counters{spins, blocks} {
		t.Logf("%+v, useful %.3f", s, s.Useful())
		require.Positive(t, s.CPU)
		require.LessOrEqual(t, s.CPU, s.Wall)
		require.LessOrEqual(t, s.Waiting, s.CPU)
		require.EqualValues(t, 2*4*1000*2/2, s.Bytes, "half of the elements twice each way")
		require.Positive(t, s.Threads)
	}
	require.Less(t, blocks.Waiting, spins.Waiting/2)
	require.Less(t, spins.Useful(), 0.5)
	require.Positive(t, blocks.Parks)
	require.Zero(t, spins.Parks)
}

func TestWithoutAccountingTimeIsNotCounted(t *testing.T) {
	require.NoError(t, Run(2, func(comm *Comm) error {
		x := make([]float32, 1000)
		if err := AllReduce(t.Context(), comm, x, x, Sum); err != nil {
			return err
		}
		s := comm.Stats().Block
		if s.Wall != 0 || s.CPU != 0 || s.Waiting != 0 || s.Bytes != 0 {
			t.Errorf("%+v", s)
		}
		return nil
	}))
}

// accountant is a transport that has worked.
type accountant struct {
	transport.Transport
	proxy, helper spin.Counters
}

func (a *accountant) Accounts(int) (proxy, helper spin.Counters) { return a.proxy, a.helper }

// Time is counted once: the proxy's is not the blocks' when they are its drivers.
func TestTheProxysTimeIsNotTheBlocks(t *testing.T) {
	for _, tc := range []struct {
		name                   string
		block, proxy           Counters
		wantCPU, wantWaiting   time.Duration
		wantProxy, wantThreads int
	}{
		{"threads of its own", Counters{CPU: 100, Waiting: 80}, Counters{CPU: 30, Threads: 1}, 100, 80, 30, 1},
		{"blocks drive it", Counters{CPU: 100, Waiting: 80}, Counters{CPU: 30}, 70, 50, 30, 0},
		{"and more than they have told yet", Counters{CPU: 20, Waiting: 10}, Counters{CPU: 30}, 0, 0, 30, 0},
		{"and hardly wait", Counters{CPU: 100, Waiting: 10}, Counters{CPU: 30}, 70, 0, 30, 0},
	} {
		s := stats(tc.block, &accountant{Transport: inproc.NewHub(), proxy: tc.proxy, helper: Counters{CPU: 5, Threads: 2}}, 0)
		require.Equal(t, tc.wantCPU, s.Block.CPU, tc.name)
		require.Equal(t, tc.wantWaiting, s.Block.Waiting, tc.name)
		require.EqualValues(t, tc.wantProxy, s.Proxy.CPU, tc.name)
		require.Equal(t, tc.wantThreads, s.Proxy.Threads, tc.name)
		require.EqualValues(t, 5, s.Helper.CPU, tc.name)
	}
}

// busy has two ranks work for d, on two channels.
func busy(t *testing.T, c Config, d time.Duration) {
	t.Helper()
	c.Channels = 2
	require.NoError(t, RunConfig(2, c, func(comm *Comm) error {
		x := make([]float32, 1<<18)
		again := make([]int32, 1)
		for end := time.Now().Add(d); ; {
			for range 10 {
				if err := AllReduce(t.Context(), comm, x, x, Sum); err != nil {
					return err
				}
			}
			again[0] = 0
			if time.Now().Before(end) {
				again[0] = 1
			}
			if err := AllReduce(t.Context(), comm, again, again, Min); err != nil || again[0] == 0 {
				return err
			}
		}
	}))
}

// tags are the labels in a profile of the processor, as go tool pprof shows them.
func tags(t *testing.T, c Config, d time.Duration) string {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go tool to read profiles with")
	}
	name := filepath.Join(t.TempDir(), "cpu.pprof")
	file, err := os.Create(name)
	require.NoError(t, err)
	if err := pprof.StartCPUProfile(file); err != nil {
		t.Skip("the tests are being profiled")
	}
	busy(t, c, d)
	pprof.StopCPUProfile()
	require.NoError(t, file.Close())
	text, err := exec.Command(goTool, "tool", "pprof", "-tags", name).CombinedOutput()
	if err != nil {
		t.Skipf("go tool pprof does not work here: %v: %s", err, text)
	}
	return string(text)
}

func TestProfilesShowBlocksByName(t *testing.T) {
	var text string
	complete := func() bool {
		for _, label := range []string{"comm", "rank", "role", "channel"} {
			if !strings.Contains(text, " "+label+":") {
				return false
			}
		}
		for _, value := range []string{": local-", ": block", ": 0", ": 1"} {
			if !strings.Contains(text, value) {
				return false
			}
		}
		return true
	}
	// Samples come every 10 ms of processor time; a machine may have little to give.
	for d := 300 * time.Millisecond; d < 10*time.Second && !complete(); d *= 3 {
		text = tags(t, Config{Profile: true}, d)
	}
	require.True(t, complete(), text)
	require.NotContains(t, tags(t, Config{}, 100*time.Millisecond), "role:")
}

func TestTracesShowCallsAndWaits(t *testing.T) {
	if trace.IsEnabled() {
		t.Skip("the tests are being traced")
	}
	var out bytes.Buffer
	require.NoError(t, trace.Start(&out))
	late(t, Config{}, 5*time.Millisecond)
	trace.Stop()
	for _, region := range []string{"AllReduce", "wait post"} {
		require.True(t, bytes.Contains(out.Bytes(), []byte(region)), region)
	}
}

// The names of communicators tell them apart.
func TestLabelsOfLocalCommunicatorsDiffer(t *testing.T) {
	a, err := InitAll(1)
	require.NoError(t, err)
	b, err := InitAll(1)
	require.NoError(t, err)
	names := []string{a[0].world.label(), b[0].world.label()}
	require.NotEqual(t, names[0], names[1])
	for i, name := range names {
		number, found := strings.CutPrefix(name, "local-")
		require.True(t, found)
		_, err := strconv.Atoi(number)
		require.NoError(t, err)
		require.NoError(t, [][]*Comm{a, b}[i][0].Close())
	}
}
