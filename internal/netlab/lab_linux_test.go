package netlab

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// lingerVar makes the test binary a process that makes a lab and waits.
const lingerVar = "NETLAB_TEST_LINGER"

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const (
	patience = 30 * time.Second       // of what should happen
	aWhile   = 100 * time.Millisecond // of what should not
)

// connected are the two ends of a connection between hosts.
func connected(t *testing.T, from *Host, to netip.Addr, host *Host) (out, in net.Conn) {
	t.Helper()
	l, err := host.Listen(netip.AddrPortFrom(to, 0).String())
	require.NoError(t, err)
	defer l.Close()
	out, err = from.Dial(l.Addr().String(), patience)
	require.NoError(t, err)
	in, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { out.Close(); in.Close() })
	return out, in
}

// arrives tells whether what one end sends is received in time.
func arrives(t *testing.T, out, in net.Conn, within time.Duration) bool {
	t.Helper()
	_, err := out.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, in.SetReadDeadline(time.Now().Add(within)))
	b := make([]byte, 5)
	_, err = io.ReadFull(in, b)
	if err != nil {
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "silence, not an error")
		return false
	}
	require.Equal(t, "hello", string(b))
	return true
}

// works fails the test unless a new connection works both ways.
func works(t *testing.T, from, to *Host) {
	t.Helper()
	for _, a := range to.addresses() {
		out, in := connected(t, from, a, to)
		require.True(t, arrives(t, out, in, patience))
		require.True(t, arrives(t, in, out, patience))
		out.Close()
		in.Close()
	}
}

// silent fails the test unless an attempt to connect meets silence.
func silent(t *testing.T, from, to *Host) {
	t.Helper()
	for _, a := range to.addresses() {
		l, err := to.Listen(netip.AddrPortFrom(a, 0).String())
		require.NoError(t, err)
		_, err = from.Dial(l.Addr().String(), aWhile)
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout(), "an error instead of silence: %v", err)
		l.Close()
	}
}

func TestHostsReachEachOtherAndNobodyElse(t *testing.T) {
	l := New(t, 3)
	for i := range 3 {
		for k := range 3 {
			works(t, l.Host(i), l.Host(k))
		}
	}
	// A second lab has the same addresses, and is another world.
	other := New(t, 1)
	listener, err := other.Host(0).Listen("10.77.0.1:5000")
	require.NoError(t, err)
	defer listener.Close()
	_, err = l.Host(1).Dial("10.77.0.1:5000", patience)
	require.ErrorContains(t, err, "refused")
}

func TestProgramsSeeTheirHost(t *testing.T) {
	l := New(t, 2, LoopbackNames(), Decoys(4))
	out, err := l.Host(1).Command("cat", "/etc/hosts").Output()
	require.NoError(t, err)
	machine, err := os.Hostname()
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1 localhost\n::1 localhost\n10.77.0.1 host0\nfd77::1 host0\n127.0.1.1 host1 "+machine+"\n", string(out))
	out, err = l.Host(1).Command("ip", "-o", "-br", "addr").Output()
	require.NoError(t, err)
	up := map[string]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		name, _, _ := strings.Cut(f[0], "@")
		up[name] = strings.Join(f[1:], " ")
	}
	assert.Equal(t, map[string]string{
		"lo": "UNKNOWN 127.0.0.1/8 ::1/128", "eth0": "UP 10.77.0.2/24 fd77::2/64",
		"decoy0": "UP 10.100.0.1/24", "decoy1": "UP 10.101.101.1/24", "decoy2": "UP 10.102.1.1/24", "decoy3": "UP 10.103.101.1/24",
		"end0": "UP", "end1": "UP", "end2": "UP", "end3": "UP",
	}, up)

	// The program is the process that the test started, with what it passed on.
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := l.Host(0).Command("sh", "-c", "echo $$ >&3")
	cmd.ExtraFiles = []*os.File{w}
	require.NoError(t, cmd.Start())
	w.Close()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintln(cmd.Process.Pid), line)
	require.NoError(t, cmd.Wait())
	r.Close()

	// Two of them have different mounts: what one mounts the other does not see.
	mounts := map[string]bool{}
	for range 2 {
		cmd := l.Host(0).Command("sh", "-c", "readlink /proc/self/ns/mnt; read x")
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		mounts[line] = true
		defer func() { in.Close(); _ = cmd.Wait() }() // read finds the end
	}
	assert.Len(t, mounts, 2)
}

func TestACutIsSilentAndConcernsNobodyElse(t *testing.T) {
	l := New(t, 4)
	a, b := l.Host(0), l.Host(1)
	for _, address := range b.addresses() {
		out, in := connected(t, a, address, b)
		require.True(t, arrives(t, out, in, patience))
		l.Cut([]int{0, 3}, []int{1})
		require.False(t, arrives(t, out, in, aWhile))
		require.False(t, arrives(t, in, out, aWhile))
		silent(t, a, b)
		silent(t, b, a)
		silent(t, l.Host(3), b)
		works(t, a, l.Host(2))
		works(t, l.Host(2), b)
		works(t, a, l.Host(3))
		l.Heal()
		// What was on its way is sent again.
		require.NoError(t, in.SetReadDeadline(time.Now().Add(patience)))
		_, err := io.ReadFull(in, make([]byte, 5))
		require.NoError(t, err)
		works(t, b, a)
	}
}

func TestAnUnpluggedHostIsSilent(t *testing.T) {
	for _, c := range []Cable{{}, {Delay: time.Millisecond}} {
		l := New(t, 3)
		l.Shape(c)
		a, b := l.Host(0), l.Host(1)
		out, in := connected(t, a, b.Address(), b)
		b.Unplug()
		require.False(t, arrives(t, out, in, aWhile))
		require.False(t, arrives(t, in, out, aWhile))
		silent(t, a, b)
		works(t, a, l.Host(2))
		b.Plug()
		works(t, a, b)
	}
}

func TestDroppedFlowsVanishAndNewOnesWork(t *testing.T) {
	l := New(t, 3)
	a, b := l.Host(0), l.Host(1)
	var old [][2]net.Conn
	for _, address := range b.addresses() {
		out, in := connected(t, a, address, b)
		old = append(old, [2]net.Conn{out, in})
	}
	kept, keptIn := connected(t, a, l.Host(2).Address(), l.Host(2))
	flows := a.Flows(b)
	require.Len(t, flows, 2)
	for i, f := range flows {
		assert.True(t, f.KeptAlive, "as package net does it")
		ends := []string{f.Local.String(), f.Remote.String()}
		assert.Contains(t, [][]string{endsOf(old[0][0]), endsOf(old[1][0])}, ends, i)
	}
	assert.Equal(t, 2, l.DropFlows(0, 1))
	for _, pair := range old {
		require.False(t, arrives(t, pair[0], pair[1], aWhile))
		require.False(t, arrives(t, pair[1], pair[0], aWhile))
	}
	works(t, a, b)
	works(t, b, a)
	require.True(t, arrives(t, kept, keptIn, patience))
}

// endsOf are the addresses of both ends.
func endsOf(c net.Conn) []string { return []string{c.LocalAddr().String(), c.RemoteAddr().String()} }

// transfer sends random bytes and returns how long that took.
func transfer(t *testing.T, from, to *Host, address netip.Addr, size int64) time.Duration {
	t.Helper()
	data, got := make([]byte, size), make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(data)
	out, in := connected(t, from, address, to)
	start := time.Now()
	sent := make(chan error, 1)
	go func() {
		_, err := out.Write(data)
		sent <- err
	}()
	_, err := io.ReadFull(in, got)
	took := time.Since(start)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.True(t, bytes.Equal(data, got))
	return took
}

// counter is one of the counters of the host's kernel.
func counter(t *testing.T, h *Host, name string) (n int) {
	t.Helper()
	for _, file := range []string{"/proc/thread-self/net/snmp", "/proc/thread-self/net/netstat"} {
		var text []byte
		require.NoError(t, h.Do(func() (err error) {
			text, err = os.ReadFile(file)
			return err
		}))
		lines := strings.Split(string(text), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			for k := range names {
				if names[k] == name {
					_, err := fmt.Sscan(values[k], &n)
					require.NoError(t, err)
					return n
				}
			}
		}
	}
	require.Fail(t, "no such counter", name)
	return 0
}

func TestShapedCables(t *testing.T) {
	const mib = 1 << 20
	l := New(t, 2)
	a, b := l.Host(0), l.Host(1)
	for _, tc := range []struct {
		name  string
		cable Cable
		size  int64
	}{
		{"perfect", Cable{}, 32 * mib},
		{"10 Gb/s", Cable{Rate: 10e9}, 64 * mib},
		{"100 Mb/s", Cable{Rate: 100e6}, 4 * mib},
		{"1 ms", Cable{Delay: time.Millisecond}, 16 * mib},
		{"10 Gb/s, 1 ms", Cable{Rate: 10e9, Delay: time.Millisecond}, 16 * mib},
		{"1 ms, 1 % lost", Cable{Delay: time.Millisecond, Loss: 0.01}, 4 * mib},
		{"1 ms, 5 % early", Cable{Delay: time.Millisecond, Reorder: 0.05}, 4 * mib},
		{"all of it", Cable{Rate: 10e9, Delay: time.Millisecond, Loss: 0.01, Reorder: 0.05}, 4 * mib},
		{"perfect again", Cable{}, 32 * mib},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l.Shape(tc.cable)
			lost, late := counter(t, a, "RetransSegs"), counter(t, b, "TCPOFOQueue")
			for _, address := range b.addresses() {
				took := transfer(t, a, b, address, tc.size)
				t.Logf("%v: %.2f Gb/s", address, float64(8*tc.size)/took.Seconds()/1e9)
				if rate := tc.cable.Rate; rate > 0 { // what is in the bucket goes at once
					assert.GreaterOrEqual(t, took.Seconds(), float64(8*(tc.size-bucket(rate)))/float64(rate))
				}
				out, in := connected(t, a, address, b)
				start := time.Now()
				require.True(t, arrives(t, out, in, patience))
				require.True(t, arrives(t, in, out, patience))
				if tc.cable.Reorder == 0 {
					assert.GreaterOrEqual(t, time.Since(start), 2*tc.cable.Delay)
				}
				t.Logf("%v: round trip %v", address, time.Since(start))
			}
			t.Logf("%d packets sent again, %d out of order", counter(t, a, "RetransSegs")-lost, counter(t, b, "TCPOFOQueue")-late)
			if tc.cable.Loss > 0 {
				assert.Greater(t, counter(t, a, "RetransSegs"), lost)
			}
			if tc.cable.Reorder > 0 {
				assert.Greater(t, counter(t, b, "TCPOFOQueue"), late)
			}
		})
	}
}

// witness is a test that only takes note of its failures.
type witness struct {
	testing.TB
	cleanups []func()
	errors   []string
}

func (w *witness) Cleanup(f func()) { w.cleanups = append(w.cleanups, f) }
func (w *witness) Errorf(format string, args ...any) {
	w.errors = append(w.errors, fmt.Sprintf(format, args...))
}

func (w *witness) end() {
	for i := len(w.cleanups) - 1; i >= 0; i-- {
		w.cleanups[i]()
	}
}

// traces lists what is left of a process's labs.
func traces(t *testing.T, prefix string) (found []string) {
	t.Helper()
	for _, dir := range []string{"/var/run/netns", "/etc/netns"} {
		names, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
		require.NoError(t, err)
		found = append(found, names...)
	}
	return found
}

func TestNothingIsLeftOfALab(t *testing.T) {
	before := len(traces(t, ownPrefix()))
	w := &witness{TB: t}
	l := New(w, 2)
	l.Shape(Cable{Delay: time.Millisecond})
	require.NotEmpty(t, traces(t, ownPrefix()))
	cmd := l.Host(1).Command("sleep", "600")
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return len(pidsIn(l.Host(1).namespace)) == 1 }, patience, time.Millisecond)
	w.end()
	require.Equal(t, []string{fmt.Sprintf("netlab: processes [%d] still run on host1", cmd.Process.Pid)}, w.errors)
	require.ErrorContains(t, cmd.Wait(), "killed")
	require.Len(t, traces(t, ownPrefix()), before)
}

func TestLeftoversOfKilledProcessesAreRemoved(t *testing.T) {
	if os.Getenv(lingerVar) != "" {
		New(t, 2)
		fmt.Println("made", ownPrefix())
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	needs(t)
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), lingerVar+"=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	prefix := ""
	for lines := bufio.NewScanner(out); prefix == "" && lines.Scan(); {
		prefix, _ = strings.CutPrefix(lines.Text(), "made ")
	}
	removeOrphans()
	lives := traces(t, prefix)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	require.Len(t, lives, 3+2, "three namespaces, the files of two hosts")
	removeOrphans()
	require.Empty(t, traces(t, prefix))
}

func TestOnlyLabsOfTheDeadAreLeftovers(t *testing.T) {
	start, err := startOf(os.Getpid())
	require.NoError(t, err)
	for name, want := range map[string]bool{
		ownPrefix() + "-1-switch":                            false,
		fmt.Sprintf("netlab-%d-%s0-1-0", os.Getpid(), start): true,  // the number was another's
		"netlab-99999999-5-1-0":                              true,  // above any limit on numbers
		"netlab-x-5":                                         false, // not ours
		"prod-99999999-5-1-0":                                false,
		"netlab":                                             false,
	} {
		assert.Equal(t, want, orphaned(name), name)
	}
}
