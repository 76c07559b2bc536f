package exec

import (
	"context"
	"errors"
	"time"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/proto"
	"github.com/gollective/gollective/transport"
)

// This file answers the question why a wait should end without what it waits
// for: spin.Watch for a worker.

var _ spin.Watch = (*worker)(nil)

// Failed implements spin.Watch.
func (w *worker) Failed() error { return w.engine.ledger.Failure() }

// Inspect implements spin.Watch: peers that are in another call, closed, or
// waiting for this rank in a circle.
func (w *worker) Inspect(c spin.Condition) error {
	e, work := w.engine, w.work
	if e.config.Publish != nil {
		e.config.Publish(e.rank, w.waitsLong())
	}
	for i, entry := range work.entries {
		if err := e.ledger.Compare(e.rank, work.sequence+uint64(i), entry); err != nil {
			return e.ledger.Fail(err)
		}
	}
	if e.carrier != nil {
		if err := w.brokenPeer(c); err != nil {
			return e.ledger.Fail(err)
		}
	} else {
		// Both believe that what a peer has sent is there to be seen.
		if err := w.closedPeer(c); err != nil {
			return e.ledger.Fail(err)
		}
		if err := w.circle(c); err != nil {
			return e.ledger.Fail(err)
		}
	}
	w.startWaiting(c)
	return nil
}

// patience is how long a rank waits before it asks others what they are at.
const patience = 50 * time.Millisecond

// waitsLong reports whether the wait in progress has taken long.
func (w *worker) waitsLong() bool {
	if w.waitingIn != w.waiter.Wait() {
		w.waitingIn, w.waitingSince = w.waiter.Wait(), time.Now()
	}
	return time.Since(w.waitingSince) > patience
}

// hearsay is how long a peer's own word, or another's of its death, may take to come
// after the connection to it has ended.
const hearsay = time.Second

// brokenPeer reports a wait for a peer that will not move any more: it has closed,
// or the connection to it has ended. What a peer has sent before it closed may still be
// under way; the end of its connection, or that there is none, shows that it is not.
func (w *worker) brokenPeer(c spin.Condition) error {
	if len(w.active) == 0 {
		_, sends := c.(*transport.SendEnd)
		return w.brokenWay(c.Peer(), sends, w.callText())
	}
	for _, t := range w.awaited() {
		// Looked at before the FIFO: in memory, what the peer sent before it closed
		// is there to be taken.
		closed := w.engine.ledger.Closed(t.Peer)
		if w.stalled(t, c) {
			if err := w.brokenWay(t.Peer, t.Send || closed && !t.carried, w.work.call(t.Call).Spec.String()); err != nil {
				return err
			}
		}
	}
	return nil
}

// brokenWay is brokenPeer for one peer. stuck says that nothing will move after it has
// closed, whatever the connection does: this rank sends, or a FIFO in memory is empty.
// The latest sign of movement may take a moment to be seen.
func (w *worker) brokenWay(peer int, stuck bool, call string) error {
	e := w.engine
	closed := e.ledger.Closed(peer)
	settled := closed && w.suspectSince(peer) > hearsay
	broken := e.carrier.Broken(e.rank, peer, settled)
	switch {
	case closed && (broken != nil || stuck && settled):
		return &fault.PeerClosed{Sequence: w.work.sequence, Rank: e.rank, Call: call, PeerRank: peer}
	case broken != nil && w.suspectSince(peer) > hearsay:
		return &fault.PeerLost{Rank: peer, Cause: broken}
	case broken == nil && !closed:
		delete(w.suspectedPeers, peer)
	}
	return nil
}

// suspectSince is how long ago a peer was first seen to have closed, or its connection
// to have ended.
func (w *worker) suspectSince(peer int) time.Duration {
	first, known := w.suspectedPeers[peer]
	if !known {
		if w.suspectedPeers == nil {
			w.suspectedPeers = make(map[int]time.Time)
		}
		first = time.Now()
		w.suspectedPeers[peer] = first
	}
	return time.Since(first)
}

// stalled reports whether t, which the worker waits for, can't move now: in a chunk
// that has begun, c is what it needs, otherwise the FIFO of the next.
func (w *worker) stalled(t *transfer, c spin.Condition) bool {
	if t == w.moving {
		return !c.Ready()
	}
	return !t.blocked() && !t.next().Ready()
}

// closedPeer reports a message whose other end will never be served.
func (w *worker) closedPeer(c spin.Condition) error {
	for _, t := range w.awaited() {
		// Closed is looked at before the FIFO: what the peer sent before it
		// closed is there to be taken.
		if w.engine.ledger.Closed(t.Peer) && w.stalled(t, c) {
			return &fault.PeerClosed{
				Sequence: w.work.sequence, Rank: w.engine.rank,
				Call: w.work.call(t.Call).Spec.String(), PeerRank: t.Peer,
			}
		}
	}
	return nil
}

// Expired implements spin.Watch.
func (w *worker) Expired(c spin.Condition, cause error) error {
	e := w.engine
	if !errors.Is(cause, context.DeadlineExceeded) {
		return e.ledger.Fail(&fault.Abort{Rank: e.rank, Call: w.callText(), Cause: cause})
	}
	timeout := &fault.Timeout{
		Sequence: w.work.sequence, Rank: e.rank, Call: w.callText(),
		Waiting: c.Peer(), Cause: cause,
	}
	if e.config.Publish != nil {
		e.config.Publish(e.rank, true)
	}
	if e.config.Silent != nil {
		timeout.Silent = e.config.Silent() // whoever answers has told how far it has got
	}
	if len(w.work.entries) > 0 {
		timeout.Missing = e.ledger.Missing(w.work.sequence)
	}
	if len(timeout.Missing) > 0 {
		timeout.Waiting = -1
	}
	return e.ledger.Fail(timeout)
}

// callText describes the call in progress.
func (w *worker) callText() string { return w.callSpec().String() }

func (w *worker) callSpec() plan.Spec {
	if len(w.active) > 0 {
		return w.work.call(w.active[0].Call).Spec
	}
	return w.work.Program.Plan.Spec
}

// tooLate is the error for a context that was done before a launch began, whose
// first call is given.
func (e *Engine) tooLate(call *Call, cause error) error {
	text := call.Spec.String()
	if errors.Is(cause, context.DeadlineExceeded) {
		return &fault.Timeout{Sequence: e.ledger.Count(e.rank), Rank: e.rank, Call: text, Waiting: -1, Cause: cause}
	}
	return &fault.Abort{Rank: e.rank, Call: text, Cause: cause}
}

// fail turns a worker's error into the communicator's failure.
func (e *Engine) fail(w *worker, err error) error {
	if failure := e.ledger.Failure(); failure != nil {
		return failure
	}
	var length *proto.LengthError
	if errors.As(err, &length) {
		err = &fault.PeerLost{Rank: length.Peer, Cause: err}
	}
	var header *proto.HeaderError
	if errors.As(err, &header) {
		err = e.mismatch(w, header)
	}
	return e.ledger.Fail(err)
}

// askedFor bounds the wait for what a peer says it is in, where that comes from
// another host.
const askedFor = 400 * time.Millisecond

// hear lets a peer that shares no memory with this rank say what it is in.
func (e *Engine) hear(peer int, last uint64) {
	if e.config.Publish == nil {
		return
	}
	e.config.Publish(e.rank, true)
	timer := time.NewTimer(askedFor)
	defer timer.Stop()
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		if _, _, _, found := e.ledger.Divergence(e.rank, peer, last); found {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-timer.C:
			tick.Stop()
			return
		case <-e.ledger.Failed():
			tick.Stop()
			return
		}
	}
}

// mismatch names the calls behind a slot that another operation filled.
func (e *Engine) mismatch(w *worker, header *proto.HeaderError) error {
	m := &fault.Mismatch{
		Sequence: w.work.sequence,
		Rank:     e.rank, Call: w.callText(),
		PeerRank: header.Peer, PeerCall: "another call",
	}
	// The calls may have parted earlier than now: a rank whose part of a call
	// needed nobody is through with it.
	last := w.work.sequence + uint64(max(len(w.work.entries)-1, 0))
	e.hear(header.Peer, last)
	// A rank may post before it writes down what it is in.
	for range 50 {
		if e.ledger.Entered(header.Peer, last) {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	if s, mine, theirs, found := e.ledger.Divergence(e.rank, header.Peer, last); found {
		m.Sequence = s
		m.Call, m.PeerCall = e.ledger.Text(e.rank, mine), e.ledger.Text(header.Peer, theirs)
		return m
	}
	if len(w.active) == 0 && len(w.work.entries) > 0 && e.ledger.Call(header.Peer, last) == w.work.entries[0].Fingerprint {
		m.PeerCall = m.Call + ", with another algorithm, protocol or number of channels"
		return m
	}
	if len(w.active) > 0 {
		m.PeerCall = messageText(header.Got, e.rank)
		for _, t := range w.active {
			if t.Peer == header.Peer && !t.Send && t.header == header.Want {
				m.Call = w.work.call(t.Call).Spec.String()
			}
		}
	}
	return m
}
