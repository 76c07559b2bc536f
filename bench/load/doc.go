// Package load shows on the reader's machine why collectives in the manner of NCCL
// keep processors busy, and what of that is work. It is the engine of
// gollective load.
//
// Ranks are processes of this host that are connected by TCP over loopback, with one
// channel: each rank has one block and, with the proxy driver thread, one proxy
// thread. Every combination of wait policy and proxy driver is a [Case] with processes
// of its own, which go through these phases together:
//
//  1. idle: several communicators exist, connected and used before, and nobody calls.
//  2. small: allreduces of 4 B back to back; latency of each.
//  3. large: allreduces of 16 MiB back to back; bandwidth, and processor time per GB.
//  4. late: the last rank enters an allreduce 50 ms after the others, several times.
//
// Further cases, of policy spin only, have a network that is slow (SO_MAX_PACING_RATE)
// and one phase:
//
//  5. slow: allreduces of 4 MiB back to back.
//
// In every phase each rank takes the processor time of its process from the system,
// and that of its roles, block and proxy, from its communicator's accounts
// (collective.Stats): measure.go. A share of 1, or 100 %, is one core. From those
// samples the figures are made (figures.go), from the figures the table, the chart,
// the JSON report and the verdicts (verdict.go): claims about spinning, which hold or
// don't on this machine.
//
// The order of reading: run.go, measure.go, figures.go, verdict.go.
package load
