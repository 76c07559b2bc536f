package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/gollective/gollective/collective"
)

// party is a rank of gollective that takes part. It does what c/contest.h makes the
// other libraries do, step by step; the names are the same.
type party struct {
	comm       *collective.Comm
	seconds    float64        // per job
	cpu        func() float64 // seconds of this rank's process; 0 where another rank counts it
	out        io.Writer      // of rank 0, else discarded
	send, recv []float32      // memory for all jobs

	job
	count, stride int     // floats, and floats from one buffer to the next
	next          int     // buffer of the next operation
	used          float64 // seconds of processor time, in batches
}

// A job has so many batches, if it can.
const leastTimes, mostTimes = 5, 1024

// floats is how much memory a job takes of send and recv each.
func (j job) floats() int { return j.buffers * j.strideFloats() }

// strideFloats leaves no two buffers on a cache line.
func (j job) strideFloats() int { return (j.bytes/4 + 15) &^ 15 }

// run measures all jobs.
func (p *party) run(ctx context.Context, jobs []job) error {
	for _, j := range jobs {
		p.job, p.count, p.stride, p.next = j, j.bytes/4, j.strideFloats(), 0
		r, err := p.measure(ctx)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(p.out, r.format()); err != nil {
			return err
		}
	}
	return nil
}

// input is a small integer: every order of addition gives the same bits. Each rank,
// buffer and element has its own.
func input(rank, buffer, i int) float32 { return float32(rank + 1 + (i+5*buffer)&15) }

// sum is what AllReduce must make of the inputs of so many ranks.
func sum(ranks, buffer, i int) float32 {
	return float32(ranks*(ranks+1)/2 + ranks*((i+5*buffer)&15))
}

func (p *party) fill() {
	for b := range p.buffers {
		for i := range p.count {
			p.send[b*p.stride+i] = input(p.comm.Rank(), b, i)
		}
	}
}

// poison makes sure that a result is a result.
func (p *party) poison() {
	nan := float32(math.NaN())
	used := p.recv[:p.floats()]
	for i := range used {
		used[i] = nan
	}
}

// wrong counts elements, over all ranks, that are wrong in the buffers that so many
// operations from buffer 0 on have written.
func (p *party) wrong(ctx context.Context, operations int) (int, error) {
	wrong := 0
	for b := range min(p.buffers, operations) {
		for i := range p.count {
			if p.recv[b*p.stride+i] != sum(p.comm.Size(), b, i) {
				wrong++
			}
		}
	}
	all, err := p.agree(ctx, float64(wrong), collective.Sum)
	return int(all), err
}

func (p *party) agree(ctx context.Context, mine float64, op collective.Op) (float64, error) {
	send, recv := []float64{mine}, make([]float64, 1)
	err := collective.AllReduce(ctx, p.comm, send, recv, op)
	return recv[0], err
}

// batch makes n operations and returns the seconds of the slowest rank.
func (p *party) batch(ctx context.Context, n int) (float64, error) {
	if _, err := p.agree(ctx, 0, collective.Max); err != nil { // nobody begins before all are here
		return 0, err
	}
	b, count := p.next, p.count
	cpu, begun := p.cpu(), time.Now()
	for range n {
		at := b * p.stride
		if err := collective.AllReduce(ctx, p.comm, p.send[at:at+count], p.recv[at:at+count], collective.Sum); err != nil {
			return 0, err
		}
		if b++; b == p.buffers {
			b = 0
		}
	}
	took := time.Since(begun).Seconds()
	p.used += p.cpu() - cpu
	p.next = b
	return p.agree(ctx, took, collective.Max)
}

// calibrate returns about the seconds of an operation: those of the best batch.
func (p *party) calibrate(ctx context.Context) (float64, error) {
	least := math.Inf(1)
	for n := 1; ; n *= 2 {
		took, err := p.batch(ctx, n)
		if err != nil {
			return 0, err
		}
		least = min(least, took/float64(n))
		if took >= p.seconds/20 && n > 1 || took >= p.seconds || n >= 1<<30 {
			return least, nil
		}
	}
}

// measure does one job. All ranks see the same times, and so do the same.
func (p *party) measure(ctx context.Context) (result, error) {
	p.fill()
	p.poison()
	least, err := p.calibrate(ctx)
	if err != nil {
		return result{}, err
	}
	if _, err := p.agree(ctx, 0, collective.Max); err != nil {
		return result{}, err
	}
	p.poison()
	r := result{Job: p.job}
	n, total := max(1, int(p.seconds/50/least)), 0.0 // short: who is preempted loses one sample
	p.next, p.used = 0, 0
	// Where a batch takes most of the time, by itself or because somebody else had
	// the processor, a few more are made.
	for (total < p.seconds || len(r.Seconds) < leastTimes && total < 4*p.seconds) && len(r.Seconds) < mostTimes {
		took, err := p.batch(ctx, n)
		if err != nil {
			return result{}, err
		}
		total += took
		r.Seconds = append(r.Seconds, took/float64(n))
	}
	r.Operations = n * len(r.Seconds)
	cpu, err := p.agree(ctx, p.used, collective.Sum)
	if err != nil {
		return result{}, err
	}
	r.CPU = cpu / float64(r.Operations)
	r.Wrong, err = p.wrong(ctx, r.Operations)
	return r, err
}

// allocate makes the memory for the largest job. Ordinary slices begin on a page, as the
// other libraries' memory does: Go's large ones do.
func (p *party) allocate(jobs []job, inShared bool) (err error) {
	most := 1024
	for _, j := range jobs {
		most = max(most, j.floats())
	}
	if !inShared {
		p.send, p.recv = make([]float32, most+pageFloats)[:most], make([]float32, most+pageFloats)[:most]
		return nil
	}
	if p.send, err = sharedFloats(p.comm, most); err != nil {
		return err
	}
	p.recv, err = sharedFloats(p.comm, most)
	return err
}

const pageFloats = 4096 / 4
