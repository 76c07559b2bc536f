package proto

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/transport"
)

var formats = []struct {
	name string
	lineFormat
}{{"ll", llFormat{}}, {"ll128", ll128Format{}}}

// flagSteps are steps around every place where a flag of 32 bits wraps or changes
// its sign, and where one of 64 does not.
var flagSteps = []uint64{
	0, 1, 7, 8, 1<<31 - 9, 1<<31 - 2, 1<<31 - 1, 1 << 31, 1<<31 + 1,
	1<<32 - 2, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1<<33 - 1, 1<<40 + 3,
}

// slotMemory returns zeroed memory of at least size bytes, aligned as slots are.
func slotMemory(t testing.TB, size int) []byte {
	t.Helper()
	conn, err := transport.NewConn(wholeLines(max(size, 1)), 0)
	require.NoError(t, err)
	return transport.NewSendEnd(conn, 1).Slot(1)
}

// linesOf is how many lines n bytes take.
func linesOf(f lineFormat, n int) int { return (n + f.payload() - 1) / f.payload() }

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestUnpackUndoesPackAtEveryLength(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for _, f := range formats {
		for n := range 301 {
			for _, step := range flagSteps {
				used := linesOf(f, n) * f.lineBytes()
				lines := slotMemory(t, used+f.lineBytes())
				for i := range lines {
					lines[i] = 0xee
				}
				src := newGuarded(randomBytes(random, n))
				f.pack(lines, src.bytes, f.flag(step))
				for i := used; i < len(lines); i++ {
					require.EqualValues(t, 0xee, lines[i], "%s: %d bytes: a line behind the last was written", f.name, n)
				}
				dst := newGuarded(make([]byte, n))
				require.Equal(t, n, f.unpack(dst.bytes, lines, f.flag(step)), "%s step %#x", f.name, step)
				require.NoError(t, dst.compare(src.bytes), "%s, %d bytes, step %#x", f.name, n, step)
				if n > 0 {
					require.True(t, f.flagged(lines, f.flag(step)))
					require.False(t, f.flagged(lines, f.flag(step+8)), "the slot's next step")
				}
			}
		}
	}
}

// NCCL's layouts, byte by byte: union ncclLLFifoLine, and 15 words and a flag.
func TestLinesAreNCCLs(t *testing.T) {
	src := make([]byte, 120)
	for i := range src {
		src[i] = byte(i + 1)
	}
	line := slotMemory(t, 16)
	llFormat{}.pack(line, src[:8], llFormat{}.flag(0xfedcba9876))
	require.Equal(t, []byte{1, 2, 3, 4, 0x77, 0x98, 0xba, 0xdc, 5, 6, 7, 8, 0x77, 0x98, 0xba, 0xdc}, line[:16])

	line = slotMemory(t, 128)
	ll128Format{}.pack(line, src, ll128Format{}.flag(0xfedcba9876))
	require.Equal(t, src, line[:120])
	require.Equal(t, []byte{0x77, 0x98, 0xba, 0xdc, 0xfe, 0, 0, 0}, line[120:128])
}

// Lines come in any order; what is in front of the first that has not come may be
// taken, nothing else.
func TestUnpackTakesTheLeadingFlaggedLinesOnly(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 1))
	for _, f := range formats {
		for range 2000 {
			n := random.IntN(5*f.payload() + 1)
			count := linesOf(f, n)
			old, src := randomBytes(random, count*f.payload()), randomBytes(random, n)
			stale, fresh := slotMemory(t, count*f.lineBytes()), slotMemory(t, count*f.lineBytes())
			f.pack(stale, old, f.flag(16))
			f.pack(fresh, src, f.flag(24))
			leading, gap := 0, false
			for i := range count {
				if random.IntN(4) == 0 {
					gap = true
					continue
				}
				at := i * f.lineBytes()
				copy(stale[at:at+f.lineBytes()], fresh[at:])
				if !gap {
					leading = i + 1
				}
			}
			want := min(n, leading*f.payload())
			dst := newGuarded(make([]byte, n))
			require.Equal(t, want, f.unpack(dst.bytes, stale, f.flag(24)), f.name)
			require.NoError(t, dst.compare(append(src[:want:want], make([]byte, n-want)...)), f.name)
		}
	}
}

// A writer is interrupted between any two words. LL makes no assumption on their
// order; LL128 relies on the flag being last in its line.
func TestUnpackMeetsAWriterBetweenAnyTwoWords(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 1))
	for _, f := range formats {
		for range 200 {
			n := 1 + random.IntN(4*f.payload())
			count, perLine := linesOf(f, n), f.lineBytes()/8
			src := randomBytes(random, n)
			live, done := slotMemory(t, count*f.lineBytes()), slotMemory(t, count*f.lineBytes())
			f.pack(live, randomBytes(random, count*f.payload()), f.flag(1<<32-1))
			f.pack(done, src, f.flag(1<<32+7))
			from, to := transport.Words(done), transport.Words(live)
			written := make([]int, count)
			for _, word := range storeOrder(random, f.lineFormat, count) {
				to[word].Store(from[word].Load())
				written[word/perLine]++
				whole := 0
				for whole < count && written[whole] == perLine {
					whole++
				}
				want := min(n, whole*f.payload())
				dst := make([]byte, n)
				require.Equal(t, want, f.unpack(dst, live, f.flag(1<<32+7)), "%s, %d bytes", f.name, n)
				require.Equal(t, src[:want], dst[:want], "%s, %d bytes", f.name, n)
				for i := range count {
					at := i * f.lineBytes()
					require.Equal(t, written[i] == perLine, f.flagged(live[at:], f.flag(1<<32+7)), "%s line %d", f.name, i)
				}
			}
		}
	}
}

// storeOrder is an order in which the words of lines may become visible.
func storeOrder(random *rand.Rand, f lineFormat, lines int) []int {
	perLine := f.lineBytes() / 8
	if f == (llFormat{}) {
		return random.Perm(lines * perLine)
	}
	var order []int
	for _, line := range random.Perm(lines) {
		for _, word := range random.Perm(perLine - 1) {
			order = append(order, line*perLine+word)
		}
		order = append(order, line*perLine+perLine-1)
	}
	return order
}

// Why LL128 is refused where stores may be seen out of order: the flag says that
// the data are there, and they are not. In LL each word speaks for itself.
func TestAFlagThatOvertakesItsDataCorruptsLL128ButNotLL(t *testing.T) {
	for _, f := range formats {
		src := randomBytes(rand.New(rand.NewPCG(4, 1)), f.payload())
		live, done := slotMemory(t, f.lineBytes()), slotMemory(t, f.lineBytes())
		f.pack(done, src, f.flag(0))
		from, to := transport.Words(done), transport.Words(live)
		wrong := false
		for i := f.lineBytes()/8 - 1; i >= 0; i-- {
			to[i].Store(from[i].Load())
			dst := make([]byte, len(src))
			if f.unpack(dst, live, f.flag(0)) == len(dst) && string(dst) != string(src) {
				wrong = true
			}
		}
		require.Equal(t, f.name == "ll128", wrong, f.name)
	}
}

// A short message leaves lines of an older, longer one in its slot.
func TestStaleLinesAreNotTaken(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 1))
	for _, f := range formats {
		for _, step := range flagSteps {
			lines := slotMemory(t, linesOf(f, 600)*f.lineBytes())
			f.pack(lines, randomBytes(random, 600), f.flag(step))
			for _, short := range []int{0, 1, f.payload(), 3 * f.payload()} {
				f.pack(lines, randomBytes(random, short), f.flag(step+8))
				dst := make([]byte, 600)
				want := linesOf(f, short) * f.payload()
				require.Equal(t, want, f.unpack(dst, lines, f.flag(step+8)), "%s: %d bytes at step %#x", f.name, short, step+8)
			}
		}
	}
}

// Flags of LL have 32 bits and repeat after 2^32 steps, those of LL128 never.
func TestFlagsRepeatAfter32BitsInLLAndNeverInLL128(t *testing.T) {
	for _, step := range flagSteps {
		require.Equal(t, llFormat{}.flag(step), llFormat{}.flag(step+1<<32))
		require.NotEqual(t, llFormat{}.flag(step), llFormat{}.flag(step+1<<31))
		require.NotEqual(t, ll128Format{}.flag(step), ll128Format{}.flag(step+1<<32))
		require.NotZero(t, ll128Format{}.flag(step), "fresh memory is zero")
	}
	require.Zero(t, llFormat{}.flag(1<<32-1))
}

func TestCleaningHappensOncePerSlotInEvery2To31Steps(t *testing.T) {
	for _, base := range []uint64{0, 1 << 31, 1 << 32, 5 << 31} {
		for back := uint64(64); back > 0; back-- {
			step := base + 1<<31 - back
			lines := slotMemory(t, 64)
			llFormat{}.clean(lines, step)
			flag := uint64(0)
			if back <= transport.Slots {
				flag = llFormat{}.flag(step)
			}
			words := transport.Words(lines)
			for i := range words {
				require.Equal(t, flag, words[i].Load(), "step %#x", step)
			}
		}
	}
}

// hurried is LL on a clock in which 64 steps stand for 2^32: flags repeat after
// 64, slots are cleaned every 32. Flags and cleaning are LL's own.
type hurried struct{ llFormat }

// stretch maps a hurried step to one of LL's 2^32: the slot's three bits and the
// topmost stay; the two between them, if both are set, stand for all the bits
// between, which is when LL cleans.
func stretch(step uint64) uint64 {
	middle := step >> 3 & 3
	if middle == 3 {
		middle = 1<<28 - 1
	}
	return step>>5&1<<31 | middle<<3 | step&7
}

func (h hurried) flag(step uint64) uint64 { return h.llFormat.flag(stretch(step)) }
func (h hurried) clean(lines []byte, step uint64) {
	h.llFormat.clean(lines, stretch(step))
}

// dirty is hurried without cleaning.
type dirty struct{ hurried }

func (dirty) clean([]byte, uint64) {}

// staleLines writes one long chunk into each slot and then short ones only, and
// returns the first step at which the reader would take a line that the writer
// has not written yet; -1 if there is none.
func staleLines(t *testing.T, f lineFormat, steps int) int {
	const long = 20
	var slots [transport.Slots][]byte
	for i := range slots {
		slots[i] = slotMemory(t, long*f.lineBytes())
	}
	for step := range uint64(steps) {
		slot := slots[step%transport.Slots]
		used := 1
		if step < transport.Slots {
			used = long
		}
		for at := range long {
			if f.flagged(slot[at*f.lineBytes():], f.flag(step)) {
				return int(step)
			}
		}
		f.pack(slot, make([]byte, used*f.payload()), f.flag(step))
		f.clean(slot[used*f.lineBytes():], step)
	}
	return -1
}

func TestCleaningKeepsOldLinesFromComingBackAfterTheWrap(t *testing.T) {
	require.Equal(t, -1, staleLines(t, hurried{}, 1000))
	require.Equal(t, 64, staleLines(t, dirty{}, 1000), "without cleaning the wrap must be visible, or this test shows nothing")
	require.Equal(t, -1, staleLines(t, ll128Format{}, 1000))
	seen := make(map[uint64]bool)
	for step := range uint64(64) {
		flag := hurried{}.flag(step)
		require.False(t, seen[flag], "hurried flags repeat too early, at %d", step)
		seen[flag] = true
	}
}

// The same with real primitives on both ends and random lengths over many wraps.
func TestPrimitivesSurviveManyWrapsOfTheFlags(t *testing.T) {
	seed, rounds := seedAndRounds(t)
	flavour := flavour{
		"ll on a hurried clock", SlotBytesLL,
		func(ends Ends, _, _ int, _ chunking) Primitives {
			return newLined(hurried{}, ends)
		}, []chunking{{1, 1}},
	}
	random := rand.New(rand.NewPCG(seed, 99))
	for range rounds {
		r := rig{in: 2, out: 1, payload: 400, flavour: flavour}
		require.NoError(t, r.run(t, r.program(random, 400)))
	}
}

// The real clean is called by the real step: a FIFO is driven over a cleaning
// window with empty chunks, and no line keeps an old flag.
func TestPrimitivesCleanTheirSlotsInTheWindow(t *testing.T) {
	for _, window := range []uint64{1 << 31, 1 << 32} {
		conn := newConn(t, SlotBytesLL(400), window-2*transport.Slots)
		s, r := transport.NewSendEnd(conn, 1), transport.NewRecvEnd(conn, 0)
		w := boundWaiter(t.Context())
		out, in := NewLL(Ends{To: []*transport.SendEnd{s}}), NewLL(Ends{From: []*transport.RecvEnd{r}})
		out.Begin(Operation{Waiter: w})
		in.Begin(Operation{Waiter: w})
		for i := range 2 * transport.Slots {
			n := 400
			if i >= transport.Slots {
				n = 0
			}
			slot, flag := s.Slot(1), uint32(s.Step()+1)
			require.NoError(t, out.Send(make([]byte, n)))
			require.NoError(t, in.Recv(make([]byte, n)))
			words := transport.Words(slot[:16*(1+50)])
			for k := range words {
				require.Equal(t, flag, uint32(words[k].Load()>>32), "step %d of the window at %#x, word %d", i, window, k)
			}
		}
	}
}

// LL takes twice the payload on the wire, LL128 128/120, and both one header line
// per slot.
func TestBytesOnTheWire(t *testing.T) {
	require.Equal(t, 512, SlotBytesSimple(512))
	require.Equal(t, 640, SlotBytesSimple(513))
	for _, payload := range []int{8, 120, 1 << 10, 32 << 10, 576000} {
		require.Equal(t, wholeLines(16+2*payload), SlotBytesLL(payload), "payload %d", payload)
	}
	for _, lines := range []int{1, 7, 4800} {
		require.Equal(t, 128+128*lines, SlotBytesLL128(120*lines))
		require.Equal(t, 128+128*lines, SlotBytesLL128(120*lines-1))
		require.Equal(t, 128+128*(lines+1), SlotBytesLL128(120*lines+1))
	}
	for _, f := range formats {
		for _, n := range []int{0, 1, 8, 9, 120, 121, 240, 4000} {
			conn := newConn(t, slotBytes(f, 4000), 0)
			s := transport.NewSendEnd(conn, 1)
			slot := s.Slot(1)
			l := newLined(f, Ends{To: []*transport.SendEnd{s}})
			l.Begin(Operation{Waiter: boundWaiter(t.Context()), Header: 1})
			require.NoError(t, l.Send(make([]byte, n)))
			written := 0
			for at := 0; at+f.lineBytes() <= len(slot); at += f.lineBytes() {
				if f.flagged(slot[at:], f.flag(0)) {
					written++
				}
			}
			require.Equal(t, 1+linesOf(f, n), written, "%s: lines of %d bytes", f.name, n)
		}
	}
}

// Whatever is in memory, unpack stays inside dst and reports no more than there
// is behind valid flags.
func FuzzUnpack(f *testing.F) {
	for _, format := range formats {
		valid := slotMemory(f, 512)
		format.pack(valid, make([]byte, 3*format.payload()), format.flag(7))
		f.Add(valid, uint16(3*format.payload()), uint64(7))
	}
	f.Add([]byte{}, uint16(9), uint64(1<<32-1))
	f.Fuzz(func(t *testing.T, memory []byte, length uint16, step uint64) {
		n := int(length) % 2000
		for _, format := range formats {
			first := int(step%4) * format.lineBytes()
			lines := slotMemory(t, first+linesOf(format, n)*format.lineBytes())[first:]
			copy(lines, memory)
			before := string(lines)
			flag := format.flag(step)
			dst := newGuarded(make([]byte, n))
			done := format.unpack(dst.bytes, lines, flag)
			want := make([]byte, n)
			model := modelUnpack(format.name, want, lines, step)
			if done != model {
				t.Fatalf("%s: %d bytes, want %d", format.name, done, model)
			}
			if err := dst.compare(want); err != nil {
				t.Fatalf("%s: %v", format.name, err)
			}
			if string(lines) != before {
				t.Fatalf("%s: the lines have changed", format.name)
			}
			if n > 0 && format.flagged(lines, flag) != (done > 0) {
				t.Fatalf("%s: flagged and unpack disagree on the first line", format.name)
			}
		}
	})
}

// modelUnpack reads lines word by word, as the formats are described.
func modelUnpack(name string, dst, lines []byte, step uint64) int {
	done := 0
	for at := 0; done < len(dst); {
		var data []byte
		switch name {
		case "ll":
			line := lines[at : at+16]
			at += 16
			if binary.LittleEndian.Uint32(line[4:]) != uint32(step+1) || binary.LittleEndian.Uint32(line[12:]) != uint32(step+1) {
				return done
			}
			data = append(append(data, line[:4]...), line[8:12]...)
		case "ll128":
			line := lines[at : at+128]
			at += 128
			if binary.LittleEndian.Uint64(line[120:]) != step+1 {
				return done
			}
			data = line[:120]
		default:
			panic(fmt.Sprintf("no model of %s", name))
		}
		done += copy(dst[done:], data)
	}
	return done
}

// A reader waits for the last line of a batch first. That says nothing about those
// before it: what is missing then is waited for, and the wait can be ended.
func TestALineIsWaitedForEvenIfALaterOneHasCome(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 1))
	for _, f := range formats {
		const lines = 9
		src, header := randomBytes(random, lines*f.payload()), make([]byte, 8)
		whole := slotMemory(t, (1+lines)*f.lineBytes())
		f.pack(whole, header, f.flag(0))
		f.pack(whole[f.lineBytes():], src, f.flag(0))
		for _, ended := range []bool{false, true} {
			conn := newConn(t, slotBytes(f, len(src)), 0)
			slot := transport.Words(transport.NewSendEnd(conn, 1).Slot(1))
			put := func(line int) {
				perLine := f.lineBytes() / 8
				words := transport.Words(whole)
				for i := line * perLine; i < (line+1)*perLine; i++ {
					slot[i].Store(words[i].Load())
				}
			}
			put(0)
			put(lines)
			ctx, cancel := context.WithCancel(t.Context())
			in := newLined(f, Ends{From: []*transport.RecvEnd{transport.NewRecvEnd(conn, 0)}})
			in.Begin(Operation{Waiter: boundWaiter(ctx)})
			dst, result := make([]byte, len(src)), make(chan error)
			go func() { result <- in.Recv(dst) }()
			for line := lines - 1; line > 1; line-- {
				time.Sleep(time.Millisecond)
				put(line)
			}
			if ended {
				cancel()
				require.ErrorIs(t, <-result, context.Canceled, f.name)
				continue
			}
			put(1)
			require.NoError(t, <-result, f.name)
			require.Equal(t, src, dst, f.name)
			cancel()
		}
	}
}
