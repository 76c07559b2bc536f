package exec

import (
	"context"
	"errors"
	"time"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/fault"
)

// grace is how long an unreachable peer may take to turn out to be lost, so that
// the error says so, and not only that it can't be reached.
const grace = 3 * time.Second

// errand is the call that something is reached for; zero where there is none.
type errand struct {
	ctx  context.Context
	spec plan.Spec
}

// reach gets something that rank peer has to do with: a FIFO, a desk, memory. That may
// need the peer's process, which may be stopped or dead: the wait ends with the call's
// context or deadline, and with the communicator. A failure is the communicator's: the
// peers are in the call, or will be, and this rank can't follow them.
func reach[T any](e *Engine, call errand, peer int, get func() (T, error)) (T, error) {
	var none T
	ctx := call.ctx
	if ctx == nil {
		ctx = context.Background()
	}
	if e.config.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.config.Timeout)
		defer cancel()
	}
	type outcome struct {
		got T
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		got, err := get()
		done <- outcome{got, err}
	}()
	select {
	case o := <-done:
		if o.err == nil {
			return o.got, nil
		}
		return none, e.unreachable(ctx, call, peer, o.err)
	case <-e.ledger.Failed():
		return none, e.ledger.Failure()
	case <-ctx.Done():
		return none, e.ledger.Fail(e.unanswered(call, peer, ctx.Err()))
	}
}

// unreachable is the failure behind an error of the transport: that the peer has
// closed, its death if that comes out soon, else an abort for that reason.
func (e *Engine) unreachable(ctx context.Context, call errand, peer int, err error) error {
	abort := &fault.Abort{Rank: e.rank, Call: call.text(), Cause: err}
	var space interface{ NoSpace() bool }
	if errors.As(err, &space) {
		return e.ledger.Fail(abort)
	}
	closed := func() error {
		return e.ledger.Fail(&fault.PeerClosed{
			Sequence: e.ledger.Count(e.rank), Rank: e.rank, Call: call.text(), PeerRank: peer,
		})
	}
	if e.ledger.Closed(peer) {
		return closed()
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-e.ledger.Failed():
	case <-ctx.Done():
	case <-timer.C:
	}
	if e.ledger.Closed(peer) {
		return closed()
	}
	return e.ledger.Fail(abort)
}

// unanswered is the error for a context that ended while a peer was asked for a
// FIFO.
func (e *Engine) unanswered(call errand, peer int, cause error) error {
	if !errors.Is(cause, context.DeadlineExceeded) {
		return &fault.Abort{Rank: e.rank, Call: call.text(), Cause: cause}
	}
	return &fault.Timeout{
		Sequence: e.ledger.Count(e.rank), Rank: e.rank, Call: call.text(),
		Silent: []int{peer}, Waiting: peer, Cause: cause,
	}
}

func (c errand) text() string {
	if c.ctx == nil {
		return ""
	}
	return c.spec.String()
}
