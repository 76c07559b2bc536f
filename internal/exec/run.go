package exec

import (
	"fmt"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/proto"
)

// runChannel executes one channel's part of every call of a launch, in order.
func (w *worker) runChannel(l *launch, id int) error {
	w.waiter.Enter()
	defer w.waiter.Leave()
	defer w.stopWaiting()
	for i := range l.works {
		work := &l.works[i]
		c := work.Program.channel(id)
		if c == nil {
			continue
		}
		w.bind(l, work, c, id)
		if err := w.observed(l, work, c); err != nil {
			return w.engine.fail(w, err)
		}
	}
	return nil
}

// runCall executes one channel's part of one call.
func (w *worker) runCall(l *launch, work *Work, c *channel) error {
	for _, copied := range c.Copies {
		to, from := work.call(copied.To).Recv, work.call(copied.From).Send
		copy(to[copied.ToOffset:copied.ToOffset+copied.Bytes], from[copied.FromOffset:copied.FromOffset+copied.Bytes])
	}
	if len(c.transfers) > 0 {
		return w.runTransfers(work, c.transfers)
	}
	if c.Direct != nil {
		return w.runDirect(work, c)
	}
	if !c.Concurrent {
		return w.runThreads(work, c)
	}
	// The two halves of a tree. The first failure ends both, by the ledger.
	other := w.engine.half(c.ID)
	other.mailbox <- task{launch: l, work: work, thread: &c.Threads[1], pipe: c.pipes[1]}
	err := w.runThread(&c.Threads[0], c.pipes[0], work)
	if err != nil {
		err = w.engine.fail(w, err)
	}
	w.waiter.Leave() // the sleep is none of the waiter's
	otherErr := <-other.done
	w.waiter.Enter()
	if err == nil {
		err = otherErr
	}
	return err
}

// runThreads executes the threads of a channel one after the other.
func (w *worker) runThreads(work *Work, c *channel) error {
	for i := range c.Threads {
		if err := w.runThread(&c.Threads[i], c.pipes[i], work); err != nil {
			return err
		}
	}
	return nil
}

// runThread is the interpreter: the plan's steps become primitives.
func (w *worker) runThread(t *plan.Thread, pipe proto.Primitives, work *Work) error {
	pipe.Begin(proto.Operation{Waiter: w.waiter, Kernel: work.kernel, Header: work.header})
	element := work.Program.Plan.Spec.Type.Size()
	for loop := range t.Loops() {
		for _, s := range t.Steps {
			in := piece(work.Send, t, loop, s.In, element)
			out := piece(work.Recv, t, loop, s.Out, element)
			if err := do(pipe, s.Action, in, out); err != nil {
				return err
			}
		}
	}
	return pipe.End()
}

// do executes one step.
func do(pipe proto.Primitives, action plan.Action, in, out []byte) error {
	switch action {
	case plan.DoSend:
		return pipe.Send(in)
	case plan.DoSendFromOutput:
		return pipe.SendFromOutput(out)
	case plan.DoRecv:
		return pipe.Recv(out)
	case plan.DoCopySend:
		return pipe.CopySend(in, out)
	case plan.DoRecvCopySend:
		return pipe.RecvCopySend(out)
	case plan.DoRecvReduceSend:
		return pipe.RecvReduceSend(in)
	case plan.DoRecvReduceCopy:
		return pipe.RecvReduceCopy(in, out)
	case plan.DoRecvReduceCopySend:
		return pipe.RecvReduceCopySend(in, out)
	}
	return fmt.Errorf("exec: unknown action %v", action)
}

// empty stands for a chunk that lies behind the end of a buffer.
var empty = make([]byte, 0)

// piece is what a step's block number means in a buffer.
func piece(buffer []byte, t *plan.Thread, loop, block, element int) []byte {
	if block == plan.None {
		return nil
	}
	offset, count := t.Range(loop, block)
	if count == 0 {
		return empty
	}
	begin, end := offset*element, (offset+count)*element
	return buffer[begin:end:end]
}
