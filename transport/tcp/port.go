package tcp

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/gollective/gollective/internal/address"
	"github.com/gollective/gollective/transport"
)

// PortConfig says how a process connects to others.
type PortConfig struct {
	// Secret is the job's. Both ends of a connection prove that they have it.
	Secret []byte
	// Interfaces, Family and Ports say where to listen, as in bootstrap.Config.
	Interfaces string
	Family     string
	Ports      address.Ports
	// Routed is this host's address from which the root of the job is reached.
	// The zero value, for the root's own host, advertises all addresses.
	Routed netip.Addr
	// Loopback says that all of the job is on this host: unless Interfaces names
	// others, loopback is used.
	Loopback bool
	// PeerTimeout is how long a host may be silent before its connections fail;
	// default 30 s.
	PeerTimeout time.Duration
	// JoinTimeout is how long a connection waits for its communicator to be
	// served, and for its other sockets; default 60 s.
	JoinTimeout time.Duration
	// Buffer is the size of the sockets' buffers in bytes; 0 leaves it to the
	// system, which adapts it.
	Buffer int
	// Rate bounds each socket's sending, in bytes per second; 0 is no bound.
	Rate int
	// TLS encrypts connections if it is not nil; both ends must have it.
	TLS *tls.Config
	// SocketsPerThread x Threads sockets carry a connection's payloads, at most 64,
	// served by so many threads at each end. With none of them, everything goes over
	// the main socket. The dialler's values hold.
	SocketsPerThread, Threads int
	// Faults is for tests.
	Faults *Faults
	// Logger gets the choices made and the connections turned away; nil is silent.
	Logger *slog.Logger
}

// Greeting is what a connection is for.
type Greeting struct {
	Communicator string
	Link         transport.Link
}

// ErrServed: the communicator is served already.
var ErrServed = errors.New("tcp: communicator is served already")
