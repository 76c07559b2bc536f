package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gollective/gollective/internal/address"
	"github.com/gollective/gollective/internal/handshake"
	"github.com/gollective/gollective/transport"
)

const jobSecret = "the secret of the job"

// openPort is a port at loopback that is closed with the test.
func openPort(t testing.TB, change func(*PortConfig)) *Port {
	t.Helper()
	c := PortConfig{Secret: []byte(jobSecret), Loopback: true}
	if change != nil {
		change(&c)
	}
	p, err := Open(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// descriptorsOpen lists what is open, but for the runtime's own.
func descriptorsOpen(t testing.TB) (files []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && (strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "anon_inode")) {
			files = append(files, to)
		}
	}
	slices.Sort(files)
	return files
}

// leavesNothing checks, when the test and its cleanups are over, that as many
// descriptors are open as before.
func leavesNothing(t *testing.T) {
	openPort(t, nil).Close() // the network poller's own come with the first use
	before := descriptorsOpen(t)
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		assert.Eventually(t, func() bool { return len(descriptorsOpen(t)) <= len(before) }, 10*time.Second, 10*time.Millisecond)
		assert.Len(t, descriptorsOpen(t), len(before))
		goleak.VerifyNone(t, ignore)
	})
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// arrivals is a Serve that keeps what comes.
type arrivals chan delivery

type delivery struct {
	Greeting
	bundle *bundle
}

func serve(t testing.TB, p *Port, communicator string) arrivals {
	t.Helper()
	as := make(arrivals, 1024)
	require.NoError(t, p.Serve(communicator, func(g Greeting, b *bundle) { as <- delivery{g, b} }))
	return as
}

func (as arrivals) next(t testing.TB) delivery {
	t.Helper()
	select {
	case d := <-as:
		return d
	case <-time.After(20 * time.Second):
		require.FailNow(t, "nobody came")
		return delivery{}
	}
}

// sendAll and receiveAll move bytes over a stream that never waits.
func sendAll(s stream, parts ...[]byte) error {
	for deadline := time.Now().Add(time.Minute); ; {
		n, err := s.write(parts)
		if err != nil {
			return err
		}
		for n > 0 {
			k := min(n, len(parts[0]))
			parts[0], n = parts[0][k:], n-k
			if len(parts[0]) == 0 {
				parts = parts[1:]
			}
		}
		for len(parts) > 0 && len(parts[0]) == 0 {
			parts = parts[1:]
		}
		if len(parts) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return os.ErrDeadlineExceeded
		}
		time.Sleep(time.Microsecond)
	}
}

func receiveAll(s stream, into []byte) error {
	for deadline := time.Now().Add(time.Minute); len(into) > 0; {
		n, err := s.read([][]byte{into})
		if err != nil {
			return err
		}
		into = into[n:]
		if time.Now().After(deadline) {
			return os.ErrDeadlineExceeded
		}
		if n == 0 {
			time.Sleep(time.Microsecond)
		}
	}
	return nil
}

// ending is what read says at the end of a stream, after whatever comes before.
func ending(t testing.TB, s stream) error {
	t.Helper()
	into := [][]byte{make([]byte, 64<<10)}
	for deadline := time.Now().Add(20 * time.Second); ; {
		n, err := s.read(into)
		if err != nil {
			return err
		}
		require.True(t, time.Now().Before(deadline), "it does not end")
		if n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// ports is a single port.
func ports(text string) address.Ports {
	p, err := address.ParsePorts(text)
	if err != nil {
		panic(err)
	}
	return p
}

var someLink = transport.Link{From: 3, To: 5, Channel: 2, Use: transport.PointToPoint, Lane: 1, Slot: 4096}

func TestAConnectionCarriesBytesInOneDirection(t *testing.T) {
	leavesNothing(t)
	for _, family := range []string{"AF_INET", "AF_INET6"} {
		t.Run(family, func(t *testing.T) {
			a, b := openPort(t, func(c *PortConfig) { c.Family = family }), openPort(t, func(c *PortConfig) { c.Family = family })
			require.Len(t, b.Addresses(), 1)
			host, _, err := net.SplitHostPort(b.Addresses()[0])
			require.NoError(t, err)
			require.Equal(t, map[string]string{"AF_INET": "127.0.0.1", "AF_INET6": "::1"}[family], host)
			came := serve(t, b, "world")
			out, err := a.Dial(within(t, 10*time.Second), b.Addresses(), Greeting{"world", someLink})
			require.NoError(t, err)
			in := came.next(t)
			require.Equal(t, Greeting{"world", someLink}, in.Greeting)
			sent := []byte("some bytes, in order")
			require.NoError(t, sendAll(out.main, sent[:5], nil, sent[5:]))
			got := make([]byte, len(sent))
			require.NoError(t, receiveAll(in.bundle.main, got))
			require.Equal(t, sent, got)
			n, err := in.bundle.main.read([][]byte{got})
			require.NoError(t, err)
			require.Zero(t, n, "nothing to read is no error")
			require.NoError(t, out.close())
			require.Equal(t, io.EOF, ending(t, in.bundle.main))
			require.NoError(t, in.bundle.close())
		})
	}
}

func TestConnectionsWaitForTheirCommunicator(t *testing.T) {
	leavesNothing(t)
	a, b := openPort(t, nil), openPort(t, nil)
	var outs []*bundle
	for i := range 5 {
		link := someLink
		link.Channel = i
		out, err := a.Dial(within(t, 10*time.Second), b.Addresses(), Greeting{"later", link})
		require.NoError(t, err)
		require.NoError(t, sendAll(out.main, []byte{byte(i)}))
		outs = append(outs, out)
	}
	other := serve(t, b, "other")
	came := serve(t, b, "later")
	for range outs {
		d := came.next(t)
		got := make([]byte, 1)
		require.NoError(t, receiveAll(d.bundle.main, got))
		require.Equal(t, byte(d.Link.Channel), got[0])
		require.NoError(t, d.bundle.close())
	}
	require.Empty(t, other)
	require.ErrorIs(t, b.Serve("later", func(Greeting, *bundle) {}), ErrServed)
	b.Unserve("later")
	came = serve(t, b, "later")
	for _, out := range outs {
		require.NoError(t, out.close())
	}
	require.Empty(t, came)
}

func TestConnectionsThatNobodyWantsAreClosed(t *testing.T) {
	leavesNothing(t)
	a := openPort(t, nil)
	for name, timeout := range map[string]time.Duration{"after a while": 50 * time.Millisecond, "with the port": time.Minute} {
		t.Run(name, func(t *testing.T) {
			b := openPort(t, func(c *PortConfig) { c.JoinTimeout = timeout })
			out, err := a.Dial(within(t, 10*time.Second), b.Addresses(), Greeting{"nobody's", someLink})
			require.NoError(t, err)
			if timeout == time.Minute {
				require.NoError(t, b.Close())
			}
			require.Error(t, ending(t, out.main))
			require.NoError(t, out.close())
			b.mu.Lock()
			defer b.mu.Unlock()
			require.Zero(t, b.waiting)
			require.Empty(t, b.ready)
		})
	}
}

func TestManyConnectionsAtOnce(t *testing.T) {
	leavesNothing(t)
	a, b := openPort(t, nil), openPort(t, nil)
	came := serve(t, b, "world")
	const n = 200
	errs := make(chan error, n)
	outs := make([]*bundle, n)
	for i := range n {
		go func() {
			link := someLink
			link.Channel = i
			var err error
			if outs[i], err = a.Dial(within(t, time.Minute), b.Addresses(), Greeting{"world", link}); err == nil {
				err = sendAll(outs[i].main, fmt.Appendf(nil, "%4d", i))
			}
			errs <- err
		}()
	}
	for range n {
		require.NoError(t, <-errs)
	}
	seen := make(map[int]bool)
	for range n {
		d := came.next(t)
		got := make([]byte, 4)
		require.NoError(t, receiveAll(d.bundle.main, got))
		require.Equal(t, fmt.Sprintf("%4d", d.Link.Channel), string(got))
		seen[d.Link.Channel] = true
		require.NoError(t, d.bundle.close())
	}
	require.Len(t, seen, n)
	for _, out := range outs {
		require.NoError(t, out.close())
	}
}

func TestDialWaitsForTheListener(t *testing.T) {
	leavesNothing(t)
	probe := openPort(t, nil)
	at := probe.Addresses()
	_, port, err := net.SplitHostPort(at[0])
	require.NoError(t, err)
	require.NoError(t, probe.Close())
	a := openPort(t, nil)
	_, err = a.Dial(within(t, 100*time.Millisecond), at, Greeting{"world", someLink})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	go func() {
		time.Sleep(50 * time.Millisecond)
		b, err := Open(PortConfig{Secret: []byte(jobSecret), Loopback: true, Ports: ports(port)})
		if assert.NoError(t, err) {
			assert.NoError(t, b.Serve("world", func(_ Greeting, b *bundle) { assert.NoError(t, b.close()) }))
			t.Cleanup(func() { b.Close() })
		}
	}()
	out, err := a.Dial(within(t, 20*time.Second), at, Greeting{"world", someLink})
	require.NoError(t, err)
	require.Equal(t, io.EOF, ending(t, out.main))
	require.NoError(t, out.close())
}

func TestDialTakesTheAddressThatWorks(t *testing.T) {
	leavesNothing(t)
	a, b := openPort(t, nil), openPort(t, nil)
	came := serve(t, b, "world")
	out, err := a.Dial(within(t, 20*time.Second), append([]string{"127.0.0.1:1"}, b.Addresses()...), Greeting{"world", someLink})
	require.NoError(t, err)
	require.NoError(t, came.next(t).bundle.close())
	require.NoError(t, out.close())
	_, err = a.Dial(context.Background(), nil, Greeting{"world", someLink})
	require.Error(t, err)
	link := someLink
	link.From = -1
	_, err = a.Dial(context.Background(), b.Addresses(), Greeting{"world", link})
	require.Error(t, err)
}

func TestAnotherSecretIsAStranger(t *testing.T) {
	leavesNothing(t)
	a, b := openPort(t, func(c *PortConfig) { c.Secret = []byte("another") }), openPort(t, nil)
	came := serve(t, b, "world")
	_, err := a.Dial(within(t, time.Minute), b.Addresses(), Greeting{"world", someLink})
	require.ErrorIs(t, err, handshake.ErrStranger)
	require.Empty(t, came)
}

// Whoever does not belong to the job changes nothing, however much of it there is.
func TestStrangersAtThePort(t *testing.T) {
	leavesNothing(t)
	b := openPort(t, nil)
	came := serve(t, b, "world")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	noise := make([]byte, 4096)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	h := hello{communicator: identify("world"), link: someLink}
	terms, err := terms([]byte(jobSecret), nil)
	require.NoError(t, err)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	raw := terms.Hello(h.encode(), new([handshake.NonceBytes]byte))
	h.place = 9
	senseless := terms.Hello(h.encode(), new([handshake.NonceBytes]byte))
	for range 4 {
		for _, act := range []func(net.Conn){
			func(c net.Conn) { io.WriteString(c, "GET / HTTP/1.1\r\nHost: here\r\n\r\n"); io.Copy(io.Discard, c) },
			func(c net.Conn) { c.Write(noise); io.Copy(io.Discard, c) },
			func(c net.Conn) { <-stop },                                      // says nothing
			func(c net.Conn) {},                                              // hangs up
			func(c net.Conn) { c.Write(raw[:20]); <-stop },                   // half a hello
			func(c net.Conn) { c.Write(raw); <-stop },                        // a hello, but no proof
			func(c net.Conn) { c.Write(senseless); io.Copy(io.Discard, c) },  // no dialler's hello
			func(c net.Conn) { c.Write(raw); c.Write(noise); <-stop },        // a wrong proof, and more
			func(c net.Conn) { c.(*net.TCPConn).CloseWrite(); <-stop },       // half open
			func(c net.Conn) { c.(*net.TCPConn).SetLinger(0); c.Write(raw) }, // hangs up rudely
			func(c net.Conn) { // slow loris
				for _, b := range raw {
					c.Write([]byte{b})
					select {
					case <-stop:
						return
					case <-time.After(50 * time.Millisecond):
					}
				}
			},
		} {
			c, err := net.Dial("tcp", b.Addresses()[0])
			require.NoError(t, err)
			wg.Go(func() {
				act(c)
				c.Close()
			})
		}
	}
	a := openPort(t, nil)
	out, err := a.Dial(within(t, 20*time.Second), b.Addresses(), Greeting{"world", someLink})
	require.NoError(t, err, "members get through")
	d := came.next(t)
	require.Equal(t, someLink, d.Link)
	close(stop)
	wg.Wait()
	require.Empty(t, came)
	require.NoError(t, out.close())
	require.NoError(t, d.bundle.close())
}

// What a dialler has sent can't be sent again by somebody else.
func TestReplaysAreStrangers(t *testing.T) {
	leavesNothing(t)
	b := openPort(t, nil)
	came := serve(t, b, "world")
	var sent bytes.Buffer
	terms, err := terms([]byte(jobSecret), nil)
	require.NoError(t, err)
	h := hello{communicator: identify("world"), link: someLink}
	c, err := net.Dial("tcp", b.Addresses()[0])
	require.NoError(t, err)
	_, err = terms.Greet(struct {
		io.Reader
		io.Writer
	}{c, io.MultiWriter(c, &sent)}, h.encode())
	require.NoError(t, err)
	_, err = io.MultiWriter(c, &sent).Write([]byte{chosen})
	require.NoError(t, err)
	require.NoError(t, came.next(t).bundle.close())
	c.Close()
	c, err = net.Dial("tcp", b.Addresses()[0])
	require.NoError(t, err)
	c.Write(sent.Bytes())
	io.Copy(io.Discard, c)
	c.Close()
	require.Empty(t, came)
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	for name, c := range map[string]PortConfig{
		"no secret":         {},
		"threads":           {Secret: []byte("x"), Threads: 17, SocketsPerThread: 1},
		"sockets":           {Secret: []byte("x"), Threads: 16, SocketsPerThread: 5},
		"interfaces":        {Secret: []byte("x"), Interfaces: "^"},
		"family":            {Secret: []byte("x"), Family: "AF_UNIX"},
		"rate":              {Secret: []byte("x"), Rate: -1},
		"no such interface": {Secret: []byte("x"), Interfaces: "=nosuch"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(c)
			require.Error(t, err)
		})
	}
}

func TestAClosedPortConnectsNobody(t *testing.T) {
	leavesNothing(t)
	p := openPort(t, nil)
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Serve("world", nil), net.ErrClosed)
	_, err := p.Dial(context.Background(), p.Addresses(), Greeting{"world", someLink})
	require.ErrorIs(t, err, net.ErrClosed)
	require.False(t, errors.Is(err, context.Canceled))
}

func FuzzHello(f *testing.F) {
	h := hello{communicator: identify("world"), link: someLink, sockets: 4, threads: 2}
	f.Add(h.encode())
	f.Add([]byte("GET / HTTP/1.1"))
	f.Add(bytes.Repeat([]byte{0xff}, helloBytes))
	f.Fuzz(func(t *testing.T, body []byte) {
		h, ok := decodeHello(body)
		if !ok {
			return
		}
		require.Equal(t, body, h.encode())
		require.LessOrEqual(t, int(h.place), int(h.sockets))
		require.LessOrEqual(t, int(h.sockets), mostSockets)
		require.True(t, h.link.From >= 0 && h.link.To >= 0 && h.link.Channel >= 0 && h.link.Slot >= 0)
	})
}
