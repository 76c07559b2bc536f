package exec

import (
	"context"
	"errors"
	"time"

	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/transport"
)

// grace is how long an unreachable peer may take to turn out to be lost, so that
// the error says so, and not only that it can't be reached.
const grace = 3 * time.Second

// reach connects link, whose other end is rank peer. That may need the peer's
// process, which may be stopped or dead: the wait ends with the call's context or
// deadline, and with the communicator. A failure is the communicator's: the peers
// are in the call, or will be, and this rank can't follow them.
func (e *Engine) reach(peer int, link transport.Link) (*transport.Conn, error) {
	ctx := e.connecting.ctx
	if ctx == nil {
		ctx = context.Background()
	}
	if e.config.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.config.Timeout)
		defer cancel()
	}
	type outcome struct {
		conn *transport.Conn
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		end := transport.Producer
		if link.To == e.rank {
			end = transport.Consumer
		}
		conn, err := e.transport.Connect(link, end)
		done <- outcome{conn, err}
	}()
	select {
	case o := <-done:
		if o.err == nil {
			return o.conn, nil
		}
		return nil, e.unreachable(ctx, peer, o.err)
	case <-e.ledger.Failed():
		return nil, e.ledger.Failure()
	case <-ctx.Done():
		return nil, e.ledger.Fail(e.unanswered(peer, ctx.Err()))
	}
}

// unreachable is the failure behind an error of the transport: that the peer has
// closed, its death if that comes out soon, else an abort for that reason.
func (e *Engine) unreachable(ctx context.Context, peer int, err error) error {
	abort := &fault.Abort{Rank: e.rank, Call: e.connectingText(), Cause: err}
	var space interface{ NoSpace() bool }
	if errors.As(err, &space) {
		return e.ledger.Fail(abort)
	}
	closed := func() error {
		return e.ledger.Fail(&fault.PeerClosed{
			Sequence: e.ledger.Count(e.rank), Rank: e.rank, Call: e.connectingText(), PeerRank: peer,
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
func (e *Engine) unanswered(peer int, cause error) error {
	if !errors.Is(cause, context.DeadlineExceeded) {
		return &fault.Abort{Rank: e.rank, Call: e.connectingText(), Cause: cause}
	}
	return &fault.Timeout{
		Sequence: e.ledger.Count(e.rank), Rank: e.rank, Call: e.connectingText(),
		Silent: []int{peer}, Waiting: peer, Cause: cause,
	}
}

func (e *Engine) connectingText() string {
	if e.connecting.ctx == nil {
		return ""
	}
	return e.connecting.spec.String()
}
