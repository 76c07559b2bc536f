package bootstrap

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// world is n journals joined by links that can fail, in one thread: what the
// links carry is chosen at random, one frame at a time.
type world struct {
	j     []journal
	got   [][]string // deliveries, in order
	alive []bool
	wires map[[2]int]*wire // from, to
	next  []uint64
}

type wire struct {
	frames []*entry
}

func newWorld(n int) *world {
	w := &world{wires: map[[2]int]*wire{}, got: make([][]string, n), alive: make([]bool, n), next: make([]uint64, n)}
	for i := range n {
		w.j = append(w.j, newJournal(n))
		w.alive[i] = true
	}
	return w
}

func (w *world) connect(a, b int) {
	w.wires[[2]int{a, b}] = &wire{frames: w.j[a].missing(w.j[b].digest())}
	w.wires[[2]int{b, a}] = &wire{frames: w.j[b].missing(w.j[a].digest())}
}

func (w *world) cut(a, b int) {
	delete(w.wires, [2]int{a, b})
	delete(w.wires, [2]int{b, a})
}

// arrive is what Control.spread does.
func (w *world) arrive(at, from int, e *entry) bool {
	fresh, gap := w.j[at].add(e)
	if !fresh {
		return !gap
	}
	w.got[at] = append(w.got[at], fmt.Sprintf("%d:%d", e.origin, e.seq))
	for ends, wire := range w.wires {
		if ends[0] == at && ends[1] != from {
			wire.frames = append(wire.frames, e)
		}
	}
	return true
}

// Whatever connections and processes fail, and whatever is forgotten because it
// is everywhere: those that live and are connected in the end have the same
// entries, each stream in order and without gaps, and causes before effects.
func TestJournalsAgreeInTheEnd(t *testing.T) {
	rng := seed(t)
	for range 200 {
		n := 2 + rng.IntN(6)
		w := newWorld(n)
		for i := range n {
			w.connect(i, (i+1)%n)
		}
		causes := map[string][]string{} // what its sender knew
		for range 400 {
			switch k := rng.IntN(100); {
			case k < 20:
				o := rng.IntN(n)
				if w.alive[o] {
					e := newEntry(o, w.j[o].next(o), entryMessage)
					causes[fmt.Sprintf("%d:%d", o, e.seq)] = slices.Clone(w.got[o])
					w.arrive(o, -1, e)
				}
			case k < 22: // a cut
				w.cut(rng.IntN(n), rng.IntN(n))
			case k < 27: // a new link
				if a, b := rng.IntN(n), rng.IntN(n); a != b && w.alive[a] && w.alive[b] {
					w.connect(a, b)
				}
			case k < 28: // a death
				if d := rng.IntN(n); slices.Index(w.alive, true) != d {
					w.alive[d] = false
					for o := range n {
						w.cut(d, o)
					}
				}
			case k < 33: // a token has been round
				w.settle()
			default:
				w.step(t, rng.IntN(len(w.wires)+1))
			}
		}
		var living []int
		for i, ok := range w.alive {
			if ok {
				living = append(living, i)
			}
		}
		for i, a := range living {
			if b := living[(i+1)%len(living)]; a != b {
				w.connect(a, b)
			}
		}
		for busy := true; busy; {
			busy = false
			for i := range len(w.wires) {
				busy = w.step(t, i) || busy
			}
		}
		w.settle()
		for _, r := range living {
			require.Equal(t, w.j[living[0]].have, w.j[r].have)
			require.Empty(t, w.j[r].log)
			seen := map[string]bool{}
			for _, d := range w.got[r] {
				require.False(t, seen[d], "%s twice", d)
				for _, c := range causes[d] {
					require.True(t, seen[c], "%s before %s", d, c)
				}
				seen[d] = true
			}
		}
	}
}

// settle forgets, at one process chosen by nothing, what all that live have.
func (w *world) settle() {
	var marks []mark
	for o := range w.j {
		least := ^uint64(0)
		for i := range w.j {
			if w.alive[i] {
				least = min(least, w.j[i].have[o])
			}
		}
		marks = append(marks, mark{uint32(o), least})
	}
	for i := range w.j {
		if w.alive[i] {
			w.j[i].settle(marks, i)
		}
	}
}

// step delivers one frame of the i-th wire.
func (w *world) step(t *testing.T, i int) bool {
	ends := make([][2]int, 0, len(w.wires))
	for e := range w.wires {
		ends = append(ends, e)
	}
	slices.SortFunc(ends, func(a, b [2]int) int { return 100*(a[0]-b[0]) + a[1] - b[1] })
	if i >= len(ends) || len(w.wires[ends[i]].frames) == 0 {
		return false
	}
	wire := w.wires[ends[i]]
	e := wire.frames[0]
	wire.frames = wire.frames[1:]
	require.True(t, w.arrive(ends[i][1], ends[i][0], e), "a gap")
	return true
}

func TestSettleFreesOnlyItsOwn(t *testing.T) {
	j := newJournal(2)
	own, other := newEntry(0, 1, entryMessage, []byte("mine")), newEntry(1, 1, entryMessage, []byte("theirs"))
	for _, e := range []*entry{own, other} {
		fresh, gap := j.add(e)
		require.True(t, fresh)
		require.False(t, gap)
	}
	fresh, gap := j.add(own)
	require.False(t, fresh || gap, "known")
	fresh, gap = j.add(newEntry(0, 3, entryMessage))
	require.False(t, fresh)
	require.True(t, gap)
	require.Equal(t, []mark{{0, 1}, {1, 1}}, j.unsettled())
	require.Equal(t, len(own.frame), j.settle([]mark{{0, 1}, {1, 1}}, 0))
	require.Empty(t, j.log)
	require.Zero(t, j.settle([]mark{{0, 1}}, 0))
	require.Equal(t, []mark{{0, 1}, {1, 1}}, j.digest())
}

func TestMergeMarks(t *testing.T) {
	require.Equal(t, []mark{{1, 5}, {2, 9}, {3, 1}}, mergeMarks([]mark{{1, 5}, {2, 3}}, []mark{{2, 9}, {1, 4}, {3, 1}}))
}
