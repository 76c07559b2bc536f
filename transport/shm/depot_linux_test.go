package shm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
	"github.com/gollective/gollective/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// depot is one that is closed with the test.
func depot(t testing.TB, secret string) *Depot {
	t.Helper()
	d, err := Open([]byte(secret))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// mappings are the segments that this process maps.
func mappings(t testing.TB) (lines []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "memfd:gollective") {
			lines = append(lines, line)
		}
	}
	return lines
}

// openFiles lists what is open, but for the runtime's own.
func openFiles(t testing.TB) (files []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.Contains(to, "eventpoll") && !strings.Contains(to, "eventfd") {
			files = append(files, e.Name()+" "+to)
		}
	}
	return files
}

// eventually waits for what another goroutine is about to do.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, time.Millisecond)
}

// neighbours are the transports of two processes. Each end of a link asks the
// one that its rank lives in: even ranks in the first.
type neighbours struct {
	sides [2]*Transport
}

func (n *neighbours) Name() string        { return "shm" }
func (n *neighbours) OrderedStores() bool { return true }
func (n *neighbours) Connect(l transport.Link, end transport.End) (*transport.Conn, error) {
	rank := l.From
	if end == transport.Consumer {
		rank = l.To
	}
	return n.sides[rank%2].Connect(l, end)
}

func open(t *testing.T) *neighbours {
	n := new(neighbours)
	depots := [2]*Depot{depot(t, "of the first"), depot(t, "of the second")}
	beds := make([]spin.Bed, 4)
	for i, d := range depots {
		n.sides[i] = NewTransport(d, "all", i, func(rank int) int {
			if rank < 0 {
				return -1
			}
			return rank % 2
		}, func(number int) Neighbour {
			return Neighbour{Address: depots[number].Address(), Secret: depots[number].secret, Beds: beds}
		})
		d.Provide(n.sides[i].Provide)
	}
	return n
}

func TestConformance(t *testing.T) {
	transporttest.Run(t, func() transport.Transport { return open(t) })
}

func TestNothingIsLeftWhenADepotHasClosed(t *testing.T) {
	files := openFiles(t)
	current := goleak.IgnoreCurrent()
	a, err := Open([]byte("a"))
	require.NoError(t, err)
	b, err := Open([]byte("b"))
	require.NoError(t, err)
	for i := range 5 {
		memory, err := a.Create(fmt.Sprint("x", i), 100_000, nil)
		require.NoError(t, err)
		memory[99_999] = byte(i + 1)
		theirs, err := b.Fetch(t.Context(), a.Address(), []byte("a"), fmt.Sprint("x", i))
		require.NoError(t, err)
		require.Equal(t, memory, theirs)
		again, err := b.Fetch(t.Context(), a.Address(), []byte("a"), fmt.Sprint("x", i))
		require.NoError(t, err)
		require.Same(t, &theirs[0], &again[0])
	}
	require.Len(t, mappings(t), 10)
	a.Drop(func(name string) bool { return name == "x0" })
	b.Drop(func(name string) bool { return name == "x0" || name == "x1" })
	require.Len(t, mappings(t), 7)
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.Empty(t, mappings(t))
	require.Equal(t, files, openFiles(t))
	require.NoError(t, goleak.Find(current))
	_, err = a.Create("y", 100, nil)
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = b.Fetch(t.Context(), a.Address(), []byte("a"), "x0")
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestFetchSaysWhatIsWrong(t *testing.T) {
	d, other := depot(t, "right"), depot(t, "other")
	_, err := d.Create("x", 4096, nil)
	require.NoError(t, err)
	_, err = d.Create("x", 8192, nil)
	require.ErrorContains(t, err, "4096")
	d.Provide(func(name string) (int, func([]byte), error) {
		switch name {
		case "made":
			return 128, func(m []byte) { copy(m, "by the provider") }, nil
		case "refused":
			return 0, nil, errors.New("not for you")
		case "huge":
			return 1 << 45, nil, nil
		}
		return 0, nil, ErrUnknown
	})
	fetch := func(name string) error {
		_, err := other.Fetch(t.Context(), d.Address(), []byte("right"), name)
		return err
	}
	require.ErrorIs(t, fetch("unknown"), ErrUnknown)
	require.ErrorContains(t, fetch("refused"), "not for you")
	require.ErrorContains(t, fetch(strings.Repeat("x", mostName+1)), "257 bytes")
	memory, err := other.Fetch(t.Context(), d.Address(), []byte("right"), "made")
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(memory, []byte("by the provider")))

	err = fetch("huge")
	require.ErrorIs(t, err, ErrSpace)
	var space *SpaceError
	require.ErrorAs(t, err, &space)
	require.EqualValues(t, 1<<45, space.Need)
	require.Less(t, space.Free, int64(1<<45))

	_, err = other.Fetch(t.Context(), d.Address(), []byte("wrong"), "x")
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrUnknown)
	_, err = other.Fetch(t.Context(), "@gollective-nobody", []byte("right"), "x")
	require.Error(t, err)
}

func TestTooLittleMemoryIsToldBeforeItIsUsed(t *testing.T) {
	d := depot(t, "s")
	free := freeMemory()
	require.Positive(t, free)
	_, err := d.Create("x", int(free)+(1<<40), nil)
	var space *SpaceError
	require.ErrorAs(t, err, &space)
	require.ErrorIs(t, err, ErrSpace)
	require.Equal(t, free+(1<<40), space.Need)
	require.Positive(t, space.Free)
	require.Contains(t, err.Error(), fmt.Sprintf("%d bytes needed, %d free", space.Need, space.Free))
	require.Empty(t, mappings(t))
	// The name is not taken by the attempt.
	_, err = d.Create("x", 4096, nil)
	require.NoError(t, err)
}

func TestAFetchEndsWithItsContextAndWithTheDepot(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@gollective-test-silent-" + fmt.Sprint(os.Getpid()), Net: "unix"})
	require.NoError(t, err)
	defer l.Close() // the system accepts: a stopped process looks like this
	d, err := Open([]byte("s"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = d.Fetch(ctx, l.Addr().String(), nil, "x")
	require.Error(t, err)
	require.Error(t, ctx.Err())

	done := make(chan error)
	go func() {
		_, err := d.Fetch(context.Background(), l.Addr().String(), nil, "x")
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, d.Close())
	require.Error(t, <-done)
}

// talk opens a connection to d as a stranger and reads the nonce.
func talk(t testing.TB, d *Depot) (*net.UnixConn, []byte) {
	t.Helper()
	c, err := net.Dial("unix", d.Address())
	require.NoError(t, err)
	nonce := make([]byte, nonceBytes)
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.ReadFull(c, nonce)
	require.NoError(t, err)
	return c.(*net.UnixConn), nonce
}

// hangsUp requires that the depot has nothing to say.
func hangsUp(t *testing.T, c net.Conn) {
	t.Helper()
	answer, err := io.ReadAll(c)
	if err != nil {
		require.ErrorIs(t, err, unix.ECONNRESET) // it left what was sent unread
	}
	require.Empty(t, answer)
	require.NoError(t, c.Close())
}

func request(secret string, nonce []byte, name string) []byte {
	r := binary.LittleEndian.AppendUint16(nil, uint16(len(name)))
	r = append(r, name...)
	return append(r, proof([]byte(secret), nonce, []byte(name))...)
}

func TestStrangersAreGivenNothing(t *testing.T) {
	d, peer := depot(t, "secret"), depot(t, "peer's")
	_, err := d.Create("x", 4096, nil)
	require.NoError(t, err)
	files := openFiles(t)

	t.Run("without the secret", func(t *testing.T) {
		c, nonce := talk(t, d)
		_, err := c.Write(request("guessed", nonce, "x"))
		require.NoError(t, err)
		hangsUp(t, c)
	})
	t.Run("with a proof for another connection", func(t *testing.T) {
		c1, nonce := talk(t, d)
		c2, _ := talk(t, d)
		_, err := c2.Write(request("secret", nonce, "x"))
		require.NoError(t, err)
		hangsUp(t, c2)
		c1.Close()
	})
	t.Run("with a proof for another name", func(t *testing.T) {
		c, nonce := talk(t, d)
		r := request("secret", nonce, "y")
		r[2] = 'x'
		_, err := c.Write(r)
		require.NoError(t, err)
		hangsUp(t, c)
	})
	t.Run("with too long a name", func(t *testing.T) {
		c, _ := talk(t, d)
		_, err := c.Write([]byte{0xff, 0xff})
		require.NoError(t, err)
		hangsUp(t, c)
	})
	t.Run("with noise", func(t *testing.T) {
		c, _ := talk(t, d)
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"+strings.Repeat("noise ", 1000))
		if err == nil {
			hangsUp(t, c)
		}
	})
	eventually(t, func() bool { return len(openFiles(t)) == len(files) })
	_, err = peer.Fetch(t.Context(), d.Address(), []byte("secret"), "x")
	require.NoError(t, err)
}

// Whoever sends descriptors along must not make them this process's.
func TestDescriptorsSentToADepotAreClosed(t *testing.T) {
	d := depot(t, "secret")
	_, err := d.Create("x", 4096, nil)
	require.NoError(t, err)
	null, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer null.Close()
	files := len(openFiles(t))
	many := make([]int, 200)
	for i := range many {
		many[i] = int(null.Fd())
	}
	for range 20 {
		c, nonce := talk(t, d)
		_, _, err := c.WriteMsgUnix(request("secret", nonce, "x"), unix.UnixRights(many...), nil)
		require.NoError(t, err)
		s, err := readReply(c) // a member may do so, too: it is served
		require.NoError(t, err)
		s.close()
		c.Close()
		c, _ = talk(t, d)
		_, _, err = c.WriteMsgUnix([]byte{1}, unix.UnixRights(many...), nil)
		require.NoError(t, err)
		c.Close()
	}
	eventually(t, func() bool { return len(openFiles(t)) == files })
}

// More connections than a depot looks after at a time, all of which say nothing or
// dawdle, hold up nobody.
func TestACrowdOfSilentStrangersHoldsUpNobody(t *testing.T) {
	d, peer := depot(t, "secret"), depot(t, "peer's")
	var crowd []net.Conn
	defer func() {
		for _, c := range crowd {
			c.Close()
		}
	}()
	for i := range mostExchanges + 100 {
		c, err := net.Dial("unix", d.Address())
		require.NoError(t, err)
		crowd = append(crowd, c)
		if i%2 == 0 {
			_, _ = c.Write([]byte{1})
		}
	}
	for i := range 20 {
		_, err := d.Create(fmt.Sprint(i), 4096, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), exchangeTimeout/2)
		_, err = peer.Fetch(ctx, d.Address(), []byte("secret"), fmt.Sprint(i))
		cancel()
		require.NoError(t, err)
	}
}

// impostor answers one request in its own way.
func impostor(t *testing.T, answer func(c *net.UnixConn)) (address string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@gollective-test-%d-%d", os.Getpid(), time.Now().UnixNano()), Net: "unix"})
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := c.Write(make([]byte, nonceBytes)); err != nil {
			return
		}
		r := make([]byte, 2+1+32)
		if _, err := io.ReadFull(c, r); err != nil {
			return
		}
		answer(c)
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

func given(size uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{statusGiven}, size)
}

// memfd is memory of the given size with the given seals.
func memfd(t *testing.T, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, size))
	if seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
	}
	return fd
}

// A segment whose size is a lie, or can become one, would be a SIGBUS later.
func TestAnAnswerThatCouldHurtIsRefused(t *testing.T) {
	sealed := func(t *testing.T, size int64) int { return memfd(t, size, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW) }
	send := func(reply []byte, fds ...int) func(*net.UnixConn) {
		return func(c *net.UnixConn) { _, _, _ = c.WriteMsgUnix(reply, unix.UnixRights(fds...), nil) }
	}
	for _, tc := range []struct {
		name   string
		answer func(t *testing.T) func(*net.UnixConn)
		want   string
	}{
		{"smaller than said", func(t *testing.T) func(*net.UnixConn) { return send(given(8192), sealed(t, 4096)) }, "4096 bytes, expected 8192"},
		{"larger than said", func(t *testing.T) func(*net.UnixConn) { return send(given(4096), sealed(t, 8192)) }, "8192 bytes, expected 4096"},
		{"not sealed", func(t *testing.T) func(*net.UnixConn) { return send(given(4096), memfd(t, 4096, 0)) }, "can shrink"},
		{"sealed against growing only", func(t *testing.T) func(*net.UnixConn) { return send(given(4096), memfd(t, 4096, unix.F_SEAL_GROW)) }, "can shrink"},
		{"of no size", func(t *testing.T) func(*net.UnixConn) { return send(given(0), sealed(t, 0)) }, "not an answer"},
		{"beyond all sizes", func(t *testing.T) func(*net.UnixConn) { return send(given(1<<63), sealed(t, 4096)) }, "not an answer"},
		{"no memory at all", func(t *testing.T) func(*net.UnixConn) {
			null, err := os.Open("/dev/null")
			require.NoError(t, err)
			t.Cleanup(func() { null.Close() })
			return send(given(4096), int(null.Fd()))
		}, "0 bytes, expected 4096"},
		{"without descriptor", func(*testing.T) func(*net.UnixConn) { return send(given(4096)) }, "not an answer"},
		{"two descriptors", func(t *testing.T) func(*net.UnixConn) {
			return send(given(4096), sealed(t, 4096), sealed(t, 4096))
		}, "not an answer"},
		{"many descriptors", func(t *testing.T) func(*net.UnixConn) {
			fd := sealed(t, 4096)
			fds := make([]int, 200)
			for i := range fds {
				fds[i] = fd
			}
			return send(given(4096), fds...)
		}, "not an answer"},
		{"a descriptor with a refusal", func(t *testing.T) func(*net.UnixConn) { return send(refusal(ErrUnknown), sealed(t, 4096)) }, "unknown segment"},
		{"another status", func(*testing.T) func(*net.UnixConn) { return send([]byte{77, 0, 0, 0, 0, 0, 0, 0, 0}) }, "not an answer"},
		{"a text without end", func(*testing.T) func(*net.UnixConn) {
			return send(binary.LittleEndian.AppendUint64([]byte{statusRefused}, 1<<40))
		}, "not an answer"},
		{"a text that breaks off", func(*testing.T) func(*net.UnixConn) {
			return send(append(binary.LittleEndian.AppendUint64([]byte{statusRefused}, 100), "short"...))
		}, "EOF"},
		{"half an answer", func(*testing.T) func(*net.UnixConn) { return send([]byte{statusGiven, 1}) }, "EOF"},
		{"nothing", func(*testing.T) func(*net.UnixConn) { return func(*net.UnixConn) {} }, "EOF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := depot(t, "s")
			answer := tc.answer(t)
			address := impostor(t, answer)
			files := openFiles(t)
			_, err := d.Fetch(t.Context(), address, []byte("s"), "x")
			require.ErrorContains(t, err, tc.want)
			eventually(t, func() bool { return len(openFiles(t)) <= len(files) })
			assert.Empty(t, mappings(t))
		})
	}
}

// A descriptor whose segment is dropped while it is sent must not turn into another
// file's.
func TestASegmentDroppedWhileItIsFetchedIsItselfOrUnknown(t *testing.T) {
	d := depot(t, "secret")
	stop := make(chan struct{})
	var all sync.WaitGroup
	for k := range 2 {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("segment %d of %d", i%4, k)
				_, err := d.Create(name, 4096, func(m []byte) { copy(m, name) })
				if !assert.NoError(t, err) {
					return
				}
				d.Drop(func(n string) bool { return n == name })
			}
		})
	}
	seen := 0
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		for k := range 2 {
			for i := range 4 {
				name := fmt.Sprintf("segment %d of %d", i, k)
				s, err := fetch(t.Context(), d.Address(), []byte("secret"), name)
				if err != nil {
					require.ErrorIs(t, err, ErrUnknown)
					continue
				}
				seen++
				require.True(t, bytes.HasPrefix(s.memory, []byte(name)), "%q", s.memory[:20])
				s.close()
			}
		}
	}
	close(stop)
	all.Wait()
	t.Logf("%d fetched", seen)
}

func TestATransportThatHasClosedConnectsNoMore(t *testing.T) {
	n := open(t)
	link := transport.Link{From: 0, To: 1, Slot: 4096}
	_, err := n.sides[1].Connect(link, transport.Producer)
	require.NoError(t, err)
	require.NotEmpty(t, mappings(t))
	n.sides[1].Close()
	n.sides[0].Close()
	require.Empty(t, mappings(t))
	_, err = n.sides[1].Connect(link, transport.Producer)
	require.ErrorIs(t, err, net.ErrClosed)
}

func FuzzRequest(f *testing.F) {
	secret, nonce := "secret", make([]byte, nonceBytes)
	f.Add(request(secret, nonce, "all/home"))
	f.Add(request(secret, nonce, ""))
	f.Add(request("guessed", nonce, "all/home"))
	f.Add([]byte{0xff, 0xff})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		name, err := readRequest(bytes.NewReader(data), []byte(secret), nonce)
		if err != nil {
			return
		}
		// Only what a member says is accepted.
		require.LessOrEqual(t, len(name), mostName)
		require.True(t, bytes.HasPrefix(data, request(secret, nonce, name)))
	})
}

func FuzzReply(f *testing.F) {
	f.Add(given(4096), true)
	f.Add(given(4097), true)
	f.Add(given(4096), false)
	f.Add(refusal(ErrUnknown), false)
	f.Add(refusal(errors.New("no")), true)
	f.Add(refusal(&SpaceError{Need: 1, Free: -1}), false)
	f.Fuzz(func(t *testing.T, data []byte, withMemory bool) {
		if len(data) == 0 || len(data) > 100_000 {
			return
		}
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		conn := func(fd int) *net.UnixConn {
			file := os.NewFile(uintptr(fd), "pair")
			defer file.Close()
			c, err := net.FileConn(file)
			require.NoError(t, err)
			return c.(*net.UnixConn)
		}
		theirs, ours := conn(pair[0]), conn(pair[1])
		defer ours.Close()
		var rights []byte
		if withMemory {
			s, err := newSegment(4096)
			require.NoError(t, err)
			defer s.close()
			rights = unix.UnixRights(s.fd)
		}
		go func() {
			_, _, _ = theirs.WriteMsgUnix(data, rights, nil)
			theirs.Close()
		}()
		s, err := readReply(ours)
		if err != nil {
			return
		}
		require.True(t, withMemory && bytes.HasPrefix(data, given(4096)))
		require.Len(t, s.memory, 4096)
		s.close()
	})
}

// What a peer may ask for is what both ends of a link would call it.
func FuzzNameOfALink(f *testing.F) {
	tr := NewTransport(nil, "all", 1, func(rank int) int {
		if rank < 0 || rank > 9 {
			return -1
		}
		return rank % 2
	}, nil)
	for _, l := range []transport.Link{{From: 0, To: 1, Slot: 128}, {From: 2, To: 3, Channel: 4, Use: 1, Lane: 2, Slot: 1 << 20}, {From: 0, To: 2, Slot: 128}, {From: 0, To: 1, Slot: 1}} {
		f.Add(tr.linkName(l))
	}
	f.Add("all/home")
	f.Add("all/link/0/1/0/0/0/128 ")
	f.Add("all/link/+0/1/0/0/0/128")
	f.Fuzz(func(t *testing.T, name string) {
		size, prepare, err := tr.Provide(name)
		if err != nil {
			return
		}
		require.Positive(t, size)
		require.LessOrEqual(t, size, transport.SharedBytes(mostSlot))
		require.NotNil(t, prepare)
		var l transport.Link
		_, err = fmt.Sscanf(strings.TrimPrefix(name, "all/link/"), "%d/%d/%d/%d/%d/%d", &l.From, &l.To, &l.Channel, &l.Use, &l.Lane, &l.Slot)
		require.NoError(t, err)
		require.Equal(t, name, tr.linkName(l))
		require.Equal(t, 1, l.To%2)
	})
}
