package transport

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/spin"
)

// never is a Watch that reports a context's end only.
type never struct{}

func (never) Failed() error                { return nil }
func (never) Inspect(spin.Condition) error { return nil }
func (never) Expired(c spin.Condition, err error) error {
	return fmt.Errorf("rank %d: %w", c.Peer(), err)
}

func newWaiter(ctx context.Context, p spin.Policy) *spin.Waiter {
	w := spin.NewWaiter(p, 2)
	w.Bind(ctx, never{}, 0)
	return w
}

// dawdle is what makes interleavings differ: mostly nothing, sometimes a yield,
// seldom long enough for the other side to park.
func dawdle(r *rand.Rand) {
	switch n := r.IntN(400); {
	case n == 0:
		time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
	case n < 40:
		runtime.Gosched()
	}
}

// One producer and one consumer, each at its own whim; every slot carries its
// number in all its words and its header. The race detector checks that tail and
// head alone order the accesses.
func TestRingBufferUnderRandomDelays(t *testing.T) {
	const steps = 6000
	for p := spin.Adaptive; p <= spin.Block; p++ {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, s, r := bothEnds(t, Line, 1<<32-steps/2)
			var both sync.WaitGroup
			var sendErr, recvErr error
			// The two sides must agree on the sizes: a chunk is 1, 2 or 4 steps.
			sizes := func() func() int {
				r := rand.New(rand.NewPCG(seed, 1))
				return func() int { return 1 << r.IntN(3) }
			}
			both.Go(func() { sendErr = produce(newWaiter(ctx, p), s, steps, sizes(), rand.New(rand.NewPCG(seed, 2))) })
			both.Go(func() { recvErr = consume(newWaiter(ctx, p), r, steps, sizes(), rand.New(rand.NewPCG(seed, 3))) })
			both.Wait()
			require.NoError(t, sendErr)
			require.NoError(t, recvErr)
			require.Equal(t, s.Step(), r.Step())
		})
	}
}

func produce(w *spin.Waiter, s *SendEnd, steps int, size func() int, delay *rand.Rand) error {
	for done := 0; done < steps; {
		n := size()
		s.RoundUp(n)
		if err := w.Until(s.Credit(n)); err != nil {
			return err
		}
		memory := s.Slot(n)
		for at := 0; at < len(memory); at += 8 {
			binary.LittleEndian.PutUint64(memory[at:], uint64(done)<<16|uint64(at))
		}
		dawdle(delay)
		s.Post(n, uint64(done), len(s.Slot(n)))
		done += n
	}
	return nil
}

func consume(w *spin.Waiter, r *RecvEnd, steps int, size func() int, delay *rand.Rand) error {
	for done := 0; done < steps; {
		n := size()
		r.RoundUp(n)
		if err := w.Until(r.Filled(n)); err != nil {
			return err
		}
		if r.Header() != uint64(done) {
			return fmt.Errorf("slot of chunk %d has header %d", done, r.Header())
		}
		dawdle(delay)
		memory := r.Slot(n)
		for at := 0; at < len(memory); at += 8 {
			if got, want := binary.LittleEndian.Uint64(memory[at:]), uint64(done)<<16|uint64(at); got != want {
				return fmt.Errorf("chunk %d, byte %d: %#x, want %#x", done, at, got, want)
			}
		}
		r.Release(n)
		done += n
	}
	return nil
}

// Both sides park at once whenever they must wait, in a FIFO in which they must
// wait all the time. A lost wake-up shows as a sleep that only its own timer ends:
// no bell, no end.
func TestNoWakeUpOfAFIFOIsLost(t *testing.T) {
	const rounds = 20000
	_, s, r := bothEnds(t, Line, 0)
	type side struct {
		c       func() spin.Condition
		advance func()
	}
	ping := side{func() spin.Condition { return s.Credit(Slots) }, func() { s.Post(Slots, 0, len(s.Slot(Slots))) }}
	pong := side{func() spin.Condition { return r.Filled(Slots) }, func() { r.Release(Slots) }}
	var both sync.WaitGroup
	lost := make(chan string, 2)
	for name, me := range map[string]side{"producer": ping, "consumer": pong} {
		both.Go(func() {
			p := spin.NewParker()
			for i := range rounds {
				c := me.c()
				for !c.Ready() {
					token := p.Token()
					c.Arm(p)
					if c.Ready() {
						c.Disarm()
						break
					}
					if !p.Sleep(token, nil, 20*time.Second) {
						lost <- fmt.Sprintf("%s slept through round %d", name, i)
						return
					}
					c.Disarm()
				}
				me.advance()
			}
		})
	}
	both.Wait()
	close(lost)
	for text := range lost {
		t.Error(text)
	}
}
