package tcp

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
	"github.com/gollective/gollective/transport/transporttest"
)

// pair is the transports of two processes: even ranks live in the first.
type pair [2]*Transport

func (pair) Name() string        { return "tcp" }
func (pair) OrderedStores() bool { return true }

func (p pair) Connect(l transport.Link, end transport.End) (*transport.Conn, error) {
	rank := l.From
	if end == transport.Consumer {
		rank = l.To
	}
	return p[rank%2].Connect(l, end)
}

// openPair connects two processes; change makes them different from the default.
func openPair(t *testing.T, thread bool, change func(*PortConfig)) pair {
	var p pair
	var ports [2]*Port
	for i := range ports {
		c := PortConfig{Secret: []byte("of the job"), Loopback: true}
		if change != nil {
			change(&c)
		}
		port, err := Open(c)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, port.Close()) })
		ports[i] = port
	}
	for i := range p {
		tr, err := New(Config{
			Port: ports[i], Name: "all", Size: 5, Thread: thread, Waiters: 2, Cores: 2,
			Here:      func(rank int) bool { return rank%2 == i },
			Addresses: func(rank int) []string { return ports[rank%2].Addresses() },
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, tr.Close()) })
		p[i] = tr
	}
	return p
}

func TestIsATransport(t *testing.T) {
	for name, thread := range map[string]bool{"thread": true, "inline": false} {
		t.Run(name, func(t *testing.T) {
			transporttest.Run(t, func() transport.Transport { return openPair(t, thread, nil) })
		})
	}
}

// What a producer leaves behind arrives after its process has closed.
func TestWhatWasSentArrivesAfterClose(t *testing.T) {
	for name, thread := range map[string]bool{"thread": true, "inline": false} {
		t.Run(name, func(t *testing.T) {
			p := openPair(t, thread, nil)
			link := transport.Link{From: 0, To: 1, Lane: 1, Slot: 1 << 16}
			c, err := p.Connect(link, transport.Producer)
			require.NoError(t, err)
			s := transport.NewSendEnd(c, 1)
			s.Open()
			for i := range transport.Slots {
				s.Slot(1)[0] = byte(i)
				s.Post(1, uint64(i), 1<<16)
			}
			if !thread {
				eventually(t, s.Flushed())
			}
			s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			p[0].Drain(ctx)
			require.NoError(t, ctx.Err())
			require.NoError(t, p[0].Close())
			c, err = p.Connect(link, transport.Consumer)
			require.NoError(t, err)
			r := transport.NewRecvEnd(c, 0)
			r.Open()
			for i := range transport.Slots {
				eventually(t, r.Filled(1))
				require.EqualValues(t, i, r.Header())
				require.EqualValues(t, i, r.Slot(1)[0])
				require.NoError(t, p[1].Broken(1, 0, false))
				r.Release(1)
			}
			// Nothing more will come.
			require.False(t, r.Filled(1).Ready())
			require.Eventually(t, func() bool { return !driven(r.Filled(1))() && p[1].Broken(1, 0, false) != nil }, waitAtMost, lookEvery)
		})
	}
}

const (
	waitAtMost = 10 * time.Second
	lookEvery  = 100 * time.Microsecond
)

// driven is a condition whose looks drive the proxy, where that is the block's to do.
func driven(end interface {
	Ready() bool
	Service() spin.Service
}) func() bool {
	return func() bool {
		if end.Ready() {
			return true
		}
		if s := end.Service(); s != nil {
			s.Drive()
		}
		return end.Ready()
	}
}

// A block that has posted and gone does not see that its peer can't be reached: the
// communicator is told.
func TestAPeerThatCannotBeReachedIsTold(t *testing.T) {
	port, err := Open(PortConfig{Secret: []byte("of the job"), Loopback: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, port.Close()) })
	type loss struct{ rank, peer int }
	told := make(chan loss, 10)
	tr, err := New(Config{
		Port: port, Name: "all", Size: 2, Thread: true, Waiters: 2, Cores: 2,
		Here:           func(rank int) bool { return rank == 0 },
		Addresses:      func(int) []string { return []string{"127.0.0.1:1"} },
		ConnectTimeout: 200 * time.Millisecond,
		Lost: func(rank, peer int, cause error) {
			if cause != nil {
				told <- loss{rank, peer}
			}
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	c, err := tr.Connect(transport.Link{From: 0, To: 1, Lane: 1, Slot: 1 << 10}, transport.Producer)
	require.NoError(t, err)
	s := transport.NewSendEnd(c, 1)
	s.Open()
	s.Post(1, 0, 10)
	s.Close()
	select {
	case l := <-told:
		require.Equal(t, loss{0, 1}, l)
	case <-time.After(waitAtMost):
		require.Fail(t, "nobody was told")
	}
	tr.Drain(t.Context()) // does not wait for what can't be sent
}
