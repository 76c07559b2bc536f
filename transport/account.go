package transport

import (
	"runtime/pprof"
	"strconv"

	"github.com/gollective/gollective/internal/spin"
)

// Accountant is implemented by a Transport that works for the ranks of this process:
// in threads of its own, or in those of blocks that wait.
type Accountant interface {
	Transport
	// Accounts returns what has been spent so far for one rank by its proxy and by
	// the proxy's helpers. Threads are 0 where blocks have done the work while they
	// waited (spin.Meter): then it is a part of what the blocks have counted.
	Accounts(rank int) (proxy, helper spin.Counters)
}

// Role is what a goroutine is there for, in accounts and profiles.
type Role string

const (
	Block  Role = "block"  // runs a channel's part of a launch
	Proxy  Role = "proxy"  // moves what blocks post to other hosts, and back
	Helper Role = "helper" // serves some of a proxy's sockets
)

// Labels are what goroutines of a communicator show in profiles. A negative channel
// stands for all of them.
func Labels(communicator string, rank int, role Role, channel int) pprof.LabelSet {
	c := "all"
	if channel >= 0 {
		c = strconv.Itoa(channel)
	}
	return pprof.Labels("comm", communicator, "rank", strconv.Itoa(rank), "role", string(role), "channel", c)
}

// What implements spin.Named.
func (*SendEnd) What() string { return "credit" }

// What implements spin.Named.
func (*RecvEnd) What() string { return "data" }
