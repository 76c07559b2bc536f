package spin

import (
	"sync/atomic"
	"time"
)

// Parker is where one goroutine sleeps. It may be woken by several bells and by
// a failure; a wake-up that comes early is kept.
//
// There are three kinds: those of NewParker can be woken within the process only,
// those of NewBedParker from every process that maps the bed, those of NewParkerOn
// within the process and by whatever else their Sleeper listens to.
type Parker struct {
	wake  chan struct{} // with one place, for the wake-up that is kept
	timer *time.Timer

	bed    *Bed // instead of wake
	number uint32

	sleeper Sleeper // instead of wake
}

// Sleeper is a way to sleep that hears of more than bells: of sockets, say.
type Sleeper interface {
	// Wake ends the Sleep in progress, or else the next one at once. Any
	// goroutine may call it, and often when nobody sleeps.
	Wake()
	// Sleep returns true when it was woken, by Wake or by what else it listens
	// to, false when atMost has passed or done is closed. It may miss done. One
	// goroutine at a time sleeps.
	Sleep(done <-chan struct{}, atMost time.Duration) bool
}

// NewParker returns a Parker with no wake-up pending.
func NewParker() *Parker { return &Parker{wake: make(chan struct{}, 1)} }

// NewBedParker returns a Parker that sleeps in beds[number-1]. Nobody else may
// sleep there.
func NewBedParker(beds []Bed, number uint32) *Parker {
	return &Parker{bed: &beds[number-1], number: number}
}

// NewParkerOn returns a Parker that sleeps as s does. Bells between processes
// can't wake it.
func NewParkerOn(s Sleeper) *Parker { return &Parker{sleeper: s} }

// Wake ends the owner's sleep, or makes its next sleep end at once.
func (p *Parker) Wake() {
	if p.bed != nil {
		p.bed.wake()
		return
	}
	if p.sleeper != nil {
		p.sleeper.Wake()
		return
	}
	select {
	case p.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// Token is to be taken before the bells are armed: a wake-up after it ends the
// sleep that is given it.
func (p *Parker) Token() uint32 {
	if p.bed != nil {
		return p.bed.word.Load()
	}
	return 0
}

// Sleep returns true when it was woken, false when atMost has passed or done is
// closed. A bed does not see done: it sleeps on until atMost.
func (p *Parker) Sleep(token uint32, done <-chan struct{}, atMost time.Duration) bool {
	if p.bed != nil {
		return p.bed.sleep(token, atMost)
	}
	if p.sleeper != nil {
		return p.sleeper.Sleep(done, atMost)
	}
	if p.timer == nil {
		p.timer = time.NewTimer(atMost)
	} else {
		p.timer.Reset(atMost)
	}
	defer p.timer.Stop()
	select {
	case <-p.wake:
		return true
	case <-done:
		return false
	case <-p.timer.C:
		return false
	}
}

// Bed is a word in memory that processes share, in which a goroutine of one of
// them sleeps. It counts wake-ups; everybody may wake.
type Bed struct {
	word atomic.Uint32
	_    [124]byte // a line of its own
}

// Bell tells the goroutine that waits at one end of a FIFO that the other end
// has moved. The waiting end writes it (Arm, Disarm), the moving end only reads
// it, so that both keep the line in their caches as long as nobody parks.
//
// The waiter arms the bell and then looks at the condition once more; the mover
// makes the condition true and then rings. Both stores are sequentially
// consistent, so at least one of the two sees the other: no wake-up is lost.
//
// The zero Bell works within a process.
type Bell struct {
	waiter atomic.Pointer[Parker]
	shared *SharedBell
	_      [112]byte // a line of its own
}

// SharedBell is a Bell between processes.
type SharedBell struct {
	// Sleeper is the number of the waiting end's bed, 0 when nobody sleeps. It
	// lies in shared memory on a line of its own, written by the waiting end.
	Sleeper *atomic.Uint32
	// Beds are those of the waiting end's process.
	Beds []Bed
}

// Share makes b a bell between processes, before it is used.
func (b *Bell) Share(s *SharedBell) { b.shared = s }

// Arm asks for p to be woken by the next Ring.
func (b *Bell) Arm(p *Parker) {
	if b.shared != nil {
		b.shared.Sleeper.Store(p.number)
		return
	}
	b.waiter.Store(p)
}

// Disarm withdraws Arm.
func (b *Bell) Disarm() {
	if b.shared != nil {
		b.shared.Sleeper.Store(0)
		return
	}
	b.waiter.Store(nil)
}

// Ring wakes the waiter, if one is parked. The store that makes the condition
// true must be sequentially consistent and come first.
func (b *Bell) Ring() {
	if p := b.waiter.Load(); p != nil {
		p.Wake()
	} else if b.shared != nil {
		b.shared.ring()
	}
}

func (s *SharedBell) ring() {
	// The number comes from another process: it is checked before it is used.
	if n := s.Sleeper.Load(); n > 0 && int(n) <= len(s.Beds) {
		s.Beds[n-1].wake()
	}
}
