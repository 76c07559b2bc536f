package ledger

import (
	"sync/atomic"

	"github.com/gollective/gollective/collective/plan"
)

// Sizes of a page's lists.
const (
	// remembered is how many of its latest collectives a page still shows. A
	// rank can be ahead of another by more than that only where nothing it
	// did needed the other.
	remembered = 64
	// described is how many different calls a page can put into words.
	described = 128
	// listed is how many peers a waiting rank can name.
	listed = 32
)

// page is what one rank tells the others. Only that rank writes it. It is made of
// words only, so that it can lie in memory that processes share.
type page struct {
	// entered is the number of collectives entered: the sequence number of
	// the next one. Written after the fingerprint in calls, read before it.
	entered atomic.Uint64
	closed  atomic.Uint64
	// calls holds the latest fingerprints, at sequence number mod remembered.
	calls [remembered]atomic.Uint64

	// descriptions say what fingerprints mean. Written when a rank first
	// makes a call, long before it is looked at by others.
	descriptions [described]description

	waiting waitingWords
	_       [128]byte // the next page begins on another line
}

// description is the meaning of a fingerprint. The fingerprint is 0 while the
// words are being written.
type description struct {
	fingerprint atomic.Uint64
	words       [2]atomic.Uint64
}

// waitingWords is a Waiting in shared memory. version is odd while it is written,
// and grows with every new one.
type waitingWords struct {
	version  atomic.Uint64
	active   atomic.Uint64
	words    [2]atomic.Uint64
	channel  atomic.Uint64
	from, to atomic.Uint64         // how many ranks of each kind follow
	ranks    [listed]atomic.Uint64 // from first, then to
}

// Waiting says for whom a rank waits in point-to-point traffic. A rank that goes
// on waiting publishes it anew every few milliseconds, after another look at
// everything it waits for: two new versions prove that it saw nothing of what had
// happened before the first.
type Waiting struct {
	Version uint64 // set by the ledger
	Call    plan.Spec
	Channel int   // each channel waits by itself
	From    []int // ranks whose data is awaited
	To      []int // ranks whose credit is awaited
}

// describe returns the place of the description.
func (p *page) describe(fingerprint uint64, spec plan.Spec, next *int) int {
	for i := range p.descriptions {
		if p.descriptions[i].fingerprint.Load() == fingerprint {
			return i
		}
	}
	place := *next % described
	d := &p.descriptions[place]
	*next++
	words := spec.Words()
	d.fingerprint.Store(0)
	d.words[0].Store(words[0])
	d.words[1].Store(words[1])
	d.fingerprint.Store(fingerprint)
	return place
}

// text is the meaning of a fingerprint in words.
func (p *page) text(fingerprint uint64) string {
	for i := range p.descriptions {
		d := &p.descriptions[i]
		if d.fingerprint.Load() != fingerprint {
			continue
		}
		spec := plan.SpecOfWords([2]uint64{d.words[0].Load(), d.words[1].Load()})
		if d.fingerprint.Load() == fingerprint {
			return spec.String()
		}
	}
	return "another call"
}

func (w *waitingWords) store(v *Waiting) {
	version := w.version.Load()
	w.version.Store(version + 1)
	if v == nil {
		w.active.Store(0)
		w.version.Store(version + 2)
		return
	}
	words := v.Call.Words()
	w.words[0].Store(words[0])
	w.words[1].Store(words[1])
	w.channel.Store(uint64(v.Channel))
	from := v.From[:min(len(v.From), listed)]
	to := v.To[:min(len(v.To), listed-len(from))]
	for i, rank := range from {
		w.ranks[i].Store(uint64(rank))
	}
	for i, rank := range to {
		w.ranks[len(from)+i].Store(uint64(rank))
	}
	w.from.Store(uint64(len(from)))
	w.to.Store(uint64(len(to)))
	w.active.Store(1)
	w.version.Store(version + 2)
}

// load returns nil if nobody waits, or if the words are just being written.
func (w *waitingWords) load() *Waiting {
	version := w.version.Load()
	if version%2 == 1 || w.active.Load() == 0 {
		return nil
	}
	v := &Waiting{
		Version: version,
		Call:    plan.SpecOfWords([2]uint64{w.words[0].Load(), w.words[1].Load()}),
		Channel: int(w.channel.Load()),
	}
	// Counts that another process wrote are checked before they are used.
	from := int(min(w.from.Load(), listed))
	to := int(min(w.to.Load(), listed-uint64(from)))
	for i := range from {
		v.From = append(v.From, int(w.ranks[i].Load()))
	}
	for i := range to {
		v.To = append(v.To, int(w.ranks[from+i].Load()))
	}
	if w.version.Load() != version {
		return nil
	}
	return v
}
