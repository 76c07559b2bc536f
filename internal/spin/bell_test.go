package spin

import (
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// parkers returns one of each kind that this system has.
func parkers(t *testing.T) map[string]*Parker {
	t.Helper()
	kinds := map[string]*Parker{"within a process": NewParker(), "on a sleeper": NewParkerOn(newCouch())}
	if runtime.GOOS == "linux" {
		kinds["between processes"] = NewBedParker(beds(t, 3), 2)
	}
	return kinds
}

func beds(t *testing.T, n int) []Bed {
	t.Helper()
	memory := make([]byte, (n+1)*BedBytes)
	skip := -int(reflect.ValueOf(memory).Pointer()) & (BedBytes - 1)
	beds, err := BedsIn(memory[skip : skip+n*BedBytes])
	require.NoError(t, err)
	require.Len(t, beds, n)
	return beds
}

// pairOfBells is two bells and who waits at them.
type pairOfBells struct {
	bells   *[2]Bell
	parkers [2]*Parker
}

// bellPairs returns a pair of each kind that this system has.
func bellPairs(t *testing.T) map[string]pairOfBells {
	t.Helper()
	kinds := map[string]pairOfBells{
		"within a process": {new([2]Bell), [2]*Parker{NewParker(), NewParker()}},
		"on a sleeper":     {new([2]Bell), [2]*Parker{NewParkerOn(newCouch()), NewParkerOn(newCouch())}},
	}
	if runtime.GOOS == "linux" {
		shared := pairOfBells{bells: new([2]Bell)}
		for i := range shared.bells {
			sleeping := beds(t, 2)
			shared.bells[i].Share(&SharedBell{Sleeper: new(atomic.Uint32), Beds: sleeping})
			shared.parkers[i] = NewBedParker(sleeping, uint32(1+i))
		}
		kinds["between processes"] = shared
	}
	return kinds
}

func TestBedsAreNotMadeOfMemoryThatBeginsAnywhere(t *testing.T) {
	require.EqualValues(t, 128, BedBytes)
	memory := make([]byte, 4*BedBytes)
	skip := -int(reflect.ValueOf(memory).Pointer()) & (BedBytes - 1)
	for _, wrong := range [][]byte{nil, memory[skip : skip+BedBytes-1], memory[skip+8 : skip+8+BedBytes]} {
		_, err := BedsIn(wrong)
		require.Error(t, err)
	}
}

// What another process wrote into the word must not lead anywhere.
func TestABedNumberFromOutsideIsChecked(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("beds are Linux's")
	}
	var b Bell
	sleeping := beds(t, 2)
	sleeper := new(atomic.Uint32)
	b.Share(&SharedBell{Sleeper: sleeper, Beds: sleeping})
	for _, n := range []uint32{0, 3, 1 << 31, 1<<32 - 1} {
		sleeper.Store(n)
		b.Ring()
	}
	for i := range sleeping {
		require.Zero(t, sleeping[i].word.Load())
	}
	sleeper.Store(2)
	b.Ring()
	require.EqualValues(t, 1, sleeping[1].word.Load())
}

func TestAWakeUpThatComesEarlyIsKept(t *testing.T) {
	for name, p := range parkers(t) {
		token := p.Token()
		p.Wake()
		require.True(t, p.Sleep(token, nil, 20*time.Second), name)
	}
}

func TestManyWakeUpsAreOne(t *testing.T) {
	for name, p := range parkers(t) {
		token := p.Token()
		for range 5 {
			p.Wake()
		}
		require.True(t, p.Sleep(token, nil, 20*time.Second), name)
		require.False(t, p.Sleep(p.Token(), nil, time.Millisecond), "%s: a second wake-up", name)
	}
}

func TestABellWakesWhoArmedItAndNobodyElse(t *testing.T) {
	woken := func(p *Parker) bool { return p.Sleep(p.Token(), nil, 20*time.Second) }
	asleep := func(p *Parker) bool { return !p.Sleep(p.Token(), nil, time.Millisecond) }
	var b Bell
	p, q := NewParker(), NewParker()
	b.Ring()
	b.Arm(p)
	require.True(t, asleep(p), "it rang before")
	b.Ring()
	require.True(t, woken(p))
	b.Ring()
	require.True(t, woken(p), "it stays armed")
	b.Disarm()
	b.Ring()
	require.True(t, asleep(p))
	b.Arm(q)
	b.Ring()
	require.True(t, asleep(p))
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
	for name, pair := range bellPairs(t) {
		t.Run(name, func(t *testing.T) { playBall(t, pair.bells, pair.parkers) })
	}
}

func playBall(t *testing.T, bells *[2]Bell, parkers [2]*Parker) {
	rounds := uint64(20000)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var ball atomic.Uint64 // even: the first one's turn
	var lost atomic.Bool
	var players sync.WaitGroup
	for me := range uint64(2) {
		players.Go(func() {
			p, random := parkers[me], rand.New(rand.NewPCG(seed, me))
			for turn := me; turn < 2*rounds; turn += 2 {
				for ball.Load() != turn {
					token := p.Token()
					bells[me].Arm(p)
					if random.IntN(64) == 0 {
						runtime.Gosched()
					}
					if ball.Load() != turn {
						if !p.Sleep(token, nil, 20*time.Second) {
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
			token := p.Token()
			for i := range all {
				all[i].Arm(p)
			}
			if !ready() {
				if !p.Sleep(token, nil, 20*time.Second) {
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
