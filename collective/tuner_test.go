package collective

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
)

// tunerFile writes lines to a file of the test.
func tunerFile(t testing.TB, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tuner.csv")
	require.NoError(t, os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return name
}

// chosenFor is the choice for an AllReduce of so many bytes.
func chosenFor(t testing.TB, c *Comm, size int) plan.Choice {
	t.Helper()
	buffer := make([]byte, size)
	p, err := c.Plan(Call{Kind: plan.AllReduce, Type: dtype.Uint8, Op: Sum, Count: size, Send: buffer, Recv: buffer})
	if !assert.NoError(t, err) {
		return plan.Choice{}
	}
	return p.Choice
}

func TestATunerFileDecidesInACommunicatorAndItsChildren(t *testing.T) {
	file := tunerFile(t, "allreduce,0,999,tree,ll128,-1,-1,3", "allreduce,0,-1,oneshot,ll,-1,1,2", "allreduce,1000,-1,ring,ll,-1,-1,-1")
	t.Setenv("GOLLECTIVE_TUNER_FILE", file)
	require.NoError(t, Run(3, func(c *Comm) error {
		assert.Equal(t, plan.Choice{Algorithm: plan.Tree, Protocol: plan.LL128, Channels: 1}, chosenFor(t, c, 999))
		assert.Equal(t, plan.Choice{Algorithm: plan.Ring, Protocol: plan.LL, Channels: 1}, chosenFor(t, c, 1000))
		child, err := c.Split(context.Background(), c.Rank()/2, 0)
		if err != nil {
			return err
		}
		defer child.Close()
		if child.Size() == 2 {
			assert.Equal(t, plan.Choice{Algorithm: plan.OneShot, Protocol: plan.LL, Channels: 1}, chosenFor(t, child, 999))
		}
		x := []int32{int32(c.Rank()), 1}
		if err := AllReduce(context.Background(), c, x, x, Sum); err != nil {
			return err
		}
		assert.Equal(t, []int32{3, 3}, x)
		return nil
	}))
}

func TestLinesThatMeanNothingHereAreToldOnce(t *testing.T) {
	file := tunerFile(t, "allreduce,0,-1,nvls,simple,-1,-1,-1", "broadcast,0,-1,tree,simple,-1,-1,-1", "allreduce,0,-1,ring,ll,-1,-1,-1")
	var log bytes.Buffer
	for range 3 {
		comms, err := InitAllConfig(2, Config{TunerFile: file, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		assert.Equal(t, plan.Choice{Algorithm: plan.Ring, Protocol: plan.LL, Channels: 1}, chosenFor(t, comms[0], 64))
		for _, c := range comms {
			require.NoError(t, c.Close())
		}
	}
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	for _, told := range []string{file + ":1", "nvls", file + ":2", "broadcast has no algorithm tree"} {
		assert.Contains(t, log.String(), told)
	}
}

// Every process compares what it has with what all have: that all learn of any
// difference.
func TestTunerFilesThatDifferAreAnErrorThatNamesRanksAndRules(t *testing.T) {
	parse := func(lines ...string) Config {
		c, err := Config{TunerFile: tunerFile(t, lines...)}.withDefaults()
		require.NoError(t, err)
		return c
	}
	first, second := "allreduce,0,999,tree,ll128,-1,-1,3", "allreduce,0,-1,ring,ll,-1,1,2"
	none, err := Config{}.withDefaults()
	require.NoError(t, err)
	all, commented, short, other := parse(first, second), parse("# x", first, "", second), parse(first), parse(first, first)
	for _, tc := range []struct {
		a, b     Config
		from, to string // what the process of a says, and that of b
	}{
		{all, all, "", ""},
		{all, commented, "", ""},
		{none, parse("# nothing"), "", ""},
		{none, all, "rule 1 on, which is missing here", "rule 1 on, here " + all.TunerFile + ":1: " + first},
		{all, short, "rule 2 on, here " + all.TunerFile + ":2: " + second, "rule 2 on, which is missing here"},
		{commented, other, "rule 2 on, here " + commented.TunerFile + ":4: " + second, "rule 2 on, here " + other.TunerFile + ":2: " + first},
	} {
		both := []description{{Ranks: 2, Host: "h", PID: 1, Tuned: tc.a.tuned()}, {Ranks: 1, Host: "i", PID: 2, Tuned: tc.b.tuned()}}
		for self, want := range []string{tc.from, tc.to} {
			err := tunedDifferently(both, self, 1-self, []Config{tc.a, tc.b}[self].tuning)
			if want == "" {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, ErrMismatch)
			for _, told := range []string{"ranks 0-1 (process 0", "rank 2 (process 1", tc.a.tuned().String(), tc.b.tuned().String(), want} {
				require.ErrorContains(t, err, told)
			}
		}
	}
}
