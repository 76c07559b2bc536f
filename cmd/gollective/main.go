// Command gollective measures collectives, and shows how they work.
//
//	gollective perf [COLLECTIVE]   measure and verify, as nccl-tests does
//	gollective load                show what waiting costs
//	gollective run -n N -- PROGRAM start N processes as ranks of one job
//	gollective plan COLLECTIVE     print the schedule of a call
//	gollective tree N              print the double binary tree of N nodes
//	gollective tune                measure what is best here, for a tuner file
//	gollective version             print the version
//
// Exit status: 0 good, 1 wrong results or failed run, 2 usage; run's is that of the
// rank that failed first.
package main

import (
	"context"
	"os"
	"os/signal"
)

func main() {
	ctx := context.Background()
	if !signal.Ignored(os.Interrupt) { // as by a shell for what it puts into the background
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt)
		context.AfterFunc(ctx, stop) // a second interrupt ends the process at once
	}
	os.Exit(run(ctx, os.Args, os.Stdout, os.Stderr))
}
