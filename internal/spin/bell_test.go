package spin

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestAWakeUpThatComesEarlyIsKept(t *testing.T) {
	p := NewParker()
	p.Wake()
	<-p.Woken()
}

func TestManyWakeUpsAreOne(t *testing.T) {
	p := NewParker()
	for range 5 {
		p.Wake()
	}
	<-p.Woken()
	select {
	case <-p.Woken():
		t.Fatal("a second wake-up")
	default:
	}
}

func TestABellWakesWhoArmedItAndNobodyElse(t *testing.T) {
	woken := func(p *Parker) bool {
		select {
		case <-p.Woken():
			return true
		default:
			return false
		}
	}
	var b Bell
	p, q := NewParker(), NewParker()
	b.Ring()
	b.Arm(p)
	require.False(t, woken(p), "it rang before")
	b.Ring()
	require.True(t, woken(p))
	b.Ring()
	require.True(t, woken(p), "it stays armed")
	b.Disarm()
	b.Ring()
	require.False(t, woken(p))
	b.Arm(q)
	b.Ring()
	require.False(t, woken(p))
	require.True(t, woken(q))
}

// Two bells side by side, as in a FIFO, are written by different ends.
func TestBellsDoNotShareALine(t *testing.T) {
	require.EqualValues(t, 128, unsafe.Sizeof(Bell{}))
}

// Two goroutines hand a ball to each other, and sleep without a timer when it is
// not their turn. Each makes the other's condition true and then rings; each arms
// its bell and then looks once more. If one wake-up were lost both would sleep.
func TestNoWakeUpIsLostBetweenArmingAndTheLastLook(t *testing.T) {
	const rounds = 30000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var ball atomic.Uint64 // even: the first one's turn
	var bells [2]Bell
	var lost atomic.Bool
	var players sync.WaitGroup
	for me := range uint64(2) {
		players.Go(func() {
			p, random := NewParker(), rand.New(rand.NewPCG(seed, me))
			for turn := me; turn < 2*rounds; turn += 2 {
				for ball.Load() != turn {
					bells[me].Arm(p)
					if random.IntN(64) == 0 {
						runtime.Gosched()
					}
					if ball.Load() != turn {
						select {
						case <-p.Woken():
						case <-time.After(20 * time.Second):
							lost.Store(true)
							return
						}
					}
					bells[me].Disarm()
				}
				ball.Store(turn + 1)
				bells[1-me].Ring()
			}
		})
	}
	players.Wait()
	require.False(t, lost.Load(), "both sleep at turn %d", ball.Load())
}

// One goroutine waits at many bells, as a block does that serves many messages.
func TestOneParkerServesManyBells(t *testing.T) {
	const bells, rounds = 7, 3000
	var counts [bells]atomic.Uint64
	var all [bells]Bell
	var ringers sync.WaitGroup
	var taken [bells]atomic.Uint64
	for i := range bells {
		ringers.Go(func() {
			for n := uint64(1); n <= rounds; n++ {
				for taken[i].Load()+8 < n { // as many as a FIFO holds
					runtime.Gosched()
				}
				counts[i].Store(n)
				all[i].Ring()
			}
		})
	}
	p := NewParker()
	ready := func() bool {
		for i := range bells {
			if counts[i].Load() > taken[i].Load() {
				return true
			}
		}
		return false
	}
	for total := 0; total < bells*rounds; {
		for !ready() {
			for i := range all {
				all[i].Arm(p)
			}
			if !ready() {
				select {
				case <-p.Woken():
				case <-time.After(20 * time.Second):
					t.Errorf("slept with %d of %d taken", total, bells*rounds)
					for i := range bells { // let the ringers end
						taken[i].Store(rounds)
					}
					ringers.Wait()
					return
				}
			}
			for i := range all {
				all[i].Disarm()
			}
		}
		for i := range bells {
			n := counts[i].Load()
			total += int(n - taken[i].Load())
			taken[i].Store(n)
		}
	}
	ringers.Wait()
}
