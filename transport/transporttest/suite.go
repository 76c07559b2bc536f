// Package transporttest is the conformance suite of transports: what proto and
// the blocks rely on, whatever is behind a Conn. The test of each transport calls
// Run.
package transporttest

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// Run checks the transports that open returns, a new one at each call. A transport
// whose two ends live in different objects (processes, hosts) is given as one
// that hands each end to the right object.
func Run(t *testing.T, open func() transport.Transport) {
	for _, check := range []struct {
		name string
		run  func(*testing.T, transport.Transport)
	}{
		{"it has a name that users can write", named},
		{"the same link is the same FIFO", sameLink},
		{"links that differ in anything are different FIFOs", differentLinks},
		{"slots have the size asked for and begin on lines", geometry},
		{"a slot that is not whole lines is an error", badSlot},
		{"either end may ask first", lazily},
		{"bytes and headers arrive in order", order},
		{"flagged words arrive with the words stored before them", flags},
		{"credit comes back", credit},
		{"many ranks connect and exchange at the same time", crowd},
	} {
		t.Run(check.name, func(t *testing.T) { check.run(t, open()) })
	}
}

var simple = transport.Link{From: 0, To: 1, Channel: 0, Use: transport.Collective, Lane: 1, Slot: 512}

// connect returns the two ends of link, each through a Connect of its own.
func connect(t *testing.T, tr transport.Transport, link transport.Link) (*transport.SendEnd, *transport.RecvEnd) {
	t.Helper()
	return sendEnd(t, tr, link), recvEnd(t, tr, link)
}

func sendEnd(t *testing.T, tr transport.Transport, link transport.Link) *transport.SendEnd {
	t.Helper()
	c, err := tr.Connect(link, transport.Producer)
	require.NoError(t, err)
	s := transport.NewSendEnd(c, link.To)
	s.Open()
	return s
}

func recvEnd(t *testing.T, tr transport.Transport, link transport.Link) *transport.RecvEnd {
	t.Helper()
	c, err := tr.Connect(link, transport.Consumer)
	require.NoError(t, err)
	r := transport.NewRecvEnd(c, link.From)
	r.Open()
	return r
}

func named(t *testing.T, tr transport.Transport) {
	require.Regexp(t, `^[a-z][a-z0-9]*$`, tr.Name())
}

func sameLink(t *testing.T, tr transport.Transport) {
	s, r := connect(t, tr, simple)
	require.False(t, r.Filled(1).Ready())
	copy(s.Slot(1), "hello")
	s.Post(1, 42, len(s.Slot(1)))
	flush(t, s)
	await(t, r.Filled(1))
	require.EqualValues(t, 42, r.Header())
	require.Equal(t, "hello", string(r.Slot(1)[:5]))
}

func differentLinks(t *testing.T, tr transport.Transport) {
	links := []transport.Link{simple}
	for _, change := range []func(*transport.Link){
		func(l *transport.Link) { l.From, l.To = 1, 0 },
		func(l *transport.Link) { l.To = 2 },
		func(l *transport.Link) { l.From = 2 },
		func(l *transport.Link) { l.Channel = 1 },
		func(l *transport.Link) { l.Use = transport.PointToPoint },
		func(l *transport.Link) { l.Lane = 2 },
	} {
		other := simple
		change(&other)
		links = append(links, other)
	}
	receivers := make([]*transport.RecvEnd, len(links))
	for i, link := range links {
		s, r := connect(t, tr, link)
		receivers[i] = r
		binary.LittleEndian.PutUint64(s.Slot(1), uint64(i))
		s.Post(1, uint64(100+i), len(s.Slot(1)))
		flush(t, s)
	}
	for i, r := range receivers {
		await(t, r.Filled(1))
		require.EqualValues(t, 100+i, r.Header(), "%+v", links[i])
		require.EqualValues(t, i, binary.LittleEndian.Uint64(r.Slot(1)), "%+v", links[i])
		require.False(t, r.Filled(2).Ready(), "%+v", links[i])
	}
}

func geometry(t *testing.T, tr transport.Transport) {
	for i, slot := range []int{transport.Line, 4096, 65536 + transport.Line} {
		link := simple
		link.Channel, link.Slot = i, slot
		s, r := connect(t, tr, link)
		require.Len(t, s.Slot(1), slot)
		require.Len(t, r.Slot(1), slot)
		s.RoundUp(transport.Slots)
		require.Len(t, s.Slot(transport.Slots), slot*transport.Slots)
		for _, memory := range [][]byte{s.Slot(1), r.Slot(1)} {
			require.Zero(t, reflect.ValueOf(memory).Pointer()%transport.Line)
		}
	}
}

func badSlot(t *testing.T, tr transport.Transport) {
	for i, slot := range []int{-transport.Line, 0, 1, transport.Line + 1} {
		link := simple
		link.Channel, link.Slot = 10+i, slot
		for _, end := range []transport.End{transport.Producer, transport.Consumer} {
			_, err := tr.Connect(link, end)
			require.Error(t, err)
		}
	}
}

// lazily sends all that fits before the consumer has asked for the FIFO, and the
// other way round.
func lazily(t *testing.T, tr transport.Transport) {
	s := sendEnd(t, tr, simple)
	for i := range transport.Slots {
		require.True(t, s.Credit(1).Ready())
		s.Slot(1)[0] = byte(i)
		s.Post(1, uint64(i), len(s.Slot(1)))
	}
	if !s.Carried() { // the way between the ends holds some, too
		require.False(t, s.Credit(1).Ready())
	}
	r := recvEnd(t, tr, simple)
	flush(t, s)
	for i := range transport.Slots {
		await(t, r.Filled(1))
		require.EqualValues(t, i, r.Header())
		require.EqualValues(t, i, r.Slot(1)[0])
		r.Release(1)
	}

	back := simple
	back.From, back.To = 1, 0
	r = recvEnd(t, tr, back)
	require.False(t, r.Filled(1).Ready())
	s = sendEnd(t, tr, back)
	s.Post(1, 7, len(s.Slot(1)))
	flush(t, s)
	await(t, r.Filled(1))
	require.EqualValues(t, 7, r.Header())
}

func order(t *testing.T, tr transport.Transport) {
	s, r := connect(t, tr, simple)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	require.NoError(t, exchange(t.Context(), s, r, 3000, seed))
}

// flags stores data words and then a flag word in each slot, as LL128 does, and
// reads them in the other order.
func flags(t *testing.T, tr transport.Transport) {
	if !tr.OrderedStores() {
		t.Skip("the transport does not promise it")
	}
	link := simple
	link.Slot = transport.Line
	s, r := connect(t, tr, link)
	const last = transport.Line/8 - 1
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var group ranks
	group.Go(func() error {
		w := waiter(ctx, s)
		for step := range uint64(2000) {
			if err := w.Until(s.Credit(1)); err != nil {
				return err
			}
			words := transport.Words(s.Slot(1))
			for i := range last {
				words[i].Store(step * uint64(i+1))
			}
			words[last].Store(step + 1)
			s.Advance(0, len(s.Slot(1)))
		}
		if s.Carried() {
			return w.Until(s.Flushed())
		}
		return nil
	})
	group.Go(func() error {
		w := waiter(ctx, r)
		for step := range uint64(2000) {
			words := transport.Words(r.Slot(1))
			if err := w.Until(&flagged{r, words, last, step + 1}); err != nil {
				return err
			}
			for i := range last {
				if got := words[i].Load(); got != step*uint64(i+1) {
					return fmt.Errorf("step %d, word %d is %d behind its flag", step, i, got)
				}
			}
			r.Release(1)
		}
		return nil
	})
	require.NoError(t, group.Wait())
}

func credit(t *testing.T, tr transport.Transport) {
	s, r := connect(t, tr, simple)
	for range 5 * transport.Slots {
		await(t, s.Credit(1))
		s.Post(1, 0, len(s.Slot(1)))
		flush(t, s)
		await(t, r.Filled(1))
		r.Release(1)
	}
	// Skipped steps are given back, too.
	await(t, s.Credit(1))
	s.Post(1, 0, len(s.Slot(1)))
	flush(t, s)
	await(t, r.Filled(1))
	r.Release(1)
	s.RoundUp(4)
	r.RoundUp(4)
	require.Equal(t, s.Step(), r.Step())
	await(t, s.Credit(transport.Slots))
}

// crowd lets every rank connect to every other on its own goroutines and move
// data both ways.
func crowd(t *testing.T, tr transport.Transport) {
	const size = 5
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var group ranks
	for from := range size {
		for to := range size {
			if from == to {
				continue
			}
			link := transport.Link{From: from, To: to, Use: transport.PointToPoint, Slot: 256}
			ends := make(chan *transport.SendEnd, 1)
			group.Go(func() error {
				c, err := tr.Connect(link, transport.Producer)
				if err != nil {
					close(ends)
					return err
				}
				ends <- transport.NewSendEnd(c, to)
				return nil
			})
			group.Go(func() error {
				c, err := tr.Connect(link, transport.Consumer)
				if err != nil {
					return err
				}
				s, ok := <-ends
				if !ok {
					return nil
				}
				return exchange(t.Context(), s, transport.NewRecvEnd(c, from), 300, seed+uint64(from*size+to))
			})
		}
	}
	require.NoError(t, group.Wait())
}

// exchange moves steps steps from s to r on two goroutines, with random delays,
// and checks every byte and header.
func exchange(ctx context.Context, s *transport.SendEnd, r *transport.RecvEnd, steps int, seed uint64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var group ranks
	group.Go(func() error {
		s.Open()
		defer s.Close()
		w, delay := waiter(ctx, s), rand.New(rand.NewPCG(seed, 1))
		for i := range uint64(steps) {
			if err := w.Until(s.Credit(1)); err != nil {
				return err
			}
			memory := s.Slot(1)
			for at := 0; at < len(memory); at += 8 {
				binary.LittleEndian.PutUint64(memory[at:], (i+seed)*uint64(at+1))
			}
			dawdle(delay)
			s.Post(1, i^seed, len(s.Slot(1)))
		}
		if s.Carried() {
			return w.Until(s.Flushed())
		}
		return nil
	})
	group.Go(func() error {
		r.Open()
		defer r.Close()
		w, delay := waiter(ctx, r), rand.New(rand.NewPCG(seed, 2))
		for i := range uint64(steps) {
			if err := w.Until(r.Filled(1)); err != nil {
				return err
			}
			if r.Header() != i^seed {
				return fmt.Errorf("step %d has the header %#x of another", i, r.Header())
			}
			dawdle(delay)
			memory := r.Slot(1)
			for at := 0; at < len(memory); at += 8 {
				if got, want := binary.LittleEndian.Uint64(memory[at:]), (i+seed)*uint64(at+1); got != want {
					return fmt.Errorf("step %d, byte %d: %#x, want %#x", i, at, got, want)
				}
			}
			r.Release(1)
		}
		return nil
	})
	return group.Wait()
}

// dawdle mostly does nothing, sometimes yields, and seldom sleeps long enough for
// the other end to park.
func dawdle(r *rand.Rand) {
	switch n := r.IntN(500); {
	case n == 0:
		time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
	case n < 50:
		runtime.Gosched()
	}
}

// flagged is the condition that a word holds a flag.
type flagged struct {
	*transport.RecvEnd
	words []atomic.Uint64
	at    int
	flag  uint64
}

func (f *flagged) Ready() bool {
	if f.Carried() && !f.Filled(1).Ready() {
		return false
	}
	return f.words[f.at].Load() == f.flag
}

// watch ends a wait with its context.
type watch struct{}

func (watch) Failed() error                { return nil }
func (watch) Inspect(spin.Condition) error { return nil }
func (watch) Expired(c spin.Condition, cause error) error {
	return fmt.Errorf("waiting for rank %d: %w", c.Peer(), cause)
}

// waiter waits at an end, which may have to be driven.
func waiter(ctx context.Context, end interface{ Service() spin.Service }) *spin.Waiter {
	w := spin.NewWaiter(spin.Adaptive, 2)
	w.Bind(ctx, watch{}, 0)
	w.Serve(end.Service())
	return w
}

// await waits on the test's goroutine: a transport may need time.
func await(t *testing.T, c interface {
	spin.Condition
	Service() spin.Service
}) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, waiter(ctx, c).Until(c))
}

// flush lets a proxy that only waiting blocks drive take away what s has posted.
func flush(t *testing.T, s *transport.SendEnd) {
	t.Helper()
	if s.Carried() {
		await(t, s.Flushed())
	}
}

// ranks are goroutines that play ranks; the first error is theirs all.
type ranks struct {
	sync.WaitGroup
	mu    sync.Mutex
	first error
}

func (e *ranks) Go(f func() error) {
	e.WaitGroup.Go(func() {
		if err := f(); err != nil {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.first == nil {
				e.first = err
			}
		}
	})
}

func (e *ranks) Wait() error {
	e.WaitGroup.Wait()
	return e.first
}
