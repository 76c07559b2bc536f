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
// What waits is a channel of a rank. Channel X depends on channel Y of another rank
// if X cannot go on before Y has: because the launch that Y is part of will not do
// what X waits for (so all of it must end first), or not before the collective that
// Y is in, or because Y is X's neighbour in the same collective. Channels that
// depend on each other in a circle wait forever.
//
// What channels publish may be old when it is read: a message may be under way. A
// waiting channel publishes a new record every few milliseconds, each after another
// look at everything it waits for, and begins another episode with another wait.
// So a circle is believed when every channel in it has published two more records
// of the same episode since all of it was first seen: the look before the second
// one found all that anybody had done by then.

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

// number is how the ledger knows this worker's channel: the halves of a tree wait
// by themselves.
func (w *worker) number() int {
	if id := w.channel % halfChannel; id != w.channel {
		return 2*id + 1
	}
	return 2 * w.channel
}

// startWaiting publishes whom this worker waits for.
func (w *worker) startWaiting(c spin.Condition) {
	waiting := &ledger.Waiting{Call: w.callSpec(), Channel: w.number()}
	waiting.From = w.absent(c)
	if w.inChain() {
		waiting.To = []int{c.Peer()}
	}
	awaited := w.awaited()
	for _, t := range awaited {
		if t.Send {
			waiting.To = append(waiting.To, t.Peer)
		} else {
			waiting.From = append(waiting.From, t.Peer)
		}
	}
	for t := range w.pending() {
		switch {
		case slices.Contains(awaited, t):
		case t.Send:
			waiting.LaterTo = append(waiting.LaterTo, t.end())
		default:
			waiting.LaterFrom = append(waiting.LaterFrom, t.end())
		}
	}
	if w.publishedIn != w.waiter.Wait() || w.publishedAs != waiting.Channel {
		w.stopWaiting() // another episode
	}
	w.published, w.publishedAs, w.publishedIn = true, waiting.Channel, w.waiter.Wait()
	w.engine.ledger.Wait(w.engine.rank, waiting)
}

// awaited are the messages that the worker waits for: all that are not through, or
// the one of which a part has come. Nobody looks at the others then, and they may
// well be there.
func (w *worker) awaited() []*transfer {
	if w.moving != nil {
		return []*transfer{w.moving}
	}
	return w.active
}

// stopWaiting withdraws startWaiting.
func (w *worker) stopWaiting() {
	if w.published {
		w.published = false
		w.engine.ledger.EndWait(w.engine.rank, w.publishedAs)
	}
}

// pending yields the transfers of the launch that are not through and that its
// channels get to by themselves: not those behind a collective that other ranks
// hold up.
func (w *worker) pending() func(yield func(*transfer) bool) {
	l := w.launch
	return func(yield func(*transfer) bool) {
		heldUp := make(map[int]bool) // by channel
		for i := range l.works {
			work := &l.works[i]
			for j := range work.Program.channels {
				channel := &work.Program.channels[j]
				for _, t := range channel.transfers {
					if !heldUp[channel.ID] && t.through.Load() != l.number && !yield(t) {
						return
					}
				}
				heldUp[channel.ID] = heldUp[channel.ID] || w.heldUp(work, channel.ID)
			}
		}
	}
}

// heldUp reports whether a channel cannot come through a collective before more
// ranks have entered it, or, on this worker's channel, before a neighbour moves.
func (w *worker) heldUp(work *Work, channel int) bool {
	switch work.Program.Plan.Spec.Kind {
	case plan.AllReduce, plan.AllGather, plan.ReduceScatter, plan.Barrier:
		if len(w.engine.ledger.Missing(work.sequence)) > 0 {
			return true
		}
	}
	return work == w.work && len(w.active) == 0 && channel == w.channel%halfChannel
}

// end is where t comes from or goes to.
func (t *transfer) end() ledger.End { return ledger.End{Rank: t.Peer, Channel: t.channel} }

// serves reports whether this rank's launch still sends to end, or receives from
// it.
func (w *worker) serves(end ledger.End, send bool) bool {
	for t := range w.pending() {
		if t.end() == end && t.Send == send {
			return true
		}
	}
	return false
}

// absent lists the ranks that must enter the collective of rings and trees in
// progress before it can end.
func (w *worker) absent(c spin.Condition) []int {
	if len(w.active) > 0 {
		return nil
	}
	if !w.inChain() {
		return w.engine.ledger.Missing(w.work.sequence) // nobody completes these before all have entered
	}
	if peer := c.Peer(); !w.engine.ledger.Entered(peer, w.work.sequence) {
		return []int{peer}
	}
	return nil
}

// inChain reports whether this worker is in a collective of which some ranks may be
// through before all have entered: there it depends on its neighbour.
func (w *worker) inChain() bool {
	kind := w.work.Program.Plan.Spec.Kind
	return len(w.active) == 0 && (kind == plan.Reduce || kind == plan.Broadcast)
}

// circle reports ranks that wait for each other and for this one.
func (w *worker) circle(c spin.Condition) error {
	if wait := w.waiter.Wait(); w.suspectedIn != wait {
		clear(w.suspects) // this worker has moved itself
		w.suspectedIn = wait
	}
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

// member is a channel of a rank in a circle, with its record.
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

// findCircle returns the other channels of a circle of dependence through this
// worker, from the one that this worker depends on, on; nil if there is none. It is
// a search in breadth: of several circles the shortest.
func (w *worker) findCircle(c spin.Condition) []member {
	e := w.engine
	var waiting []member
	for rank := range e.size {
		if rank == e.rank {
			continue
		}
		for _, record := range e.ledger.WaitsOf(rank) {
			waiting = append(waiting, member{rank, record})
		}
	}
	const start, unseen = -1, -2
	before := make([]int, len(waiting)) // through whom a channel was reached
	var queue []int
	for i, m := range waiting {
		if before[i] = unseen; w.dependsOn(m, c) {
			before[i] = start
			queue = append(queue, i)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if w.isNeededBy(waiting[at]) {
			var members []member
			for ; at != start; at = before[at] {
				members = append(members, waiting[at])
			}
			slices.Reverse(members)
			return members
		}
		for i, m := range waiting {
			if before[i] == unseen && waiting[at].dependsOn(m) {
				before[i] = at
				queue = append(queue, i)
			}
		}
	}
	return nil
}

// dependsOn reports whether this worker depends on m.
func (w *worker) dependsOn(m member, c spin.Condition) bool {
	if len(w.active) == 0 {
		return slices.Contains(w.absent(c), m.rank) || w.inChain() && c.Peer() == m.rank && w.sameChannel(m)
	}
	return slices.ContainsFunc(w.awaited(), func(t *transfer) bool {
		return t.Peer == m.rank && !m.Serves(ledger.End{Rank: w.engine.rank, Channel: t.channel}, !t.Send)
	})
}

// isNeededBy reports whether m depends on this worker.
func (w *worker) isNeededBy(m member) bool {
	me := w.engine.rank
	if !m.Messages() {
		return slices.Contains(m.From, me) || slices.Contains(m.To, me) && w.sameChannel(m)
	}
	return slices.Contains(m.From, me) && !w.serves(m.end(), true) ||
		slices.Contains(m.To, me) && !w.serves(m.end(), false)
}

// sameChannel reports whether m's channel is this worker's, in another rank.
func (w *worker) sameChannel(m member) bool { return m.Channel == w.number() }

// end is m for those who send to it or receive from it.
func (m member) end() ledger.End { return ledger.End{Rank: m.rank, Channel: m.Channel / 2} }

// dependsOn reports whether m depends on other.
func (m member) dependsOn(other member) bool {
	if !m.Messages() {
		return slices.Contains(m.From, other.rank) ||
			slices.Contains(m.To, other.rank) && m.Channel == other.Channel
	}
	return slices.Contains(m.From, other.rank) && !other.Serves(m.end(), true) ||
		slices.Contains(m.To, other.rank) && !other.Serves(m.end(), false)
}
