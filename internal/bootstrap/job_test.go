package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// patient is longer than anything here takes on a loaded machine; it only ends
// tests that would hang.
const patient = 60 * time.Second

var networks = []string{NetworkLocal, NetworkTCP}

// watcher collects what one process's handler is told.
type watcher struct {
	mu       sync.Mutex
	messages map[int][]string
	order    []string // everything, as it came
	lost     map[int]*LostError
	left     map[int]bool
	twice    []string
	changed  chan struct{}
}

func newWatcher() *watcher {
	return &watcher{messages: map[int][]string{}, lost: map[int]*LostError{}, left: map[int]bool{}, changed: make(chan struct{})}
}

func (w *watcher) handler() Handler {
	note := func(what string, f func()) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.order = append(w.order, what)
		f()
		close(w.changed)
		w.changed = make(chan struct{})
	}
	return Handler{
		Message: func(from int, m []byte) {
			note(fmt.Sprintf("%d says %s", from, m), func() { w.messages[from] = append(w.messages[from], string(m)) })
		},
		Lost: func(rank int, err error) {
			note(fmt.Sprintf("%d lost", rank), func() {
				if w.lost[rank] != nil || w.left[rank] {
					w.twice = append(w.twice, fmt.Sprintf("rank %d ended twice: %v", rank, err))
				}
				errors.As(err, new(*LostError))
				w.lost[rank] = err.(*LostError)
			})
		},
		Left: func(rank int) {
			note(fmt.Sprintf("%d left", rank), func() {
				if w.lost[rank] != nil || w.left[rank] {
					w.twice = append(w.twice, fmt.Sprintf("rank %d ended twice", rank))
				}
				w.left[rank] = true
			})
		},
	}
}

// until waits until cond, called under w.mu, is true.
func (w *watcher) until(cond func() bool) error {
	deadline := time.After(patient)
	for {
		w.mu.Lock()
		ok, changed := cond(), w.changed
		w.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-deadline:
			w.mu.Lock()
			defer w.mu.Unlock()
			return fmt.Errorf("waited in vain; heard %q", w.order)
		}
	}
}

// untilEnded waits until exactly these ranks are lost and left.
func (w *watcher) untilEnded(lost, left []int) error {
	err := w.until(func() bool { return len(w.lost) >= len(lost) && len(w.left) >= len(left) })
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		return fmt.Errorf("want %v lost and %v left: %w", lost, left, err)
	}
	if gotLost, gotLeft := keys(w.lost), keys(w.left); !slices.Equal(gotLost, lost) || !slices.Equal(gotLeft, left) || w.twice != nil {
		return fmt.Errorf("lost %v and left %v, want %v and %v; twice: %q", gotLost, gotLeft, lost, left, w.twice)
	}
	return nil
}

// from is a copy of what a process has said, and heard one of the whole story.
func (w *watcher) from(rank int) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.messages[rank])
}

func (w *watcher) heard() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.order)
}

func keys[V any](m map[int]V) []int {
	out := make([]int, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// job is n processes in this one.
type job struct {
	t    testing.TB
	root *Root
	c    []*Control
	w    []*watcher
}

func startRoot(t testing.TB, c ListenConfig) *Root {
	t.Helper()
	if c.Network == NetworkTCP {
		c.Network, c.Interfaces, c.Family = "tcp", "=lo", FamilyIPv4
		if !hasInterface("lo") {
			c.Interfaces = ""
		}
	}
	r, err := Listen(c)
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

func hasInterface(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

func startJob(t testing.TB, n int, network string) *job {
	t.Helper()
	j := &job{t: t, root: startRoot(t, ListenConfig{Network: network}), c: make([]*Control, n), w: make([]*watcher, n)}
	require.NoError(t, eachRank(n, func(r int) (err error) {
		j.c[r], err = Join(context.Background(), Config{ID: j.root.ID(), Rank: r, Size: n, Description: fmt.Appendf(nil, "I am %d", r), Timeout: patient})
		return err
	}))
	for r := range n {
		j.w[r] = newWatcher()
		j.c[r].Handle(j.w[r].handler())
	}
	t.Cleanup(func() { j.closeAll() })
	return j
}

// eachRank runs f for all ranks at once.
func eachRank(n int, f func(r int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(r); err != nil {
				errs[r] = fmt.Errorf("rank %d: %w", r, err)
			}
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (j *job) closeAll() {
	err := eachRank(len(j.c), func(r int) error {
		if j.c[r].isDown() {
			return nil
		}
		return j.c[r].Close(context.Background())
	})
	require.NoError(j.t, err)
}

func (c *Control) isDown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down
}

// vanish ends a process's part as the kernel does when it is killed.
func (c *Control) vanish() {
	c.mu.Lock()
	c.down = true
	c.mu.Unlock()
	if c.gate != nil {
		c.gate.Close()
	}
	c.shutDown()
	<-c.ended
}

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	goleak.VerifyTestMain(m)
}

func TestEveryoneKnowsEveryDescription(t *testing.T) {
	for _, network := range networks {
		for _, n := range []int{1, 2, 3, 4, 5, 9, 33} {
			t.Run(fmt.Sprintf("%s %d", network, n), func(t *testing.T) {
				j := startJob(t, n, network)
				for r, c := range j.c {
					require.Equal(t, r, c.Rank())
					require.Equal(t, n, c.Size())
					require.Len(t, c.Descriptions(), n)
					for i, d := range c.Descriptions() {
						require.Equal(t, fmt.Sprintf("I am %d", i), string(d))
					}
				}
			})
		}
	}
}

func TestTwoHundredProcesses(t *testing.T) {
	const n = 200
	j := startJob(t, n, NetworkLocal)
	require.NoError(t, j.c[17].Tell([]byte("hello")))
	require.NoError(t, eachRank(n, func(r int) error {
		if r == 17 {
			return nil
		}
		return j.w[r].until(func() bool { return slices.Equal(j.w[r].messages[17], []string{"hello"}) })
	}))
	for r, c := range j.c {
		c.mu.Lock()
		links := len(c.links)
		c.mu.Unlock()
		require.LessOrEqual(t, links, 6, "rank %d", r)
	}
}

func TestMessagesKeepTheirOrder(t *testing.T) {
	for _, n := range []int{2, 3, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const each = 300
			j := startJob(t, n, NetworkLocal)
			require.NoError(t, eachRank(n, func(r int) error {
				for i := range each {
					if err := j.c[r].Tell(fmt.Append(nil, i)); err != nil {
						return err
					}
				}
				return nil
			}))
			var want []string
			for i := range each {
				want = append(want, fmt.Sprint(i))
			}
			require.NoError(t, eachRank(n, func(r int) error {
				for from := range n {
					if from == r {
						continue
					}
					err := j.w[r].until(func() bool { return len(j.w[r].messages[from]) >= each })
					if err != nil {
						return err
					}
					if got := j.w[r].from(from); !slices.Equal(got, want) {
						return fmt.Errorf("from %d: %q", from, got)
					}
				}
				return nil
			}))
		})
	}
}

// A handler may tell: an answer never overtakes what it answers, anywhere.
func TestAnAnswerComesAfterItsQuestion(t *testing.T) {
	const n, questions = 5, 50
	root := startRoot(t, ListenConfig{Network: NetworkLocal})
	w := make([]*watcher, n)
	c := make([]*Control, n)
	require.NoError(t, eachRank(n, func(r int) (err error) {
		w[r] = newWatcher()
		c[r], err = Join(context.Background(), Config{ID: root.ID(), Rank: r, Size: n})
		if err != nil {
			return err
		}
		h := w[r].handler()
		note := h.Message
		h.Message = func(from int, m []byte) {
			note(from, m)
			if r == 1 && strings.HasPrefix(string(m), "question") {
				c[1].Tell([]byte("answer to " + string(m)))
			}
		}
		c[r].Handle(h)
		return nil
	}))
	for i := range questions {
		require.NoError(t, c[0].Tell(fmt.Appendf(nil, "question %d", i)))
	}
	for r := 2; r < n; r++ {
		require.NoError(t, w[r].until(func() bool { return len(w[r].messages[0]) == questions && len(w[r].messages[1]) == questions }))
	}
	require.NoError(t, eachRank(n, func(r int) error { return c[r].Close(context.Background()) }))
	for r := 2; r < n; r++ {
		for i := range questions {
			q := slices.Index(w[r].heard(), fmt.Sprintf("0 says question %d", i))
			a := slices.Index(w[r].heard(), fmt.Sprintf("1 says answer to question %d", i))
			require.Less(t, q, a)
		}
	}
}

func TestAllGather(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			j := startJob(t, n, NetworkLocal)
			require.NoError(t, eachRank(n, func(r int) error {
				for call := range 20 {
					var mine []byte // of different lengths, empty as well
					if (r+call)%3 != 0 {
						mine = fmt.Appendf(nil, "%d of %d", call, r)
					}
					all, err := j.c[r].AllGather(context.Background(), mine)
					if err != nil {
						return err
					}
					for i, got := range all {
						want := ""
						if (i+call)%3 != 0 {
							want = fmt.Sprintf("%d of %d", call, i)
						}
						if string(got) != want {
							return fmt.Errorf("call %d, part %d: %q, want %q", call, i, got, want)
						}
					}
				}
				return nil
			}))
		})
	}
}

func TestAllGatherNamesWhoIsMissing(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*Control)
		is   error
	}{
		{"lost", (*Control).vanish, ErrLost},
		{"left", func(c *Control) { c.Close(context.Background()) }, ErrLeft},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := startJob(t, 4, NetworkLocal)
			go tc.end(j.c[2])
			require.NoError(t, eachRank(4, func(r int) error {
				if r == 2 {
					return nil
				}
				_, err := j.c[r].AllGather(context.Background(), nil)
				if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), "rank 2") {
					return fmt.Errorf("got %v", err)
				}
				if _, again := j.c[r].AllGather(context.Background(), nil); !errors.Is(again, tc.is) {
					return fmt.Errorf("then %v", again)
				}
				return nil
			}))
			<-j.c[2].ended
		})
	}
	t.Run("late", func(t *testing.T) {
		j := startJob(t, 2, NetworkLocal)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := j.c[0].AllGather(ctx, nil)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// What was told before Close arrives, whoever leaves when.
func TestCloseLosesNothing(t *testing.T) {
	for _, network := range networks {
		for _, n := range []int{2, 3, 6} {
			t.Run(fmt.Sprintf("%s %d", network, n), func(t *testing.T) {
				const each = 100
				j := startJob(t, n, network)
				big := strings.Repeat("x", 3000)
				for i := range each {
					require.NoError(t, j.c[0].Tell([]byte(fmt.Sprint(i, big))))
				}
				require.NoError(t, j.c[0].Close(context.Background()))
				require.ErrorIs(t, j.c[0].Tell(nil), ErrClosed)
				for r := 1; r < n; r++ {
					require.NoError(t, j.w[r].untilEnded(nil, []int{0}))
					require.Len(t, j.w[r].from(0), each, "all of them before the goodbye")
				}
			})
		}
	}
}

func TestEveryoneLeavesOneByOne(t *testing.T) {
	for _, n := range []int{2, 5, 16} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			j := startJob(t, n, NetworkLocal)
			var left []int
			for r := range n - 1 {
				require.NoError(t, j.c[r].Close(context.Background()))
				left = append(left, r)
				require.NoError(t, j.w[n-1].untilEnded(nil, left))
			}
			require.NoError(t, j.c[n-1].Close(context.Background()))
		})
	}
}

func TestEveryoneLeavesAtOnce(t *testing.T) {
	for _, n := range []int{2, 3, 8, 40} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			j := startJob(t, n, NetworkLocal)
			j.closeAll()
			for r := range n {
				require.Empty(t, j.w[r].lost, "rank %d", r)
			}
		})
	}
}

func TestTellRefusesWhatItCannotDeliver(t *testing.T) {
	j := startJob(t, 2, NetworkLocal)
	require.ErrorIs(t, j.c[0].Tell(make([]byte, MaxMessage+1)), ErrConfig)
	require.NoError(t, j.c[0].Tell(make([]byte, MaxMessage)))
	require.NoError(t, j.w[1].until(func() bool { return len(j.w[1].messages[0]) == 1 }))
	// Rank 1 no longer reads: the backlog grows until Tell says so.
	j.c[1].mu.Lock()
	var err error
	for range 2 * maxBacklog / MaxMessage {
		if err = j.c[0].Tell(make([]byte, MaxMessage)); err != nil {
			break
		}
	}
	j.c[1].mu.Unlock()
	require.ErrorIs(t, err, ErrBacklog)
	// And when it reads again there is room again.
	require.Eventually(t, func() bool { return j.c[0].Tell(nil) == nil }, patient, time.Millisecond)
}

func TestNothingIsKeptThatIsEverywhere(t *testing.T) {
	j := startJob(t, 7, NetworkLocal)
	for i := range 100 {
		require.NoError(t, j.c[i%7].Tell([]byte("something")))
	}
	require.Eventually(t, func() bool {
		for _, c := range j.c {
			c.mu.Lock()
			n, under := len(c.journal.log), c.inRound
			c.mu.Unlock()
			if n > 0 || under {
				return false
			}
		}
		return true
	}, patient, time.Millisecond, "the logs empty, and the tokens stop")
}
