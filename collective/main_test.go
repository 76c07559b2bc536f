package collective_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gollective/gollective/collective"
)

// The variables that change what the tests of this package do:
//
//	GOLLECTIVE_TEST_PROPERTY=2m  how long random programs run (default 15s)
//	GOLLECTIVE_TEST_FAULTS=2m    how long random programs with a fault run (default 5s)
//	GOLLECTIVE_TEST_SEED=N       the seed of both, as a failure prints it
//	GOLLECTIVE_TEST_FULL=1       every mismatch under every configuration, every
//	                             pair of settings under the race detector, and
//	                             every death of a process
//	GOLLECTIVE_TEST_CHAOS=200    rounds of random deaths of processes (default 5)
//	GOLLECTIVE_TEST_STARTS=200   starts of a job on one port (default 10), and a
//	                             quarter of it jobs at the same time

func TestMain(m *testing.M) {
	if playRole() { // this is a process of a test, not the test
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for ranks that should have come back long
// ago. It bounds a hang, not a speed.
const patience = 2 * time.Minute

// generous is what "soon" may take on a machine that does other things, too.
const generous = 10 * time.Second

// onRanks runs body on every handle at once and returns the errors by rank. Ranks
// that don't come back are a failure, which shows where they hang.
func onRanks(t testing.TB, comms []*collective.Comm, body func(*collective.Comm) error) []error {
	t.Helper()
	errs := make([]error, len(comms))
	var ranks sync.WaitGroup
	for i, c := range comms {
		ranks.Go(func() { errs[i] = body(c) })
	}
	back := make(chan struct{})
	go func() { ranks.Wait(); close(back) }()
	comesBack(t, back, func() {
		for _, c := range comms {
			c.Abort()
		}
	})
	return errs
}

// comesBack waits for done. If that takes too long it fails the test with the
// stacks of all goroutines, and calls release so that they can end.
func comesBack(t testing.TB, done <-chan struct{}, release func()) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		release()
		require.FailNow(t, "ranks hang", "after %v:\n%s", patience, stacks)
	}
}

// ranksOf makes a communicator that is aborted and closed with the test.
func ranksOf(t testing.TB, n int, config collective.Config) []*collective.Comm {
	t.Helper()
	comms, err := collective.InitAllConfig(n, config)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, c := range comms {
			c.Abort()
			require.NoError(t, c.Close())
		}
	})
	return comms
}

// works proves that a communicator is usable: its ranks exchange numbers.
func works(t testing.TB, comms []*collective.Comm) {
	t.Helper()
	n := len(comms)
	for rank, err := range onRanks(t, comms, func(c *collective.Comm) error { return exchange(c, n) }) {
		require.NoError(t, err, "rank %d", rank)
	}
}

func exchange(c *collective.Comm, n int) error {
	sum := []int32{int32(c.Rank()), 1}
	if err := collective.AllReduce(context.Background(), c, sum, sum, collective.Sum); err != nil {
		return err
	}
	if sum[0] != int32(n*(n-1)/2) || sum[1] != int32(n) {
		return fmt.Errorf("the sum over %d ranks is %v", n, sum)
	}
	right, left := []int32{int32(c.Rank())}, []int32{-1}
	g := collective.NewGroup()
	err := errors.Join(
		collective.Send(context.Background(), g.On(c), right, (c.Rank()+1)%n),
		collective.Recv(context.Background(), g.On(c), left, (c.Rank()+n-1)%n))
	if err == nil {
		err = g.Run(context.Background())
	}
	if err == nil && left[0] != int32((c.Rank()+n-1)%n) {
		err = fmt.Errorf("received %d from the left of rank %d", left[0], c.Rank())
	}
	return err
}

// durationOf reads an environment variable of the tests.
func durationOf(t testing.TB, name string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, name)
	return d
}

// seedOf is the seed of a random test, from the environment or new; it is logged.
func seedOf(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("GOLLECTIVE_TEST_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 0, 64)
		require.NoError(t, err, "GOLLECTIVE_TEST_SEED")
	}
	t.Logf("GOLLECTIVE_TEST_SEED=%d", seed)
	return seed
}
