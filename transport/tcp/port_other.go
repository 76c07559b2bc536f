//go:build !linux

package tcp

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/gollective/gollective/internal/fault"
)

var errNotLinux = fmt.Errorf("tcp: connections between processes are %w on %s: %w", fault.ErrUnsupported, runtime.GOOS, errors.ErrUnsupported)

// Port is where a process is connected to, and from where it connects to others.
type Port struct{}

// Open returns an error that wraps ErrUnsupported.
func Open(PortConfig) (*Port, error) { return nil, errNotLinux }

// bundle is one connection between two processes.
type bundle struct{}

func (*Port) Addresses() []string                                       { return nil }
func (*Port) Dial(context.Context, []string, Greeting) (*bundle, error) { return nil, errNotLinux }
func (*Port) Serve(string, func(Greeting, *bundle)) error               { return errNotLinux }
func (*Port) Unserve(string)                                            {}
func (*Port) Close() error                                              { return nil }
