package exec

import (
	"fmt"
	"sync/atomic"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/proto"
	"github.com/gollective/gollective/transport"
)

// Point-to-point messages. A message is cut into transfers, one per channel that
// carries a part of it. All transfers of a launch progress at once, as far as
// their FIFOs allow, so a launch never waits for one peer while another is
// ready; only the transfers of one peer and direction keep their order.
//
// Every message opens with an LL slot on the base channel of its round, whatever
// its size and protocol, whose header says what the message is. Thereby two ranks
// that disagree on the size, and so on channels and protocol, still meet there.

// pair counts the messages exchanged with one peer by earlier launches.
type pair struct{ sent, received uint64 }

// transfer is a plan.Transfer bound to FIFOs, and its progress in a launch.
type transfer struct {
	*plan.Transfer
	channel int
	pair    *pair
	carried bool             // a proxy is between the peer and this rank
	opener  proto.Primitives // the opening LL slot; nil if pipe is LL or another part opens
	pipe    proto.Primitives
	after   *transfer // the transfer on the same FIFOs that must end first

	buffer   []byte // the user's, of the call in progress
	header   uint64
	opened   bool // the opener has been passed
	moved    int  // bytes
	finished bool
	through  atomic.Uint64 // number of the launch in which it last finished, for other blocks
}

// bindTransfers resolves the FIFOs of a channel's messages.
func (e *Engine) bindTransfers(p *plan.Plan, c *channel) error {
	type way struct {
		peer int
		send bool
	}
	latest := make(map[way]*transfer)
	for i := range c.Transfers {
		t := &transfer{Transfer: &c.Transfers[i], channel: c.ID}
		if t.pair = e.pairs[t.Peer]; t.pair == nil {
			t.pair = new(pair)
			e.pairs[t.Peer] = t.pair
		}
		var err error
		if t.pipe, err = e.messagePipe(c, t, t.Protocol); err != nil {
			return err
		}
		if t.First && t.Protocol != plan.LL && e.world.OrderedStores {
			if t.opener, err = e.messagePipe(c, t, plan.LL); err != nil {
				return err
			}
		}
		t.after = latest[way{t.Peer, t.Send}]
		latest[way{t.Peer, t.Send}] = t
		c.transfers = append(c.transfers, t)
	}
	return nil
}

// messagePipe makes the primitives of one transfer, which has one peer.
func (e *Engine) messagePipe(c *channel, t *transfer, protocol plan.Protocol) (proto.Primitives, error) {
	var ends proto.Ends
	payload := e.world.P2PPayload[protocol]
	if t.Send {
		end, err := e.sendEnd(t.Peer, t.channel, transport.PointToPoint, protocol, payload)
		if err != nil {
			return nil, err
		}
		c.adopt(end.Service())
		t.carried = end.Carried()
		ends.To = []*transport.SendEnd{end}
	} else {
		end, err := e.recvEnd(t.Peer, t.channel, transport.PointToPoint, protocol, payload)
		if err != nil {
			return nil, err
		}
		c.adopt(end.Service())
		t.carried = end.Carried()
		ends.From = []*transport.RecvEnd{end}
	}
	if protocol == plan.LL {
		return proto.NewLL(ends), nil
	}
	return proto.NewSimple(ends, 1, payload, 1, 1), nil
}

// beginMessages readies the transfers of a call, or of several fused ones.
func (e *Engine) beginMessages(w *Work) {
	for i := range w.Program.channels {
		for _, t := range w.Program.channels[i].transfers {
			index := t.pair.received
			if t.Send {
				index = t.pair.sent
			}
			spec := w.call(t.Call).Spec
			t.header = messageHeader(spec.Kind, spec.Type, index+uint64(t.Epoch), t.Total)
			t.opened = t.opener == nil
			t.moved, t.finished = 0, false
		}
	}
}

// endMessages counts the messages of a call that has ended.
func (e *Engine) endMessages(w *Work) {
	for i := range w.Program.channels {
		for _, t := range w.Program.channels[i].transfers {
			switch {
			case !t.First:
			case t.Send:
				t.pair.sent++
			default:
				t.pair.received++
			}
		}
	}
}

// runTransfers moves the messages of one channel until all are through.
func (w *worker) runTransfers(work *Work, transfers []*transfer) error {
	w.active = append(w.active[:0], transfers...)
	for _, t := range transfers {
		t.open(w, work)
	}
	for len(w.active) > 0 {
		progress := false
		for _, t := range w.active {
			w.moving = t // waits in it are for a chunk that has begun
			moved, err := t.advance()
			w.moving = nil
			if err != nil {
				return err
			}
			progress = progress || moved
		}
		if progress {
			w.retire()
			continue
		}
		if err := w.waiter.Until(&w.any); err != nil {
			return err
		}
		// Withdrawn before anything is consumed: whoever sees a FIFO drained
		// and then a waiting rank may conclude that it waits for more.
		w.stopWaiting()
	}
	for _, t := range transfers {
		if err := t.close(); err != nil {
			return err
		}
	}
	return nil
}

// open opens the FIFOs of t for the call in progress.
func (t *transfer) open(w *worker, work *Work) {
	op := proto.Operation{Waiter: w.waiter, Header: t.header}
	if t.opener != nil {
		t.opener.Begin(op)
	}
	t.pipe.Begin(op)
	call := work.call(t.Call)
	t.buffer = call.Recv
	if t.Send {
		t.buffer = call.Send
	}
}

// close waits until nobody needs t's buffer any longer.
func (t *transfer) close() error {
	t.buffer = nil
	if t.opener != nil {
		if err := t.opener.End(); err != nil {
			return err
		}
	}
	return t.pipe.End()
}

// retire drops finished transfers, keeping the order.
func (w *worker) retire() {
	rest := w.active[:0]
	for _, t := range w.active {
		if t.finished {
			t.through.Store(w.launch.number)
		} else {
			rest = append(rest, t)
		}
	}
	if len(rest) < len(w.active) {
		clear(w.suspects)
	}
	clear(w.active[len(rest):])
	w.active = rest
}

// stride is how many chunks of one transfer move before the others are looked
// at.
const stride = 4

// advance moves a few chunks of t if that needs no waiting, and reports whether
// it did.
func (t *transfer) advance() (bool, error) {
	moved := false
	for range stride {
		if t.finished || t.blocked() || !t.next().Ready() {
			break
		}
		if err := t.step(); err != nil {
			return moved, err
		}
		moved = true
	}
	return moved, nil
}

// blocked reports whether an earlier transfer on the same FIFOs is not through.
func (t *transfer) blocked() bool { return t.after != nil && !t.after.finished }

// next is the condition for t's next chunk.
func (t *transfer) next() spin.Condition {
	if !t.opened {
		return t.opener.Next(nil)
	}
	return t.pipe.Next(t.chunk())
}

// chunk is what is to move next of the user's buffer.
func (t *transfer) chunk() []byte {
	begin := t.Offset + t.moved
	n := min(t.Chunk, t.Bytes-t.moved)
	if n == 0 {
		return empty
	}
	return t.buffer[begin : begin+n : begin+n]
}

// step moves the opening slot or the next chunk of t.
func (t *transfer) step() error {
	if !t.opened {
		t.opened = true
		t.finished = t.Bytes == 0
		return t.pass(t.opener, empty)
	}
	chunk := t.chunk()
	t.moved += len(chunk)
	t.finished = t.moved == t.Bytes
	return t.pass(t.pipe, chunk)
}

func (t *transfer) pass(pipe proto.Primitives, chunk []byte) error {
	if t.Send {
		return pipe.Send(chunk)
	}
	return pipe.Recv(chunk)
}

// anyTransfer is the condition that one of a worker's transfers can move.
type anyTransfer struct{ *worker }

func (a *anyTransfer) Ready() bool {
	for _, t := range a.active {
		if !t.blocked() && t.next().Ready() {
			return true
		}
	}
	return false
}

// Peer is the rank of the first message that is not through.
func (a *anyTransfer) Peer() int { return a.active[0].Peer }

func (a *anyTransfer) Arm(p *spin.Parker) {
	for _, t := range a.active {
		if !t.blocked() {
			t.next().Arm(p)
		}
	}
}

func (a *anyTransfer) Disarm() {
	for _, t := range a.active {
		if !t.blocked() {
			t.next().Disarm()
		}
	}
}

// messageHeader packs what both ends of a message must agree on, so that it can
// be read again: kind 4 bits, type 4, index 16, bytes 40 (each modulo its width).
func messageHeader(kind plan.Kind, t dtype.Type, index uint64, bytes int) uint64 {
	if kind == plan.Recv {
		kind = plan.Send
	}
	const mask40 = 1<<40 - 1
	return uint64(kind)<<60 | uint64(t)<<56 | (index&0xffff)<<40 | uint64(bytes)&mask40
}

// messageText is the readable form of a header: what rank peer says it sent.
func messageText(header uint64, to int) string {
	kind, t := plan.Kind(header>>60), dtype.Type(header>>56&15)
	bytes := int(header & (1<<40 - 1))
	if kind == plan.Send && t.Valid() && bytes%t.Size() == 0 {
		return plan.Spec{Kind: kind, Type: t, Count: bytes / t.Size(), Root: to}.String()
	}
	return fmt.Sprintf("%v (message of %d bytes of %v)", kind, bytes, t)
}
