package tcp

import (
	"log/slog"
	"time"

	"github.com/gollective/gollective/internal/spin"
)

// Config is what the transport of one communicator is made of.
type Config struct {
	Port *Port
	Name string // of the communicator, the same in all processes
	Size int
	// Here says whether a rank lives in this process, Addresses where to reach
	// the Port of one that may live elsewhere.
	Here      func(rank int) bool
	Addresses func(rank int) []string

	// Thread has the links served by one thread per rank; else the blocks that
	// wait do it.
	Thread bool
	// CPUs are the processors that those threads may use; none = all.
	CPUs []int
	// Policy is how those threads wait; Waiters and Cores as in spin.Options.
	Policy         spin.Policy
	Waiters, Cores int

	// ConnectTimeout bounds the attempts to reach another process. Default 30 s.
	ConnectTimeout time.Duration
	// Lost is told when what a rank of this process has posted can't be sent to
	// peer any more: the rank may have returned from its call, and peer may wait.
	Lost func(rank, peer int, cause error)

	// Account counts processor time, Labels shows whose the threads are in
	// profiles.
	Account, Labels bool

	Logger *slog.Logger
}
