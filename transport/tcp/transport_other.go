//go:build !linux

package tcp

import (
	"context"

	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/transport"
)

// Transport connects the ranks of one communicator.
type Transport struct{}

var (
	_ transport.Carrier    = (*Transport)(nil)
	_ transport.Accountant = (*Transport)(nil)
)

// New returns an error that wraps ErrUnsupported.
func New(Config) (*Transport, error) { return nil, errNotLinux }

func (*Transport) Name() string                               { return "tcp" }
func (*Transport) OrderedStores() bool                        { return true }
func (*Transport) Carries() bool                              { return true }
func (*Transport) Broken(int, int, bool) error                { return nil }
func (*Transport) Leave(int, <-chan struct{})                 {}
func (*Transport) Abandon(int)                                {}
func (*Transport) Accounts(int) (proxy, helper spin.Counters) { return }
func (*Transport) Drain(context.Context)                      {}
func (*Transport) Close() error                               { return nil }
func (*Transport) Connect(transport.Link, transport.End) (*transport.Conn, error) {
	return nil, errNotLinux
}
