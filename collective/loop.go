package collective

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"

	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/internal/ledger"
	"github.com/gollective/gollective/transport/tcp"
)

// lostPeer ends a communicator because what was sent to peer can't reach it, unless
// that has closed and so won't miss it.
func lostPeer(book *ledger.Ledger, peer int, cause error) {
	if !book.Closed(peer) {
		book.Fail(&fault.PeerLost{Rank: peer, Cause: cause})
	}
}

// loop connects ranks of one process by sockets, so that one process can show all of
// TCP's way.
type loop struct {
	port    *loopPort
	sockets *tcp.Transport
}

// loopPort is shared by a communicator and all that were made of it.
type loopPort struct {
	*tcp.Port
	users atomic.Int64
	names atomic.Uint64
}

// newLoop connects size ranks.
func newLoop(c Config, size int, l *ledger.Ledger) (*loop, error) {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	port, err := c.port(secret, func(p *tcp.PortConfig) { p.Loopback = true })
	if err != nil {
		return nil, err
	}
	return (&loop{port: &loopPort{Port: port}}).again(c, size, l)
}

// again connects the ranks of another communicator over the same port.
func (l *loop) again(c Config, size int, book *ledger.Ledger) (*loop, error) {
	p := l.port
	p.users.Add(1)
	addresses := p.Addresses()
	sockets, err := c.sockets(tcp.Config{
		Port: p.Port, Name: fmt.Sprintf("loop%d", p.names.Add(1)), Size: size,
		Here:      func(int) bool { return true },
		Addresses: func(int) []string { return addresses },
		Lost:      func(_, peer int, cause error) { lostPeer(book, peer, cause) },
	}, size, c.cores)
	if err != nil {
		p.release()
		return nil, err
	}
	return &loop{port: p, sockets: sockets}, nil
}

func (p *loopPort) release() {
	if p.users.Add(-1) == 0 {
		_ = p.Close()
	}
}

// close ends the connections, when what was sent has left, or failed is closed.
func (l *loop) close(failed <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	l.sockets.Drain(ctx)
	_ = l.sockets.Close() // what is lost thereby is missed by nobody
	l.port.release()
}
