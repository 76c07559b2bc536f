package collective_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/internal/pairwise"
	"github.com/gollective/gollective/collective/internal/trial"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
)

// These tests need no model: they compare what one program of calls leaves under
// different settings.

// way is how a program is executed.
type way struct {
	config  collective.Config
	threads int // GOMAXPROCS
	form    trial.Form
}

func (w way) String() string {
	c := w.config
	return fmt.Sprintf("%v %v %d channels, FIFOs %d %d %d %d, %d ranks per node, %v, GOMAXPROCS %d, %v",
		c.Algorithm, c.Protocol, c.Channels, c.BuffSize, c.LLBuffSize, c.LL128BuffSize, c.P2PChunkSize,
		c.RanksPerNode, c.Wait, w.threads, w.form)
}

var threadCounts = []int{1, 2, 4}

// ways covers every pair of values of eight settings.
func ways(ranks int) []way {
	levels := []int{3, 4, 5, len(tableFIFOs), 5, len(tableWaits), len(threadCounts), int(trial.FormsCount)}
	const waits = 5
	rows := pairwise.Cover(levels, func(f, a, g, b int) bool {
		return ranks <= 3 || !(f == waits && tableWaits[a] == spin.Spin || g == waits && tableWaits[b] == spin.Spin)
	})
	all := make([]way, 0, len(rows))
	for _, row := range rows {
		w := way{config: tableFIFOs[row[3]], threads: threadCounts[row[6]], form: trial.Form(row[7])}
		w.config.Algorithm, w.config.Protocol = plan.Algorithm(row[0]), plan.Protocol(row[1])
		w.config.Channels, w.config.RanksPerNode = row[2], row[4]
		w.config.Wait = tableWaits[row[waits]]
		w.config.Timeout = time.Minute
		all = append(all, w)
	}
	return all
}

// execute runs cases in one communicator and returns what ranks received, by case
// and rank.
func (w way) execute(ranks int, cases []trial.Case) ([][][]byte, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(w.threads))
	comms, err := collective.InitAllConfig(ranks, w.config)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, c := range comms {
			c.Close()
		}
	}()
	trials := make([]*trial.Trial, len(cases))
	for i, c := range cases {
		trials[i] = trial.New(c, ranks, trial.Heap)
	}
	if err := trial.Run(comms, w.form, trials...); err != nil {
		return nil, err
	}
	results := make([][][]byte, len(cases))
	for i, t := range trials {
		if t.Arbitrary {
			if err := t.Check(); err != nil {
				return nil, err
			}
		}
		for rank := range ranks {
			results[i] = append(results[i], t.Result(rank))
		}
	}
	return results, nil
}

// program draws calls of all kinds.
func program(rng *rand.Rand, ranks, calls int) []trial.Case {
	cases := make([]trial.Case, calls)
	counts := []int{0, 1, 2, 7, 16, 120, 1023, 2500}
	for i := range cases {
		c := trial.Case{
			Kind: tableKinds[(i+rng.IntN(2))%len(tableKinds)], Type: dtype.Type(rng.IntN(12)),
			Count: counts[rng.IntN(len(counts))], Seed: rng.Uint64(),
			SendOffset: rng.IntN(16), RecvOffset: rng.IntN(16),
		}
		if kindAllows(c.Kind, fOp, int(reduce.Sum)+1) {
			c.Op = reduce.Op(rng.IntN(6))
		}
		if !kindAllows(c.Kind, fRoot, none) {
			c.Root = rng.IntN(ranks)
		}
		c.InPlace = kindAllows(c.Kind, fPlace, 1) && rng.IntN(2) == 0
		cases[i] = c
	}
	return cases
}

func TestAProgramLeavesTheSameBitsUnderAnySettings(t *testing.T) {
	rng, _ := sampleSeed(t)
	for _, ranks := range []int{1, 2, 3, 5, 8} {
		cases := program(rng, ranks, 2*len(tableKinds))
		base := way{threads: runtime.GOMAXPROCS(0)}
		want, err := base.execute(ranks, cases)
		require.NoError(t, err, "%d ranks", ranks)
		for _, w := range ways(ranks) {
			got, err := w.execute(ranks, cases)
			require.NoError(t, err, "%d ranks, %v", ranks, w)
			for i := range cases {
				for rank := range ranks {
					require.Equal(t, want[i][rank], got[i][rank], "%d ranks, %v: call %d %+v at rank %d", ranks, w, i, cases[i], rank)
				}
			}
		}
	}
}

// A sum of floats that rounds may have other bits in another order. The order is
// given by algorithm, protocol, channels and FIFOs: not by timing, nor by where the
// data lies.
func TestRoundedSumsHaveTheSameBitsOnAllRanksAndInEveryRun(t *testing.T) {
	rng, _ := sampleSeed(t)
	floats := []dtype.Type{dtype.Float32, dtype.Float64, dtype.Half, dtype.Bfloat, dtype.F8E4M3, dtype.F8E5M2}
	reducing := []plan.Kind{plan.AllReduce, plan.ReduceScatter, plan.Reduce}
	for i, order := range pairwise.Cover([]int{3, 3, 4, 3, 5}, func(_, _, _, _ int) bool { return true }) {
		ranks := []int{2, 3, 4, 7, 12}[i%5]
		c := trial.Case{
			Kind: reducing[i%3], Type: floats[i%6], Op: []reduce.Op{reduce.Sum, reduce.Prod, reduce.Avg, reduce.Max}[i%4],
			Count: 700 + rng.IntN(700), Root: rng.IntN(ranks), Seed: rng.Uint64(), Arbitrary: true,
		}
		var want [][]byte
		for run, threads := range []int{2, 1, 4, 2} {
			w := way{config: tableFIFOs[order[3]], threads: threads, form: trial.Form(rng.IntN(int(trial.FormsCount)))}
			w.config.Algorithm, w.config.Protocol = plan.Algorithms()[1+order[0]], plan.Protocol(order[1]+1)
			if w.config.Algorithm == plan.Tree && c.Kind != plan.AllReduce {
				w.config.Algorithm = plan.Ring // what is free is chosen by the cores, too
			}
			w.config.Channels, w.config.RanksPerNode = order[2]+1, order[4]
			w.config.Wait = []spin.Policy{spin.Adaptive, spin.Yield, spin.Block}[rng.IntN(3)]
			w.config.Timeout = time.Minute
			c.SendOffset, c.RecvOffset, c.InPlace = rng.IntN(16), rng.IntN(16), run%2 == 1
			got, err := w.execute(ranks, []trial.Case{c})
			require.NoError(t, err, "%d ranks, %v", ranks, w)
			if want == nil {
				want = got[0]
			}
			for rank := range ranks {
				require.Equal(t, want[rank], got[0][rank], "%d ranks, %v: %+v at rank %d", ranks, w, c, rank)
			}
		}
	}
}

// Nobody leaves a barrier that somebody has not entered.
func TestABarrierHoldsEverybodyUntilTheLastHasEntered(t *testing.T) {
	const rounds = 20
	for _, ranks := range []int{1, 2, 3, 8} {
		for _, w := range ways(ranks) {
			var entered [rounds]atomic.Int64
			comms, err := collective.InitAllConfig(ranks, w.config)
			require.NoError(t, err)
			errs := make([]error, ranks)
			var all sync.WaitGroup
			for rank, c := range comms {
				all.Go(func() {
					defer c.Close()
					for round := range rounds {
						if (rank+round)%ranks == 0 {
							runtime.Gosched() // another one is last in each round
						}
						entered[round].Add(1)
						if err := collective.Barrier(t.Context(), c); err != nil {
							errs[rank] = err
							return
						}
						if n := entered[round].Load(); n != int64(ranks) {
							errs[rank] = fmt.Errorf("rank %d left barrier %d when %d of %d had entered", rank, round, n, ranks)
							return
						}
					}
				})
			}
			all.Wait()
			for _, err := range errs {
				require.NoError(t, err, "%d ranks, %v", ranks, w)
			}
		}
	}
}
