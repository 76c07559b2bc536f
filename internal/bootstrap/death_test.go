package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// seed makes a random test repeatable: BOOTSTRAP_SEED, or a new one, printed.
func seed(t *testing.T) *rand.Rand {
	s := uint64(time.Now().UnixNano())
	if text := os.Getenv("BOOTSTRAP_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		s = n
	}
	t.Logf("BOOTSTRAP_SEED=%d", s)
	return rand.New(rand.NewPCG(s, 1))
}

func TestEverySurvivorNamesTheDead(t *testing.T) {
	for _, network := range networks {
		for _, n := range []int{2, 3, 4, 7} {
			for dead := range n {
				t.Run(fmt.Sprintf("%s %d of %d", network, dead, n), func(t *testing.T) {
					j := startJob(t, n, network)
					j.c[dead].vanish()
					require.NoError(t, eachRank(n, func(r int) error {
						if r == dead {
							return nil
						}
						return j.w[r].untilEnded([]int{dead}, nil)
					}))
				})
			}
		}
	}
}

// Any set of processes may die at the same moment, and others leave meanwhile:
// every survivor hears of each once, and of nobody else.
func TestManyDeathsAtOnce(t *testing.T) {
	rng := seed(t)
	for round := range 12 {
		n := 2 + rng.IntN(29)
		var dead, leave, stay []int
		chance := rng.Float64()
		for r := range n {
			switch {
			case rng.Float64() < chance && len(dead) < n-1:
				dead = append(dead, r)
			case rng.IntN(5) == 0:
				leave = append(leave, r)
			default:
				stay = append(stay, r)
			}
		}
		t.Run(fmt.Sprintf("round %d: %v of %d, %v leave", round, dead, n, leave), func(t *testing.T) {
			j := startJob(t, n, networks[rng.IntN(2)])
			var wg sync.WaitGroup
			for _, r := range dead {
				wg.Add(1)
				go func() {
					defer wg.Done()
					j.c[r].vanish()
				}()
			}
			for _, r := range leave {
				wg.Add(1)
				go func() {
					defer wg.Done()
					// Its neighbours may all be among the dead.
					if err := j.c[r].Close(context.Background()); err != nil {
						t.Logf("rank %d: %v", r, err)
					}
				}()
			}
			wg.Wait()
			for _, r := range stay {
				require.NoError(t, j.w[r].untilEnded(dead, leave), "rank %d", r)
			}
		})
	}
}

// All survivors end up with the same messages of a process that dies while it
// talks, and they are the first ones it sent.
func TestSurvivorsAgreeOnTheLastWords(t *testing.T) {
	rng := seed(t)
	for range 10 {
		n := 3 + rng.IntN(10)
		j := startJob(t, n, networks[rng.IntN(2)])
		dead := rng.IntN(n)
		told := make(chan struct{})
		go func() {
			defer close(told)
			for i := 0; j.c[dead].Tell(fmt.Append(nil, i)) == nil && i < 2000; i++ {
				if i == 1000 {
					go j.c[dead].vanish()
				}
			}
		}()
		<-told
		<-j.c[dead].ended
		survivors := slices.DeleteFunc(ascending(n), func(r int) bool { return r == dead })
		for _, r := range survivors {
			require.NoError(t, j.w[r].untilEnded([]int{dead}, nil))
		}
		// One more word from everybody, after which nothing of the dead can come.
		require.NoError(t, eachRank(n, func(r int) error {
			if r == dead {
				return nil
			}
			return j.c[r].Tell([]byte("end"))
		}))
		for _, r := range survivors {
			require.NoError(t, j.w[r].until(func() bool {
				for _, s := range survivors {
					if s != r && len(j.w[r].messages[s]) == 0 {
						return false
					}
				}
				return true
			}))
		}
		var want []string
		for i := range len(j.w[survivors[0]].from(dead)) {
			want = append(want, fmt.Sprint(i))
		}
		for _, r := range survivors {
			require.Equal(t, want, j.w[r].from(dead), "rank %d", r)
		}
		j.closeAll()
	}
}

func ascending(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// Connections that are cut while both processes live are made again: nobody is
// accused, nothing is lost or heard twice.
func TestACutConnectionIsNotADeath(t *testing.T) {
	rng := seed(t)
	for _, network := range networks {
		for _, n := range []int{2, 3, 9} {
			t.Run(fmt.Sprintf("%s %d", network, n), func(t *testing.T) {
				j := startJob(t, n, network)
				const each = 200
				for i := range each {
					for r := range n {
						require.NoError(t, j.c[r].Tell(fmt.Append(nil, i)))
					}
					if i%10 == 0 {
						c := j.c[rng.IntN(n)]
						c.mu.Lock()
						for _, l := range c.links {
							if rng.IntN(2) == 0 {
								l.conn.Close()
							}
						}
						c.mu.Unlock()
					}
				}
				var want []string
				for i := range each {
					want = append(want, fmt.Sprint(i))
				}
				for r := range n {
					for from := range n {
						if from == r {
							continue
						}
						require.NoError(t, j.w[r].until(func() bool { return len(j.w[r].messages[from]) >= each }))
						require.Equal(t, want, j.w[r].from(from))
					}
					require.NoError(t, j.w[r].untilEnded(nil, nil))
				}
			})
		}
	}
}

// A peer that sends nonsense after it has proved the secret loses the link and
// nothing else.
func TestNonsenseOnALinkOnlyEndsTheLink(t *testing.T) {
	for name, frame := range map[string][]byte{
		"unknown kind":   {0, 0, 0, 0, 99},
		"too long":       {0xff, 0xff, 0xff, 0xff, uint8(frameEntry)},
		"bad entry":      appendFrameHead(nil, frameEntry, 0),
		"gap":            newEntry(0, 1000, entryMessage).frame,
		"bad token":      append(appendFrameHead(nil, frameToken, 1), 0),
		"second digest":  digestFrame(nil),
		"short flush":    append(appendFrameHead(nil, frameFlush, 1), 0),
		"foreign origin": newEntry(7, 1, entryMessage).frame,
	} {
		t.Run(name, func(t *testing.T) {
			j := startJob(t, 3, NetworkLocal)
			c := j.c[0]
			c.mu.Lock()
			c.links[0].send(frame)
			c.mu.Unlock()
			require.NoError(t, c.Tell([]byte("still here")))
			for r := 1; r < 3; r++ {
				require.NoError(t, j.w[r].until(func() bool { return len(j.w[r].messages[0]) == 1 }))
				require.NoError(t, j.w[r].untilEnded(nil, nil))
			}
		})
	}
}

// A process that the others have given up hears it, when it comes back.
func TestTheLostAreTold(t *testing.T) {
	j := startJob(t, 4, NetworkLocal)
	j.c[1].mu.Lock()
	j.c[1].lose(3, "a test says so")
	j.c[1].mu.Unlock()
	for r := range 3 {
		require.NoError(t, j.w[r].untilEnded([]int{3}, nil))
		require.Equal(t, 1, j.w[r].lost[3].By)
	}
	require.NoError(t, j.w[3].untilEnded([]int{3}, nil))
	require.ErrorIs(t, j.c[3].Tell(nil), ErrLost)
	require.NoError(t, j.c[3].Close(context.Background()))
}

func TestWhatCountsAsDead(t *testing.T) {
	const soon, later, muchLater = 0, time.Second, time.Hour
	for _, tc := range []struct {
		name  string
		past  linkPast
		what  trouble
		tried time.Duration
		want  bool
	}{
		{"link closed, nobody listens", linkClosed, troubleRefused, soon, true},
		{"link timed out, nobody listens", linkTimedOut, troubleRefused, soon, true},
		{"never linked, nobody listens now", neverLinked, troubleRefused, soon, false},
		{"never linked, nobody listens for long", neverLinked, troubleRefused, later, true},
		{"link closed, hangs up", linkClosed, troubleReset, soon, false},
		{"link closed, hangs up for long", linkClosed, troubleReset, later, true},
		{"never linked, hangs up, overrun perhaps", neverLinked, troubleReset, later, false},
		{"never linked, hangs up for very long", neverLinked, troubleReset, muchLater, true},
		{"link closed, host silent", linkClosed, troubleUnreachable, later, false},
		{"link closed, host silent for long", linkClosed, troubleUnreachable, muchLater, true},
		{"never linked, host silent for long", neverLinked, troubleUnreachable, muchLater, true},
		{"never linked, stopped", neverLinked, troubleSilent, muchLater, false},
		{"link timed out, stopped", linkTimedOut, troubleSilent, muchLater, false},
		{"link closed, another program accepts there", linkClosed, troubleSilent, muchLater, true},
		{"link closed, no answer yet", linkClosed, troubleSilent, later, false},
		{"our own trouble", neverLinked, troubleLocal, muchLater, false},
		{"our own trouble, link timed out", linkTimedOut, troubleLocal, muchLater, false},
	} {
		t.Run(tc.name, func(t *testing.T) { require.Equal(t, tc.want, dead(tc.past, tc.what, tc.tried, tc.tried, unreachable)) })
	}
	require.False(t, dead(neverLinked, troubleReset, soon, muchLater, unreachable), "hangs up once, after it had been stopped")
	require.False(t, dead(neverLinked, troubleRefused, soon, muchLater, unreachable))
}

func TestARunOfFailuresEndsWithAPause(t *testing.T) {
	var d dialling
	start := time.Now()
	at := func(ms int) time.Duration { return d.fail(start.Add(time.Duration(ms) * time.Millisecond)) }
	require.Zero(t, at(0))
	require.Equal(t, 100*time.Millisecond, at(100))
	require.Equal(t, 300*time.Millisecond, at(300))
	require.Zero(t, at(5000), "one of the two was stopped in between")
	require.Equal(t, 50*time.Millisecond, at(5050))
}

func TestPastOfALink(t *testing.T) {
	require.Equal(t, neverLinked, pastOf(nil))
	require.Equal(t, linkClosed, pastOf(io.EOF))
	require.Equal(t, linkClosed, pastOf(fmt.Errorf("read: %w", syscall.ECONNRESET)))
	require.Equal(t, linkClosed, pastOf(errors.New("anything else")))
	require.Equal(t, linkTimedOut, pastOf(fmt.Errorf("read: %w", syscall.ETIMEDOUT)))
	require.Equal(t, linkTimedOut, pastOf(os.ErrDeadlineExceeded))
}
