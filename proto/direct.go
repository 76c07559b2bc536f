package proto

import (
	"sync/atomic"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// Direct is the protocol without FIFOs, of one rank on one channel. In an operation
// every rank posts once at its own desk: a payload, or where its buffers are. The
// others look at the post, and use what it shows.
//
// Where buffers were lent, the operation goes on in phases, which each rank tells at
// its desk: that its input is scaled, which rounds of its share it has combined, that
// it is done with others' memory. A rank whose wait fails withdraws what it has lent.
//
// Post s is made when post s-1 of all others has been seen. So is place s mod 2 free:
// whoever has posted s-1 has done with operation s-2.
type Direct struct {
	rank  int
	own   *transport.Desk
	desks []*transport.Desk // by rank; own among them
	op    Operation

	post uint64   // number of the operation in progress
	lend uint64   // number of the lending one among them, which phases are of
	seen []uint64 // by rank: the latest post known to be there

	// neighbours says that other ranks are goroutines of this process. Only these have
	// to be waited for before memory can be given back: a rank of another process has
	// its own view of it, and may be stopped.
	neighbours bool

	// silent is set while nobody has been rung for the post in progress, and fence is
	// what is swapped to have a fence in between.
	silent bool
	fence  atomic.Uint32

	awaited awaited
	posts   posts

	// Scratch of one slice per rank, for callers that gather operands.
	Sources, Destinations [][]byte

	_ [160]byte // whole lines: another rank's may lie next to it
}

// Phases of the k-th lending operation are k<<phaseShift and one of these, growing. They
// have 63 bits, in which the count goes round: ranks are never far apart, for every such
// operation ends with done.
const (
	phaseShift = 24
	scaled     = 1
	working    = 2 // on others' memory, until done
	firstRound = 3 // of less than 1<<phaseShift: 2 TiB at 128 KiB each
	done       = 1<<phaseShift - 1

	withdrawn = 1 << 63 // the communicator has failed for the rank; there is no way back
)

// reached reports whether a rank in a phase has got as far as want, and has not
// withdrawn.
func reached(phase, want uint64) bool {
	return phase&withdrawn == 0 && int64((phase-want)<<1) >= 0
}

// atWork reports whether a rank in a phase may be looking at others' memory.
func atWork(phase uint64) bool {
	p := phase & done
	return phase&withdrawn == 0 && p >= working && p < done
}

// NewDirect returns the protocol of rank over the desks of all ranks.
func NewDirect(rank int, desks []*transport.Desk) *Direct {
	n := len(desks)
	// Capacities that fill whole lines: what ranks write at every operation must not
	// share one with another rank's.
	whole := (n + transport.Line/8 - 1) / (transport.Line / 8) * (transport.Line / 8)
	d := &Direct{
		rank: rank, own: desks[rank], desks: desks, seen: make([]uint64, n, whole),
		Sources: make([][]byte, n, whole), Destinations: make([][]byte, n, whole),
	}
	d.awaited.own, d.posts.direct = d.own, d
	for r, desk := range desks {
		d.neighbours = d.neighbours || r != rank && desk.Here()
	}
	return d
}

// Begin starts an operation.
func (d *Direct) Begin(op Operation) {
	d.op = op
	d.post++
}

// free waits until this operation's place is free.
func (d *Direct) free() error {
	for rank, seen := range d.seen {
		if seen+1 < d.post && rank != d.rank {
			if err := d.see(rank, d.post-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// see waits for post s of a rank.
func (d *Direct) see(rank int, s uint64) error {
	desk := d.desks[rank]
	if !desk.Posted(s) {
		d.awaited.desk, d.awaited.peer = desk, rank
		d.awaited.post, d.awaited.phase = s, 0
		// Whoever is on time is there soon; others may be waiting for this rank, and
		// even be asleep.
		if !d.op.Waiter.Soon(&d.awaited) {
			d.Ring()
			if err := d.op.Waiter.Until(&d.awaited); err != nil {
				return err
			}
		}
	}
	d.seen[rank] = s
	return nil
}

// Ring wakes whoever sleeps until this rank has posted what Show has. It is due before
// the end of the operation, and before a long wait in it.
func (d *Direct) Ring() {
	if d.silent {
		d.silent = false
		d.fence.Swap(0) // the post must be seen by whoever is not seen to sleep
		d.ring()
	}
}

// ring wakes whoever waits for what has just been stored at the own desk.
func (d *Direct) ring() {
	for rank, desk := range d.desks {
		if rank != d.rank {
			desk.Waiter().Ring()
		}
	}
}

// Show posts payload, scaled if the reduction scales inputs. It rings for nobody:
// Ring is due.
func (d *Direct) Show(payload []byte) error {
	if err := d.free(); err != nil {
		return err
	}
	d.show(payload)
	return nil
}

// ShowAtOnce is Show if that needs no waiting, and reports whether it was done.
func (d *Direct) ShowAtOnce(payload []byte) bool {
	for rank, seen := range d.seen {
		if seen+1 < d.post && rank != d.rank {
			return false
		}
	}
	d.show(payload)
	return true
}

func (d *Direct) show(payload []byte) {
	place := d.own.Payload(d.post, len(payload))
	if k := d.op.Kernel; k != nil && k.HasPre() {
		k.Pre(place, payload)
	} else {
		copy(place, payload)
	}
	publishWord(d.own.Label(d.post, d.op.Header), d.post)
	d.silent = true
}

// Lend posts where buffers are. loan serves ranks of this process, words the others.
// Without an error, Done or Withdraw is due.
func (d *Direct) Lend(loan transport.Loan, words [transport.PostWords]uint64) error {
	if err := d.free(); err != nil {
		return err
	}
	d.lend++
	*d.own.Lent(d.post) = loan
	*d.own.Words(d.post) = words
	d.own.Post(d.post, d.op.Header)
	d.ring()
	return nil
}

// See waits for a rank's post and checks that it is of this operation.
func (d *Direct) See(rank int) error {
	if err := d.see(rank, d.post); err != nil {
		return err
	}
	if header := d.desks[rank].Header(d.post); header != d.op.Header {
		return &HeaderError{Peer: rank, Want: d.op.Header, Got: header}
	}
	return nil
}

// SeeAll is See for all ranks.
func (d *Direct) SeeAll() error {
	p := &d.posts
	p.begin()
	if !p.Ready() && !d.op.Waiter.Soon(p) { // as in see
		d.Ring()
		if err := d.op.Waiter.Until(p); err != nil {
			return err
		}
	}
	if p.other {
		return &HeaderError{Peer: p.next, Want: d.op.Header, Got: d.desks[p.next].Header(d.post)}
	}
	return nil
}

// Payload is what a rank has posted, after See. It stays until the operation's end.
func (d *Direct) Payload(rank, bytes int) []byte { return d.desks[rank].Payload(d.post, bytes) }

// Claim makes it quick for the peer to post again, where there is but one, whose payload
// of so many bytes nobody else has read; see claim.go.
func (d *Direct) Claim(bytes int) {
	if len(d.desks) == 2 {
		d.desks[1-d.rank].Claim(d.post, bytes, claim)
	}
}

// Words and Lent are the same for Lend. What was lent is used between Work and Done
// only.
func (d *Direct) Words(rank int) [transport.PostWords]uint64 { return *d.desks[rank].Words(d.post) }
func (d *Direct) Lent(rank int) transport.Loan               { return *d.desks[rank].Lent(d.post) }

// phase is a phase of this operation among those of all.
func (d *Direct) phase(p uint64) uint64 { return (d.lend<<phaseShift | p) &^ withdrawn }

// move tells the next phase.
func (d *Direct) move(phase uint64) {
	d.own.Move(d.phase(phase))
	d.ring()
}

// Scaled tells that this rank's input is scaled, and waits for the others'.
func (d *Direct) Scaled() error {
	d.move(scaled)
	return d.all(scaled)
}

// Work tells that this rank begins to use what others have lent. If it finds the
// communicator failed after that, it must not: who withdraws memory waits for those at
// work only. It is the other half of Withdraw.
func (d *Direct) Work() {
	if d.neighbours {
		d.own.Move(d.phase(working))
	}
}

// Combined tells that round k of this rank's share is in its output.
func (d *Direct) Combined(k int) { d.move(uint64(firstRound + k)) }

// AwaitCombined waits for another's.
func (d *Direct) AwaitCombined(rank, k int) error {
	return d.await(rank, d.phase(uint64(firstRound+k)))
}

// Done tells that this rank uses others' memory no longer.
func (d *Direct) Done() { d.move(done) }

// AwaitDone waits for all others' Done: this rank's memory is its caller's again, and
// nothing that it has taken was withdrawn before it was taken.
func (d *Direct) AwaitDone() error { return d.all(done) }

// AwaitDoneOf is AwaitDone for one rank.
func (d *Direct) AwaitDoneOf(rank int) error { return d.await(rank, d.phase(done)) }

// Valid waits for nothing unless the rank has withdrawn: then for the failure.
func (d *Direct) Valid(rank int) error { return d.await(rank, 0) } // no phase is 0

// Return ends what Lend began, after AwaitDone.
func (d *Direct) Return() { *d.own.Lent(d.post) = transport.Loan{} }

// Withdraw ends it after a failure, which the communicator has been told: what ranks
// of this process do with this rank's memory at this moment is waited for, and nobody
// begins anything with it. Whoever of them waits for somebody in between finds the
// failure. Ranks of other processes only read it, and find out that it was withdrawn.
func (d *Direct) Withdraw() {
	d.own.Move(withdrawn)
	d.ring()
	for rank, desk := range d.desks {
		if rank != d.rank && desk.Here() {
			d.op.Waiter.Outlast(idle{desk})
		}
	}
	d.Return()
}

func (d *Direct) all(phase uint64) error {
	for rank := range d.desks {
		if rank != d.rank {
			if err := d.await(rank, d.phase(phase)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Direct) await(rank int, phase uint64) error {
	d.awaited.desk, d.awaited.peer = d.desks[rank], rank
	d.awaited.post, d.awaited.phase = 0, phase
	if d.awaited.Ready() {
		return nil
	}
	return d.op.Waiter.Until(&d.awaited)
}

// awaited is the condition that a peer has posted, or reached a phase.
type awaited struct {
	own, desk   *transport.Desk
	peer        int
	post, phase uint64 // one of them; both 0: that the peer has not withdrawn
}

var _ spin.Named = (*awaited)(nil)

func (a *awaited) Ready() bool {
	if a.post > 0 {
		return a.desk.Posted(a.post)
	}
	phase := a.desk.Phase()
	if a.phase == 0 {
		return phase&withdrawn == 0
	}
	return reached(phase, a.phase)
}

func (a *awaited) Peer() int          { return a.peer }
func (a *awaited) Arm(p *spin.Parker) { a.own.Waiter().Arm(p) }
func (a *awaited) Disarm()            { a.own.Waiter().Disarm() }
func (a *awaited) What() string       { return "post" }

// idle is the condition that a rank is not at work on others' memory.
type idle struct{ desk *transport.Desk }

func (i idle) Ready() bool { return !atWork(i.desk.Phase()) }
