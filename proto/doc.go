// Package proto holds the three protocols in which a chunk travels through a
// FIFO of transport, and the primitives that schedules are made of; and Direct, the
// protocol of ranks that look at each other's memory and need no FIFO.
//
//	          slot                       wire/payload  what orders data before flag     good for
//	Simple    plain bytes                1             tail counter, once per slice     bandwidth
//	LL        16-byte lines: 4 B data,   2             data and flag are one 64-bit     latency
//	          4 B flag, twice                          store; the reader polls flags
//	LL128     128-byte lines: 120 B      128/120       15 words first, then the flag    in between
//	          data, 8 B flag                           (release); the reader looks at
//	                                                   the flag first (acquire)
//
// LL and LL128 put one line more in front of each slot than NCCL does: its
// payload names the operation, so that a rank that makes another call than its
// peer sees it in the first line it receives. In Simple the same word lies
// beside the tail. An empty chunk is thereby visible, too: a step always carries
// something to wait for.
//
// Reading order: primitives.go (the verbs), simple.go, lines.go (what LL and
// LL128 share), ll.go, ll128.go; claim.go for why readers write; direct.go.
//
// NCCL: src/device/primitives.h, prims_simple.h, prims_ll.h, prims_ll128.h.
package proto
