// Package ledger is what the ranks of a communicator write down about
// themselves so that a wait in vain can be explained: which call each has
// entered, whom it waits for, whether it has closed. It also holds the failure
// that ends the communicator, the first one for all.
//
// Nothing here moves data. A rank writes its own page once per call and reads
// the others' only when it has waited for milliseconds.
package ledger

import (
	"sync"
	"sync/atomic"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/spin"
)

// Entry identifies a call that all ranks make alike.
type Entry struct {
	Fingerprint uint64 // of Spec
	Spec        plan.Spec
	place       int // of its description on the rank's page
}

// NewEntry returns the entry of calls like s.
func NewEntry(s plan.Spec) *Entry { return &Entry{Fingerprint: s.Fingerprint(), Spec: s} }

// Ledger belongs to one communicator; all of its ranks share it.
type Ledger struct {
	pages   []*page
	failure atomic.Pointer[failure]
	failed  chan struct{} // closed with the failure

	mu      sync.Mutex     // guards what follows, and writing of descriptions and waitings
	parkers []*spin.Parker // everybody a failure must wake
	next    []int          // per rank: where the next description goes
	hook    func(error)    // told of the failure
}

type failure struct{ err error }

// New returns the ledger of a communicator of size ranks of one process.
func New(size int) *Ledger {
	l := &Ledger{pages: make([]*page, size), next: make([]int, size), failed: make(chan struct{})}
	pages := make([]page, size)
	for rank := range pages {
		l.pages[rank] = &pages[rank]
	}
	return l
}

// Describe makes the call of e known as one that rank makes. An Entry is for one
// rank.
func (l *Ledger) Describe(rank int, e *Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.place = l.pages[rank].describe(e.Fingerprint, e.Spec, &l.next[rank])
}

// Enter records that rank enters its next collective and returns the sequence
// number of it.
func (l *Ledger) Enter(rank int, e *Entry) uint64 {
	p := l.pages[rank]
	if p.descriptions[e.place].fingerprint.Load() != e.Fingerprint {
		l.Describe(rank, e) // so many others came since that it was forgotten
	}
	sequence := p.entered.Load()
	// A place that holds the same call already needs no store, which is a fence.
	if call := &p.calls[sequence%remembered]; call.Load() != e.Fingerprint {
		call.Store(e.Fingerprint)
	}
	p.entered.Store(sequence + 1)
	return sequence
}

// Count is how many collectives rank has entered.
func (l *Ledger) Count(rank int) uint64 { return l.pages[rank].entered.Load() }

// Wait publishes what one channel of rank waits for.
func (l *Ledger) Wait(rank int, w *Waiting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pages[rank].waiting[w.Channel%waits].store(w)
}

// EndWait withdraws what was published with Wait for a channel.
func (l *Ledger) EndWait(rank, channel int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pages[rank].waiting[channel%waits].store(nil)
}

// WaitsOf returns what the channels of rank have published with Wait.
func (l *Ledger) WaitsOf(rank int) []*Waiting {
	var all []*Waiting
	for i := range l.pages[rank].waiting {
		if w := l.pages[rank].waiting[i].load(); w != nil {
			all = append(all, w)
		}
	}
	return all
}

// Close records that rank makes no further call.
func (l *Ledger) Close(rank int) {
	state := uint64(closedWhole)
	if l.Failure() != nil {
		state = closedFailed
	}
	l.pages[rank].closed.Store(state)
}

// Closed reports whether rank has closed a communicator that had not failed for it.
// One that had is no news: the failure is on its way to everybody, and says more.
func (l *Ledger) Closed(rank int) bool { return l.pages[rank].closed.Load() == closedWhole }

// Entered reports whether rank has entered the collective with that sequence
// number.
func (l *Ledger) Entered(rank int, sequence uint64) bool {
	return l.pages[rank].entered.Load() > sequence
}

// Call returns the fingerprint of rank's collective with that sequence number, or
// 0 if it has not been entered or is no longer remembered.
func (l *Ledger) Call(rank int, sequence uint64) uint64 {
	p := l.pages[rank]
	if p.entered.Load() <= sequence {
		return 0
	}
	fingerprint := p.calls[sequence%remembered].Load()
	// The place is rewritten when the rank enters sequence+remembered; the
	// fingerprint is stored before entered grows, hence the margin of one.
	if p.entered.Load() >= sequence+remembered {
		return 0
	}
	return fingerprint
}

// Text is what rank calls the call with that fingerprint.
func (l *Ledger) Text(rank int, fingerprint uint64) string { return l.pages[rank].text(fingerprint) }

// Missing lists the ranks that have not entered the collective with that
// sequence number.
func (l *Ledger) Missing(sequence uint64) []int {
	var missing []int
	for r := range l.pages {
		if !l.Entered(r, sequence) {
			missing = append(missing, r)
		}
	}
	return missing
}

// Compare looks for a rank that makes another call than e with this sequence
// number, or has closed before it, and returns the error that says so.
func (l *Ledger) Compare(rank int, sequence uint64, e *Entry) error {
	for r := range l.pages {
		// Closed is read first: what was entered before it is then visible.
		closed := l.Closed(r)
		if other := l.Call(r, sequence); other != 0 && other != e.Fingerprint {
			return &fault.Mismatch{
				Sequence: sequence,
				Rank:     rank, Call: e.Spec.String(),
				PeerRank: r, PeerCall: l.Text(r, other),
			}
		}
		if closed && !l.Entered(r, sequence) {
			return &fault.PeerClosed{Sequence: sequence, Rank: rank, Call: e.Spec.String(), PeerRank: r}
		}
	}
	return nil
}

// Divergence returns the first collective, up to the given sequence number and as
// far as both remember, that rank and peer have entered differently.
func (l *Ledger) Divergence(rank, peer int, last uint64) (sequence, mine, theirs uint64, found bool) {
	for s := last - min(last, remembered); s <= last; s++ {
		mine, theirs = l.Call(rank, s), l.Call(peer, s)
		if mine != 0 && theirs != 0 && mine != theirs {
			return s, mine, theirs, true
		}
	}
	return 0, 0, 0, false
}

// Failure returns what ended the communicator, or nil. It is one load.
func (l *Ledger) Failure() error {
	if f := l.failure.Load(); f != nil {
		return f.err
	}
	return nil
}

// Failed is closed when the communicator has failed.
func (l *Ledger) Failed() <-chan struct{} { return l.failed }

// Fail ends the communicator for all ranks: the first cause wins, every wait
// returns it. Fail returns the cause that won. Ranks of other processes hear of
// it through OnFailure's hook.
func (l *Ledger) Fail(err error) error {
	if hook := l.fail(err); hook != nil {
		hook(err)
	}
	return l.Failure()
}

// Heard is Fail for a failure that the other processes know already.
func (l *Ledger) Heard(err error) { l.fail(err) }

// fail returns the hook to call, nil if there is none or err comes too late.
func (l *Ledger) fail(err error) func(error) {
	if !l.failure.CompareAndSwap(nil, &failure{err}) {
		return nil
	}
	close(l.failed)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.parkers {
		p.Wake()
	}
	return l.hook
}

// Retire forgets the parkers and the hook: the ranks of this process have closed,
// and the memory in which they slept, and these pages, are about to go.
func (l *Ledger) Retire() {
	l.mu.Lock()
	l.parkers, l.hook = nil, nil
	l.mu.Unlock()
}

// OnFailure has hook called, once, by whoever fails the ledger. It must be set
// before the ledger is used.
func (l *Ledger) OnFailure(hook func(error)) {
	l.mu.Lock()
	l.hook = hook
	l.mu.Unlock()
}

// Register adds a parker that a failure wakes. A failure that came earlier wakes
// it at once.
func (l *Ledger) Register(p *spin.Parker) {
	l.mu.Lock()
	l.parkers = append(l.parkers, p)
	l.mu.Unlock()
	if l.Failure() != nil {
		p.Wake()
	}
}
