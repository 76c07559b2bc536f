// Package perf measures collectives and verifies their results: what nccl-tests
// does for NCCL, with its flags, its table and its JSON report. The command
// gollective perf is a thin shell around it.
//
// A run is made of measurements, two for every size: out of place, then in place.
// One measurement goes like this, and driver.go keeps the order:
//
//  1. The buffers are filled, which also puts their pages into place.
//  2. Every rank, a goroutine of this process, makes one call that is not timed and
//     enters a barrier.
//  3. Every rank makes its iterations and takes its own time; offsets move through
//     the whole buffer from one iteration to the next, so that neither caches
//     flatter nor a stale pointer stays unnoticed.
//  4. The ranks' times become one time as -a says, and algbw and busbw follow.
//  5. With -c, the buffers are filled with data of package verify, the receive
//     buffers with bytes that are wrong everywhere, the operation runs once more,
//     and every element is compared.
//
// The ranks' average, nccl-tests' default for step 4, flatters operations with a
// root: a rank that only sends is through when its data is in the FIFOs, of which
// several small operations fit into eight slots. -a 3 takes the last rank's time.
//
// algbw is the bytes that the caller asked for over the time. busbw makes
// collectives comparable with each other and with the hardware: it multiplies
// algbw by the share of those bytes that each rank has to send in an optimal
// algorithm. Package bench derives the factors.
package perf
