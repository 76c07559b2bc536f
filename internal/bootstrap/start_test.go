package bootstrap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/handshake"
)

// joinAll runs Join on all ranks and returns their errors; those that succeed
// leave again.
func joinAll(configs []Config) []error {
	errs := make([]error, len(configs))
	var wg sync.WaitGroup
	for i, cfg := range configs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c, err := Join(context.Background(), cfg)
			if err == nil {
				err = c.Close(context.Background())
			}
			errs[i] = err
		}()
	}
	wg.Wait()
	return errs
}

func configs(id ID, ranks []int, size int) []Config {
	out := make([]Config, len(ranks))
	for i, r := range ranks {
		out[i] = Config{ID: id, Rank: r, Size: size, Timeout: patient}
	}
	return out
}

func TestMissingRanksAreNamedToEveryone(t *testing.T) {
	for _, tc := range []struct {
		name         string
		root, member time.Duration // whose deadline is first
	}{
		{"the root's deadline", 200 * time.Millisecond, patient},
		{"a member's deadline", patient, 200 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := startRoot(t, ListenConfig{Network: NetworkLocal, Timeout: tc.root})
			cs := configs(root.ID(), []int{0, 1, 4, 6}, 7)
			for i := range cs {
				cs[i].Timeout = tc.member
			}
			for i, err := range joinAll(cs) {
				require.ErrorIs(t, err, ErrMissing, "rank %d", cs[i].Rank)
				require.ErrorContains(t, err, "ranks 2-3, 5", "rank %d", cs[i].Rank)
				var e *Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, []int{2, 3, 5}, e.Missing)
			}
		})
	}
}

func TestRankClaimedTwiceIsNamedToEveryone(t *testing.T) {
	root := startRoot(t, ListenConfig{Network: NetworkLocal})
	for i, err := range joinAll(configs(root.ID(), []int{0, 1, 2, 1}, 4)) {
		require.ErrorIs(t, err, ErrClaimed, "process %d", i)
		require.ErrorContains(t, err, "rank 1")
	}
	// And to whoever comes later.
	_, err := Join(context.Background(), Config{ID: root.ID(), Rank: 3, Size: 4})
	require.ErrorIs(t, err, ErrClaimed)
}

func TestSizesThatDifferAreNamedToEveryone(t *testing.T) {
	root := startRoot(t, ListenConfig{Network: NetworkLocal})
	cs := configs(root.ID(), []int{0, 1, 2}, 4)
	cs = append(cs, Config{ID: root.ID(), Rank: 5, Size: 6, Timeout: patient})
	for i, err := range joinAll(cs) {
		require.ErrorIs(t, err, ErrSize, "process %d", i)
		require.ErrorContains(t, err, "size 4")
		require.ErrorContains(t, err, "size 6")
	}
}

func TestALateClaimantIsToldThatTheJobHasStarted(t *testing.T) {
	j := startJob(t, 3, NetworkLocal)
	require.Eventually(t, func() bool {
		j.root.mu.Lock()
		defer j.root.mu.Unlock()
		return j.root.joined
	}, patient, time.Millisecond)
	_, err := Join(context.Background(), Config{ID: j.root.ID(), Rank: 1, Size: 3})
	require.ErrorIs(t, err, ErrClaimed)
	for r := range 3 {
		require.NoError(t, j.w[r].untilEnded(nil, nil))
	}
}

func TestTheSameProcessesJoinAgain(t *testing.T) {
	for _, network := range []string{NetworkLocal, NetworkTCP} {
		root := startRoot(t, ListenConfig{Network: network, Again: true})
		const n, rounds = 5, 8
		require.NoError(t, eachRank(n, func(r int) error {
			for round := range rounds {
				c, err := Join(context.Background(), Config{ID: root.ID(), Rank: r, Size: n, Description: fmt.Appendf(nil, "%d", round), Timeout: patient})
				if err != nil {
					return fmt.Errorf("round %d: %w", round, err)
				}
				defer c.Close(context.Background()) // jobs live side by side
				for other, text := range c.Descriptions() {
					if string(text) != fmt.Sprint(round) {
						return fmt.Errorf("rank %d is in round %s, not %d", other, text, round)
					}
				}
			}
			return nil
		}))
	}
}

func TestOneThatGivesUpIsNamedToEveryone(t *testing.T) {
	root := startRoot(t, ListenConfig{Network: NetworkLocal})
	ctx, cancel := context.WithCancel(context.Background())
	given := make(chan error)
	go func() {
		_, err := Join(ctx, Config{ID: root.ID(), Rank: 2, Size: 5})
		given <- err
	}()
	others := make(chan []error)
	go func() { others <- joinAll(configs(root.ID(), []int{0, 1, 3}, 5)) }()
	require.Eventually(t, func() bool {
		root.mu.Lock()
		defer root.mu.Unlock()
		return len(root.waiting) == 4
	}, patient, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-given, context.Canceled)
	for _, err := range <-others {
		require.ErrorIs(t, err, ErrGaveUp)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 2, e.Reporter)
		require.ErrorContains(t, err, "context canceled")
	}
}

func TestARootThatGoesAwayIsNamed(t *testing.T) {
	root := startRoot(t, ListenConfig{Network: NetworkLocal, Owner: 3})
	others := make(chan []error)
	go func() { others <- joinAll(configs(root.ID(), []int{0, 1, 2}, 5)) }()
	require.Eventually(t, func() bool {
		root.mu.Lock()
		defer root.mu.Unlock()
		return len(root.waiting) == 3
	}, patient, time.Millisecond)
	root.Close()
	for _, err := range <-others {
		require.ErrorIs(t, err, ErrRoot)
		require.ErrorContains(t, err, "rank 3")
	}
	// Nobody listens there any more.
	_, err := Join(context.Background(), Config{ID: root.ID(), Rank: 3, Size: 5, Timeout: 50 * time.Millisecond})
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorContains(t, err, string(PhaseRoot))
	require.ErrorContains(t, err, root.ID().Addrs()[0])
}

// A rank that checks in and dies is named to the others at once, although one
// more is missing and nobody is linked to it.
func TestADeathWhileOthersJoinIsNamed(t *testing.T) {
	root := startRoot(t, ListenConfig{Network: NetworkLocal})
	others := make(chan []error)
	go func() { others <- joinAll(configs(root.ID(), []int{0, 1, 3}, 6)) }()
	cfg := Config{ID: root.ID(), Rank: 5, Size: 6, Timeout: patient}
	require.NoError(t, cfg.check())
	dying := fakeMember(t, cfg, 1)
	require.Eventually(t, func() bool {
		root.mu.Lock()
		defer root.mu.Unlock()
		return len(root.waiting) == 4
	}, patient, time.Millisecond)
	dying.Close()
	for _, err := range <-others {
		require.ErrorIs(t, err, ErrLost)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 5, e.Rank)
	}
}

// fakeMember checks in and does nothing else; nobody listens at its address.
func fakeMember(t *testing.T, cfg Config, host uint64) net.Conn {
	var addr string
	for _, a := range cfg.ID.addrs {
		if addr = a; a == localAddr {
			addr = rootSocket(cfg.ID.job)
			break
		}
	}
	h := hello{role: roleCheckIn, from: uint32(cfg.Rank), to: toRoot, size: uint32(cfg.Size)}
	conn, _, err := connect(context.Background(), addr, "", cfg.ID.terms(nil), h, dialTime, 0)
	require.NoError(t, err)
	m := member{incarnation: rand.Uint64(), host: host, name: "fake", addrs: []string{"127.0.0.1:1"}}
	require.NoError(t, writeRecord(conn, recordCheckIn, m.append(nil)))
	kind, _, err := readRecord(conn, 4)
	require.NoError(t, err)
	require.Equal(t, recordNoted, kind)
	return conn
}

// A rank whose listener is gone, or means nothing on its neighbour's host.
func TestANeighbourThatCannotBeReachedIsNamed(t *testing.T) {
	here, _ := hostNumber()
	for _, tc := range []struct {
		name string
		host uint64
		is   error
	}{
		{"nobody listens", here, ErrLost},
		{"loopback of another host", here + 1, ErrGaveUp},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := startRoot(t, ListenConfig{Network: NetworkTCP})
			cfg := Config{ID: root.ID(), Rank: 2, Size: 4}
			defer fakeMember(t, cfg, tc.host).Close() // lives, as far as the root can see
			for i, err := range joinAll(configs(root.ID(), []int{0, 1, 3}, 4)) {
				require.ErrorIs(t, err, tc.is, "%d", i)
				var e *Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, 2, e.Rank)
				require.ErrorContains(t, err, "127.0.0.1:1")
			}
		})
	}
}

func TestConfigMistakesAreErrorsBeforeAnythingIsSent(t *testing.T) {
	id := newID([]string{"127.0.0.1:1"})
	for name, cfg := range map[string]Config{
		"no size":          {ID: id},
		"rank too high":    {ID: id, Rank: 2, Size: 2},
		"negative rank":    {ID: id, Rank: -1, Size: 2},
		"no id":            {Rank: 0, Size: 2},
		"description":      {ID: id, Size: 2, Description: make([]byte, MaxDescription+1)},
		"family":           {ID: id, Size: 2, Family: "AF_UNIX"},
		"interfaces":       {ID: id, Size: 2, Interfaces: "eth,,lo"},
		"ports":            {ID: id, Size: 2, Ports: Ports{First: 10, Last: 5}},
		"too many to hold": {ID: id, Size: maxSize + 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Join(context.Background(), cfg)
			require.ErrorIs(t, err, ErrConfig)
		})
	}
	for name, cfg := range map[string]ListenConfig{
		"network":    {Network: "udp"},
		"family":     {Family: "inet"},
		"interfaces": {Interfaces: "^"},
		"ports":      {Ports: Ports{First: -1}},
		"nothing":    {Network: NetworkTCP, Interfaces: "=no-such-interface"},
	} {
		t.Run("listen "+name, func(t *testing.T) {
			_, err := Listen(cfg)
			require.ErrorIs(t, err, ErrConfig)
		})
	}
}

func TestAnotherVersionIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	id := newID([]string{l.Addr().String()})
	later := id.terms(nil)
	later.Version++
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			later.Receive(conn)
			conn.Close()
		}
	}()
	_, err = Join(context.Background(), Config{ID: id, Size: 2})
	require.ErrorIs(t, err, ErrVersion)
	require.ErrorContains(t, err, fmt.Sprintf("version %d", protocolVersion+1))
}

// A root of another job at the same address is not joined, and says so.
func TestAnotherJobIsNotJoined(t *testing.T) {
	root := startRoot(t, ListenConfig{Network: NetworkTCP})
	other := newID(root.ID().addrs)
	_, err := Join(context.Background(), Config{ID: other, Size: 2, Timeout: 100 * time.Millisecond})
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorContains(t, err, "another job")
	// The right job with a wrong secret.
	other = root.ID()
	other.secret[0] ^= 1
	_, err = Join(context.Background(), Config{ID: other, Size: 2, Timeout: 100 * time.Millisecond})
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorContains(t, err, "secret")
	root.mu.Lock()
	defer root.mu.Unlock()
	require.Zero(t, root.size, "nothing has changed at the root")
}

// strangers connect to addr in every wrong way until stop is closed.
func strangers(addr string, id ID, stop chan struct{}) *sync.WaitGroup {
	network := "tcp"
	if addr[0] == '@' {
		network = "unix"
	}
	stale := newID(id.addrs)
	stale.job = id.job
	h := hello{role: roleCheckIn, from: 1, to: toRoot, size: 4}
	terms := id.terms(nil)
	raw := terms.Hello(h.encode(), new([handshake.NonceBytes]byte))
	old := slices.Clone(raw)
	binary.BigEndian.PutUint16(old[len(magic):], protocolVersion+1)
	var wg sync.WaitGroup
	for _, f := range []func(net.Conn){
		func(c net.Conn) { fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: here\r\n\r\n"); io.Copy(io.Discard, c) },
		func(c net.Conn) {
			b := make([]byte, 4096)
			for i := range b {
				b[i] = byte(rand.Uint32())
			}
			c.Write(b)
			io.Copy(io.Discard, c)
		},
		func(c net.Conn) { <-stop },                                                // says nothing
		func(c net.Conn) {},                                                        // hangs up
		func(c net.Conn) { io.WriteString(c, magic); <-stop },                      // half a hello
		func(c net.Conn) { c.Write(old); io.Copy(io.Discard, c) },                  // another version
		func(c net.Conn) { greet(c, stale.terms(nil), h); io.Copy(io.Discard, c) }, // no secret
		func(c net.Conn) { c.Write(raw); <-stop },                                  // no proof
		func(c net.Conn) { other := newID(nil); greet(c, other.terms(nil), h) },    // another job
		func(c net.Conn) { h := h; h.role = 77; greet(c, terms, h) },               // no role
		func(c net.Conn) { h := h; h.to = 3; greet(c, terms, h) },                  // another process
		func(c net.Conn) { greet(c, terms, h); c.Write(bytes.Repeat(old, 10000)) }, // a member gone mad
		func(c net.Conn) { // slow loris
			for _, b := range raw {
				c.Write([]byte{b})
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		},
	} {
		for range 3 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for {
					if c, err := net.Dial(network, addr); err == nil {
						over := make(chan struct{})
						go func() {
							select {
							case <-stop:
							case <-over:
							}
							c.Close()
						}()
						f(c)
						close(over)
					}
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
					}
				}
			}()
		}
	}
	return &wg
}

func TestStrangersChangeNothing(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			const n = 6
			root := startRoot(t, ListenConfig{Network: network})
			addr := root.ID().addrs[0]
			if addr == localAddr {
				addr = rootSocket(root.ID().job)
			}
			stop := make(chan struct{})
			wg := strangers(addr, root.ID(), stop)
			var extra sync.WaitGroup
			defer func() {
				close(stop)
				wg.Wait()
				extra.Wait()
			}()
			c := make([]*Control, n)
			var up atomic.Int32
			require.NoError(t, eachRank(n, func(r int) (err error) {
				if r == 3 { // the last comes when the first are beset by strangers too
					for up.Load() == 0 {
						root.mu.Lock()
						for _, w := range root.waiting {
							wg := strangers(w.m.addrs[0], root.ID(), stop)
							extra.Add(1)
							go func() {
								wg.Wait()
								extra.Done()
							}()
							up.Add(1)
						}
						root.mu.Unlock()
						time.Sleep(time.Millisecond)
					}
				}
				c[r], err = Join(context.Background(), Config{ID: root.ID(), Rank: r, Size: n, Timeout: patient})
				return err
			}))
			require.NoError(t, eachRank(n, func(r int) error {
				_, err := c[r].AllGather(context.Background(), []byte{1})
				return errors.Join(err, c[r].Close(context.Background()))
			}))
		})
	}
}

// Connections that say nothing are dropped after their own deadline, and before
// it when there are too many of them.
func TestSilentStrangersAreDropped(t *testing.T) {
	t.Parallel() // it mostly waits
	root := startRoot(t, ListenConfig{Network: NetworkTCP})
	addr := root.ID().addrs[0]
	first, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer first.Close()
	dropped := make(chan error, 1)
	go func() {
		_, err := first.Read(make([]byte, 1))
		dropped <- err
	}()
	// By the crowd that comes after it...
	for range handshake.MaxStrangers {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
	}
	require.Error(t, <-dropped)
	strangers, _ := root.gate.Crowd()
	require.LessOrEqual(t, strangers, handshake.MaxStrangers)
	// ...or by its deadline.
	require.Eventually(t, func() bool {
		strangers, turned := root.gate.Crowd()
		return strangers == 0 && turned == handshake.MaxStrangers+1
	}, patient, 10*time.Millisecond)
	require.Contains(t, root.gate.CrowdText(), fmt.Sprint(handshake.MaxStrangers+1, " connections turned away"))
}

// NCCL issue 1936: starting again on a fixed port hangs.
func TestOnePortTwoHundredTimes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	for i := range 200 {
		var root *Root
		if i%2 == 0 {
			root, err = Listen(ListenConfig{Network: NetworkTCP, Ports: Ports{First: port}})
		} else {
			var id ID
			id, err = MakeID(fmt.Appendf(nil, "run %d", i), fmt.Sprintf("localhost:%d", port))
			require.NoError(t, err)
			root, err = Listen(ListenConfig{ID: id})
		}
		require.NoError(t, err, "start %d", i)
		for _, err := range joinAll(configs(root.ID(), []int{0, 1}, 2)) {
			require.NoError(t, err, "start %d", i)
		}
		root.Close()
	}
}

// PyTorch issue 91940: jobs that start at the same time take one another's port.
func TestFiftyJobsAtOnce(t *testing.T) {
	require.NoError(t, eachRank(50, func(i int) error {
		root, err := Listen(ListenConfig{Network: networks[i%2]})
		if err != nil {
			return err
		}
		defer root.Close()
		return errors.Join(joinAll(configs(root.ID(), []int{0, 1}, 2))...)
	}))
}

func TestATakenPortIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	_, err = Listen(ListenConfig{Network: NetworkTCP, Ports: Ports{First: port}})
	require.ErrorIs(t, err, ErrPort)
	require.ErrorContains(t, err, fmt.Sprintf("port %d", port))
	require.ErrorContains(t, err, "choose other ports")
	// In a range the next one is taken.
	root, err := Listen(ListenConfig{Network: NetworkTCP, Ports: Ports{First: port, Last: min(port+20, 65535)}})
	require.NoError(t, err)
	defer root.Close()
	require.NotContains(t, strings.Join(root.ID().Addrs(), " "), fmt.Sprintf(":%d", port))
}

func TestProcessesOnlyReachableOnTheirOwnHost(t *testing.T) {
	c := &Control{self: member{host: 1, name: "here"}}
	_, err := c.reachable(3, &member{host: 2, name: "there", addrs: []string{"@socket", "127.0.0.1:5"}})
	require.ErrorContains(t, err, "rank 3")
	require.ErrorContains(t, err, "127.0.0.1:5")
	got, err := c.reachable(3, &member{host: 2, addrs: []string{"@socket", "10.0.0.1:5"}})
	require.NoError(t, err)
	require.Equal(t, []string{"10.0.0.1:5"}, got)
	got, err = c.reachable(3, &member{host: 1, addrs: []string{"@socket", "[::1]:5"}})
	require.NoError(t, err)
	require.Equal(t, []string{"@socket", "[::1]:5"}, got)
}
