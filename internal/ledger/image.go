package ledger

import (
	"encoding/binary"
	"errors"
)

// Where ranks don't share memory, a page is sent to them as an image now and then:
// by a rank that waits, closes, or is asked. Between two images others know less of
// it, never anything wrong.
//
//	entered, closed          8 bytes each, as all integers little-endian
//	number of calls          1 byte; the calls before entered, 8 bytes each
//	number of descriptions   1 byte; fingerprint and two words, 8 bytes each

// Image is what rank's page says, for Apply in another process.
func (l *Ledger) Image(rank int) []byte {
	p := l.pages[rank]
	// Closed is read first, as Compare reads it: entered is then final.
	closed, entered := p.closed.Load(), p.entered.Load()
	calls := min(entered, remembered)
	b := binary.LittleEndian.AppendUint64(nil, entered)
	b = binary.LittleEndian.AppendUint64(b, closed)
	b = append(b, byte(calls))
	meant := make(map[uint64]bool)
	for s := entered - calls; s < entered; s++ {
		fingerprint := p.calls[s%remembered].Load()
		meant[fingerprint] = true
		b = binary.LittleEndian.AppendUint64(b, fingerprint)
	}
	count := len(b)
	b = append(b, 0)
	for i := range p.descriptions {
		d := &p.descriptions[i]
		if fingerprint := d.fingerprint.Load(); fingerprint != 0 && meant[fingerprint] {
			b[count]++
			b = binary.LittleEndian.AppendUint64(b, fingerprint)
			b = binary.LittleEndian.AppendUint64(b, d.words[0].Load())
			b = binary.LittleEndian.AppendUint64(b, d.words[1].Load())
		}
	}
	return b
}

// Stamp changes when Image does.
func (l *Ledger) Stamp(rank int) uint64 {
	p := l.pages[rank]
	return p.entered.Load()<<2 | p.closed.Load()
}

var errImage = errors.New("ledger: not the image of a page")

// Apply makes rank's page, which no rank of this process writes, say what the image
// does.
func (l *Ledger) Apply(rank int, image []byte) error {
	if rank < 0 || rank >= len(l.pages) {
		return errImage
	}
	words := func(n int) []uint64 {
		if len(image) < 8*n {
			image = nil
			return make([]uint64, n)
		}
		w := make([]uint64, n)
		for i := range w {
			w[i] = binary.LittleEndian.Uint64(image[8*i:])
		}
		image = image[8*n:]
		return w
	}
	count := func() int {
		if len(image) == 0 {
			return 0
		}
		n := int(image[0])
		image = image[1:]
		return n
	}
	state := words(2)
	entered, closed := state[0], state[1]
	n := count()
	calls := words(n)
	m := count()
	if uint64(n) > entered || n > remembered || m > described || len(image) != 3*8*m {
		return errImage
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pages[rank]
	for i := range m {
		d, w := &p.descriptions[i], words(3)
		if d.fingerprint.Load() != w[0] {
			d.fingerprint.Store(0)
			d.words[0].Store(w[1])
			d.words[1].Store(w[2])
			d.fingerprint.Store(w[0])
		}
	}
	for i, fingerprint := range calls {
		p.calls[(entered-uint64(n)+uint64(i))%remembered].Store(fingerprint)
	}
	p.entered.Store(entered)
	p.closed.Store(closed)
	return nil
}
