//go:build !linux

package shm

import (
	"context"
	"fmt"
	"runtime"

	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/transport"
)

// Shared memory between processes is there on Linux only: without a Depot, which
// Open refuses, there is no Transport either.

var errNotLinux = fmt.Errorf("shm: shared memory between processes is %w on %s", fault.ErrUnsupported, runtime.GOOS)

// Depot is a process's store of segments.
type Depot struct{}

// Open returns an error that wraps ErrUnsupported.
func Open([]byte) (*Depot, error) { return nil, errNotLinux }

func (*Depot) Address() string                                               { return "" }
func (*Depot) Provide(Provider)                                              {}
func (*Depot) Create(string, int, func([]byte)) ([]byte, error)              { return nil, errNotLinux }
func (*Depot) Fetch(context.Context, string, []byte, string) ([]byte, error) { return nil, errNotLinux }
func (*Depot) Drop(func(string) bool)                                        {}
func (*Depot) Close() error                                                  { return nil }

// Transport makes the FIFOs of one communicator between processes.
type Transport struct{}

// NewTransport is only called with a Depot.
func NewTransport(*Depot, string, int, func(int) int, func(int) Neighbour) *Transport {
	return &Transport{}
}

func (*Transport) Name() string        { return "shm" }
func (*Transport) OrderedStores() bool { return false }
func (*Transport) Connect(transport.Link, transport.End) (*transport.Conn, error) {
	return nil, errNotLinux
}
func (*Transport) Desk(transport.Spot) (*transport.Desk, error) { return nil, errNotLinux }

// Unseen is false.
func (*Transport) Unseen(func(rank int) bool) bool           { return false }
func (*Transport) Provide(string) (int, func([]byte), error) { return 0, nil, errNotLinux }
func (*Transport) Close()                                    {}
