package tcp

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Faults makes sockets behave as badly as they may: for tests. What it does is
// legal, so nothing above may notice, but for Reset. The numbers are chances from
// 0 to 1 of each system call. Two Faults of the same Seed treat the sockets that
// they are given, in that order, alike.
type Faults struct {
	Seed uint64
	// Short transfers move fewer bytes than they could.
	Short float64
	// Interrupt is the chance of EINTR.
	Interrupt float64
	// Again is the chance that a storm of up to Storm refusals (EAGAIN) begins,
	// 16 by default.
	Again float64
	Storm int
	// Delay is the chance that nothing moves for a random time of up to Pause,
	// 1 ms by default.
	Delay float64
	Pause time.Duration
	// Reset is the chance that the connection is lost.
	Reset float64

	sockets atomic.Uint64
	counts  [faultKinds]atomic.Uint64
}

type faultKind uint8

const (
	noFault faultKind = iota
	faultShort
	faultInterrupt
	faultAgain
	faultDelay
	faultReset
	faultKinds
)

// Injected returns how many faults of each kind there were, by the names of the
// fields.
func (f *Faults) Injected() map[string]uint64 {
	return map[string]uint64{
		"Short": f.counts[faultShort].Load(), "Interrupt": f.counts[faultInterrupt].Load(), "Again": f.counts[faultAgain].Load(),
		"Delay": f.counts[faultDelay].Load(), "Reset": f.counts[faultReset].Load(),
	}
}

// misfortune is what happens to one direction of one socket.
type misfortune struct {
	faults *Faults
	mu     sync.Mutex // helpers and the proxy's thread may share a socket's direction in turn
	random *rand.Rand
	storm  int       // refusals to come
	until  time.Time // of a delay
	dead   bool
}

// next decides on the next call, which could move total bytes; with faultShort comes
// how many it may.
func (m *misfortune) next(total int) (faultKind, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kind, allowed := m.decide(total)
	m.faults.counts[kind].Add(1)
	return kind, allowed
}

func (m *misfortune) decide(total int) (faultKind, int) {
	f := m.faults
	if m.dead {
		return faultReset, 0
	}
	if m.storm > 0 {
		m.storm--
		return faultAgain, 0
	}
	if !m.until.IsZero() {
		if time.Now().Before(m.until) {
			return faultDelay, 0
		}
		m.until = time.Time{}
	}
	switch {
	case m.happens(f.Reset):
		m.dead = true
		return faultReset, 0
	case m.happens(f.Interrupt):
		return faultInterrupt, 0
	case m.happens(f.Again):
		m.storm = m.random.IntN(orDefault(f.Storm, 16))
		return faultAgain, 0
	case m.happens(f.Delay):
		m.until = time.Now().Add(time.Duration(m.random.Int64N(int64(orDefault(f.Pause, time.Millisecond)))))
		return faultDelay, 0
	case total > 1 && m.happens(f.Short):
		return faultShort, 1 + m.random.IntN(total-1)
	}
	return noFault, total
}

// happens draws in any case, so that one chance does not shift the others' draws.
func (m *misfortune) happens(chance float64) bool { return m.random.Float64() < chance }

func orDefault[T int | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// directions gives the next socket its fate.
func (f *Faults) directions() (in, out *misfortune) {
	n := f.sockets.Add(1)
	return &misfortune{faults: f, random: rand.New(rand.NewPCG(f.Seed, 2*n))},
		&misfortune{faults: f, random: rand.New(rand.NewPCG(f.Seed, 2*n+1))}
}
