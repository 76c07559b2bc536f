package exec

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/ledger"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
	"github.com/gollective/gollective/transport/inproc"
)

// smallWorld has FIFOs so small that a few kilobytes take many loops.
func smallWorld(channels int) plan.World {
	w := plan.World{RanksPerNode: 1, MinChannels: channels, MaxChannels: channels, OrderedStores: true}
	w.Force.Channels = channels
	w.Payload[plan.Simple] = 256
	w.Payload[plan.LL] = 256
	w.Payload[plan.LL128] = 240
	w.P2PPayload[plan.Simple] = 512
	w.P2PPayload[plan.LL] = 256
	return w
}

// engines makes the engines of a communicator, whose rank r uses connect(r). They
// are closed when the test ends.
func engines(t *testing.T, n int, w plan.World, policy spin.Policy, connect func(rank int) transport.Transport) []*Engine {
	t.Helper()
	l := ledger.New(n)
	all := make([]*Engine, n)
	for rank := range all {
		w.Rank, w.Size = rank, n
		all[rank] = New(Config{World: w, Transport: connect(rank), Ledger: l, Policy: policy, Waiters: n})
	}
	t.Cleanup(func() { closeAll(all) })
	return all
}

// closeAll closes engines at the same time, as ranks do.
func closeAll(all []*Engine) {
	var ranks sync.WaitGroup
	for _, e := range all {
		ranks.Go(e.Close)
	}
	ranks.Wait()
}

// inOneHub connects all ranks directly.
func inOneHub() func(int) transport.Transport {
	h := inproc.NewHub()
	return func(int) transport.Transport { return h }
}

// onEach runs body as every rank and returns the errors, by rank.
func onEach(t *testing.T, all []*Engine, body func(ctx context.Context, rank int, e *Engine) error) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	errs := make([]error, len(all))
	var ranks sync.WaitGroup
	for rank, e := range all {
		ranks.Go(func() {
			if errs[rank] = body(ctx, rank, e); errs[rank] != nil {
				errs[rank] = fmt.Errorf("rank %d: %w", rank, errs[rank])
			}
		})
	}
	ranks.Wait()
	return errs
}

// sum is an AllReduce of count int32 whose result is known.
type sum struct {
	Call
	ranks int
}

func newSum(rank, ranks, count int) *sum {
	s := &sum{ranks: ranks}
	s.Spec = plan.Spec{Kind: plan.AllReduce, Type: dtype.Int32, Op: reduce.Sum, Count: count}
	s.Send, s.Recv = make([]byte, 4*count), make([]byte, 4*count)
	for i := range count {
		binary.LittleEndian.PutUint32(s.Send[4*i:], uint32(int32((rank+1)*(i%1000+1))))
	}
	return s
}

// check compares the result and forgets it.
func (s *sum) check() error {
	for i := range s.Spec.Count {
		got := int32(binary.LittleEndian.Uint32(s.Recv[4*i:]))
		if want := int32(s.ranks * (s.ranks + 1) / 2 * (i%1000 + 1)); got != want {
			return fmt.Errorf("%v: element %d is %d, want %d", s.Spec, i, got, want)
		}
	}
	clear(s.Recv)
	return nil
}

// exchange is an AlltoAll of count int32 per pair whose result is known.
type exchange struct {
	Call
	rank, ranks int
}

func newExchange(rank, ranks, count int) *exchange {
	x := &exchange{rank: rank, ranks: ranks}
	x.Spec = plan.Spec{Kind: plan.AlltoAll, Type: dtype.Int32, Count: count}
	x.Send, x.Recv = make([]byte, 4*count*ranks), make([]byte, 4*count*ranks)
	for i := range count * ranks {
		binary.LittleEndian.PutUint32(x.Send[4*i:], uint32(rank*1_000_000+i))
	}
	return x
}

func (x *exchange) check() error {
	for i := range x.Spec.Count * x.ranks {
		from, at := i/x.Spec.Count, i%x.Spec.Count
		got := int(binary.LittleEndian.Uint32(x.Recv[4*i:]))
		if want := from*1_000_000 + x.rank*x.Spec.Count + at; got != want {
			return fmt.Errorf("%v: element %d is %d, want %d", x.Spec, i, got, want)
		}
	}
	clear(x.Recv)
	return nil
}

// run executes calls one by one on e and checks each.
func run(ctx context.Context, e *Engine, calls ...interface{ check() error }) error {
	for _, c := range calls {
		if err := e.Run(ctx, callOf(c)); err != nil {
			return err
		}
		if err := c.check(); err != nil {
			return err
		}
	}
	return nil
}

func callOf(c interface{ check() error }) *Call {
	switch c := c.(type) {
	case *sum:
		return &c.Call
	case *exchange:
		return &c.Call
	}
	panic(fmt.Sprintf("%T is no call", c))
}

// together executes calls as one launch on e and checks all.
func together(ctx context.Context, e *Engine, calls ...interface{ check() error }) error {
	list := make([]Call, len(calls))
	for i, c := range calls {
		list[i] = *callOf(c)
	}
	works, err := e.Prepare(context.Background(), list)
	if err != nil {
		return err
	}
	return launchAndCheck(ctx, e, works, calls...)
}

func launchAndCheck(ctx context.Context, e *Engine, works []Work, calls ...interface{ check() error }) error {
	ticket, err := e.Start(ctx, works)
	if err != nil {
		return err
	}
	<-ticket.Done
	if err := ticket.Err(); err != nil {
		return err
	}
	var errs []error
	for _, c := range calls {
		errs = append(errs, c.check())
	}
	return errors.Join(errs...)
}

func requireNoErrors(t *testing.T, errs []error) {
	t.Helper()
	require.NoError(t, errors.Join(errs...))
}
