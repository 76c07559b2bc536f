package collective

import "github.com/gollective/gollective/transport/tcp"

// WithFaults returns c with sockets that misbehave.
func (c Config) WithFaults(f *tcp.Faults) Config {
	c.faults = f
	return c
}
