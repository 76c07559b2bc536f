// Package tune measures on the reader's machine which algorithm and protocol is best
// for each collective, size, number of ranks and transport, and writes a tuner file
// of it, which GOLLECTIVE_TUNER_FILE makes the library use. The command gollective
// tune is a thin shell around it.
//
// A point is one size of one collective in one placement (goroutine ranks, or
// processes that are connected in some way). Of each point all choices that can run
// are measured, each in a communicator of its own that has it forced:
//
//  1. Every choice makes its call once, and all must give the same bytes.
//  2. Every choice makes a few calls, which shows how many fit into the time that the
//     point may take. What is several times slower than the best is left out, and after
//     some rounds what is half as slow again.
//  3. Rounds of batches follow, there and back through the choices (A B B A), so that
//     what the machine does besides falls on all alike. The time of a batch is that of
//     the slowest rank; the time of a choice is the median over its batches.
//
// What the model would have chosen is one of these choices: if it is within the noise
// of the best, the file keeps it.
package tune
