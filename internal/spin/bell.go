package spin

import "sync/atomic"

// Parker is where one goroutine sleeps. It may be woken by several bells and by
// a failure; a wake-up that comes early is kept.
type Parker struct {
	wake chan struct{}
}

// NewParker returns a Parker with no wake-up pending.
func NewParker() *Parker { return &Parker{wake: make(chan struct{}, 1)} }

// Wake ends the owner's sleep, or makes its next sleep end at once.
func (p *Parker) Wake() {
	select {
	case p.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// Bell tells the goroutine that waits at one end of a FIFO that the other end
// has moved. The waiting end writes it (Arm, Disarm), the moving end only reads
// it, so that both keep the line in their caches as long as nobody parks.
//
// The waiter arms the bell and then looks at the condition once more; the mover
// makes the condition true and then rings. Both stores are sequentially
// consistent, so at least one of the two sees the other: no wake-up is lost.
type Bell struct {
	waiter atomic.Pointer[Parker]
	_      [120]byte // a line of its own
}

// Arm asks for p to be woken by the next Ring.
func (b *Bell) Arm(p *Parker) { b.waiter.Store(p) }

// Disarm withdraws Arm.
func (b *Bell) Disarm() { b.waiter.Store(nil) }

// Ring wakes the waiter, if one is parked. The store that makes the condition
// true must be sequentially consistent and come first.
func (b *Bell) Ring() {
	if p := b.waiter.Load(); p != nil {
		p.Wake()
	}
}
