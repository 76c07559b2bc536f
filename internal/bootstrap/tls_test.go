package bootstrap

import (
	"context"
	"crypto/tls"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/transport/tcp"
)

func keyed(t testing.TB, secret string) *tls.Config {
	t.Helper()
	c, err := tcp.JobTLS([]byte(secret))
	require.NoError(t, err)
	return c
}

// Joining, messages, a loss and goodbyes, all of it over TLS; unix sockets stay as
// they are.
func TestAJobOverTLS(t *testing.T) {
	for _, network := range []string{NetworkTCP, NetworkLocal} {
		t.Run(network, func(t *testing.T) {
			const n = 6
			secure := keyed(t, "secret")
			j := &job{t: t, root: startRoot(t, ListenConfig{Network: network, TLS: secure}), c: make([]*Control, n), w: make([]*watcher, n)}
			require.NoError(t, eachRank(n, func(r int) (err error) {
				j.c[r], err = Join(context.Background(), Config{ID: j.root.ID(), Rank: r, Size: n, Timeout: patient, TLS: secure})
				return err
			}))
			for r := range n {
				j.w[r] = newWatcher()
				j.c[r].Handle(j.w[r].handler())
			}
			for r := range n {
				require.NoError(t, j.c[r].Tell(fmt.Appendf(nil, "from %d", r)))
			}
			for r := range n {
				for from := range n {
					if from != r {
						require.NoError(t, j.w[r].until(func() bool { return len(j.w[r].messages[from]) == 1 }))
						require.Equal(t, fmt.Sprintf("from %d", from), j.w[r].from(from)[0])
					}
				}
			}
			j.c[3].vanish()
			for _, r := range []int{0, 1, 2, 4, 5} {
				require.NoError(t, j.w[r].until(func() bool { return j.w[r].lost[3] != nil }))
			}
			require.NoError(t, eachRank(n, func(r int) error {
				if r == 3 {
					return nil
				}
				return j.c[r].Close(context.Background())
			}))
		})
	}
}

// Whoever has other ideas about TLS is told so at once, and the others, who wait for
// it, why nobody came.
func TestTLSIsForAllOrNobody(t *testing.T) {
	for _, tc := range []struct {
		name         string
		root, member *tls.Config
	}{
		{"the root alone", keyed(t, "secret"), nil},
		{"the member alone", nil, keyed(t, "secret")},
		{"keys that differ", keyed(t, "secret"), keyed(t, "another")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := startRoot(t, ListenConfig{Network: NetworkTCP, TLS: tc.root, Timeout: patient})
			cs := configs(root.ID(), []int{0, 1}, 2)
			cs[0].TLS, cs[1].TLS = tc.root, tc.member
			cs[0].Timeout = 500 * time.Millisecond // the one that agrees with the root
			errs := joinAll(cs)
			require.ErrorIs(t, errs[1], ErrTLS)
			var e *Error
			require.ErrorAs(t, errs[1], &e)
			require.Equal(t, PhaseRoot, e.Phase)
			require.ErrorIs(t, errs[0], ErrMissing)
			require.ErrorContains(t, errs[0], "TLS", "the one turned away is mentioned")
		})
	}
}
