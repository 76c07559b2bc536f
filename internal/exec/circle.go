package exec

import (
	"slices"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/ledger"
	"github.com/gollective/gollective/internal/spin"
)

// This file finds ranks that wait for each other in a circle: two receives that
// face each other, a receive where the sender is in an AllReduce, large sends
// around a ring.
//
// Rank X depends on rank Y if X's launch cannot end before Y's has ended: Y must
// first do something for X that its present launch will not do. Ranks that
// depend on each other in a circle wait forever.
//
// What ranks publish may be old when it is read: a message may be under way. A
// waiting rank publishes a new record every few milliseconds, each after another
// look at everything it waits for, and begins another episode when something has
// moved. So a circle is believed when every rank in it has published two more
// records of the same episode since all of it was first seen: the look before
// the second one found all that anybody had done by then.

// suspicion is what a worker remembers of the ranks that it has seen in circles
// with its own: by rank and channel, as a rank's channels wait by themselves.
type suspicion map[suspectKey]*suspect

type suspectKey struct{ rank, channel int }

type suspect struct {
	episode, version uint64 // of the latest record seen
	times            int    // records since the suspicion began
}

// halfChannel is the channel under which the second half of a tree waits.
const halfChannel = 1 << 16

// startWaiting publishes whom this worker waits for.
func (w *worker) startWaiting(c spin.Condition) {
	waiting := &ledger.Waiting{Call: w.callSpec(), Channel: w.channel, From: w.absent(c)}
	for _, t := range w.active {
		if t.Send {
			waiting.To = append(waiting.To, t.Peer)
		} else {
			waiting.From = append(waiting.From, t.Peer)
		}
	}
	for t := range w.launch.pending() {
		switch {
		case slices.Contains(w.active, t):
		case t.Send:
			waiting.LaterTo = append(waiting.LaterTo, t.Peer)
		default:
			waiting.LaterFrom = append(waiting.LaterFrom, t.Peer)
		}
	}
	w.published = true
	w.engine.ledger.Wait(w.engine.rank, waiting)
}

// stopWaiting withdraws startWaiting.
func (w *worker) stopWaiting() {
	if w.published {
		w.published = false
		w.engine.ledger.Wait(w.engine.rank, nil)
	}
}

// pending yields the transfers of l that are not through, on all channels.
func (l *launch) pending() func(yield func(*transfer) bool) {
	return func(yield func(*transfer) bool) {
		for i := range l.works {
			for j := range l.works[i].Program.channels {
				for _, t := range l.works[i].Program.channels[j].transfers {
					if t.through.Load() != l.number && !yield(t) {
						return
					}
				}
			}
		}
	}
}

// serves reports whether this rank's launch still sends to peer, or receives from
// it.
func (w *worker) serves(peer int, send bool) bool {
	for t := range w.launch.pending() {
		if t.Peer == peer && t.Send == send {
			return true
		}
	}
	return false
}

// absent lists the ranks that must enter the collective of rings and trees in
// progress before it can end.
func (w *worker) absent(c spin.Condition) []int {
	if len(w.active) > 0 || len(w.work.entries) == 0 {
		return nil
	}
	ledger, sequence := w.engine.ledger, w.work.sequence
	switch w.work.Program.Plan.Spec.Kind {
	case plan.AllReduce, plan.AllGather, plan.ReduceScatter, plan.Barrier:
		return ledger.Missing(sequence) // nobody completes these before all have entered
	}
	if peer := c.Peer(); peer >= 0 && !ledger.Entered(peer, sequence) {
		return []int{peer}
	}
	return nil
}

// circle reports ranks that wait for each other and for this one.
func (w *worker) circle(c spin.Condition) error {
	members := w.findCircle(c)
	if len(members) == 0 {
		return nil
	}
	certain := true
	for _, m := range members {
		certain = w.confirm(m, members) && certain
	}
	if !certain {
		return nil
	}
	next := members[0]
	return &fault.Mismatch{
		Sequence: w.work.sequence,
		Rank:     w.engine.rank, Call: w.callText(),
		PeerRank: next.rank, PeerCall: next.Call.String(),
	}
}

// member is a rank in a circle and its record.
type member struct {
	rank int
	*ledger.Waiting
}

// confirm counts m's record and reports whether it has come often enough.
func (w *worker) confirm(m member, all []member) bool {
	key := suspectKey{m.rank, m.Channel}
	s := w.suspects[key]
	if s == nil || s.episode != m.Episode {
		// Somebody new, or who has moved: the others must be seen to stand
		// still from now on, too.
		if w.suspects == nil {
			w.suspects = make(suspicion)
		}
		for _, s := range w.suspects {
			s.times = 0
		}
		for _, m := range all {
			if s := w.suspects[suspectKey{m.rank, m.Channel}]; s != nil {
				s.version = m.Version
			}
		}
		w.suspects[key] = &suspect{episode: m.Episode, version: m.Version}
		return false
	}
	if s.version != m.Version {
		s.version = m.Version
		s.times++
	}
	return s.times >= 2
}

// findCircle returns the other ranks of a circle of dependence through this rank,
// from the one that this rank depends on, on; nil if there is none. It is a search
// in breadth: of several circles the shortest.
func (w *worker) findCircle(c spin.Condition) []member {
	e := w.engine
	records := make([]*ledger.Waiting, e.size)
	for rank := range records {
		if rank != e.rank {
			records[rank] = e.ledger.WaitingOf(rank)
		}
	}
	before := make(map[int]int, e.size) // the member through which a rank was reached
	var queue []int
	for rank, r := range records {
		if r != nil && w.dependsOn(rank, r, c) {
			before[rank] = e.rank
			queue = append(queue, rank)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		rank := queue[0]
		if w.isNeededBy(rank, records[rank]) {
			var members []member
			for ; rank != e.rank; rank = before[rank] {
				members = append(members, member{rank, records[rank]})
			}
			slices.Reverse(members)
			return members
		}
		for other, r := range records {
			if _, seen := before[other]; !seen && r != nil && depends(rank, records[rank], other, r) {
				before[other] = rank
				queue = append(queue, other)
			}
		}
	}
	return nil
}

// dependsOn reports whether this worker's launch depends on peer, whose record is
// r.
func (w *worker) dependsOn(peer int, r *ledger.Waiting, c spin.Condition) bool {
	if slices.Contains(w.absent(c), peer) {
		return true
	}
	return slices.ContainsFunc(w.active, func(t *transfer) bool {
		return t.Peer == peer && !r.Serves(w.engine.rank, !t.Send)
	})
}

// isNeededBy reports whether peer, whose record is r, depends on this rank.
func (w *worker) isNeededBy(peer int, r *ledger.Waiting) bool {
	me := w.engine.rank
	if !pointToPoint(r.Call.Kind) {
		return slices.Contains(r.From, me)
	}
	return slices.Contains(r.From, me) && !w.serves(peer, true) ||
		slices.Contains(r.To, me) && !w.serves(peer, false)
}

// depends reports whether rank a depends on rank b by their records.
func depends(a int, ofA *ledger.Waiting, b int, ofB *ledger.Waiting) bool {
	if !pointToPoint(ofA.Call.Kind) {
		return slices.Contains(ofA.From, b)
	}
	return slices.Contains(ofA.From, b) && !ofB.Serves(a, true) ||
		slices.Contains(ofA.To, b) && !ofB.Serves(a, false)
}
