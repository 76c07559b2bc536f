// Package bench holds the benchmarks of the collectives; [perf], beneath it, is the
// measuring tool. Use the benchmarks to compare two versions of this code, and
// perf to compare it with other libraries or to look at a machine.
//
//	go test -bench . ./bench                               # everything, once over
//	go test -bench '/coll=all_reduce/ranks=2' ./bench     # one corner
//	go test -bench . ./bench -sizes 4K,64M -ranks 3,8      # other sizes and ranks
//
// Flags of the test binary: -sizes and -ranks are comma-separated lists, the former
// with K, M and G as in perf; -working-set is the memory that the buffers of all
// ranks rotate over, by default twice the last-level cache. Small values measure
// what caches can do.
//
// # Names and numbers
//
// A benchmark is named Collective/coll=C/ranks=N/algo=A/proto=P/bytes=B. The keys
// are benchstat's: it can group, filter and compare by each of them. algo=auto and
// proto=auto are the library's own choice. Beside time and allocations per
// operation there are
//
//	MB/s         the caller's bytes over the time: algbw
//	busbw-GB/s   see below
//	cpu-s/op     processor time of the whole process, in all ranks
//	spin-share   polls that found nothing, of all polls: what waiting burns
//	yields/op    how often ranks gave their processor away, parks/op how often
//	             they went to sleep
//
// Communicators are open before the clock starts, every rank makes the same number
// of calls, and the clock stops when all ranks are through: a root that has only
// filled its peers' FIFOs is not done.
//
// # algbw and busbw
//
// algbw = S/t divides the size S of the operation by its time t. It says how long
// a program will wait, and cannot be compared between collectives or between
// numbers of ranks: an AllReduce has to move more than a Broadcast of the same S.
//
// busbw = algbw·f corrects for that. f is what an optimal algorithm moves through
// the busiest link of a rank, in units of S, so that busbw is the rate at which that
// link works, and its limit is the hardware's whatever the collective. With n
// ranks:
//
//   - AllReduce, S bytes everywhere: the n inputs of an element have to become
//     one, which takes n-1 sends, and the result has to reach the n-1 ranks that
//     do not have it: 2(n-1) sends of each of S bytes, shared by n ranks:
//     f = 2(n-1)/n.
//   - ReduceScatter and AllGather, S bytes over all ranks' blocks: one half of the
//     above each: f = (n-1)/n.
//   - AlltoAll, Gather, Scatter, S bytes over all blocks: a rank's (or the root's)
//     own block does not travel: f = (n-1)/n.
//   - Broadcast and Reduce, S bytes: a pipelined chain moves S through every link
//     and no algorithm can do with less at the root: f = 1.
//   - SendRecv, S bytes sent by each rank: f = 1.
//
// These are nccl-tests' definitions (doc/PERFORMANCE.md there). Here a "link" is
// memory: a rank's send is a store by one core and a load by another, so busbw is
// bounded by what cores can copy, and with more ranks than cores by what the cores
// have left for each.
//
// # Comparing with benchstat
//
//	go test -run '^$' -bench . -count 10 ./bench > old.txt
//	# change something
//	go test -run '^$' -bench . -count 10 ./bench > new.txt
//	go run golang.org/x/perf/cmd/benchstat@latest -col .file -row /coll,/ranks,/bytes old.txt new.txt
//
// Ten runs or more, on a machine that does nothing else: with ranks that outnumber
// cores the scheduler is part of what is measured, and single runs differ by tens
// of percent. To compare algorithms rather than versions, use one file and
// -col /algo.
package bench
