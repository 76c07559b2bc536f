package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/spin"
)

// entry is an allreduce of n elements.
func entry(n int) *Entry {
	return NewEntry(plan.Spec{Kind: plan.AllReduce, Type: dtype.Int32, Count: n})
}

func text(n int) string { return entry(n).Spec.String() }

func TestSequenceNumbersCountEachRanksOwnCalls(t *testing.T) {
	l := New(2)
	for n := range 5 {
		require.EqualValues(t, n, l.Enter(0, entry(n)))
	}
	require.EqualValues(t, 0, l.Enter(1, entry(0)))
	require.True(t, l.Entered(0, 4))
	require.False(t, l.Entered(0, 5))
	require.True(t, l.Entered(1, 0))
	require.False(t, l.Entered(1, 1))
}

// A page shows the latest 64 calls. Of an older one it says nothing rather than
// the call that took its place.
func TestCallReturnsWhatIsRememberedAndNothingElse(t *testing.T) {
	l := New(1)
	require.Zero(t, l.Call(0, 0))
	for n := range 3*remembered + 5 {
		l.Enter(0, entry(n))
		for sequence := range n + 3 {
			got := l.Call(0, uint64(sequence))
			// The margin of one: the oldest place may be in the making.
			if sequence > n || sequence+remembered <= n+1 {
				require.Zero(t, got, "call %d after %d", sequence, n)
				continue
			}
			require.Equal(t, entry(sequence).Fingerprint, got, "call %d after %d", sequence, n)
		}
	}
}

func TestMissingListsWhoHasNotEntered(t *testing.T) {
	l := New(5)
	require.Equal(t, []int{0, 1, 2, 3, 4}, l.Missing(0))
	for _, r := range []int{0, 2, 4} {
		l.Enter(r, entry(0))
	}
	l.Enter(2, entry(1))
	require.Equal(t, []int{1, 3}, l.Missing(0))
	require.Equal(t, []int{0, 1, 3, 4}, l.Missing(1))
	l.Enter(1, entry(0))
	l.Enter(3, entry(0))
	require.Empty(t, l.Missing(0))
}

func TestCompareFindsAnotherCallAndNamesBoth(t *testing.T) {
	l := New(3)
	l.Enter(0, entry(7))
	require.NoError(t, l.Compare(0, 0, entry(7)), "the others have not come yet")
	l.Enter(1, entry(7))
	require.NoError(t, l.Compare(0, 0, entry(7)))
	l.Enter(2, entry(8))
	err := l.Compare(0, 0, entry(7))
	var m *fault.Mismatch
	require.ErrorAs(t, err, &m)
	require.Equal(t, &fault.Mismatch{Sequence: 0, Rank: 0, Call: text(7), PeerRank: 2, PeerCall: text(8)}, m)
	require.ErrorIs(t, err, fault.ErrMismatch)
}

// Ranks may be several calls ahead: equal numbers are compared, not the latest.
func TestCompareLooksAtTheSameSequenceNumber(t *testing.T) {
	l := New(2)
	for n := range 2 * remembered {
		l.Enter(1, entry(n))
	}
	for n := range 2 * remembered {
		require.EqualValues(t, n, l.Enter(0, entry(n)))
		require.NoError(t, l.Compare(0, uint64(n), entry(n)))
	}
	l.Enter(0, entry(2*remembered))
	l.Enter(1, entry(7))
	require.ErrorIs(t, l.Compare(0, 2*remembered, entry(2*remembered)), fault.ErrMismatch)
}

func TestCompareFindsAClosedRankThatHasNotEntered(t *testing.T) {
	l := New(2)
	l.Enter(0, entry(0))
	l.Enter(1, entry(0))
	l.Close(1)
	require.True(t, l.Closed(1))
	require.False(t, l.Closed(0))
	require.NoError(t, l.Compare(0, 0, entry(0)), "it closed after this call")
	l.Enter(0, entry(1))
	err := l.Compare(0, 1, entry(1))
	var closed *fault.PeerClosed
	require.ErrorAs(t, err, &closed)
	require.Equal(t, &fault.PeerClosed{Sequence: 1, Rank: 0, Call: text(1), PeerRank: 1}, closed)
}

func TestTheFirstFailureWins(t *testing.T) {
	l := New(1)
	require.NoError(t, l.Failure())
	first, second := errors.New("first"), errors.New("second")
	require.Equal(t, first, l.Fail(first))
	require.Equal(t, first, l.Fail(second))
	require.Equal(t, first, l.Failure())
}

func TestAFailureWakesAllWhoAreRegisteredBeforeAndAfter(t *testing.T) {
	l := New(1)
	before, after := spin.NewParker(), spin.NewParker()
	l.Register(before)
	require.False(t, before.Sleep(before.Token(), nil, time.Microsecond), "woken without a failure")
	l.Fail(errors.New("lost"))
	require.True(t, before.Sleep(before.Token(), nil, 20*time.Second))
	l.Register(after)
	require.True(t, after.Sleep(after.Token(), nil, 20*time.Second))
}

func TestWaitIsPublishedAnewEachTimeAndWithdrawn(t *testing.T) {
	l := New(2)
	require.Empty(t, l.WaitsOf(1))
	w := Waiting{Call: plan.Spec{Kind: plan.Send, Type: dtype.Float32, Count: 5}, Channel: 3, From: []int{0, 7}, To: []int{2}}
	var last uint64
	for range 3 {
		l.Wait(1, &w)
		all := l.WaitsOf(1)
		require.Len(t, all, 1)
		got := all[0]
		require.Greater(t, got.Version, last)
		last = got.Version
		got.Version, got.Episode = 0, 0
		require.Equal(t, &w, got)
	}
	require.Empty(t, l.WaitsOf(0))
	l.EndWait(1, 3)
	require.Empty(t, l.WaitsOf(1))
}

func TestEachChannelWaitsByItself(t *testing.T) {
	l := New(1)
	channels := func() (all []int) {
		for _, w := range l.WaitsOf(0) {
			all = append(all, w.Channel)
		}
		return all
	}
	for channel := range waits {
		l.Wait(0, &Waiting{Call: entry(1).Spec, Channel: channel})
	}
	require.Len(t, channels(), waits)
	episode := l.WaitsOf(0)[4].Episode
	l.EndWait(0, 4)
	l.EndWait(0, 6)
	require.NotContains(t, channels(), 4)
	require.NotContains(t, channels(), 6)
	require.Len(t, channels(), waits-2)
	l.Wait(0, &Waiting{Call: entry(1).Spec, Channel: 4 + waits})
	require.Contains(t, channels(), 4+waits)
	require.Equal(t, episode+1, l.WaitsOf(0)[4].Episode)
}

// A list is cut where the page ends; the first are the ones that matter.
func TestAWaitForVeryManyRanksNamesSome(t *testing.T) {
	l := New(1)
	var many []int
	for r := range 3 * listed {
		many = append(many, r)
	}
	l.Wait(0, &Waiting{Call: entry(1).Spec, From: many[:listed-2], To: many})
	got := l.WaitsOf(0)[0]
	require.Equal(t, many[:listed-2], got.From)
	require.Equal(t, many[:2], got.To)
	l.Wait(0, &Waiting{Call: entry(1).Spec, From: many, To: many})
	got = l.WaitsOf(0)[0]
	require.Equal(t, many[:listed], got.From)
	require.Empty(t, got.To)
}

// A reader meets the writer in the middle of a record: it gets the one or the
// other, or nothing, never a mixture.
func TestAWaitIsNeverSeenHalfWritten(t *testing.T) {
	l := New(1)
	var writer sync.WaitGroup
	var done atomic.Bool
	writer.Go(func() {
		defer done.Store(true)
		for n := range 100000 {
			k := n % 9
			l.Wait(0, &Waiting{Call: entry(k).Spec, Channel: k, From: []int{k, k}, To: []int{k}, LaterFrom: []End{{Rank: k, Channel: 2 * k}}})
			if k == 0 {
				l.EndWait(0, k)
			}
		}
	})
	for !done.Load() {
		for _, w := range l.WaitsOf(0) {
			k := w.Channel
			w.Version, w.Episode = 0, 0
			want := &Waiting{Call: entry(k).Spec, Channel: k, From: []int{k, k}, To: []int{k}, LaterFrom: []End{{Rank: k, Channel: 2 * k}}}
			if !reflect.DeepEqual(want, w) {
				t.Errorf("half of %+v, half of another: %+v", want, w)
				break
			}
		}
	}
	writer.Wait()
}

// A page puts 128 different calls into words. One that was pushed out is described
// again when it is made again.
func TestCallsAreDescribedAgainWhenForgotten(t *testing.T) {
	l := New(1)
	entries := make([]*Entry, 3*described)
	for n := range entries {
		entries[n] = entry(n)
		l.Enter(0, entries[n])
		require.Equal(t, text(n), l.Text(0, entries[n].Fingerprint))
	}
	require.Equal(t, "another call", l.Text(0, entries[0].Fingerprint))
	l.Enter(0, entries[0])
	require.Equal(t, text(0), l.Text(0, entries[0].Fingerprint))
}

func TestDivergenceIsTheFirstCallThatDiffers(t *testing.T) {
	l := New(2)
	for n := range 2 * remembered {
		l.Enter(0, entry(n))
		l.Enter(1, entry(n))
	}
	_, _, _, found := l.Divergence(0, 1, 2*remembered-1)
	require.False(t, found)
	for n := range 3 {
		l.Enter(0, entry(1000+n))
		l.Enter(1, entry(2000+n))
	}
	sequence, mine, theirs, found := l.Divergence(0, 1, 2*remembered+2)
	require.True(t, found)
	require.EqualValues(t, 2*remembered, sequence)
	require.Equal(t, entry(1000).Fingerprint, mine)
	require.Equal(t, entry(2000).Fingerprint, theirs)
	_, _, _, found = l.Divergence(0, 1, 2*remembered-1)
	require.False(t, found, "before they parted")
}

func TestTheHookHearsOfAFailureOnceAndNotOfOnesHeardFromOthers(t *testing.T) {
	l := New(1)
	var heard []error
	l.OnFailure(func(err error) { heard = append(heard, err) })
	first := errors.New("first")
	l.Fail(first)
	l.Fail(errors.New("second"))
	require.Equal(t, []error{first}, heard)

	l = New(1)
	l.OnFailure(func(err error) { heard = append(heard, err) })
	l.Heard(errors.New("from another process"))
	l.Fail(errors.New("too late"))
	require.Len(t, heard, 1)
	require.ErrorContains(t, l.Failure(), "from another process")
}

// Two ledgers over the same memory, as in two processes, are one.
func TestPagesInSharedMemoryAreSeenByAll(t *testing.T) {
	const size = 3
	memory := make([][]byte, size)
	for i := range memory {
		raw := make([]byte, PageBytes+128)
		skip := -int(reflect.ValueOf(raw).Pointer()) & 127
		memory[i] = raw[skip : skip+PageBytes]
	}
	a, err := Over(memory)
	require.NoError(t, err)
	b, err := Over(memory)
	require.NoError(t, err)
	a.Enter(0, entry(7))
	b.Enter(1, entry(8))
	require.Equal(t, []int{2}, a.Missing(0))
	var m *fault.Mismatch
	require.ErrorAs(t, a.Compare(0, 0, entry(7)), &m)
	require.Equal(t, &fault.Mismatch{Rank: 0, Call: text(7), PeerRank: 1, PeerCall: text(8)}, m)
	b.Close(2)
	require.True(t, a.Closed(2))
	for _, wrong := range [][]byte{{}, memory[0][:PageBytes-1], memory[0][8:]} {
		_, err := Over([][]byte{wrong})
		require.Error(t, err)
	}
}

// All ranks enter the same calls at their own pace while all look at all pages:
// no call may ever seem to differ, and none may be shown under another's number.
func TestRanksThatAgreeAreNeverToldOtherwise(t *testing.T) {
	const size, calls = 6, 3000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := New(size)
	var ranks sync.WaitGroup
	errs := make([]error, size)
	for rank := range size {
		ranks.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(rank)))
			for n := range calls {
				e := entry(n) // an Entry is for one rank
				sequence := l.Enter(rank, e)
				if sequence != uint64(n) {
					errs[rank] = fmt.Errorf("sequence %d of call %d", sequence, n)
					return
				}
				if err := l.Compare(rank, sequence, e); err != nil {
					errs[rank] = err
					return
				}
				other, back := random.IntN(size), random.IntN(2*remembered)
				if at := n - back; at >= 0 {
					if got := l.Call(other, uint64(at)); got != 0 && got != entry(at).Fingerprint {
						errs[rank] = fmt.Errorf("call %d of rank %d is shown as %#x", at, other, got)
						return
					}
				}
			}
			l.Close(rank)
		})
	}
	ranks.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Empty(t, l.Missing(calls-1))
}

// Everybody fails and registers at the same time: all learn the same cause, and
// every parker is woken.
func TestConcurrentFailuresAgreeOnOneCause(t *testing.T) {
	for range 300 {
		l := New(1)
		const goroutines = 8
		var causes [goroutines]error
		var woken atomic.Int64
		var all sync.WaitGroup
		start := make(chan struct{})
		for i := range goroutines {
			all.Go(func() {
				<-start
				p := spin.NewParker()
				l.Register(p)
				if i%2 == 0 {
					causes[i] = l.Fail(fmt.Errorf("cause %d", i))
				}
				if p.Sleep(p.Token(), nil, 20*time.Second) {
					woken.Add(1)
				}
				if i%2 == 1 {
					causes[i] = l.Failure()
				}
			})
		}
		close(start)
		all.Wait()
		require.EqualValues(t, goroutines, woken.Load())
		for _, cause := range causes {
			require.Equal(t, l.Failure(), cause)
		}
	}
}
