package tcp

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gollective/gollective/internal/netlab"
)

// detached is a descriptor of a connection that package net has made.
func detached(t testing.TB, conn net.Conn) int {
	t.Helper()
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	fd := -1
	require.NoError(t, raw.Control(func(theirs uintptr) {
		var err error
		fd, err = unix.FcntlInt(theirs, unix.F_DUPFD_CLOEXEC, 0)
		assert.NoError(t, err)
	}))
	return fd
}

// connected is both ends of a connection over loopback.
func connected(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	b, err = l.Accept()
	require.NoError(t, err)
	return a, b
}

// loopbackPair is two connected sockets with faults, which may be nil.
func loopbackPair(t testing.TB, f *Faults) (a, b *socket) {
	t.Helper()
	x, y := connected(t)
	a, b = newSocket(detached(t, x), f.system()), newSocket(detached(t, y), f.system())
	t.Cleanup(func() {
		assert.NoError(t, a.close())
		assert.NoError(t, b.close())
	})
	return a, b
}

func seeded(t testing.TB) (*rand.Rand, uint64) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1)), seed
}

func randomBytes(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// split cuts b into k pieces, some of them empty.
func split(random *rand.Rand, b []byte, k int) [][]byte {
	var parts [][]byte
	for ; k > 1; k-- {
		n := random.IntN(min(2*len(b)/k, len(b)) + 1)
		parts = append(parts, b[:n])
		b = b[n:]
	}
	return append(parts, b)
}

// Whatever the system does within its rights, the bytes arrive, complete and in
// order.
func TestBytesArriveInOrderUnderFaults(t *testing.T) {
	random, seed := seeded(t)
	for name, f := range map[string]*Faults{
		"none":       nil,
		"short":      {Short: 0.9},
		"interrupts": {Interrupt: 0.5},
		"storms":     {Again: 0.3, Storm: 50},
		"delays":     {Delay: 0.05, Pause: 200 * time.Microsecond},
		"all":        {Short: 0.5, Interrupt: 0.3, Again: 0.2, Delay: 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			if f != nil {
				f.Seed = seed
			}
			a, b := loopbackPair(t, f)
			sent := randomBytes(random, 100_000+random.IntN(200_000))
			got := make([]byte, len(sent))
			parts := split(random, sent, 400) // enough calls for every kind of fault
			done := make(chan error, 1)
			go func() { done <- sendAll(a, parts...) }()
			rest := [][]byte{got[:1000], got[1000:1001], got[1001:]}
			for len(rest) > 0 {
				n, err := b.read(rest)
				require.NoError(t, err)
				if n == 0 {
					runtime.Gosched()
				}
				for ; len(rest) > 0 && n >= len(rest[0]); rest = rest[1:] {
					n -= len(rest[0])
				}
				if len(rest) > 0 {
					rest[0] = rest[0][n:]
				}
			}
			require.NoError(t, <-done)
			require.True(t, bytes.Equal(sent, got))
			for kind, chance := range map[string]float64{"Short": f.chance().Short, "Interrupt": f.chance().Interrupt, "Again": f.chance().Again} {
				if chance > 0 {
					require.NotZero(t, f.Injected()[kind], kind)
				}
			}
		})
	}
}

// chance is f's numbers, none for nil.
func (f *Faults) chance() struct{ Short, Interrupt, Again float64 } {
	if f == nil {
		return struct{ Short, Interrupt, Again float64 }{}
	}
	return struct{ Short, Interrupt, Again float64 }{f.Short, f.Interrupt, f.Again}
}

func TestAResetIsSeenByBothEnds(t *testing.T) {
	x, y := connected(t)
	f := &Faults{Reset: 1}
	a, b := newSocket(detached(t, x), f.system()), newSocket(detached(t, y), nil)
	_, err := a.write([][]byte{{1}})
	require.ErrorIs(t, err, unix.ECONNRESET)
	_, err = a.read([][]byte{{1}})
	require.ErrorIs(t, err, unix.ECONNRESET)
	require.NoError(t, a.close())
	require.ErrorIs(t, ending(t, b), unix.ECONNRESET)
	require.NoError(t, b.close())
	require.Equal(t, uint64(2), f.Injected()["Reset"])
}

func TestTheSameSeedGivesTheSameFaults(t *testing.T) {
	_, seed := seeded(t)
	fates := func() (kinds []faultKind) {
		f := &Faults{Seed: seed, Short: 0.3, Interrupt: 0.3, Again: 0.3}
		for range 3 {
			in, out := f.directions()
			for range 100 {
				for _, m := range []*misfortune{in, out} {
					kind, allowed := m.next(1000)
					require.True(t, allowed <= 1000 && (allowed > 0) == (kind == noFault || kind == faultShort))
					kinds = append(kinds, kind)
				}
			}
		}
		return kinds
	}
	require.Equal(t, fates(), fates())
}

func TestTheEndsOfAStream(t *testing.T) {
	a, b := loopbackPair(t, nil)
	n, err := a.write(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = a.read([][]byte{nil, {}})
	require.NoError(t, err)
	require.Zero(t, n)
	for full := false; !full; { // no room is no error
		n, err := a.write([][]byte{make([]byte, 1<<20)})
		require.NoError(t, err)
		full = n == 0
	}
	require.NoError(t, b.close())
	var end error
	require.Eventually(t, func() bool { _, end = a.write([][]byte{{1}}); return end != nil }, 10*time.Second, time.Millisecond)
	require.True(t, end != io.EOF && (isErrno(end, unix.EPIPE) || isErrno(end, unix.ECONNRESET)), "%v", end)
	require.True(t, isErrno(second(a.write([][]byte{{1}})), unix.EPIPE), "and no signal")
	require.NoError(t, b.close(), "twice is fine")
}

func isErrno(err error, errno unix.Errno) bool {
	return err != nil && strings.Contains(err.Error(), errno.Error())
}

func second(_ int, err error) error { return err }

func TestTransfersAllocateNothing(t *testing.T) {
	if underRace {
		t.Skip("the race detector allocates")
	}
	a, b := loopbackPair(t, nil)
	out, in := [][]byte{make([]byte, 24), make([]byte, 1000)}, [][]byte{make([]byte, 24), make([]byte, 1000)}
	p, err := newPoller()
	require.NoError(t, err)
	defer p.close()
	allocated := testing.AllocsPerRun(200, func() {
		for got := 0; got < 1024; {
			if got == 0 {
				_, _ = a.write(out)
				_ = p.interest(b.fd, true, false)
				_, _ = p.wait(-1)
			}
			n, _ := b.read(in)
			got += n
		}
		_, _ = a.write(out[:1])
		for n := 0; n == 0; n, _ = b.read(in[:1]) {
			runtime.Gosched()
		}
		p.wake()
		_, _ = p.wait(-1)
		_ = p.interest(b.fd, false, false)
	})
	require.Zero(t, allocated)
}

// Buffers are only looked at during a call.
func TestASocketKeepsNoBuffers(t *testing.T) {
	a, b := loopbackPair(t, nil)
	collected := make(chan bool, 1)
	func() {
		buffer := new([4096]byte)
		runtime.AddCleanup(buffer, func(struct{}) { collected <- true }, struct{}{})
		_, err := a.write([][]byte{buffer[:10], buffer[10:20]})
		require.NoError(t, err)
		_, err = b.read([][]byte{buffer[:]})
		require.NoError(t, err)
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		return len(collected) > 0
	}, 10*time.Second, time.Millisecond)
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
}

func TestVectorsAreTrimmed(t *testing.T) {
	parts := [][]byte{{1, 2, 3}, nil, {4}, {5, 6}, {7, 8}, {9}}
	for total := 1; total <= 8; total++ {
		var v vectors
		v.fill(parts)
		require.Equal(t, 8, v.total, "four buffers")
		v.trim(total)
		require.Equal(t, total, v.total)
		sum := 0
		for i := range v.count {
			sum += int(v.list[i].Len)
		}
		require.Equal(t, total, sum)
	}
}

// The poller.

func newTestPoller(t *testing.T) *poller {
	p, err := newPoller()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.close()) })
	return p
}

func TestAPollerTellsWhatIsReady(t *testing.T) {
	p := newTestPoller(t)
	a, b := loopbackPair(t, nil)
	ready := func() []int {
		fds, err := p.wait(0)
		require.NoError(t, err)
		return fds
	}
	require.Empty(t, ready())
	require.NoError(t, p.interest(b.fd, true, false))
	require.Empty(t, ready())
	require.NoError(t, sendAll(a, []byte{1}))
	fds, err := p.wait(10 * time.Second)
	require.NoError(t, err)
	require.Equal(t, []int{b.fd}, fds)
	require.NoError(t, p.interest(b.fd, false, false))
	require.Empty(t, ready())
	require.NoError(t, p.interest(b.fd, true, true))
	require.NoError(t, p.interest(b.fd, false, true))
	require.Equal(t, []int{b.fd}, ready())
	require.NoError(t, p.interest(b.fd, false, false))
	require.NoError(t, p.interest(b.fd, false, false))
	p.wake()
	p.wake()
	start := time.Now()
	fds, err = p.wait(time.Minute)
	require.NoError(t, err)
	require.Empty(t, fds)
	require.Less(t, time.Since(start), time.Minute, "a wake before the wait is kept")
	fds, err = p.wait(time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, fds)
	require.Error(t, p.interest(1<<20, true, false), "no such descriptor")
	require.NoError(t, p.interest(1<<20, false, false))
}

// One side adds to a counter and wakes; the other sleeps whenever it has seen all of
// it. A wake-up lost would leave it asleep.
func TestNoWakeUpIsLost(t *testing.T) {
	p := newTestPoller(t)
	var mu sync.Mutex
	made := 0
	const wakers, each = 4, 5000
	for range wakers {
		go func() {
			for i := range each {
				mu.Lock()
				made++
				mu.Unlock()
				p.wake()
				if i%64 == 0 {
					runtime.Gosched()
				}
			}
		}()
	}
	seen := 0
	for deadline := time.Now().Add(time.Minute); seen < wakers*each; {
		_, err := p.wait(30 * time.Second)
		require.NoError(t, err)
		mu.Lock()
		seen = made
		mu.Unlock()
		require.True(t, time.Now().Before(deadline), "asleep with %d of %d seen", seen, wakers*each)
	}
}

func TestWakingAClosedPollerDoesNothing(t *testing.T) {
	p, err := newPoller()
	require.NoError(t, err)
	require.NoError(t, p.close())
	p.wake()
	require.NoError(t, p.close())
}

// The watch.

// guard wraps a connection as a port does.
func guard(t *testing.T, conn net.Conn, w *watch) *guarded {
	g := newGuarded(newSocket(detached(t, conn), nil), w)
	t.Cleanup(func() { require.NoError(t, g.close()) })
	return g
}

func fillUp(t *testing.T, s stream) {
	for full := 0; full < 20; { // what is on its way makes room again
		n, err := s.write([][]byte{make([]byte, 1<<20)})
		require.NoError(t, err)
		full++
		if n > 0 {
			full = 0
		}
		time.Sleep(time.Millisecond)
	}
}

// A process may be busy with other things for as long as it likes.
func TestASlowPeerIsNotLost(t *testing.T) {
	t.Parallel() // it mostly waits
	w := newWatch(300 * time.Millisecond)
	t.Cleanup(w.close)
	x, y := connected(t)
	a, b := guard(t, x, w), guard(t, y, w)
	fillUp(t, a)
	time.Sleep(2 * time.Second) // much longer than the limit, and than some probes of the window
	_, err := a.write([][]byte{{1}})
	require.NoError(t, err)
	n, err := b.read([][]byte{make([]byte, 1000)})
	require.NoError(t, err)
	require.Equal(t, 1000, n)
}

func TestASilentHostIsLost(t *testing.T) {
	t.Parallel() // it mostly waits
	l := netlab.New(t, 2)
	listener, err := l.Host(1).Listen(":7000")
	require.NoError(t, err)
	defer listener.Close()
	connect := func() (net.Conn, net.Conn) {
		x, err := l.Host(0).Dial(net.JoinHostPort(l.Host(1).Address().String(), "7000"), 10*time.Second)
		require.NoError(t, err)
		y, err := listener.Accept()
		require.NoError(t, err)
		return x, y
	}
	w := newWatch(time.Second)
	t.Cleanup(w.close)
	x, y := connect()
	sends, full := guard(t, x, w), guard(t, y, w)
	x, y = connect()
	for _, c := range []net.Conn{x, y} {
		raw, err := c.(*net.TCPConn).SyscallConn()
		require.NoError(t, err)
		config := PortConfig{PeerTimeout: time.Second}
		require.NoError(t, raw.Control(func(fd uintptr) { assert.NoError(t, config.setOptions(int(fd))) }))
	}
	window, _ := guard(t, x, w), guard(t, y, w)
	fillUp(t, window)
	l.Cut([]int{0}, []int{1})
	_, err = sends.write([][]byte{make([]byte, 1000)})
	require.NoError(t, err)
	for _, s := range []stream{sends, window} {
		p := newTestPoller(t)
		require.NoError(t, p.interest(s.descriptor(), true, false))
		fds, err := p.wait(30 * time.Second)
		require.NoError(t, err)
		require.Equal(t, []int{s.descriptor()}, fds, "it wakes who waits")
		require.NoError(t, p.interest(s.descriptor(), false, false))
		_, err = s.write([][]byte{{1}})
		require.ErrorIs(t, err, unix.ETIMEDOUT)
		_, err = s.read([][]byte{{1}})
		require.ErrorIs(t, err, unix.ETIMEDOUT)
	}
	n, err := full.read([][]byte{{1}})
	require.NoError(t, err, "nothing shows yet at the end that only reads: that is the keepalives' business")
	require.Zero(t, n)
}

// Both ends poll, as proxies do while operations are in flight.
func BenchmarkPingPong(b *testing.B) {
	for name, at := range map[string]int{"bytes=64/buffers=1": 64, "bytes=64/buffers=2": 24} {
		b.Run(name, func(b *testing.B) {
			x, y := loopbackPair(b, nil)
			parts := func() [][]byte {
				memory := make([]byte, 64)
				return [][]byte{memory[:at], memory[at:]}
			}
			receive := func(s *socket, into [][]byte) error {
				for got := 0; got < 64; {
					n, err := s.read(into)
					if err != nil {
						return err
					}
					got += n
				}
				return nil
			}
			done := make(chan error, 1)
			go func() {
				out, in := parts(), parts()
				for range b.N {
					if err := receive(y, in); err != nil {
						done <- err
						return
					}
					if _, err := y.write(out); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			out, in := parts(), parts()
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if _, err := x.write(out); err != nil {
					b.Fatal(err)
				}
				if err := receive(x, in); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			require.NoError(b, <-done)
		})
	}
}
