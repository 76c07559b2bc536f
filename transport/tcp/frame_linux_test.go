package tcp

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// text is a stream that holds what the other end has sent, and gives it away in
// pieces.
type text struct {
	rest   []byte
	pieces *rand.Rand // nil = all at once
}

func (s *text) write([][]byte) (int, error) { return 0, io.ErrClosedPipe }
func (s *text) descriptor() int             { return -1 }
func (s *text) close() error                { return nil }

func (s *text) read(buffers [][]byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	most := len(s.rest)
	if s.pieces != nil {
		most = min(most, s.pieces.IntN(40)) // also nothing
	}
	n := 0
	for _, b := range buffers {
		copied := copy(b, s.rest[:min(len(b), most-n)])
		s.rest = s.rest[copied:]
		n += copied
	}
	return n, nil
}

// inbox is a consumer's FIFO with its receiver, which reads from a stream.
type inbox struct {
	memory []byte
	end    *transport.RecvEnd
	*receiver
}

func newInbox(slot int, from stream) *inbox {
	// Guards around the slots show who writes beside them.
	whole := bytes.Repeat([]byte{0xa5}, slot+transport.Slots*slot+slot)
	haul := new(transport.Haul)
	conn := transport.NewHauledConn(whole[slot:slot+transport.Slots*slot], haul)
	b := &inbox{
		memory: whole, end: transport.NewRecvEnd(conn, 3),
		receiver: &receiver{link: transport.Link{From: 3, Slot: slot}, haul: haul, in: transport.NewInbound(conn), bundle: &bundle{main: from}},
	}
	b.end.Open()
	return b
}

// unharmed checks the guards.
func (b *inbox) unharmed(t *testing.T, slot int) {
	guard := bytes.Repeat([]byte{0xa5}, slot)
	require.Equal(t, guard, b.memory[:slot])
	require.Equal(t, guard, b.memory[len(b.memory)-slot:])
}

func written(frames ...frame) []byte {
	var all []byte
	for i, f := range frames {
		var head [frameBytes]byte
		f.encode(&head)
		all = append(all, head[:]...)
		all = append(all, make([]byte, f.headBytes()-frameBytes)...)
		all = append(all, bytes.Repeat([]byte{byte(i + 1)}, f.length)...)
	}
	return all
}

func TestFramesAreReadBack(t *testing.T) {
	for _, f := range []frame{
		{}, {length: 1, slots: 1, step: 7, header: 1<<64 - 1}, {length: 4096, slots: 8, step: 1 << 40, header: 3},
	} {
		var head [frameBytes]byte
		f.slots = max(f.slots, 1)
		f.encode(&head)
		got, err := decodeFrame(head[:], f.step, 512)
		require.NoError(t, err)
		require.Equal(t, f, got)
	}
}

func TestFramesThatAreOutOfPlaceEndTheLink(t *testing.T) {
	for name, tc := range map[string]struct {
		f    frame
		next uint64
	}{
		"no slots":               {frame{slots: 0}, 0},
		"slots that wrap":        {frame{slots: 2, step: 7}, 7},
		"a step that was before": {frame{slots: 1, step: 6}, 7},
		"a step far ahead":       {frame{slots: 1, step: 15}, 7},
		"more than fits":         {frame{slots: 2, step: 2, length: 1025}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decodeFrame(written(tc.f)[:frameBytes], tc.next, 512)
			require.Error(t, err)
			if tc.next > 0 {
				return
			}
			b := newInbox(512, &text{rest: written(tc.f)})
			b.end.Filled(1).Ready()
			for range 10 {
				b.progress(true)
			}
			require.ErrorContains(t, b.failure, "rank 3 sent a frame")
			require.False(t, b.end.Filled(1).Ready())
			b.unharmed(t, 512)
		})
	}
	head := written(frame{slots: 1})
	head[6]++
	_, err := decodeFrame(head, 0, 512)
	require.ErrorContains(t, err, "kind")
}

// However the stream comes in pieces, frames come out whole and in order.
func TestFramesComeOutWhole(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		const slot = 6 * 1024
		var frames []frame
		step := uint64(0)
		for range 1 + random.IntN(20) {
			slots := 1 + random.IntN(3)
			for step%transport.Slots+uint64(slots) > transport.Slots {
				step++ // as RoundUp skips
			}
			length := random.IntN(2 * inlineBytes)
			if random.IntN(3) == 0 {
				length = random.IntN(slots*slot + 1)
			}
			frames = append(frames, frame{length: length, slots: slots, step: step, header: random.Uint64()})
			step += uint64(slots)
		}
		b := newInbox(slot, &text{rest: written(frames...), pieces: random})
		for i, f := range frames {
			b.end.RoundUp(1)
			for b.end.Step() < f.step {
				b.end.Release(1) // skipped
			}
			var into []byte
			condition := b.end.Filled(f.slots)
			if random.IntN(2) == 0 {
				into = make([]byte, f.length)
				condition = b.end.FilledInto(f.slots, f.header, into)
			}
			for !condition.Ready() {
				require.NoError(t, b.failure)
				b.progress(random.IntN(2) == 0)
			}
			require.Equal(t, f.header, b.end.Header())
			user, size := b.end.Landed()
			require.Equal(t, f.length, size)
			got := b.end.Slot(f.slots)[:size]
			if user {
				got = into
			}
			require.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, f.length), append([]byte{}, got...))
			b.end.Release(f.slots)
		}
		b.unharmed(t, slot)
	}
}

func FuzzReceiver(f *testing.F) {
	f.Add(written(frame{length: 100, slots: 1}, frame{length: 0, slots: 1, step: 1}, frame{length: 1024, slots: 2, step: 2}), uint64(1))
	f.Add(written(frame{length: 1024, slots: 1})[:500], uint64(2))
	f.Add(written(frame{length: 100, slots: 1}, frame{length: 1024, slots: 2, step: 2, last: true}), uint64(5))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n                      "), uint64(3))
	f.Fuzz(func(t *testing.T, sent []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		const slot = 512
		b := newInbox(slot, &text{rest: sent, pieces: random})
		streams := 1
		if seed%2 == 1 { // the link may go on over the same once more
			pairUp(&sender{bundle: &bundle{main: &text{rest: sent, pieces: random}}}, b.receiver)
			streams = 2
		}
		released := uint64(0)
		for range 20 + 2*len(sent) {
			b.end.Filled(1).Ready()
			b.progress(random.IntN(2) == 0)
			if b.end.Filled(1).Ready() {
				if user, size := b.end.Landed(); user || size > transport.Slots*slot {
					t.Fatalf("%d bytes have landed in the user's memory (%v), which was not given", size, user)
				}
				b.end.Release(1)
				released++
			}
		}
		b.unharmed(t, slot)
		if most := uint64(streams*len(sent)/frameBytes+1) * transport.Slots; released > most {
			t.Fatalf("%d steps of %d bytes", released, len(sent))
		}
	})
}

// What is lent is sent from where it is, and what is wanted somewhere lands there.
func TestTheUsersMemoryIsUsedDirectly(t *testing.T) {
	for name, thread := range map[string]bool{"thread": true, "inline": false} {
		t.Run(name, func(t *testing.T) {
			p := openPair(t, thread, nil)
			link := transport.Link{From: 0, To: 1, Lane: 1, Slot: 1 << 16}
			in, err := p.Connect(link, transport.Producer)
			require.NoError(t, err)
			out, err := p.Connect(link, transport.Consumer)
			require.NoError(t, err)
			s, r := transport.NewSendEnd(in, 1), transport.NewRecvEnd(out, 0)
			s.Open()
			r.Open()
			lent, wanted := bytes.Repeat([]byte{7}, 50_000), make([]byte, 50_000)
			other := make([]byte, 50_000)
			for _, tc := range []struct {
				header uint64
				into   []byte
				direct bool
			}{
				{1, wanted, true},
				{2, other[:49_999], false}, // not just as many
				{9, other, false},          // of another operation
			} {
				clear(wanted)
				c := r.FilledInto(1, tc.header, tc.into) // wanted before it is sent
				require.False(t, driven(c)())
				slot := append([]byte{}, s.Slot(1)...)
				s.PostFrom(1, min(tc.header, 3), lent)
				require.Equal(t, slot, s.Slot(1)[:len(slot)])
				eventually(t, s.Flushed())
				eventually(t, r.FilledInto(1, tc.header, tc.into))
				user, size := r.Landed()
				require.Equal(t, tc.direct, user, "header %d", tc.header)
				require.Equal(t, len(lent), size)
				if user {
					require.Equal(t, lent, wanted)
				} else {
					require.Equal(t, lent, r.Slot(1)[:size])
					require.Equal(t, make([]byte, len(other)), other)
				}
				r.Release(1)
			}
		})
	}
}

// After a failure nothing of the user's is touched any more.
func TestAbandonedMemoryIsLeftAlone(t *testing.T) {
	for name, thread := range map[string]bool{"thread": true, "inline": false} {
		t.Run(name, func(t *testing.T) {
			p := openPair(t, thread, nil)
			link := transport.Link{From: 0, To: 1, Lane: 1, Slot: 1 << 16}
			in, err := p.Connect(link, transport.Producer)
			require.NoError(t, err)
			out, err := p.Connect(link, transport.Consumer)
			require.NoError(t, err)
			s, r := transport.NewSendEnd(in, 1), transport.NewRecvEnd(out, 0)
			s.Open()
			r.Open()
			wanted := make([]byte, 50_000)
			require.False(t, driven(r.FilledInto(1, 5, wanted))())
			p[1].Abandon(1)
			s.PostFrom(1, 5, bytes.Repeat([]byte{7}, len(wanted)))
			eventually(t, s.Flushed())
			for range 100 {
				require.False(t, driven(r.Filled(1))())
			}
			require.Equal(t, make([]byte, len(wanted)), wanted)
		})
	}
}

func eventually(t *testing.T, c interface {
	Ready() bool
	Service() spin.Service
}) {
	t.Helper()
	require.Eventually(t, driven(c), waitAtMost, lookEvery)
}
