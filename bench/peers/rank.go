package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/gollective/gollective/collective"
)

// rankCommand as the first argument makes this program a rank, or all of them as
// goroutines. The arguments after it are HOW RANKS SECONDS CORES BYTES:BUFFERS..., as
// the C programs have them.
const rankCommand = "rank"

// How gollective's ranks live, and where their buffers are.
const (
	inSlices     = "slices"     // processes, Go's memory
	inMemAlloc   = "memalloc"   // processes, Comm.MemAlloc's memory
	inGoroutines = "goroutines" // goroutines of one process
)

// runRank is the whole of a rank process.
func runRank(ctx context.Context, args []string, out io.Writer) error {
	if len(args) < 5 {
		return errors.New("arguments: HOW RANKS SECONDS CORES and jobs, BYTES:BUFFERS")
	}
	how := args[0]
	ranks, err := strconv.Atoi(args[1])
	if err != nil || ranks < 1 {
		return fmt.Errorf("%q is no number of ranks", args[1])
	}
	p := party{out: out, cpu: cpuSeconds}
	if p.seconds, err = strconv.ParseFloat(args[2], 64); err != nil {
		return err
	}
	cores, err := parseInts(args[3])
	if err != nil {
		return err
	}
	jobs, err := parseJobs(args[4:])
	if err != nil {
		return err
	}
	if how == inGoroutines {
		if err := pin(cores[:min(ranks, len(cores))]); err != nil {
			return err
		}
		return runGoroutines(ctx, p, ranks, jobs)
	}
	rank, err := strconv.Atoi(os.Getenv("GOLLECTIVE_RANK"))
	if err != nil {
		return fmt.Errorf("GOLLECTIVE_RANK: %w", err)
	}
	if err := pin([]int{cores[rank%len(cores)]}); err != nil {
		return err
	}
	if p.comm, err = collective.Init(ctx, collective.Config{}); err != nil {
		return err
	}
	defer p.comm.Close()
	if p.comm.Rank() != 0 {
		p.out = io.Discard
	}
	if err := p.allocate(jobs, how == inMemAlloc); err != nil {
		return err
	}
	return p.run(ctx, jobs)
}

// runGoroutines is all ranks in this process. The first counts the processor time.
func runGoroutines(ctx context.Context, of party, ranks int, jobs []job) error {
	comms, err := collective.InitAll(ranks)
	if err != nil {
		return err
	}
	errs := make([]error, ranks)
	var all sync.WaitGroup
	for rank, comm := range comms {
		all.Go(func() {
			defer comm.Close()
			p := of
			p.comm = comm
			if rank != 0 {
				p.out, p.cpu = io.Discard, func() float64 { return 0 }
			}
			if errs[rank] = p.allocate(jobs, false); errs[rank] == nil {
				errs[rank] = p.run(ctx, jobs)
			}
			if errs[rank] != nil {
				comm.Abort()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// parseInts reads a list such as 0,1.
func parseInts(list string) ([]int, error) {
	var all []int
	for _, text := range strings.Split(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is no list of processors", list)
		}
		all = append(all, n)
	}
	return all, nil
}

func parseJobs(args []string) ([]job, error) {
	var jobs []job
	for _, text := range args {
		var j job
		bytes, buffers, _ := strings.Cut(text, ":")
		var err error
		if j.bytes, err = natural(bytes); err == nil {
			j.buffers, err = natural(buffers)
		}
		if err != nil || j.bytes < 4 || j.bytes%4 != 0 || j.buffers < 1 {
			return nil, fmt.Errorf("%q is no job", text)
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}
