package tcp

import (
	"time"
)

// stream is a connection as the proxy uses it: nothing waits. read and write
// return 0, nil when there is nothing to do now, and io.EOF when the other end has
// closed in order; any other error is final. One goroutine at a time may write and
// one read. The buffers are not kept.
type stream interface {
	// write takes bytes from the buffers in order, as many as go at once.
	write(buffers [][]byte) (int, error)
	// read fills the buffers in order, as far as there are bytes.
	read(buffers [][]byte) (int, error)
	// descriptor is what to hand to a poller. It is readable when read has
	// something to return, and writable when write takes something.
	descriptor() int
	// close ends the connection. What write took is still delivered.
	close() error
}

// maxBuffers is how many buffers one read or write looks at.
const maxBuffers = 4

// HelperCounters is what the helper threads of a connection have cost.
type HelperCounters struct {
	CPU   time.Duration // by the threads' own clocks
	Polls uint64        // reads and writes tried
	Found uint64        // those that moved bytes
	Bytes uint64
}

// Add adds d to c.
func (c *HelperCounters) Add(d HelperCounters) {
	c.CPU += d.CPU
	c.Polls += d.Polls
	c.Found += d.Found
	c.Bytes += d.Bytes
}
