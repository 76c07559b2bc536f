package collective

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/affinity"
	"github.com/gollective/gollective/internal/fault"
)

// wired is a control plane between jobs of one test: messages are handed over by
// a goroutine per receiver, in order.
type wired struct {
	from  int
	inbox []chan func()
	jobs  []*job
}

func (w *wired) Tell(message []byte) error {
	for number := range w.jobs {
		if number != w.from {
			w.inbox[number] <- func() { w.jobs[number].handle(w.from, message) }
		}
	}
	return nil
}

func (w *wired) Close(context.Context) error { return nil }

// sharedMemoryJobs returns the communicators of processes with the given numbers
// of ranks, all played by this one: what is real is the memory between them.
func sharedMemoryJobs(t *testing.T, c Config, ranks ...int) [][]*Comm {
	t.Helper()
	c, err := c.withDefaults()
	require.NoError(t, err)
	n := len(ranks)
	jobs := make([]*job, n)
	inbox := make([]chan func(), n)
	var running sync.WaitGroup
	var all []description
	for number := range jobs {
		depot, mark, err := openDepot()
		require.NoError(t, err)
		inbox[number] = make(chan func(), 1000)
		running.Go(func() {
			for f := range inbox[number] {
				f()
			}
		})
		all = append(all, description{Version: descriptionVersion, Ranks: ranks[number], Depot: depot.Address(), Mark: mark, CPUs: affinity.Own()})
		jobs[number] = newJob(number, &wired{from: number, inbox: inbox, jobs: jobs}, depot, 10*time.Second)
	}
	comms := make([][]*Comm, n)
	var made sync.WaitGroup
	for number, j := range jobs {
		j.processes = all
		made.Go(func() {
			var err error
			comms[number], err = j.root(context.Background(), c)
			if err != nil {
				t.Errorf("process %d: %v", number, err)
			}
		})
	}
	made.Wait()
	require.False(t, t.Failed())
	t.Cleanup(func() {
		for _, process := range comms {
			for _, comm := range process {
				comm.Abort()
				comm.Close()
			}
		}
		for _, in := range inbox {
			close(in)
		}
		running.Wait()
	})
	return comms
}

// everyRank runs body for each rank of comms in a goroutine of its own.
func everyRank(comms [][]*Comm, body func(*Comm) error) error {
	var mu sync.Mutex
	var errs []error
	var ranks sync.WaitGroup
	for _, process := range comms {
		for _, c := range process {
			ranks.Go(func() {
				if err := body(c); err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("rank %d: %w", c.Rank(), err))
					mu.Unlock()
				}
			})
		}
	}
	ranks.Wait()
	return errors.Join(errs...)
}

func TestProcessesReduceThroughSharedMemory(t *testing.T) {
	for _, ranks := range [][]int{{1, 1}, {1, 2}, {2, 1, 3}} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			comms := sharedMemoryJobs(t, Config{}, ranks...)
			require.NoError(t, everyRank(comms, func(c *Comm) error {
				for _, count := range []int{1, 7, 1000, 100_000} {
					send, recv := make([]int32, count), make([]int32, count)
					for i := range send {
						send[i] = int32(c.Rank()*1000 + i)
					}
					if err := AllReduce(context.Background(), c, send, recv, Sum); err != nil {
						return err
					}
					n := int32(c.Size())
					for i := range recv {
						if want := n*int32(i) + 1000*n*(n-1)/2; recv[i] != want {
							return fmt.Errorf("count %d: recv[%d] = %d, want %d", count, i, recv[i], want)
						}
					}
				}
				return nil
			}))
		})
	}
}

func TestAMismatchBetweenProcessesNamesBothCalls(t *testing.T) {
	comms := sharedMemoryJobs(t, Config{}, 1, 1, 1)
	err := everyRank(comms, func(c *Comm) error {
		x := make([]int32, 4+c.Rank()/2)
		err := AllReduce(context.Background(), c, x, x, Sum)
		var m *MismatchError
		if !errors.As(err, &m) {
			return fmt.Errorf("got %v", err)
		}
		if m.Call == m.PeerCall || m.Rank == m.PeerRank {
			return fmt.Errorf("error names one side only: %v", err)
		}
		return nil
	})
	require.NoError(t, err)
}

func TestALostProcessEndsCallsAndTheRestGoesOnWithoutIt(t *testing.T) {
	comms := sharedMemoryJobs(t, Config{}, 1, 1, 1)
	err := everyRank(comms, func(c *Comm) error {
		if c.Rank() == 1 {
			return nil // plays dead
		}
		time.AfterFunc(50*time.Millisecond, func() { c.world.process.job.lose(1, errors.New("killed")) })
		x := make([]int32, 4)
		err := AllReduce(context.Background(), c, x, x, Sum)
		var lost *fault.PeerLost
		if !errors.As(err, &lost) || lost.Rank != 1 {
			return fmt.Errorf("got %v", err)
		}
		rest, err := c.Shrink(context.Background(), []int{1})
		if err != nil {
			return err
		}
		defer rest.Close()
		x[0] = int32(c.Rank())
		if err := AllReduce(context.Background(), rest, x, x, Sum); err != nil {
			return err
		}
		if x[0] != 2 || rest.Size() != 2 {
			return fmt.Errorf("got %v of %d ranks", x, rest.Size())
		}
		return nil
	})
	require.NoError(t, err)
}

func TestAllocatedMemoryIsSeenByPeers(t *testing.T) {
	comms := sharedMemoryJobs(t, Config{}, 1, 1)
	owner, peer := comms[0][0], comms[1][0]
	mine, err := owner.MemAlloc(3 << 20)
	require.NoError(t, err)
	copy(mine[5:], "hello")
	theirs, err := peer.world.process.mapMemory(context.Background(), 0, peer.world.process.memoryName(0, 0))
	require.NoError(t, err)
	require.Equal(t, "hello", string(theirs[5:10]))
	require.Len(t, theirs, len(mine))

	require.NoError(t, everyRank(comms, func(c *Comm) error {
		b, err := c.MemAlloc(1 << 16)
		if err != nil {
			return err
		}
		b[c.Rank()] = 1
		if err := c.Do(context.Background(), Call{Kind: plan.AllReduce, Type: dtype.Uint8, Op: Sum, Count: len(b), Send: b, Recv: b}); err != nil {
			return err
		}
		if b[0] != 1 || b[1] != 1 || b[2] != 0 {
			return fmt.Errorf("got %v", b[:3])
		}
		return c.MemFree(b)
	}))
	require.ErrorIs(t, owner.MemFree(make([]byte, 1)), ErrInvalid)
	require.NoError(t, owner.MemFree(mine))
}

// A root may be through, and have closed, before others look for what it has posted.
func TestWhatARankHasPostedOutlivesItsClose(t *testing.T) {
	for _, kind := range []plan.Kind{plan.Broadcast, plan.Reduce} {
		for _, here := range [][]int{{1, 1}, {1, 2}} {
			comms := sharedMemoryJobs(t, Config{}, here...)
			require.NoError(t, everyRank(comms, func(c *Comm) error {
				n := c.Size()
				root := 0 // who needs nobody leaves at once
				if kind == plan.Reduce {
					root = n - 1
				}
				leaves := (c.Rank() == root) == (kind == plan.Broadcast)
				x, y := []int32{int32(c.Rank() + 1)}, make([]int32, 1)
				if !leaves {
					time.Sleep(50 * time.Millisecond)
				}
				var err error
				want := int32(1)
				if kind == plan.Broadcast {
					err = Broadcast(t.Context(), c, x, y, root)
				} else {
					err, want = Reduce(t.Context(), c, x, y, Sum, root), int32(n*(n+1)/2)
				}
				if err == nil && (kind == plan.Broadcast || c.Rank() == root) && y[0] != want {
					err = fmt.Errorf("got %d, want %d", y[0], want)
				}
				return errors.Join(err, c.Close())
			}))
		}
	}
}
