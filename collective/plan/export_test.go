package plan

// What tests of the cost model look at.

// Micros is the model's time for a call, in us.
func (s Spec) Micros(w World, a Algorithm, p Protocol) float64 { return s.micros(w, a, p) }

// MemoryHop and WireHop are the latency, in us, and the bandwidth, in GB/s, of a hop.
func MemoryHop(p Protocol) (micros, bandwidth float64) { return memory.cost(p) }
func WireHop(p Protocol) (micros, bandwidth float64)   { return wire.cost(p) }

// PeerMicros is what a peer of a one-shot schedule takes, in us.
func PeerMicros() (overMemory, overWire float64) { return peerMicros[memory], peerMicros[wire] }

func (m medium) cost(p Protocol) (micros, bandwidth float64) {
	c := m.hop(p)
	return c.micros, c.bandwidth
}

// WireLLPart is the largest part of a message that goes over the wire in LL, in bytes.
func WireLLPart() int { return wire.llPart() }
