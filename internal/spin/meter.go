package spin

import (
	"sync/atomic"
	"time"
)

// Meter counts what goroutines do on another role's behalf while they wait for
// something of their own, as blocks do that drive a proxy. What it counts is a part
// of their CPU and, for the most part, of their Waiting.
//
// One goroutine at a time is between Begin and End; any may ask for Counters. The
// zero Meter is ready to be used.
type Meter struct {
	began time.Duration
	// Written between Begin and End.
	turns, found, bytes atomic.Uint64
	cpu, waiting        atomic.Int64
}

// Begin begins a poll.
func (m *Meter) Begin() { m.began = systemClocks{}.now() }

// End ends a poll that has moved so many bytes; moved is also true for progress that
// is not made of bytes. Time is that of day: a poll is too short to be interrupted
// often.
func (m *Meter) End(moved bool, bytes int) {
	spent := int64(systemClocks{}.now() - m.began)
	m.cpu.Store(m.cpu.Load() + spent)
	m.turns.Store(m.turns.Load() + 1)
	if !moved {
		m.waiting.Store(m.waiting.Load() + spent)
		return
	}
	m.found.Store(m.found.Load() + 1)
	m.bytes.Store(m.bytes.Load() + uint64(bytes))
}

// Counters returns what was counted so far. No goroutine is the Meter's own: Threads
// is 0, and so is Wall.
func (m *Meter) Counters() Counters {
	return Counters{
		Waiting: time.Duration(m.waiting.Load()),
		CPU:     time.Duration(m.cpu.Load()),
		Turns:   m.turns.Load(),
		Found:   m.found.Load(),
		Bytes:   m.bytes.Load(),
	}
}
