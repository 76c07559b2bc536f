package transport

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// bothEnds returns a FIFO whose first step is first.
func bothEnds(t *testing.T, slot int, first uint64) (*Conn, *SendEnd, *RecvEnd) {
	t.Helper()
	c, err := NewConn(slot, first)
	require.NoError(t, err)
	return c, NewSendEnd(c, 1), NewRecvEnd(c, 0)
}

// Processes map the same control words, so their places are an agreement
// between builds: it is changed on purpose or not at all.
func TestControlWordsLieWhereBothEndsExpectThem(t *testing.T) {
	var c control
	require.EqualValues(t, 128, Line)
	require.EqualValues(t, 0, unsafe.Offsetof(c.tail))
	require.EqualValues(t, 64, unsafe.Offsetof(c.headers))
	require.EqualValues(t, 8*Slots, unsafe.Sizeof(c.headers))
	require.EqualValues(t, 128, unsafe.Offsetof(c.head))
	require.EqualValues(t, 256, unsafe.Sizeof(c))
}

// What the producer writes (tail, headers) must not share a line with what the
// consumer writes (head), in memory as it was allocated.
func TestEachControlLineHasOneWriter(t *testing.T) {
	for range 64 {
		c, _, _ := bothEnds(t, Line, 0)
		line := func(p unsafe.Pointer) uintptr { return uintptr(p) / Line }
		head := line(unsafe.Pointer(&c.control.head))
		require.NotEqual(t, head, line(unsafe.Pointer(&c.control.tail)))
		for i := range c.control.headers {
			require.NotEqual(t, head, line(unsafe.Pointer(&c.control.headers[i])), "header %d", i)
		}
		require.NotEqual(t, line(unsafe.Pointer(&c.filled)), line(unsafe.Pointer(&c.freed)), "bells")
	}
}

func TestSlotsAreAlignedDisjointAndComplete(t *testing.T) {
	for _, slot := range []int{Line, 2 * Line, 4096, 65536 + Line, 576000 / Line * Line} {
		c, s, _ := bothEnds(t, slot, 0)
		require.Equal(t, slot, c.SlotBytes())
		seen := make(map[*byte]int)
		for i := range 2 * Slots {
			memory := s.Slot(1)
			require.Len(t, memory, slot)
			require.Equal(t, slot, cap(memory), "a slot must not be extendable into the next")
			require.Zero(t, uintptr(unsafe.Pointer(&memory[0]))%Line, "slot %d of %d bytes", i, slot)
			at, again := seen[&memory[0]]
			if i < Slots {
				require.False(t, again)
				seen[&memory[0]] = i
			} else {
				require.True(t, again)
				require.Equal(t, i%Slots, at)
			}
			s.Post(1, 0, len(s.Slot(1)))
		}
		require.Len(t, c.memory, Slots*slot)
	}
}

func TestConnRefusesSlotsThatAreNotWholeLines(t *testing.T) {
	for _, slot := range []int{-Line, 0, 1, 8, Line - 1, Line + 8} {
		_, err := NewConn(slot, 0)
		require.Error(t, err, "slot of %d bytes", slot)
	}
}

// starts are first steps in the four corners: zero, inside a ring of slots, and
// around the places where 32-bit flags wrap.
var starts = []uint64{0, 1, 7, 8, 13, 1<<31 - 3, 1<<31 + 5, 1<<32 - 3, 1<<32 + 1, 1<<40 + 6}

// The producer may fill step s when head+8 >= s+n, the consumer may read it when
// tail >= s+n. Every state of a FIFO is visited: free steps f, wanted steps n.
func TestCreditIsWhatIsFreeAndFilledIsWhatIsPosted(t *testing.T) {
	for _, first := range starts {
		for filled := range Slots + 1 {
			_, s, r := bothEnds(t, Line, first)
			for range filled {
				require.True(t, s.Credit(1).Ready())
				s.Post(1, 0, len(s.Slot(1)))
			}
			for n := 1; n <= Slots; n++ {
				require.Equal(t, filled+n <= Slots, s.Credit(n).Ready(), "first %d: %d filled, credit for %d", first, filled, n)
				require.Equal(t, n <= filled, r.Filled(n).Ready(), "first %d: %d filled, wanting %d", first, filled, n)
			}
			for released := 1; released <= filled; released++ {
				r.Release(1)
				for n := 1; n <= Slots; n++ {
					require.Equal(t, filled-released+n <= Slots, s.Credit(n).Ready(), "first %d: %d filled, %d released, credit for %d", first, filled, released, n)
					require.Equal(t, n <= filled-released, r.Filled(n).Ready(), "first %d: %d filled, %d released, wanting %d", first, filled, released, n)
				}
			}
			require.Equal(t, s.Step(), r.Step())
		}
	}
}

// A cached counter is believed while it suffices, and read again when not.
func TestStaleCountersAreReadAgainOnlyWhenTheyDoNotSuffice(t *testing.T) {
	_, s, r := bothEnds(t, Line, 0)
	require.True(t, s.Credit(1).Ready())
	for range Slots {
		s.Post(1, 0, len(s.Slot(1)))
	}
	require.True(t, r.Filled(1).Ready())
	require.EqualValues(t, Slots, r.tail, "one look covers all that is posted")
	for range Slots {
		r.Release(1)
	}
	require.EqualValues(t, 0, s.head, "nothing has asked for credit yet")
	require.True(t, s.Credit(1).Ready())
	require.EqualValues(t, Slots, s.head, "one look covers all that is released")
}

func TestBytesAndHeadersStayInTheirSlotsOverManyWraps(t *testing.T) {
	for _, first := range starts {
		_, s, r := bothEnds(t, Line, first)
		// The producer runs ahead by 0 to 8 steps in turn.
		for sent, taken := 0, 0; taken < 100; {
			for sent < taken+taken%(Slots+1) || sent == taken {
				require.True(t, s.Credit(1).Ready())
				copy(s.Slot(1), fmt.Sprintf("step %d", sent))
				s.Post(1, uint64(1000+sent), len(s.Slot(1)))
				sent++
			}
			want := fmt.Sprintf("step %d", taken)
			require.True(t, r.Filled(1).Ready())
			require.Equal(t, want, string(r.Slot(1)[:len(want)]), "first %d", first)
			require.EqualValues(t, 1000+taken, r.Header(), "first %d, step %d", first, taken)
			r.Release(1)
			taken++
		}
	}
}

func TestSlotsOfOneSliceAreContiguous(t *testing.T) {
	_, s, r := bothEnds(t, Line, 0)
	for range 3 * Slots / 2 {
		require.True(t, s.Credit(2).Ready())
		memory := s.Slot(2)
		require.Len(t, memory, 2*Line)
		for i := range memory {
			memory[i] = byte(s.Step()) + byte(i)
		}
		s.Post(2, s.Step(), len(s.Slot(2)))
		require.True(t, r.Filled(2).Ready())
		require.Equal(t, r.Step(), r.Header())
		for i, b := range r.Slot(2) {
			require.Equal(t, byte(r.Step())+byte(i), b)
		}
		r.Release(2)
	}
}

// Operations of one-step chunks and of four-step chunks share a FIFO. At the
// start of the latter both ends skip to a multiple of four, and the skipped
// steps must not cost credit: NCCL hangs on the second operation otherwise.
func TestRoundUpSkipsTheSameStepsAtBothEndsAndLosesNoCredit(t *testing.T) {
	for _, first := range starts {
		for before := range 2*Slots + 1 {
			for _, consumerFirst := range []bool{false, true} {
				_, s, r := bothEnds(t, Line, first)
				for range before {
					require.True(t, s.Credit(1).Ready())
					s.Post(1, 1, len(s.Slot(1)))
					require.True(t, r.Filled(1).Ready())
					r.Release(1)
				}
				if consumerFirst {
					r.RoundUp(4)
					s.RoundUp(4)
				} else {
					s.RoundUp(4)
					r.RoundUp(4)
				}
				require.Equal(t, s.Step(), r.Step())
				require.Zero(t, s.Step()%4)
				require.GreaterOrEqual(t, s.Step(), first+uint64(before))
				require.Less(t, s.Step(), first+uint64(before)+4)
				require.False(t, r.Filled(1).Ready(), "skipped steps are not data")
				require.True(t, s.Credit(Slots).Ready(), "all slots are free")
				for range Slots / 2 {
					require.True(t, s.Credit(2).Ready())
					s.Post(2, 2, len(s.Slot(2)))
				}
				require.False(t, s.Credit(1).Ready())
				for range Slots / 2 {
					require.True(t, r.Filled(2).Ready())
					require.EqualValues(t, 2, r.Header())
					r.Release(2)
				}
				require.False(t, r.Filled(1).Ready())
			}
		}
	}
}

// The producer ends an operation and begins the next while the consumer is still
// busy with slots of the one before: only what has been released is credit.
func TestRoundUpByTheProducerAloneCountsSkippedStepsAsOccupied(t *testing.T) {
	_, s, r := bothEnds(t, Line, 0)
	for range 5 {
		s.Post(1, 1, len(s.Slot(1)))
	}
	s.RoundUp(4) // to 8
	require.EqualValues(t, 8, s.Step())
	require.False(t, s.Credit(1).Ready(), "head is 0")
	require.True(t, r.Filled(1).Ready())
	r.Release(2)
	require.True(t, s.Credit(2).Ready())
	require.False(t, s.Credit(3).Ready())
	r.Release(3)
	require.True(t, s.Credit(5).Ready())
	require.False(t, s.Credit(6).Ready())
	r.RoundUp(4)
	require.True(t, s.Credit(8).Ready())
}

func TestRoundUpOfARoundStepDoesNothing(t *testing.T) {
	c, s, r := bothEnds(t, Line, 8)
	s.RoundUp(4)
	r.RoundUp(4)
	s.RoundUp(1)
	r.RoundUp(1)
	require.EqualValues(t, 8, s.Step())
	require.EqualValues(t, 8, r.Step())
	require.EqualValues(t, 8, c.control.head.Load())
}

// A FIFO that starts late stands for one that has done so many steps: its slots
// are not fresh. Zeroed slots would carry the valid flag of LL at step 2^32-1.
func TestAFIFOThatStartsLateDoesNotLookFresh(t *testing.T) {
	c, _, _ := bothEnds(t, Line, 0)
	for i := range c.memory {
		require.Zero(t, c.memory[i])
	}
	for _, first := range []uint64{1 << 31, 1<<32 - 4} {
		c, _, _ = bothEnds(t, Line, first)
		words := Words(c.memory)
		for i := range words {
			word := words[i].Load()
			flag := uint32(word >> 32)
			for step := first; step < first+4*Slots; step++ {
				require.NotEqual(t, uint32(step+1), flag, "word %d looks like data of step %d", i, step)
				require.NotEqual(t, step+1, word)
			}
		}
	}
}

func TestWordsViewsTheBytes(t *testing.T) {
	require.Empty(t, Words(nil))
	b := allocate(64)
	w := Words(b)
	require.Len(t, w, 8)
	w[3].Store(0x0807060504030201)
	require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, b[24:32])
	b[63] = 0x80
	require.EqualValues(t, uint64(0x80)<<56, w[7].Load())
}

func TestEndsKnowTheirPeers(t *testing.T) {
	_, s, r := bothEnds(t, Line, 0)
	require.Equal(t, 1, s.Peer())
	require.Equal(t, 0, r.Peer())
}
