package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
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
