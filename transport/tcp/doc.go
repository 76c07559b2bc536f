// Package tcp connects ranks of different processes, on one host or several, and
// shows what NCCL's network proxy does and costs.
//
//	block ─ FIFO ─ proxy ─ socket ═══ network ═══ socket ─ proxy ─ FIFO ─ block
//
// Every link is a connection of its own (port_linux.go, bundle_linux.go), which the links
// of both ways between two ranks soon share (twin_linux.go), with a FIFO in pinned
// memory at either end. The producer's block fills slots and moves tail; the proxy
// sends what is filled and moves head (sender_linux.go). The consumer's proxy receives into
// free slots and moves tail; its block reads and moves head (receiver_linux.go). Blocks and
// protocols see FIFOs like any others, but that they may lend the proxy the user's
// memory, which saves a copy on either side.
//
// The links of one channel of a rank are a station (station_linux.go), whose progress
// function is driven in one of two ways: by a thread per rank that goes round all
// stations, busy while an operation is in flight and asleep while none is (proxy_linux.go:
// NCCL's way), or by the block that waits, which so saves the way from thread to
// thread (spin.Service). All sockets are non-blocking and polled by raw
// system calls; the Go runtime's network poller has no part in it, but under TLS, where
// goroutines encrypt and decrypt between socket and proxy (tunnel_linux.go).
//
// TCP's window is the credit between the two processes: a proxy does not read before
// there is room, so that the other side's socket fills up.
package tcp
