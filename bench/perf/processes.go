package perf

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/cpuid/v2"

	"github.com/gollective/gollective/collective"
)

// A run may be spread over processes that a launcher has started, each with -t
// times -g ranks. All of them take part in everything and agree on the outcome;
// the process of rank 0 prints.

// join makes this process's communicators.
func (r *run) join(ctx context.Context) error {
	var err error
	r.comms, err = collective.InitLocal(ctx, r.Ranks(), r.Config())
	if err != nil {
		return err
	}
	r.first, r.ranks = r.comms[0].Rank(), r.comms[0].Size()
	if err := r.validateFor(r.ranks); err != nil {
		return err
	}
	if r.first != 0 {
		r.out, r.errs, r.table.w, r.JSON = io.Discard, io.Discard, io.Discard, ""
	}
	return nil
}

// comm is the communicator of a rank of this process.
func (r *run) comm(rank int) *collective.Comm { return r.comms[rank-r.first] }

// gather returns what each rank of all processes gives, by rank: mine(rank) has the
// same length everywhere.
func gather[T collective.Number](ctx context.Context, r *run, mine func(rank int) []T) ([][]T, error) {
	var all []T
	err := r.onRanks(ctx, func(ctx context.Context, rank int) error {
		send := mine(rank)
		recv := make([]T, r.ranks*len(send))
		if err := collective.AllGather(ctx, r.comm(rank), send, recv); err != nil {
			return err
		}
		if rank == r.first {
			all = recv
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	each := make([][]T, r.ranks)
	n := len(all) / r.ranks
	for rank := range each {
		each[rank] = all[rank*n : (rank+1)*n]
	}
	return each, nil
}

// sum adds up a number of every process.
func (r *run) sum(ctx context.Context, mine int64) (int64, error) {
	each, err := gather(ctx, r, func(rank int) []int64 {
		if rank == r.first {
			return []int64{mine}
		}
		return []int64{0}
	})
	var sum int64
	for _, part := range each {
		sum += part[0]
	}
	return sum, err
}

// devices describes the ranks in nccl-tests' terms. The place of a bus address is
// taken by -t's group and -g's number within it.
func (r *run) devices(ctx context.Context) ([]jsonDevice, error) {
	const hostBytes, cpuBytes = 64, 64
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	cpu := cpuid.CPU.BrandName
	if cpu == "" {
		cpu = "CPU"
	}
	names := make([]byte, hostBytes+cpuBytes)
	copy(names[:hostBytes], host)
	copy(names[hostBytes:], cpu)
	places, err := gather(ctx, r, func(rank int) []int64 { return []int64{int64(os.Getpid()), int64(rank - r.first)} })
	if err != nil {
		return nil, err
	}
	texts, err := gather(ctx, r, func(int) []uint8 { return names })
	if err != nil {
		return nil, err
	}
	all := make([]jsonDevice, r.ranks)
	for rank := range all {
		local := int(places[rank][1])
		name := func(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }
		all[rank] = jsonDevice{
			Rank: rank, Pid: int(places[rank][0]), Host: text(name(texts[rank][:hostBytes])), Device: local,
			Hex:  text(fmt.Sprintf("0000:%02x:%02x", local/r.Devices, local%r.Devices)),
			Info: text(name(texts[rank][hostBytes:]) + " goroutine"),
		}
	}
	return all, nil
}
