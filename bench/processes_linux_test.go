package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
)

// peerVariable makes the test binary the second rank of BenchmarkProcesses.
const peerVariable = "GOLLECTIVE_TEST_BENCH_PEER"

// TestPeerOfBenchmarkProcesses is no test: it is what rank 1 does.
func TestPeerOfBenchmarkProcesses(t *testing.T) {
	if os.Getenv(peerVariable) == "" {
		t.Skip("the second rank of BenchmarkProcesses, which starts it")
	}
	ctx := context.Background()
	c, err := collective.Init(ctx, collective.Config{})
	require.NoError(t, err)
	defer c.Close()
	for {
		order := make([]int64, 2) // elements, iterations; none: the end
		require.NoError(t, collective.Broadcast(ctx, c, nil, order, 0))
		if order[1] == 0 {
			return
		}
		require.NoError(t, reduceRepeatedly(ctx, c, make([]float32, order[0]), int(order[1])))
	}
}

func reduceRepeatedly(ctx context.Context, c *collective.Comm, x []float32, times int) error {
	for range times {
		if err := collective.AllReduce(ctx, c, x, x, collective.Sum); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkProcesses is an in-place AllReduce between two processes of this host.
// The buffer is one and the same in all iterations: compare it with its like of
// goroutine ranks, BenchmarkGoroutines.
func BenchmarkProcesses(b *testing.B) {
	id, err := collective.NewUniqueID(collective.Config{Place: collective.Place{Size: 2, LocalSize: 2}})
	require.NoError(b, err)
	defer id.Close()
	peer := exec.Command(os.Args[0], "-test.run=^TestPeerOfBenchmarkProcesses$")
	peer.Env = append(os.Environ(), peerVariable+"=1", "GOLLECTIVE_RANK=1", "GOLLECTIVE_SIZE=2", "GOLLECTIVE_COMM_ID="+id.String())
	peer.Stderr = os.Stderr
	require.NoError(b, peer.Start())
	ctx := context.Background()
	c, err := collective.Init(ctx, collective.Config{Place: collective.Place{Size: 2, ID: id.String()}})
	require.NoError(b, err)
	defer func() {
		end := make([]int64, 2)
		require.NoError(b, collective.Broadcast(ctx, c, end, end, 0))
		require.NoError(b, c.Close())
		require.NoError(b, peer.Wait())
	}()
	for _, bytes := range pairSizes {
		b.Run(fmt.Sprintf("coll=all_reduce/ranks=2/bytes=%d", bytes), func(b *testing.B) {
			x := make([]float32, bytes/4)
			order := []int64{int64(len(x)), int64(b.N)}
			require.NoError(b, collective.Broadcast(ctx, c, order, order, 0))
			reportPair(b, bytes)
			require.NoError(b, reduceRepeatedly(ctx, c, x, b.N))
		})
	}
}

// BenchmarkGoroutines is BenchmarkProcesses with two goroutine ranks.
func BenchmarkGoroutines(b *testing.B) {
	ctx := context.Background()
	comms, err := collective.InitAll(2)
	require.NoError(b, err)
	defer comms[0].Close()
	defer comms[1].Close()
	for _, bytes := range pairSizes {
		b.Run(fmt.Sprintf("coll=all_reduce/ranks=2/bytes=%d", bytes), func(b *testing.B) {
			x, y := make([]float32, bytes/4), make([]float32, bytes/4)
			other := make(chan error, 1)
			go func() { other <- reduceRepeatedly(ctx, comms[1], y, b.N) }()
			reportPair(b, bytes)
			require.NoError(b, reduceRepeatedly(ctx, comms[0], x, b.N))
			require.NoError(b, <-other)
		})
	}
}

var pairSizes = []int{4, 64 << 10, 1 << 20, 64 << 20}

func reportPair(b *testing.B, bytes int) {
	b.SetBytes(int64(bytes))
	b.ReportAllocs()
	b.ResetTimer()
}
