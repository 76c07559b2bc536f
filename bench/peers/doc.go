// Peers compares gollective with the libraries that do the same on CPUs: Open MPI,
// MPICH and Gloo, as far as they are installed, and with what the machine allows.
//
//	go run ./bench/peers                           # everything, some eight minutes
//	go run ./bench/peers -quick                    # a first look
//	go run ./bench/peers -peers openmpi,gollective -transports shm -ranks 2 -sizes 4,64K
//	go run ./bench/peers -md docs/performance.md -J performance.json
//	go run ./bench/peers -from performance.json -statistic least   # the same figures, read otherwise
//
// It installs nothing. The peers' programs are in c/; they are built in a
// temporary directory with the compilers of the path, and what is missing is named
// and left out. Libraries elsewhere are found by the compilers' own variables: CPATH,
// LIBRARY_PATH and LD_LIBRARY_PATH.
//
// # What is measured
//
// AllReduce, float32, sum, out of place. Rank i runs on processor i modulo the number of
// processors and stays there; goroutine ranks, which Go places, have as many
// processors as they would have so. All contenders do the same, measure.go and
// c/contest.h, which are twins:
//
//  1. Fill the inputs of all buffers, and the outputs with what is no result.
//  2. Make operations in batches that double in length, until one takes a
//     twentieth of the job's time: this warms up and tells how long a batch has to be.
//  3. Poison the outputs again. Make batches for the job's time, all ranks at once, each
//     as long as its slowest rank.
//  4. Check every element of every output that was written.
//
// Fixed buffers are one pair in all operations, unchanged: the classic benchmark, in
// which caches help more than in most programs. Rotating buffers are as many pairs as
// make twice the last-level cache, over all ranks, but at most 1024; where one pair
// is as large as that there is only one measurement for both.
//
// The contenders of a group, that is transport and number of ranks, take turns: A B C A B
// C. A figure is the median over the rounds of the medians over a round's
// batches; a ratio is the median of the ratios of each round, so that a slow minute of
// the machine hits both sides of it. Where others use the machine all the time,
// -statistic least takes the best batch of all rounds instead.
//
// Processor time is that of all ranks, user and system, from getrusage, per operation. Where
// a contender is faster and takes more processor time than what it is compared with,
// the table says so: it has bought speed with another core.
//
// # Goals
//
// The report begins with what gollective wants to be beside others (goals.go), and whether
// it is. What bounds a goal that was missed is no measurement: it is written by hand in
// the section under the table. -md keeps that section of the file that it writes, and adds a
// line for each missed goal whose number, as **1**, does not occur in it.
//
// Some goals need more than the usual settings. The reference plans, gollective held to
// ring or tree and to one protocol, take part in 2 ranks over shared memory, at the sizes of
// their goals. 8 ranks over shared memory are measured at 4 bytes alone, for Open MPI and
// goroutines.
//
// # Time
//
// A run says at its start how long it may take. Who is not ready long after its time is
// ended, and what it has told by then counts. MPICH over TCP, and MPICH and Gloo where
// ranks outnumber processors, may take seconds for what others do in microseconds:
// whoever polls there keeps others from doing what it polls for. They have 5 s more
// than their time, and if that is not enough, they have it once. Others are asked once
// more when they have failed, or hung, as Gloo's sync and busy-poll modes do at 64M
// unless smaller sizes come first (c/gloo.cc).
//
// # Reading order
//
// main.go, options.go, contenders.go (who and how), build.go, run.go (the rounds),
// rank.go and measure.go (gollective's side), results.go (what programs print),
// statistics.go, report.go, markdown.go, goals.go.
package main
