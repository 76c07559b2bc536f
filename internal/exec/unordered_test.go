package exec

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
	"github.com/gollective/gollective/transport/inproc"
)

// modest is a transport that does not promise the order of stores.
type modest struct{ *inproc.Hub }

func (modest) OrderedStores() bool { return false }

// storm is a transport between two memories: a FIFO's producer writes one, its
// consumer reads the other, and what is posted in the first is carried over word
// by word in random order before it is posted in the second. Stores that were not
// posted never arrive. It stands for a network.
type storm struct {
	mu    sync.Mutex
	conns map[transport.Link]*[2]*transport.Conn
	ctx   context.Context
	done  sync.WaitGroup
	lag   time.Duration // of every slot
}

// shore is a storm seen from one rank.
type shore struct {
	*storm
	rank int
}

func newStorm(t *testing.T) *storm {
	ctx, cancel := context.WithCancel(t.Context())
	s := &storm{conns: make(map[transport.Link]*[2]*transport.Conn), ctx: ctx}
	t.Cleanup(func() {
		cancel()
		s.done.Wait()
	})
	return s
}

func (shore) Name() string                { return "storm" }
func (shore) OrderedStores() bool         { return false }
func (shore) Carries() bool               { return true }
func (shore) Broken(int, int, bool) error { return nil }
func (shore) Leave(int, <-chan struct{})  {}
func (shore) Abandon(int)                 {}

func (s shore) Connect(link transport.Link, _ transport.End) (*transport.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pair, ok := s.conns[link]
	if !ok {
		pair = new([2]*transport.Conn)
		for i := range pair {
			var err error
			if pair[i], err = transport.NewConn(link.Slot, 0); err != nil {
				return nil, err
			}
		}
		s.conns[link] = pair
		s.done.Go(func() { s.carry(link, pair) })
	}
	if link.From == s.rank {
		return pair[0], nil
	}
	return pair[1], nil
}

// calm is a Watch that only a context ends.
type calm struct{}

func (calm) Failed() error                               { return nil }
func (calm) Inspect(spin.Condition) error                { return nil }
func (calm) Expired(_ spin.Condition, cause error) error { return cause }

// carry moves slots of one FIFO until the test ends.
func (s *storm) carry(link transport.Link, pair *[2]*transport.Conn) {
	random := rand.New(rand.NewPCG(uint64(link.From), uint64(link.To)))
	w := spin.NewWaiter(spin.Block, 1)
	w.Bind(s.ctx, calm{}, 0)
	from, to := transport.NewRecvEnd(pair[0], link.From), transport.NewSendEnd(pair[1], link.To)
	for {
		if w.Until(from.Filled(1)) != nil || w.Until(to.Credit(1)) != nil {
			return
		}
		if s.lag > 0 {
			time.Sleep(s.lag)
		}
		src, dst := from.Slot(1), to.Slot(1)
		for _, word := range random.Perm(len(src) / 8) {
			copy(dst[8*word:8*word+8], src[8*word:])
		}
		to.Post(1, from.Header(), len(from.Slot(1)))
		from.Release(1)
	}
}

// The transport is asked, whatever the World says: with a wrong answer LL128 would
// take stale data for new.
func TestLLAndLL128AreRefusedWhereStoresMayBeReordered(t *testing.T) {
	for _, protocol := range []plan.Protocol{plan.LL, plan.LL128} {
		for _, claimed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, world says %v", protocol, claimed), func(t *testing.T) {
				w := smallWorld(1)
				w.OrderedStores = claimed
				w.Force.Protocol = protocol
				hub := modest{inproc.NewHub()}
				all := engines(t, 2, w, spin.Adaptive, func(int) transport.Transport { return hub })
				for _, err := range onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
					return run(ctx, e, newSum(rank, 2, 100))
				}) {
					require.ErrorIs(t, err, plan.ErrUnordered)
				}
				// Nothing was sent, and the communicator is as good as before.
				requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
					return e.ledger.Failure()
				}))
			})
		}
	}
}

// Left to itself the choice is Simple, for collectives and messages, which needs no
// order: every size, also the small ones for which LL is chosen elsewhere, is
// right over memory that shows stores in any order.
func TestWithoutForceEverythingRunsOverReorderedStores(t *testing.T) {
	for _, claimed := range []bool{false, true} {
		for _, algorithm := range []plan.Algorithm{plan.Ring, plan.Tree, plan.OneShot} {
			t.Run(fmt.Sprintf("%v, world says %v", algorithm, claimed), func(t *testing.T) {
				const n = 4
				w := smallWorld(2)
				w.OrderedStores = claimed
				w.Force.Algorithm = algorithm
				s := newStorm(t)
				all := engines(t, n, w, spin.Adaptive, func(rank int) transport.Transport { return shore{s, rank} })
				requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
					for range 3 {
						for _, count := range []int{1, 5, 100, 3000} {
							if err := run(ctx, e, newSum(rank, n, count), newExchange(rank, n, count)); err != nil {
								return err
							}
						}
					}
					return nil
				}))
				for link := range s.conns {
					require.EqualValues(t, plan.Simple, link.Lane, "%+v", link)
				}
			})
		}
	}
}

// What is posted may be under way for longer than any wait is looked into. A rank
// that has sent everything and gone on, to wait for others in its next call or to
// close, must not be taken for one that will never send.
func TestASlowTransportIsNotTakenForADisagreement(t *testing.T) {
	const n = 3
	w := smallWorld(1)
	s := newStorm(t)
	s.lag = 20 * time.Millisecond
	all := engines(t, n, w, spin.Adaptive, func(rank int) transport.Transport { return shore{s, rank} })
	requireNoErrors(t, onEach(t, all, func(ctx context.Context, rank int, e *Engine) error {
		if err := run(ctx, e, newExchange(rank, n, 300), newSum(rank, n, 10), newExchange(rank, n, 300)); err != nil {
			return err
		}
		e.Close()
		return nil
	}))
}
