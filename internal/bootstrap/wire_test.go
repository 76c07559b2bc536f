package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIDText(t *testing.T) {
	full := newID([]string{localAddr, "10.1.2.3:65535", "[2001:db8:1111:2222:3333:4444:5555:6666]:65535", "[2001:db8:1111:2222:3333:4444:5555:7777]:65535", "[2001:db8:1111:2222:3333:4444:5555:8888]:65535"})
	require.LessOrEqual(t, len(full.String()), 300)
	for _, id := range []ID{full, newID([]string{localAddr}), newID([]string{"head-0.job.default.svc:5000"})} {
		got, err := ParseID(id.String())
		require.NoError(t, err)
		require.Equal(t, id, got)
	}
	require.NotEqual(t, newID(full.addrs), newID(full.addrs), "job and secret are random")
	require.Empty(t, ID{}.String())
	_, err := ParseID("")
	require.ErrorIs(t, err, ErrConfig)
}

func TestIDKeepsItsSecretOutOfLogs(t *testing.T) {
	id := newID([]string{"10.1.2.3:5"})
	secret := strings.Split(id.String(), ".")[2]
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "id", id)
	require.NotContains(t, b.String(), secret)
	require.Contains(t, b.String(), "10.1.2.3:5")
	_, err := ParseID(id.String() + ":")
	require.ErrorIs(t, err, ErrConfig)
	require.NotContains(t, err.Error(), secret)
}

func TestMakeID(t *testing.T) {
	a, err := MakeID([]byte("run 1"), "head:5000")
	require.NoError(t, err)
	b, err := MakeID([]byte("run 1"), "head:5000")
	require.NoError(t, err)
	require.Equal(t, a, b, "everybody makes the same id")
	c, err := MakeID([]byte("run 2"), "head:5000")
	require.NoError(t, err)
	require.NotEqual(t, a.job, c.job)
	require.NotEqual(t, a.secret, c.secret)
	for _, addr := range []string{"head", "head:0", ":5000", "head:65536", "he ad:1", "head:1,x:2", "head:01", "head:-1"} {
		_, err := MakeID([]byte("seed"), addr)
		require.ErrorIs(t, err, ErrConfig, addr)
	}
	_, err = MakeID(nil, "head:5000")
	require.ErrorIs(t, err, ErrConfig)
	_, err = MakeID([]byte("seed"))
	require.ErrorIs(t, err, ErrConfig)
}

func TestPortsText(t *testing.T) {
	for text, want := range map[string]Ports{
		"": {}, "0": {}, "5000": {5000, 5000}, "5000-5010": {5000, 5010}, "7-7": {7, 7}, "65535": {65535, 65535},
	} {
		got, err := ParsePorts(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		require.NoError(t, got.check())
	}
	for _, text := range []string{"x", "-1", "5-", "-5", "10-5", "65536", "1-65536", "0-5", "1-2-3", " 5"} {
		_, err := ParsePorts(text)
		require.ErrorIs(t, err, ErrConfig, text)
	}
}

func TestInterfaceLists(t *testing.T) {
	for _, tc := range []struct {
		list string
		yes  []string
		no   []string
	}{
		{"", []string{"lo", "eth0"}, nil},
		{"eth", []string{"eth0", "eth1", "eth"}, []string{"lo", "beth0"}},
		{"eth,ib0", []string{"eth0", "ib0", "ib01"}, []string{"lo", "ib1"}},
		{"=eth0", []string{"eth0"}, []string{"eth01", "eth"}},
		{"=eth0,eth1", []string{"eth0", "eth1"}, []string{"eth11"}},
		{"^docker,lo", []string{"eth0"}, []string{"docker0", "lo"}},
		{"^=lo,eth0", []string{"lo0", "eth01"}, []string{"lo", "eth0"}},
		{"eth,^docker,=wlan0", []string{"eth0", "wlan0"}, []string{"docker0", "wlan01", "lo"}},
		{"eth,^=eth1", []string{"eth0", "eth11"}, []string{"eth1"}},
		{" eth , ib ", []string{"eth0", "ib0"}, []string{"lo"}},
	} {
		t.Run(tc.list, func(t *testing.T) {
			f, err := parseInterfaces(tc.list)
			require.NoError(t, err)
			for _, name := range tc.yes {
				require.True(t, f.allows(name), name)
			}
			for _, name := range tc.no {
				require.False(t, f.allows(name), name)
			}
		})
	}
	for _, list := range []string{",", "eth,", "^", "=", "^^a", "==a", "=^a", "a b"} {
		_, err := parseInterfaces(list)
		require.ErrorIs(t, err, ErrConfig, list)
	}
}

func TestAddressChoice(t *testing.T) {
	nics := []nic{
		{"lo", netip.MustParseAddr("127.0.0.1")},
		{"docker0", netip.MustParseAddr("172.17.0.1")},
		{"virbr0", netip.MustParseAddr("192.168.122.1")},
		{"eth0", netip.MustParseAddr("169.254.3.4")}, // link-local
		{"eth0", netip.MustParseAddr("10.0.0.5")},
		{"eth1", netip.MustParseAddr("10.1.0.5")},
		{"lo", netip.MustParseAddr("::1")},
		{"eth0", netip.MustParseAddr("fe80::5")},
		{"eth1", netip.MustParseAddr("2001:db8::5")},
	}
	loopback, bridged := nics[:1], nics[:3]
	for _, tc := range []struct {
		name         string
		nics         []nic
		list, family string
		routed       string
		loopbackJob  bool
		want         string // "" is an error; rootHere has more than one
	}{
		{"the one that routes to the root", nics, "", "", "10.1.0.5", false, "10.1.0.5"},
		{"mapped addresses are IPv4", nics, "", "", "::ffff:10.1.0.5", false, "10.1.0.5"},
		{"no route known", nics, "", "", "", false, "10.0.0.5"},
		{"the root is here, by a name that means loopback", nics, "", "", "127.0.0.1", false, "10.0.0.5 10.1.0.5 2001:db8::5 172.17.0.1 192.168.122.1"},
		{"the root is here, and a list", nics, "eth", FamilyIPv4, "10.1.0.5", false, "10.0.0.5 10.1.0.5"},
		{"all of the job is on loopback", nics, "", "", "127.0.0.1", true, "127.0.0.1"},
		{"loopback job reached over a unix socket", nics, "", "", "", true, "127.0.0.1"},
		{"only loopback", loopback, "", "", "127.0.0.1", false, "127.0.0.1"},
		{"bridges only when there is nothing better", bridged, "", "", "", false, "172.17.0.1"},
		{"bridges when they route there", nics, "", "", "172.17.0.1", false, "172.17.0.1"},
		{"the user's list goes before the route", nics, "eth0", "", "10.1.0.5", false, "10.0.0.5"},
		{"the user's list may name loopback", nics, "=lo", "", "10.1.0.5", false, "127.0.0.1"},
		{"the user's list may name bridges", nics, "virbr", "", "", false, "192.168.122.1"},
		{"excluded", nics, "^eth0", "", "10.0.0.5", false, "10.1.0.5"},
		{"not loopback when all else is excluded but a bridge", nics, "^eth,virbr", "", "", false, "172.17.0.1"},
		{"family", nics, "", FamilyIPv6, "10.1.0.5", false, "2001:db8::5"},
		{"family of a loopback job", nics, "", FamilyIPv6, "127.0.0.1", true, "::1"},
		{"never link-local", nics, "eth0", FamilyIPv6, "fe80::5", false, ""},
		{"no such interface", nics, "ib", "", "10.1.0.5", false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, err := parseInterfaces(tc.list)
			require.NoError(t, err)
			var routed netip.Addr
			if tc.routed != "" {
				routed = netip.MustParseAddr(tc.routed)
			}
			got, err := chooseAddrs(tc.nics, f, tc.family, routed, strings.Contains(tc.want, " "), tc.loopbackJob)
			if tc.want == "" {
				require.ErrorIs(t, err, ErrConfig)
				require.ErrorContains(t, err, "eth1 10.1.0.5", "it says what there is")
				return
			}
			require.NoError(t, err)
			var text []string
			for _, n := range got {
				text = append(text, n.addr.String())
			}
			require.Equal(t, tc.want, strings.Join(text, " "))
		})
	}
}

func TestOnlyProvenAddressesCount(t *testing.T) {
	all := []string{"@socket", "10.0.0.1:5", "10.0.0.2:5", "[2001:db8::1]:5"}
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 999} }
	require.Equal(t, all, proven(all, nil))
	require.Equal(t, []string{"@socket"}, proven(all, &net.UnixAddr{}))
	require.Equal(t, []string{"10.0.0.2:5"}, proven(all, tcp("10.0.0.2")))
	require.Equal(t, []string{"[2001:db8::1]:5"}, proven(all, tcp("2001:db8::1")))
	require.Equal(t, all, proven(all, tcp("10.9.9.9")), "translated on the way")
	require.Equal(t, all[1:], proven(all[1:], &net.UnixAddr{}))
}

func TestRanksText(t *testing.T) {
	for want, ranks := range map[string][]int{
		"rank 3":            {3},
		"ranks 0-2":         {0, 1, 2},
		"ranks 0, 2-3, 7-9": {0, 2, 3, 7, 8, 9},
	} {
		require.Equal(t, want, ranksText(ranks))
	}
	var odd []int
	for r := 1; r < 100; r += 2 {
		odd = append(odd, r)
	}
	require.Equal(t, "ranks 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31 and 34 more", ranksText(odd))
}

func TestErrorsTravel(t *testing.T) {
	for _, cause := range append(wireErrors[1:], fmt.Errorf("%w: after 3s", ErrTimeout), io.EOF) {
		e := &Error{Phase: PhaseRing, Addr: "1.2.3.4:5", Rank: 7, Reporter: -1, Missing: []int{0, 9}, Detail: "so it is", Err: cause}
		got, ok := decodeError(appendError(nil, e, 10), 10)
		require.True(t, ok)
		if errors.Is(cause, io.EOF) {
			require.ErrorIs(t, got, ErrGaveUp)
			require.Equal(t, "EOF: so it is", got.Detail)
		} else {
			require.ErrorIs(t, cause, got.Err)
		}
		require.Equal(t, e.Missing, got.Missing)
		require.Equal(t, [4]any{e.Phase, e.Addr, e.Rank, e.Reporter}, [4]any{got.Phase, got.Addr, got.Rank, got.Reporter})
		_, ok = decodeError(appendError(nil, e, 10), 7)
		require.False(t, ok, "ranks out of range")
	}
}

// pipe is both ends of a connection, with the system's buffers.
func pipe(t testing.TB) (net.Conn, net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	b, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

func TestBothSidesProveTheSecret(t *testing.T) {
	id := newID([]string{localAddr})
	wrong := newID(id.addrs)
	wrong.job = id.job
	for _, tc := range []struct {
		name             string
		dialler          *ID
		verdict          verdict
		diallerOK, lisOK bool
	}{
		{"both know it", &id, welcome, true, true},
		{"the dialler does not", &wrong, welcome, false, false},
		{"refused with a proof", &id, declaredLost, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := pipe(t)
			h := hello{role: roleLink, from: 3, to: 4, size: 9, job: id.job}
			done := make(chan error, 1)
			go func() {
				got, raw, err := receiveHello(b, &id)
				if err == nil && got != h {
					err = fmt.Errorf("got %+v, want %+v", got, h)
				}
				if err == nil {
					err = answerHello(b, &id, raw, tc.verdict)
				}
				b.Close()
				done <- err
			}()
			v, err := greet(a, tc.dialler, h)
			a.Close()
			require.Equal(t, tc.diallerOK, err == nil, "%v", err)
			if tc.verdict != welcome {
				require.Equal(t, tc.verdict, v)
			}
			require.Equal(t, tc.lisOK, <-done == nil)
		})
	}
}

// A recorded dialler can't be replayed: the listener's nonce is new.
func TestReplayedProofsAreRefused(t *testing.T) {
	id := newID([]string{localAddr})
	listen := func(conn net.Conn) error {
		_, raw, err := receiveHello(conn, &id)
		if err == nil {
			err = answerHello(conn, &id, raw, welcome)
		}
		conn.Close()
		return err
	}
	a, b := pipe(t)
	done := make(chan error, 1)
	go func() { done <- listen(b) }()
	var sent bytes.Buffer
	_, err := greet(struct {
		io.Reader
		io.Writer
	}{a, io.MultiWriter(a, &sent)}, &id, hello{role: roleLink, from: 1, size: 2})
	require.NoError(t, err)
	require.NoError(t, <-done)
	a, b = pipe(t)
	go func() { done <- listen(b) }()
	a.Write(sent.Bytes())
	io.Copy(io.Discard, a)
	require.ErrorIs(t, <-done, ErrStranger)
}

func TestRaceTakesTheFirstThatAnswers(t *testing.T) {
	one, other := net.Pipe()
	defer other.Close()
	tried := make(chan string, 3)
	conn, err := race(context.Background(), []string{"refuses", "answers", "late"}, func(ctx context.Context, addr string) (net.Conn, error) {
		tried <- addr
		if addr == "answers" {
			return one, nil
		}
		return nil, errors.New(addr)
	})
	require.NoError(t, err)
	require.Equal(t, net.Conn(one), conn)
	require.Equal(t, "refuses", <-tried)
	require.Equal(t, "answers", <-tried)
	one.Close()
	_, err = race(context.Background(), []string{"a", "b"}, func(ctx context.Context, addr string) (net.Conn, error) {
		return nil, map[string]error{"a": fmt.Errorf("%w: someone else", ErrStranger), "b": io.EOF}[addr]
	})
	require.ErrorIs(t, err, ErrStranger, "the answer that says most")
}
