package tcp

import (
	"context"
	"errors"
)

// Port is where a process is connected to, and from where it connects to others.
type Port struct{ c PortConfig }

// Open listens.
func Open(c PortConfig) (*Port, error) { return &Port{c: c}, errors.ErrUnsupported }

// Addresses is where others reach this process: host:port, the best first.
func (p *Port) Addresses() []string { return nil }

// Dial connects to the first of addresses that proves to belong to the job.
func (p *Port) Dial(ctx context.Context, addresses []string, g Greeting) (*bundle, error) {
	return nil, errors.ErrUnsupported
}

// Serve hands arrive the connections of a communicator.
func (p *Port) Serve(communicator string, arrive func(Greeting, *bundle)) error { return nil }

// Unserve is the end of Serve.
func (p *Port) Unserve(communicator string) {}

// Close ends the port.
func (p *Port) Close() error { return nil }
