package tcp

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bundles is both ends of a connection between ports that are made with these
// numbers.
func bundles(t testing.TB, threads, perThread int, f *Faults) (out, in *bundle) {
	t.Helper()
	a := openPort(t, func(c *PortConfig) { c.Threads, c.SocketsPerThread, c.Faults = threads, perThread, f })
	b := openPort(t, func(c *PortConfig) { c.Faults = f }) // the dialler's numbers hold
	came := serve(t, b, "world")
	out, err := a.Dial(within(t, 20*time.Second), b.Addresses(), Greeting{"world", someLink})
	require.NoError(t, err)
	return out, came.next(t).bundle
}

func finish(t testing.TB, advance func() (bool, error)) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		done, err := advance()
		require.NoError(t, err)
		if done {
			return
		}
		require.True(t, time.Now().Before(deadline), "it does not end")
		runtime.Gosched()
	}
}

// A payload arrives the same, whatever it is cut into.
func TestPayloadsOverSeveralSockets(t *testing.T) {
	leavesNothing(t)
	random, seed := seeded(t)
	sizes := []int{1, 129, leastTask - 1, leastTask, leastTask + 1, 2 * leastTask, 4*leastTask - 1, 4 * leastTask, 4*leastTask + 1, 8*leastTask + 3}
	for _, shape := range [][2]int{{0, 0}, {1, 1}, {1, 4}, {2, 2}, {3, 2}, {4, 1}, {16, 4}} {
		for name, f := range map[string]*Faults{"clean": nil, "faults": {Seed: seed, Short: 0.2, Interrupt: 0.1, Again: 0.2}} {
			t.Run(fmt.Sprintf("threads=%d/sockets=%d/%s", shape[0], shape[1], name), func(t *testing.T) {
				out, in := bundles(t, shape[0], shape[1], f)
				require.Equal(t, shape[0] > 0, out.stripes())
				require.Equal(t, shape[0] > 0, in.stripes())
				total := 0
				for _, size := range append(sizes, 1+random.IntN(2<<20), 1+random.IntN(2<<20)) {
					sent, got := randomBytes(random, size), make([]byte, size)
					in.beginRead(got)
					out.beginWrite(sent)
					for written, read := false, false; !written || !read; runtime.Gosched() {
						var err error
						if !written {
							written, err = out.advanceWrite()
							require.NoError(t, err)
						}
						if !read {
							read, err = in.advanceRead()
							require.NoError(t, err)
						}
					}
					require.True(t, bytes.Equal(sent, got), "%d bytes", size)
					total += size
				}
				if out.stripes() {
					for _, b := range []*bundle{out, in} {
						c := b.helpers()
						require.Equal(t, uint64(total), c.Bytes)
						require.True(t, c.Found > 0 && c.Polls >= c.Found && c.CPU > 0, "%+v", c)
					}
				}
				require.NoError(t, out.close())
				require.NoError(t, in.close())
				require.GreaterOrEqual(t, out.helpers().Bytes, in.helpers().Bytes, "they count after the end, too")
			})
		}
	}
}

// Both ends cut alike, by NCCL's rule.
func TestHowPayloadsAreCut(t *testing.T) {
	for _, tc := range []struct{ payload, sockets, task, tasks int }{
		{0, 4, leastTask, 0},
		{1, 4, leastTask, 1},
		{leastTask, 4, leastTask, 1},
		{leastTask + 1, 4, leastTask, 2},
		{4 * leastTask, 4, leastTask, 4},
		{4*leastTask + 1, 4, leastTask + 1, 4},
		{1 << 20, 4, 1 << 18, 4},
		{1<<20 + 1, 64, leastTask, 17},
	} {
		task, tasks := cut(tc.payload, tc.sockets)
		require.Equal(t, []int{tc.task, tc.tasks}, []int{task, tasks}, "%+v", tc)
		require.LessOrEqual(t, tasks, tc.sockets)
	}
}

// Who sleeps while helpers are at work is woken by the end of it, and not before.
func TestTheEndOfAPayloadWakes(t *testing.T) {
	leavesNothing(t)
	out, in := bundles(t, 2, 1, nil)
	p := newTestPoller(t)
	look := func(read bool) {
		in.look(read, false, func(fd int, read, write bool) { require.NoError(t, p.interest(fd, read, write)) })
	}
	sleeps := func() bool {
		fds, err := p.wait(0)
		require.NoError(t, err)
		return len(fds) == 0
	}
	for range 3 {
		sent, got := make([]byte, 3*leastTask), make([]byte, 3*leastTask)
		look(true)
		require.True(t, sleeps(), "nothing at the main socket")
		require.NoError(t, sendAll(out.main, []byte{1}))
		fds, err := p.wait(20 * time.Second)
		require.NoError(t, err)
		require.Equal(t, in.descriptors()[:1], fds)
		in.beginRead(got)
		look(true)
		require.True(t, sleeps(), "the main socket does not matter now")
		out.beginWrite(sent)
		fds, err = p.wait(20 * time.Second)
		require.NoError(t, err)
		require.Equal(t, []int{in.in.event}, fds)
		finish(t, in.advanceRead) // the wake comes a moment early
		finish(t, out.advanceWrite)
		require.NoError(t, receiveAll(in.main, make([]byte, 1)))
		look(true)
		require.True(t, sleeps(), "told once")
	}
	look(false)
	require.NoError(t, out.close())
	require.NoError(t, in.close())
}

// A failure of any socket ends the payload, and wakes.
func TestALostSocketEndsThePayload(t *testing.T) {
	leavesNothing(t)
	out, in := bundles(t, 2, 2, nil)
	p := newTestPoller(t)
	in.beginRead(make([]byte, 4*leastTask))
	in.look(true, false, func(fd int, read, write bool) { require.NoError(t, p.interest(fd, read, write)) })
	require.NoError(t, out.close())
	fds, err := p.wait(20 * time.Second)
	require.NoError(t, err)
	require.Equal(t, []int{in.in.event}, fds)
	_, err = in.advanceRead()
	require.Equal(t, io.EOF, err)
	in.look(false, false, func(fd int, read, write bool) { require.NoError(t, p.interest(fd, read, write)) })
	require.NoError(t, in.close())
}

// The payload of a connection that has been closed is its owner's again.
func TestClosingEndsHelpersAtWork(t *testing.T) {
	leavesNothing(t)
	for range 20 {
		out, in := bundles(t, 3, 1, nil)
		payload := make([]byte, 64<<20) // more than the system takes
		out.beginWrite(payload)
		got := make([]byte, 1<<20)
		in.beginRead(got)
		finish(t, func() (bool, error) { return out.helpers().Bytes > 0, nil })
		require.NoError(t, out.close())
		require.NoError(t, in.close())
		clear(payload) // the race detector sees who still looks
		clear(got)
	}
}

// Helpers without a task sleep.
func TestIdleHelpersCostNothing(t *testing.T) {
	leavesNothing(t)
	out, in := bundles(t, 4, 2, nil)
	payload := make([]byte, 8*leastTask)
	in.beginRead(make([]byte, len(payload)))
	out.beginWrite(payload)
	finish(t, out.advanceWrite)
	finish(t, in.advanceRead)
	before := out.helpers()
	require.Eventually(t, func() bool { // once they have gone to sleep
		was := before
		time.Sleep(20 * time.Millisecond)
		before = out.helpers()
		return before == was
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, out.close())
	require.NoError(t, in.close())
}

func BenchmarkPayload(b *testing.B) {
	for _, shape := range [][2]int{{0, 0}, {1, 1}, {2, 1}, {2, 4}} {
		b.Run(fmt.Sprintf("threads=%d/sockets=%d/bytes=1MiB", shape[0], shape[1]), func(b *testing.B) {
			out, in := bundles(b, shape[0], shape[1], nil)
			sent, got := make([]byte, 1<<20), make([]byte, 1<<20)
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				in.beginRead(got)
				out.beginWrite(sent)
				for written, read := false, false; !written || !read; runtime.Gosched() {
					if !written {
						written, _ = out.advanceWrite()
					}
					if !read {
						read, _ = in.advanceRead()
					}
				}
			}
			b.StopTimer()
			require.NoError(b, out.close())
			require.NoError(b, in.close())
		})
	}
}
