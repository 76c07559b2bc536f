package ledger

import (
	"slices"
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
	listed = 128
	// waits is how many channels of a rank can show what they wait for at the
	// same time; of more, some take turns.
	waits = 16
)

// page is what one rank tells the others. Only that rank writes it. It is made of
// words only, so that it can lie in memory that processes share.
type page struct {
	// entered is the number of collectives entered: the sequence number of
	// the next one. Written after the fingerprint in calls, read before it.
	entered atomic.Uint64
	closed  atomic.Uint64 // closedWhole, closedFailed, or 0
	// calls holds the latest fingerprints, at sequence number mod remembered.
	calls [remembered]atomic.Uint64

	// descriptions say what fingerprints mean. Written when a rank first
	// makes a call, long before it is looked at by others.
	descriptions [described]description

	waiting [waits]waitingWords // by channel mod waits
	_       [128]byte           // the next page begins on another line
}

const (
	closedWhole  = 1 + iota
	closedFailed // after the communicator had failed for this rank
)

// description is the meaning of a fingerprint. The fingerprint is 0 while the
// words are being written.
type description struct {
	fingerprint atomic.Uint64
	words       [2]atomic.Uint64
}

// waitingWords is a Waiting in shared memory. version is odd while it is written,
// and grows with every new one.
type waitingWords struct {
	version atomic.Uint64
	active  atomic.Uint64
	words   [2]atomic.Uint64
	channel atomic.Uint64
	episode atomic.Uint64
	counts  [4]atomic.Uint64      // how many ranks follow in each list
	ranks   [listed]atomic.Uint64 // From, To, LaterFrom, LaterTo
}

// Waiting says for whom a rank waits. A rank that goes on waiting publishes it
// anew every few milliseconds, after another look at everything it waits for: two
// new versions prove that it saw nothing of what had happened before the first.
type Waiting struct {
	Version uint64 // set by the ledger
	Episode uint64 // set by the ledger: grows when a wait ends
	Call    plan.Spec
	Channel int // each channel waits by itself

	// From are the ranks whose data is awaited, To those whose credit is. For
	// a collective of rings or trees, From are ranks that have not entered it
	// and must, To is the one whose same channel must move.
	From, To []int
	// LaterFrom and LaterTo are the ends with which the launch has messages
	// left besides: on other channels, or behind this call if that can end.
	LaterFrom, LaterTo []End
	// Partial says that the lists were too long to be published in full.
	Partial bool
}

// Serves reports whether the waiting rank's launch still sends to an end, or
// receives from it. The channel waited for is channel 2·c or 2·c+1 of the ledger.
func (w *Waiting) Serves(end End, send bool) bool {
	now, later := w.From, w.LaterFrom
	if send {
		now, later = w.To, w.LaterTo
	}
	return w.Partial || slices.Contains(later, end) ||
		w.Messages() && w.Channel/2 == end.Channel && slices.Contains(now, end.Rank)
}

// End is where a message comes from or goes to: messages of a pair of ranks do not
// change channels.
type End struct{ Rank, Channel int }

// number is e as a word.
func (e End) number() int { return e.Channel<<32 | e.Rank }

func endOf(number int) End { return End{Rank: number & (1<<32 - 1), Channel: number >> 32} }

// Messages reports whether the call is made of messages.
func (w *Waiting) Messages() bool { return w.Call.Kind >= plan.AlltoAll && w.Call.Kind <= plan.Recv }

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

// States of waitingWords.active.
const (
	idle = iota
	whole
	partial
)

func (w *waitingWords) store(v *Waiting) {
	version := w.version.Load()
	w.version.Store(version + 1)
	if v == nil {
		w.active.Store(idle)
		w.episode.Add(1)
		w.version.Store(version + 2)
		return
	}
	words := v.Call.Words()
	w.words[0].Store(words[0])
	w.words[1].Store(words[1])
	w.channel.Store(uint64(v.Channel))
	state, used := uint64(whole), 0
	for i, list := range [...][]int{v.From, v.To, numbers(v.LaterFrom), numbers(v.LaterTo)} {
		if room := listed - used; len(list) > room {
			state, list = partial, list[:room]
		}
		w.counts[i].Store(uint64(len(list)))
		for _, rank := range list {
			w.ranks[used].Store(uint64(rank))
			used++
		}
	}
	w.active.Store(state)
	w.version.Store(version + 2)
}

// load returns nil if nobody waits, or if the words are just being written.
func (w *waitingWords) load() *Waiting {
	version, state := w.version.Load(), w.active.Load()
	if version%2 == 1 || state == idle {
		return nil
	}
	v := &Waiting{
		Version: version,
		Episode: w.episode.Load(),
		Call:    plan.SpecOfWords([2]uint64{w.words[0].Load(), w.words[1].Load()}),
		Channel: int(w.channel.Load()),
		Partial: state == partial,
	}
	used := uint64(0)
	var laterFrom, laterTo []int
	for i, list := range [...]*[]int{&v.From, &v.To, &laterFrom, &laterTo} {
		// Counts that another process wrote are checked before they are used.
		count := min(w.counts[i].Load(), listed-used)
		for range count {
			*list = append(*list, int(w.ranks[used].Load()))
			used++
		}
	}
	if w.version.Load() != version {
		return nil
	}
	v.LaterFrom, v.LaterTo = ends(laterFrom), ends(laterTo)
	return v
}

func numbers(list []End) (numbers []int) {
	for _, e := range list {
		numbers = append(numbers, e.number())
	}
	return numbers
}

func ends(numbers []int) (list []End) {
	for _, n := range numbers {
		list = append(list, endOf(n))
	}
	return list
}
