//go:build !linux

package spin

import "time"

// Memory shared between processes is a Linux matter so far; a Bed within one
// process still works.

func (b *Bed) wake() { b.word.Add(1) }

func (b *Bed) sleep(token uint32, atMost time.Duration) bool {
	const nap = 100 * time.Microsecond
	for left := atMost; b.word.Load() == token; left -= nap {
		if left <= 0 {
			return false
		}
		time.Sleep(nap)
	}
	return true
}

func yieldProcessor() { time.Sleep(0) }
