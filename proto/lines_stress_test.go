package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// A writer and a reader go over the same lines at the same time, without credit:
// whatever the reader takes under a step's flag is that step's data. A word of a
// step holds the step, so that any mixture is seen. Lines begin at other places of
// cache lines from step to step.
func TestAReaderTakesNoLineThatIsHalfWritten(t *testing.T) {
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			rounds := uint64(4000)
			if testing.Short() {
				rounds /= 10
			}
			n := 40*f.payload() + 4
			memory := slotMemory(t, (linesOf(f, n)+4)*f.lineBytes())
			from := func(step uint64) []byte { return memory[step%4*uint64(f.lineBytes()):] }
			var started, finished atomic.Uint64
			var reader sync.WaitGroup
			reader.Go(func() {
				defer finished.Store(rounds)
				dst := make([]byte, n)
				for step := uint64(1); step < rounds; step++ {
					lines := from(step)
					for started.Load() < step {
						runtime.Gosched()
					}
					for done := 0; done < n; {
						at := done / f.payload() * f.lineBytes()
						took := f.unpack(dst[done:], lines[at:], f.flag(step))
						for ; took > 0; took -= 4 {
							if got := binary.LittleEndian.Uint32(dst[done:]); got != uint32(step) {
								t.Errorf("step %d: byte %d is of step %d", step, done, got)
								return
							}
							done += 4
						}
						if took == 0 {
							runtime.Gosched()
						}
					}
					finished.Store(step)
				}
			})
			src := make([]byte, n)
			for step := uint64(1); step < rounds; step++ {
				for at := 0; at < n; at += 4 {
					binary.LittleEndian.PutUint32(src[at:], uint32(step))
				}
				started.Store(step)
				f.pack(from(step), src, f.flag(step))
				for finished.Load() < step {
					runtime.Gosched()
				}
			}
			reader.Wait()
		})
	}
}

// The reader announces that it will sleep and looks once more, the writer writes
// and looks for sleepers: at least one of them must see the other, or the reader
// sleeps for ever. It looks at the last line, which is the longest on its way.
func TestNoWakeUpIsLostBetweenLinesAndBell(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("needs two processors")
	}
	seed, rounds := seedAndRounds(t)
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 23))
			const n = 600
			conn := newConn(t, slotBytes(f, n), 0)
			s, r := transport.NewSendEnd(conn, 1), transport.NewRecvEnd(conn, 0)
			out, in := newLined(f, Ends{To: []*transport.SendEnd{s}}), newLined(f, Ends{From: []*transport.RecvEnd{r}})
			out.Begin(Operation{Waiter: boundWaiter(t.Context())})
			in.Begin(Operation{Waiter: boundWaiter(t.Context())})
			var turn atomic.Int64
			var writer sync.WaitGroup
			var failed error
			total := int64(30000 * rounds)
			if testing.Short() {
				total /= 10
			}
			writer.Go(func() {
				chunk := make([]byte, n)
				for step := range total {
					for turn.Load() <= step {
						runtime.Gosched()
					}
					if failed = out.Send(chunk); failed != nil {
						return
					}
				}
			})
			defer turn.Store(total) // a failure lets the writer go on to the end of its context
			for step := range total {
				parker := spin.NewParker() // no wake-up of an earlier step is pending
				turn.Store(step + 1)
				for range random.IntN(2000) {
					turn.Load()
				}
				token := parker.Token()
				r.Arm(parker)
				last := lineFlag{end: r, format: f, line: r.Slot(1)[linesOf(f, n)*f.lineBytes():], flag: f.flag(r.Step())}
				if !last.Ready() && !parker.Sleep(token, nil, 20*time.Second) {
					require.Fail(t, "a wake-up was lost", fmt.Sprintf("step %d, seed %d", step, seed))
				}
				r.Disarm()
				require.NoError(t, in.Recv(make([]byte, n)))
			}
			writer.Wait()
			require.NoError(t, failed)
		})
	}
}

// SetBytes counts the payload.
func BenchmarkLines(b *testing.B) {
	for _, f := range formats {
		for _, n := range []int{8, 3840, 64 << 10} {
			src, dst := make([]byte, n), make([]byte, n)
			lines := slotMemory(b, linesOf(f, n)*f.lineBytes())
			b.Run(fmt.Sprintf("format=%s/do=pack/bytes=%d", f.name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					f.pack(lines, src, f.flag(1))
				}
			})
			b.Run(fmt.Sprintf("format=%s/do=unpack/bytes=%d", f.name, n), func(b *testing.B) {
				f.pack(lines, src, f.flag(1))
				b.SetBytes(int64(n))
				for b.Loop() {
					f.unpack(dst, lines, f.flag(1))
				}
			})
		}
	}
}

// One chunk through a FIFO by a goroutine that is both ends, so that nobody waits.
func BenchmarkStep(b *testing.B) {
	for _, f := range formats {
		for _, n := range []int{8, 256, 32 << 10} {
			b.Run(fmt.Sprintf("format=%s/bytes=%d", f.name, n), func(b *testing.B) {
				conn, err := transport.NewConn(slotBytes(f, n), 0)
				require.NoError(b, err)
				out := newLined(f, Ends{To: []*transport.SendEnd{transport.NewSendEnd(conn, 1)}})
				in := newLined(f, Ends{From: []*transport.RecvEnd{transport.NewRecvEnd(conn, 0)}})
				out.Begin(Operation{Waiter: boundWaiter(b.Context())})
				in.Begin(Operation{Waiter: boundWaiter(b.Context())})
				src, dst := make([]byte, n), make([]byte, n)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					if err := errors.Join(out.Send(src), in.Recv(dst)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
