package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Exit statuses.
const (
	statusGood   = 0
	statusFailed = 1
	statusUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == rankCommand {
		if err := runRank(ctx, os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(statusFailed)
		}
		return
	}
	os.Exit(compare(ctx, os.Args[1:]))
}

// compare is the tool; it returns the exit status.
func compare(ctx context.Context, args []string) int {
	o, err := parseOptions(args, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return statusGood
	case err != nil:
		return statusUsage
	}
	var r *report
	if o.from != "" {
		r, err = readReport(o)
	} else {
		r, err = run(ctx, o, os.Stderr)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "peers: %v\n", err)
		return statusFailed
	}
	if err := r.write(os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "peers: %v\n", err)
		return statusFailed
	}
	if len(r.Failures) > 0 {
		return statusFailed
	}
	return statusGood
}
