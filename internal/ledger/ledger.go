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

	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/spin"
)

// remembered is how many of its latest collectives a page still shows. A rank
// can be ahead of another by more than that only where nothing it did needed
// the other.
const remembered = 64

// Entry describes a call that a rank has entered. It is immutable, and shared by
// all calls that are alike.
type Entry struct {
	Fingerprint uint64
	Call        interface{ String() string }
}

// page is what one rank tells the others. Only that rank writes it.
type page struct {
	// entered is the number of collectives entered: the sequence number of
	// the next one. Written after the entry in calls, read before it.
	entered atomic.Uint64
	// calls holds the latest entries, at sequence number mod remembered.
	calls [remembered]atomic.Pointer[Entry]
	// waiting is set while the rank has waited for long in point-to-point
	// traffic, nil otherwise.
	waiting atomic.Pointer[Waiting]
	closed  atomic.Bool
	_       [128]byte // the next page begins on another line
}

// Waiting says for whom a rank waits in point-to-point traffic. A rank that goes
// on waiting publishes a new one every few milliseconds, after another look at
// everything it waits for: two new ones prove that it saw nothing of what had
// happened before the first.
type Waiting struct {
	Call    string // text for errors
	Channel int    // each channel waits by itself
	From    []int  // ranks whose data is awaited
	To      []int  // ranks whose credit is awaited
}

// Ledger belongs to one communicator; all of its ranks share it.
type Ledger struct {
	pages   []page
	failure atomic.Pointer[failure]

	mu      sync.Mutex
	parkers []*spin.Parker // everybody a failure must wake
}

type failure struct{ err error }

// New returns the ledger of a communicator of size ranks.
func New(size int) *Ledger { return &Ledger{pages: make([]page, size)} }

// Enter records that rank enters its next collective and returns the sequence
// number of it.
func (l *Ledger) Enter(rank int, e *Entry) uint64 {
	p := &l.pages[rank]
	sequence := p.entered.Load()
	p.calls[sequence%remembered].Store(e)
	p.entered.Store(sequence + 1)
	return sequence
}

// Wait publishes what rank waits for in point-to-point traffic; nil ends it.
func (l *Ledger) Wait(rank int, w *Waiting) { l.pages[rank].waiting.Store(w) }

// WaitingOf returns what rank has published with Wait, or nil.
func (l *Ledger) WaitingOf(rank int) *Waiting { return l.pages[rank].waiting.Load() }

// Close records that rank makes no further call.
func (l *Ledger) Close(rank int) { l.pages[rank].closed.Store(true) }

// Closed reports whether rank has closed.
func (l *Ledger) Closed(rank int) bool { return l.pages[rank].closed.Load() }

// Entered reports whether rank has entered the collective with that sequence
// number.
func (l *Ledger) Entered(rank int, sequence uint64) bool {
	return l.pages[rank].entered.Load() > sequence
}

// Call returns the entry of rank's collective with that sequence number, or nil
// if it has not been entered or is no longer remembered.
func (l *Ledger) Call(rank int, sequence uint64) *Entry {
	p := &l.pages[rank]
	if p.entered.Load() <= sequence {
		return nil
	}
	e := p.calls[sequence%remembered].Load()
	// The place is rewritten when the rank enters sequence+remembered; the
	// entry is stored before entered grows, hence the margin of one.
	if p.entered.Load() >= sequence+remembered {
		return nil
	}
	return e
}

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
		if other := l.Call(r, sequence); other != nil && other.Fingerprint != e.Fingerprint {
			return &fault.Mismatch{
				Sequence: sequence,
				Rank:     rank, Call: e.Call.String(),
				PeerRank: r, PeerCall: other.Call.String(),
			}
		}
		if closed && !l.Entered(r, sequence) {
			return &fault.PeerClosed{Sequence: sequence, Rank: rank, Call: e.Call.String(), PeerRank: r}
		}
	}
	return nil
}

// Failure returns what ended the communicator, or nil. It is one load.
func (l *Ledger) Failure() error {
	if f := l.failure.Load(); f != nil {
		return f.err
	}
	return nil
}

// Fail ends the communicator for all ranks: the first cause wins, every wait
// returns it. Fail returns the cause that won.
func (l *Ledger) Fail(err error) error {
	if !l.failure.CompareAndSwap(nil, &failure{err}) {
		return l.Failure()
	}
	l.mu.Lock()
	parkers := l.parkers
	l.mu.Unlock()
	for _, p := range parkers {
		p.Wake()
	}
	return err
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
