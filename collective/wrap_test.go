package collective

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/transport/inproc"
)

// The flags of LL repeat after 2^32 steps. A line that was not written in between
// would be taken for a new one; cleaning every 2^31 steps prevents it. So many
// steps take minutes, therefore these tests let a communicator live in stretches:
// what lies between two of them is skipped, as though it had been filled with
// messages so short that they left the lines in question alone. A stretch begins
// with the memory that the one before left. Where a skipped part contains the steps
// that clean, the life is one without cleaning: that is how the tests show that they
// can fail.

// life is a communicator in stretches.
type life struct {
	t     *testing.T
	world *world
	comms []*Comm // of this stretch
	ops   int     // all so far, for the data
}

func newLife(t *testing.T, ranks int, c Config) *life {
	c.Timeout = time.Minute
	comms, err := InitAllConfig(ranks, c)
	require.NoError(t, err)
	l := &life{t: t, world: comms[0].world, comms: comms}
	l.closeAtTheEnd()
	return l
}

func (l *life) closeAtTheEnd() {
	for _, c := range l.comms {
		l.t.Cleanup(func() { assert.NoError(l.t, c.Close()) })
	}
}

// skipTo ends the stretch and begins the next one at the given step of every FIFO,
// with handles that know nothing of the ones before.
func (l *life) skipTo(step uint64) {
	l.world.transport = l.world.transport.(*inproc.Hub).Later(step)
	for rank := range l.comms {
		l.comms[rank] = l.world.comm(rank)
	}
	l.closeAtTheEnd()
}

// chain is the Config in which a Reduce to rank 1 of three is one LL step from rank
// 2 to 0 and one from 0 to 1, of up to chainBytes.
var chain = Config{Algorithm: plan.Ring, Protocol: plan.LL, Channels: 1, LLBuffSize: 8 << 10}

const (
	chainRanks = 3
	chainBytes = 512
	latecomer  = 2
	root       = 1
)

// reduce makes one Reduce of count int32. The latecomer waits for the root, which
// cannot return without it, but by taking old lines for new ones; it gives up after
// patience. The rank between them has opened its slot for the root by then, so the
// root is looking at lines that nobody has written in this step. reduce returns how
// many elements the root has got wrong.
func (l *life) reduce(count int, patience time.Duration) (wrong int) {
	l.t.Helper()
	l.ops++
	rootIsThrough := make(chan struct{})
	recv := make([]int32, count)
	l.together(func(rank int, c *Comm) error {
		switch rank {
		case latecomer:
			select {
			case <-rootIsThrough:
			case <-time.After(patience):
			}
		case root:
			defer close(rootIsThrough)
		}
		return Reduce(context.Background(), c, l.data(rank, count), recv, Sum, root)
	})
	want := make([]int32, count)
	for rank := range chainRanks {
		for i, x := range l.data(rank, count) {
			want[i] += x
		}
	}
	for i := range want {
		if recv[i] != want[i] {
			wrong++
		}
	}
	return wrong
}

// together runs body on all ranks at once.
func (l *life) together(body func(rank int, c *Comm) error) {
	l.t.Helper()
	errs := make([]error, len(l.comms))
	var ranks sync.WaitGroup
	for rank, c := range l.comms {
		ranks.Go(func() {
			if errs[rank] = body(rank, c); errs[rank] != nil {
				c.Abort()
			}
		})
	}
	ranks.Wait()
	require.NoError(l.t, errors.Join(errs...))
}

// data is rank's input of the latest operation, different in every operation.
func (l *life) data(rank, count int) []int32 {
	data := make([]int32, count)
	for i := range data {
		data[i] = int32((rank+1)*1_000_003 + l.ops*7919 + i)
	}
	return data
}

// short fills so many steps of every FIFO, a multiple of 4, with AllReduces of a
// single element: of each four chunks that go to the root, only the third is not
// empty, so all others consist of the header line.
func (l *life) short(steps int) {
	l.t.Helper()
	for range steps / 4 {
		l.together(func(rank int, c *Comm) error {
			one := []int64{int64(rank)}
			err := AllReduce(context.Background(), c, one, one, Sum)
			if err == nil && one[0] != 3 {
				err = fmt.Errorf("the sum is %d", one[0])
			}
			return err
		})
	}
}

// steps fills n steps with Reduces of count elements.
func (l *life) steps(n, count int) {
	l.t.Helper()
	for range n {
		require.Zero(l.t, l.reduce(count, 0), "operation %d", l.ops)
	}
}

// late fills n steps with Reduces that take all lines of their slots, which the root
// looks at before they are written. It returns how many of them came out wrong.
func (l *life) late(n int, patience time.Duration) (wrong int) {
	l.t.Helper()
	for range n {
		if l.reduce(whole, patience) > 0 {
			wrong++
		}
	}
	return wrong
}

const (
	whole = chainBytes / 4 // elements

	half = 1 << 31 // steps: flags have the highest bit from here on
	full = 1 << 32 // flags begin anew

	aMoment = 2 * time.Millisecond
	forever = 20 * time.Second
)

// The flag of the last step before the wrap is 0, as in memory that was never
// written.
func TestLinesThatWereNeverUsedAreNotTakenForTheStepWithFlagZero(t *testing.T) {
	l := newLife(t, chainRanks, chain)
	l.short(16)
	l.skipTo(half - 20)
	l.short(40)
	l.skipTo(full - 20)
	l.short(16)
	l.steps(3, 1)
	assert.Zero(t, l.late(1, aMoment))

	t.Run("unless cleaning is left out", func(t *testing.T) {
		l := newLife(t, chainRanks, chain)
		l.short(16)
		l.skipTo(full - 20)
		l.short(16)
		l.steps(3, 1)
		assert.Equal(t, 1, l.late(1, forever))
	})
}

// Lines of long messages that only short ones followed would keep their flags for
// 2^32 steps.
func TestLinesFromATurnOfTheFlagsAgoAreNotTakenForNewOnes(t *testing.T) {
	t.Run("from the first steps", func(t *testing.T) {
		l := newLife(t, chainRanks, chain)
		l.steps(8, whole)
		l.skipTo(half - 20)
		l.short(40)
		l.skipTo(full - 20)
		l.short(20)
		assert.Zero(t, l.late(8, aMoment))
	})
	t.Run("from just behind a cleaning", func(t *testing.T) {
		l := newLife(t, chainRanks, chain)
		l.skipTo(half)
		l.steps(8, whole)
		l.skipTo(full - 20)
		l.short(40)
		l.skipTo(full + half) // without the cleaning at its end
		assert.Zero(t, l.late(8, aMoment))
	})
	t.Run("unless cleaning is left out", func(t *testing.T) {
		l := newLife(t, chainRanks, chain)
		l.steps(8, whole)
		l.skipTo(full - 24)
		l.short(16) // the header lines are of this time
		l.skipTo(full)
		assert.Equal(t, 2, l.late(2, forever))
	})
}

// Sizes and kinds vary, and ranks come as they like, while the steps pass every
// border that a counter or a flag could have.
func TestProgramsCrossTheWrapOfTheFlags(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("GOLLECTIVE_TEST_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("GOLLECTIVE_TEST_SEED=%d", seed)
	for _, protocol := range []plan.Protocol{plan.LL, plan.LL128, plan.Simple} {
		for _, algorithm := range []plan.Algorithm{plan.Ring, plan.Tree, plan.OneShot} {
			t.Run(fmt.Sprintf("%v %v", protocol, algorithm), func(t *testing.T) {
				l := newLife(t, 4, Config{
					Algorithm: algorithm, Protocol: protocol, Channels: 2, RanksPerNode: 1,
					BuffSize: 1 << 10, LLBuffSize: 2 << 10, LL128BuffSize: 4 << 10, P2PChunkSize: 256,
				})
				rng := rand.New(rand.NewPCG(seed, 0))
				l.program(rng, 30)
				for _, border := range []uint64{half, full, full + half, 2 * full} {
					// A program takes one step of each FIFO at least.
					l.skipTo(border - 48)
					l.program(rng, 60)
				}
			})
		}
	}
}

// program makes n rounds of calls that use every FIFO the communicator has for
// AllReduce and for messages to the next rank.
func (l *life) program(rng *rand.Rand, n int) {
	l.t.Helper()
	counts := make([]int, n)
	for i := range counts {
		counts[i] = 2 + rng.IntN(8) // a line for each channel at least
		if rng.IntN(4) == 0 {
			counts[i] = 2 + rng.IntN(700)
		}
	}
	l.together(func(_ int, c *Comm) error { return l.rounds(c, counts) })
}

func (l *life) rounds(c *Comm, counts []int) error {
	ctx := context.Background()
	n := int64(c.Size())
	value := func(rank, round, i int) int64 { return int64(rank+1)<<32 + int64(round*10_007+i) }
	for round, count := range counts {
		send, recv := make([]int64, 8*count), make([]int64, 8*count)
		for i := range send {
			send[i] = value(c.Rank(), round, i)
		}
		if err := AllReduce(ctx, c, send, recv, Sum); err != nil {
			return err
		}
		for i, got := range recv {
			if want := n*(n+1)/2<<32 + n*int64(round*10_007+i); got != want {
				return fmt.Errorf("rank %d, round %d: sum %d is %#x, want %#x", c.Rank(), round, i, got, want)
			}
		}
		g := NewGroup()
		previous, next := (c.Rank()+c.Size()-1)%c.Size(), (c.Rank()+1)%c.Size()
		if err := errors.Join(Send(ctx, g.On(c), send, next), Recv(ctx, g.On(c), recv, previous), g.Run(ctx)); err != nil {
			return err
		}
		for i, got := range recv {
			if want := value(previous, round, i); got != want {
				return fmt.Errorf("rank %d, round %d: element %d received is %#x, want %#x", c.Rank(), round, i, got, want)
			}
		}
	}
	return nil
}
